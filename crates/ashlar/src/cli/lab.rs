//! Arguments of `ashlar lab`.

use ashlar_types::Coherence;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `ashlar lab`
///
/// A file system of many servers on this machine alone, to try it out: each server and client is real processes in a network name space of
/// its own, all on one bridge. Needs root, and `ip` and `tc` (package iproute2).
#[derive(Debug, Args)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: LabAction,
    /// Where everything of the lab is: data, identities, logs, mount points.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/ashlar-lab")]
    pub dir: PathBuf,
}

/// What can be done with a lab.
#[derive(Debug, Subcommand)]
pub enum LabAction {
    /// Make a lab and start it; the file system is mounted at DIR/client1, DIR/client2 and so on.
    Up(LabUpArgs),
    /// Stop a lab and remove everything of it, its data included; also one that was killed.
    Down,
    /// Show the nodes of a lab and what runs on them.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a command in the network of a node, with this machine's files.
    Exec {
        /// The node, as `ashlar lab status` shows it: manager, etcd1, meta1, storage1, client1, console, ...
        node: String,
        /// The command and its arguments, after `--`.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Carry connections of a socket that is the standard input. A part of `up`.
    #[command(hide = true)]
    Gateway {
        /// Where to.
        #[arg(long)]
        to: SocketAddr,
    },
}

/// `ashlar lab up`
#[derive(Debug, Args)]
pub struct LabUpArgs {
    /// Managers. Several share their state in an etcd, with --etcd. Without this: 1, or 3 with --etcd.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5))]
    pub managers: Option<u32>,
    /// Keep the state of the file system in an etcd of three members, of the etcd that is installed, each beside a manager; without this a file of the only manager
    /// has it.
    #[arg(long)]
    pub etcd: bool,
    /// Run the console, for browsers of this machine at https://127.0.0.1:PORT (7403 if none is named; 0: any that is free).
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "7403")]
    pub console: Option<u16>,
    /// Metadata servers, among which directories are spread.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub meta: u32,
    /// Copies of the metadata of each metadata server, on as many of them (`ashlar copies`).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub copies: u8,
    /// Storage servers, each with one target or those of --disks.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub storage: u32,
    /// Give each storage server so many disks of its own, each with a target: local file systems in files, which `ashlar drill` can break. 0: its target is a
    /// directory of this machine.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=8))]
    pub disks: u32,
    /// What each of these holds. It takes as much of this machine's as is written to it.
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = super::parse_bytes)]
    pub disk_size: u64,
    /// Clients, each with a mount.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub clients: u32,
    /// What mounts see of each other's changes: `strict` or `close-to-open`.
    #[arg(long, value_name = "KIND", default_value_t = Coherence::Strict)]
    pub coherence: Coherence,
    /// For how long a mount is kept whose process ends without unmounting, seconds: so that processes of mounts can be killed, and replaced with SIGUSR2.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub keep: u32,
    /// Split a directory, over all metadata servers, when it has more entries than that; 0: none.
    #[arg(long, value_name = "ENTRIES", default_value_t = 50_000)]
    pub split_at: u64,
    /// How much the link of each node carries, each way, Mbit/s. Without it: whatever the processors do.
    #[arg(long, value_name = "MBIT_PER_S", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub link_mbit: Option<u32>,
}
