//! Moves that an administrator does not want any more.

use super::LIST_MAX;
use crate::cluster::Member;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node;
use ashlar_rpc::remote::RemoteShards;
use ashlar_rpc::wire::Withdrawal;
use ashlar_types::{ClusterMap, NodeId, Role, ShardId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Has `shards`, or all, stay where they are; whoever waits for a move is told.
///
/// # Errors
/// When it is too late for one of them, or a server that may be moving one does not answer. The others stay all the same.
pub fn withdraw(member: &Member, map: &ClusterMap, shards: Option<&[ShardId]>, is_json: bool) -> Result<()> {
    let mut wanted: BTreeMap<NodeId, Vec<ShardId>> = BTreeMap::new();
    match shards {
        // None named: all.
        None => wanted.extend(map.listening(Role::Meta).map(|node| (node.id, Vec::new()))),
        Some(shards) => shards.iter().for_each(|shard| {
            if let Some(primary) = map.primary(*shard) {
                wanted.entry(primary).or_default().push(*shard);
            }
        }),
    }
    let (mut told, mut silent) = (Vec::new(), Vec::new());
    for (server, shards) in wanted {
        match RemoteShards::new(member.routes(), server).withdraw(&shards, Instant::now() + LIST_MAX) {
            Ok(withdrawn) => told.extend(withdrawn),
            Err(error) => silent.push(format!("{}: {error}", node::name(map, server))),
        }
    }
    told.sort_by_key(|(shard, ..)| *shard);
    if is_json {
        let object = |(shard, to, outcome): &(ShardId, Option<NodeId>, Withdrawal)| {
            let to = to.map(|to| node::reference(map, to));
            json!({ "id": shard.0, "to": to, "outcome": outcome_name(*outcome) })
        };
        let all: Vec<Value> = told.iter().map(object).collect();
        say_json(&all)?;
    } else {
        told.iter().for_each(|(shard, to, outcome)| print(map, *shard, *to, *outcome));
        if told.is_empty() && silent.is_empty() {
            say("no shard is to be moved");
        }
    }
    if !silent.is_empty() {
        bail!(
            "not every metadata server could be told ({}); one that is started anew moves nothing by itself",
            silent.join("; ")
        );
    }
    let late: Vec<String> = told
        .iter()
        .filter(|(.., outcome)| *outcome == Withdrawal::TooLate)
        .map(|(shard, ..)| shard.to_string())
        .collect();
    if !late.is_empty() {
        bail!(
            "it is too late for {}: handing over has begun, and takes a moment; `ashlar shard list` shows where it is then",
            late.join(", ")
        );
    }
    Ok(())
}

fn outcome_name(outcome: Withdrawal) -> &'static str {
    match outcome {
        Withdrawal::Withdrawn => "withdrawn",
        Withdrawal::TooLate => "too late",
        Withdrawal::NotMoving => "not moving",
    }
}

/// Tells what has become of a move that was not wanted any more.
pub fn print(map: &ClusterMap, shard: ShardId, to: Option<NodeId>, outcome: Withdrawal) {
    let to = to.map(|to| node::name(map, to)).unwrap_or_default();
    match outcome {
        Withdrawal::Withdrawn => say(format_args!("{shard} stays, and does not go to {to}")),
        Withdrawal::TooLate => say(format_args!("{shard} is being handed over to {to}")),
        Withdrawal::NotMoving => say(format_args!("{shard} is not on its way anywhere")),
    }
}
