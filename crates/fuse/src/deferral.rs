//! Replies that come later: requests that must wait without holding a worker thread. Blocking lock requests wait for the lock; a write
//! past the page cache may have to wait for the kernel to drop pages, which may wait for a read that needs a worker; and what takes a disk
//! seconds must not take a mount its last worker.
//!
//! | state of a request | entered by | an interrupt then |
//! |---|---|---|
//! | unknown | - | goes to the file system, and is remembered for a request that is still on its way |
//! | entering | `Deferral::defer` | is kept until the handler has returned |
//! | parked | the handler's return | goes to the file system |
//! | gone | `Replier::reply` or its drop | goes to the file system, which does not know it any more |
//!
//! Without the middle state an interrupt could overtake the request it belongs to and be lost.

use crate::errno::Errno;
use crate::id::Unique;
use crate::transport::{LateReply, Route};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// LIMIT: interrupts remembered for requests that have not arrived; the oldest is dropped. More can be in flight only if
/// as many worker threads are inside a handler.
const EARLY_INTERRUPTS_MAX: usize = 256;

/// LIMIT: long requests of a mount that are kept at a time; a further one takes a worker.
const LONG_MAX: usize = 1024;

/// How a request was answered whose reply says no more than that it went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is done; the reply goes out at once.
    Now,
    /// A [`Replier`] was taken and will reply.
    Deferred,
}

/// How a write was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// So many bytes were taken; the reply goes out at once.
    Bytes(u32),
    /// A [`Replier`] was taken and will reply.
    Deferred,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Entering { interrupted: bool },
    Parked,
}

/// What a deferred request waits for; each kind has its own room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lock,
    Write,
    Long,
}

#[derive(Default)]
struct State {
    phases: HashMap<Unique, Phase>,
    /// How many there are of each kind.
    counts: [usize; 3],
    early: VecDeque<Unique>,
}

/// Every deferred request of a session.
pub(crate) struct Deferred {
    state: Mutex<State>,
    /// Most of each kind.
    max: [usize; 3],
}

impl Deferred {
    /// LIMIT: at most `locks_max` requests wait for a lock at a time; a further one gets ENOLCK. At most `writes_max` writes, a further one is not kept: the
    /// asynchronous ones among them are background requests, and if they were all that the kernel lets be under way, a read that has pages locked for
    /// which such a write waits would never come.
    pub(crate) fn new(locks_max: usize, writes_max: usize) -> Self {
        Self { state: Mutex::new(State::default()), max: [locks_max, writes_max, LONG_MAX] }
    }

    /// One more, unless there are too many of its kind.
    fn enter(&self, unique: Unique, kind: Kind) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.counts[kind as usize] >= self.max[kind as usize] {
            return Err(Errno::ENOLCK);
        }
        state.counts[kind as usize] += 1;
        let early = state.early.iter().position(|&other| other == unique);
        if let Some(index) = early {
            state.early.remove(index);
        }
        state.phases.insert(unique, Phase::Entering { interrupted: early.is_some() });
        Ok(())
    }

    /// Requests that wait for something else than a lock.
    pub(crate) fn at_work(&self) -> usize {
        let counts = self.state.lock().counts;
        counts[Kind::Write as usize] + counts[Kind::Long as usize]
    }

    /// The handler has returned. Whether an interrupt came meanwhile and must be delivered now.
    pub(crate) fn settle(&self, unique: Unique) -> bool {
        let mut state = self.state.lock();
        let Some(phase) = state.phases.get_mut(&unique) else { return false };
        std::mem::replace(phase, Phase::Parked) == Phase::Entering { interrupted: true }
    }

    /// An interrupt for `unique` has come. Whether to deliver it now.
    pub(crate) fn interrupt(&self, unique: Unique) -> bool {
        let mut state = self.state.lock();
        match state.phases.get_mut(&unique) {
            Some(Phase::Entering { interrupted }) => {
                *interrupted = true;
                false
            }
            Some(Phase::Parked) => true,
            None => {
                if state.early.len() >= EARLY_INTERRUPTS_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
                true
            }
        }
    }

    fn leave(&self, unique: Unique, kind: Kind) {
        let mut state = self.state.lock();
        state.phases.remove(&unique);
        state.counts[kind as usize] -= 1;
    }
}

/// The right to reply later to the request being handled.
pub struct Deferral<'a> {
    pub(crate) deferred: &'a Arc<Deferred>,
    pub(crate) route: &'a dyn Fn() -> Option<Route>,
    pub(crate) unique: Unique,
    pub(crate) is_taken: &'a Cell<bool>,
}

