//! `ashlar copies lost`: a machine never comes back, and no copy of metadata is to wait for it any more; as `ashlar target lost` of chunks.

use super::told;
use crate::cluster::Member;
use crate::command::node;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node::{name, reference};
use ashlar_rpc::net::NetError;
use ashlar_rpc::remote::CopyLinks;
use ashlar_types::{ClusterMap, CopyNotes, NodeId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: for how long a machine is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: for how long copies are waited for that are to go on.
const GOES_ON_MAX: Duration = Duration::from_secs(30);
/// LIMIT: for how long nobody answers who has another copy: they may be just starting.
const SILENT_MAX: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(500);

/// A metadata server that has a copy on the lost machine, with the other machines that have all of it, or may.
type Group = (NodeId, Vec<NodeId>);

fn groups_on(notes: &CopyNotes, lost: NodeId) -> Vec<Group> {
    let known = notes.groups.iter().filter_map(|group| Some((group.server, group.membership.as_ref()?)));
    let on_it = known.filter(|(_, members)| members.is_in_sync(lost));
    on_it
        .map(|(server, members)| (server, members.in_sync.iter().copied().filter(|id| *id != lost).collect()))
        .collect()
}

pub fn run(member: &Member, map: &ClusterMap, server: &str, accepts_loss: bool, is_json: bool) -> Result<()> {
    let known = node::find(map, server)?;
    let lost = known.id;
    let links = Links::new(member);
    let notes = links.notes()?;
    let groups = groups_on(&notes, lost);
    if groups.first().is_some_and(|(server, _)| links.tell(*server, lost, lost) != Told::Silent) {
        bail!(
            "{} is not lost: `ashlar meta` runs there. Stop it first if its copies cannot be opened",
            known.name
        );
    }
    let (mut alone, shared): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(_, others)| others.is_empty());
    // Its own, of which there are no copies.
    let is_copied = notes.group(lost).is_some_and(|group| group.membership.is_some());
    if !is_copied && map.shards.iter().any(|shard| shard.primary == lost) {
        alone.push((lost, Vec::new()));
    }
    let named = |servers: &[NodeId]| -> String {
        servers.iter().map(|server| name(map, *server)).collect::<Vec<_>>().join(", ")
    };
    let servers = |groups: &[Group]| -> Vec<NodeId> { groups.iter().map(|(server, _)| *server).collect() };
    if !accepts_loss {
        bail!(
            "{} metadata servers have a copy on {} and on others ({}), {} on it alone. Those of the others that have lost their power too wait for {}, because it may have what was done last and not synced. If it never comes back, `ashlar copies lost {server} --accept-loss` has them go on with what they have, and what only {} had is lost. If it can be brought back, start `ashlar meta` there instead",
            shared.len(),
            known.name,
            named(&servers(&shared)),
            alone.len(),
            known.name,
            known.name
        );
    }
    let Outcome { gone_on, waiting } = go_on(&links, lost, &servers(&shared))?;
    let alone = servers(&alone);
    if is_json {
        let references = |servers: &[NodeId]| -> Vec<Value> {
            servers.iter().map(|server| reference(map, *server)).collect()
        };
        say_json(
            &json!({ "node": reference(map, lost), "servers": references(&gone_on), "waiting": references(&waiting), "alone": references(&alone) }),
        )?;
    } else {
        say(format_args!("{} metadata servers go on without {}", gone_on.len(), known.name));
        if !alone.is_empty() {
            say(format_args!(
                "the metadata of {} is on {} alone: it is waited for still",
                named(&alone),
                known.name
            ));
        }
    }
    if !waiting.is_empty() {
        bail!(
            "{} do not go on: other machines with copies do not answer, or {} has come back. `ashlar copies list` shows which they are: start `ashlar meta` on them, and ask again",
            named(&waiting),
            known.name
        );
    }
    Ok(())
}

/// What came of it, by metadata server.
struct Outcome {
    gone_on: Vec<NodeId>,
    waiting: Vec<NodeId>,
}

/// What a machine says that was told something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// A copy there has heard it.
    Heard,
    /// It is there, and its copy does not work, or not yet.
    Refused,
    Silent,
}

/// Ways to machines that keep copies, wherever these are by now.
struct Links<'a> {
    member: &'a Member,
    places: Arc<RwLock<FxHashMap<NodeId, Vec<SocketAddr>>>>,
    links: CopyLinks,
}

impl Links<'_> {
    fn new(member: &Member) -> Links<'_> {
        let places = Arc::new(RwLock::default());
        Links { member, links: CopyLinks::new(member.caller.clone(), Arc::clone(&places)), places }
    }

    fn notes(&self) -> Result<CopyNotes> {
        let (notes, hosts) = told(self.member)?;
        // A manager that was started moments ago has not heard of all of them yet.
        self.places.write().extend(hosts.into_iter().map(|host| (host.node, host.addresses)));
        Ok(notes)
    }

    /// Whether the metadata of `server` does without `lost`, and nobody else is waited for: each machine with a copy answers.
    fn serves(&self, notes: &CopyNotes, server: NodeId, lost: NodeId) -> bool {
        let members = notes.group(server).and_then(|group| group.membership.as_ref());
        members.is_some_and(|members| {
            let answers = |node: &NodeId| self.tell(server, *node, lost) != Told::Silent;
            !members.is_in_sync(lost) && (members.in_sync.len() == 1 || members.in_sync.iter().all(answers))
        })
    }

    /// Tells the copy of the metadata of `server` on `node` that `lost` never comes back.
    fn tell(&self, server: NodeId, node: NodeId, lost: NodeId) -> Told {
        match self.links.go_on_without((server, node), lost, ANSWER_MAX) {
            Ok(()) => Told::Heard,
            Err(NetError::Refused(_)) => Told::Refused,
            Err(error) => {
                tracing::debug!(%server, %node, %error, "a copy was not told");
                Told::Silent
            }
        }
    }
}

/// Tells the others, for as long as somebody of them answers and a metadata server has a copy on the lost machine beside them.
fn go_on(links: &Links<'_>, lost: NodeId, before: &[NodeId]) -> Result<Outcome> {
    let begun = Instant::now();
    let mut answered_at = begun;
    loop {
        let notes = links.notes()?;
        let mut shared = groups_on(&notes, lost);
        shared.retain(|(server, others)| before.contains(server) && !others.is_empty());
        // One that has been started anew since has forgotten it. A machine that is silent is asked once a turn.
        let mut silent = BTreeSet::new();
        for (server, node) in
            shared.iter().flat_map(|(server, others)| others.iter().map(|node| (*server, *node)))
        {
            if !silent.contains(&node) {
                match links.tell(server, node, lost) {
                    Told::Silent => drop(silent.insert(node)),
                    _ => answered_at = Instant::now(),
                }
            }
        }
        let is_over = answered_at.elapsed() > SILENT_MAX || begun.elapsed() > GOES_ON_MAX;
        if shared.is_empty() || is_over {
            let (gone_on, waiting) = before.iter().partition(|server| links.serves(&notes, **server, lost));
            return Ok(Outcome { gone_on, waiting });
        }
        std::thread::sleep(TURN);
    }
}
