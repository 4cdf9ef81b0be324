//! `ashlar bench agent`, and the options of whoever leads agents.

use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

/// `ashlar bench agent`
///
/// The secret is asked for, or read from a file, from the environment variable ASHLAR_BENCH_SECRET, or from standard input. It is no option
/// of the command line, because every user of a machine can read those.
#[derive(Debug, Args)]
pub struct BenchAgentArgs {
    /// Where the coordinator waits, as it has printed it.
    #[arg(value_name = "HOST:PORT")]
    pub coordinator: String,

    /// A directory that may be measured in: the same one that the coordinator is given. None are needed to measure the network.
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,

    /// Read the secret from this file, which nobody else may be able to read.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// The address of this machine in the network that `ashlar bench network` measures. Without it the one by which it reaches the
    /// coordinator.
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<IpAddr>,
}

/// How agents are waited for.
#[derive(Debug, Args)]
pub struct BenchTeamArgs {
    /// Have so many agents do the work, each started with `ashlar bench agent` on a machine of its own. Threads are given out to them in turn.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub agents: Option<u32>,

    /// Where agents can join. Without it on all addresses of this machine, on a port that is told.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:0", requires = "agents")]
    pub listen: String,

    /// Seconds in which all agents have to join.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "agents", value_parser = clap::value_parser!(u64).range(1..))]
    pub wait: u64,

    /// Write the secret for the agents to this new file, which only you can read, instead of printing it. It is removed when all have joined.
    #[arg(long, value_name = "FILE", requires = "agents")]
    pub secret_to: Option<PathBuf>,
}
