//! Slots taken since the last sync. A change to one needs no dirty region: table `n` of the index names it, and
//! recovery looks at it as a whole.
//!
//! | state | next change of the chunk |
//! |---|---|
//! | fresh | goes ahead |
//! | fresh and stale (old bytes may be below it) | syncs the target first, then is an old slot |
//! | leaving (a sync round is making it durable) | marks a dirty region, as for an old slot |
//! | leaving and stale | waits for the round |
//! | not here: old | marks a dirty region |

use crate::geometry::Slot;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// LIMIT: fresh slots; a write that would make more syncs the target first.
pub(crate) const FRESH_MAX: usize = 1 << 14;

struct Record {
    slot: Slot,
    is_stale: bool,
    is_leaving: bool,
    changes_running: u32,
    /// Where the next append is expected, unless the chunk is full.
    open_end: Option<u32>,
}

/// What a change has to do about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing; [`FreshSlots::leave`] must follow.
    Fresh,
    /// Sync the target, then ask again.
    MustSync,
    /// Mark dirty regions.
    Old,
}

/// A slot that a sync round takes out.
pub(crate) struct Leaving {
    pub(crate) generation: u64,
    pub(crate) slot: Slot,
    pub(crate) open_end: Option<u32>,
}

/// The slots taken since the last sync, by slot generation.
pub(crate) struct FreshSlots {
    shards: Vec<Mutex<FxHashMap<u64, Record>>>,
    count: AtomicUsize,
}

impl FreshSlots {
    pub(crate) fn new() -> FreshSlots {
        FreshSlots { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), count: AtomicUsize::new(0) }
    }

    fn shard(&self, generation: u64) -> &Mutex<FxHashMap<u64, Record>> {
        &self.shards[generation as usize % SHARDS]
    }

    /// Fresh slots.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds a slot whose record has been committed. `open_end` is as in [`FreshSlots::leave`].
    pub(crate) fn insert(&self, generation: u64, slot: Slot, is_stale: bool, open_end: Option<u32>) {
        let record = Record { slot, is_stale, is_leaving: false, changes_running: 0, open_end };
        // ORDER: counted under the lock. A sync that takes the slot out at once would count it down first, below nothing.
        let mut shard = self.shard(generation).lock();
        if shard.insert(generation, record).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks to change the chunk in a slot.
    pub(crate) fn enter(&self, generation: u64) -> Standing {
        if self.count() == 0 {
            return Standing::Old;
        }
        match self.shard(generation).lock().get_mut(&generation) {
            None => Standing::Old,
            Some(record) if record.is_stale => Standing::MustSync,
            Some(record) if record.is_leaving => Standing::Old,
            Some(record) => {
                record.changes_running += 1;
                Standing::Fresh
            }
        }
    }

    /// Ends a change. `open_end` is the length, unless the chunk is full.
    pub(crate) fn leave(&self, generation: u64, open_end: Option<u32>) {
        if let Some(record) = self.shard(generation).lock().get_mut(&generation) {
            record.changes_running -= 1;
            record.open_end = open_end;
        }
    }

    /// Forgets a slot whose chunk was deleted.
    pub(crate) fn remove(&self, generation: u64) {
        let mut shard = self.shard(generation).lock();
        if shard.remove(&generation).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Starts to take out all slots that no change is running on.
    pub(crate) fn start_leaving(&self) -> Vec<Leaving> {
        let mut out = Vec::with_capacity(self.count());
        for shard in &self.shards {
            for (generation, record) in
                shard.lock().iter_mut().filter(|(_, record)| record.changes_running == 0)
            {
                record.is_leaving = true;
                out.push(Leaving { generation: *generation, slot: record.slot, open_end: record.open_end });
            }
        }
        out.sort_unstable_by_key(|leaving| leaving.generation);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Class, SlabId};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn slots_that_a_sync_takes_out_as_they_come_in_are_not_counted_below_nothing() {
        const SLOTS: u64 = 100_000;
        let (fresh, is_over) = (FreshSlots::new(), AtomicBool::new(false));
        let slot = Slot { slab: SlabId { class: Class::all().next().unwrap(), number: 0 }, number: 0 };
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        // It makes room for as many as are counted.
                        for leaving in fresh.start_leaving() {
                            fresh.remove(leaving.generation);
                        }
                    }
                });
            }
            (0..SLOTS).for_each(|generation| fresh.insert(generation, slot, false, None));
            is_over.store(true, Ordering::Relaxed);
        });
        let left = fresh.start_leaving().len();
        assert_eq!(fresh.count(), left);
    }
}
