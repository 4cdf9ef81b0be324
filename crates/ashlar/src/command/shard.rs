//! `ashlar shard`: which metadata server answers for what, and moving that.

mod carry_out;
mod plan;

use super::node;
use super::presence;
use crate::cli::{ShardAction, ShardArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::say;
use anyhow::{Result, bail};
use ashlar_console::object::node::name;
use ashlar_console::object::shard::object;
use ashlar_rpc::remote::RemoteShards;
use ashlar_rpc::wire::{MoveInfo, MoveState};
use ashlar_types::map::Shard;
use ashlar_types::{ClusterMap, Node, NodeId, Role, ShardId};
use carry_out::carry_out;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: how long a metadata server may take to tell what it moves.
const LIST_MAX: Duration = Duration::from_secs(3);
/// LIMIT: looks whether shards change hands, and the time between two.
const SETTLING_LOOKS: usize = 60;
const SETTLING_PAUSE: Duration = Duration::from_millis(500);
/// So many looks one after the other must have found the same.
const SETTLED_LOOKS: usize = 3;

pub fn run(args: &ShardArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        ShardAction::List { json } => list(&member, &map, *json)?,
        ShardAction::Move { shards, to, json } => {
            let to = metadata_server(&map, to)?;
            let shards: Vec<ShardId> = shards.iter().copied().map(ShardId).collect();
            if let Some(unknown) = shards.iter().find(|shard| map.primary(**shard).is_none()) {
                bail!("there is no {unknown}; `ashlar shard list` shows all");
            }
            carry_out(&member, plan::to_one(&shards, to), *json)?;
        }
        ShardAction::Drain { name, json } => {
            let from = node::find(&map, name)?.id;
            let Some(moves) = plan::drain(&map, from) else {
                bail!(
                    "{name} is the only metadata server; `ashlar token --role meta` makes a token for another one"
                );
            };
            carry_out(&member, moves, *json)?;
        }
        ShardAction::Balance { json } => carry_out(&member, plan::balance(&settled_map(&member)), *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The map once no shard changes hands: a server that has just joined takes empty ones by itself, and what is planned meanwhile would come on top of them.
fn settled_map(member: &Member) -> Arc<ClusterMap> {
    let (mut map, mut same) = (member.map().read().clone(), 0);
    for _ in 0..SETTLING_LOOKS {
        std::thread::sleep(SETTLING_PAUSE);
        let next = member.map().read().clone();
        same = if next.shards == map.shards { same + 1 } else { 0 };
        map = next;
        if same == SETTLED_LOOKS {
            break;
        }
    }
    map
}

/// The node `name`, which must serve metadata.
fn metadata_server(map: &ClusterMap, name: &str) -> Result<NodeId> {
    let node = node::find(map, name)?;
    if node.addresses(Role::Meta).is_empty() {
        bail!("{} serves no metadata; `ashlar meta` on it would", node.name);
    }
    Ok(node.id)
}

fn list(member: &Member, map: &ClusterMap, json: bool) -> Result<()> {
    let mut moving: BTreeMap<ShardId, MoveInfo> = BTreeMap::new();
    let away = presence::ask(member);
    let is_there = |server: &&Node| away.seconds(server.id, Role::Meta).is_none();
    for server in map.listening(Role::Meta).filter(is_there) {
        match RemoteShards::new(member.routes(), server.id).moves(Instant::now() + LIST_MAX) {
            // One that was moved meanwhile may be told of by both.
            Ok(moves) => moving.extend(moves.into_iter().map(|info| (info.shard, info))),
            Err(error) => {
                tracing::warn!(server = %server.name, %error, "a metadata server does not tell what it moves")
            }
        }
    }
    if json {
        let of = |shard: &Shard| object(map, shard, &away, moving.get(&shard.id));
        let shards: Vec<Value> = map.shards.iter().map(of).collect();
        say(format_args!("{}", serde_json::to_string_pretty(&shards)?));
        return Ok(());
    }
    for shard in &map.shards {
        let moving =
            moving.get(&shard.id).map(|info| format!("  {}", progress(map, info))).unwrap_or_default();
        let (name, note) = (name(map, shard.primary), away.note(shard.primary, Role::Meta));
        say(format_args!("{:<12} {name}{note}{moving}", shard.id.to_string()));
    }
    Ok(())
}

/// How far a shard is, for people.
fn progress(map: &ClusterMap, info: &MoveInfo) -> String {
    let to = name(map, info.to);
    match &info.state {
        MoveState::Waiting => format!("is to be moved to {to}"),
        MoveState::Copying if info.total > 0 => {
            format!("is being moved to {to}: {} of {} keys", info.sent, info.total)
        }
        MoveState::Copying => format!("is being moved to {to}"),
        MoveState::Deciding => format!("is about to be served by {to}"),
        MoveState::Failed(why) => format!("could not be moved to {to}: {why}"),
    }
}
