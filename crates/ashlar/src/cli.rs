//! The command line. Its doc comments are the help, the man pages and the completions.

mod bench;
mod chain;
mod cluster;
mod console;
mod copies;
mod disk;
mod drill;
mod etcd;
mod event;
mod key;
mod lab;
mod metrics;
mod policy;
mod pool;
mod session;
mod shard;
mod target;

use anyhow::Context;
use ashlar_fuse::KernelMask;
use ashlar_types::{DirectoryChoice, LayoutPolicy};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::io::IsTerminal;
use std::path::PathBuf;

pub use bench::{
    Bench, BenchAction, BenchAgentArgs, BenchArgs, BenchCompareArgs, BenchDataArgs, BenchDeviceArgs,
    BenchMemoryArgs, BenchMetadataArgs, BenchNetworkArgs, BenchRandomArgs, BenchReportArgs, BenchRunArgs,
    BenchSequentialArgs, BenchSweepArgs, BenchTeamArgs,
};

pub use chain::{ChainAction, ChainArgs};
pub use cluster::{
    CopyArgs, EtcdPlace, FirstNodeArgs, InitArgs, JoinArgs, ManagerArgs, MetaArgs, MountAction, MountArgs,
    NodeAction, NodeArgs, NodePlace, PromoteArgs, StorageArgs, TokenArgs,
};
pub use console::{ConsoleAction, ConsoleArgs};
pub use copies::{CopiesAction, CopiesArgs};
pub use disk::{DiskAction, DiskArgs, SharedArgs, SharedPlace};
pub use drill::{DrillAction, DrillArgs, DrillLoad, DrillRunArgs, DrillThrashArgs};
pub use etcd::{
    EtcdAction, EtcdArgs, EtcdInitArgs, EtcdJoinArgs, EtcdListArgs, EtcdListen, EtcdRemoveArgs, EtcdRunArgs,
};
pub use event::{EventAction, EventArgs, Since};
pub use key::{KeyAction, KeyArgs};
pub use lab::{LabAction, LabArgs, LabUpArgs};
pub use metrics::MetricsPlace;
pub use policy::{PolicyArgs, SubtreeChoice};
pub use pool::{PoolAction, PoolArgs};
pub use session::{SessionAction, SessionArgs};
pub use shard::{ShardAction, ShardArgs, ShardChoice};
pub use target::{TargetAction, TargetArgs};

/// A parallel file system in one binary.
///
/// `ashlar up MOUNTPOINT` starts a complete file system on this machine and mounts it. Everything else talks to a running one, or
/// works on the data directories of one that is stopped.
#[derive(Debug, Parser)]
#[command(name = "ashlar", version, max_term_width = 100)]
pub struct Cli {
    /// What to log: error, warn, info, debug or trace, or a filter such as `info,ashlar_meta=debug`.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "ASHLAR_LOG",
        default_value = "warn",
        hide_env_values = true
    )]
    pub log: String,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a complete file system on this machine and mount it, until Ctrl-C or SIGTERM.
    Up(UpArgs),
    /// Make a file system of many servers, with this machine as its first node.
    Init(InitArgs),
    /// Make the file system of this machine one of many servers, data in place.
    Promote(PromoteArgs),
    /// Make this machine a node of a file system.
    Join(JoinArgs),
    /// Make a token by which a machine can join.
    Token(TokenArgs),
    /// Keep the map and the certificate authority of a file system of many servers.
    Manager(ManagerArgs),
    /// Serve metadata.
    Meta(MetaArgs),
    /// Serve targets.
    Storage(StorageArgs),
    /// Mount a file system of many servers, until Ctrl-C or SIGTERM; show mounts, or take one away.
    Mount(MountArgs),
    /// Show or remove the machines of a file system.
    Node(NodeArgs),
    /// Show, empty, fill and remove the targets of a file system of many servers.
    Target(TargetArgs),
    /// Show, make and remove pools of targets of a file system of many servers.
    Pool(PoolArgs),
    /// Show the chains that keep several copies of what files contain.
    Chain(ChainArgs),
    /// Show the shards of metadata of a file system of many servers, or move them between servers.
    Shard(ShardArgs),
    /// Show or set how many copies of the metadata of a server there are, on other servers.
    Copies(CopiesArgs),
    /// Show which storage server has which disk that others reach as well, or give it to another one.
    Disk(DiskArgs),
    /// Show or end the sessions of mounts of a file system of many servers.
    Session(SessionArgs),
    /// Change the keys of a file system of many servers.
    Key(KeyArgs),
    /// Keep the state of a file system in an etcd of its own, on the machines of managers.
    Etcd(EtcdArgs),
    /// Show what has happened to a file system of many servers.
    Event(EventArgs),
    /// Show a file system of many servers to its administrators on a web page, until Ctrl-C or SIGTERM; let one log in.
    Console(ConsoleArgs),
    /// Try out a file system of many servers on this machine alone.
    Lab(LabArgs),
    /// Have servers, disks and links fail while programs work, and report what these have seen.
    Drill(DrillArgs),
    /// Show targets, space, inodes and mounts of a running file system.
    Status(StatusArgs),
    /// Show or change where the data of new files goes.
    Layout(LayoutArgs),
    /// Unmount a mount point, also one whose process has died.
    Umount(UmountArgs),
    /// Check a stopped file system, and repair it.
    Fsck(FsckArgs),
    /// Read all data of a running file system and compare it with its checksums.
    Scrub(ScrubArgs),
    /// Save the metadata of a stopped file system into a file, or that of a running one of many servers into a directory.
    Backup(BackupArgs),
    /// Make a metadata directory from a backup.
    Restore(RestoreArgs),
    /// Measure what a machine can do.
    Bench(Box<BenchArgs>),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Write the man pages into a directory.
    Man(ManArgs),
}

