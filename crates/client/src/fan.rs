//! Calls to several targets at the same time: one file's bytes lie on many, and a caller that asks one after the other has the links of all but one idle.
//!
//! The caller carries out what no helper has taken, so that nothing ever waits for a helper to come free. Each call to a target may take all the time that a mount waits (`--error-after`);
//! so that one after another does not take it many times over, none is begun once one has failed.

use ashlar_env::{Signal, Tasks};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

// LIMIT: helpers of one caller, so that one long call does not take all; and of a client. Beyond both the caller does the work alone.
const HELPERS_OF_CALL_MAX: usize = 31;
const HELPERS_MAX: usize = 128;

/// A helper that had nothing to do for so long ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// One of several things to be done, which gives a `T`.
pub(crate) type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// The helpers of a client.
pub(crate) struct Fan {
    shared: Arc<Shared>,
}

struct Shared {
    tasks: Arc<dyn Tasks>,
    state: Mutex<State>,
    ready: Signal,
}

#[derive(Default)]
struct State {
    // LIMIT: as helpers that are about to take it; none is added without one.
    calls: VecDeque<Arc<dyn Help>>,
    helpers: usize,
    idle: usize,
    is_closed: bool,
}

/// Work in which a helper takes part.
trait Help: Send + Sync {
    /// Does jobs until none is left that nobody has begun.
    fn help(&self);
}

/// What one caller has to be done.
struct Batch<T> {
    state: Mutex<BatchState<T>>,
    /// Whether no other is to be begun after what one gave.
    ends: fn(&T) -> bool,
    ended: Signal,
}

struct BatchState<T> {
    /// Nobody begins any of them once one has ended that [`Batch::ends`] all.
    left: VecDeque<(usize, Job<T>)>,
    /// By number, once they have ended; an error is a panic.
    ended: Vec<Option<thread::Result<T>>>,
    under_way: usize,
}

impl<T: Send> Help for Batch<T> {
    fn help(&self) {
        let mut state = self.state.lock();
        while let Some((number, job)) = state.left.pop_front() {
            state.under_way += 1;
            drop(state);
            let ended = catch_unwind(AssertUnwindSafe(job));
            let is_last = ended.as_ref().is_ok_and(self.ends);
            state = self.state.lock();
            if is_last {
                state.left.clear();
            }
            state.ended[number] = Some(ended);
            state.under_way -= 1;
        }
        if state.under_way == 0 {
            drop(state);
            self.ended.notify_all();
        }
    }
}

impl Fan {
    /// Helpers that `tasks` start, when they are needed.
    pub(crate) fn new(tasks: Arc<dyn Tasks>) -> Fan {
        let ready = tasks.signal();
        Fan { shared: Arc::new(Shared { tasks, state: Mutex::default(), ready }) }
    }

    /// Does `jobs`, several at a time, and begins them in their order, but none after one that gave what `ends` them. Tells what those gave that were begun, in the same order:
    /// the first ones, and all if none has ended them.
    ///
    /// # Panics
    /// When one of them does, after all have ended.
    pub(crate) fn run<T: Send + 'static>(&self, jobs: Vec<Job<T>>, ends: fn(&T) -> bool) -> Vec<T> {
        if jobs.len() <= 1 || self.shared.tasks.takes_turns() {
            let mut gave = Vec::with_capacity(jobs.len());
            for job in jobs {
                gave.push(job());
                if gave.last().is_some_and(ends) {
                    break;
                }
            }
            return gave;
        }
        let count = jobs.len();
        let state = BatchState {
            left: jobs.into_iter().enumerate().collect(),
            ended: (0..count).map(|_| None).collect(),
            under_way: 0,
        };
        let batch = Arc::new(Batch { state: Mutex::new(state), ends, ended: self.shared.tasks.signal() });
        for _ in 0..(count - 1).min(HELPERS_OF_CALL_MAX) {
            if !self.shared.call_helper(batch.clone()) {
                break;
            }
        }
        batch.help();
        let mut state = batch.state.lock();
        while state.under_way > 0 {
            batch.ended.wait(&mut state);
        }
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        // What was not begun is behind all that was.
        ended.into_iter().flatten().map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    /// Helpers that there are.
    #[cfg(test)]
    fn helpers(&self) -> usize {
        self.shared.state.lock().helpers
    }

