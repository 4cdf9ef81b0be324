//! `ashlar pool`: pools of targets.

use crate::cli::{PoolAction, PoolArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::say;
use anyhow::{Context, Result};
use ashlar_console::object::pool::{chains, object, targets};
use ashlar_types::map::Pool;
use ashlar_types::message::ManagerRequest;
use ashlar_types::{ClusterMap, Role};
use serde_json::Value;
use std::process::ExitCode;

pub fn run(args: &PoolArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    match &args.action {
        PoolAction::List { json } => list(&member.map().read().clone(), *json)?,
        PoolAction::Add { name } => {
            member.ask(&ManagerRequest::NewPool { name: name.clone() })?;
            say(format_args!("there is a pool {name}"));
        }
        PoolAction::Remove { name } => {
            member.ask(&ManagerRequest::RemovePool { name: name.clone() })?;
            say(format_args!("removed the pool {name}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool of this name.
pub fn find<'m>(map: &'m ClusterMap, name: &str) -> Result<&'m Pool> {
    map.pools
        .iter()
        .find(|pool| pool.name == name)
        .with_context(|| format!("there is no pool `{}`; `ashlar pool list` shows all", name.escape_debug()))
}

fn list(map: &ClusterMap, json: bool) -> Result<()> {
    if json {
        let pools: Vec<Value> = map.pools.iter().map(|pool| object(map, pool)).collect();
        say(format_args!("{}", serde_json::to_string_pretty(&pools)?));
        return Ok(());
    }
    for pool in &map.pools {
        let names: Vec<String> = targets(map, pool).iter().map(ToString::to_string).collect();
        let note = if map.moves.rebalancing.contains(&pool.id) { ", being rebalanced" } else { "" };
        say(format_args!(
            "{:<24} {:>4} chains, targets {}{note}",
            pool.name,
            chains(map, pool),
            names.join(" ")
        ));
    }
    Ok(())
}