/// Where the file system is.
#[derive(Clone, Debug, Args)]
pub struct DataArgs {
    /// A directory on a local file system to keep data in; each one is a target. Repeat for more, in any order.
    ///
    /// Without it: /var/lib/ashlar for root, else $XDG_DATA_HOME/ashlar (~/.local/share/ashlar).
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<PathBuf>,

    /// The directory to keep metadata in, best on flash.
    ///
    /// Without it: beside the first target of a new file system, and where it is found for an existing one.
    #[arg(long, value_name = "DIR")]
    pub meta: Option<PathBuf>,
}

/// `ashlar up`
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Where to mount. Several mount points give several mounts, each with a session of its own.
    #[arg(required = true, value_name = "MOUNTPOINT")]
    pub mountpoints: Vec<PathBuf>,

    #[command(flatten)]
    pub place: DataArgs,

    /// Refuse to start when there is no file system yet, instead of making one.
    #[arg(long)]
    pub existing: bool,

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

    /// The source shown in the mount table; `mount -a` recognizes by it what is mounted.
    #[arg(long, hide = true, value_name = "NAME", default_value = "ashlar")]
    pub source: String,

    /// Transport to the kernel.
    #[arg(long, value_enum, default_value_t = FuseTransport::Auto)]
    pub fuse_transport: FuseTransport,

    #[command(flatten)]
    pub metrics: MetricsPlace,

    /// Pass every message between the roles through its codec, as on a network (for testing).
    #[arg(long, hide = true)]
    pub force_codec: bool,

    /// Do without what came after a Linux release (5.4, 5.10, 5.15, 6.1, 6.6 or 6.12), or without FUSE features by name,
    /// separated by commas (for testing).
    #[arg(long, hide = true, value_name = "LIST")]
    pub mask_features: Option<KernelMask>,
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FuseTransport {
    /// io_uring where the administrator has enabled it, else /dev/fuse.
    Auto,
    /// /dev/fuse.
    Device,
}

/// `ashlar status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The mount point, if several file systems run here.
    pub mountpoint: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `ashlar layout`
#[derive(Debug, Args)]
pub struct LayoutArgs {
    #[command(subcommand)]
    pub command: LayoutCommand,
}

/// Layout commands.
#[derive(Debug, Subcommand)]
pub enum LayoutCommand {
    /// Show the settings of a directory, or where the chunks of a file are.
    Show {
        /// A path below a mount point.
        path: PathBuf,
        /// Print JSON: an object with the same names and values, numbers as numbers.
        #[arg(long)]
        json: bool,
    },
    /// Change the settings of a directory; files and directories made in it from now on inherit them.
    Set(LayoutSetArgs),
}

