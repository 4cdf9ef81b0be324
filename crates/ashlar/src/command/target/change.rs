//! Targets that are emptied, removed and filled, and the moves that come of it.

use super::super::{pool, presence};
use super::ask_each;
use crate::cli::TargetAction;
use crate::cluster::Member;
use crate::terminal::say;
use anyhow::{Result, bail};
use ashlar_console::object::moves::{moving, object};
use ashlar_console::object::node;
use ashlar_console::object::target::chains;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{ManagerRequest, MoveProgress, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ClusterMap, Role, TargetId};
use std::collections::BTreeMap;

pub fn run(member: &Member, action: &TargetAction) -> Result<()> {
    let map = member.map().read().clone();
    match action {
        TargetAction::List { .. } | TargetAction::Show { .. } => bail!("that changes nothing"),
        TargetAction::Drain { ids } => {
            drain(member, &map, ids)?;
        }
        TargetAction::Undrain { ids } => set_draining(member, ids, false)?,
        TargetAction::Remove { id } => {
            member.ask(&ManagerRequest::RemoveTarget { target: TargetId(*id) })?;
            say(format_args!(
                "removed target-{id}; leave its directory out when its server is started again"
            ));
        }
        TargetAction::Rebalance { pool, stop } => {
            let rebalancing = Some((pool::find(&map, pool)?.id, !stop));
            member.ask(&ManagerRequest::SetMoves { is_paused: None, rate_mib_s: None, rebalancing })?;
        }
        TargetAction::Moves { pause: false, resume: false, rate: None, json } => {
            show(member, &map, *json)?;
        }
        TargetAction::Moves { pause, resume, rate, .. } => {
            let is_paused = if *pause || *resume { Some(*pause) } else { None };
            member.ask(&ManagerRequest::SetMoves { is_paused, rate_mib_s: *rate, rebalancing: None })?;
        }
    }
    Ok(())
}

/// Has targets emptied, and says what comes of it.
pub fn drain(member: &Member, map: &ClusterMap, ids: &[u32]) -> Result<()> {
    set_draining(member, ids, true)?;
    let away = presence::ask(member);
    let mut asked: Vec<TargetId> = ids.iter().copied().map(TargetId).collect();
    asked.sort();
    asked.dedup();
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

/// Has targets emptied, or not any more.
pub fn set_draining(member: &Member, ids: &[u32], is_draining: bool) -> Result<()> {
    let targets = ids.iter().copied().map(TargetId).collect();
    member.ask(&ManagerRequest::SetDraining { targets, is_draining }).map(drop)
}

fn show(member: &Member, map: &ClusterMap, is_json: bool) -> Result<()> {
    let moving = moving(map);
    let mut sources: Vec<TargetId> = moving.iter().map(|(_, from, _)| *from).collect();
    sources.dedup();
    let sources: Vec<_> = map.targets.iter().filter(|target| sources.contains(&target.id)).cloned().collect();
    let progress: BTreeMap<ChainId, MoveProgress> =
        ask_each(member, &sources, |storage, target| {
            match storage.call(&StorageRequest::Moves { target }, Payload::None) {
                Ok(StorageReply::Moves(moves)) => Some(moves),
                _ => None,
            }
        })
        .into_values()
        .flatten()
        .map(|progress| (progress.chain, progress))
        .collect();
    if is_json {
        let shown = object(map, &progress);
        say(format_args!("{}", serde_json::to_string_pretty(&shown)?));
        return Ok(());
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
    let waiting: usize = map
        .targets
        .iter()
        .filter(|target| target.is_draining)
        .map(|target| map.chains_at(target.id).filter(|chain| chain.moving.is_none()).count())
        .sum();
    if waiting > 0 {
        say(format_args!("{waiting} more chains are to move"));
    }
    Ok(())
}
