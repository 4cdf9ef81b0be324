//! What a change of a chunk that is here has to do first, so that recovery knows where data and checksum may disagree.

use crate::cache::{Entry, State};
use crate::error::ChunkError;
use crate::fresh::Standing;
use crate::geometry::Regions;
use crate::index::Verb;
use crate::key;
use crate::store::ChunkStore;
use ashlar_kv::Urgency;
use bytes::Bytes;
use parking_lot::RwLockWriteGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Regions cleared by one commit.
const CLEAR_BATCH: usize = 4096;

enum Permit {
    /// The slot, by its generation, was taken since the last sync.
    Fresh(u64),
    /// These regions are marked.
    Marked(Regions),
}

/// Permission to change a chunk's data and checksums in place, until it is dropped.
pub(crate) struct Change<'a> {
    store: &'a ChunkStore,
    permit: Permit,
    /// Where the next append is expected, unless the chunk is full.
    pub(crate) open_end: Option<u32>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        match &self.permit {
            Permit::Fresh(generation) => self.store.fresh.leave(*generation, self.open_end),
            Permit::Marked(regions) => {
                self.store.dirty.leave(regions, self.store.rounds.started(), self.store.clock.monotonic());
            }
        }
    }
}

impl ChunkStore {
    /// Locks a chunk for a change of the data bytes `[from, to)`. Without a permit the chunk is not here.
    pub(crate) fn begin_change<'s, 'e>(
        &'s self,
        entry: &'e Entry,
        (from, to): (u32, u32),
    ) -> Result<(RwLockWriteGuard<'e, State>, Option<Change<'s>>), ChunkError> {
        loop {
            let state = self.write_state(entry)?;
            let State::Present(chunk) = &*state else { return Ok((state, None)) };
            let open_end = chunk.open_end();
            match self.fresh.enter(chunk.identity.generation) {
                Standing::Fresh => {
                    let permit = Permit::Fresh(chunk.identity.generation);
                    return Ok((state, Some(Change { store: self, permit, open_end })));
                }
                Standing::MustSync => {
                    // Waits without the chunk's lock: readers go on.
                    drop(state);
                    self.counters.syncs_for_stale_slots.fetch_add(1, Ordering::Relaxed);
                    self.sync()?;
                }
                Standing::Old => {
                    let regions = chunk.slot.regions(from, to);
                    if self.dirty.enter(&regions) {
                        return Ok((
                            state,
                            Some(Change { store: self, permit: Permit::Marked(regions), open_end }),
                        ));
                    }
                    drop(state);
                    self.mark(&regions)?;
                }
            }
        }
    }

    /// Marks regions durably.
    fn mark(&self, regions: &Regions) -> Result<(), ChunkError> {
        if self.dirty.count() >= self.config.dirty_regions_max {
            self.sync()?;
            while self.clear(Some(self.clock.monotonic()))? > 0 {}
        }
        // Until the marks are noted nobody may remove one of the same region: its removal would be the later record.
        let _gate = self.mark_gate.read();
        let ahead_max = u32::try_from(self.config.dirty_regions_max / 8).unwrap_or(u32::MAX);
        let plan = self.dirty.plan(regions, ahead_max, |region| self.alloc.is_region_used(region));
        if plan.is_empty() {
            return Ok(());
        }
        // Marks are bounded in number and go again: overwriting what has its space already is possible on a full disk. What takes
        // space is asked for it elsewhere.
        let position = self.index.commit(Verb::MarkDirty, Urgency::FreesSpace, |changes| {
            changes.extend(plan.iter().map(|region| (key::dirty(*region), Some(Bytes::new()))));
        })?;
        // ORDER: the mark is durable before the first byte of the region changes.
        self.index.flush(position)?;
        self.dirty.insert(&plan, self.rounds.started(), self.clock.monotonic());
        self.counters.mark_flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.regions_marked.fetch_add(plan.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Removes marks of regions that were synced after their last change, if that was not after `idle_since`; returns how
    /// many.
    pub(crate) fn clear(&self, idle_since: Option<Duration>) -> Result<usize, ChunkError> {
        let _gate = self.mark_gate.write();
        let regions = self.dirty.start_leaving(self.rounds.completed(), idle_since, CLEAR_BATCH);
        if regions.is_empty() {
            return Ok(0);
        }
        // ORDER: not flushed. The data is durable already, and a mark that comes back only costs recovery a look.
        let committed = self.index.commit(Verb::ClearDirty, Urgency::FreesSpace, |changes| {
            changes.extend(regions.iter().map(|region| (key::dirty(*region), None)));
        });
        if let Err(error) = committed {
            self.dirty.stay(&regions);
            return Err(error);
        }
        self.dirty.remove(&regions);
        self.counters.regions_cleared.fetch_add(regions.len() as u64, Ordering::Relaxed);
        Ok(regions.len())
    }
}