/// `ashlar layout set`
#[derive(Debug, Args)]
pub struct LayoutSetArgs {
    /// A directory below a mount point.
    pub path: PathBuf,
    /// Pool of targets, by name.
    #[arg(long)]
    pub pool: Option<String>,
    /// Bytes per chunk, a power of two from 64k to 16m.
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_size)]
    pub chunk_size: Option<u32>,
    /// Targets a file is striped over, 256 at the most; 0 means all of the pool.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(..=256))]
    pub stripe_count: Option<u16>,
    /// Copies of the content of a file, each on another server, 1 to 3; the pool needs chains for as many (`ashlar pool copies`).
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub copies: Option<u8>,
    /// Files up to this size live with their inode, 0 to 256k.
    #[arg(long, value_name = "SIZE", value_parser = parse_inline_size)]
    pub inline_size: Option<u32>,
    /// How targets are chosen.
    #[arg(long, value_enum)]
    pub choice: Option<Choice>,
    /// When an operation is answered: async (safe against the death of any process) or sync (safe against power loss).
    #[arg(long, value_enum)]
    pub durability: Option<DurabilityChoice>,
    /// Where directories go that are made in this one: to all metadata servers in turn (round-robin), where this one is (inherit), or to a shard
    /// (shard-7, see `ashlar shard list`).
    #[arg(long, value_name = "round-robin|inherit|SHARD", value_parser = parse_directories)]
    pub directories: Option<DirectoryChoice>,
    /// Split this directory into 2 to 64 slices, so that several metadata servers carry it; it stays split. It can be in use. With many entries that takes a while,
    /// and goes on if this command is ended.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(2..=64))]
    pub slices: Option<u16>,
    /// Do not wait until all entries are in slices; `ashlar layout show` says how far it is.
    #[arg(long, requires = "slices")]
    pub no_wait: bool,
    /// Split directories that are made in this one from now on, but not those made in them, into 2 to 64 slices; 0 means not to.
    #[arg(long, value_name = "COUNT", value_parser = parse_slices_of_new)]
    pub slices_of_new: Option<u16>,
    /// Print JSON when it is done: what `ashlar layout show` tells then.
    #[arg(long)]
    pub json: bool,
}

fn parse_directories(text: &str) -> Result<DirectoryChoice, String> {
    text.parse().map_err(|_| {
        "it is round-robin, inherit, or a shard, as shard-7; `ashlar shard list` shows them".into()
    })
}

fn parse_slices_of_new(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(count @ (0 | 2..=64)) => Ok(count),
        _ => Err("it is 0, or from 2 to 64".into()),
    }
}

/// How targets are chosen for a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// In turn.
    RoundRobin,
    /// At random, weighted by free space.
    FreeSpace,
    /// At random.
    Scatter,
}

/// When an operation is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DurabilityChoice {
    /// Once it survives the death of any process; a power cut loses at most five seconds of what was not fsynced.
    Async,
    /// Once it is on stable storage.
    Sync,
}

/// `ashlar umount`
#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The mount point.
    pub mountpoint: PathBuf,
}

/// `ashlar fsck`
///
/// The exit status is that of fsck(8): 0 clean, 1 repaired, 4 damage is left, 8 the check could not be done.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// A data directory; each one is a target. Repeat for all.
    ///
    /// Without it: /var/lib/ashlar for root, else $XDG_DATA_HOME/ashlar (~/.local/share/ashlar). With --state: targets are not looked at.
    #[arg(long = "data", value_name = "DIR")]
    pub data: Vec<PathBuf>,
    /// The metadata directory, if it is not found in a data directory. With --state: of a metadata server; repeat for all of them.
    #[arg(long, value_name = "DIR")]
    pub meta: Vec<PathBuf>,
    /// Check a file system of many servers, by what the manager keeps in this directory (/var/lib/ashlar/manager on its machine).
    #[arg(long, value_name = "DIR", requires = "meta")]
    pub state: Option<PathBuf>,
    /// With --state: compare targets that storage servers serve meanwhile, too, asked as this metadata server: where it keeps its name, certificate and key.
    #[arg(long, value_name = "DIR", requires = "state")]
    pub identity: Option<PathBuf>,
    /// Check the metadata in a backup of a file system of many servers.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["data", "meta", "state", "repair"])]
    pub backup: Option<PathBuf>,
    /// Repair what can be repaired without a person.
    #[arg(long)]
    pub repair: bool,
    /// Do not read the data: metadata, indexes and headers only.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object per line and problem, and one with the summary.
    #[arg(long)]
    pub json: bool,
    /// Give up every change in the metadata log from this position on: the way out when a start or check says that the log is
    /// damaged there.
    #[arg(long, value_name = "POSITION", requires = "repair")]
    pub give_up_log_from: Option<u64>,
    /// Take the metadata for what it is, although targets have been in later starts than it knows of, as after a restore: chunks that
    /// are newer than it are deleted.
    #[arg(long, requires = "repair")]
    pub accept_older_metadata: bool,
}

