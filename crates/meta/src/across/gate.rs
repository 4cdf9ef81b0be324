//! Who is at work in which shard, so that a shard changes hands when nobody is.
//!
//! Every call enters the gate of the shard that it is for, and so does what the service does by itself in a shard, chunks that it deletes or cuts
//! included. A closed gate lets nobody in: who calls comes again, here or where the shard is by then. So once it is closed and nobody is inside,
//! nothing that was begun here can have an effect in the shard any more.
//!
//! What is at work under the gate of another shard, and touches this one besides, finds out under the lane's lock ([`Across::generation`]).

use super::Across;
use crate::MetaService;
use ashlar_types::{Errno, ShardId};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const CLOSED: u32 = 1 << 31;

/// Time between two looks whether somebody is still inside.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// See the module.
pub(crate) struct Gates {
    /// By shard: who is inside, and whether it is closed.
    // LIMIT: as shards.
    gates: Box<[AtomicU32]>,
    /// Sessions that are being ended, in all shards.
    ending: AtomicU32,
    /// How many gates are being closed.
    closing: AtomicU32,
}

/// Somebody is at work in a shard, until dropped.
pub(crate) struct Inside<'a>(Option<&'a AtomicU32>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.fetch_sub(1, SeqCst);
        }
    }
}

impl Gates {
    pub(super) fn new(shards: usize) -> Gates {
        let gates = (0..shards).map(|_| AtomicU32::new(0)).collect();
        Gates { gates, ending: AtomicU32::new(0), closing: AtomicU32::new(0) }
    }

    fn of(&self, shard: ShardId) -> Option<&AtomicU32> {
        self.gates.get(usize::from(shard.0))
    }

    fn enter(&self, shard: ShardId) -> Option<Inside<'_>> {
        let gate = self.of(shard)?;
        let inside = Inside(Some(gate));
        // Dropped again if it is closed.
        (gate.fetch_add(1, SeqCst) & CLOSED == 0).then_some(inside)
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self, shard: ShardId) {
        if let Some(gate) = self.of(shard) {
            gate.fetch_or(CLOSED, SeqCst);
        }
    }

    /// Lets nobody in any more; false if somebody else has closed it.
    fn try_close(&self, shard: ShardId) -> bool {
        self.of(shard).is_some_and(|gate| gate.fetch_or(CLOSED, SeqCst) & CLOSED == 0)
    }

    pub(super) fn open(&self, shard: ShardId) {
        if let Some(gate) = self.of(shard) {
            gate.fetch_and(!CLOSED, SeqCst);
        }
    }

    fn is_empty(&self, shard: ShardId) -> bool {
        self.ending.load(SeqCst) == 0 && self.of(shard).is_none_or(|gate| gate.load(SeqCst) & !CLOSED == 0)
    }
}

impl Across {
    /// Whether who waits inside a gate for others is to come again instead.
    pub(crate) fn is_closing(&self) -> bool {
        self.gates.closing.load(SeqCst) > 0
    }
}

impl MetaService {
    /// Begins work in `shard`.
    ///
    /// # Errors
    /// `EHOSTDOWN` when it is not here, or is about to leave: come again.
    pub(crate) fn enter(&self, shard: ShardId) -> Result<Inside<'_>, Errno> {
        if !self.across.has_peers() {
            return Ok(Inside(None));
        }
        let inside = self.across.gates.enter(shard).ok_or(Errno::EHOSTDOWN)?;
        // ORDER: asked inside. It cannot leave before this one has left.
        if self.is_here(shard) { Ok(inside) } else { Err(Errno::EHOSTDOWN) }
    }

    /// Begins to end a session, in all shards that are here.
    pub(crate) fn enter_all(&self) -> Inside<'_> {
        self.across.gates.ending.fetch_add(1, SeqCst);
        Inside(Some(&self.across.gates.ending))
    }

    /// Refuses to go on waiting for others while a gate is being closed. Only for calls that come again.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    pub(crate) fn come_again_if_closing(&self, comes_again: bool) -> Result<(), Errno> {
        if comes_again && self.across.is_closing() { Err(Errno::EHOSTDOWN) } else { Ok(()) }
    }

    /// Closes the gates of `shards`, and waits for at most `wait` until nobody is inside. If somebody is, or one is closed already, they are as before: false.
    pub(super) fn close_gates(&self, shards: &[ShardId], wait: Duration) -> bool {
        let gates = &self.across.gates;
        let deadline = self.env.clock.monotonic().saturating_add(wait);
        let open = |shards: &[ShardId]| shards.iter().for_each(|&shard| gates.open(shard));
        if let Some(closed) = shards.iter().position(|&shard| !gates.try_close(shard)) {
            open(&shards[..closed]);
            return false;
        }
        gates.closing.fetch_add(1, SeqCst);
        self.leases_changed.notify_all();
        self.across.changed.notify_all();
        let is_empty = || shards.iter().all(|&shard| gates.is_empty(shard));
        while !is_empty() && self.env.clock.monotonic() < deadline {
            self.env.tasks.pause(LOOK_EVERY);
        }
        let is_empty = is_empty();
        gates.closing.fetch_sub(1, SeqCst);
        if !is_empty {
            open(shards);
        }
        is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_nobody_in_and_tells_when_all_have_left() {
        let gates = Gates::new(4);
        let inside = gates.enter(ShardId(2)).unwrap();
        gates.close(ShardId(2));
        assert!(gates.enter(ShardId(2)).is_none() && gates.enter(ShardId(9)).is_none());
        assert!(gates.enter(ShardId(1)).is_some() && gates.is_empty(ShardId(1)));
        assert!(!gates.is_empty(ShardId(2)));
        drop(inside);
        assert!(gates.is_empty(ShardId(2)));
        gates.open(ShardId(2));
        assert!(gates.enter(ShardId(2)).is_some());
    }
}
