//! `ashlar copies lost`: a machine never comes back, and no copy of metadata is to wait for it any more; as `ashlar target lost` of chunks.

use super::super::node;
use super::told;
use crate::cluster::Member;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node::{name, reference};
use ashlar_rpc::remote::CopyLinks;
use ashlar_types::{ClusterMap, CopyNotes, NodeId};
use parking_lot::RwLock;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LIMIT: for how long a machine is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: for how long copies are waited for that are to go on.
const GOES_ON_MAX: Duration = Duration::from_secs(30);
const TURN: Duration = Duration::from_millis(500);

/// Metadata servers that have a copy on `lost`, each with the other machines that have all of it, or may.
fn groups_on(notes: &CopyNotes, lost: NodeId) -> Vec<(NodeId, Vec<NodeId>)> {
    let known = notes.groups.iter().filter_map(|group| Some((group.server, group.membership.as_ref()?)));
    let on_it = known.filter(|(_, members)| members.is_in_sync(lost));
    on_it
        .map(|(server, members)| (server, members.in_sync.iter().copied().filter(|id| *id != lost).collect()))
        .collect()
}

pub fn run(member: &Member, map: &ClusterMap, server: &str, accepts_loss: bool, is_json: bool) -> Result<()> {
    let known = node::find(map, server)?;
    let lost = known.id;
    let (alone, shared): (Vec<_>, Vec<_>) =
        groups_on(&told(member)?.0, lost).into_iter().partition(|(_, others)| others.is_empty());
    let named = |groups: &[(NodeId, Vec<NodeId>)]| -> String {
        groups.iter().map(|(server, _)| name(map, *server)).collect::<Vec<_>>().join(", ")
    };
    if !accepts_loss {
        bail!(
            "{} metadata servers have a copy on {} and on others ({}). Those of the others that have lost their power too wait for {}, because it may have what was done last and not synced. If it never comes back, `ashlar copies lost {server} --accept-loss` has them go on with what they have, and what only {} had is lost. If it can be brought back, start `ashlar meta` there instead",
            shared.len(),
            known.name,
            named(&shared),
            known.name,
            known.name
        );
    }
    let left = go_on(member, lost, &shared)?;
    let went_on: Vec<_> =
        shared.into_iter().filter(|(server, _)| !left.iter().any(|(of, _)| of == server)).collect();
    if is_json {
        let references = |groups: &[(NodeId, Vec<NodeId>)]| -> Vec<Value> {
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
            "{} do not go on yet: either {} answers, and is not lost, or the machines with the other copies do not: `ashlar node list` shows which are away. Start `ashlar meta` on them, and ask again",
            named(&left),
            known.name
        );
    }
    Ok(())
}

/// Tells the others, until no metadata server has a copy on the lost one beside them; those that have all the same.
fn go_on(
    member: &Member,
    lost: NodeId,
    before: &[(NodeId, Vec<NodeId>)],
) -> Result<Vec<(NodeId, Vec<NodeId>)>> {
    let places = Arc::new(RwLock::default());
    let links = CopyLinks::new(member.caller.clone(), Arc::clone(&places));
    let deadline = Instant::now() + GOES_ON_MAX;
    let mut left = before.to_vec();
    while !left.is_empty() {
        let (notes, hosts) = told(member)?;
        left = groups_on(&notes, lost).into_iter().filter(|(_, others)| !others.is_empty()).collect();
        *places.write() = hosts.into_iter().map(|host| (host.node, host.addresses)).collect();
        for (server, others) in &left {
            for node in others {
                // One that has been started anew since has forgotten it.
                if let Err(error) = links.ask(*server, *node, &lost.0.to_le_bytes(), &[], ANSWER_MAX) {
                    tracing::debug!(%server, %node, %error, "a copy that waits could not be told; trying again");
                }
            }
        }
        if Instant::now() > deadline {
            break;
        }
        std::thread::sleep(TURN);
    }
    Ok(left)
}
