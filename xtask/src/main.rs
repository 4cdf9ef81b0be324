//! Repository tasks: `cargo xtask <task>`.
//!
//! `test` is what continuous integration runs. The longer suites are tasks of their own; each mounts Ashlar, runs a
//! program of `crates/torture` or a well-known one on the mount, and ends with the line `N passed, N failed`.

mod gates;
mod mutants;
mod repository;
mod setup;
mod shell;
mod suite;
mod test_binaries;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::repository::Repository;

#[derive(Parser, Debug)]
#[command(name = "cargo xtask", about = "Repository tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Debug)]
enum Task {
    /// Check the rules of the repository: layers, documentation, sizes, names.
    Tidy,
    /// Install the Debian packages and tools the suites need (as root).
    Setup,
    /// Everything that must pass before a change is accepted.
    Test(gates::Arguments),
    /// The POSIX conformance suite pjdfstest.
    Posix(suite::posix::Arguments),
    /// Random operations on the mount and on ext4, all answers compared.
    Differential(suite::torture::Differential),
    /// Data tests of single files against a model.
    Fsx(suite::torture::Fsx),
    /// Kill the server under load again and again; check what it had acknowledged.
    KillCycles(suite::torture::KillCycles),
    /// Cut the power of the disk under the server; check what was synced.
    PowerLoss(suite::torture::PowerLoss),
    /// Damage stored bytes; reads must be right or EIO.
    Corrupt(suite::torture::Corrupt),
    /// Threads racing on few names.
    Racer(suite::torture::Racer),
    /// Threads on several mounts that write the same few files.
    Share(suite::torture::Share),
    /// Suites on several mounts of a cluster of real processes.
    Cluster(suite::cluster::Arguments),
    /// Replace every process of a cluster by a newer one, one after the other, under load.
    Upgrade(suite::upgrade::Arguments),
    /// Names, links, attributes, directories and files at their largest.
    Limits(suite::torture::Limits),
    /// Fill the disk; delete; fill again.
    Full(suite::torture::Full),
    /// stress-ng's file-system class and fio with verification.
    Stress(suite::stress::Arguments),
    /// Builds, version control, databases and copies on the mount.
    RealWork(suite::real_work::Arguments),
    /// The tests that run an etcd, with one in which known bugs are mended.
    Etcd(suite::etcd::Arguments),
    /// The tests that take minutes each: clusters whose disks, servers and power fail (as root).
    Failures,
    /// The whole system in one thread, simulated under many seeds.
    Simulate(suite::simulate::Arguments),
    /// Break protocols on purpose, one after the other: simulations must notice each.
    Mutants(suite::mutants::Arguments),
    /// Every order of events of the replication state machines, within wide bounds.
    Model(suite::model::Arguments),
    /// Ceiling, local file system and Ashlar side by side.
    Bench(suite::bench::Arguments),
}

fn run(task: &Task) -> anyhow::Result<()> {
    let repository = Repository::find()?;
    match task {
        Task::Tidy => gates::tidy(&repository),
        Task::Setup => setup::run(),
        Task::Test(arguments) => gates::test(&repository, arguments),
        Task::Posix(arguments) => suite::posix::run(&repository, arguments),
        Task::Differential(arguments) => arguments.run(&repository),
        Task::Fsx(arguments) => arguments.run(&repository),
        Task::KillCycles(arguments) => arguments.run(&repository),
        Task::PowerLoss(arguments) => arguments.run(&repository),
        Task::Corrupt(arguments) => arguments.run(&repository),
        Task::Racer(arguments) => arguments.run(&repository),
        Task::Share(arguments) => arguments.run(&repository),
        Task::Cluster(arguments) => suite::cluster::run(&repository, arguments),
        Task::Upgrade(arguments) => suite::upgrade::run(&repository, arguments),
        Task::Limits(arguments) => arguments.run(&repository),
        Task::Full(arguments) => arguments.run(&repository),
        Task::Stress(arguments) => suite::stress::run(&repository, arguments),
        Task::RealWork(arguments) => suite::real_work::run(&repository, arguments),
        Task::Etcd(arguments) => suite::etcd::run(&repository, arguments),
        Task::Failures => test_binaries::run_long(&repository),
        Task::Simulate(arguments) => suite::simulate::run(&repository, arguments),
        Task::Mutants(arguments) => suite::mutants::run(&repository, arguments),
        Task::Model(arguments) => suite::model::run(&repository, arguments),
        Task::Bench(arguments) => suite::bench::run(&repository, arguments),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
