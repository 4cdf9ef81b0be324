//! Sync: makes what was acknowledged durable. Callers at the same time share a round.

use crate::error::ChunkError;
use crate::geometry::Region;
use crate::index::Verb;
use crate::key;
use crate::store::ChunkStore;
use ashlar_kv::Urgency;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
struct Rounds {
    started: u64,
    completed: u64,
    is_running: bool,
}

/// Rounds of syncing, numbered from 1.
#[derive(Default)]
pub(crate) struct SyncRounds {
    state: Mutex<Rounds>,
    ended: Condvar,
    /// Copies of the numbers, to be read without the lock.
    started: AtomicU64,
    completed: AtomicU64,
}

impl SyncRounds {
    /// Rounds that have begun. A change that ends now is covered by every later round.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::Acquire)
    }

    /// The last round that is over and made everything before it durable.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }
}

/// Ends a round, also when it panics, so that nobody waits for ever.
struct Running<'a> {
    rounds: &'a SyncRounds,
    completes: Option<u64>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.state.lock();
        state.is_running = false;
        if let Some(round) = self.completes {
            state.completed = round;
            self.rounds.completed.store(round, Ordering::Release);
        }
        self.rounds.ended.notify_all();
    }
}

impl ChunkStore {
    /// Makes everything that was acknowledged before the call durable.
    ///
    /// # Errors
    /// [`ChunkError::Stopped`] after a failed sync; that is final. [`ChunkError::NoSpace`] or [`ChunkError::Busy`] when the
    /// index did not take the round's record: nothing is lost, the next call tries again.
    pub fn sync(&self) -> Result<(), ChunkError> {
        let mut state = self.rounds.state.lock();
        let wanted = state.started + 1;
        loop {
            self.check()?;
            if state.completed >= wanted {
                return Ok(());
            }
            if state.is_running {
                self.rounds.ended.wait(&mut state);
                continue;
            }
            state.is_running = true;
            state.started += 1;
            let round = state.started;
            self.rounds.started.store(round, Ordering::Release);
            drop(state);
            let mut running = Running { rounds: &self.rounds, completes: None };
            let result = self.run_round(round);
            running.completes = result.is_ok().then_some(round);
            drop(running);
            return result;
        }
    }

    fn run_round(&self, number: u64) -> Result<(), ChunkError> {
        let gate = self.mark_gate.read();
        // ORDER: first the fresh slots that no change is running on, then the slabs: every write to such a slot has
        // ended, and its slab is marked as touched.
        let leaving = self.fresh.start_leaving();
        // ORDER: taken behind the fresh slots: whatever leaves them now, or was done to a region before this round, has been noted.
        let touched = self.touched.take();
        let slabs = match self.slabs.sync_touched() {
            Ok(slabs) => slabs,
            Err(error) => {
                self.touched.put_back(touched);
                return Err(error);
            }
        };
        // The next append to a chunk that is not full would have to mark its region: it is marked in this round's flush.
        let room = self.config.dirty_regions_max.saturating_sub(self.dirty.count()) / 2;
        let mut ahead: Vec<Region> = leaving
            .iter()
            .filter_map(|leaving| Some((leaving.slot, leaving.open_end?)))
            .flat_map(|(slot, end)| slot.regions(end, end + 1))
            .collect();
        ahead.sort_unstable();
        ahead.dedup();
        ahead.truncate(room);
        // ORDER: the slabs are durable before the index forgets that the slots were fresh, and it takes them for suspects instead.
        let before = self.index.appended();
        let committed = {
            let _gate = self.suspects_gate.lock();
            self.index.commit(Verb::Sync, Urgency::FreesSpace, |changes| {
                changes.extend(leaving.iter().map(|leaving| (key::fresh(leaving.generation), None)));
                changes.extend(ahead.iter().map(|region| (key::dirty(*region), Some(Bytes::new()))));
                let round = key::encode_round(number);
                changes.extend(touched.iter().map(|file| (key::suspect(*file), Some(round.clone()))));
            })
        };
        if committed.is_err() {
            self.touched.put_back(touched);
        }
        let position = committed?;
        // Suspects alone need no flush: their regions are still marked, and the record that removes a mark is behind these in the log.
        let needs_all = !leaving.is_empty() || !ahead.is_empty();
        self.index.flush(if needs_all { position } else { before })?;
        leaving.iter().for_each(|leaving| self.fresh.remove(leaving.generation));
        // Nothing has changed in them since this round began.
        let round = self.rounds.started().saturating_sub(1);
        self.dirty.insert(&ahead, round, self.clock.monotonic());
        drop(gate);
        let now = u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        self.synced_at.store(now, Ordering::Relaxed);
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.counters.slab_syncs.fetch_add(slabs, Ordering::Relaxed);
        Ok(())
    }
}
