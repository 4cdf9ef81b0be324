//! `ashlar copies`: copies of metadata servers on other servers.

mod lost;

use super::node;
use crate::cli::{CopiesAction, CopiesArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use ashlar_console::object::node::{name, reference};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, CopyGroup, CopyHost, CopyNotes, NodeId, Role};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &CopiesArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        CopiesAction::List { json } => list(&member, &map, *json)?,
        CopiesAction::Lost { machine, accept_loss, json } => {
            lost::run(&member, &map, machine, *accept_loss, *json)?
        }
        CopiesAction::Set { server, count, json } => {
            let known = node::find(&map, server)?;
            let hosts = told(&member)?.1.len();
            member.ask(&ManagerRequest::SetCopies { server: known.id, wanted: *count })?;
            if *json {
                let notes = told(&member)?.0;
                let group = notes.group(known.id).cloned().unwrap_or_else(|| CopyGroup::new(known.id, 1));
                say_json(&object(&map, &group))?;
            } else {
                let copies = if *count == 1 { "copy" } else { "copies" };
                say(format_args!(
                    "{count} {copies} of the metadata of {}, as soon as they are made",
                    known.name
                ));
            }
            if hosts < usize::from(*count) {
                eprintln!(
                    "ashlar: only {hosts} servers can keep copies so far: start `ashlar meta` on further machines"
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All copies, and which servers can keep some.
fn told(member: &Member) -> Result<(CopyNotes, Vec<CopyHost>)> {
    match member.ask(&ManagerRequest::Copies).context("copies are not known")? {
        ManagerReply::Copies { notes, hosts, .. } => Ok((notes, hosts)),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

fn list(member: &Member, map: &ClusterMap, json: bool) -> Result<()> {
    let notes = told(member)?.0;
    if json {
        let groups: Vec<Value> = notes.groups.iter().map(|group| object(map, group)).collect();
        return say_json(&groups);
    }
    notes.groups.iter().for_each(|group| print(map, group));
    Ok(())
}

/// See the description of `ashlar copies list --json`.
fn object(map: &ClusterMap, group: &CopyGroup) -> Value {
    let references =
        |nodes: &[NodeId]| -> Vec<Value> { nodes.iter().map(|node| reference(map, *node)).collect() };
    let known = group.membership.as_ref();
    json!({
        "server": reference(map, group.server),
        "wanted": group.wanted,
        "serves": known.map(|known| reference(map, known.primary())),
        "copies": known.map(|known| references(&known.in_sync)).unwrap_or_default(),
        "catching_up": known.map(|known| references(&known.catching_up)).unwrap_or_default(),
        "epoch": known.map(|known| known.epoch.0),
    })
}

fn print(map: &ClusterMap, group: &CopyGroup) {
    let named = |nodes: &[NodeId]| -> String {
        nodes.iter().map(|node| name(map, *node)).collect::<Vec<_>>().join(", ")
    };
    let server = name(map, group.server);
    let Some(known) = &group.membership else {
        return say(format_args!("{server:<24} {} copies wanted, none yet", group.wanted));
    };
    let short = if known.in_sync.len() < usize::from(group.wanted) {
        format!(" of {} wanted", group.wanted)
    } else {
        String::new()
    };
    let joining = match known.catching_up.is_empty() {
        true => String::new(),
        false => format!("; catching up: {}", named(&known.catching_up)),
    };
    say(format_args!(
        "{server:<24} served by {}, copies on {}{short}{joining}",
        name(map, known.primary()),
        named(&known.in_sync)
    ));
}
