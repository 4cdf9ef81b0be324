//! How many requests of a queue may be in the hands of its threads, and what happens when one of them has to wait for long.
//!
//! A thread that is inside a handler does not look at the other entries of its ring: a request that the kernel puts there waits for the
//! handler, which may be waiting for that very request. So where several threads share a queue, each has one entry, and the place of a request
//! that is parked is taken by a further thread. When the parked one is answered there is a thread more than before.

use super::PARKED_PER_QUEUE_MAX;
use crate::id::NodeId;
use parking_lot::Mutex;
use std::sync::Arc;

/// Entries of one queue, of all threads that serve it.
#[derive(Debug)]
pub(super) struct Slots {
    /// So many shall not be parked.
    depth: usize,
    count: Mutex<Count>,
}

#[derive(Debug)]
struct Count {
    // LIMIT: `depth` and those that are parked at most at a time.
    entries: usize,
    parked: usize,
}

/// What parking one more entry leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parked {
    /// A further entry is needed, and counted already.
    pub(super) is_short: bool,
    /// There was a moment at which every entry may have been parked: the kernel may hold requests back.
    pub(super) may_be_stuck: bool,
}

impl Slots {
    /// A queue that begins with `depth` entries.
    pub(super) fn new(depth: usize) -> Self {
        Self { depth, count: Mutex::new(Count { entries: depth, parked: 0 }) }
    }

    pub(super) fn may_park(&self) -> bool {
        self.count.lock().parked < PARKED_PER_QUEUE_MAX
    }

    pub(super) fn park(&self) -> Parked {
        let mut count = self.count.lock();
        count.parked += 1;
        let is_short = count.entries - count.parked.min(count.entries) < self.depth;
        count.entries += usize::from(is_short);
        Parked { is_short, may_be_stuck: count.parked >= self.depth }
    }

    pub(super) fn unpark(&self) {
        self.count.lock().parked -= 1;
    }

    /// The further entry did not come about: the next that is parked asks for one again.
    pub(super) fn give_up_one(&self) {
        self.count.lock().entries -= 1;
    }
}

/// Starts further threads for queues that threads share.
pub(super) trait Relief: Send + Sync {
    /// Has a further thread serve the queue `qid` of this processor with one entry, and nudge the kernel by way of `node` once it does; tells whether it
    /// serves. What goes wrong is logged.
    fn call(&self, qid: u16, slots: &Arc<Slots>, node: NodeId) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_entries_as_wanted_are_not_parked_and_no_more_are_made_than_needed() {
        let slots = Slots::new(2);
        assert_eq!(slots.park(), Parked { is_short: true, may_be_stuck: false });
        assert_eq!(slots.park(), Parked { is_short: true, may_be_stuck: true });
        slots.unpark();
        slots.unpark();
        for _ in 0..2 {
            assert!(!slots.park().is_short, "there are four now");
        }
        assert!(slots.park().is_short);
        slots.give_up_one();
        slots.unpark();
        assert!(slots.park().is_short, "it did not come");
        for _ in 3..PARKED_PER_QUEUE_MAX {
            assert!(slots.may_park());
            slots.park();
        }
        assert!(!slots.may_park());
    }
}
