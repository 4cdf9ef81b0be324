//! Ashlar beside the ceiling of the machine and the local file system, measured with one program, taking turns.
//!
//! The ceiling is the example `ceiling` of `crates/fuse`: a server without data behind the same FUSE layer. All three are mounted for the
//! whole time; every case is run on each in turn, several rounds; the median counts and the spread is shown, because on a shared machine only
//! ratios taken in one run mean anything.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::repository::{Repository, Work};
use crate::shell;

/// Options of the task.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Rounds; the median of them counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A directory on the file system under test and compared with; by default that for temporary files.
    #[arg(long)]
    base: Option<PathBuf>,
    /// Files per thread in metadata cases.
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// MiB per thread in data cases.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Arguments for the ceiling, so that it has the settings Ashlar has.
    #[arg(long, default_value = "--entry-lifetime 3600 --attr-lifetime 3600 --default-permissions")]
    ceiling: String,
    /// Where to write the table (.md) and the raw figures (.json); printed only, without it.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Set by the task itself when Ashlar is mounted here.
    #[arg(long, hide = true)]
    on: Option<PathBuf>,
    /// Set by the task itself: the directory of the built programs.
    #[arg(long, hide = true)]
    programs: Option<PathBuf>,
}

/// A case: name, subcommand, arguments; whether data is moved, so that MiB/s count.
struct Case {
    name: &'static str,
    command: &'static str,
    arguments: &'static [&'static str],
    counts_bytes: bool,
}

const fn meta(name: &'static str, arguments: &'static [&'static str]) -> Case {
    Case { name, command: "metabench", arguments, counts_bytes: false }
}

const fn data(name: &'static str, arguments: &'static [&'static str], counts_bytes: bool) -> Case {
    Case { name, command: "databench", arguments, counts_bytes }
}

const CASES: &[Case] = &[
    meta("empty files, 2 threads", &["--threads", "2"]),
    meta("empty files, 8 threads", &["--threads", "8"]),
    meta("empty files, shared directory", &["--threads", "2", "--shared"]),
    meta("3 KiB files", &["--threads", "2", "--size", "3072"]),
    meta("4 KiB files", &["--threads", "2", "--size", "4096"]),
    data("sequential N-N", &["--threads", "2"], true),
    data("sequential N-1", &["--threads", "2", "--shared"], true),
    data("sequential, one stream", &["--threads", "1"], true),
    data("sequential N-N, direct", &["--threads", "2", "--direct", "--depth", "4"], true),
    data("random 4 KiB, depth 16", &["--random", "--depth", "16", "--direct", "--seconds", "3"], false),
];

const CONTESTANTS: [&str; 3] = ["ceiling", "local", "ashlar"];

/// Figures of one case and phase: contestant to one number per round.
type Figures = BTreeMap<&'static str, Vec<f64>>;

/// Runs the task.
///
/// # Errors
/// When a program cannot be built, mounted or run.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    if let (Some(mount), Some(programs)) = (&arguments.on, &arguments.programs) {
        return run_on(arguments, mount, programs);
    }
    let programs = repository.build(true)?;
    shell::run(&mut repository.cargo(&[
        "build",
        "--quiet",
        "--release",
        "-p",
        "ashlar-fuse",
        "--example",
        "ceiling",
    ]))?;
    let work = Work::create("bench")?;
    let base = match &arguments.base {
        Some(base) => base.canonicalize()?.join(format!("ashlar-bench-{}", std::process::id())),
        None => work.path().to_owned(),
    };
    let mut command = Command::new(programs.join("ashlar-torture"));
    command.arg("with-mount").arg("--work").arg(&base).arg("--").arg(std::env::current_exe()?);
    command.args(["bench", "--on", "{MOUNT}", "--programs"]).arg(&programs).args(std::env::args_os().skip(2));
    let result = shell::run(command.current_dir(&repository.root));
    if arguments.base.is_some() {
        fs::remove_dir_all(&base).with_context(|| format!("remove {}", base.display()))?;
    }
    work.finish(result)
}

