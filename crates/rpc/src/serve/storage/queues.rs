//! Calls by target: those of one whose disk hangs wait for each other, and leave threads of the server to others.

use ashlar_types::TargetId;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Calls of one target that are carried out at the same time: of each kind.
// LIMIT: of a target; a server has four times as many threads. More calls wait, within the bounds of a server and of its connections.
const AT_WORK_MAX: usize = 64;
const PEERS_MAX: usize = 8;
const COPIES_MAX: usize = 32;
const LOOKS_MAX: usize = 4;

/// Which calls wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// What clients and metadata servers want done.
    Work,
    /// Of other storage servers; calls of their clients wait for them.
    Peers,
    /// Of other storage servers that pass on what callers of theirs wait for: the places in their chains of the targets here.
    Copies(u8),
    /// Questions how much there is, which read no chunk.
    Looks,
}

/// The last place in a chain.
pub(super) const PLACES_MAX: u8 = 3;

/// Calls of one kind for one target.
type Line = (TargetId, Kind);

/// Bytes of calls that wait in a line; callers come again with more.
// LIMIT: of a target: with those at work a part of what a server has of calls.
const WAITING_BYTES_MAX: usize = 128 << 20;
/// Calls that wait in a line before it is looked through for those that nobody waits for any more.
const LOOK_AT_MIN: usize = 64;

/// A call, as far as its place in a line goes.
pub(super) trait Waits {
    /// Whether somebody waits for its answer still.
    fn is_awaited(&self) -> bool;
    /// What it takes of memory.
    fn bytes(&self) -> usize;
    /// Whether its caller comes again with it if it is told to.
    fn can_come_again(&self) -> bool;
}

struct Queue<T> {
    at_work: usize,
    // LIMIT: as calls that a server reads.
    calls: VecDeque<T>,
    /// Of those.
    bytes: usize,
    /// With so many calls it is looked through next.
    look_at: usize,
}

impl<T: Waits> Queue<T> {
    fn is_full(&self, call: &T) -> bool {
        self.bytes + call.bytes() > WAITING_BYTES_MAX && !self.calls.is_empty() && call.can_come_again()
    }

    fn pop(&mut self) -> Option<T> {
        let call = self.calls.pop_front()?;
        self.bytes -= call.bytes();
        Some(call)
    }

    /// Takes those out that are not wanted any more. A caller gives up and comes again as long as a disk hangs: what it left would take up all that is read from it.
    fn take_left(&mut self, call: &T) -> VecDeque<T> {
        if self.calls.len() < self.look_at && !self.is_full(call) {
            return VecDeque::new();
        }
        let (wanted, left) = std::mem::take(&mut self.calls).into_iter().partition(T::is_awaited);
        self.calls = wanted;
        self.bytes = self.calls.iter().map(T::bytes).sum();
        self.look_at = LOOK_AT_MIN.max(self.calls.len() * 2);
        left
    }
}

/// See the module.
pub(super) struct Queues<T> {
    // LIMIT: as targets that callers name while calls for them are under way.
    by_line: Mutex<FxHashMap<Line, Queue<T>>>,
}

impl<T> Default for Queues<T> {
    fn default() -> Queues<T> {
        Queues { by_line: Mutex::default() }
    }
}

/// A thread is at work for a target.
struct AtWork<'a, T> {
    queues: &'a Queues<T>,
    line: Line,
    is_over: bool,
}

impl<T: Waits> AtWork<'_, T> {
    /// The next call that waits. Whoever finds none is not at work any more from the same moment on, so none is left behind.
    fn next(&mut self) -> Option<T> {
        let mut by_line = self.queues.by_line.lock();
        let queue = by_line.get_mut(&self.line)?;
        let next = queue.pop();
        if next.is_none() {
            self.is_over = true;
            queue.at_work -= 1;
            if queue.at_work == 0 {
                by_line.remove(&self.line);
            }
        }
        next
    }
}

impl<T> Drop for AtWork<'_, T> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // A panic. Those at work besides go on with what waits; if there are none, who waits is told.
        let mut by_line = self.queues.by_line.lock();
        if let Some(queue) = by_line.get_mut(&self.line) {
            queue.at_work -= 1;
            if queue.at_work == 0 {
                by_line.remove(&self.line);
            }
        }
    }
}

