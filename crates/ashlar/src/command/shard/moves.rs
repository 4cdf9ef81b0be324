//! Moves of shards: shown, paused, resumed.

use super::{LIST_MAX, progress};
use crate::cluster::Member;
use crate::command::{node, presence};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result, bail};
use ashlar_console::object::shard::move_object;
use ashlar_console::object::with;
use ashlar_rpc::remote::RemoteShards;
use ashlar_rpc::wire::MoveInfo;
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, NodeId, Role};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// LIMIT: for how long a manager is waited for that tells how shards are moved.
const ANSWER_MAX: Duration = Duration::from_secs(10);

pub fn run(member: &Member, map: &ClusterMap, is_paused: Option<bool>, json: bool) -> Result<()> {
    if let Some(is_paused) = is_paused {
        member.ask(&ManagerRequest::SetShardMoves { is_paused })?;
        if !json {
            return Ok(());
        }
    }
    let is_paused = are_paused(member)?;
    let (moves, unanswered) = all(member, map);
    if json {
        let one = |(server, info): &(NodeId, MoveInfo)| {
            let place = json!({ "id": info.shard.0, "node": node::reference(map, *server) });
            with(place, move_object(map, info))
        };
        let moves: Vec<Value> = moves.iter().map(one).collect();
        let unanswered: Vec<Value> = unanswered.iter().map(|server| node::reference(map, *server)).collect();
        return say_json(&json!({ "is_paused": is_paused, "moves": moves, "unanswered": unanswered }));
    }
    if is_paused {
        say("moves of shards are paused; `ashlar shard moves --resume` has them go on");
    }
    for (server, info) in &moves {
        say(format_args!(
            "{:<12} {} {}",
            info.shard.to_string(),
            node::name(map, *server),
            progress(map, info)
        ));
    }
    for server in unanswered {
        eprintln!("ashlar: {} does not tell what it moves", node::name(map, server));
    }
    Ok(())
}

/// Whether moves of shards are paused.
///
/// # Errors
/// When no manager tells.
pub fn are_paused(member: &Member) -> Result<bool> {
    let told = member.managers.call(&ManagerRequest::ShardMoves, Instant::now() + ANSWER_MAX);
    match told.context("the manager")? {
        ManagerReply::ShardMoves { is_paused } => Ok(is_paused),
        _ => bail!("the manager gave an answer of the wrong kind"),
    }
}

/// What each metadata server moves, in the order in which it does, and who has not told.
fn all(member: &Member, map: &ClusterMap) -> (Vec<(NodeId, MoveInfo)>, Vec<NodeId>) {
    let (away, routes) = (presence::ask(member), member.routes());
    let (mut moves, mut unanswered) = (Vec::new(), Vec::new());
    for server in map.listening(Role::Meta).map(|server| server.id) {
        let is_there = away.seconds(server, Role::Meta).is_none();
        let ask = || RemoteShards::new(routes.clone(), server).moves(Instant::now() + LIST_MAX).ok();
        match is_there.then(ask).flatten() {
            Some(told) => moves.extend(told.into_iter().map(|info| (server, info))),
            None => unanswered.push(server),
        }
    }
    (moves, unanswered)
}
