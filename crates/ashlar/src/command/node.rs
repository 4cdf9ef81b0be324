//! `ashlar node`: the machines of a file system of many servers.

use crate::cli::{NodeAction, NodeArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::say;
use anyhow::{Context, Result};
use ashlar_types::message::ManagerRequest;
use ashlar_types::policy::{IdMap, Outside, Squash};
use ashlar_types::{ClusterMap, Node, NodeId, NodePolicy, Role};
use serde_json::{Map, Value, json};
use std::process::ExitCode;

pub fn run(args: &NodeArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        NodeAction::List { json: true } => {
            let nodes: Vec<Value> = map.nodes.iter().map(object).collect();
            say(format_args!("{}", serde_json::to_string_pretty(&nodes)?));
        }
        NodeAction::List { json: false } => map.nodes.iter().for_each(print),
        NodeAction::Show { name, json: true } => {
            say(format_args!("{}", serde_json::to_string_pretty(&object(find(&map, name)?))?));
        }
        NodeAction::Show { name, json: false } => {
            let node = find(&map, name)?;
            print(node);
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
            let policy = policy.applied_to(seen.clone());
            member.ask(&ManagerRequest::SetPolicy { node: known.id, seen, policy: policy.clone() })?;
            say(format_args!("{}: {policy}", known.name));
        }
        NodeAction::Remove { name } => {
            let known = find(&map, name)?;
            member.ask(&ManagerRequest::RemoveNode { node: known.id })?;
            say(format_args!("removed {}, {}", known.name, known.id));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn find<'m>(map: &'m ClusterMap, name: &str) -> Result<&'m Node> {
    let known = map.nodes.iter().find(|node| node.name == name || node.id.0.to_string() == name);
    known.with_context(|| format!("there is no node `{}`; `ashlar node list` shows all", name.escape_debug()))
}

/// A node as other objects refer to it: its number, and its name, null for one that was removed.
pub fn reference(map: &ClusterMap, node: NodeId) -> Value {
    json!({ "id": node.0, "name": map.node(node).map(|known| known.name.as_str()) })
}

/// The name of a node, for people.
pub fn name(map: &ClusterMap, node: NodeId) -> String {
    map.node(node).map_or_else(|| node.to_string(), |known| known.name.clone())
}

fn object(node: &Node) -> Value {
    let listening: Map<String, Value> =
        node.listening.iter().map(|at| (at.role.to_string(), json!(at.addresses))).collect();
    let roles: Vec<&str> = node.roles.iter().map(Role::name).collect();
    let policy = policy_object(&node.policy);
    json!({ "id": node.id.0, "name": node.name, "roles": roles, "listening": listening, "policy": policy })
}

fn policy_object(policy: &NodePolicy) -> Value {
    let ranges = |map: &IdMap| -> Vec<Value> {
        map.0
            .iter()
            .map(|range| json!({ "first": range.first, "last": range.last, "server": range.server }))
            .collect()
    };
    json!({
        "squash": match policy.squash {
            Squash::Root => "root",
            Squash::All => "all",
            Squash::Nobody => "none",
        },
        "anonymous": { "uid": policy.anonymous.uid, "gid": policy.anonymous.gid },
        "map_uid": ranges(&policy.uids),
        "map_gid": ranges(&policy.gids),
        "outside": match policy.outside {
            Outside::Refuse => "refuse",
            Outside::Squash => "squash",
        },
        "read_only": policy.read_only,
    })
}

fn print(node: &Node) {
    say(format_args!("{:<10} {:<24} {}", node.id.to_string(), node.name, node.roles));
    for at in &node.listening {
        let addresses: Vec<String> = at.addresses.iter().map(ToString::to_string).collect();
        say(format_args!("{:>35} {}: {}", "", at.role, addresses.join(", ")));
    }
}
