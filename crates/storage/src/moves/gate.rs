//! Who may use a chain on a target: every call about it passes here.

use super::{Moves, Place};
use crate::call::{IsHere, changed_chunk};
use crate::moves::outgoing::Outgoing;
use ashlar_env::Tasks;
use ashlar_rpc::Payload;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ClusterMap, Errno, OfChains, TargetId};
use parking_lot::{RwLock, RwLockReadGuard};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// What becomes of calls about a chain that is here by the map.
#[derive(Clone)]
pub(super) enum Stage {
    /// It is being copied: changes go to the other target as well.
    Copying(Arc<Outgoing>),
    /// It may be gone: nobody is answered.
    Held,
}

/// Chains are spread over this many locks. A call holds its one from the look at the chain's stage to its end, so that a stage begins when no call
/// of an earlier one is under way.
const LOCKS: usize = 64;

/// For how long a lock is asked for, and then left to calls.
const GRAB: Duration = Duration::from_millis(50);

type Stages = FxHashMap<Place, Stage>;

/// The stages of chains of a target; one that is not listed is served.
pub(super) struct Gates {
    // LIMIT: a stage per chain that moves, or may be gone.
    stages: Vec<RwLock<Stages>>,
}

impl Default for Gates {
    fn default() -> Gates {
        Gates { stages: (0..LOCKS).map(|_| RwLock::default()).collect() }
    }
}

impl Gates {
    fn of(&self, chain: ChainId) -> &RwLock<Stages> {
        &self.stages[chain.0 as usize % LOCKS]
    }

    /// Changes the stage of a chain, once calls under way are over; false when they are not within `wait`. New calls of chains under the same lock are held
    /// up for moments only: one that waits for a disk must not stop them all.
    pub(super) fn set(&self, place: Place, stage: Option<Stage>, wait: Duration, tasks: &dyn Tasks) -> bool {
        let mut waited = Duration::ZERO;
        let mut stages = loop {
            let lock = self.of(place.1);
            let grabbed = if tasks.takes_turns() { lock.try_write() } else { lock.try_write_for(GRAB) };
            match grabbed {
                Some(stages) => break stages,
                None if waited >= wait => return false,
                None => {
                    waited += GRAB * 2;
                    tasks.pause(GRAB);
                }
            }
        };
        match stage {
            Some(stage) => stages.insert(place, stage),
            None => stages.remove(&place),
        };
        true
    }

    /// All locks, in their order.
    fn all(&self) -> Vec<RwLockReadGuard<'_, Stages>> {
        self.stages.iter().map(|stages| stages.read()).collect()
    }
}

/// What a call may do about one chain of a target.
enum Passage {
    Here,
    Copying(Arc<Outgoing>),
    Elsewhere,
}

fn passage(stages: &Stages, map: &ClusterMap, place @ (target, chain): Place) -> Passage {
    match stages.get(&place) {
        Some(Stage::Held) => Passage::Elsewhere,
        _ if map.head(chain) != Some(target) => Passage::Elsewhere,
        Some(Stage::Copying(outgoing)) => Passage::Copying(outgoing.clone()),
        None => Passage::Here,
    }
}

