//! What there is of moves at one target. Nobody who waits for its disk holds anything of another target.

use super::gate::{Gates, Stage};
use super::incoming::Incoming;
use super::{End, Moves, Place};
use crate::StorageService;
use ashlar_chunkstore::{ChainNote, ChunkError, ChunkStore};
use ashlar_replication::hand_over::chain::{Giving, Note, Seen, Step};
use ashlar_types::{ChainId, Epoch, TargetId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Time between two questions whether a chain has left.
const ASK_PAUSE: Duration = Duration::from_millis(500);

/// A chain of which it is not known whether it is gone, and when a manager was asked last.
struct Doubt {
    giving: Giving,
    asked: Option<Duration>,
}

/// See the module.
pub(super) struct AtTarget {
    pub gates: Gates,
    /// Chains that come.
    // LIMIT: as moves in the map.
    pub incoming: Mutex<BTreeMap<ChainId, Arc<Incoming>>>,
    /// Chains that may be gone.
    // LIMIT: as chains.
    doubts: Mutex<BTreeMap<ChainId, Doubt>>,
    /// Held by whoever looks what is noted of a chain, and notes something else.
    pub noting: Mutex<()>,
    /// Something may be here that should not.
    pub has_leftovers: AtomicBool,
    /// Somebody sees to that.
    is_tended: AtomicBool,
}

impl Default for AtTarget {
    fn default() -> AtTarget {
        AtTarget {
            gates: Gates::default(),
            incoming: Mutex::default(),
            doubts: Mutex::default(),
            noting: Mutex::default(),
            has_leftovers: AtomicBool::new(true),
            is_tended: AtomicBool::new(false),
        }
    }
}

/// What the decisions go by of what is noted.
pub(super) fn note_of(note: ChainNote) -> Note {
    match note {
        ChainNote::Leaving { since } => Note::Leaving(since),
        ChainNote::Arrived { since } => Note::Arrived(since),
    }
}

impl AtTarget {
    /// From now on it is found out whether `chain` is gone. It must be closed.
    pub fn doubt(&self, chain: ChainId, giving: Giving) {
        self.doubts.lock().insert(chain, Doubt { giving, asked: None });
    }

    pub fn is_doubtful(&self, chain: ChainId) -> bool {
        self.doubts.lock().contains_key(&chain)
    }

    /// Forgets the note that a chain may leave by the move `since`, if that is what is noted: it may have come back meanwhile.
    ///
    /// # Errors
    /// Those of the index.
    pub fn forget_leaving(&self, store: &ChunkStore, chain: ChainId, since: Epoch) -> Result<(), ChunkError> {
        let _alone = self.noting.lock();
        match store.chain_notes()?.get(&chain) {
            Some(note) if *note == (ChainNote::Leaving { since }) => store.note_chain(chain, None),
            _ => Ok(()),
        }
    }
}

/// Ends also when what it is for panics.
struct Tending(Arc<AtTarget>);

impl Drop for Tending {
    fn drop(&mut self) {
        self.0.is_tended.store(false, SeqCst);
    }
}

impl Moves {
    /// Has what waits for disks or managers done, by a thread for each target.
    pub(super) fn tend(self: &Arc<Self>, service: &Arc<StorageService>) {
        for (target, store) in service.targets() {
            let at = self.at(target);
            // What is left waits for a map that is kept.
            let may_remove = at.has_leftovers.load(SeqCst) && (self.outside.is_kept)(self.map().epoch);
            let has_work = may_remove || !at.doubts.lock().is_empty();
            if !has_work || self.is_stopping() || at.is_tended.swap(true, SeqCst) {
                continue;
            }
            let (moves, tending) = (self.clone(), Tending(at.clone()));
            let run = move || {
                let _tending = tending;
                moves.settle_doubts((target, &store), &at);
                if at.has_leftovers.swap(false, SeqCst) {
                    moves.remove_leftovers(target, &store);
                }
            };
            if let Err(error) = self.outside.env.tasks.spawn("ashlar-tend", Box::new(run)) {
                tracing::error!(%error, %target, "no thread can be started; what is left of moves stays for now");
            }
        }
    }

    /// Finds out, of chains that may be gone, whether they are.
    fn settle_doubts(&self, (target, store): (TargetId, &ChunkStore), at: &AtTarget) {
        let chains: Vec<ChainId> = at.doubts.lock().keys().copied().collect();
        for chain in chains {
            if self.is_stopping() {
                return;
            }
            let Some(giving) = self.look_after((target, chain), at) else { continue };
            match giving.step() {
                Step::Reopen => {
                    if let Err(error) = at.forget_leaving(store, chain, giving.since()) {
                        tracing::error!(%error, %chain, %target, "a chain stays unserved");
                        continue;
                    }
                    tracing::info!(%chain, %target, "a chain that was leaving has stayed");
                    self.open_again((target, chain), at);
                }
                Step::AwaitMap => {
                    let seen = Seen::of(&self.map(), chain);
                    if seen.is_some_and(|seen| giving.is_ended_by(seen, target)) {
                        self.open_again((target, chain), at);
                    }
                }
                _ => {}
            }
        }
    }

    /// What is known of a chain in doubt, once it was looked at the map, and a manager was asked if it is time.
    fn look_after(&self, (target, chain): Place, at: &AtTarget) -> Option<Giving> {
        let now = self.outside.env.clock.monotonic();
        let seen = Seen::of(&self.map(), chain);
        let end = {
            let mut doubts = at.doubts.lock();
            let doubt = doubts.get_mut(&chain)?;
            if let Some(seen) = seen {
                doubt.giving.see(seen, target);
            }
            let is_early = doubt.asked.is_some_and(|asked| now < asked + ASK_PAUSE);
            match doubt.giving.step() {
                Step::Ask { is_given_up } if !is_early => {
                    doubt.asked = Some(now);
                    End { chain, from: target, since: doubt.giving.since(), is_given_up }
                }
                _ => return Some(doubt.giving.clone()),
            }
        };
        let told = (self.outside.end_move)(end);
        let mut doubts = at.doubts.lock();
        let doubt = doubts.get_mut(&chain)?;
        doubt.giving.told(told);
        Some(doubt.giving.clone())
    }

    /// Whose a chain is is known by now: calls are answered by the map again.
    fn open_again(&self, place @ (_, chain): Place, at: &AtTarget) {
        self.set(place, None);
        at.doubts.lock().remove(&chain);
        at.has_leftovers.store(true, SeqCst);
        // What the map says of it may have been passed over while nobody knew.
        *self.looked_at.lock() = None;
    }

    /// Closes a chain for good, until it is known whether it is gone.
    pub(super) fn leave_in_doubt(&self, (target, chain): Place, giving: Giving) {
        debug_assert!(giving.is_closed(), "nobody is answered meanwhile");
        self.at(target).doubt(chain, giving);
    }

    pub(super) fn note_leftovers(&self, target: TargetId) {
        self.at(target).has_leftovers.store(true, SeqCst);
    }

    /// What a chain's stage is changed to, once calls under way are over.
    pub(super) fn set_within(&self, place: Place, stage: Option<Stage>, wait: Duration) -> bool {
        self.at(place.0).gates.set(place, stage, wait, &*self.outside.env.tasks)
    }
}
