//! Arguments of the commands of a file system of many servers.

use super::{DataArgs, FuseTransport, MetricsPlace, PolicyArgs, SharedArgs};
use crate::cluster::DataPlace;
use ashlar_types::{Coherence, Durability, Roles};
use clap::{Args, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Who this machine is.
#[derive(Clone, Debug, Args)]
pub struct NodePlace {
    /// Where this machine keeps its name, certificate and key. A machine that belongs to several file systems has one for each.
    #[arg(long = "identity", global = true, value_name = "DIR", default_value = "/etc/ashlar")]
    pub node: PathBuf,
}

/// Where the state of a manager is.
#[derive(Clone, Debug, Args)]
pub struct StatePlace {
    /// Where the manager keeps the state of the file system.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ashlar/manager")]
    pub state: PathBuf,
}

/// An etcd that keeps the state.
#[derive(Clone, Debug, Args)]
pub struct EtcdPlace {
    /// Keep the state of the file system in this etcd, so that there can be several managers: client URLs of its members, with commas between
    /// them, such as https://etcd1:2379.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Certificate of the authority of etcd's certificates, a file in PEM format; for URLs with https.
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate that managers show to etcd, a file in PEM format.
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub etcd_certificate: Option<PathBuf>,
    /// Its private key, a file in PEM format.
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,
}

/// The first node of a file system of many servers.
#[derive(Clone, Debug, Args)]
pub struct FirstNodeArgs {
    /// Where the manager on this machine will listen: an address others can connect to, with a port (7400 if none is named). Repeat for
    /// several interfaces.
    #[arg(long, required = true, value_name = "ADDRESS", value_parser = parse_manager_address)]
    pub listen: Vec<SocketAddr>,
    /// An address on a network for management, with a port (that of --listen if none is named): administrators, and servers among themselves, go to
    /// managers by it, and clients never do. Repeat for several.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_manager_address)]
    pub management: Vec<SocketAddr>,
    /// The name of this machine in the file system. Without it: its host name.
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub etcd: EtcdPlace,
    #[command(flatten)]
    pub state: StatePlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar init`
#[derive(Debug, Args)]
pub struct InitArgs {
    #[command(flatten)]
    pub first: FirstNodeArgs,
    /// Set up an etcd for this file system, of the etcd that is installed, with its first member on this machine: at this address, which machines of other
    /// managers reach, best not on the network of clients, with a port (2379 if none is named; for other members it listens at the next one).
    #[arg(long, value_name = "ADDRESS", value_parser = super::etcd::parse_etcd_address, conflicts_with = "etcd")]
    pub with_etcd: Option<SocketAddr>,
    /// The program etcd for --with-etcd. Without it: the one that is installed.
    #[arg(long, value_name = "FILE", requires = "with_etcd")]
    pub etcd_program: Option<PathBuf>,
}

/// `ashlar promote`
#[derive(Debug, Args)]
pub struct PromoteArgs {
    #[command(flatten)]
    pub place: DataArgs,
    /// Start the manager, metadata and storage on this machine afterwards. An `ashlar up` that serves the file system is stopped in good order before, if no program uses its
    /// mounts, and what it had mounted is mounted again: some seconds without it.
    #[arg(long)]
    pub start: bool,
    /// With --start: stop `ashlar up` although programs use its mounts, which get errors.
    #[arg(long, requires = "start")]
    pub cut_off: bool,
    /// With --start: where metadata is to listen (port 7401 if none is named). Without it: beside the manager. Repeat for several interfaces.
    #[arg(long, value_name = "ADDRESS", requires = "start", value_parser = parse_meta_address)]
    pub meta_listen: Vec<SocketAddr>,
    /// With --start: where targets are to be reached (port 7402 if none is named). Without it: beside the manager. Repeat for several interfaces.
    #[arg(long, value_name = "ADDRESS", requires = "start", value_parser = parse_storage_address)]
    pub storage_listen: Vec<SocketAddr>,
    #[command(flatten)]
    pub first: FirstNodeArgs,
}

/// `ashlar join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The token, as `ashlar token` printed it; `-` reads it from standard input, where nobody else on this machine sees it.
    pub token: String,
    /// The name of this machine in the file system. Without it: its host name.
    #[arg(long)]
    pub name: Option<String>,
    /// Print JSON: an object with `cluster`, `id` and `name` of this machine, and `roles`.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub state: StatePlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar token`
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// What the machine may be that joins with it: manager, meta, storage, client, admin, console; several with commas between them.
    #[arg(long, value_name = "ROLES", value_parser = parse_roles)]
    pub role: Roles,
    /// For how long it can be used, minutes. It can be used once.
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=60 * 24 * 30))]
    pub valid_minutes: u32,
    /// Print JSON: an object with `token`, `roles`, `expires` (seconds since 1970, by the clock of this machine), and `policy` (what the machine may do as a client).
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub policy: PolicyArgs,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar manager`
#[derive(Debug, Args)]
pub struct ManagerArgs {
    /// Where to listen. Without it: where it did before.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_manager_address)]
    pub listen: Vec<SocketAddr>,
    /// An address on a network for management, with a port (that of --listen if none is named): administrators, and servers among themselves, go to
    /// managers by it, and clients never do. Repeat for several.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_manager_address)]
    pub management: Vec<SocketAddr>,
    /// Move the state from the file on this machine to the etcd that --etcd names, and go on. Afterwards there can be more managers.
    #[arg(long, requires = "etcd")]
    pub move_to_etcd: bool,
    #[command(flatten)]
    pub etcd: EtcdPlace,
    #[command(flatten)]
    pub state: StatePlace,
    #[command(flatten)]
    pub metrics: MetricsPlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What an administrator says about directories that do not seem to be the ones to serve.
#[derive(Clone, Copy, Debug, Args)]
pub struct CopyArgs {
    /// Serve what is an older copy of a target or of metadata (a disk that was restored from an image, say), because the newer one is lost. What has changed since is gone.
    #[arg(long)]
    pub accept_older_copies: bool,
    /// Serve what another server seems to serve, because that one is known to be dead or stopped for good. If it is not, both lose what is written.
    #[arg(long)]
    pub take_over: bool,
}

/// `ashlar meta`
#[derive(Clone, Debug, Args)]
pub struct MetaArgs {
    /// The directory to keep metadata in, best on flash.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ashlar/meta")]
    pub meta: PathBuf,
    /// Where to listen: an address others can connect to, with a port (7401 if none is named). Repeat for several interfaces.
    #[arg(long, required = true, value_name = "ADDRESS", value_parser = parse_meta_address)]
    pub listen: Vec<SocketAddr>,
    /// Start restored metadata although not all targets are served, because they are lost. One that is served afterwards all the same may show old content in
    /// new files.
    #[arg(long)]
    pub accept_missing_targets: bool,
    /// An address on a network for management, with a port (that of --listen if none is named): administrators, and servers among themselves, go to
    /// managers by it, and clients never do. Repeat for several.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_meta_address)]
    pub management: Vec<SocketAddr>,
    /// Split a directory of this server, over all metadata servers, when it has more entries than that; 0: none. Where there is only one metadata server none is.
    #[arg(long, value_name = "ENTRIES", default_value_t = 50_000)]
    pub split_at: u64,
    /// Where copies of metadata on other servers reach those of this one: an address, with a port (7404 if none is named). Without it: any port of the addresses
    /// of --listen. Repeat for several.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_copies_address)]
    pub copies_listen: Vec<SocketAddr>,
    /// Read all of each copy of metadata that is kept here once in so many seconds, so that damage on a disk is found, and the copy made anew, while another one is sound; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    pub read_through_every: u64,
    #[command(flatten)]
    pub copies: CopyArgs,
    #[command(flatten)]
    pub metrics: MetricsPlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar storage`
