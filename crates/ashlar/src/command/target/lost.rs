//! `ashlar target lost`: a target never comes back, and nobody is to wait for it any more.
//!
//! Whoever has lost its power does not know what it lacks, and waits for another one that may have it. What is there is all there is if that one never comes back: only the
//! operator knows that. Those who wait are told, and have it removed themselves, once the leases that they may have given it are over.

use super::{ask_each, find, spaces};
use crate::cluster::Member;
use crate::command::presence;
use crate::terminal::{say, say_json};
use anyhow::{Result, bail};
use ashlar_console::object::node;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::{Chain, Target};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ClusterMap, TargetId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// LIMIT: for how long chains are waited for that are to go on: leases first, and managers that are just starting.
const GOES_ON_MAX: Duration = Duration::from_secs(30);
const TURN: Duration = Duration::from_millis(500);

/// What has a place on the target.
struct Waiting {
    /// Chains of several copies, with the others that have all of it, or may.
    shared: BTreeMap<ChainId, Vec<TargetId>>,
    /// Chains whose content is on the target alone.
    alone: Vec<ChainId>,
}

impl Waiting {
    fn of(map: &ClusterMap, lost: TargetId) -> Waiting {
        let mut waiting = Waiting { shared: BTreeMap::new(), alone: Vec::new() };
        for chain in &map.chains {
            let members: Vec<TargetId> = match Chain::group(chain) {
                Some(group) => group.in_sync.to_vec(),
                None => chain.targets.to_vec(),
            };
            let others: Vec<TargetId> = members.iter().copied().filter(|id| *id != lost).collect();
            match (members.contains(&lost), others.is_empty()) {
                (true, true) => waiting.alone.push(chain.id),
                (true, false) => drop(waiting.shared.insert(chain.id, others)),
                (false, _) => {}
            }
        }
        waiting
    }

    fn others(&self) -> BTreeSet<TargetId> {
        self.shared.values().flatten().copied().collect()
    }
}

/// What came of it.
struct Outcome {
    gone_on: usize,
    /// Chains that do not go on: they have it still, or it has them alone by now, or they wait for somebody else who does not serve.
    waiting: Vec<ChainId>,
}

pub fn run(member: &Member, map: &ClusterMap, id: u32, accepts_loss: bool, is_json: bool) -> Result<()> {
    let target = find(map, id)?;
    let (lost, away) = (target.id, presence::ask(member));
    if spaces(member, std::slice::from_ref(target), &away).contains_key(&lost) {
        bail!("{lost} is not lost: {} serves it", node::name(map, target.node));
    }
    let before = Waiting::of(map, lost);
    let (shared, alone) = (before.shared.len(), before.alone.len());
    if !accepts_loss {
        bail!(
            "{shared} chains have a copy on {lost} and on others, {alone} are on {lost} alone. Those of the others that have lost their power too wait for {lost}, because it may have what was written last and not synced. If it never comes back, `ashlar target lost {id} --accept-loss` has them go on with what they have, and what only {lost} had is lost. If it can be brought back, start it instead"
        );
    }
    let others: Vec<Target> = before.others().iter().filter_map(|id| map.target(*id)).cloned().collect();
    let serving: Vec<Target> = {
        let serving = spaces(member, &others, &away);
        others.into_iter().filter(|target| serving.contains_key(&target.id)).collect()
    };
    let Outcome { gone_on, waiting } = go_on(member, lost, &before, &serving);
    if is_json {
        let named = |chains: &[ChainId]| -> Vec<String> { chains.iter().map(ToString::to_string).collect() };
        say_json(
            &json!({ "target": id, "chains": gone_on, "waiting": named(&waiting), "alone": named(&before.alone) }),
        )?;
    } else {
        say(format_args!("{gone_on} chains go on without {lost}"));
        if alone > 0 {
            say(format_args!("{alone} chains have their content on {lost} alone: it is waited for still"));
        }
    }
    if let Some(first) = waiting.first() {
        bail!(
            "{} chains do not go on ({first} and others): other targets that have copies of them do not serve, or {lost} has come back. `ashlar target list` shows it: start their servers, and ask again",
            waiting.len()
        );
    }
    Ok(())
}

/// Tells those of the others that serve, until no chain with one of them has the lost one beside it.
fn go_on(member: &Member, lost: TargetId, before: &Waiting, serving: &[Target]) -> Outcome {
    let serves = |id: &TargetId| serving.iter().any(|target| target.id == *id);
    let deadline = Instant::now() + GOES_ON_MAX;
    loop {
        let map = member.map().read().clone();
        let now = Waiting::of(&map, lost);
        let shared = before.shared.keys().filter_map(|chain| now.shared.get(chain));
        if !shared.flatten().any(serves) || Instant::now() > deadline {
            let goes_on = |chain: &ChainId| {
                let group = map.chain(*chain).and_then(Chain::group);
                group.is_some_and(|group| {
                    !group.is_in_sync(lost) && (group.in_sync.len() == 1 || group.in_sync.iter().all(serves))
                })
            };
            let (gone_on, waiting): (Vec<ChainId>, Vec<ChainId>) =
                before.shared.keys().copied().partition(goes_on);
            return Outcome { gone_on: gone_on.len(), waiting };
        }
        // One that has been started anew since has forgotten it.
        let told = ask_each(member, serving, |storage, target| {
            let told = storage.call(&StorageRequest::GoOnWithout { target, lost }, Payload::None);
            matches!(told, Ok(StorageReply::Done)).then_some(())
        });
        tracing::debug!(asked = serving.len(), told = told.len(), "targets were told");
        std::thread::sleep(TURN);
    }
}
