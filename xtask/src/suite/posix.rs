//! pjdfstest on a mount, with nothing skipped.
//!
//! Two passes, because some tests keep files open for writing and the tests that need a read-only remount would find the file
//! system busy after them: first everything except those, then only those. A second file system is given for EXDEV. Exclusions are in
//! `tests/exclusions/pjdfstest.txt`; an excluded test that runs and passes is a failure too, so the list can only shrink.
//! With two mounts of one file system, calls go through them in turns (`turns.rs`).

mod turns;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use self::turns::Turns;
use super::masked_kernel::MaskedKernel;
use crate::repository::{Repository, Work};
use crate::{setup, shell};

/// Part of the name of every test that remounts.
const REMOUNTING: &str = "erofs";

/// Options of the task.
#[derive(clap::Args, Debug, Default)]
pub struct Arguments {
    /// Run in this directory instead of mounting Ashlar; it must be the mount point of a file system.
    #[arg(long)]
    on: Option<PathBuf>,
    /// Another mount point of the same file system, as long a path as that of `--on`: every call goes through the other one than the call before.
    #[arg(long, requires = "on")]
    also_on: Option<PathBuf>,
    /// Only tests whose name contains one of these.
    #[arg(long)]
    only: Vec<String>,
    /// Build for speed.
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    kernel: MaskedKernel,
}

impl Arguments {
    /// Everything, on the oldest kernel.
    #[must_use]
    pub fn on_oldest_kernel() -> Self {
        Self { kernel: MaskedKernel::oldest(), ..Self::default() }
    }
}

/// Runs the task.
///
/// # Errors
/// When a test fails or is skipped, or the suite cannot be run.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.on {
        Some(mount) => run_on(repository, arguments, mount),
        None => {
            let work = Work::create("posix")?;
            let programs = repository.build(arguments.release)?;
            let mut command = Command::new(programs.join("ashlar-torture"));
            command.arg("with-mount").arg("--work").arg(work.path().join("mount"));
            arguments.kernel.pass_to_server(&mut command);
            command.arg("--").arg(std::env::current_exe()?).args(["posix", "--on", "{MOUNT}"]);
            if let Some(list) = arguments.kernel.list() {
                command.args(["--mask-features", list]);
            }
            for pattern in &arguments.only {
                command.args(["--only", pattern]);
            }
            let result = shell::run(command.current_dir(&repository.root));
            work.finish(result)
        }
    }
}

/// Runs everything at a mount that somebody else has made, in turns with another one of the same file system if there is one.
///
/// # Errors
/// As [`run`].
pub fn run_at(repository: &Repository, mount: &Path, also: Option<&Path>) -> anyhow::Result<()> {
    run_on(repository, &Arguments { also_on: also.map(Path::to_owned), ..Arguments::default() }, mount)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    failed: u64,
    skipped: u64,
    passed: u64,
    excluded: u64,
}

fn run_on(repository: &Repository, arguments: &Arguments, mount: &Path) -> anyhow::Result<()> {
    let work = Work::create("pjdfstest")?;
    let result = both_passes(repository, arguments, mount, work.path());
    work.finish(result)
}

fn both_passes(
    repository: &Repository,
    arguments: &Arguments,
    mount: &Path,
    work: &Path,
) -> anyhow::Result<()> {
    let second = work.join("second-file-system");
    fs::create_dir_all(&second)?;
    let program = setup::pjdfstest()?;
    let mut turns = match &arguments.also_on {
        Some(other) => Some(Turns::prepare(repository, work, &program, [mount, other])?),
        None => None,
    };
    let path = path_with_plain_mount(work, turns.as_ref())?;
    let template = fs::read_to_string(repository.root.join("tests/posix/pjdfstest.toml"))
        .context("read tests/posix/pjdfstest.toml")?;
    let exclusions = fs::read_to_string(repository.root.join("tests/exclusions/pjdfstest.txt"))
        .context("read tests/exclusions/pjdfstest.txt")?;
    let excluded = parse_exclusions(&exclusions)?;
    let mut sum = Counts::default();
    for remounting in [false, true] {
        let configuration = work.join(format!("remounting-{remounting}.toml"));
        fs::write(&configuration, configure(&template, remounting, &excluded)?)?;
        let mut command = Command::new(&program);
        command.arg("-c").arg(&configuration).arg("-p").arg(mount).arg("-s").arg(&second).env("PATH", &path);
        if remounting {
            command.arg(REMOUNTING);
        } else {
            command.args(&arguments.only);
        }
        if let Some(turns) = &turns {
            turns.pass_to(&mut command);
        }
        println!("$ {}", shell::show(&command));
        let output = command.output().context("start pjdfstest")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let counts = parse_summary(&text).with_context(|| {
            format!("pjdfstest printed no summary:\n{text}\n{}", String::from_utf8_lossy(&output.stderr))
        })?;
        print_failures(&text, remounting, &excluded);
        if let Some(turns) = &mut turns {
            turns.count()?;
        }
        sum.failed += counts.failed;
        sum.passed += counts.passed;
        sum.excluded += counts.excluded;
        sum.skipped += skipped_wrongly(&text, remounting, &excluded).count() as u64;
    }
    if let Some(turns) = &turns {
        turns.require_both()?;
    }
    println!("{} excluded with reasons, {} skipped", sum.excluded, sum.skipped);
    println!("{} passed, {} failed", sum.passed, sum.failed + sum.skipped);
    if sum.failed + sum.skipped > 0 {
        bail!("pjdfstest: {} failed, {} skipped", sum.failed, sum.skipped);
    }
    Ok(())
}

