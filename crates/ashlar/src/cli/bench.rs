//! `ashlar bench`: the options of its parts.

use super::parse_bytes;
use ashlar_bench::metadata::Step;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

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
    /// Memory bandwidth of each NUMA node (STREAM), and whether memory modules are placed well.
    Memory(BenchMemoryArgs),
    /// What the devices below a file system do without it: streams and random requests, each alone and all together.
    Device(BenchDeviceArgs),
    /// Write and read files from begin to end, on any file system: a file per thread (N-N, as IOzone) or one for all (N-1, as IOR).
    Sequential(BenchSequentialArgs),
    /// Write and read small records all over files, with a queue of requests per thread, as fio and IOzone do.
    Random(BenchRandomArgs),
    /// Create, stat, read, touch and remove many files, as mdtest does.
    Metadata(BenchMetadataArgs),
}

/// `ashlar bench memory`
#[derive(Debug, Args)]
pub struct BenchMemoryArgs {
    /// Measure this NUMA node only. Repeat for more.
    #[arg(long = "node", value_name = "NUMBER")]
    pub nodes: Vec<u32>,

    /// Threads per node; without it one per processor.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Option<u64>,

    /// Bytes of each of the three arrays. Without it four times the caches of the node, as STREAM asks for.
    #[arg(long, value_name = "SIZE", value_parser = parse_array_size)]
    pub array_size: Option<u64>,

    /// Times each kernel runs; the first does not count.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub repetitions: u32,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

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

/// How a workload is run, whichever it is.
#[derive(Debug, Args)]
pub struct BenchRunArgs {
    /// An empty directory on the file system to be measured.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Numbers of threads, one measurement each: 4, or 1,2,8, or 1..64 for all powers of two in between.
    #[arg(long, value_name = "LIST", default_value = "1..4", value_parser = parse_threads)]
    pub threads: ThreadList,

    /// How often each measurement is done; what is printed is the mean.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Memory of servers of the file system that are not this machine, all together. With less than twice as much data as memory figures
    /// may be those of caches; it is said then.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "0")]
    pub server_memory: u64,

    /// Leave the caches of this machine alone. Without it they are dropped between phases, as root (/proc/sys/vm/drop_caches).
    #[arg(long)]
    pub keep_caches: bool,

    /// Print figures, too, that come from this machine's page cache.
    #[arg(long)]
    pub allow_cached: bool,

    /// Measure in a directory that is not empty. What is there stays as it is.
    #[arg(long)]
    pub beside_others: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What reading and writing content have in common.
#[derive(Debug, Args)]
pub struct BenchDataArgs {
    #[command(flatten)]
    pub run: BenchRunArgs,

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
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,

    /// Seconds of each phase; 0 goes on until every record was hit once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub seconds: u64,

    /// Fixes which records are hit when.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

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

    /// stat, read and utime look at the files of the next thread.
    #[arg(long)]
    pub neighbour: bool,

    /// Levels of directories above the files, which are in the lowest only.
    #[arg(long, value_name = "LEVELS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=20))]
    pub depth: u32,

    /// With --depth: directories in each directory.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub branches: u32,

    /// fsync each file that is created.
    #[arg(long)]
    pub fsync: bool,

    /// What is measured. Files are always created first.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "create,stat,read,utime,remove")]
    pub steps: Vec<BenchStep>,
}

/// What is done with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchAction {
    /// write(2) only.
    Write,
    /// read(2) only; the files are written before.
    Read,
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

/// Numbers of threads to measure with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadList(pub Vec<usize>);

/// LIMIT: threads of one measurement on one machine.
const THREADS_MAX: usize = 4096;

/// `4`, `1,2,8`, `1..64`, and lists of these.
fn parse_threads(text: &str) -> Result<ThreadList, String> {
    let number = |text: &str| match text.trim().parse::<usize>() {
        Ok(count @ 1..=THREADS_MAX) => Ok(count),
        _ => Err(format!("`{text}` is no number of threads from 1 to {THREADS_MAX}")),
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => all.push(number(part)?),
            Some((least, most)) => {
                let (least, most) = (number(least)?, number(most)?);
                if least > most {
                    return Err(format!("`{part}` goes down"));
                }
                let powers = (0..usize::BITS).map(|bit| 1 << bit).skip_while(|power| *power < least);
                all.extend(powers.take_while(|power| *power <= most));
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    if all.is_empty() { Err(format!("there is no power of two in `{text}`")) } else { Ok(ThreadList(all)) }
}

/// The size of an array that is measured.
fn parse_array_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes >= 1 << 20 { Ok(bytes) } else { Err("an array has 1m at least".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_threads_are_listed_or_all_powers_of_two_between_two() {
        let parsed = |text: &str| parse_threads(text).map(|list| list.0);
        assert_eq!(parsed("4"), Ok(vec![4]));
        assert_eq!(parsed("8,1, 3"), Ok(vec![1, 3, 8]));
        assert_eq!(parsed("1..8"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(parsed("3..20,5"), Ok(vec![4, 5, 8, 16]));
        for wrong in ["", "0", "x", "1..", "8..1", "5..7", "100000", "-1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
