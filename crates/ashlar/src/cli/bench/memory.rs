//! `ashlar bench memory`.

use crate::cli::parse_bytes;
use clap::Args;

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

/// The size of an array that is measured.
fn parse_array_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes >= 1 << 20 { Ok(bytes) } else { Err("an array has 1m at least".into()) }
}
