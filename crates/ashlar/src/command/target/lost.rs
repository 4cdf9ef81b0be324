//! `ashlar target lost`: a target never comes back, and nobody is to wait for it any more.
//!
//! Whoever has lost its power does not know what it lacks, and waits for another one that may have it. What is there is all there is if that one never comes back: only the
//! operator knows that. Those who wait are told, and have it removed themselves, once the leases that they may have given it are over.

use super::super::presence;
use super::find;
use crate::cluster::Member;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node;
use ashlar_rpc::remote::{Patience, RemoteStorage};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::{Chain, TargetState};
use ashlar_types::message::StorageRequest;
use ashlar_types::{ChainId, ClusterMap, Role, TargetId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// LIMIT: for how long a server is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// LIMIT: for how long chains are waited for that are to go on.
const GOES_ON_MAX: Duration = Duration::from_secs(30);
const TURN: Duration = Duration::from_millis(500);

/// Chains of several copies that have one on the target.
struct Waiting {
    /// With the others that have all of it, or may.
    shared: BTreeMap<ChainId, Vec<TargetId>>,
    /// What is in them is on the target alone.
    alone: Vec<ChainId>,
}

impl Waiting {
    fn of(map: &ClusterMap, lost: TargetId) -> Waiting {
        let mut waiting = Waiting { shared: BTreeMap::new(), alone: Vec::new() };
        let groups = map.chains_of_copies().filter_map(|(chain, _)| Some((chain.id, Chain::group(chain)?)));
        for (chain, group) in groups.filter(|(_, group)| group.is_in_sync(lost)) {
            let others: Vec<TargetId> = group.in_sync.iter().copied().filter(|id| *id != lost).collect();
            match others.is_empty() {
                true => waiting.alone.push(chain),
                false => drop(waiting.shared.insert(chain, others)),
            }
        }
        waiting
    }

    fn others(&self) -> BTreeSet<TargetId> {
        self.shared.values().flatten().copied().collect()
    }
}

pub fn run(member: &Member, map: &ClusterMap, id: u32, accepts_loss: bool, is_json: bool) -> Result<()> {
    let target = find(map, id)?;
    let lost = target.id;
    let is_away = presence::ask(member).seconds(target.node, Role::Storage).is_some();
    if target.state == TargetState::Online && !is_away {
        bail!(
            "{lost} is not lost: {} serves it, or managers that were started moments ago do not know yet that it is away. If its disk is to be replaced, `ashlar target drain {id}` moves what is on it to others",
            node::name(map, target.node)
        );
    }
    let before = Waiting::of(map, lost);
    let (shared, alone) = (before.shared.len(), before.alone.len());
    if !accepts_loss {
        bail!(
            "{shared} chains have a copy on {lost} and on others. Those of the others that have lost their power too wait for {lost}, because it may have what was written last and not synced. If it never comes back, `ashlar target lost {id} --accept-loss` has them go on with what they have, and what only {lost} had is lost. If it can be brought back, start it instead"
        );
    }
    let left = go_on(member, lost, &before);
    if is_json {
        let named = |chains: &[ChainId]| -> Vec<String> { chains.iter().map(ToString::to_string).collect() };
        say_json(
            &json!({ "target": id, "chains": shared - left.len(), "waiting": named(&left), "alone": named(&before.alone) }),
        )?;
    } else {
        say(format_args!("{} chains go on without {lost}", shared - left.len()));
        if alone > 0 {
            say(format_args!("{alone} chains have their content on {lost} alone: it is waited for still"));
        }
    }
    if !left.is_empty() {
        bail!(
            "{} chains do not go on yet ({} and others): `ashlar target list` shows which targets are away that have the other copies. Start their servers, and ask again",
            left.len(),
            left[0]
        );
    }
    Ok(())
}

/// Tells the others, until no chain has the lost one beside them; those that have it all the same.
fn go_on(member: &Member, lost: TargetId, before: &Waiting) -> Vec<ChainId> {
    let storage = RemoteStorage::new(member.routes(), Patience::new(ANSWER_MAX)).giving_up();
    let deadline = Instant::now() + GOES_ON_MAX;
    let mut left = before.others();
    loop {
        for target in left {
            // One that has been started anew since has forgotten it.
            if let Err(error) = storage.call(&StorageRequest::GoOnWithout { target, lost }, Payload::None) {
                tracing::debug!(%target, %error, "a target that waits could not be told; trying again");
            }
        }
        let map = member.map().read().clone();
        let now = Waiting::of(&map, lost);
        if now.shared.is_empty() || Instant::now() > deadline {
            return now.shared.into_keys().collect();
        }
        std::thread::sleep(TURN);
        left = now.others();
    }
}
