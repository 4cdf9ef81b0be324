//! What must be so once nothing fails any more.

use super::node::key;
use super::trouble::{admit_missing, mend};
use super::{NODES, Site, damage};
use crate::copies::{HEAL_MAX, require};
use ashlar_kv::{Lane, Snapshot};
use ashlar_meta::replica::Standing;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// In which somebody who was not heard while something failed has been removed.
const REMOVED_WITHIN: Duration = Duration::from_secs(12);

fn standing(site: &Site, at: usize) -> Option<Standing> {
    let replica = site.nodes[at].life.lock().replica.lock().clone();
    replica.map(|replica| replica.standing())
}

/// For whoever looks for the cause of a failure.
fn describe(site: &Site, at: usize) -> String {
    let replica = site.nodes[at].life.lock().replica.lock().clone();
    replica.map_or_else(String::new, |replica| {
        format!("{:?} broken: {:?}", replica.standing(), replica.broken())
    })
}

fn all(lane: &Lane) -> BTreeMap<Vec<u8>, Bytes> {
    let mut pairs = BTreeMap::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        pairs.insert(key.to_vec(), Bytes::copy_from_slice(value));
        ControlFlow::Continue(())
    };
    lane.read().scan(&[], &[0xFF; 600], &mut visit).unwrap();
    pairs
}

/// Nothing fails any more, until all copies are there again and one of them serves.
pub(super) fn heal(site: &Arc<Site>) -> Result<(), String> {
    site.is_troubled.store(false, SeqCst);
    mend(site);
    // Who was left alone with it goes on. What was found before is made anew all the same.
    site.nodes.iter().for_each(|node| node.disk.set_damaged(false));
    let healed = site.now();
    let is_whole = || {
        let membership = site.map.lock().1.clone();
        let standings: Vec<_> = (0..NODES).filter_map(|at| standing(site, at)).collect();
        site.nodes.iter().all(|node| *node.frozen_until.lock() < site.now())
            && membership.in_sync.len() == NODES
            && standings.len() == NODES
            && standings.iter().all(|standing| standing.is_active && standing.epoch == membership.epoch)
            && standings.iter().any(|standing| standing.is_serving)
    };
    let mut whole_since = None;
    // One that somebody could not hear before may be removed a while after that.
    while whole_since.is_none_or(|since| site.now() - since < REMOVED_WITHIN) && !site.is_failed() {
        site.step_until(site.now() + Duration::from_millis(500))?;
        whole_since = whole_since.or(Some(site.now())).filter(|_| is_whole());
        let told = || {
            let copies: Vec<_> = (0..NODES).map(|at| describe(site, at)).collect();
            format!("the copies are not whole again: {:?} {copies:?}", site.map.lock())
        };
        require(site.now() - healed < HEAL_MAX, told)?;
        admit_missing(site);
        damage::tend(site);
    }
    Ok(())
}

/// All copies have everything that was acknowledged, and the same, once nobody changes anything.
pub(super) fn at_rest(site: &Arc<Site>) -> Result<(), String> {
    for at in 0..NODES {
        site.scheduler.kill(&format!("n{at}-main"));
    }
    site.step_until(site.now() + Duration::from_secs(20))?;
    if site.is_failed() {
        return Ok(());
    }
    let lanes: Vec<_> = (0..NODES)
        .map(|at| site.nodes[at].life.lock().replica.lock().as_ref().unwrap().lane())
        .map(|lane| (lane.last_group(), all(&lane)))
        .collect();
    for (at, lane) in lanes.iter().enumerate() {
        let differs = || format!("copy {at} has {:?}, the first {:?}", lane.0, lanes[0].0);
        require(*lane == lanes[0], differs)?;
        for number in &site.told.lock().acknowledged {
            let is_there = lane.1.contains_key(key(&format!("n{number:06}")).as_slice());
            require(is_there, || format!("{number} was acknowledged, and copy {at} has it not"))?;
        }
    }
    Ok(())
}
