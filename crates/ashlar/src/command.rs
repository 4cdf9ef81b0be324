//! The commands, one file each; this file holds the table.

mod backup;
mod bench;
mod chain;
mod cluster;
mod completions;
mod copies;
mod disk;
mod drill;
mod etcd;
mod event;
mod fsck;
mod key;
mod lab;
mod layout;
mod man;
mod mounts;
mod node;
mod pool;
mod presence;
mod restore;
mod scrub;
mod session;
mod shard;
mod status;
mod target;
mod umount;
mod up;

use crate::cli::{Cli, Command};
use anyhow::Result;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// What went wrong, with the thing and the way out.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(&args),
        Command::Init(args) => cluster::init(&args),
        Command::Promote(args) => cluster::promote(&args),
        Command::Join(args) => cluster::join(&args),
        Command::Token(args) => cluster::token(&args),
        Command::Manager(args) => cluster::manager(&args),
        Command::Meta(args) => cluster::meta(&args),
        Command::Storage(args) => cluster::storage(&args),
        Command::Mount(args) => cluster::mount(&args),
        Command::Node(args) => node::run(&args),
        Command::Target(args) => target::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Chain(args) => chain::run(&args),
        Command::Shard(args) => shard::run(&args),
        Command::Copies(args) => copies::run(&args),
        Command::Disk(args) => disk::run(&args),
        Command::Session(args) => session::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Etcd(args) => etcd::run(&args),
        Command::Event(args) => event::run(&args),
        Command::Console(args) => cluster::console(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Drill(args) => drill::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Layout(args) => layout::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
