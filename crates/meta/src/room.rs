//! A full file system: before somebody is told so, what removed files still hold is given back, within a bounded time.

use crate::MetaService;
use ashlar_env::{Clock, Signal, Tasks};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::TargetState;
use ashlar_types::message::StorageRequest;
use ashlar_types::{Errno, TargetId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Longest time somebody waits for others who make room, and then makes some himself; then the answer is that there is none.
const MAKE_ROOM_MAX: Duration = Duration::from_secs(4);
/// For how long room is made at least by whoever has waited for others: those who come meanwhile rely on it.
const MAKE_ROOM_LEAST: Duration = Duration::from_secs(1);
/// For how long targets are waited for that give back what deleted chunks hold.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);
/// Freed units of 512 bytes that are enough to let those who wait try again, 64 MiB.
const ENOUGH_BLOCKS: u64 = (64 << 20) / 512;
/// LIMIT: how many wait for room at the same time, each with a thread. More are answered at once.
const WAITING_MAX: usize = 64;
/// LIMIT: targets that give back at the same time, each with a thread for as long as it takes.
const GIVING_MAX: usize = 16;

/// Rounds of making room, one at a time: of those who want it at the same time one makes it for all.
pub(crate) struct MakingRoom {
    state: Mutex<Rounds>,
    ended: Signal,
    giving: Arc<GivingBack>,
}

#[derive(Default)]
struct Rounds {
    /// Rounds that have begun.
    begun: u64,
    is_under_way: bool,
    waiting: usize,
}

/// A round is under way, until dropped.
struct UnderWay<'a>(&'a MakingRoom);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_under_way = false;
        self.0.ended.notify_all();
    }
}

impl MakingRoom {
    pub(crate) fn new(tasks: &dyn Tasks) -> MakingRoom {
        let giving = GivingBack { state: Mutex::default(), done: tasks.signal() };
        MakingRoom { state: Mutex::default(), ended: tasks.signal(), giving: Arc::new(giving) }
    }

    /// Begins a round; `None` when another one has begun and ended since the call, so that what was removed before it has been looked for, when the time is over
    /// first, or when too many wait already.
    fn begin(&self, clock: &dyn Clock, deadline: Duration) -> Option<UnderWay<'_>> {
        let mut state = self.state.lock();
        let before = state.begun;
        if state.is_under_way {
            if state.waiting >= WAITING_MAX {
                return None;
            }
            state.waiting += 1;
            // Until nothing is under way, or the second one since the call is: the first one that began after the call has ended then.
            while state.is_under_way && state.begun < before + 2 {
                let left = deadline.saturating_sub(clock.monotonic());
                if left.is_zero() || self.ended.wait_for(&mut state, left) {
                    break;
                }
            }
            state.waiting -= 1;
        }
        if state.is_under_way || state.begun > before {
            return None;
        }
        state.begun += 1;
        state.is_under_way = true;
        Some(UnderWay(self))
    }
}

/// Targets that give back what deleted chunks hold.
struct GivingBack {
    state: Mutex<Giving>,
    /// A target of this round has done so.
    done: Signal,
}

#[derive(Default)]
struct Giving {
    round: u64,
    /// Those of this round that nobody has asked yet.
    // LIMIT: as targets.
    queue: VecDeque<TargetId>,
    /// Those of this round that have not answered.
    left: usize,
    /// Threads that ask; some may be waiting for a target of an earlier round.
    running: usize,
}

impl GivingBack {
    /// Has `targets` give back, several at the same time, until all have or `deadline` has come. One that takes longer holds one of [`GIVING_MAX`] threads.
    fn give_back(
        self: &Arc<Self>,
        tasks: &dyn Tasks,
        clock: &dyn Clock,
        storage: &Arc<dyn StorageCalls>,
        targets: VecDeque<TargetId>,
        deadline: Duration,
    ) {
        let missing = {
            let mut state = self.state.lock();
            state.round += 1;
            state.left = targets.len();
            state.queue = targets;
            let missing = state.left.min(GIVING_MAX.saturating_sub(state.running));
            state.running += missing;
            missing
        };
        for _ in 0..missing {
            let (giving, storage) = (self.clone(), storage.clone());
            let run = Box::new(move || giving.ask_targets(&*storage));
            if let Err(error) = tasks.spawn("ashlar-room", run) {
                tracing::warn!(%error, "a target could not be asked to free what deleted chunks hold");
                self.state.lock().running -= 1;
            }
        }
        let mut state = self.state.lock();
        while state.left > 0 && state.running > 0 {
            let left = deadline.saturating_sub(clock.monotonic());
            if left.is_zero() || self.done.wait_for(&mut state, left) {
                break;
            }
        }
        state.queue.clear();
    }

