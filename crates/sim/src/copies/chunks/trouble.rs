//! What goes wrong.

use super::{BLOCK, BLOCKS, CHUNK_BYTES, Life, NODES, Site, node, target_of};
use ashlar_chunkstore::Finding;
use ashlar_replication::membership::Proposer;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::TargetId;
use ashlar_types::map::Chain;
use ashlar_types::membership::Change;
use ashlar_types::message::{ChainChange, StorageReply, StorageRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Whether a power cut of `at` may take nothing that is promised: of each chain somebody else is in sync who has all.
fn may_cut_power(site: &Site, at: usize, cut_at: &[u64]) -> bool {
    let map = site.map();
    !site.is_rotten.load(SeqCst)
        && map.chains.iter().all(|chain| {
            let group = chain.group().unwrap();
            let others: Vec<_> = group.in_sync.iter().filter(|target| **target != target_of(at)).collect();
            let is_whole = |target: &&TargetId| cut_at[target.0 as usize] < group.epoch.0;
            !group.is_in_sync(target_of(at)) || (!others.is_empty() && others.iter().all(is_whole))
        })
}

pub(super) fn admit_missing(site: &Site) {
    for chain in &site.map().chains {
        let group = chain.group().unwrap();
        let missing: Vec<TargetId> =
            (0..NODES).map(target_of).filter(|target| !group.is_member(*target)).collect();
        if group.members().count() < usize::from(chain.copies_wanted()) && !missing.is_empty() {
            let target = missing[site.dice.below(missing.len() as u64) as usize];
            let (chain, expected) = (chain.id, group.epoch);
            site.change(Proposer::Operator, ChainChange { chain, expected, change: Change::Admit(target) });
        }
    }
}

/// Members that are caught up with and do not answer make room, as the planner has it.
fn remove_silent(site: &Site) {
    for chain in &site.map().chains {
        let group = chain.group().unwrap();
        if let Some(&target) = group.catching_up.first().filter(|_| site.dice.below(6) == 0) {
            let (chain, expected) = (chain.id, group.epoch);
            site.change(Proposer::Operator, ChainChange { chain, expected, change: Change::Remove(target) });
        }
    }
}

/// What a scrub finds on the disk of a node, of chains that it has all of; nothing if that does not run.
pub(super) fn findings(site: &Site, at: usize) -> Option<Vec<Finding>> {
    let store = site.life(at)?.store.clone();
    let map = site.map();
    let counts = |finding: &Finding| match finding {
        Finding::Data { chunk, .. } | Finding::Header { chunk, .. } => {
            map.chains[(chunk.inode.0 - 100) as usize].targets.contains(&target_of(at))
        }
        // The index names the chunk, if it is one.
        Finding::Slot { .. } => false,
    };
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let part = store.scrub(from, 1 << 20).ok()?;
        all.extend(part.findings.into_iter().filter(counts));
        from = part.next;
        if from.is_none() {
            return Some(all);
        }
    }
}

pub(super) fn is_sound(site: &Site) -> bool {
    (0..NODES).all(|at| findings(site, at).is_some_and(|found| found.is_empty()))
}

/// Flips a bit on the disk of a node, if each chain has another copy of all there is.
pub(super) fn rot(site: &Site, at: usize) {
    let map = site.map();
    let has_others = |chain: &Chain| chain.group().unwrap().in_sync.len() > 1;
    if !map.chains.iter().all(has_others) || !is_sound(site) {
        return;
    }
    // In front of a slot, or in a block that is used.
    let slot = site.dice.below(10) * u64::from(BLOCK + CHUNK_BYTES);
    let within = match site.dice.below(4) {
        0 => site.dice.below(u64::from(BLOCK)),
        _ => u64::from(BLOCK * (1 + BLOCKS[site.dice.below(3) as usize])) + site.dice.below(u64::from(BLOCK)),
    };
    let bit = (slot + within) * 8 + site.dice.below(8);
    if site.nodes[at].disk.flip_bit("slabs/65536/0.slab", bit).is_err() {
        return;
    }
    site.is_rotten.store(true, SeqCst);
    let found = findings(site, at);
    site.scheduler.note(&|| format!("bit {bit} of the disk of node {at} flips: {found:?}"));
    if found.is_some_and(|found| !found.is_empty()) {
        site.count("bits flipped");
    }
}

/// Has a node look at all that it has.
pub(super) fn scrub(site: &Arc<Site>, at: usize) {
    let (site, scheduler) = (site.clone(), site.scheduler.clone());
    let work = move || {
        let mut from = Vec::new();
        loop {
            let request = StorageRequest::Scrub { target: target_of(at), from };
            let run = move |life: &Life| life.service.call(&request, Payload::None);
            let answer = site.have((None, at), Duration::from_secs(60), run);
            let Some((Ok(StorageReply::Scrubbed { next, findings, .. }), _)) = answer else { return };
            site.scheduler.note(&|| format!("scrub of node {at}: {findings:?}"));
            if next.is_empty() {
                return;
            }
            from = next;
        }
    };
    scheduler.start_detached(&format!("c-scrub{at}"), Box::new(work));
}

/// One action of the world.
pub(super) fn next(site: &Arc<Site>, cut_at: &mut [u64]) {
    let at = site.dice.below(NODES as u64) as usize;
    if site.is_rotten.load(SeqCst) && is_sound(site) {
        site.is_rotten.store(false, SeqCst);
    }
    match site.dice.below(20) {
        0..=2 => node::kill(site, at, false),
        3 if may_cut_power(site, at, cut_at) => {
            // It counts from now on as one that may lack what it has reported, until it is in sync at a later epoch.
            cut_at[at] = site.map.lock().epoch.0 + 1;
            node::kill(site, at, true);
        }
        4..=5 => {
            let until = site.now() + Duration::from_millis(site.dice.below(15_000));
            site.scheduler.note(&|| format!("node {at} hangs until {until:?}"));
            *site.nodes[at].frozen_until.lock() = until;
            site.scheduler.freeze(&format!("n{at}-"), until);
        }
        6..=7 => {
            let other = site.dice.below(NODES as u64 + 1) as usize;
            site.cut.lock().insert((at, other));
            if site.dice.below(2) == 0 {
                site.cut.lock().insert((other, at));
            }
        }
        8 => {
            let others = (0..=NODES).filter(|other| *other != at);
            site.cut.lock().extend(others.flat_map(|other| [(at, other), (other, at)]));
        }
        9 => remove_silent(site),
        18..=19 => scrub(site, at),
        // A cut heals soon.
        10..=14 => site.cut.lock().clear(),
        _ => admit_missing(site),
    }
}
