//! What goes wrong.

use super::{MANAGERS, NODES, Site, at_of, damage, node, node_of};
use ashlar_env::sim::FaultOp;
use ashlar_replication::membership::{Change, Proposer};
use ashlar_types::NodeId;
use std::sync::Arc;
use std::time::Duration;

/// All lose their power at once: what was not flushed may be lost.
pub(super) fn cut_all(site: &Arc<Site>, cut_at: &mut [u64]) {
    {
        let mut told = site.told.lock();
        told.cuts_of_all += 1;
        let uncertain: Vec<u64> = told.acknowledged.difference(&told.flushed).copied().collect();
        told.uncertain.extend(uncertain);
        told.acknowledged = told.flushed.clone();
        told.newest = told.flushed.last().copied().unwrap_or(0);
    }
    let epoch = site.map.lock().1.epoch.0;
    (0..NODES).for_each(|at| {
        cut_at[at] = epoch + 1;
        site.may_lack.lock().insert(at);
        node::kill(site, at, true);
    });
}

/// The disk of a node refuses a sync, and has lost what was not flushed. Its process lives on for a while, and another one goes on with the same disk, which works again.
fn fail_disk(site: &Arc<Site>, at: usize, cut_at: &mut [u64]) {
    let Some(replica) = site.nodes[at].life.lock().replica.lock().clone() else { return };
    // Whatever it has counts for nothing until it is started again, and in sync at a later epoch than that.
    cut_at[at] = u64::MAX;
    // It answers nobody from then on until it is started again.
    site.blame.lock().disturbed(at, Duration::MAX / 2);
    site.nodes[at].disk.disk.fail_nth(FaultOp::Sync, 1, libc::EIO);
    let flushed = replica.lane().flush_here();
    drop(replica);
    site.scheduler.note(&|| format!("a flush of node {at} is refused: {flushed:?}"));
    if flushed.is_err() {
        site.told.lock().disks_failed += 1;
        if let Err(error) = site.step_until(site.now() + Duration::from_millis(site.dice.below(10_000))) {
            return site.fail(error);
        }
    }
    cut_at[at] = site.map.lock().1.epoch.0 + 1;
    site.may_lack.lock().insert(at);
    node::kill(site, at, false);
}

/// Whether a power cut of `at` may take nothing that is promised: others in sync run, have all they had, and this one's loss will be found out by its own start.
fn may_cut_power(site: &Site, at: usize, cut_at: &[u64]) -> bool {
    let (_, membership) = &*site.map.lock();
    let mut others = membership.in_sync.iter().filter(|node| **node != node_of(at));
    let is_member = membership.is_in_sync(node_of(at));
    let is_whole = |node: &NodeId| {
        let at = at_of(*node);
        cut_at[at] < membership.epoch.0 && !site.may_lack.lock().contains(&at)
    };
    !is_member || (others.clone().next().is_some() && others.all(is_whole))
}

/// One action of the world.
pub(super) fn next(site: &Arc<Site>, cut_at: &mut [u64]) {
    let at = site.dice.below(NODES as u64) as usize;
    match site.dice.below(18) {
        0..=1 => node::kill(site, at, false),
        2 if may_cut_power(site, at, cut_at) => {
            // It counts from now on as one that may lack what it has reported, until it was out of sync, or has told.
            cut_at[at] = site.map.lock().1.epoch.0 + 1;
            site.may_lack.lock().insert(at);
            node::kill(site, at, true);
        }
        15 if may_cut_power(site, at, cut_at) => fail_disk(site, at, cut_at),
        3..=4 => {
            let until = site.now() + Duration::from_millis(site.dice.below(15_000));
            site.scheduler.note(&|| format!("node {at} hangs until {until:?}"));
            *site.nodes[at].frozen_until.lock() = until;
            site.blame.lock().disturbed(at, until);
            site.scheduler.freeze(&format!("n{at}-"), until);
        }
        5..=6 => {
            let other = site.dice.below(NODES as u64 + 1) as usize;
            site.cut.lock().insert((at, other));
            if site.dice.below(2) == 0 {
                site.cut.lock().insert((other, at));
            }
        }
        // A cut heals soon.
        10..=14 => mend(site),
        8 => {
            // Alone, and still thinking that it is primary.
            let others = (0..=NODES).filter(|other| *other != at);
            site.cut.lock().extend(others.flat_map(|other| [(at, other), (other, at)]));
        }
        9 if site.dice.below(3) == 0 => cut_all(site, cut_at),
        16 => damage::strike(site, at),
        _ => admit_missing(site),
    }
}

/// All hear each other again.
pub(super) fn mend(site: &Site) {
    let cut = std::mem::take(&mut *site.cut.lock());
    let nodes = cut.into_iter().flat_map(|(one, other)| [one, other]).filter(|node| *node != MANAGERS);
    nodes.for_each(|at| site.blame.lock().disturbed(at, site.now()));
}

pub(super) fn admit_missing(site: &Site) {
    let (epoch, missing) = {
        let (_, membership) = &*site.map.lock();
        (membership.epoch, (0..NODES).map(node_of).find(|node| !membership.is_member(*node)))
    };
    if let Some(node) = missing {
        site.change(epoch, Proposer::Operator, Change::Admit(node));
    }
}