    /// Waits until no helper is at work.
    #[cfg(test)]
    fn await_idle(&self) {
        loop {
            let state = self.shared.state.lock();
            if state.idle == state.helpers && state.calls.is_empty() {
                return;
            }
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Fan {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.ready.notify_all();
    }
}

impl Shared {
    /// Has a helper take part in `call`; tells whether there is one.
    fn call_helper(self: &Arc<Shared>, call: Arc<dyn Help>) -> bool {
        let mut state = self.state.lock();
        if state.calls.len() < state.idle {
            state.calls.push_back(call);
            drop(state);
            self.ready.notify_one();
            return true;
        }
        if state.helpers >= HELPERS_MAX {
            return false;
        }
        state.helpers += 1;
        drop(state);
        let shared = self.clone();
        let run = Box::new(move || shared.serve(&*call));
        let is_started = self.tasks.spawn("ashlar-fan", run).is_ok();
        if !is_started {
            self.state.lock().helpers -= 1;
        }
        is_started
    }

    /// Helps with `first`, then with others, until there are none for a while.
    fn serve(&self, first: &dyn Help) {
        first.help();
        let mut state = self.state.lock();
        loop {
            if let Some(call) = state.calls.pop_front() {
                drop(state);
                call.help();
                drop(call);
                state = self.state.lock();
                continue;
            }
            if state.is_closed {
                break;
            }
            state.idle += 1;
            let is_over = self.ready.wait_for(&mut state, IDLE_MAX);
            state.idle -= 1;
            if is_over && state.calls.is_empty() {
                break;
            }
        }
        state.helpers -= 1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_env::os::OsTasks;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn fan() -> Fan {
        Fan::new(Arc::new(OsTasks))
    }

    /// Ends no jobs.
    fn never<T>(_: &T) -> bool {
        false
    }

    #[test]
    fn all_are_under_way_at_the_same_time_and_answered_in_their_order() {
        let fan = fan();
        for _ in 0..50 {
            let meet = Arc::new(Barrier::new(8));
            let job = |number: usize| {
                let meet = meet.clone();
                // Were one done after another has ended, nobody would come through.
                Box::new(move || (meet.wait(), number).1) as Job<usize>
            };
            assert_eq!(fan.run((0..8).map(job).collect(), never), [0, 1, 2, 3, 4, 5, 6, 7]);
            fan.await_idle();
        }
        assert_eq!(fan.helpers(), 7, "they are used again, and the caller does one itself");
    }

    #[test]
    fn more_callers_than_there_are_helpers_for_all_come_to_an_end() {
        let (fan, done) = (fan(), Arc::new(AtomicUsize::new(0)));
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let job = |_| {
                            let done = done.clone();
                            Box::new(move || {
                                std::thread::sleep(Duration::from_micros(100));
                                done.fetch_add(1, SeqCst);
                            }) as Job<()>
                        };
                        fan.run((0..16).map(job).collect(), never);
                    }
                });
            }
        });
        assert_eq!(done.load(SeqCst), 32 * 10 * 16);
        assert!(fan.helpers() <= HELPERS_MAX);
    }

    #[test]
    fn a_panic_of_one_is_one_of_the_caller_when_the_others_have_ended() {
        let (fan, done) = (fan(), Arc::new(AtomicUsize::new(0)));
        let job = |number: usize| {
            let done = done.clone();
            Box::new(move || {
                assert_ne!(number, 1, "one of a test");
                std::thread::sleep(Duration::from_millis(20));
                done.fetch_add(1, SeqCst);
            }) as Job<()>
        };
        assert!(catch_unwind(AssertUnwindSafe(|| fan.run((0..4).map(job).collect(), never))).is_err());
        assert_eq!(done.load(SeqCst), 3);
        assert_eq!(fan.run(vec![Box::new(|| 1), Box::new(|| 2)], never), [1, 2], "helpers are as before");
    }

    #[test]
    fn none_is_begun_after_one_that_ends_them() {
        let (fan, begun) = (fan(), Arc::new(AtomicUsize::new(0)));
        let at_once = HELPERS_OF_CALL_MAX + 1;
        let meet = Arc::new(Barrier::new(at_once));
        let job = |number: usize| {
            let (begun, meet) = (begun.clone(), meet.clone());
            Box::new(move || {
                begun.fetch_add(1, SeqCst);
                // All that can be under way are.
                meet.wait();
                Err(number)
            }) as Job<Result<(), usize>>
        };
        let gave = fan.run((0..2 * at_once).map(job).collect(), Result::is_err);
        assert_eq!(gave, (0..at_once).map(Err).collect::<Vec<_>>());
        assert_eq!(begun.load(SeqCst), at_once);
    }
}