    fn ask_targets(&self, storage: &dyn StorageCalls) {
        let mut state = self.state.lock();
        while let Some(target) = state.queue.pop_front() {
            let round = state.round;
            drop(state);
            match storage.call(&StorageRequest::GiveBack { target }, Payload::None) {
                Ok(_) | Err(Errno::ENODEV) => {}
                Err(errno) => {
                    tracing::warn!(%errno, target_id = %target, "could not free what deleted chunks hold")
                }
            }
            state = self.state.lock();
            if state.round == round {
                state.left -= 1;
                self.done.notify_all();
            }
        }
        state.running -= 1;
        self.done.notify_all();
    }
}

impl MetaService {
    /// Deletes chunks of removed files until enough is free, none is left, or the time is over, and has the targets give back what
    /// deleted chunks hold. Nothing to answer: whoever asked tries again, once.
    pub(crate) fn make_room(&self) {
        let clock = &*self.env.clock;
        let deadline = clock.monotonic() + MAKE_ROOM_MAX;
        // One makes room, the others find it made.
        let Some(_making) = self.making_room.begin(clock, deadline) else { return };
        let deadline = deadline.max(clock.monotonic() + MAKE_ROOM_LEAST);
        let is_enough = |blocks_freed: u64| blocks_freed >= ENOUGH_BLOCKS || clock.monotonic() >= deadline;
        if let Err(errno) = self.collect_until(is_enough) {
            tracing::warn!(%errno, "could not delete chunks of removed files to make room");
        }
        let map = self.map.read().clone();
        let online = map.targets.iter().filter(|target| target.state == TargetState::Online);
        let targets = online.map(|target| target.id).collect();
        let until = clock.monotonic() + GIVE_BACK_MAX;
        self.making_room.giving.give_back(&*self.env.tasks, clock, &self.storage, targets, until);
        self.placement.forget_space();
        if let Err(error) = self.lane.is_space_low_now() {
            tracing::error!(%error, "could not look for space for metadata");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_env::Env;
    use ashlar_types::message::StorageReply;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn of_many_who_want_room_at_once_one_makes_it_for_those_who_came_meanwhile() {
        let env = Env::os();
        let (making, made) = (MakingRoom::new(&*env.tasks), AtomicUsize::new(0));
        let deadline = env.clock.monotonic() + LONG;
        let first = making.begin(&*env.clock, deadline).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..WAITING_MAX {
                scope.spawn(|| {
                    let round = making.begin(&*env.clock, deadline);
                    made.fetch_add(usize::from(round.is_some()), SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    drop(round);
                });
            }
            while making.state.lock().waiting < WAITING_MAX {
                std::thread::yield_now();
            }
            // No more of them than threads are there for.
            assert!(making.begin(&*env.clock, deadline).is_none());
            drop(first);
        });
        assert_eq!(made.into_inner(), 1, "rounds for those who came during the first one");
        assert!(making.begin(&*env.clock, deadline).is_some(), "the next one comes after all that");
        let _under_way = making.begin(&*env.clock, deadline).unwrap();
        assert!(
            making.begin(&*env.clock, env.clock.monotonic()).is_none(),
            "nobody waits longer than he may"
        );
        assert_eq!(making.state.lock().waiting, 0);
    }

    /// Targets that give back once they may; `.1`: how many are asked to.
    struct Slow(Mutex<()>, AtomicUsize, AtomicUsize);

    impl StorageCalls for Slow {
        fn call(&self, request: &StorageRequest, _: Payload<'_>) -> Result<StorageReply, Errno> {
            let StorageRequest::GiveBack { target } = request else { return Err(Errno::EPROTO) };
            if target.0 < 100 {
                self.1.fetch_add(1, SeqCst);
                drop(self.0.lock());
            }
            self.2.fetch_add(1, SeqCst);
            Ok(StorageReply::Done)
        }
    }

    #[test]
    fn targets_that_hang_hold_up_neither_the_others_nor_whoever_waits() {
        let env = Env::os();
        let making = MakingRoom::new(&*env.tasks);
        let slow = Arc::new(Slow(Mutex::new(()), AtomicUsize::new(0), AtomicUsize::new(0)));
        let storage: Arc<dyn StorageCalls> = slow.clone();
        let give_back = |targets: std::ops::Range<u32>, wait: Duration| {
            let begun = Instant::now();
            let until = env.clock.monotonic() + wait;
            let targets = targets.map(TargetId).collect();
            making.giving.give_back(&*env.tasks, &*env.clock, &storage, targets, until);
            begun.elapsed()
        };
        let hanging = slow.0.lock();
        assert!(give_back(98..140, Duration::from_millis(300)) < LONG / 2);
        assert_eq!((slow.1.load(SeqCst), slow.2.load(SeqCst)), (2, 40), "two hang, all others have");
        assert!(give_back(100..140, LONG) < LONG / 2, "they are not waited for in the next round");
        assert_eq!(slow.2.load(SeqCst), 80);
        give_back(0..50, Duration::from_millis(300));
        assert_eq!(slow.1.load(SeqCst), GIVING_MAX, "threads that wait for targets");
        drop(hanging);
        while making.giving.state.lock().running > 0 {
            std::thread::yield_now();
        }
        give_back(0..50, LONG);
        assert_eq!(slow.2.load(SeqCst), 80 + GIVING_MAX + 50);
    }
}
