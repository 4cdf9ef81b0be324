//! Where a process shows what it counts.

use clap::Args;
use std::net::SocketAddr;

/// Where a process shows what it counts.
#[derive(Clone, Debug, Default, Args)]
pub struct MetricsPlace {
    /// Show what is counted to Prometheus at this address, such as 127.0.0.1:9400: unencrypted and to everybody who can connect, so it
    /// belongs on the loopback or a network for management.
    #[arg(long = "metrics", value_name = "ADDRESS:PORT")]
    pub address: Option<SocketAddr>,
}
