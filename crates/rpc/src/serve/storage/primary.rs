//! Which process a metadata server is, where several machines can serve it, one at a time ([ADR 0029]). One that was paused, and another one took its place meanwhile, may go on at any moment: what it says late does nothing
//! here any more once the one that came after it was heard.
//!
//! | a process of the metadata server says that it is there | what becomes of it |
//! |---|---|
//! | at a later start than any before | it is the newest: nothing of others begins any more, and it is heeded once nothing of others is under way |
//! | again | the same |
//! | (it calls before it is heeded) | `EACCES`, and it comes again |
//! | at an earlier start, or without one where another process is the newest | `EACCES` |
//!
//! Nothing is kept for the next start of the storage server: that ends all connections, and no process sends anything on a new one without having looked whether it may
//! ([`crate::net::Caller::guarded`]).
//!
//! [ADR 0029]: ../../../../../docs/adr/0029-metadata-is-replicated-by-server.md

use ashlar_types::node::SessionOwner;
use ashlar_types::{Errno, NodeId};
use parking_lot::{Condvar, Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Instance = [u8; 16];

/// One metadata server.
#[derive(Default)]
struct Primary {
    state: Mutex<State>,
    /// Signalled when nothing of a process is under way any more.
    left: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the newest start, and whose that was; nothing before one was heard of. A process that is not connected any more stays it.
    newest: Option<(u64, Instance)>,
    /// A claim of the newest has found nothing of others under way. Nothing of them begins after it, so it stays so until another one claims.
    is_heeded: bool,
    /// How many calls of each process are under way.
    // LIMIT: as calls that are carried out at a time.
    under_way: FxHashMap<Instance, usize>,
}

impl State {
    /// Whether something of `instance` may begin.
    ///
    /// # Errors
    /// `EACCES` when another one is the newest, or it is that and not heeded yet.
    fn require_heeded(&self, instance: Instance) -> Result<(), Errno> {
        match self.newest {
            Some((_, newest)) if newest != instance || !self.is_heeded => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }

    fn is_other_under_way(&self, instance: Instance) -> bool {
        self.under_way.keys().any(|other| *other != instance)
    }
}

/// A call that is under way for as long as this lives.
pub(super) struct UnderWay {
    primary: Arc<Primary>,
    instance: Instance,
}

impl UnderWay {
    fn begin(primary: &Arc<Primary>, state: &mut State, instance: Instance) -> UnderWay {
        *state.under_way.entry(instance).or_default() += 1;
        UnderWay { primary: primary.clone(), instance }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.primary.state.lock();
        let Some(count) = state.under_way.get_mut(&self.instance) else { return };
        *count -= 1;
        if *count == 0 {
            state.under_way.remove(&self.instance);
            self.primary.left.notify_all();
        }
    }
}

/// All metadata servers that were heard of.
#[derive(Default)]
pub(super) struct Primaries {
    // LIMIT: one per metadata server.
    all: RwLock<FxHashMap<NodeId, Arc<Primary>>>,
}

impl Primaries {
    /// Whether `process` is one whose calls are carried out at this moment.
    ///
    /// # Errors
    /// `EACCES` when it is not, or not yet: what others have begun before it came is under way.
    pub fn require_newest(&self, process: SessionOwner) -> Result<(), Errno> {
        match self.all.read().get(&process.node) {
            Some(primary) => primary.state.lock().require_heeded(process.instance),
            None => Ok(()),
        }
    }

    /// Begins something for `process`.
    ///
    /// # Errors
    /// As [`Primaries::require_newest`].
    pub fn enter(&self, process: SessionOwner) -> Result<UnderWay, Errno> {
        let primary = self.of(process.node);
        // ORDER: looked at and counted under one lock. Either whoever comes after it waits for this, or this is seen to come too late.
        let mut state = primary.state.lock();
        state.require_heeded(process.instance)?;
        Ok(UnderWay::begin(&primary, &mut state, process.instance))
    }

    /// As [`Primaries::enter`] for a process that was started for the `start`th time of its metadata server; it is the newest from then on. What is under way of others is waited for, for at
    /// most `wait`; until none is, nothing else of this process begins either.
    ///
    /// # Errors
    /// `EACCES` when there was a later start, or another process has said that it was this one; `EAGAIN` when something of others is under way still, and the process is to say it again.
    pub fn claim(&self, process: SessionOwner, start: u64, wait: Duration) -> Result<UnderWay, Errno> {
        let primary = self.of(process.node);
        let mut state = primary.state.lock();
        let instance = process.instance;
        match state.newest {
            Some((newest, by)) if newest > start || (newest == start && by != instance) => {
                return Err(Errno::EACCES);
            }
            Some((newest, _)) if newest == start => {}
            _ => {
                state.newest = Some((start, instance));
                state.is_heeded = false;
            }
        }
        // ORDER: none of others begins from here on, so those that are waited for become fewer.
        let deadline = Instant::now() + wait;
        while state.is_other_under_way(instance) {
            if primary.left.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        // Somebody may have come after this one meanwhile.
        if state.newest != Some((start, instance)) {
            return Err(Errno::EACCES);
        }
        if state.is_other_under_way(instance) {
            return Err(Errno::EAGAIN);
        }
        state.is_heeded = true;
        Ok(UnderWay::begin(&primary, &mut state, instance))
    }

    fn of(&self, granter: NodeId) -> Arc<Primary> {
        if let Some(primary) = self.all.read().get(&granter) {
            return primary.clone();
        }
        self.all.write().entry(granter).or_default().clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const META: NodeId = NodeId(1);
    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    fn process(instance: u8) -> SessionOwner {
        SessionOwner { node: META, instance: [instance; 16] }
    }

    #[test]
    fn a_metadata_server_that_says_nothing_of_starts_is_any_process_of_its_node() {
        let primaries = Primaries::default();
        let first = primaries.enter(process(1)).unwrap();
        let second = primaries.enter(process(2)).unwrap();
        assert_eq!(primaries.require_newest(process(3)), Ok(()));
        drop((first, second));
        let state = primaries.of(META);
        assert!(state.state.lock().under_way.is_empty(), "nothing is kept of who is gone");
    }

    #[test]
    fn who_was_started_later_counts_and_others_do_nothing_any_more() {
        let primaries = Primaries::default();
        drop(primaries.claim(process(1), 5, SOON).unwrap());
        drop(primaries.claim(process(1), 5, SOON).unwrap());
        assert_eq!(primaries.claim(process(2), 5, SOON).err(), Some(Errno::EACCES), "the same start");
        assert_eq!(primaries.claim(process(2), 4, SOON).err(), Some(Errno::EACCES), "an earlier one");
        assert_eq!(primaries.enter(process(2)).err(), Some(Errno::EACCES));
        drop(primaries.claim(process(2), 6, SOON).unwrap());
        for _ in 0..2 {
            assert_eq!(primaries.claim(process(1), 5, SOON).err(), Some(Errno::EACCES));
            assert_eq!(primaries.enter(process(1)).err(), Some(Errno::EACCES));
            assert_eq!(primaries.require_newest(process(1)), Err(Errno::EACCES));
        }
        drop(primaries.enter(process(2)).unwrap());
        let other = SessionOwner { node: NodeId(2), instance: [1; 16] };
        drop(primaries.claim(other, 1, SOON).unwrap());
        assert!(primaries.enter(other).is_ok(), "another metadata server");
    }

    #[test]
    fn what_is_under_way_of_others_is_waited_for_also_of_one_that_has_not_said_its_start() {
        let primaries = Primaries::default();
        let first = primaries.enter(process(1)).unwrap();
        // Its own calls are no reason to wait.
        let own = primaries.enter(process(2)).unwrap();
        assert_eq!(primaries.claim(process(2), 1, SOON).err(), Some(Errno::EAGAIN));
        assert_eq!(primaries.enter(process(1)).err(), Some(Errno::EACCES), "nothing more begins");
        assert_eq!(primaries.claim(process(2), 1, SOON).err(), Some(Errno::EAGAIN), "once more");
        std::thread::scope(|scope| {
            let claim = scope.spawn(|| primaries.claim(process(2), 1, LONG).is_ok());
            std::thread::sleep(SOON);
            assert!(!claim.is_finished());
            drop(first);
            assert!(claim.join().unwrap());
        });
        drop(own);
    }

    #[test]
    fn nothing_of_the_newest_begins_before_its_claim_has_succeeded() {
        let primaries = Primaries::default();
        let claim = |by: u8, start| primaries.claim(process(by), start, SOON).map(drop);
        let begins = |by: u8| (primaries.require_newest(process(by)), primaries.enter(process(by)).map(drop));
        let (yes, no) = ((Ok(()), Ok(())), (Err(Errno::EACCES), Err(Errno::EACCES)));
        assert_eq!(claim(1, 1), Ok(()));
        assert_eq!(begins(1), yes);
        let first = primaries.enter(process(1)).unwrap();
        for _ in 0..2 {
            assert_eq!(claim(2, 2), Err(Errno::EAGAIN));
            assert_eq!((begins(2), begins(1)), (no, no));
        }
        drop(first);
        assert_eq!(begins(2), no, "it has not been told that it is heeded");
        assert_eq!((claim(2, 2), begins(2)), (Ok(()), yes));
        // Its own calls, and those of who comes too late, take nothing from it.
        let own = primaries.enter(process(2)).unwrap();
        assert_eq!((claim(2, 2), claim(1, 1), begins(2)), (Ok(()), Err(Errno::EACCES), yes));
        // The next one has to be heeded itself.
        assert_eq!(claim(3, 3), Err(Errno::EAGAIN));
        assert_eq!((begins(3), begins(2)), (no, no));
        drop(own);
        assert_eq!((claim(3, 3), begins(3)), (Ok(()), yes));
    }

    #[test]
    fn who_waits_and_is_replaced_meanwhile_is_not_heeded() {
        let primaries = Primaries::default();
        let first = primaries.enter(process(1)).unwrap();
        let await_newest = |start| {
            while primaries.of(META).state.lock().newest.is_none_or(|(newest, _)| newest < start) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| primaries.claim(process(2), 1, LONG).err());
            await_newest(1);
            let third = scope.spawn(|| primaries.claim(process(3), 2, LONG).err());
            await_newest(2);
            drop(first);
            assert_eq!((second.join().unwrap(), third.join().unwrap()), (Some(Errno::EACCES), None));
        });
        assert!(primaries.enter(process(3)).is_ok() && primaries.enter(process(2)).is_err());
    }
}
