//! What a run writes: tables in Markdown, raw figures in JSON, and for each target whether it was reached.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, Value};

/// The documents of one run.
#[derive(Debug)]
pub(super) struct Report {
    text: String,
    parts: Map<String, Value>,
    output: Option<PathBuf>,
}

/// What a figure shall be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

/// A target and what was measured.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) what: String,
    pub(super) measured: f64,
    pub(super) wanted: Wanted,
    /// What follows the numbers, with a space before it.
    pub(super) unit: &'static str,
}

impl Target {
    /// A target for a ratio, shown in percent.
    pub(super) fn percent(what: impl Into<String>, ratio: f64, wanted: Wanted) -> Self {
        let wanted = match wanted {
            Wanted::AtLeast(ratio) => Wanted::AtLeast(ratio * 100.0),
            Wanted::AtMost(ratio) => Wanted::AtMost(ratio * 100.0),
        };
        Self { what: what.into(), measured: ratio * 100.0, wanted, unit: " %" }
    }

    fn is_reached(&self) -> bool {
        // Zero is what a median without figures is.
        self.measured > 0.0
            && match self.wanted {
                Wanted::AtLeast(bound) => self.measured >= bound,
                Wanted::AtMost(bound) => self.measured <= bound,
            }
    }

    fn row(&self) -> String {
        let (sign, bound) = match self.wanted {
            Wanted::AtLeast(bound) => ("at least", bound),
            Wanted::AtMost(bound) => ("at most", bound),
        };
        let number = |value: f64| match value.abs() < 10.0 {
            true => format!("{value:.2}{}", self.unit),
            false => format!("{value:.0}{}", self.unit),
        };
        let reached = if self.is_reached() { "reached" } else { "**not reached**" };
        format!("| {} | {sign} {} | {} | {reached} |\n", self.what, number(bound), number(self.measured))
    }
}

impl Report {
    pub(super) fn new(output: Option<PathBuf>) -> Self {
        Self { text: String::new(), parts: Map::new(), output }
    }

    /// Adds text and prints it.
    pub(super) fn say(&mut self, text: &str) {
        println!("{text}");
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Begins a part; says where it runs.
    pub(super) fn begin(&mut self, title: &str, place: &Path) -> anyhow::Result<()> {
        let release =
            fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's release")?;
        let processors = std::thread::available_parallelism().context("count the processors")?;
        self.say(&format!(
            "\n## {title}\n\nLinux {}, {processors} processors, data on {}.\n",
            release.trim(),
            file_system_name(place)?
        ));
        Ok(())
    }

    /// Adds a table.
    pub(super) fn table(&mut self, head: &[String], rows: &[Vec<String>]) {
        let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
        let mut lines = vec![line(head), format!("|{}", "---|".repeat(head.len()))];
        lines.extend(rows.iter().map(|row| line(row)));
        lines.push(String::new());
        self.say(&lines.join("\n"));
    }

    /// Adds the table of targets.
    pub(super) fn targets(&mut self, targets: &[Target]) {
        let rows: String = targets.iter().map(Target::row).collect();
        self.say(&format!("| target | wanted | measured | |\n|---|---|---|---|\n{rows}"));
    }

    /// Keeps raw figures, and writes what there is so far, so that a later part that fails loses nothing.
    pub(super) fn keep(&mut self, part: &str, figures: Value) -> anyhow::Result<()> {
        self.parts.insert(part.to_owned(), figures);
        self.write()
    }

    fn write(&self) -> anyhow::Result<()> {
        let Some(output) = &self.output else { return Ok(()) };
        let write = |extension: &str, bytes: &[u8]| {
            let path = output.with_extension(extension);
            fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
        };
        write("md", self.text.as_bytes())?;
        write("json", &serde_json::to_vec_pretty(&self.parts)?)
    }

    /// Writes the files.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.write()
    }
}

/// The name of the file system a directory is on, as far as it is one the benchmarks meet.
///
/// # Errors
/// When the directory cannot be asked about.
pub(super) fn file_system_name(path: &Path) -> anyhow::Result<String> {
    let name = CString::new(path.as_os_str().as_bytes()).context("a path has no zero byte")?;
    // SAFETY: all zeroes is a valid statfs, and the call gets a path that ends with a zero byte and a structure to fill.
    let (status, answer) = unsafe {
        let mut answer: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &raw mut answer), answer)
    };
    if status != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("statfs {}", path.display()));
    }
    Ok(match answer.f_type {
        libc::TMPFS_MAGIC => "tmpfs".to_owned(),
        libc::EXT4_SUPER_MAGIC => "ext4".to_owned(),
        libc::XFS_SUPER_MAGIC => "XFS".to_owned(),
        libc::BTRFS_SUPER_MAGIC => "Btrfs".to_owned(),
        0x8584_58f6 => "ramfs".to_owned(),
        other => format!("a file system of type {other:#x}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_reached_from_its_own_side() {
        let target = |measured, wanted| Target { what: "x".into(), measured, wanted, unit: " s" };
        assert!(target(2.0, Wanted::AtLeast(2.0)).is_reached());
        assert!(!target(1.9, Wanted::AtLeast(2.0)).is_reached());
        assert!(target(2.0, Wanted::AtMost(2.0)).is_reached());
        assert!(!target(2.1, Wanted::AtMost(2.0)).is_reached());
        assert_eq!(
            target(12.0, Wanted::AtMost(10.0)).row(),
            "| x | at most 10 s | 12 s | **not reached** |\n"
        );
        assert_eq!(
            Target::percent("y", 0.615, Wanted::AtLeast(0.6)).row(),
            "| y | at least 60 % | 62 % | reached |\n"
        );
    }

    #[test]
    fn a_target_that_was_not_measured_is_not_reached() {
        assert!(!Target::percent("x", 0.0, Wanted::AtMost(1.0)).is_reached());
    }

    #[test]
    fn what_was_kept_is_written_at_once() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output = directory.path().join("out");
        let mut report = Report::new(Some(output.clone()));
        report.table(&["a".into(), "b".into()], &[vec!["1".into(), "2".into()]]);
        report.keep("part", serde_json::json!([1])).expect("written");
        let text = fs::read_to_string(output.with_extension("md")).expect("a table");
        assert_eq!(text, "| a | b |\n|---|---|\n| 1 | 2 |\n\n");
        let figures = fs::read_to_string(output.with_extension("json")).expect("figures");
        assert!(figures.contains("part"));
    }

    #[test]
    fn the_file_system_of_a_directory_has_a_name() {
        assert_eq!(file_system_name(Path::new("/proc")).expect("statfs"), "a file system of type 0x9fa0");
        assert!(file_system_name(Path::new("/nowhere/at/all")).is_err());
    }
}
