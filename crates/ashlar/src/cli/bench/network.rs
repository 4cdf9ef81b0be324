//! `ashlar bench network`.

use super::BenchTeamArgs;
use ashlar_bench::network::Ports;
use clap::Args;

/// `ashlar bench network`
#[derive(Debug, Args)]
pub struct BenchNetworkArgs {
    #[command(flatten)]
    pub team: BenchTeamArgs,

    /// Numbers of TCP connections of each flow, one measurement each.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub streams: Vec<u32>,

    /// Seconds of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// How often each measurement is done; what is printed is the mean.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Ports on which agents are connected to by each other, as 5000-5010: those that a firewall between the machines lets through. One for each
    /// agent of a machine is enough. Without it their systems choose.
    #[arg(long, value_name = "FIRST-LAST")]
    pub data_ports: Option<Ports>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
