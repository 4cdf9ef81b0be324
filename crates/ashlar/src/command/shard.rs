//! `ashlar shard`: which metadata server answers for what, and moving that.

mod carry_out;
mod drain;
mod moves;
mod plan;
mod withdraw;

use super::node;
use super::presence;
use crate::cli::{ShardAction, ShardArgs, ShardChoice};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::away::Away;
use ashlar_console::object::node::name;
use ashlar_console::object::shard::{object, object_with_place};
use ashlar_rpc::remote::{RemoteShards, Routes};
use ashlar_rpc::wire::{MoveInfo, MoveState};
use ashlar_types::map::Shard;
use ashlar_types::{ClusterMap, Node, NodeId, Role, ShardId};
use carry_out::carry_out;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: how long a metadata server may take to tell what it moves.
const LIST_MAX: Duration = Duration::from_secs(3);
/// LIMIT: for how long it is looked whether shards change hands, and the time between two looks.
const SETTLING_MAX: Duration = Duration::from_secs(30);
const SETTLING_PAUSE: Duration = Duration::from_millis(500);
/// So many looks one after the other must have found the same.
const SETTLED_LOOKS: usize = 3;

pub fn run(args: &ShardArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        ShardAction::List { json } => list(&member, &map, *json)?,
        ShardAction::Show { id, json } => show(&member, &map, ShardId(*id), *json)?,
        ShardAction::Move { shards, to, json, .. } => {
            let shards = shards_chosen(&map, shards)?;
            match to {
                Some(to) => move_to(&member, &map, shards, to, *json)?,
                None => withdraw::withdraw(&member, &map, shards.as_deref(), *json)?,
            }
        }
        ShardAction::Moves { pause, resume, json } => {
            let is_paused = (*pause || *resume).then_some(*pause);
            moves::run(&member, &map, is_paused, *json)?;
        }
        ShardAction::Drain { name, json } => drain::drain(&member, &map, name, *json)?,
        ShardAction::Balance { json } => {
            let map = settled_map(&member);
            let left_out = leave_out(&map, &presence::ask(&member), None);
            carry_out(&member, plan::balance(&map, &left_out), *json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves shards to the node `name`, which is to answer, as those are that have them now.
fn move_to(
    member: &Member,
    map: &ClusterMap,
    shards: Option<Vec<ShardId>>,
    name: &str,
    json: bool,
) -> Result<()> {
    let to = metadata_server(map, name)?;
    let Some(shards) = shards else {
        bail!("`all` goes with --cancel alone; `ashlar shard drain NODE` moves all shards of a server");
    };
    let away = presence::ask(member);
    let from = |shard: &ShardId| map.primary(*shard).filter(|from| *from != to);
    let sources: BTreeSet<NodeId> = shards.iter().filter_map(from).collect();
    if !sources.is_empty() {
        require_there(map, &away, to)?;
    }
    for source in sources {
        require_there(map, &away, source)?;
        let Ok(moves) = RemoteShards::new(member.routes(), source).moves(Instant::now() + LIST_MAX) else {
            continue;
        };
        let is_elsewhere = |info: &&MoveInfo| {
            shards.contains(&info.shard) && info.to != to && !matches!(info.state, MoveState::Failed(_))
        };
        if let Some(info) = moves.iter().find(is_elsewhere) {
            bail!(
                "{} {}: wait until it is there, or withdraw that first (`ashlar shard move --cancel {}`)",
                info.shard,
                progress(map, info),
                info.shard.0
            );
        }
    }
    carry_out(member, plan::to_one(&shards, to), json)
}

/// The shards that are meant, all of which are there; `None`: all.
fn shards_chosen(map: &ClusterMap, choices: &[ShardChoice]) -> Result<Option<Vec<ShardId>>> {
    let mut shards = BTreeSet::new();
    for choice in choices {
        let ShardChoice::One(number) = *choice else { return Ok(None) };
        if map.primary(ShardId(number)).is_none() {
            bail!("there is no {}; `ashlar shard list` shows all", ShardId(number));
        }
        shards.insert(ShardId(number));
    }
    Ok(Some(shards.into_iter().collect()))
}

/// Refuses a metadata server that is away: a move would wait for it.
fn require_there(map: &ClusterMap, away: &Away, node: NodeId) -> Result<()> {
    if let Some(seconds) = away.seconds(node, Role::Meta) {
        bail!(
            "{} does not answer since {seconds} s: start its metadata server again first (`ashlar meta`)",
            name(map, node)
        );
    }
    Ok(())
}

/// Metadata servers that nothing can be moved to or from, for they are away; says which.
fn leave_out(map: &ClusterMap, away: &Away, but: Option<NodeId>) -> BTreeSet<NodeId> {
    let servers = map.listening(Role::Meta).map(|node| node.id).filter(|node| Some(*node) != but);
    let mut left_out = BTreeSet::new();
    for node in servers {
        if let Some(seconds) = away.seconds(node, Role::Meta) {
            eprintln!("ashlar: {} is left out: it does not answer since {seconds} s", name(map, node));
            left_out.insert(node);
        }
    }
    left_out
}

/// The map once no shard changes hands: a server that has just joined takes empty ones by itself, and what is planned meanwhile would come on top of them.
fn settled_map(member: &Member) -> Arc<ClusterMap> {
    // One for all looks: a second one's connections would take the place of the first one's.
    let (routes, away) = (member.routes(), presence::ask(member));
    let (mut map, mut same) = (member.map().read().clone(), 0);
    let deadline = Instant::now() + SETTLING_MAX;
    while Instant::now() < deadline {
        std::thread::sleep(SETTLING_PAUSE);
        let next = member.map().read().clone();
        // ORDER: asked after the map was looked at. What has come since is in the next one.
        let is_still = next.shards == map.shards && !is_any_on_its_way(&routes, &next, &away);
        same = if is_still { same + 1 } else { 0 };
        map = next;
        if same == SETTLED_LOOKS {
            break;
        }
    }
    map
}

/// Whether any shard is being moved, or is to be, but those that wait for a server which is away.
fn is_any_on_its_way(routes: &Arc<Routes>, map: &ClusterMap, away: &Away) -> bool {
    let is_there = |server: NodeId| away.seconds(server, Role::Meta).is_none();
    let comes = |info: &MoveInfo| {
        let is_under_way =
            matches!(info.state, MoveState::Waiting | MoveState::Copying | MoveState::Deciding);
        is_under_way && is_there(info.to)
    };
    map.listening(Role::Meta).filter(|server| is_there(server.id)).any(|server| {
        let moves = RemoteShards::new(routes.clone(), server.id).moves(Instant::now() + LIST_MAX);
        moves.is_ok_and(|moves| moves.iter().any(comes))
    })
}

/// The node `name`, which must serve metadata.
fn metadata_server(map: &ClusterMap, name: &str) -> Result<NodeId> {
    let node = node::find(map, name)?;
    if node.addresses(Role::Meta).is_empty() {
        bail!("{} serves no metadata; `ashlar meta` on it would", node.name);
    }
    Ok(node.id)
}

/// What those of `servers` move that are there and tell it.
fn moving<'m>(
    member: &Member,
    away: &Away,
    servers: impl Iterator<Item = &'m Node>,
) -> BTreeMap<ShardId, MoveInfo> {
    let mut moving: BTreeMap<ShardId, MoveInfo> = BTreeMap::new();
    let is_there = |server: &&Node| away.seconds(server.id, Role::Meta).is_none();
    for server in servers.filter(is_there) {
        match RemoteShards::new(member.routes(), server.id).moves(Instant::now() + LIST_MAX) {
            // One that was moved meanwhile may be told of by both.
            Ok(moves) => moving.extend(moves.into_iter().map(|info| (info.shard, info))),
            Err(error) => {
                tracing::warn!(server = %server.name, %error, "a metadata server does not tell what it moves")
            }
        }
    }
    moving
}

fn list(member: &Member, map: &ClusterMap, json: bool) -> Result<()> {
    let away = presence::ask(member);
    let moving = moving(member, &away, map.listening(Role::Meta));
    if json {
        let of = |shard: &Shard| object(map, shard, &away, moving.get(&shard.id));
        let shards: Vec<Value> = map.shards.iter().map(of).collect();
        return say_json(&shards);
    }
    for shard in &map.shards {
        print(map, shard, &away, moving.get(&shard.id));
    }
    Ok(())
}

fn show(member: &Member, map: &ClusterMap, id: ShardId, json: bool) -> Result<()> {
    let Some(shard) = map.shards.iter().find(|shard| shard.id == id) else {
        bail!("there is no {id}; `ashlar shard list` shows all");
    };
    let away = presence::ask(member);
    let moving = moving(member, &away, map.node(shard.primary).into_iter());
    if json {
        return say_json(&object_with_place(map, shard, &away, moving.get(&id)));
    }
    print(map, shard, &away, moving.get(&id));
    let addresses = map.node(shard.primary).map(|node| node.addresses(Role::Meta)).unwrap_or_default();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    say(format_args!("{:<12} at {}, as the map of {} says", "", addresses.join(", "), map.epoch));
    Ok(())
}

fn print(map: &ClusterMap, shard: &Shard, away: &Away, moving: Option<&MoveInfo>) {
    let moving = moving.map(|info| format!("  {}", progress(map, info))).unwrap_or_default();
    let (name, note) = (name(map, shard.primary), away.note(shard.primary, Role::Meta));
    say(format_args!("{:<12} {name}{note}{moving}", shard.id.to_string()));
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
        MoveState::Stalled(why) => format!("does not get to {to}: {why}"),
        MoveState::Failed(why) => format!("could not be moved to {to}: {why}"),
    }
}