/// `ashlar scrub`
///
/// The exit status is 0 when all is well and 1 when damage was found or the scrub could not be done.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    /// The mount point, if several file systems run here. Of a file system of many servers: where it is mounted here, for the names of damaged files.
    pub mountpoint: Option<PathBuf>,
    /// Scrub all targets of the file system of many servers that this machine belongs to, as a machine for administrators; this is where it keeps its name,
    /// certificate and key.
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// Read at most this many MiB per second, over all targets together. Without it: as fast as they can.
    #[arg(long, value_name = "MIB_PER_S", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,
    /// Print one JSON object per line and problem, and one with the summary.
    #[arg(long)]
    pub json: bool,
}

/// `ashlar backup`
#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(flatten)]
    pub place: DataArgs,
    /// Back up the running file system of many servers that this machine belongs to, as a machine for administrators; this is where it keeps its name,
    /// certificate and key. Without it, and without --data and --meta: /etc/ashlar, if there is something.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["data", "meta"])]
    pub identity: Option<PathBuf>,
    /// The file to make, or of a file system of many servers the directory. It holds the secrets of the file system: keep it as safe as the file system
    /// itself.
    pub file: PathBuf,
}

/// `ashlar restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup: a file, or of a file system of many servers the directory with all parts.
    pub file: PathBuf,
    /// The metadata directory to make; it must be empty or not there.
    #[arg(long, value_name = "DIR")]
    pub meta: PathBuf,
    /// Restore only `secrets` and `cluster-state`, into a metadata directory that has lost them.
    #[arg(long)]
    pub state_only: bool,
    /// Of a file system of many servers: where this machine keeps its name, certificate and key.
    #[arg(long, value_name = "DIR", default_value = "/etc/ashlar")]
    pub identity: PathBuf,
    /// Of a file system of many servers: the metadata server, by name, whose shards this one is to have from now on, because it is lost.
    #[arg(long, value_name = "NAME", conflicts_with = "state_only")]
    pub instead_of: Option<String>,
}

/// `ashlar completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `ashlar man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The directory.
    pub directory: PathBuf,
}

/// A number of bytes with an optional suffix k, m or g (powers of 1024), below 4 GiB.
fn parse_size(text: &str) -> Result<u32, String> {
    parse_bytes(text).and_then(|bytes| u32::try_from(bytes).map_err(|_| format!("`{text}` is too large")))
}

/// A number of bytes with an optional suffix k, m or g (powers of 1024).
fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let units = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];
    let of_unit = units.iter().find_map(|(unit, shift)| Some((lower.strip_suffix(*unit)?, *shift)));
    let (digits, shift) = of_unit.unwrap_or((lower.as_str(), 0));
    let number: u64 =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write for example 64k, 1m or 2t"))?;
    number.checked_mul(1u64 << shift).ok_or(format!("`{text}` is too large"))
}

/// A chunk size.
fn parse_chunk_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    if bytes.is_power_of_two()
        && (LayoutPolicy::CHUNK_BYTES_MIN..=LayoutPolicy::CHUNK_BYTES_MAX).contains(&bytes)
    {
        return Ok(bytes);
    }
    Err("a chunk size is a power of two from 64k to 16m".into())
}

/// A size up to which files live with their inode.
fn parse_inline_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    if bytes <= LayoutPolicy::INLINE_BYTES_MAX {
        Ok(bytes)
    } else {
        Err("the inline size is 256k at the most".into())
    }
}

/// Sends log lines to standard error.
///
/// # Errors
/// When the filter is none.
pub fn init_logging(cli: &Cli) -> anyhow::Result<()> {
    let filter = parse_log_filter(&cli.log)?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Colours are for a terminal, not for a journal or a file.
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(true)
        .init();
    Ok(())
}

