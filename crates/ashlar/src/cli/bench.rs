//! `ashlar bench`: the options of its parts, one file each.

mod agent;
mod compare;
mod data;
mod device;
mod memory;
mod metadata;
mod network;
mod report;
mod run;
mod threads;
mod workload;

pub use agent::{BenchAgentArgs, BenchTeamArgs};
pub use compare::BenchCompareArgs;
pub use data::{BenchAction, BenchDataArgs, BenchRandomArgs, BenchSequentialArgs};
pub use device::BenchDeviceArgs;
pub use memory::BenchMemoryArgs;
pub use metadata::BenchMetadataArgs;
pub use network::BenchNetworkArgs;
pub use report::BenchReportArgs;
pub use run::BenchSweepArgs;
pub use workload::BenchRunArgs;

use clap::{Args, Subcommand};

/// `ashlar bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub what: Bench,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// All of it on one directory, planned to fit into a time, with a report as HTML, Markdown and JSON.
    Run(BenchSweepArgs),
    /// The pages of a run written anew from its JSON.
    Report(BenchReportArgs),
    /// Two reports: what changed, and whether it is more than chance.
    Compare(BenchCompareArgs),
    /// Memory bandwidth of each NUMA node (STREAM), and whether memory modules are placed well.
    Memory(BenchMemoryArgs),
    /// What the devices below a file system do without it: streams and random requests, each alone and all together.
    Device(BenchDeviceArgs),
    /// What the network between machines carries, and how long a message takes: TCP between every pair of agents and between all of them.
    Network(BenchNetworkArgs),
    /// Write and read files from begin to end, on any file system: a file per thread (N-N, as IOzone) or one for all (N-1, as IOR).
    Sequential(BenchSequentialArgs),
    /// Write and read small records all over files, with a queue of requests per thread, as fio and IOzone do.
    Random(BenchRandomArgs),
    /// Create, stat, read, touch and remove many files, as mdtest does.
    Metadata(BenchMetadataArgs),
    /// Take part in the measurement of a coordinator, which is one of the other commands with --agents.
    ///
    /// It asks for the secret that the coordinator has printed, reads it from standard input if that is no terminal, from a file
    /// (--secret-file), or from the environment variable ASHLAR_BENCH_SECRET. It is no option, because every user of a machine can read
    /// command lines.
    Agent(BenchAgentArgs),
}
