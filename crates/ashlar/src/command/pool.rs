//! `ashlar pool`: pools of targets.

use super::target;
use crate::cli::{PoolAction, PoolArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result};
use ashlar_console::object::pool::{by_copies, chains, moving, object, object_with_members, targets, total};
use ashlar_console::object::{rebuild, with, work};
use ashlar_types::map::{Pool, Target};
use ashlar_types::message::ManagerRequest;
use ashlar_types::{ClusterMap, Role};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(args: &PoolArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    match &args.action {
        PoolAction::List { json } => list(&member.map().read().clone(), *json)?,
        PoolAction::Show { name, json } => show(&member, name, *json)?,
        PoolAction::Add { name, json } => {
            member.ask(&ManagerRequest::NewPool { name: name.clone() })?;
            if *json {
                let map = member.map_after(|map| find(map, name).is_ok());
                let made = find(&map, name)
                    .ok()
                    .context("the pool is there, but no map that tells its number has come")?;
                say_json(&object(&map, made))?;
            } else {
                say(format_args!("there is a pool {name}"));
            }
        }
        PoolAction::Copies { name, count, json } => {
            member.ask(&ManagerRequest::CopyPool { pool: name.clone(), copies: *count })?;
            let has_some = |map: &ClusterMap| {
                find(map, name).is_ok_and(|pool| by_copies(map, pool).iter().any(|set| set.copies == *count))
            };
            let map = member.map_after(has_some);
            let pool = find(&map, name)?;
            if *json {
                say_json(&object(&map, pool))?;
            } else {
                let made = by_copies(&map, pool).into_iter().find(|set| set.copies == *count);
                let chains = made.context("no map that tells of the chains has come")?.chains;
                say(format_args!("the pool {name} has {chains} chains of {count} copies"));
            }
        }
        PoolAction::Remove { name, json } => {
            let map = member.map().read().clone();
            let removed = if *json { Some(object(&map, find(&map, name)?)) } else { None };
            member.ask(&ManagerRequest::RemovePool { name: name.clone() })?;
            match removed {
                Some(removed) => say_json(&removed)?,
                None => say(format_args!("removed the pool {name}")),
            }
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
        return say_json(&pools);
    }
    map.pools.iter().for_each(|pool| print(map, pool));
    Ok(())
}

fn print(map: &ClusterMap, pool: &Pool) {
    let names: Vec<String> = targets(map, pool).iter().map(ToString::to_string).collect();
    let note = if map.moves.rebalancing.contains(&pool.id) { ", being rebalanced" } else { "" };
    say(format_args!("{:<24} {:>4} chains, targets {}{note}", pool.name, chains(map, pool), names.join(" ")));
    for set in by_copies(map, pool).iter().filter(|set| set.copies > 1) {
        let short = if set.short > 0 { format!(", {} with fewer", set.short) } else { String::new() };
        say(format_args!("{:>24} {:>4} of them with {} copies{short}", "", set.chains, set.copies));
    }
}

/// Shows a pool, its targets and the space of those whose server tells it.
fn show(member: &Member, name: &str, json: bool) -> Result<()> {
    let map = member.map().read().clone();
    let pool = find(&map, name)?;
    let members: Vec<Target> = map.targets.iter().filter(|target| target.pool == pool.id).cloned().collect();
    let seen = target::Seen::ask(member, &map, &members);
    let (away, spaces) = (&seen.away, &seen.spaces);
    let rebuild = target::works::rebuilds(member, &map, Some(pool.id)).0.pop();
    if json {
        let rebalance = seen.of_pool(pool.id).map(work::object);
        let rebuild = rebuild.map(|known| rebuild::object(&known));
        let known = object_with_members(&map, pool, away, spaces);
        return say_json(&with(
            known,
            json!({ "rebalance": rebalance, "rebuild": rebuild, "members": target::objects(&map, &members, &seen) }),
        ));
    }
    print(&map, pool);
    if let Some(work) = seen.of_pool(pool.id) {
        say(format_args!("{:>24} {}", "", work.text()));
    }
    if let Some(rebuild) = rebuild {
        say(format_args!("{:>24} {}", "", rebuild.text()));
    }
    if moving(&map, pool) > 0 {
        say(format_args!("{:>24} {:>4} of them moving", "", moving(&map, pool)));
    }
    let (total, free) = total(spaces.values());
    let (told, all) = (spaces.len(), members.len());
    say(format_args!("{:>24} {} on {told} of {all} targets", "", target::space_text(&(total, free))));
    members.iter().for_each(|member| target::print(&map, member, &seen));
    Ok(())
}