/// A filter of log lines. A single word is a level: the library would take `infoo` for the name of a module and log nothing else.
fn parse_log_filter(text: &str) -> anyhow::Result<tracing_subscriber::EnvFilter> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    // Filters by span and field have commas of their own; the library checks those.
    let words = if text.contains('[') { "info" } else { text };
    let wrong = words.split(',').map(str::trim).find(|directive| {
        let level = directive.rsplit_once('=').map_or(*directive, |(_, level)| level);
        !is_level(level)
    });
    if let Some(wrong) = wrong {
        anyhow::bail!(
            "--log: `{wrong}` is no level; write one of {}, or for example `info,ashlar_meta=debug`",
            LEVELS.join(", ")
        );
    }
    tracing_subscriber::EnvFilter::try_new(text).with_context(|| format!("--log: `{text}` is no filter"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_an_administrator_has_json() {
        fn look(command: &clap::Command, path: &str, without: &mut Vec<String>, count: &mut usize) {
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                let path = format!("{path} {}", sub.get_name());
                if sub.has_subcommands() {
                    look(sub, &path, without, count);
                    continue;
                }
                *count += 1;
                let json = sub.get_arguments().find(|argument| argument.get_long() == Some("json"));
                let help = json.and_then(|json| json.get_help()).map(ToString::to_string).unwrap_or_default();
                // What a program may rely on is said where it is asked for.
                if !help.starts_with("Print JSON") || !help.contains(':') {
                    without.push(path);
                }
            }
        }
        let (whole, mut without, mut count) = (Cli::command(), Vec::new(), 0);
        for noun in ["node", "target", "pool", "shard", "layout", "mount", "session"] {
            let command = whole.find_subcommand(noun).unwrap();
            let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            assert!(names.contains(&"show"), "{noun}: {names:?}");
            assert!(noun == "layout" || names.contains(&"list"), "{noun}: {names:?}");
            look(command, noun, &mut without, &mut count);
        }
        for verb in ["token", "join", "event", "key"] {
            let mut one =
                clap::Command::new("ashlar").subcommand(whole.find_subcommand(verb).unwrap().clone());
            one.build();
            look(&one, "", &mut without, &mut count);
        }
        assert!(without.is_empty(), "without --json, or without a word on what it prints: {without:?}");
        assert!(count >= 30, "{count} commands");
    }

    /// Has every command that a guide shows be parsed; tells how many there are.
    fn parse_all_of(guide: &str) -> usize {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides").join(guide);
        let text = std::fs::read_to_string(path).unwrap();
        let mut count = 0;
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("$ ashlar ")) {
            // What stands in quotes is one word.
            let words = line.split('"').enumerate().flat_map(|(at, part)| match at % 2 {
                0 => part.split_whitespace().collect(),
                _ => vec![part],
            });
            if let Err(error) = Cli::try_parse_from(["ashlar"].into_iter().chain(words)) {
                panic!("{line}: {error}");
            }
            count += 1;
        }
        count
    }

    #[test]
    fn the_commands_of_guides_are_understood_as_they_stand_there() {
        for (guide, least) in [("bench.md", 21), ("drill.md", 10)] {
            let count = parse_all_of(guide);
            assert!(count >= least, "{guide}: {count} commands");
        }
    }

    #[test]
    fn sizes_take_a_suffix() {
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_bytes("2t"), Ok(2 << 40), "as the guides write it");
        assert!(parse_size("4g").is_err() && parse_size("x").is_err() && parse_size("").is_err());
        assert!(parse_size("18446744073709551615g").is_err(), "too many bits");
    }

    #[test]
    fn a_layout_value_out_of_range_is_told_with_the_range() {
        assert_eq!(parse_chunk_size("1m"), Ok(1 << 20));
        assert!(parse_chunk_size("100k").is_err_and(|error| error.contains("power of two")));
        assert!(parse_chunk_size("32m").is_err_and(|error| error.contains("16m")));
        assert_eq!(parse_inline_size("256k"), Ok(256 << 10));
        assert!(parse_inline_size("257k").is_err_and(|error| error.contains("256k")));
    }

    #[test]
    fn a_log_filter_with_a_typing_error_is_refused() {
        assert!(parse_log_filter("info").is_ok() && parse_log_filter("info,ashlar_meta=debug").is_ok());
        for wrong in ["infoo", "bogus==", "ashlar_meta=loud", "", "info,"] {
            assert!(parse_log_filter(wrong).is_err(), "{wrong}");
        }
    }
}
