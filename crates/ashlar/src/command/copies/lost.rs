//! `ashlar copies lost`: a machine never comes back, and no copy of metadata is to wait for it any more; as `ashlar target lost` of chunks.

use super::told;
use crate::cluster::Member;
use crate::command::node;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node::{name, reference};
use ashlar_rpc::remote::CopyLinks;
use ashlar_types::{ClusterMap, CopyNotes, NodeId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: copies on the lost machine that are asked whether they are there.
const ASKED_MAX: usize = 2;
/// LIMIT: for how long a machine is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: for how long copies are waited for that are to go on.
const GOES_ON_MAX: Duration = Duration::from_secs(30);
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
    if groups_on(&notes, lost).iter().take(ASKED_MAX).any(|(server, _)| links.tell(*server, lost, lost)) {
        bail!("{} is not lost: a copy of metadata runs there", known.name);
    }
    let (mut alone, shared): (Vec<_>, Vec<_>) =
        groups_on(&notes, lost).into_iter().partition(|(_, others)| others.is_empty());
    // Its own, of which there are no copies.
    let is_copied = notes.group(lost).is_some_and(|group| group.membership.is_some());
    if !is_copied && map.shards.iter().any(|shard| shard.primary == lost) {
        alone.push((lost, Vec::new()));
    }
    let named = |groups: &[Group]| -> String {
        groups.iter().map(|(server, _)| name(map, *server)).collect::<Vec<_>>().join(", ")
    };
    if !accepts_loss {
        bail!(
            "{} metadata servers have a copy on {} and on others ({}), {} on it alone. Those of the others that have lost their power too wait for {}, because it may have what was done last and not synced. If it never comes back, `ashlar copies lost {server} --accept-loss` has them go on with what they have, and what only {} had is lost. If it can be brought back, start `ashlar meta` there instead",
            shared.len(),
            known.name,
            named(&shared),
            alone.len(),
            known.name,
            known.name
        );
    }
    let left = go_on(&links, lost, &shared)?;
    let went_on: Vec<_> =
        shared.into_iter().filter(|(server, _)| !left.iter().any(|(of, _)| of == server)).collect();
    if is_json {
        let references = |groups: &[Group]| -> Vec<Value> {
            groups.iter().map(|(server, _)| reference(map, *server)).collect()
        };
        say_json(
            &json!({ "node": reference(map, lost), "servers": references(&went_on), "waiting": references(&left), "alone": references(&alone) }),
        )?;
    } else {
        say(format_args!("{} metadata servers go on without {}", went_on.len(), known.name));
        if !alone.is_empty() {
            say(format_args!(
                "the metadata of {} is on {} alone: it is waited for still",
                named(&alone),
                known.name
            ));
        }
    }
    if !left.is_empty() {
        bail!(
            "{} do not go on: `ashlar node list` shows which machines with the other copies are away. Start `ashlar meta` on them, and ask again",
            named(&left)
        );
    }
    Ok(())
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
        *self.places.write() = hosts.into_iter().map(|host| (host.node, host.addresses)).collect();
        Ok(notes)
    }

    /// Tells the copy of the metadata of `server` on `node` that `lost` never comes back; whether there is one that works.
    fn tell(&self, server: NodeId, node: NodeId, lost: NodeId) -> bool {
        let told = self.links.ask(server, node, &lost.0.to_le_bytes(), &[], ANSWER_MAX);
        told.inspect_err(|error| tracing::debug!(%server, %node, %error, "a copy was not told")).is_ok()
    }
}

/// Tells the others, until no metadata server that somebody has a copy of who answers has one on the lost machine; those that have all the same.
fn go_on(links: &Links<'_>, lost: NodeId, before: &[Group]) -> Result<Vec<Group>> {
    let deadline = Instant::now() + GOES_ON_MAX;
    let servers: BTreeSet<NodeId> = before.iter().map(|(server, _)| *server).collect();
    loop {
        let mut left = groups_on(&links.notes()?, lost);
        left.retain(|(server, others)| servers.contains(server) && !others.is_empty());
        // One that has been started anew since has forgotten it. A machine that is silent is asked once a turn.
        let (mut silent, mut is_any_told) = (BTreeSet::new(), false);
        for (server, node) in
            left.iter().flat_map(|(server, others)| others.iter().map(|node| (*server, *node)))
        {
            if silent.contains(&node) {
                continue;
            }
            let begun = Instant::now();
            is_any_told |= links.tell(server, node, lost);
            if begun.elapsed() > ANSWER_MAX / 2 {
                silent.insert(node);
            }
        }
        if !is_any_told || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(TURN);
    }
}
