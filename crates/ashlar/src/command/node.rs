//! `ashlar node`: the machines of a file system of many servers.

use super::{presence, target};
use crate::cli::{NodeAction, NodeArgs, PolicyArgs, SubtreeChoice};
use crate::cluster::{Member, NodeDirectory, subtree};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use ashlar_console::object::away::Away;
use ashlar_console::object::node::{domain, object, object_with_holdings};
pub use ashlar_console::object::node::{name, reference};
use ashlar_types::message::ManagerRequest;
use ashlar_types::{ClusterMap, Node, NodePolicy, Role};
use serde_json::Value;
use std::process::ExitCode;

pub fn run(args: &NodeArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        NodeAction::List { json: true } => {
            let away = presence::ask(&member);
            let nodes: Vec<Value> = map.nodes.iter().map(|node| object(node, &away)).collect();
            say_json(&nodes)?;
        }
        NodeAction::List { json: false } => {
            let away = presence::ask(&member);
            map.nodes.iter().for_each(|node| print(node, &away));
        }
        NodeAction::Show { name, json: true } => {
            say_json(&object_with_holdings(&map, find(&map, name)?, &presence::ask(&member)))?;
        }
        NodeAction::Show { name, json: false } => {
            let node = find(&map, name)?;
            print(node, &presence::ask(&member));
            say(format_args!("{:>35} as a client: {}", "", node.policy));
            for target in map.targets.iter().filter(|target| target.node == node.id) {
                say(format_args!("{:>35} {} {}", "", target.id, target.path.escape_debug()));
            }
        }
        NodeAction::Policy { name, policy, json } => set_policy(&member, find(&map, name)?, policy, *json)?,
        NodeAction::Domain { name, domain, json } => {
            set_domain(&member, find(&map, name)?, domain.as_deref(), *json)?;
        }
        NodeAction::Drain { name, json } => drain(&member, &map, name, true, *json)?,
        NodeAction::Undrain { name, json } => drain(&member, &map, name, false, *json)?,
        NodeAction::Remove { name, yes_this_one, json } => {
            let known = find(&map, name)?;
            // Asked before: this machine may be the one that is removed.
            let removed = json.then(|| object(known, &presence::ask(&member)));
            member.ask(&ManagerRequest::RemoveNode { node: known.id, is_own_meant: *yes_this_one })?;
            match removed {
                Some(removed) => say_json(&removed)?,
                None => say(format_args!("removed {}, {}", known.name, known.id)),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes what a node may do as a client as far as `args` say so, and shows it.
fn set_policy(member: &Member, known: &Node, args: &PolicyArgs, json: bool) -> Result<()> {
    let mut next = args.applied_to(known.policy.clone());
    if !args.is_empty() {
        choose_subtree(member, args, &mut next)?;
        let seen = known.policy.clone();
        member.ask(&ManagerRequest::SetPolicy { node: known.id, seen, policy: next.clone() })?;
    }
    match (json, args.is_empty()) {
        (true, _) => say_changed(member, known, |node| node.policy == next)?,
        (false, true) => say(&next),
        (false, false) => say(format_args!("{}: {next}", known.name)),
    }
    Ok(())
}

/// Puts a node into the failure domain `wanted`, if one is named, and shows the one that it is in.
fn set_domain(member: &Member, known: &Node, wanted: Option<&str>, json: bool) -> Result<()> {
    let next = match wanted {
        Some("none") => String::new(),
        Some(wanted) => wanted.to_owned(),
        None => known.domain.clone(),
    };
    if wanted.is_some() {
        member.ask(&ManagerRequest::SetDomain { node: known.id, domain: next.clone() })?;
    }
    match (json, wanted) {
        (true, _) => say_changed(member, known, |node| node.domain == next)?,
        (false, None) => say(domain(known).unwrap_or("none")),
        (false, Some(wanted)) => say(format_args!("{}: {wanted}", known.name)),
    }
    Ok(())
}

/// Shows a node as it is once the map tells what has changed.
fn say_changed(member: &Member, known: &Node, is_changed: impl Fn(&Node) -> bool) -> Result<()> {
    let map = member.map_after(|map| map.node(known.id).is_none_or(&is_changed));
    say_json(&object(map.node(known.id).unwrap_or(known), &presence::ask(member)))
}

/// Puts the subtree into `policy` that `args` name.
pub fn choose_subtree(member: &Member, args: &PolicyArgs, policy: &mut NodePolicy) -> Result<()> {
    match &args.subtree {
        None => {}
        Some(SubtreeChoice::Whole) => policy.subtree = None,
        Some(SubtreeChoice::Path(path)) => policy.subtree = subtree::choose(member, path)?,
    }
    Ok(())
}

/// Has all targets of a node emptied, or not any more.
fn drain(member: &Member, map: &ClusterMap, name: &str, is_draining: bool, json: bool) -> Result<()> {
    let known = find(map, name)?;
    let targets = map.targets.iter().filter(|target| target.node == known.id);
    let ids: Vec<u32> = targets.map(|target| target.id.0).collect();
    if ids.is_empty() && map.shards.iter().any(|shard| shard.primary == known.id) {
        bail!("{0} has no target; `ashlar shard drain {0}` has it serve no metadata any more", known.name);
    }
    if ids.is_empty() {
        bail!("{} has no target", known.name);
    }
    target::drain(member, map, &ids, is_draining, json)
}

/// The node that is called `name`, or has that number.
pub fn find<'m>(map: &'m ClusterMap, name: &str) -> Result<&'m Node> {
    let known = map.nodes.iter().find(|node| node.name == name || node.id.0.to_string() == name);
    known.with_context(|| format!("there is no node `{}`; `ashlar node list` shows all", name.escape_debug()))
}

fn print(node: &Node, away: &Away) {
    let domain = domain(node).map_or(String::new(), |domain| format!("  in {domain}"));
    say(format_args!("{:<10} {:<24} {}{domain}", node.id.to_string(), node.name, node.roles));
    for role in Role::ALL {
        let since = away.note(node.id, role);
        let all =
            [(node.addresses(role), "", since.as_str()), (node.management(role), ", for management", "")];
        for (addresses, note, since) in all {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            if !addresses.is_empty() {
                say(format_args!("{:>35} {role}{note}: {}{since}", "", addresses.join(", ")));
            }
        }
    }
}
