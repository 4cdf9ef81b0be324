//! Targets that are emptied, removed and filled, and the moves that come of it.

use super::super::{pool, presence};
use super::{Seen, find, objects, works};
use crate::cli::TargetAction;
use crate::cluster::Member;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::moves::{moving, object};
use ashlar_console::object::node;
use ashlar_console::object::pool::object as pool_object;
use ashlar_console::object::target::chains;
use ashlar_console::object::with;
use ashlar_console::object::work::objects as work_objects;
use ashlar_types::map::Target;
use ashlar_types::message::{ManagerRequest, MoveProgress};
use ashlar_types::{ChainId, ClusterMap, Role, TargetId};
use serde_json::json;
use std::collections::BTreeMap;

pub fn run(member: &Member, action: &TargetAction) -> Result<()> {
    let map = member.map().read().clone();
    match action {
        TargetAction::List { .. }
        | TargetAction::Show { .. }
        | TargetAction::Add { .. }
        | TargetAction::Lost { .. } => {
            bail!("that changes no target that is there")
        }
        TargetAction::Drain { ids, json } => drain(member, &map, ids, true, *json)?,
        TargetAction::Undrain { ids, json } => drain(member, &map, ids, false, *json)?,
        TargetAction::Remove { id, json } => remove(member, &map, *id, *json)?,
        TargetAction::Rebalance { pool, stop, json } => {
            let known = pool::find(&map, pool)?;
            let rebalancing = Some((known.id, !stop));
            member.ask(&ManagerRequest::SetMoves { is_paused: None, rate_mib_s: None, rebalancing })?;
            if *json {
                let is_told = |map: &ClusterMap| map.moves.rebalancing.contains(&known.id) != *stop;
                let map = member.map_after(is_told);
                say_json(&pool_object(&map, pool::find(&map, pool)?))?;
            }
        }
        TargetAction::Moves { pause: false, resume: false, rate: None, json } => {
            show(member, &map, *json)?;
        }
        TargetAction::Moves { pause, resume, rate, json } => {
            let is_paused = if *pause || *resume { Some(*pause) } else { None };
            member.ask(&ManagerRequest::SetMoves { is_paused, rate_mib_s: *rate, rebalancing: None })?;
            if *json {
                let map = member.map_after(|ClusterMap { moves, .. }| {
                    is_paused.is_none_or(|paused| moves.is_paused == paused)
                        && rate.is_none_or(|rate| moves.rate_mib_s == rate)
                });
                show(member, &map, true)?;
            }
        }
    }
    Ok(())
}

/// Has targets emptied, or not any more, and says what comes of it.
pub fn drain(member: &Member, map: &ClusterMap, ids: &[u32], is_draining: bool, json: bool) -> Result<()> {
    let mut asked: Vec<TargetId> = ids.iter().copied().map(TargetId).collect();
    asked.sort();
    asked.dedup();
    member.ask(&ManagerRequest::SetDraining { targets: asked.clone(), is_draining })?;
    if json {
        return show_drained(member, &asked, is_draining);
    }
    if is_draining { say_draining(member, map, &asked) } else { Ok(()) }
}

fn show_drained(member: &Member, asked: &[TargetId], is_draining: bool) -> Result<()> {
    let is_told = |map: &ClusterMap| {
        asked.iter().filter_map(|id| map.target(*id)).all(|target| target.is_draining == is_draining)
    };
    let map = member.map_after(is_told);
    let targets: Vec<Target> = asked.iter().filter_map(|id| map.target(*id)).cloned().collect();
    let seen = Seen::ask(member, &map, &targets);
    say_json(&objects(&map, &targets, &seen))
}

fn say_draining(member: &Member, map: &ClusterMap, asked: &[TargetId]) -> Result<()> {
    let away = presence::ask(member);
    for target in asked.iter().filter_map(|id| map.target(*id)) {
        let (id, moving) = (target.id, chains(map, target.id));
        let already = if target.is_draining { " already" } else { "" };
        let how = match away.seconds(target.node, Role::Storage) {
            _ if moving == 0 => format!("it is empty, and `ashlar target remove {}` takes it out", id.0),
            Some(_) => format!("{} to move once {} is back", counted(moving), node::name(map, target.node)),
            None => format!("{} to move", counted(moving)),
        };
        say(format_args!("{id} is being drained{already}: {how}"));
    }
    if map.moves.is_paused {
        say("moves are paused; `ashlar target moves --resume` has them go on");
    }
    say("`ashlar target moves` shows how far they are");
    Ok(())
}

fn counted(chains: usize) -> String {
    if chains == 1 { "1 chain is".to_owned() } else { format!("{chains} chains are") }
}

fn remove(member: &Member, map: &ClusterMap, id: u32, json: bool) -> Result<()> {
    let request = ManagerRequest::RemoveTarget { target: TargetId(id) };
    if json {
        let target = find(map, id)?;
        let removed = Seen::ask(member, map, std::slice::from_ref(target)).object(map, target);
        member.ask(&request)?;
        return say_json(&removed);
    }
    member.ask(&request)?;
    say(format_args!("removed target-{id}; its server lets go of its directory, now and for good"));
    Ok(())
}

fn show(member: &Member, map: &ClusterMap, is_json: bool) -> Result<()> {
    let moving = moving(map);
    let progress: BTreeMap<ChainId, MoveProgress> = works::progress(member, &works::sources(map))
        .into_values()
        .flatten()
        .map(|progress| (progress.chain, progress))
        .collect();
    let all = works::all(member, map);
    if is_json {
        return say_json(&with(object(map, &progress), json!({ "works": work_objects(map, &all) })));
    }
    if map.moves.is_paused {
        say("moves are paused; `ashlar target moves --resume` has them go on");
    }
    for (chain, from, to) in &moving {
        const MIB: f64 = (1u64 << 20) as f64;
        let how_far = match progress.get(chain) {
            Some(progress) => {
                let total = progress.bytes_total as f64 / MIB;
                let obstacle = if progress.obstacle.is_empty() {
                    String::new()
                } else {
                    format!(", {}", progress.obstacle)
                };
                format!("{:.1} of some {total:.1} MiB{obstacle}", progress.bytes_done as f64 / MIB)
            }
            None => "its server does not tell how far it is".to_owned(),
        };
        say(format_args!("{:<12} from {from} to {to}: {how_far}", chain.to_string()));
    }
    for work in all.iter().filter(|work| work.work.chains_left > 0) {
        let pool = map.pools.iter().find(|pool| pool.id == work.work.pool);
        let what = match (work.work.target, pool) {
            (Some(target), _) => format!("{target} is being drained"),
            (None, Some(pool)) => format!("the pool {} is being rebalanced", pool.name),
            (None, None) => continue,
        };
        say(format_args!("{what}: {}", work.text()));
    }
    let waiting: usize = map
        .targets
        .iter()
        .filter(|target| target.is_draining)
        .map(|target| map.chains_with(target.id).filter(|chain| chain.moving.is_none()).count())
        .sum();
    if waiting > 0 {
        say(format_args!("{waiting} more chains are to move"));
    }
    Ok(())
}
