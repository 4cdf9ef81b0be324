//! What goes wrong.

use super::ledger::{CELLS, ChunkPlace};
use super::{BLOCK, CHUNK_BYTES, Life, NODES, Site, node, target_of};
use ashlar_chunkstore::Finding;
use ashlar_env::sim::FaultOp;
use ashlar_replication::membership::{Content, Proposer, Stored};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::Chain;
use ashlar_types::membership::Change;
use ashlar_types::message::{ChainChange, StorageReply, StorageRequest};
use ashlar_types::{ChainId, Epoch, TargetId, codec};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Places of chunks in which bits flip, and how many bits it takes at the most until that is in one.
const SLOTS: u64 = 30;
const FLIPS_MAX: u64 = 3;

/// Whether a target has all that it had of a chain at its epoch: its power was not cut since, and what it had lost then has been found out.
fn is_whole(site: &Site, chain: &Chain, target: TargetId) -> bool {
    let at = target.0 as usize;
    site.cut_at.lock()[at] < chain.group().unwrap().epoch.0 && !is_short(site, at, chain.id)
}

/// Whether a node has noted that it lacks something of a chain. Others may have made the epoch newer without having heard of it.
fn is_short(site: &Site, at: usize, chain: ChainId) -> bool {
    let Some(life) = site.life(at) else { return false };
    let notes = life.store.copy_notes().unwrap_or_default();
    notes.iter().any(|(of, note)| *of == chain && content_noted(note) == Content::Short)
}

/// As a target notes it (`docs/formats/target.md`, table `k`).
fn content_noted(note: &[u8]) -> Content {
    let (Stored { content, .. }, _in_sync_at) =
        codec::decode::<(Stored<TargetId>, Option<Epoch>)>(note, "note about a copy").unwrap();
    content
}

/// Whether a power cut of `at` may take nothing that is promised: of each chain somebody else is in sync who has all.
fn may_cut_power(site: &Site, at: usize) -> bool {
    site.map().chains.iter().all(|chain| {
        let group = chain.group().unwrap();
        let mut others = group.in_sync.iter().filter(|target| **target != target_of(at));
        let has_others = others.clone().next().is_some();
        !group.is_in_sync(target_of(at)) || (has_others && others.all(|other| is_whole(site, chain, *other)))
    })
}

/// All lose their power at once, or the disks of all refuse a sync: what was not synced may be lost. Tells whether that may be now.
pub(super) fn cut_all(site: &Arc<Site>) -> bool {
    // After a power cut nobody can tell what has rotted of what was not synced from what was torn.
    if !is_blameless(site) {
        return false;
    }
    let is_power_cut = site.dice.below(3) > 0;
    site.ledger.lock().cut();
    site.count(if is_power_cut { "cuts of all" } else { "failures of all disks" });
    let epoch = site.map().epoch.0;
    for at in 0..NODES {
        site.cut_at.lock()[at] = epoch + 1;
        // Where nothing is to be synced nothing is refused.
        let is_refused = !is_power_cut && refuse_sync(site, at);
        node::kill(site, at, !is_refused);
    }
    true
}

/// The disk of a node refuses a sync, and has lost what was not synced: its target stops. Tells whether that has come already; else it comes with what is synced next.
fn refuse_sync(site: &Site, at: usize) -> bool {
    let Some(life) = site.life(at) else { return false };
    site.nodes[at].disk.fail_nth(FaultOp::Sync, 1, libc::EIO);
    let synced = life.store.sync();
    site.scheduler.note(&|| format!("a sync of node {at} is refused: {synced:?}"));
    synced.is_err()
}

/// The disk of a node refuses a sync. Its process lives on for a while, and another one goes on with the same disk, which works again.
fn fail_disk(site: &Arc<Site>, at: usize) {
    // Whatever it has counts for nothing until it is started again, and in sync at a later epoch than that.
    site.cut_at.lock()[at] = u64::MAX;
    site.count("failures of a disk");
    refuse_sync(site, at);
    note_lost(site);
    if let Err(error) = site.step_until(site.now() + Duration::from_millis(site.dice.below(10_000))) {
        return site.fail(error);
    }
    site.cut_at.lock()[at] = site.map().epoch.0 + 1;
    node::kill(site, at, false);
}

/// Notes which chunks may be lost: they are damaged, and nobody else is in sync whose power was not cut.
pub(super) fn note_lost(site: &Site) {
    if !site.is_rotten.load(SeqCst) {
        return;
    }
    let map = site.map();
    for at in 0..NODES {
        for chunk in findings(site, at).unwrap_or_default().iter().filter_map(chunk_found) {
            let chain = &map.chains[chunk.0 as usize];
            let group = chain.group().unwrap();
            let is_other = |target: &TargetId| *target != target_of(at) && is_whole(site, chain, *target);
            if !group.in_sync.iter().any(is_other) {
                site.scheduler.note(&|| format!("{chunk:?} may be lost"));
                let may_leave = group.in_sync.len() > 1 && group.primary() == target_of(at);
                site.ledger.lock().lose(chunk, may_leave.then_some(group.epoch));
                site.count("chunks that may be lost");
            }
        }
    }
}

