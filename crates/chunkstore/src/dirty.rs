//! Dirty regions: where data and checksum may disagree after an unclean stop.
//!
//! A region is marked durably (table `d` of the index) before the first change to data in it that was synced before. The
//! mark is removed when nothing changed the region for a while and a sync has followed the last change; that removal
//! need not be durable, a region that stays marked only costs recovery a look.
//!
//! | state | a change | a removal |
//! |---|---|---|
//! | absent | must mark first (one flush of the index) | - |
//! | marked | goes ahead | turns it into "being removed", when idle and synced |
//! | being removed | must mark anew, after the removal is committed | makes it absent |

use crate::geometry::{Region, Regions};
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SHARDS: usize = 32;
/// Regions marked together where none before them is marked.
const AHEAD_MIN: u32 = 4;
/// Most regions marked together; a slab of 1 GiB has as many.
const AHEAD_MAX: u32 = 1024;

struct Mark {
    changes_running: u32,
    is_leaving: bool,
    /// Sync rounds started before the last change ended.
    round: u64,
    /// When the last change ended.
    at: Duration,
}

/// The dirty regions of a target.
pub(crate) struct DirtyRegions {
    shards: Vec<Mutex<FxHashMap<Region, Mark>>>,
    count: AtomicUsize,
}

impl DirtyRegions {
    pub(crate) fn new() -> DirtyRegions {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        DirtyRegions { shards, count: AtomicUsize::new(0) }
    }

    fn shard(&self, region: Region) -> &Mutex<FxHashMap<Region, Mark>> {
        &self.shards[(FxBuildHasher.hash_one(region) >> 40) as usize % SHARDS]
    }

    /// Marked regions.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether a region is marked, for deciding how far to mark ahead.
    fn is_marked(&self, region: Region) -> bool {
        self.shard(region).lock().contains_key(&region)
    }

    /// Begins a change if all its regions are marked; [`DirtyRegions::leave`] must follow.
    pub(crate) fn enter(&self, regions: &Regions) -> bool {
        for (done, region) in regions.iter().enumerate() {
            let mut shard = self.shard(*region).lock();
            match shard.get_mut(region) {
                Some(mark) if !mark.is_leaving => mark.changes_running += 1,
                _ => {
                    drop(shard);
                    regions[..done].iter().for_each(|region| self.release(*region, None));
                    return false;
                }
            }
        }
        true
    }

    /// Ends a change. `round` is the number of sync rounds started so far, `now` the time.
    pub(crate) fn leave(&self, regions: &Regions, round: u64, now: Duration) {
        regions.iter().for_each(|region| self.release(*region, Some((round, now))));
    }

    fn release(&self, region: Region, changed: Option<(u64, Duration)>) {
        if let Some(mark) = self.shard(region).lock().get_mut(&region) {
            mark.changes_running -= 1;
            if let Some((round, now)) = changed {
                // Changes of other chunks of the region may have ended meanwhile, at a later round.
                (mark.round, mark.at) = (mark.round.max(round), mark.at.max(now));
            }
        }
    }

    /// The regions to mark for a change to `wanted`, in order: those not marked yet, and up to `ahead_max` behind them. As
    /// many are taken along as are marked in a row before them, so that overwriting a slab from front to end costs few flushes,
    /// and scattered overwrites take a few neighbours only.
    pub(crate) fn plan(
        &self,
        wanted: &Regions,
        ahead_max: u32,
        is_used: impl Fn(Region) -> bool,
    ) -> Vec<Region> {
        let (Some(first), Some(last)) = (wanted.first().copied(), wanted.last().copied()) else {
            return Vec::new();
        };
        let mut before = (0..first.number).rev().map(|number| Region { number, ..first });
        let run =
            before.by_ref().take(AHEAD_MAX as usize).take_while(|region| self.is_marked(*region)).count();
        let ahead = (run as u32).max(AHEAD_MIN).min(ahead_max);
        let end = (first.number + ahead).min(first.slab.class.regions_per_slab()).max(last.number + 1);
        (first.number..end)
            .map(|number| Region { number, ..first })
            .filter(|region| !self.is_marked(*region) && (wanted.contains(region) || is_used(*region)))
            .collect()
    }