impl Moves {
    /// Carries a call out with `run`, if the chains it is about are here.
    ///
    /// # Errors
    /// `EREMCHG` when they are not, and what `run` answers.
    pub(crate) fn guard(
        &self,
        request: &StorageRequest,
        payload: Payload<'_>,
        run: impl FnOnce(Payload<'_>, &IsHere<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let target = request.target();
        let at = self.at(target);
        if let Some(chain) = request.chain() {
            self.throttle.note_call(self.outside.env.clock.monotonic());
            // Who may do what with a chain of several copies is for its group to say.
            if self.map().is_copied(chain) {
                return self.copies.guard(chain, request, payload, |payload| run(payload, &|_| true));
            }
            let stages = at.gates.of(chain).read();
            // The map is not locked while the call is carried out: a newer one must be able to come meanwhile.
            let passage = passage(&stages, &self.map(), (target, chain));
            return match passage {
                Passage::Elsewhere => Err(Errno::EREMCHG),
                Passage::Copying(outgoing) if changed_chunk(request).is_some() => {
                    outgoing.change(request, payload, |payload| run(payload, &|_| true))
                }
                Passage::Here | Passage::Copying(_) => run(payload, &|_| true),
            };
        }
        match request {
            StorageRequest::DeleteGeneration { chains, .. }
            | StorageRequest::Extent { chains, .. }
            | StorageRequest::NextChunk { chains, .. } => {
                self.guard_several(target, chains, request, |is_here| run(payload, is_here))
            }
            StorageRequest::Sync { chains: all @ OfChains::Only(chains), .. } => {
                // What was written to a chain before it left was made durable where it went, and what was written since is there.
                let is_elsewhere = |chain: &ChainId| {
                    let stages = at.gates.of(*chain).read();
                    matches!(passage(&stages, &self.map(), (target, *chain)), Passage::Elsewhere)
                };
                match chains.iter().any(is_elsewhere) {
                    true => Err(Errno::EREMCHG),
                    false => self.copies.sync(target, all, || run(payload, &|_| true)),
                }
            }
            StorageRequest::Sync { chains, .. } => {
                self.copies.sync(target, chains, || run(payload, &|_| true))
            }
            _ => run(payload, &|_| true),
        }
    }

    /// Whether a request is about chains all of which are at other targets than its own, by the map.
    pub(crate) fn is_elsewhere(&self, request: &StorageRequest) -> bool {
        let (map, target) = (self.map(), request.target());
        let is_gone = |chain: &ChainId| map.head(*chain).is_some_and(|head| head != target);
        match (request.chain(), request) {
            (Some(chain), _) => is_gone(&chain),
            (
                None,
                StorageRequest::DeleteGeneration { chains: OfChains::Only(chains), .. }
                | StorageRequest::Extent { chains: OfChains::Only(chains), .. }
                | StorageRequest::NextChunk { chains: OfChains::Only(chains), .. }
                | StorageRequest::Sync { chains: OfChains::Only(chains), .. },
            ) => !chains.is_empty() && chains.iter().all(is_gone),
            _ => false,
        }
    }

    /// The same for a call about chunks of several chains of one file.
    fn guard_several(
        &self,
        target: TargetId,
        chains: &OfChains,
        request: &StorageRequest,
        run: impl FnOnce(&IsHere<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let at = self.at(target);
        let stages = at.gates.all();
        let map = self.map();
        let passage = |chain: ChainId| passage(&stages[chain.0 as usize % LOCKS], &map, (target, chain));
        if let OfChains::Only(chains) = chains
            && chains.iter().any(|chain| matches!(passage(*chain), Passage::Elsewhere))
        {
            return Err(Errno::EREMCHG);
        }
        let StorageRequest::DeleteGeneration { inode, generation, from_index, .. } = request else {
            let is_told = |chain: ChainId| !map.is_copied(chain) || self.copies.tells(target, chain);
            if let OfChains::Only(chains) = chains
                && !chains.iter().all(|chain| is_told(*chain))
            {
                return Err(Errno::EREMCHG);
            }
            return run(&|chain: Option<ChainId>| {
                chain.is_none_or(|chain| !matches!(passage(chain), Passage::Elsewhere) && is_told(chain))
            });
        };
        let copying =
            stages.iter().flat_map(|stages| stages.iter()).filter_map(|(place, stage)| match stage {
                Stage::Copying(outgoing) if place.0 == target && chains.has(Some(place.1)) => {
                    Some(outgoing.clone())
                }
                _ => None,
            });
        let mut copying: Vec<Arc<Outgoing>> = copying.collect();
        copying.sort_by_key(|outgoing| outgoing.place());
        Outgoing::delete(&copying, (*inode, *generation, *from_index), || {
            self.copies.delete(request, &map, |is_deleted| {
                run(&|chain: Option<ChainId>| {
                    chain.is_none_or(|chain| match map.is_copied(chain) {
                        true => is_deleted(chain),
                        false => !matches!(passage(chain), Passage::Elsewhere),
                    })
                })
            })
        })
    }
}