impl Deferral<'_> {
    /// Takes the reply over. Once this succeeded only the replier replies, whatever the handler returns. Call it before
    /// the request becomes visible to whoever grants the lock.
    ///
    /// # Errors
    /// ENOLCK if too many requests of the mount wait already (`MountOptions::deferred_max`) or it was taken before.
    pub fn defer(&self) -> Result<Replier, Errno> {
        self.take(Kind::Lock).ok_or(Errno::ENOLCK)
    }

    /// As [`Self::defer`], for a write; nothing if half of the background requests that the kernel lets be under way (`MountOptions::max_background`) are kept
    /// already, or the transport has no room to keep it.
    pub fn defer_write(&self) -> Option<Replier> {
        self.take(Kind::Write)
    }

    /// As [`Self::defer`], for what may take a disk long; nothing if so much of that is under way, or the transport has no room to keep it: the worker
    /// does it then.
    pub fn defer_long(&self) -> Option<Replier> {
        self.take(Kind::Long)
    }

    fn take(&self, kind: Kind) -> Option<Replier> {
        if self.is_taken.get() {
            return None;
        }
        let route = (self.route)()?;
        self.deferred.enter(self.unique, kind).ok()?;
        self.is_taken.set(true);
        let deferred = Arc::clone(self.deferred);
        Some(Replier { unique: self.unique, kind, route: Some(route), deferred })
    }
}

/// Replies to one deferred request, once, from any thread. Dropping it replies EIO, so that no caller waits for ever.
pub struct Replier {
    unique: Unique,
    kind: Kind,
    route: Option<Route>,
    deferred: Arc<Deferred>,
}

impl Replier {
    /// The request; `Filesystem::interrupt` names it.
    pub fn unique(&self) -> Unique {
        self.unique
    }

    /// Replies to a request whose reply says no more than that it went well. A session that has ended meanwhile takes it silently, as the caller was answered by the kernel.
    pub fn reply(mut self, result: Result<(), Errno>) {
        self.send(result.map(|()| LateReply::Done));
    }

    /// Replies to a write that took so many bytes; as [`Self::reply`].
    pub fn reply_written(mut self, bytes: Result<u32, Errno>) {
        self.send(bytes.map(LateReply::Written));
    }

    fn send(&mut self, result: Result<LateReply, Errno>) {
        if let Some(route) = self.route.take() {
            // ORDER: forget the request first; its id may be reused for nothing, but the limit must not lag behind.
            self.deferred.leave(self.unique, self.kind);
            route.send(self.unique, result);
        }
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if self.route.is_some() {
            tracing::warn!(unique = %self.unique, "deferred request dropped without a reply; answering EIO");
            self.send(Err(Errno::EIO));
        }
    }
}

impl fmt::Debug for Replier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replier").field("unique", &self.unique).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Unique = Unique(2);

    #[test]
    fn an_interrupt_is_never_lost_whenever_it_comes() {
        let deferred = Deferred::new(4, 4);
        // Before the request arrived.
        assert!(deferred.interrupt(ONE));
        deferred.enter(ONE, Kind::Lock).unwrap();
        assert!(deferred.settle(ONE), "the early interrupt comes back");
        deferred.leave(ONE, Kind::Lock);
        // While the handler runs.
        deferred.enter(ONE, Kind::Lock).unwrap();
        assert!(!deferred.interrupt(ONE));
        assert!(deferred.settle(ONE));
        // When it is parked.
        assert!(deferred.interrupt(ONE));
        deferred.leave(ONE, Kind::Lock);
        // A reply that was faster than the handler's return.
        deferred.enter(ONE, Kind::Lock).unwrap();
        deferred.leave(ONE, Kind::Lock);
        assert!(!deferred.settle(ONE));
    }

    #[test]
    fn waiting_requests_and_early_interrupts_are_bounded() {
        let deferred = Deferred::new(2, 1);
        deferred.enter(Unique(2), Kind::Lock).unwrap();
        deferred.enter(Unique(4), Kind::Lock).unwrap();
        assert_eq!(deferred.enter(Unique(6), Kind::Lock), Err(Errno::ENOLCK));
        deferred.leave(Unique(2), Kind::Lock);
        deferred.enter(Unique(6), Kind::Lock).unwrap();
        // Writes and locks do not take each other's room.
        deferred.enter(Unique(8), Kind::Write).unwrap();
        assert_eq!(deferred.enter(Unique(10), Kind::Write), Err(Errno::ENOLCK));
        deferred.leave(Unique(8), Kind::Write);
        deferred.enter(Unique(10), Kind::Write).unwrap();
        for unique in 0..LONG_MAX as u64 {
            deferred.enter(Unique(100 + unique), Kind::Long).unwrap();
        }
        assert_eq!(deferred.enter(Unique(99), Kind::Long), Err(Errno::ENOLCK));
        for unique in 0..10_000 {
            deferred.interrupt(Unique(1000 + unique));
        }
        assert_eq!(deferred.state.lock().early.len(), EARLY_INTERRUPTS_MAX);
    }
}