/// The search path with a `mount` before all others that never calls a helper program: `mount -o remount` of a FUSE file system would
/// otherwise look for `mount.fuse`, which starts a new server instead of changing the mount.
/// Where two mounts take turns, what is mounted, remounted or unmounted at one is so at the other, too.
fn path_with_plain_mount(work: &Path, turns: Option<&Turns>) -> anyhow::Result<std::ffi::OsString> {
    let directory = work.join("bin");
    fs::create_dir_all(&directory)?;
    let scripts = match turns {
        None => vec![("mount", "#!/bin/sh\nexec /bin/mount --internal-only \"$@\"\n".to_owned())],
        Some(turns) => vec![
            ("mount", turns.script_at_both("/bin/mount --internal-only")),
            ("umount", turns.script_at_both("/bin/umount")),
        ],
    };
    for (name, text) in scripts {
        let script = directory.join(name);
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    let old = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(std::iter::once(directory).chain(std::env::split_paths(&old)))?)
}

/// Test names from lines of the form `name  # reason`.
fn parse_exclusions(text: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once('#') {
            Some((name, reason)) if !reason.trim().is_empty() => names.push(name.trim().to_owned()),
            _ => bail!("an exclusion needs a reason: `{line}`"),
        }
    }
    Ok(names)
}

fn configure(template: &str, remounting: bool, excluded: &[String]) -> anyhow::Result<String> {
    const REMOUNT_LINE: &str = "allow_remount = false";
    const EXCLUDED_LINE: &str = "expected_failures = []";
    if !template.contains(REMOUNT_LINE) || !template.contains(EXCLUDED_LINE) {
        bail!("tests/posix/pjdfstest.toml must contain `{REMOUNT_LINE}` and `{EXCLUDED_LINE}`");
    }
    let quoted: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
    Ok(template
        .replace(REMOUNT_LINE, &format!("allow_remount = {remounting}"))
        .replace(EXCLUDED_LINE, &format!("expected_failures = [{}]", quoted.join(", "))))
}

/// The names of tests that were skipped although they should have run: not what the first pass leaves to the second, nor what is excluded.
fn skipped_wrongly<'a>(
    text: &'a str,
    remounting: bool,
    excluded: &'a [String],
) -> impl Iterator<Item = &'a str> + 'a {
    text.lines()
        .filter_map(|line| line.trim_end().strip_suffix("skipped").map(str::trim_end))
        .filter(move |name| remounting || !name.contains(REMOUNTING))
        .filter(|name| !excluded.iter().any(|excluded| excluded == name))
}

fn print_failures(text: &str, remounting: bool, excluded: &[String]) {
    let skipped: Vec<&str> = skipped_wrongly(text, remounting, excluded).collect();
    let mut showing = false;
    for line in text.lines() {
        if line.contains("::") && !line.starts_with(char::is_whitespace) {
            let name = line.split_whitespace().next().unwrap_or_default();
            showing = skipped.contains(&name) || line.contains("FAILED") || line.contains("UNEXPECTEDLY");
        }
        if showing {
            println!("{line}");
        }
    }
}

/// Reads `Summary: 0 failed, 15 skipped, 383 passed, 0 expected failures, 398 total`.
fn parse_summary(text: &str) -> Option<Counts> {
    let line = text.lines().rev().find(|line| line.contains("Summary"))?;
    let number = |label: &str| -> Option<u64> {
        let before = line[..line.find(label)?].trim_end();
        before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Some(Counts {
        failed: number("failed")?,
        skipped: number("skipped")?,
        passed: number("passed")?,
        excluded: number("expected failures")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_line_is_read() {
        let text = "x ok\n\nSummary: 1 failed, 15 skipped, 383 passed, 2 expected failures, 401 total\n";
        let counts = Counts { failed: 1, skipped: 15, passed: 383, excluded: 2 };
        assert_eq!(parse_summary(text), Some(counts));
        assert_eq!(parse_summary("crash"), None);
    }

    #[test]
    fn only_excluded_tests_and_those_of_the_other_pass_may_be_skipped() {
        let text = "a::erofs_named      skipped\n\treason\na::b   ok\nc::d     skipped\ne::f    skipped\n";
        let excluded = ["c::d".to_owned()];
        let skipped = |remounting| skipped_wrongly(text, remounting, &excluded).collect::<Vec<_>>();
        assert_eq!(skipped(false), ["e::f"]);
        assert_eq!(skipped(true), ["a::erofs_named", "e::f"]);
    }

    #[test]
    fn an_exclusion_without_a_reason_is_refused() {
        let text = "# all of them\n\nrename::x  # reason\n";
        assert_eq!(parse_exclusions(text).expect("sound"), ["rename::x"]);
        assert!(parse_exclusions("rename::x\n").is_err());
        assert!(parse_exclusions("rename::x #\n").is_err());
    }

    #[test]
    fn the_configuration_is_filled_in() {
        let template = "[settings]\nallow_remount = false\nexpected_failures = []\n";
        let text = configure(template, true, &["a::b".to_owned()]).expect("a template");
        assert_eq!(text, "[settings]\nallow_remount = true\nexpected_failures = [\"a::b\"]\n");
        assert!(configure("", true, &[]).is_err());
    }
}