fn run_on(arguments: &Arguments, mount: &Path, programs: &Path) -> anyhow::Result<()> {
    let beside = mount.parent().context("the mount point has a parent")?;
    let (local, ceiling) = (beside.join("local"), beside.join("ceiling"));
    fs::create_dir_all(&local)?;
    fs::create_dir_all(&ceiling)?;
    let server = Ceiling::start(programs, &ceiling, &arguments.ceiling)?;
    let places: [(&str, &Path); 3] = [("ceiling", &ceiling), ("local", &local), ("ashlar", mount)];
    let wanted = |case: &&Case| arguments.only.as_ref().is_none_or(|only| case.name.contains(only));
    let mut table: Vec<(String, String, Figures)> = Vec::new();
    for case in CASES.iter().filter(wanted) {
        let mut phases: Vec<(String, Figures)> = Vec::new();
        for round in 0..arguments.rounds.max(1) {
            for turn in 0..places.len() {
                // Another one begins each round, so that none always runs after the same neighbour.
                let (contestant, directory) = places[(turn + round) % places.len()];
                for (phase, figure) in run_case(arguments, case, directory, programs)? {
                    let at = phases.iter().position(|(name, _)| *name == phase).unwrap_or_else(|| {
                        phases.push((phase, Figures::new()));
                        phases.len() - 1
                    });
                    phases[at].1.entry(contestant).or_default().push(figure);
                }
            }
        }
        println!("{}: done", case.name);
        let unit = if case.counts_bytes { "MiB/s" } else { "op/s" };
        table.extend(
            phases.into_iter().map(|(phase, f)| (format!("{}: {phase}", case.name), unit.to_owned(), f)),
        );
    }
    server.stop()?;
    report(arguments, &table)
}

fn run_case(
    arguments: &Arguments,
    case: &Case,
    directory: &Path,
    programs: &Path,
) -> anyhow::Result<Vec<(String, f64)>> {
    let mut command = Command::new(programs.join("ashlar-torture"));
    command.arg(case.command).arg("--dir").arg(directory).arg("--json").args(case.arguments);
    match case.command {
        "metabench" => command.arg("--files").arg(arguments.files.to_string()).arg("--unverified"),
        _ => command.arg("--mib").arg(arguments.mib.to_string()),
    };
    let text = shell::output(&mut command)?;
    let phases: Value = serde_json::from_str(text.trim()).context("parse the figures")?;
    let field = if case.counts_bytes { "mib_per_second" } else { "operations_per_second" };
    phases
        .as_array()
        .context("the figures are no list")?
        .iter()
        .map(|phase| {
            let name = phase["phase"].as_str().context("a phase without a name")?;
            Ok((name.to_owned(), phase[field].as_f64().context("a phase without a figure")?))
        })
        .collect()
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Median and, in brackets, least and greatest.
fn show(figures: &[f64]) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = figures.iter().copied().fold(0.0, f64::max);
    format!("{:.0} ({least:.0}-{greatest:.0})", median(figures))
}

fn report(arguments: &Arguments, table: &[(String, String, Figures)]) -> anyhow::Result<()> {
    let mut text = String::from(
        "| case | unit | ceiling | local | Ashlar | of ceiling | of local |\n|---|---|---|---|---|---|---|\n",
    );
    for (name, unit, figures) in table {
        let of = |contestant: &str| figures.get(contestant).map_or(&[][..], Vec::as_slice);
        let ratio = |other: &str| 100.0 * median(of("ashlar")) / median(of(other)).max(f64::MIN_POSITIVE);
        let columns = CONTESTANTS.map(|contestant| show(of(contestant)));
        writeln!(
            text,
            "| {name} | {unit} | {} | {:.0} % | {:.0} % |",
            columns.join(" | "),
            ratio("ceiling"),
            ratio("local")
        )?;
    }
    writeln!(text, "\nMedian of {} rounds, least and greatest in brackets.", arguments.rounds)?;
    println!("\n{text}");
    if let Some(output) = &arguments.output {
        let rows: Vec<Value> = table
            .iter()
            .map(
                |(name, unit, figures)| serde_json::json!({ "case": name, "unit": unit, "figures": figures }),
            )
            .collect();
        fs::write(output.with_extension("md"), &text)?;
        fs::write(output.with_extension("json"), serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(())
}

/// The running ceiling server; unmounted when dropped.
struct Ceiling {
    child: Child,
    mountpoint: PathBuf,
}

impl Ceiling {
    fn start(programs: &Path, mountpoint: &Path, arguments: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(programs.join("examples/ceiling"));
        command.arg("--mnt").arg(mountpoint).args(arguments.split_whitespace());
        println!("$ {}", shell::show(&command));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start the ceiling server")?;
        let mut server = Self { child, mountpoint: mountpoint.to_owned() };
        let end = Instant::now() + Duration::from_secs(20);
        while !server.is_mounted()? {
            if let Some(status) = server.child.try_wait()? {
                bail!("the ceiling server ended with {status}");
            }
            if Instant::now() > end {
                bail!("the ceiling server did not mount within 20 s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn is_mounted(&self) -> anyhow::Result<bool> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let path = self.mountpoint.to_string_lossy();
        Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(&path)))
    }

    fn stop(mut self) -> anyhow::Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        if self.is_mounted()? {
            shell::run(Command::new("umount").arg("--lazy").arg(&self.mountpoint))?;
        }
        let end = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > end {
                self.child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_one_outlier() {
        assert_eq!(median(&[1.0, 100.0, 2.0]), 2.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(show(&[10.0, 30.0, 20.0]), "20 (10-30)");
    }
}
