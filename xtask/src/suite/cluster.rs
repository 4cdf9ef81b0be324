//! The suites that several mounts of a cluster share: real processes for every role, and a check of all their data at the end.
//!
//! Each starts a cluster of its own with `ashlar lab`, runs a program on its mounts, sees that every process is still there, stops them in order
//! and has `ashlar fsck` look at metadata and targets.

pub(super) mod lab;
mod mover;
mod programs;
mod split;

use std::path::Path;
use std::process::Command;

use self::lab::Lab;
use super::posix;
use crate::repository::{Repository, Work};
use crate::shell;

/// Records of the checkpoint that the MPI program writes.
const RECORDS: usize = 400;

/// Other names in some folders of recorded histories, which are split while the histories are recorded: so many that it takes a few steps.
const FILL: u64 = 1500;

/// Options of the task.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    suite: Suite,
    /// Metadata servers of the cluster.
    #[arg(long, global = true, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    meta: u32,
    /// With the state in an etcd of three members, each beside one of three managers, instead of in a file of one.
    #[arg(long, global = true)]
    etcd: bool,
}

/// Where suites run.
struct Site<'a> {
    repository: &'a Repository,
    /// Metadata servers.
    meta: u32,
    /// Whether there are three managers and an etcd.
    etcd: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Suite {
    /// pjdfstest on a mount of a cluster, and then on two mounts, each call through the other one than the call before.
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
    /// Small programs of two and three clients, and what strict coherence, and on other mounts close-to-open, forbids to come out.
    Litmus {
        /// How often each program is run.
        #[arg(long, default_value_t = 300)]
        runs: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Recorded calls of four clients on few names: is there an order in which each had its effect at one moment? With several metadata servers shards are moved
    /// between them and directories are split meanwhile.
    Linear {
        /// Histories: with moves, each takes about two seconds.
        #[arg(long, default_value_t = 500)]
        histories: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Leave shards and directories as they are.
        #[arg(long)]
        still: bool,
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
    /// Locks that three mounts take, wait for and pass on, and what is written under each: who gets one reads what its last holder wrote.
    Locks {
        /// How often each thread takes a lock.
        #[arg(long, default_value_t = 5_000)]
        turns: u64,
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The metadata service and the client of this repository with their sources on one mount, built into objects on another with all that they need.
    Build,
    /// An MPI program that writes one checkpoint file through two mounts.
    Mpi,
    /// A directory that grows large and is split by itself while it is used: nothing is lost, and how long calls take meanwhile is told.
    Split {
        /// Entries that it has when the split begins.
        #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(2000..=10_000_000))]
        names: u64,
        /// With programs that are not optimized.
        #[arg(long)]
        debug: bool,
    },
    /// The short form of all but the build and the split, as `cargo xtask test` runs it.
    Short,
}

/// Runs the task.
///
/// # Errors
/// When the suite fails, a process has ended or the check at the end finds something.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let site = &Site { repository, meta: arguments.meta, etcd: arguments.etcd };
    match arguments.suite {
        Suite::Posix => on_lab(site, "posix", false, 2, |_, _, lab| {
            posix::run_at(repository, &lab.mounts()[0], None)?;
            posix_in_turns(repository, lab)
        }),
        Suite::Differential { ops, seed } => differential(site, ops > 100_000, ops, seed),
        Suite::Litmus { runs, seed } => {
            on_lab(site, "litmus", false, 3, |torture, _, lab| litmus(torture, lab, runs, seed, &[]))?;
            close_to_open(site, runs, seed)
        }
        Suite::Linear { histories, seed, still } => on_lab(site, "linear", false, 4, |torture, _, lab| {
            let servers = if still { 1 } else { site.meta };
            linear(torture, lab, (histories, seed), servers, FILL)
        }),
        Suite::Race { ops, seed } => {
            on_lab(site, "race", ops > 100_000, 4, |torture, _, lab| race(torture, lab, ops, seed))
        }
        Suite::Locks { turns, seed } => {
            on_lab(site, "locks", false, 3, |torture, _, lab| locks(torture, lab, turns, seed))
        }
        Suite::Build => {
            on_lab(site, "build", false, 2, |_, _, lab| programs::build(repository, &lab.mounts()))
        }
        Suite::Split { names, debug } => {
            let site = &Site { meta: site.meta.max(2), ..*site };
            let split_at = names.to_string();
            let more = ["--split-at", &split_at];
            on_lab_with(site, "split", !debug, (2, &more), |_, _, lab| split::run(lab, names))
        }
        Suite::Short => short_at(site),
        Suite::Mpi => on_lab(site, "mpi", false, 2, |_, work, lab| {
            programs::checkpoint(repository, work, &lab.mounts(), RECORDS)
        }),
    }
}

/// The short form, as in continuous integration: one cluster for what can share it.
///
/// # Errors
/// As [`run`].
pub fn short(repository: &Repository) -> anyhow::Result<()> {
    short_at(&Site { repository, meta: 2, etcd: false })
}

fn short_at(site: &Site<'_>) -> anyhow::Result<()> {
    on_lab(site, "short", false, 4, |torture, work, lab| {
        posix_in_turns(site.repository, lab)?;
        litmus(torture, lab, 3, 1, &[])?;
        locks(torture, lab, 150, 1)?;
        linear(torture, lab, (20, 1), site.meta, 0)?;
        linear(torture, lab, (100, 2), 1, 0)?;
        programs::checkpoint(site.repository, work, &lab.mounts(), RECORDS / 10)?;
        race(torture, lab, 10_000, 1)
    })?;
    close_to_open(site, 5, 1)?;
    differential(site, false, 2000, 1)
}

/// What close-to-open mounts promise each other.
fn close_to_open(site: &Site<'_>, runs: u64, seed: u64) -> anyhow::Result<()> {
    let more = ["--coherence", "close-to-open"];
    on_lab_with(site, "close-to-open", false, (3, &more), |torture, _, lab| {
        litmus(torture, lab, runs, seed, &["--close-to-open"])
    })
}

/// Starts a cluster with two storage servers and so many mounts, and does `work` with the torture program, a working directory and the cluster.
fn on_lab(
    site: &Site<'_>,
    task: &str,
    release: bool,
    mounts: usize,
    suite: impl FnOnce(&Path, &Path, &Lab) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    on_lab_with(site, task, release, (mounts, &[]), suite)
}

/// As [`on_lab`], with further arguments for `ashlar lab up`.
fn on_lab_with(
    site: &Site<'_>,
    task: &str,
    release: bool,
    (mounts, more): (usize, &[&str]),
    suite: impl FnOnce(&Path, &Path, &Lab) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let programs = site.repository.build(release)?;
    let work = Work::create(&format!("cluster-{task}"))?;
    let result = (|| {
        let meta = site.meta.to_string();
        let etcd: &[&str] = if site.etcd { &["--etcd"] } else { &[] };
        let more = [&["--meta", meta.as_str()], etcd, more].concat();
        let lab = Lab::up(&programs.join("ashlar"), &work.path().join("lab"), 2, mounts, &more)?;
        let result =
            suite(&programs.join("ashlar-torture"), work.path(), &lab).and_then(|()| lab.stop_and_check());
        if result.is_err() {
            lab.keep_logs(&work.path().join("logs"))?;
        }
        result
    })();
    work.finish(result)
}

fn posix_in_turns(repository: &Repository, lab: &Lab) -> anyhow::Result<()> {
    let mounts = lab.mounts();
    posix::run_at(repository, &mounts[0], Some(&mounts[1]))
}

fn litmus(torture: &Path, lab: &Lab, runs: u64, seed: u64, more: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(torture);
    command.args(["litmus", "--runs", &runs.to_string(), "--seed", &seed.to_string()]);
    command.args(more);
    lab.pass_mounts(&mut command, "--dir", "--also-dir");
    shell::run(&mut command)
}

/// With two `servers` or more, shards are moved between them and directories are split meanwhile, some of them with `fill` names more.
fn linear(
    torture: &Path,
    lab: &Lab,
    (histories, seed): (u64, u64),
    servers: u32,
    fill: u64,
) -> anyhow::Result<()> {
    let mut command = Command::new(torture);
    command.args(["linear", "--histories", &histories.to_string(), "--seed", &seed.to_string()]);
    if servers >= 2 {
        command.args(["--disturb", "ashlar.layout=slices=2", "--fill", &fill.to_string()]);
    }
    lab.pass_mounts(&mut command, "--dir", "--also-dir");
    mover::beside(lab, servers, || shell::run(&mut command))
}

fn locks(torture: &Path, lab: &Lab, turns: u64, seed: u64) -> anyhow::Result<()> {
    let mut command = Command::new(torture);
    command.args(["pass-locks", "--turns", &turns.to_string(), "--seed", &seed.to_string()]);
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

fn differential(site: &Site<'_>, release: bool, ops: u64, seed: u64) -> anyhow::Result<()> {
    on_lab(site, "differential", release, 2, |torture, work, lab| {
        let mut command = Command::new(torture);
        command.arg("with-disk").arg("--work").arg(work.join("reference")).args(["--mib", "2048", "--"]);
        command.arg(torture).args(["differential", "--users", "--left", "{DISK}"]);
        lab.pass_mounts(&mut command, "--right", "--right-also");
        command.args(["--ops", &ops.to_string(), "--seed", &seed.to_string()]);
        // Traces of failures are kept with the rest.
        shell::run(command.current_dir(work))
    })
}
