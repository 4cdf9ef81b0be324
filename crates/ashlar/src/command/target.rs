//! `ashlar target`: the targets of a file system of many servers, and their space as their servers tell it.

mod add;
mod change;
mod lost;
pub(super) mod works;

pub use change::drain;

use super::presence;
use crate::cli::{TargetAction, TargetArgs};
use crate::cluster::{Member, NodeDirectory};
use crate::terminal::{say, say_json};
use anyhow::{Context, Result};
use ashlar_console::object::away::Away;
use ashlar_console::object::target::{Space, chains, coming, leaving, object, pool, state};
use ashlar_console::object::work::{self, Work};
use ashlar_console::object::{node, with};
use ashlar_rpc::remote::{Patience, RemoteStorage};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::{Target, TargetState};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ClusterMap, Domain, PoolId, Role, TargetId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// LIMIT: how long a server may take to tell the space of a target, and for how long no more servers are asked.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: servers that are asked at once.
const ASKED_MAX: usize = 64;

pub fn run(args: &TargetArgs) -> Result<ExitCode> {
    let member = Member::start(NodeDirectory::new(&args.node.node), Role::Admin)?;
    let map = member.map().read().clone();
    match &args.action {
        TargetAction::List { json } => {
            let seen = Seen::ask(&member, &map, &map.targets);
            if *json {
                say_json(&objects(&map, &map.targets, &seen))?;
            } else {
                map.targets.iter().for_each(|target| print(&map, target, &seen));
            }
        }
        TargetAction::Show { id, json } => {
            let target = find(&map, *id)?;
            let seen = Seen::ask(&member, &map, std::slice::from_ref(target));
            if *json {
                say_json(&seen.object(&map, target))?;
            } else {
                print(&map, target, &seen);
            }
        }
        TargetAction::Add { dir, on, pool, json } => {
            let addition = add::Addition { place: dir, on: on.as_deref(), pool: pool.as_deref() };
            add::run(&member, &map, &addition, *json)?;
        }
        TargetAction::Lost { id, accept_loss, json } => lost::run(&member, &map, *id, *accept_loss, *json)?,
        other => change::run(&member, other)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The target of this number.
fn find(map: &ClusterMap, id: u32) -> Result<&Target> {
    let known = map.target(TargetId(id));
    known.with_context(|| format!("there is no target {id}; `ashlar target list` shows all"))
}

/// What servers and managers tell of targets at the moment.
pub struct Seen {
    pub away: Away,
    pub spaces: BTreeMap<TargetId, Space>,
    works: Vec<Work>,
}

impl Seen {
    /// Asks them about `targets`.
    pub fn ask(member: &Member, map: &ClusterMap, targets: &[Target]) -> Seen {
        let away = presence::ask(member);
        let spaces = spaces(member, targets, &away);
        Seen { away, spaces, works: works::all(member, map) }
    }

    /// How far a pool is that is rebalanced.
    pub fn of_pool(&self, pool: PoolId) -> Option<&Work> {
        self.works.iter().find(|work| work.work.target.is_none() && work.work.pool == pool)
    }

    /// A target, as programs are shown it.
    pub fn object(&self, map: &ClusterMap, target: &Target) -> Value {
        let drain = work::of_target(&self.works, target.id).map(work::object);
        let known = object(map, target, &self.away, self.spaces.get(&target.id));
        with(known, json!({ "drain": drain }))
    }
}

/// Targets, as programs are shown them.
pub fn objects(map: &ClusterMap, targets: &[Target], seen: &Seen) -> Vec<Value> {
    targets.iter().map(|target| seen.object(map, target)).collect()
}

/// Those of `targets` whose server is not known to be away: it would be waited for.
fn there(targets: &[Target], away: &Away) -> Vec<Target> {
    let is_there = |target: &&Target| away.seconds(target.node, Role::Storage).is_none();
    targets.iter().filter(is_there).cloned().collect()
}

/// The space of those targets whose server is not known to be away, and answers in time.
pub fn spaces(member: &Member, targets: &[Target], away: &Away) -> BTreeMap<TargetId, Space> {
    ask_each(member, &there(targets, away), |storage, target| {
        match storage.call(&StorageRequest::Space { target }, Payload::None) {
            Ok(StorageReply::Space { bytes_total, bytes_free }) => Some((bytes_total, bytes_free)),
            _ => None,
        }
    })
}

/// What `ask` tells of each of those targets whose server answers in time: servers are asked beside each other.
fn ask_each<T: Send>(
    member: &Member,
    targets: &[Target],
    ask: impl Fn(&RemoteStorage, TargetId) -> Option<T> + Sync,
) -> BTreeMap<TargetId, T> {
    let storage = RemoteStorage::new(member.routes(), Patience::new(ANSWER_MAX)).giving_up();
    let mut by_node: BTreeMap<_, Vec<TargetId>> = BTreeMap::new();
    for target in targets.iter().filter(|target| target.state == TargetState::Online) {
        by_node.entry(target.node).or_default().push(target.id);
    }
    let mut found = BTreeMap::new();
    let servers: Vec<Vec<TargetId>> = by_node.into_values().collect();
    let ask_server = |targets: &[TargetId]| -> Vec<(TargetId, T)> {
        targets.iter().filter_map(|target| Some((*target, ask(&storage, *target)?))).collect()
    };
    for servers in servers.chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            let asked: Vec<_> = servers.iter().map(|targets| scope.spawn(|| ask_server(targets))).collect();
            asked.into_iter().for_each(|thread| found.extend(thread.join().unwrap_or_default()));
        });
    }
    found
}

/// Space, for people.
pub fn space_text((total, free): &Space) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    let used = total.saturating_sub(*free) as f64 / GIB;
    format!("{used:.1} GiB used, {:.1} GiB free", *free as f64 / GIB)
}

/// Prints a target, with its space if its server has told it.
pub fn print(map: &ClusterMap, target: &Target, seen: &Seen) {
    let (away, space) = (&seen.away, seen.spaces.get(&target.id));
    let space = space.map_or("space unknown".to_owned(), space_text);
    let mut note = away.note(target.node, Role::Storage);
    if let Domain::Named(domain) = map.domain_of_node(target.node) {
        note.push_str(&format!(", in {domain}"));
    }
    if target.is_draining {
        note.push_str(", draining");
    }
    if let Some(work) = work::of_target(&seen.works, target.id) {
        note.push_str(&format!(" ({})", work.text()));
    }
    for (count, what) in [(leaving(map, target.id), "leaving"), (coming(map, target.id), "coming")] {
        if count > 0 {
            note.push_str(&format!(", {count} {what}"));
        }
    }
    say(format_args!(
        "{:<12} {:<8} {:<24} {:<10} {:>4} chains{note}  {space}  {}",
        target.id.to_string(),
        state(target),
        node::name(map, target.node),
        pool(map, target),
        chains(map, target.id),
        target.path.escape_debug()
    ));
}
