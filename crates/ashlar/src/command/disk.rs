//! `ashlar disk`: disks that several storage servers reach.

use super::node;
use crate::cli::{DiskAction, DiskArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use ashlar_console::object::node::{name, reference};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, DiskState, NodeId, Role, SharedDisk};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &DiskArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        DiskAction::List { json } => {
            let disks = told(&member)?;
            if *json {
                let all: Vec<Value> = disks.iter().map(|disk| object(&map, disk)).collect();
                say_json(&all)?;
            } else {
                disks.iter().for_each(|disk| print(&map, disk));
            }
        }
        DiskAction::Move { disk, to } => {
            let (known, to) = (find(&told(&member)?, disk)?, node::find(&map, to)?);
            member.ask(&ManagerRequest::MoveDisk { disk: known.id, to: to.id })?;
            say(format_args!("{} has it as soon as it is free: `ashlar disk list` shows that", to.name));
        }
        DiskAction::Fenced { server, .. } => {
            let server = node::find(&map, server)?;
            member.ask(&ManagerRequest::ConfirmFenced { node: server.id })?;
            say(format_args!("the shared disks of {} go to others", server.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn told(member: &Member) -> Result<Vec<SharedDisk>> {
    match member.ask(&ManagerRequest::SharedDisks).context("shared disks are not known")? {
        ManagerReply::SharedDisks(disks) => Ok(disks),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

/// The disk that is called so.
fn find(disks: &[SharedDisk], text: &str) -> Result<SharedDisk> {
    let is_it = |disk: &&SharedDisk| {
        SharedDisk::shown(disk.id) == text.to_ascii_lowercase()
            || disk.target.is_some_and(|target| target.0.to_string() == text)
    };
    disks.iter().find(is_it).cloned().with_context(|| {
        format!("there is no shared disk `{}`: `ashlar disk list` shows all of them", text.escape_debug())
    })
}

/// State, and who is to have it next, or fences the other one.
fn standing(disk: &SharedDisk) -> (&'static str, Option<NodeId>) {
    match disk.state {
        DiskState::Free { next } => ("free", next),
        DiskState::Used { .. } => ("used", None),
        DiskState::Leaving { to, .. } => ("leaving", Some(to)),
        DiskState::Fencing { by, .. } => ("fencing", Some(by)),
    }
}

/// See the description of `ashlar disk list --json`.
fn object(map: &ClusterMap, disk: &SharedDisk) -> Value {
    let (state, next) = standing(disk);
    let of = |node: Option<NodeId>| node.map(|node| reference(map, node));
    let servers: Vec<Value> = disk.servers.iter().map(|node| reference(map, *node)).collect();
    json!({
        "disk": SharedDisk::shown(disk.id),
        "target": disk.target.map(|target| target.0),
        "state": state,
        "server": of(disk.user()),
        "next": of(next),
        "servers": servers,
        "preferred": of(disk.preferred),
        "failed": of(disk.failed),
    })
}

fn print(map: &ClusterMap, disk: &SharedDisk) {
    let target = disk.target.map_or_else(|| "no target yet".to_owned(), |target| target.to_string());
    let named = |node: Option<NodeId>| node.map_or_else(|| "nobody".to_owned(), |node| name(map, node));
    let has = match (disk.state, standing(disk).1) {
        (DiskState::Free { .. }, None) => "free".to_owned(),
        (DiskState::Free { .. }, next) => format!("free, {} is about to have it", named(next)),
        (DiskState::Used { by }, _) => format!("at {}", name(map, by)),
        (DiskState::Leaving { from, .. }, next) => format!("at {}, goes to {}", name(map, from), named(next)),
        (DiskState::Fencing { from, .. }, next) => {
            format!("at {}, which {} fences", name(map, from), named(next))
        }
    };
    let servers: Vec<String> = disk.servers.iter().map(|node| name(map, *node)).collect();
    let failed =
        disk.failed.map_or_else(String::new, |node| format!("; {} could not use it", name(map, node)));
    say(format_args!(
        "{:<14} {has}; reached by {}, that of {}{failed}  {}",
        target,
        servers.join(", "),
        named(disk.preferred),
        SharedDisk::shown(disk.id)
    ));
}