/// The chunk that something was found of. The index names it, if there is one where a slot is damaged.
fn chunk_found(finding: &Finding) -> Option<ChunkPlace> {
    match finding {
        Finding::Data { chunk, .. } | Finding::Header { chunk, .. } => {
            Some(((chunk.inode.0 - 100) as u32, chunk.index))
        }
        Finding::Slot { .. } => None,
    }
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
    let map = site.map();
    let counts = |finding: &Finding| {
        let chain = chunk_found(finding).map(|(chain, _)| &map.chains[chain as usize]);
        chain.is_some_and(|chain| chain.targets.contains(&target_of(at)))
    };
    Some(scrubbed(site, at)?.into_iter().filter(counts).collect())
}

/// What a scrub finds on the disk of a node, of whatever there is; nothing if that does not run.
fn scrubbed(site: &Site, at: usize) -> Option<Vec<Finding>> {
    let store = site.life(at)?.store.clone();
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let part = store.scrub(from, 1 << 20).ok()?;
        all.extend(part.findings);
        from = part.next;
        if from.is_none() {
            return Some(all);
        }
    }
}

/// Whether nothing is damaged.
fn is_blameless(site: &Site) -> bool {
    (0..NODES).all(|at| findings(site, at).is_some_and(|found| found.is_empty()))
}

/// Whether nothing is damaged but what may be.
pub(super) fn is_sound(site: &Site) -> bool {
    let is_known =
        |finding: &Finding| chunk_found(finding).is_some_and(|chunk| site.ledger.lock().is_lost(chunk));
    (0..NODES).all(|at| findings(site, at).is_some_and(|found| found.iter().all(is_known)))
}

/// Flips a bit on the disk of a node, if each chain has another copy of all there is.
pub(super) fn rot(site: &Arc<Site>, at: usize) {
    let map = site.map();
    let has_others = |chain: &Chain| chain.group().unwrap().in_sync.len() > 1;
    if !map.chains.iter().all(has_others) || !is_sound(site) {
        return;
    }
    // A place that nothing is in does not count.
    if !(0..FLIPS_MAX).any(|_| flips(site, at)) {
        return;
    }
    site.count("bits flipped");
    note_lost(site);
    // While it is not mended yet.
    let other = site.dice.below(NODES as u64) as usize;
    if site.dice.below(8) == 0 && other != at && may_cut_power(site, other) {
        cut_power(site, other);
    }
}

/// Flips a bit in front of a slot, or in a block that is used; tells whether that is found.
fn flips(site: &Site, at: usize) -> bool {
    let slot = site.dice.below(SLOTS) * u64::from(BLOCK + CHUNK_BYTES);
    let within = match site.dice.below(4) {
        0 => site.dice.below(u64::from(BLOCK)),
        _ => {
            // Behind the header.
            let (offset, len) = CELLS[site.dice.below(CELLS.len() as u64) as usize];
            u64::from(BLOCK + offset) + site.dice.below(u64::from(len))
        }
    };
    let bit = (slot + within) * 8 + site.dice.below(8);
    if site.nodes[at].disk.flip_bit("slabs/65536/0.slab", bit).is_err() {
        return false;
    }
    site.is_rotten.store(true, SeqCst);
    let found = findings(site, at);
    site.scheduler.note(&|| format!("bit {bit} of the disk of node {at} flips: {found:?}"));
    let is_found = found.is_some_and(|found| !found.is_empty());
    if !is_found && scrubbed(site, at).is_some_and(|found| found.is_empty()) {
        // What is written there later, and torn by a power cut, would show it.
        site.nodes[at].disk.flip_bit("slabs/65536/0.slab", bit).unwrap();
    }
    is_found
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

fn cut_power(site: &Arc<Site>, at: usize) {
    // It counts from now on as one that may lack what it has reported, until it is in sync at a later epoch.
    site.cut_at.lock()[at] = site.map().epoch.0 + 1;
    node::kill(site, at, true);
    note_lost(site);
}

/// One action of the world.
pub(super) fn next(site: &Arc<Site>) {
    let at = site.dice.below(NODES as u64) as usize;
    if site.is_rotten.load(SeqCst) && is_sound(site) {
        site.is_rotten.store(false, SeqCst);
    }
    match site.dice.below(20) {
        0..=2 => node::kill(site, at, false),
        3 if may_cut_power(site, at) => cut_power(site, at),
        15 if site.dice.below(3) == 0 && cut_all(site) => {}
        16 if may_cut_power(site, at) => fail_disk(site, at),
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
