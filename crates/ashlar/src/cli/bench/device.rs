//! `ashlar bench device`.

use crate::cli::parse_bytes;
use clap::Args;
use std::path::PathBuf;

/// `ashlar bench device`
#[derive(Debug, Args)]
pub struct BenchDeviceArgs {
    /// An empty directory on the local file system of each device to be measured.
    #[arg(required = true, value_name = "DIR")]
    pub directories: Vec<PathBuf>,

    /// Bytes on each device: more than what is in its own cache.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "4g")]
    pub bytes: u64,

    /// Threads on each device.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,

    /// Requests of each thread that are under way at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,

    /// Seconds of each phase of random requests.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,

    /// How often each measurement is done; what is printed is the mean.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Measure in directories that are not empty. What is there stays as it is.
    #[arg(long)]
    pub beside_others: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
