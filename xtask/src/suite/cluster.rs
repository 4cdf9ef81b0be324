//! The suites that several mounts of a cluster share: real processes for every role, and a check of all their data at the end.
//!
//! Each starts a cluster of its own with `ashlar lab`, runs a program on its mounts, sees that every process is still there, stops them in order
//! and has `ashlar fsck` look at metadata and targets.

mod lab;
mod programs;

use std::path::Path;
use std::process::Command;

use self::lab::Lab;
use super::posix;
use crate::repository::{Repository, Work};
use crate::shell;

/// Records of the checkpoint that the MPI program writes.
const RECORDS: usize = 400;

/// Options of the task.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(clap::Subcommand, Debug)]
enum Suite {
    /// pjdfstest on a mount of a cluster.
    Posix,
    /// Random operations on ext4 and on two mounts, each through the other mount than the one before.
    Differential {
        /// Operations.
        #[arg(long, default_value_t = 50_000)]
        ops: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Small programs of two and three clients, and what strict coherence forbids to come out.
    Litmus {
        /// How often each program is run.
        #[arg(long, default_value_t = 300)]
        runs: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Recorded calls of four clients on few names: is there an order in which each had its effect at one moment?
    Linear {
        /// Histories.
        #[arg(long, default_value_t = 2000)]
        histories: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Racing operations from four mounts on few names; all mounts must show the same tree in the end.
    Race {
        /// Operations in all.
        #[arg(long, default_value_t = 1_000_000)]
        ops: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// A crate of this repository with its sources on one mount, built into objects on another.
    Build,
    /// An MPI program that writes one checkpoint file through two mounts.
    Mpi,
    /// The short form of all but the build, as `cargo xtask test` runs it.
    Short,
}

/// Runs the task.
///
/// # Errors
/// When the suite fails, a process has ended or the check at the end finds something.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.suite {
        Suite::Posix => {
            on_lab(repository, "posix", false, 1, |_, _, lab| posix::run_at(repository, &lab.mounts()[0]))
        }
        Suite::Differential { ops, seed } => differential(repository, ops > 100_000, ops, seed),
        Suite::Litmus { runs, seed } => {
            on_lab(repository, "litmus", false, 3, |torture, _, lab| litmus(torture, lab, runs, seed))
        }
        Suite::Linear { histories, seed } => {
            on_lab(repository, "linear", false, 4, |torture, _, lab| linear(torture, lab, histories, seed))
        }
        Suite::Race { ops, seed } => {
            on_lab(repository, "race", ops > 100_000, 4, |torture, _, lab| race(torture, lab, ops, seed))
        }
        Suite::Build => {
            on_lab(repository, "build", false, 2, |_, _, lab| programs::build(repository, &lab.mounts()))
        }
        Suite::Short => short(repository),
        Suite::Mpi => on_lab(repository, "mpi", false, 2, |_, work, lab| {
            programs::checkpoint(repository, work, &lab.mounts(), RECORDS)
        }),
    }
}

/// The short form, as in continuous integration: one cluster for what can share it.
///
/// # Errors
/// As [`run`].
pub fn short(repository: &Repository) -> anyhow::Result<()> {
    on_lab(repository, "short", false, 4, |torture, work, lab| {
        posix::run_at(repository, &lab.mounts()[0])?;
        litmus(torture, lab, 3, 1)?;
        linear(torture, lab, 100, 1)?;
        programs::checkpoint(repository, work, &lab.mounts(), RECORDS / 10)?;
        race(torture, lab, 10_000, 1)
    })?;
    differential(repository, false, 2000, 1)
}

/// Starts a cluster with two storage servers and so many mounts, and does `work` with the torture program, a working directory and the cluster.
fn on_lab(
    repository: &Repository,
    task: &str,
    release: bool,
    mounts: usize,
    suite: impl FnOnce(&Path, &Path, &Lab) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let programs = repository.build(release)?;
    let work = Work::create(&format!("cluster-{task}"))?;
    let result = (|| {
        let lab = Lab::up(&programs.join("ashlar"), &work.path().join("lab"), 2, mounts)?;
        let result =
            suite(&programs.join("ashlar-torture"), work.path(), &lab).and_then(|()| lab.stop_and_check());
        if result.is_err() {
            lab.keep_logs(&work.path().join("logs"))?;
        }
        result
    })();
    work.finish(result)
}

fn litmus(torture: &Path, lab: &Lab, runs: u64, seed: u64) -> anyhow::Result<()> {
    let mut command = Command::new(torture);
    command.args(["litmus", "--runs", &runs.to_string(), "--seed", &seed.to_string()]);
    lab.pass_mounts(&mut command, "--dir", "--also-dir");
    shell::run(&mut command)
}

fn linear(torture: &Path, lab: &Lab, histories: u64, seed: u64) -> anyhow::Result<()> {
    let mut command = Command::new(torture);
    command.args(["linear", "--histories", &histories.to_string(), "--seed", &seed.to_string()]);
    lab.pass_mounts(&mut command, "--dir", "--also-dir");
    shell::run(&mut command)
}

/// What the racers leave stays, for the check at the end.
fn race(torture: &Path, lab: &Lab, ops: u64, seed: u64) -> anyhow::Result<()> {
    let mut command = Command::new(torture);
    command.args([
        "racer",
        "--keep",
        "--rounds",
        "4",
        "--ops",
        &ops.to_string(),
        "--seed",
        &seed.to_string(),
    ]);
    lab.pass_mounts(&mut command, "--dir", "--also-dir");
    shell::run(&mut command)
}

fn differential(repository: &Repository, release: bool, ops: u64, seed: u64) -> anyhow::Result<()> {
    on_lab(repository, "differential", release, 2, |torture, work, lab| {
        let mut command = Command::new(torture);
        command.arg("with-disk").arg("--work").arg(work.join("reference")).args(["--mib", "2048", "--"]);
        command.arg(torture).args(["differential", "--users", "--left", "{DISK}"]);
        lab.pass_mounts(&mut command, "--right", "--right-also");
        command.args(["--ops", &ops.to_string(), "--seed", &seed.to_string()]);
        // Traces of failures are kept with the rest.
        shell::run(command.current_dir(work))
    })
}
