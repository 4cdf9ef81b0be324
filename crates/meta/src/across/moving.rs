//! Shards that go from one server to another while they are used (ADR 0016).
//!
//! ```text
//!  sender, which has it               receiver                          manager
//!     │ Begin                            │                                 │
//!     ├─────────────────────────────────▶│ removes what it has of it, and  │
//!     │ Sessions, Pairs ...              │ notes that it is coming         │
//!     ├─────────────────────────────────▶│ has it in its log               │
//!     │ (serves; what changes is sent    │                                 │
//!     │  again, until little is left)    │                                 │
//!     │ closes the gate: calls come again│                                 │
//!     │ Pairs, Holds, Whole              │                                 │
//!     ├─────────────────────────────────▶│ has all of it, durably          │
//!     │ TransferShards(epoch)            │                                 │
//!     ├──────────────────────────────────┼────────────────────────────────▶│ compare-and-set: the map says so
//!     │ sees the map: forgets it         │ sees the map: serves it         │
//!     │ removes it, in bounded steps     │                                 │
//! ```
//!
//! The map decides. Before it says that the shard is the receiver's, the sender may give up; after that it never serves it again, whatever becomes of either.
//! Between the question and its answer nobody serves it.
//!
//! ORDER: the epoch that a transfer names is looked at before the receiver is asked, for the last time, whether it has everything. A start of either
//! server changes the epoch before it serves, so no transfer is carried out of which one of both does not know any more, however late the question comes.
//!
//! What only the sender's memory has ([`Hold`](super::message::Hold)) goes along; so nobody has to tell it anew, and nobody who is silent is waited for.

mod clear;
mod handed;
mod join;
mod queue;
mod receive;
mod send;
mod track;
mod unmet;

pub(super) use queue::Sending;
pub(super) use receive::Incoming;
pub use send::{Transfer, Transferred};
pub(super) use track::Tracker;
pub(crate) use unmet::Unmet;
use unmet::meet_holders;

use crate::MetaService;
use ashlar_kv::Key;
use ashlar_namespace::key;
use ashlar_replication::hand_over::shard::{Found, found_at_start};
use ashlar_types::{Epoch, Errno, ShardId};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Time between two looks whether a shard that comes has come: a part of what clients see of a move.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The same while none comes.
const LOOK_IDLE: Duration = Duration::from_millis(100);
/// The same while one is awaited that is whole, or there is something to be removed.
const LOOK_SOON: Duration = Duration::from_millis(2);

/// A shard that is on its way here.
pub(super) struct Coming {
    /// When it began to come.
    pub since: Duration,
    pub incoming: Arc<Mutex<Incoming>>,
}

/// Shards that change hands. Its lock is a leaf.
#[derive(Default)]
pub(super) struct Hands {
    /// Here by the map, and not served: it is being decided whether they are another server's.
    // LIMIT: as shards.
    pub frozen: FxHashSet<ShardId>,
    /// On their way here.
    // LIMIT: as shards.
    pub arriving: FxHashMap<ShardId, Coming>,
    /// Of which there may be something left that is not this server's, and from which key on.
    // LIMIT: as shards.
    pub left_behind: BTreeMap<ShardId, Key>,
    /// What has come of asking for a share of empty shards.
    pub share: join::Share,
}

impl MetaService {
    /// Serves shards that have come, removes what is left of those that have gone, and takes a share of the empty ones. To be called again after
    /// [`MetaService::await_shards`] of the time that it tells.
    ///
    /// # Errors
    /// `EIO` from the store.
    pub fn tend_shards(&self) -> Result<Duration, Errno> {
        if !self.across.has_peers() {
            return Ok(LOOK_IDLE);
        }
        let is_soon = self.tend_arriving()?;
        let is_busy = self.clear_left_behind()?;
        self.take_share()?;
        // What is coming shortens the wait by itself.
        let asks_for_share = !self.across.hands.lock().share.is_taken;
        Ok(match (is_soon || is_busy, asks_for_share) {
            (true, _) => LOOK_SOON,
            (false, true) => LOOK_EVERY,
            (false, false) => LOOK_IDLE,
        })
    }

    /// Waits for `pause`, as [`MetaService::tend_shards`] has told, or until a shard begins to come.
    pub fn await_shards(&self, pause: Duration) {
        let mut hands = self.across.hands.lock();
        // One that has begun since is looked for as soon as any.
        let pause = if hands.arriving.is_empty() { pause } else { pause.min(LOOK_EVERY) };
        self.across.arrival.wait_for(&mut hands, pause);
    }

    /// The epoch of the map that whoever renews his leases must know of: by it he finds the shards that were given away. `None`: while it is being decided
    /// where one is, nothing is renewed.
    pub(crate) fn map_to_renew_by(&self) -> Option<Epoch> {
        let is_deciding = !self.across.hands.lock().frozen.is_empty();
        (!is_deciding).then(|| Epoch(self.across.renew_by.load(SeqCst)))
    }

    /// Finds shards that were coming when the service ended.
    ///
    /// # Errors
    /// `EIO` from the store.
    pub(crate) fn find_arriving(&self) -> Result<(), Errno> {
        let map = self.map.read().clone();
        self.across.renew_by.store(map.epoch.0, SeqCst);
        for shard in map.shards.iter().map(|shard| shard.id) {
            let is_mine = map.primary(shard) == Some(self.across.node);
            let noted = self.noted_arriving(shard)?;
            match noted.map(|note| (found_at_start(note.is_whole, is_mine), note)) {
                Some((Found::NotWhole, note)) => {
                    // INVARIANT: a shard is given to a server only once it has said that it has all of it.
                    tracing::error!(%shard, from = %note.from, "a shard that is not whole was given to this server; its calls fail until it is restored");
                    return Err(Errno::EIO);
                }
                Some((Found::Come, _)) => {
                    self.note(|txn| {
                        txn.delete(key::arriving(shard));
                        // ORDER: with it. What they had of it the sender has told the start before alone.
                        meet_holders(txn, shard)
                    })?;
                    tracing::info!(%shard, "a shard has come while the service was down");
                }
                // ORDER: no transfer that was agreed on before this start is carried out any more, see the module.
                Some((Found::DoesNotCome, _)) => self.note_arriving(shard, None)?,
                None => {}
            }
            if !is_mine {
                self.across.hands.lock().left_behind.insert(shard, key::shard_prefix(shard));
            }
        }
        self.across.look_again();
        Ok(())
    }
}
