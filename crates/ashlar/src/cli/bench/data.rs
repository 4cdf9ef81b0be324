//! `ashlar bench sequential` and `ashlar bench random`.

use super::BenchRunArgs;
use crate::cli::parse_bytes;
use ashlar_bench::data::DEPTH_MAX;
use clap::{Args, ValueEnum};

/// What reading and writing content have in common.
#[derive(Debug, Args)]
pub struct BenchDataArgs {
    #[command(flatten)]
    pub run: BenchRunArgs,

    /// Leave the files there, in DIR/ashlar-bench.kept, to be read by another command with --use-kept: after the file system was mounted anew, or
    /// the caches of its servers were emptied. With one number of threads.
    #[arg(long, conflicts_with_all = ["agents", "use_kept"])]
    pub keep_files: bool,

    /// Read the files that --keep-files has left, with the same threads and records, and write none. They stay.
    #[arg(
        long,
        conflicts_with_all = ["agents", "threads", "total", "thread_bytes", "shared", "segments", "only", "without_fsync", "record"]
    )]
    pub use_kept: bool,

    /// Bytes of all files together, shared out among the threads. Without it twice the memory, or 40 % of what is free if that is less.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, conflicts_with = "thread_bytes")]
    pub total: Option<u64>,

    /// Bytes of each thread instead.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub thread_bytes: Option<u64>,

    /// One file for all threads (N-1) instead of one for each (N-N).
    #[arg(long)]
    pub shared: bool,

    /// With --shared: how many times after each other each thread has its part of the file. As many as there are records is a stride.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "shared", value_parser = clap::value_parser!(u64).range(1..))]
    pub segments: u64,

    /// Open files with O_DIRECT, past the page cache.
    #[arg(long)]
    pub direct: bool,

    /// Leave fsync and close of written files out of the time.
    #[arg(long)]
    pub without_fsync: bool,

    /// Only write, or only read.
    #[arg(long, value_name = "ACTION")]
    pub only: Option<BenchAction>,
}

/// `ashlar bench sequential`
#[derive(Debug, Args)]
pub struct BenchSequentialArgs {
    #[command(flatten)]
    pub data: BenchDataArgs,

    /// Bytes of each write(2) and read(2).
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = parse_bytes)]
    pub record: u64,

    /// End after so many seconds, whether or not all bytes were moved: what all threads do together as long as all of them have something to do. Without it (0) the time of the
    /// slowest thread counts. What is read is written whole before.
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "only", conflicts_with = "keep_files")]
    pub seconds: u64,
}

/// `ashlar bench random`
#[derive(Debug, Args)]
pub struct BenchRandomArgs {
    #[command(flatten)]
    pub data: BenchDataArgs,

    /// Bytes of each write(2) and read(2).
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = parse_bytes)]
    pub record: u64,

    /// Requests of each thread that are under way at the same time (io_uring); 1 is pread(2) and pwrite(2).
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    pub depth: u32,

    /// Seconds of each phase; 0 goes on until every record was hit once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub seconds: u64,

    /// Fixes which records are hit when.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What is done with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchAction {
    /// write(2) only.
    Write,
    /// read(2) only; the files are written before.
    Read,
}
