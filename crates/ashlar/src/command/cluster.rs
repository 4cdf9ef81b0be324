//! The commands of a file system of many servers.

use crate::cli::{
    InitArgs, JoinArgs, ManagerArgs, MetaArgs, MountArgs, NodeAction, NodeArgs, PromoteArgs, StorageArgs,
    TokenArgs,
};
use crate::cluster::{self, Member, NodeDirectory};
use crate::terminal::say;
use anyhow::{Context, Result, bail};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Role};
use std::process::ExitCode;

pub fn init(args: &InitArgs) -> Result<ExitCode> {
    cluster::init::init(args).map(|()| ExitCode::SUCCESS)
}

pub fn promote(args: &PromoteArgs) -> Result<ExitCode> {
    cluster::promote::promote(args).map(|()| ExitCode::SUCCESS)
}

pub fn join(args: &JoinArgs) -> Result<ExitCode> {
    cluster::join::join(args).map(|()| ExitCode::SUCCESS)
}

pub fn manager(args: &ManagerArgs) -> Result<ExitCode> {
    cluster::run_manager(args).map(|()| ExitCode::SUCCESS)
}

pub fn meta(args: &MetaArgs) -> Result<ExitCode> {
    cluster::run_meta(args).map(|()| ExitCode::SUCCESS)
}

pub fn storage(args: &StorageArgs) -> Result<ExitCode> {
    cluster::run_storage(args).map(|()| ExitCode::SUCCESS)
}

pub fn mount(args: &MountArgs) -> Result<ExitCode> {
    cluster::run_mount(args).map(|()| ExitCode::SUCCESS)
}

pub fn token(args: &TokenArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let request = ManagerRequest::NewToken { roles: args.role, valid_s: args.valid_minutes * 60 };
    let ManagerReply::Token(text) = member.ask(&request)? else {
        bail!("the manager gave an answer of the wrong kind");
    };
    say(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

pub fn node(args: &NodeArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        NodeAction::List { json } => list(&map, *json)?,
        NodeAction::Remove { name } => {
            let known = map.nodes.iter().find(|node| node.name == *name || node.id.0.to_string() == *name);
            let known = known.with_context(|| {
                format!("there is no node `{}`; `ashlar node list` shows all", name.escape_debug())
            })?;
            member.ask(&ManagerRequest::RemoveNode { node: known.id })?;
            say(format_args!("removed {}, {}", known.name, known.id));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(map: &ClusterMap, json: bool) -> Result<()> {
    if json {
        let nodes: Vec<serde_json::Value> = map
            .nodes
            .iter()
            .map(|node| {
                let listening: serde_json::Map<String, serde_json::Value> = node
                    .listening
                    .iter()
                    .map(|at| (at.role.to_string(), serde_json::json!(at.addresses)))
                    .collect();
                let roles: Vec<&str> = node.roles.iter().map(Role::name).collect();
                serde_json::json!({ "id": node.id.0, "name": node.name, "roles": roles, "listening": listening })
            })
            .collect();
        say(format_args!("{}", serde_json::to_string_pretty(&nodes)?));
        return Ok(());
    }
    for node in &map.nodes {
        say(format_args!("{:<10} {:<24} {}", node.id.to_string(), node.name, node.roles));
        for at in &node.listening {
            let addresses: Vec<String> = at.addresses.iter().map(ToString::to_string).collect();
            say(format_args!("{:>35} {}: {}", "", at.role, addresses.join(", ")));
        }
    }
    Ok(())
}
