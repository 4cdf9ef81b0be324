//! `ashlar node`: the machines of a file system of many servers.

use super::{presence, target};
use crate::cli::{NodeAction, NodeArgs, PolicyArgs, SubtreeChoice};
use crate::cluster::{Member, NodeDirectory, subtree};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_console::object::away::Away;
use ashlar_console::object::node::{domain, object};
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
            say(format_args!("{}", serde_json::to_string_pretty(&nodes)?));
        }
        NodeAction::List { json: false } => {
            let away = presence::ask(&member);
            map.nodes.iter().for_each(|node| print(node, &away));
        }
        NodeAction::Show { name, json: true } => {
            let shown = object(find(&map, name)?, &presence::ask(&member));
            say(format_args!("{}", serde_json::to_string_pretty(&shown)?));
        }
        NodeAction::Show { name, json: false } => {
            let node = find(&map, name)?;
            print(node, &presence::ask(&member));
            say(format_args!("{:>35} as a client: {}", "", node.policy));
            for target in map.targets.iter().filter(|target| target.node == node.id) {
                say(format_args!("{:>35} {} {}", "", target.id, target.path.escape_debug()));
            }
        }
        NodeAction::Policy { name, policy } if policy.is_empty() => {
            say(format_args!("{}", find(&map, name)?.policy));
        }
        NodeAction::Policy { name, policy } => {
            let known = find(&map, name)?;
            let seen = known.policy.clone();
            let mut next = policy.applied_to(seen.clone());
            choose_subtree(&member, policy, &mut next)?;
            let policy = next;
            member.ask(&ManagerRequest::SetPolicy { node: known.id, seen, policy: policy.clone() })?;
            say(format_args!("{}: {policy}", known.name));
        }
        NodeAction::Domain { name, domain: None } => {
            say(format_args!("{}", domain(find(&map, name)?).unwrap_or("none")));
        }
        NodeAction::Domain { name, domain: Some(wanted) } => {
            let known = find(&map, name)?;
            let domain = if wanted == "none" { String::new() } else { wanted.clone() };
            member.ask(&ManagerRequest::SetDomain { node: known.id, domain })?;
            say(format_args!("{}: {wanted}", known.name));
        }
        NodeAction::Drain { name } => drain(&member, &map, name, true)?,
        NodeAction::Undrain { name } => drain(&member, &map, name, false)?,
        NodeAction::Remove { name, yes_this_one } => {
            let known = find(&map, name)?;
            member.ask(&ManagerRequest::RemoveNode { node: known.id, is_own_meant: *yes_this_one })?;
            say(format_args!("removed {}, {}", known.name, known.id));
        }
    }
    Ok(ExitCode::SUCCESS)
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
fn drain(member: &Member, map: &ClusterMap, name: &str, is_draining: bool) -> Result<()> {
    let known = find(map, name)?;
    let targets = map.targets.iter().filter(|target| target.node == known.id);
    let ids: Vec<u32> = targets.map(|target| target.id.0).collect();
    if ids.is_empty() && map.shards.iter().any(|shard| shard.primary == known.id) {
        bail!("{0} has no target; `ashlar shard drain {0}` has it serve no metadata any more", known.name);
    }
    if ids.is_empty() {
        bail!("{} has no target", known.name);
    }
    if is_draining { target::drain(member, map, &ids) } else { target::set_draining(member, &ids, false) }
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
