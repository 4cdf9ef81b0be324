//! `ashlar bench metadata`.

use super::BenchRunArgs;
use crate::cli::parse_bytes;
use ashlar_bench::metadata::{DEPTH_MAX, Step};
use clap::{Args, ValueEnum};

/// `ashlar bench metadata`
#[derive(Debug, Args)]
pub struct BenchMetadataArgs {
    #[command(flatten)]
    pub run: BenchRunArgs,

    /// Files of all threads together.
    #[arg(long, value_name = "COUNT", default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub files: u64,

    /// Bytes in each file.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    pub size: u64,

    /// All threads in one directory instead of one each.
    #[arg(long)]
    pub shared: bool,

    /// stat, read and utime look at the files of another thread: on the next machine with --agents, else the next one.
    #[arg(long)]
    pub neighbour: bool,

    /// Levels of directories above the files, which are in the lowest only.
    #[arg(long, value_name = "LEVELS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(DEPTH_MAX)))]
    pub depth: u32,

    /// With --depth: directories in each directory.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub branches: u32,

    /// Files in each directory: each thread has as many directories as that takes, side by side. Without it all files of a thread are in one.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["depth", "branches", "shared"], value_parser = clap::value_parser!(u64).range(1..))]
    pub files_per_directory: Option<u64>,

    /// fsync each file that is created.
    #[arg(long)]
    pub fsync: bool,

    /// What is measured. Files are always created first.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "create,stat,read,utime,remove")]
    pub steps: Vec<BenchStep>,
}

/// What is done with every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchStep {
    /// open(2) of a new file, write(2), close(2)
    Create,
    /// stat(2)
    Stat,
    /// open(2), read(2), close(2)
    Read,
    /// utimensat(2)
    Utime,
    /// unlink(2)
    Remove,
}

impl From<BenchStep> for Step {
    fn from(step: BenchStep) -> Step {
        match step {
            BenchStep::Create => Step::Create,
            BenchStep::Stat => Step::Stat,
            BenchStep::Read => Step::Read,
            BenchStep::Utime => Step::Utime,
            BenchStep::Remove => Step::Remove,
        }
    }
}