impl<T: Waits> Queues<T> {
    /// Has `work` carry `call` out, and then what has come to wait for the same target meanwhile; or leaves it to those who are at work there. Gives it back if too
    /// much waits for them.
    pub fn run(&self, line: Line, call: T, work: impl Fn(T)) -> Option<T> {
        let most = match line.1 {
            Kind::Work => AT_WORK_MAX,
            Kind::Peers => PEERS_MAX,
            Kind::Copies(_) => COPIES_MAX,
            Kind::Looks => LOOKS_MAX,
        };
        {
            let mut by_line = self.by_line.lock();
            let new = || Queue { at_work: 0, calls: VecDeque::new(), bytes: 0, look_at: LOOK_AT_MIN };
            let queue = by_line.entry(line).or_insert_with(new);
            if queue.at_work >= most {
                let left = queue.take_left(&call);
                let refused = if queue.is_full(&call) {
                    Some(call)
                } else {
                    queue.bytes += call.bytes();
                    queue.calls.push_back(call);
                    None
                };
                // ORDER: the lock first; the end of a call may send something.
                drop(by_line);
                drop(left);
                return refused;
            }
            queue.at_work += 1;
        }
        let mut at_work = AtWork { queues: self, line, is_over: false };
        let mut next = Some(call);
        while let Some(call) = next {
            work(call);
            next = at_work.next();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    /// Carries nothing out until it is freed, by a drop.
    struct Disk {
        gate: Mutex<mpsc::Receiver<()>>,
        at_work: AtomicUsize,
        carried_out: AtomicUsize,
    }

    impl Disk {
        fn hang() -> (mpsc::Sender<()>, Disk) {
            let (free, gate) = mpsc::channel();
            let (at_work, carried_out) = Default::default();
            (free, Disk { gate: Mutex::new(gate), at_work, carried_out })
        }

        fn work(&self) {
            self.at_work.fetch_add(1, SeqCst);
            let _ = self.gate.lock().recv();
            self.at_work.fetch_sub(1, SeqCst);
            self.carried_out.fetch_add(1, SeqCst);
        }

        fn wait_for(&self, at_work: usize) {
            while self.at_work.load(SeqCst) < at_work {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_target_that_hangs_takes_a_part_of_the_threads_and_its_calls_are_carried_out_in_the_end() {
        let queues = Queues::default();
        let (hung, calls) = ((TargetId(1), Kind::Work), AT_WORK_MAX * 3);
        let (free, disk) = Disk::hang();
        std::thread::scope(|scope| {
            for call in 0..calls {
                let (queues, disk) = (&queues, &disk);
                scope.spawn(move || queues.run(hung, call, |_| disk.work()));
            }
            disk.wait_for(AT_WORK_MAX);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(disk.at_work.load(SeqCst), AT_WORK_MAX, "the rest waits without a thread");
            // Another one, and what others wait for, is carried out at once.
            let others = AtomicUsize::new(0);
            for line in [(TargetId(2), Kind::Work), (TargetId(1), Kind::Peers), (TargetId(1), Kind::Looks)] {
                queues.run(line, 0, |_| {
                    others.fetch_add(1, SeqCst);
                });
            }
            assert_eq!(others.load(SeqCst), 3);
            drop(free);
        });
        assert_eq!(disk.carried_out.load(SeqCst), calls);
        assert!(queues.by_line.lock().is_empty());
    }

    impl Waits for usize {
        fn is_awaited(&self) -> bool {
            true
        }

        fn bytes(&self) -> usize {
            1
        }

        fn can_come_again(&self) -> bool {
            false
        }
    }

    impl Waits for Arc<AtomicUsize> {
        fn is_awaited(&self) -> bool {
            self.load(SeqCst) == 0
        }

        fn bytes(&self) -> usize {
            WAITING_BYTES_MAX / 10
        }

        fn can_come_again(&self) -> bool {
            true
        }
    }

    #[test]
    fn with_more_than_may_wait_callers_come_again() {
        let queues: Queues<Arc<AtomicUsize>> = Queues::default();
        let hung = (TargetId(1), Kind::Looks);
        let (free, disk) = Disk::hang();
        let work = |_| disk.work();
        let call = Arc::<AtomicUsize>::default;
        std::thread::scope(|scope| {
            (0..LOOKS_MAX).for_each(|_| drop(scope.spawn(|| queues.run(hung, call(), work))));
            disk.wait_for(LOOKS_MAX);
            let waiting: Vec<_> = (0..10).map(|_| call()).collect();
            assert!(waiting.iter().all(|call| queues.run(hung, call.clone(), work).is_none()));
            assert!(queues.run(hung, call(), work).is_some());
            // One of them is given up.
            waiting[3].store(1, SeqCst);
            assert!(queues.run(hung, call(), work).is_none());
            assert!(queues.run(hung, call(), work).is_some());
            drop(free);
        });
        assert_eq!(disk.carried_out.load(SeqCst), LOOKS_MAX + 10);
        assert!(queues.run(hung, call(), work).is_none() && queues.by_line.lock().is_empty());
    }

    #[test]
    fn what_nobody_waits_for_any_more_does_not_wait_either() {
        let queues: Queues<Arc<AtomicUsize>> = Queues::default();
        let hung = (TargetId(1), Kind::Looks);
        let (free, disk) = Disk::hang();
        let made: Vec<Arc<AtomicUsize>> = (0..LOOKS_MAX + LOOK_AT_MIN * 10).map(|_| Arc::default()).collect();
        let work = |_| disk.work();
        std::thread::scope(|scope| {
            for call in &made[..LOOKS_MAX] {
                scope.spawn(|| queues.run(hung, call.clone(), work));
            }
            disk.wait_for(LOOKS_MAX);
            for call in &made[LOOKS_MAX..] {
                queues.run(hung, call.clone(), work);
                // Its caller gives up.
                call.store(1, SeqCst);
            }
            let held = made.iter().filter(|call| Arc::strong_count(call) > 1).count();
            assert!(held <= LOOKS_MAX + LOOK_AT_MIN, "{held} are held");
            drop(free);
        });
        assert!(disk.carried_out.load(SeqCst) <= LOOKS_MAX + LOOK_AT_MIN);
    }
}
