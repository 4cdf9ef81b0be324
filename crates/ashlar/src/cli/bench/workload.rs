//! What all workloads have in common.

use super::BenchTeamArgs;
use super::threads::{ThreadList, parse_threads};
use crate::cli::parse_bytes;
use clap::Args;
use std::path::PathBuf;

/// How a workload is run, whichever it is.
#[derive(Debug, Args)]
pub struct BenchRunArgs {
    /// An empty directory on the file system to be measured; with --agents as all of them see it.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    #[command(flatten)]
    pub team: BenchTeamArgs,

    /// Numbers of threads, one measurement each: 4, or 1,2,8, or 1..64 for all powers of two in between.
    #[arg(long, value_name = "LIST", default_value = "1..4", value_parser = parse_threads)]
    pub threads: ThreadList,

    /// How often each measurement is done; what is printed is the mean.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Memory of servers of the file system that do not measure, all together. With less than twice as much data as memory figures
    /// may be those of caches; it is said then.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub server_memory: u64,

    /// Leave the caches of the measuring machines alone. Without it they are dropped between phases, as root (/proc/sys/vm/drop_caches).
    #[arg(long)]
    pub keep_caches: bool,

    /// Print figures, too, that come from the page cache of a measuring machine.
    #[arg(long)]
    pub allow_cached: bool,

    /// Measure in a directory that is not empty. What is there stays as it is.
    #[arg(long)]
    pub beside_others: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
