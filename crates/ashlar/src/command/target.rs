//! `ashlar target`: the targets of a file system of many servers, and their space as their servers tell it.

use super::node;
use crate::cli::{TargetAction, TargetArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::say;
use anyhow::{Context, Result};
use ashlar_rpc::remote::{Patience, RemoteStorage};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::{Target, TargetState};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ClusterMap, Role, TargetId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// LIMIT: how long a server may take to tell the space of a target, and for how long no more servers are asked.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: servers that are asked at once.
const ASKED_MAX: usize = 64;

/// Total and free bytes.
type Space = (u64, u64);

pub fn run(args: &TargetArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        TargetAction::List { json } => {
            let spaces = ask(&member, &map.targets);
            if *json {
                let all: Vec<Value> =
                    map.targets.iter().map(|target| object(&map, target, spaces.get(&target.id))).collect();
                say(format_args!("{}", serde_json::to_string_pretty(&all)?));
            } else {
                for target in &map.targets {
                    print(&map, target, spaces.get(&target.id));
                }
            }
        }
        TargetAction::Show { id, json } => {
            let target = map
                .target(TargetId(*id))
                .with_context(|| format!("there is no target {id}; `ashlar target list` shows all"))?;
            let spaces = ask(&member, std::slice::from_ref(target));
            if *json {
                let shown = object(&map, target, spaces.get(&target.id));
                say(format_args!("{}", serde_json::to_string_pretty(&shown)?));
            } else {
                print(&map, target, spaces.get(&target.id));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The space of those targets whose server answers in time: servers are asked beside each other.
fn ask(member: &Member, targets: &[Target]) -> BTreeMap<TargetId, Space> {
    let storage = RemoteStorage::new(member.routes(), Patience::new(ANSWER_MAX)).giving_up();
    let mut by_node: BTreeMap<_, Vec<TargetId>> = BTreeMap::new();
    for target in targets.iter().filter(|target| target.state == TargetState::Online) {
        by_node.entry(target.node).or_default().push(target.id);
    }
    let mut found = BTreeMap::new();
    let servers: Vec<Vec<TargetId>> = by_node.into_values().collect();
    for servers in servers.chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            let asked: Vec<_> =
                servers.iter().map(|targets| scope.spawn(|| ask_server(&storage, targets))).collect();
            asked.into_iter().for_each(|thread| found.extend(thread.join().unwrap_or_default()));
        });
    }
    found
}

fn ask_server(storage: &RemoteStorage, targets: &[TargetId]) -> Vec<(TargetId, Space)> {
    let space =
        |target: &TargetId| match storage.call(&StorageRequest::Space { target: *target }, Payload::None) {
            Ok(StorageReply::Space { bytes_total, bytes_free }) => Some((*target, (bytes_total, bytes_free))),
            _ => None,
        };
    targets.iter().filter_map(space).collect()
}

fn chains(map: &ClusterMap, target: TargetId) -> usize {
    map.chains.iter().filter(|chain| chain.targets.contains(&target)).count()
}

fn pool<'m>(map: &'m ClusterMap, target: &Target) -> &'m str {
    map.pools.iter().find(|pool| pool.id == target.pool).map_or("", |pool| pool.name.as_str())
}

fn state(target: &Target) -> &'static str {
    match target.state {
        TargetState::Online => "online",
        TargetState::Offline => "offline",
    }
}

fn object(map: &ClusterMap, target: &Target, space: Option<&Space>) -> Value {
    json!({
        "id": target.id.0,
        "state": state(target),
        "node": node::reference(map, target.node),
        "path": target.path,
        "pool": pool(map, target),
        "chains": chains(map, target.id),
        "bytes_total": space.map(|(total, _)| total),
        "bytes_used": space.map(|(total, free)| total.saturating_sub(*free)),
        "bytes_free": space.map(|(_, free)| free),
    })
}

fn print(map: &ClusterMap, target: &Target, space: Option<&Space>) {
    const GIB: f64 = (1u64 << 30) as f64;
    let space = match space {
        Some((total, free)) => {
            let used = total.saturating_sub(*free) as f64 / GIB;
            format!("{used:.1} GiB used, {:.1} GiB free", *free as f64 / GIB)
        }
        None => "space unknown".to_owned(),
    };
    say(format_args!(
        "{:<12} {:<8} {:<24} {:<10} {:>4} chains  {space}  {}",
        target.id.to_string(),
        state(target),
        node::name(map, target.node),
        pool(map, target),
        chains(map, target.id),
        target.path.escape_debug()
    ));
}