    /// Notes regions whose marks are durable.
    pub(crate) fn insert(&self, regions: &[Region], round: u64, now: Duration) {
        for region in regions {
            let mark = Mark { changes_running: 0, is_leaving: false, round, at: now };
            let mut shard = self.shard(*region).lock();
            if !shard.contains_key(region) {
                shard.insert(*region, mark);
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Starts to remove up to `max` marks: no change running, the last one before `idle_since` and before a sync round
    /// that is complete.
    pub(crate) fn start_leaving(
        &self,
        completed: u64,
        idle_since: Option<Duration>,
        max: usize,
    ) -> Vec<Region> {
        let mut out = Vec::new();
        for shard in &self.shards {
            for (region, mark) in shard.lock().iter_mut() {
                let is_idle = idle_since.is_some_and(|since| mark.at <= since);
                if mark.changes_running == 0 && mark.round < completed && is_idle && out.len() < max {
                    mark.is_leaving = true;
                    out.push(*region);
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// Forgets marks whose removal is committed.
    pub(crate) fn remove(&self, regions: &[Region]) {
        for region in regions {
            if self.shard(*region).lock().remove(region).is_some() {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Keeps marks whose removal was refused.
    pub(crate) fn stay(&self, regions: &[Region]) {
        for region in regions {
            if let Some(mark) = self.shard(*region).lock().get_mut(region) {
                mark.is_leaving = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Class, SlabId};

    fn region(number: u32) -> Region {
        Region { slab: SlabId { class: Class::of(1 << 20).unwrap(), number: 0 }, number }
    }

    #[test]
    fn a_mark_stays_while_it_is_used_or_not_synced() {
        let dirty = DirtyRegions::new();
        let one: Regions = [region(1)].into_iter().collect();
        let now = Duration::from_secs(5);
        assert!(!dirty.enter(&one));
        dirty.insert(&[region(1)], 0, now);
        assert!(dirty.enter(&one));
        assert!(dirty.start_leaving(9, Some(now), 10).is_empty(), "a change is running");
        dirty.leave(&one, 3, now);
        assert!(
            dirty.start_leaving(3, Some(now), 10).is_empty(),
            "no round started after the change is complete"
        );
        assert!(
            dirty.start_leaving(4, Some(Duration::from_secs(4)), 10).is_empty(),
            "not idle for long enough"
        );
        assert_eq!(dirty.start_leaving(4, Some(now), 10), vec![region(1)]);
        assert!(!dirty.enter(&one), "being removed");
        dirty.remove(&[region(1)]);
        assert_eq!(dirty.count(), 0);
    }

    #[test]
    fn a_change_that_tells_late_that_it_has_ended_does_not_hide_a_later_one_of_its_region() {
        let dirty = DirtyRegions::new();
        let one: Regions = [region(1)].into_iter().collect();
        let (before, now) = (Duration::from_secs(5), Duration::from_secs(6));
        dirty.insert(&[region(1)], 0, before);
        assert!(dirty.enter(&one) && dirty.enter(&one), "of two chunks");
        dirty.leave(&one, 6, now);
        dirty.leave(&one, 5, before);
        assert!(
            dirty.start_leaving(6, Some(now), 10).is_empty(),
            "no round has covered the first that ended"
        );
        assert!(dirty.start_leaving(7, Some(before), 10).is_empty(), "not idle for long enough");
        assert_eq!(dirty.start_leaving(7, Some(now), 10), vec![region(1)]);
    }

    #[test]
    fn sequential_overwrites_mark_further_and_further_ahead() {
        let dirty = DirtyRegions::new();
        let mut flushes = 0;
        for number in 0..1024 {
            let wanted: Regions = [region(number)].into_iter().collect();
            if !dirty.enter(&wanted) {
                flushes += 1;
                let plan = dirty.plan(&wanted, 1024, |_| true);
                dirty.insert(&plan, 0, Duration::ZERO);
                assert!(dirty.enter(&wanted));
            }
        }
        assert!(flushes <= 10, "{flushes} flushes for 1 GiB");
        let far: Regions =
            [Region { slab: SlabId { number: 9, ..region(0).slab }, number: 500 }].into_iter().collect();
        assert_eq!(dirty.plan(&far, 1024, |_| true).len(), 4);
    }
}
