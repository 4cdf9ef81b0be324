//! Arguments of `ashlar etcd`.

use super::NodePlace;
use super::cluster::{StatePlace, parse_address};
use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// `ashlar etcd`
#[derive(Debug, Args)]
pub struct EtcdArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: EtcdAction,
}

/// What can be done about an etcd of its own.
#[derive(Debug, Subcommand)]
pub enum EtcdAction {
    /// Make a first member on this machine, of the etcd that is installed, and move the state of the file system there. The manager must be stopped.
    Init(EtcdInitArgs),
    /// Make this machine, which has a manager, a further member. It counts once it was started and has what the others have.
    Join(EtcdJoinArgs),
    /// Run the member of this machine, until Ctrl-C or SIGTERM.
    Run(EtcdRunArgs),
    /// Show the members.
    List(EtcdListArgs),
    /// Take a member out.
    Remove(EtcdRemoveArgs),
}

/// Where a member listens.
#[derive(Clone, Debug, Args)]
pub struct EtcdListen {
    /// Where the member listens for managers: an address of this machine that the others reach, best not on the network of clients, with a port (2379 if
    /// none is named). For other members it listens at the next port.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_etcd_address)]
    pub listen: SocketAddr,
}

impl EtcdListen {
    /// Where it listens for other members.
    pub fn peers(&self) -> SocketAddr {
        SocketAddr::new(self.listen.ip(), self.listen.port() + 1)
    }
}

/// `ashlar etcd init`
#[derive(Clone, Debug, Args)]
pub struct EtcdInitArgs {
    #[command(flatten)]
    pub at: EtcdListen,
    /// The program etcd. Without it: the one that is installed.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    #[command(flatten)]
    pub state: StatePlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar etcd join`
#[derive(Debug, Args)]
pub struct EtcdJoinArgs {
    #[command(flatten)]
    pub at: EtcdListen,
    #[command(flatten)]
    pub state: StatePlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar etcd run`
#[derive(Debug, Args)]
pub struct EtcdRunArgs {
    /// The program etcd. Without it: the one that is installed.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    #[command(flatten)]
    pub state: StatePlace,
}

/// `ashlar etcd list`
#[derive(Debug, Args)]
pub struct EtcdListArgs {
    /// Print JSON: a list of objects with `id`, `name` (empty until it was started for the first time), `standing` (`counts`, `follows` or
    /// `not started`), `clients` and `peers` (URLs).
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub state: StatePlace,
}

/// `ashlar etcd remove`
#[derive(Debug, Args)]
pub struct EtcdRemoveArgs {
    /// Its name, or its number as `list` shows it.
    pub name: String,
    #[command(flatten)]
    pub state: StatePlace,
}

const ETCD_PORT: u16 = 2379;

/// An address for `--with-etcd` and `--listen` of `ashlar etcd`.
pub fn parse_etcd_address(text: &str) -> Result<SocketAddr, String> {
    let address = parse_address(text, ETCD_PORT)?;
    if address.ip().is_unspecified() || address.port() == 0 || address.port() == u16::MAX {
        return Err(format!(
            "`{text}`: name an address of this machine that others reach, and a port below 65535"
        ));
    }
    Ok(address)
}