#[derive(Debug, Args)]
pub struct StorageArgs {
    /// A directory on a local file system to keep data in; each one is a target. Repeat for more, in any order. `DIR,listen=ADDRESS,numa=NODE` says at which
    /// of the addresses it is reached best, and which NUMA node serves it; without that it follows from where its disk and the interfaces are.
    #[arg(long = "data", required_unless_present_any = ["shared", "standby"], value_name = "DIR", value_parser = parse_data_place)]
    pub data: Vec<DataPlace>,
    /// Start without a directory that `ashlar target add` has added to this server, because its disk is lost, say. Repeat for more.
    #[arg(long, value_name = "DIR")]
    pub without: Vec<PathBuf>,
    /// The pool that new targets are made in; `ashlar pool list` shows what there is.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Where to listen: an address others can connect to, with a port (7402 if none is named). Repeat for several interfaces.
    #[arg(long, required = true, value_name = "ADDRESS", value_parser = parse_storage_address)]
    pub listen: Vec<SocketAddr>,
    /// An address on a network for management, with a port (that of --listen if none is named): administrators, and servers among themselves, go to
    /// managers by it, and clients never do. Repeat for several.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_storage_address)]
    pub management: Vec<SocketAddr>,
    #[command(flatten)]
    pub shared: SharedArgs,
    #[command(flatten)]
    pub copies: CopyArgs,
    #[command(flatten)]
    pub metrics: MetricsPlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// `ashlar mount`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct MountArgs {
    /// Something else than to mount.
    #[command(subcommand)]
    pub action: Option<MountAction>,
    /// Where to mount. A directory that is called like one of the commands: `./list`.
    #[arg(required = true)]
    pub mountpoint: Option<PathBuf>,
    /// After how long without a server a call fails, seconds. Until then it waits.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub error_after: u32,
    /// For how long the mount is kept should this process end without unmounting, seconds: programs wait, and when it is mounted there again in that
    /// time, they go on with the files that they have open. 0: it is given up at once. Needs Linux 6.9; without io_uring.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub keep: u32,
    /// What is seen of other mounts' changes: `strict` (at once) or `close-to-open` (an open sees what was closed before, else up to 3 seconds late).
    #[arg(long, value_name = "KIND", default_value_t = Coherence::Strict)]
    pub coherence: Coherence,
    /// How durable a change made through the mount is when it has returned: `sync` (it survives a power cut of all servers, as if an fsync followed it) or `async` (as its
    /// directory says: `ashlar layout set --durability`). The stronger of both counts.
    #[arg(long, value_name = "KIND", default_value_t = Durability::Async)]
    pub durability: Durability,
    /// Show this directory of the file system as the root of the mount: a path from the root of what this machine sees.
    #[arg(long, value_name = "PATH")]
    pub subdirectory: Option<String>,
    /// Let other users than the one who mounts use it. Root's mounts always do; for others /etc/fuse.conf must say user_allow_other.
    #[arg(long)]
    pub allow_other: bool,
    /// Mount read-only.
    #[arg(long)]
    pub read_only: bool,
    /// Ignore set-user-id and set-group-id bits, as mounts of ordinary users always do.
    #[arg(long)]
    pub no_set_id: bool,
    /// Refuse to open device nodes, as mounts of ordinary users always do.
    #[arg(long)]
    pub no_devices: bool,
    /// The source shown in the mount table.
    #[arg(long, hide = true, value_name = "NAME", default_value = "ashlar")]
    pub source: String,
    /// Transport to the kernel.
    #[arg(long, value_enum, default_value_t = FuseTransport::Auto)]
    pub fuse_transport: FuseTransport,
    #[command(flatten)]
    pub metrics: MetricsPlace,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about mounts of this machine, of one server or of many.
#[derive(Debug, Subcommand)]
pub enum MountAction {
    /// Show the mounts of this machine.
    List {
        /// Print JSON: a list of objects with `mountpoint`, `source`, `read_only` and `user` (who mounted it, a number).
        #[arg(long)]
        json: bool,
    },
    /// Show one mount: who serves it and how it was mounted, as its process tells, to root and to who mounted it. No server is asked.
    Show {
        /// The mount point.
        mountpoint: PathBuf,
        /// Print JSON: what `list` tells of each, `is_answering` (whether its process does, within 2 s), and what that tells, null if it does not: `cluster`, `version`, `pid`,
        /// `node`, `started` (seconds since 1970), `session` and `session_text` (as `id` and `id_text` of `ashlar session list`), `epoch` (of its map), `managers`, `metadata_servers` and `storage_servers` (lists of `id`,
        /// `name` and `addresses`; `servers_left_out` is how many more there are than 64 of a kind, and `addresses_left_out` how many more addresses those have than there is room for), `coherence`, `durability`, `subdirectory`, `error_after_s`, `keep_s` (both null for a mount of `ashlar up`), `allow_other`, `set_id`, `devices` and `transport`.
        #[arg(long)]
        json: bool,
    },
    /// Take a mount away within a few seconds, also when servers are away or its process hangs. Programs that use it get errors.
    Detach {
        /// The mount point.
        mountpoint: PathBuf,
        /// Print JSON: the mount as it was, as `list` does for each, and `is_answering` (whether its process did).
        #[arg(long)]
        json: bool,
    },
}

/// `ashlar node`
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: NodeAction,
    #[command(flatten)]
    pub node: NodePlace,
}

