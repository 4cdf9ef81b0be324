//! `ashlar restore`: makes a metadata directory of a backup.

use super::node;
use crate::backup::{PartSet, restore, restore_parts, restore_state, shown_set};
use crate::cli::RestoreArgs;
use crate::cluster::{Member, NodeDirectory, RestoredNote};
use crate::terminal::{say, shown};
use anyhow::{Result, bail};
use ashlar_types::Role;
use std::process::ExitCode;

pub fn run(args: &RestoreArgs) -> Result<ExitCode> {
    if args.file.is_dir() {
        return restore_server(args);
    }
    if args.instead_of.is_some() {
        bail!("{} is no directory with parts of a backup of many servers", shown(&args.file));
    }
    if args.state_only {
        restore_state(&args.file, &args.meta)?;
        say(format_args!("secrets and cluster-state restored to {}", shown(&args.meta)));
    } else {
        let summary = restore(&args.file, &args.meta)?;
        say(format_args!("{} records restored to {}", summary.pairs, shown(&args.meta)));
    }
    say(format_args!(
        "start with: ashlar up MOUNTPOINT --meta {} --data ... (every data directory)",
        shown(&args.meta)
    ));
    Ok(ExitCode::SUCCESS)
}

/// The metadata of this machine, one of many servers.
fn restore_server(args: &RestoreArgs) -> Result<ExitCode> {
    if args.state_only {
        bail!(
            "what managers keep is in no backup of many servers: put a copy of the directory of a manager back"
        );
    }
    let set = PartSet::open(&args.file)?;
    let member = Member::start(NodeDirectory::new(&args.identity), Role::Meta)?;
    let (map, name) = (member.map().read().clone(), &member.name);
    if set.header.cluster != name.cluster {
        bail!(
            "{} is a backup of file system {}, and this machine belongs to {}",
            shown(&args.file),
            set.header.cluster,
            name.cluster
        );
    }
    let instead_of =
        args.instead_of.as_ref().map(|lost| node::find(&map, lost).map(|lost| lost.id)).transpose()?;
    if instead_of == Some(name.node) {
        bail!("{} is this machine", name.name);
    }
    let serves = map.listening(Role::Meta).any(|node| node.id == name.node);
    let has_any = map.shards.iter().any(|shard| shard.primary == name.node);
    if !serves && !has_any && instead_of.is_none() {
        bail!(
            "{} serves no metadata: name the --identity of a metadata server, or with --instead-of the one whose place this machine takes",
            name.name
        );
    }
    let is_own = |node| node == name.node || Some(node) == instead_of;
    let shards = map.shards.iter().filter(|shard| is_own(shard.primary)).map(|shard| shard.id).collect();
    let note = RestoredNote { set: set.head.set, node: name.node, shards, seen: map.epoch, instead_of };
    let summary = restore_parts(&set, &note, &args.meta)?;
    say(format_args!(
        "{} records of {} shards restored to {}, of backup {}",
        summary.pairs,
        note.shards.iter().count(),
        shown(&args.meta),
        shown_set(set.head.set)
    ));
    say("restore it on all metadata servers; from the first start on, `ashlar meta` serves nothing else");
    Ok(ExitCode::SUCCESS)
}