/// What can be done about nodes.
#[derive(Debug, Subcommand)]
pub enum NodeAction {
    /// Show the machines of the file system, what they may be and where they listen.
    List {
        /// Print JSON: a list of objects with `id`, `name`, `roles`, `listening` (addresses by role), `away_s` (by role, for how many seconds nothing was heard of
        /// it, if it is away), `domain` (of failure) and `policy`.
        #[arg(long)]
        json: bool,
    },
    /// Show one machine.
    Show {
        /// Its name or number.
        name: String,
        /// Print JSON: what `list` tells of each, with `targets` and `shards` (numbers of those it serves).
        #[arg(long)]
        json: bool,
    },
    /// Say what a machine may do as a client, or show it if nothing else is said. It holds for its mounts within seconds.
    Policy {
        /// Its name or number.
        name: String,
        #[command(flatten)]
        policy: PolicyArgs,
        /// Print JSON: the machine, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Say what a machine can fail together with, such as its rack, or show it if nothing is said. Content of a file is spread over such failure domains.
    Domain {
        /// Its name or number.
        name: String,
        /// The name of the failure domain; `none`: it fails alone.
        domain: Option<String>,
        /// Print JSON: the machine, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
    /// Move what is on the targets of a machine to others, while it is used.
    Drain {
        /// Its name or number.
        name: String,
        /// Print JSON: a list of its targets, as of `ashlar target list`.
        #[arg(long)]
        json: bool,
    },
    /// Use the targets of a machine again that were to be drained.
    Undrain {
        /// Its name or number.
        name: String,
        /// Print JSON: a list of its targets, as of `ashlar target list`.
        #[arg(long)]
        json: bool,
    },
    /// Take a machine out of the file system: its certificate is worth nothing from now on. One that has targets or shards, that is a member of an etcd of the
    /// file system, or the last one that manages or may administer, is refused.
    Remove {
        /// Its name or number.
        name: String,
        /// Also if it is this machine, which can do nothing more here afterwards.
        #[arg(long)]
        yes_this_one: bool,
        /// Print JSON: the machine as it was, as `list` does for each.
        #[arg(long)]
        json: bool,
    },
}

/// Ports of the roles where none is named.
const MANAGER_PORT: u16 = 7400;
const META_PORT: u16 = 7401;
const COPIES_PORT: u16 = 7404;
const STORAGE_PORT: u16 = 7402;

pub fn parse_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let host = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let ip: IpAddr = host.parse().map_err(|_| {
        format!("`{text}` is not an address: write for example 10.0.0.1, 10.0.0.1:{port} or [fd00::1]:{port}")
    })?;
    Ok(SocketAddr::new(ip, port))
}

fn parse_manager_address(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, MANAGER_PORT)
}

fn parse_copies_address(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, COPIES_PORT)
}

fn parse_meta_address(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, META_PORT)
}

fn parse_storage_address(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, STORAGE_PORT)
}

pub(super) fn parse_data_place(text: &str) -> Result<DataPlace, String> {
    DataPlace::parse(text, parse_storage_address)
}

fn parse_roles(text: &str) -> Result<Roles, String> {
    Roles::parse(text).filter(|roles| roles.iter().count() > 0).ok_or_else(|| {
        format!(
            "`{text}` is no list of roles: manager, meta, storage, client, admin, console, with commas between them"
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_that_of_the_role() {
        assert_eq!(parse_meta_address("10.0.0.1"), Ok("10.0.0.1:7401".parse().unwrap()));
        assert_eq!(parse_storage_address("10.0.0.1:9"), Ok("10.0.0.1:9".parse().unwrap()));
        assert_eq!(parse_manager_address("fd00::1"), Ok("[fd00::1]:7400".parse().unwrap()));
        assert_eq!(parse_manager_address("[fd00::1]"), Ok("[fd00::1]:7400".parse().unwrap()));
        assert!(parse_manager_address("server1").is_err_and(|error| error.contains("not an address")));
    }
}
