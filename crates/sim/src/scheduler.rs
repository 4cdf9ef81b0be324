//! Runs tasks one at a time in an order drawn from the seed, and lets time pass when all of them wait.
//!
//! A task gives up its turn only where it waits, where it sleeps, and where [`Scheduler::pause`] is called. Killing unwinds all
//! tasks where they stand, as the end of a process does, except that destructors run; what they do reaches only memory, because
//! the disks have stopped.

use crate::coroutine::{self, Coroutine};
use ashlar_env::sim::SimClock;
use ashlar_env::{Clock, NoWaiting, Signal, SimSignal, SimTask, Task, Tasks};
use ashlar_types::Timespec;
use parking_lot::Mutex;
use std::backtrace::Backtrace;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest step of the clock between two turns, microseconds.
const STEP_US_MAX: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    Waiting { signal: u64, until: Option<Duration> },
    Ended,
}

struct Slot {
    name: String,
    coroutine: Option<Coroutine>,
    status: Status,
    /// The last wait ended because its time was over.
    is_timed_out: bool,
    /// Does not run before this time: a client that hangs.
    frozen_until: Option<Duration>,
    /// It is in a call of a service, which does not hang with its client.
    is_serving: bool,
    has_panicked: bool,
    /// Its process is being killed.
    is_killed: bool,
    /// Nobody waits for its end, so its place goes to another one.
    is_detached: bool,
    /// Signal that is notified at the end.
    ended: u64,
}

impl Slot {
    fn frozen(&self) -> Option<Duration> {
        self.frozen_until.filter(|_| !self.is_serving)
    }
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    /// Places of tasks that have not ended, ascending: of many that there ever were, few.
    live: Vec<usize>,
    /// Places of detached tasks that have ended.
    free: Vec<usize>,
    current: Option<usize>,
    random: u64,
    signals: u64,
    steps: u64,
    trace: u64,
    is_killing: bool,
    is_traced: bool,
    panics: Vec<String>,
}

/// See the module.
pub struct Scheduler {
    state: Mutex<State>,
    clock: Arc<SimClock>,
    me: Weak<Scheduler>,
}

/// What a killed task unwinds with.
struct Killed;

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl State {
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (mix(self.random) % bound.max(1) as u64) as usize
    }

    /// The tasks that may run now.
    fn runnable(&mut self, now: Duration) -> Vec<usize> {
        let is_killing = self.is_killing;
        let mut found = Vec::new();
        for &at in &self.live {
            let slot = &mut self.slots[at];
            if slot.status == Status::Ended || slot.coroutine.is_none() {
                continue;
            }
            let is_killing = is_killing || slot.is_killed;
            if let Status::Waiting { until, .. } = slot.status
                && (is_killing || until.is_some_and(|until| until <= now))
            {
                slot.status = Status::Ready;
                slot.is_timed_out = true;
            }
            let is_frozen = !is_killing && slot.frozen().is_some_and(|until| until > now);
            if slot.status == Status::Ready && !is_frozen {
                found.push(at);
            }
        }
        found
    }

    /// When the next task could run by the passing of time alone.
    fn next_time(&self, now: Duration) -> Option<Duration> {
        let live = self.live.iter().map(|at| &self.slots[*at]);
        let times = live.filter(|slot| slot.coroutine.is_some()).filter_map(|slot| {
            let due = match slot.status {
                Status::Ended => return None,
                Status::Ready => now,
                Status::Waiting { until, .. } => until?,
            };
            let frozen_until = slot.frozen().unwrap_or(Duration::ZERO);
            (frozen_until < Duration::MAX).then_some(due.max(frozen_until))
        });
        times.min()
    }
}

impl Scheduler {
    /// A scheduler whose choices come from `seed`.
    pub fn new(seed: u64, clock: Arc<SimClock>, is_traced: bool) -> Arc<Scheduler> {
        let state = State { random: mix(seed), is_traced, ..State::default() };
        Arc::new_cyclic(|me| Scheduler { state: Mutex::new(state), clock, me: me.clone() })
    }

    /// Notes what happens, for the trace and its hash.
    pub fn note(&self, what: &dyn Fn() -> String) {
        let text = what();
        let mut state = self.state.lock();
        for byte in text.bytes() {
            state.trace = (state.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        if state.is_traced {
            let name = state.current.map_or("-", |at| state.slots[at].name.as_str());
            eprintln!("{:>12.6} {name:<16} {text}", self.clock.monotonic().as_secs_f64());
        }
    }

    /// A number that two runs of one seed have in common, and hardly any two runs that differ.
    pub fn trace_hash(&self) -> u64 {
        let state = self.state.lock();
        mix(state.trace ^ mix(state.steps) ^ mix(state.random))
    }

    /// What every clock on a wall shows.
    pub fn now(&self) -> Timespec {
        self.clock.now()
    }

    /// What panicked so far.
    pub fn panics(&self) -> Vec<String> {
        self.state.lock().panics.clone()
    }

    /// Whether something panicked so far.
    pub fn has_panicked(&self) -> bool {
        !self.state.lock().panics.is_empty()
    }

    /// Turns taken so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// The task whose turn it is, for whoever wonders why it does not end; from any thread.
    pub fn what_runs(&self) -> Option<String> {
        let state = self.state.try_lock()?;
        let name = state.current.map_or("no task", |at| state.slots[at].name.as_str());
        Some(format!(
            "in turn {}, of {name}, it waits for a lock that another task holds, or goes round in circles",
            state.steps
        ))
    }

    /// Keeps tasks whose name begins with `prefix` from running until `until` of the monotonic clock.
    pub fn freeze(&self, prefix: &str, until: Duration) {
        let mut state = self.state.lock();
        for slot in state.slots.iter_mut().filter(|slot| slot.name.starts_with(prefix)) {
            slot.frozen_until = Some(until);
        }
    }

    /// Notes whether the running task is in a call of a service.
    pub fn set_serving(&self, is_serving: bool) {
        let mut state = self.state.lock();
        if let Some(at) = state.current {
            state.slots[at].is_serving = is_serving;
        }
    }

    /// Starts a task.
    pub fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> usize {
        self.start_task(name, false, run)
    }

    /// Starts a task whose end nobody waits for.
    pub fn start_detached(&self, name: &str, run: Box<dyn FnOnce() + Send>) {
        self.start_task(name, true, run);
    }

    fn start_task(&self, name: &str, is_detached: bool, run: Box<dyn FnOnce() + Send>) -> usize {
        let mut state = self.state.lock();
        state.signals += 1;
        let free = if is_detached { state.free.pop() } else { None };
        let (at, ended) = (free.unwrap_or(state.slots.len()), state.signals);
        let me = self.me.clone();
        let body = move || {
            let Some(scheduler) = me.upgrade() else { return };
            if scheduler.is_killed() {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(run));
            let mut state = scheduler.state.lock();
            if let Err(payload) = outcome
                && !payload.is::<Killed>()
            {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let name = state.slots[at].name.clone();
                state.panics.push(format!("{name} panicked: {}", text.unwrap_or_default()));
                state.slots[at].has_panicked = true;
            }
        };
        let slot = Slot {
            name: name.to_owned(),
            coroutine: Some(Coroutine::new(Box::new(body))),
            status: Status::Ready,
            is_timed_out: false,
            frozen_until: None,
            is_serving: false,
            has_panicked: false,
            is_killed: false,
            is_detached,
            ended,
        };
        match free {
            Some(at) => state.slots[at] = slot,
            None => state.slots.push(slot),
        }
        let place = state.live.partition_point(|live| *live < at);
        state.live.insert(place, at);
        at
    }

    /// Gives one task a turn, after letting time pass if none is ready; false when none will ever be. From outside tasks only.
    pub fn step(&self) -> bool {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();
        let mut ready = state.runnable(now);
        if ready.is_empty() {
            let Some(next) = state.next_time(now) else { return false };
            self.clock.advance(next.saturating_sub(now));
            ready = state.runnable(next);
        }
        if ready.is_empty() {
            return false;
        }
        let chosen = state.below(ready.len());
        let at = ready[chosen];
        let step_us = state.below(STEP_US_MAX as usize) as u64;
        self.clock.advance(Duration::from_micros(step_us));
        state.steps += 1;
        state.trace = mix(state.trace ^ at as u64);
        drop(state);
        self.take_turn(at)
    }

    /// Lets task `at` run until it gives up its turn; false if there is none.
    fn take_turn(&self, at: usize) -> bool {
        let mut state = self.state.lock();
        let Some(mut coroutine) = state.slots[at].coroutine.take() else { return false };
        state.current = Some(at);
        drop(state);
        let is_done = coroutine.resume();
        let mut state = self.state.lock();
        state.current = None;
        if is_done {
            state.slots[at].status = Status::Ended;
            let place = state.live.partition_point(|live| *live < at);
            state.live.remove(place);
            let ended = state.slots[at].ended;
            Self::wake(&mut state, ended);
            if state.slots[at].is_detached {
                state.free.push(at);
            }
        } else {
            state.slots[at].coroutine = Some(coroutine);
        }
        true
    }

    /// Ends the tasks whose names begin with `prefix` where they stand, and lets no time pass. From outside tasks only.
    pub fn kill(&self, prefix: &str) {
        loop {
            let next = {
                let mut state = self.state.lock();
                let of_process = |slot: &Slot| slot.coroutine.is_some() && slot.name.starts_with(prefix);
                let next = state.live.iter().copied().find(|at| of_process(&state.slots[*at]));
                if let Some(at) = next {
                    state.slots[at].is_killed = true;
                    state.slots[at].status = Status::Ready;
                    state.steps += 1;
                }
                next
            };
            match next {
                Some(at) => self.take_turn(at),
                None => return,
            };
        }
    }

    /// Ends all tasks where they stand.
    pub fn kill_all(&self) {
        self.state.lock().is_killing = true;
        while self.step() {}
        let mut state = self.state.lock();
        state.is_killing = false;
        state.slots.clear();
        state.live.clear();
        state.free.clear();
    }

    /// Lets others run, if the caller is a task.
    pub fn pause(&self) {
        if !coroutine::is_inside() {
            return;
        }
        self.unwind_if_killed();
        // A task that is unwinding must not stop: the others would take its panic for theirs.
        if !std::thread::panicking() {
            self.check_may_wait();
            coroutine::suspend();
            self.unwind_if_killed();
        }
    }

    /// Lets others run until `bound` has passed.
    pub fn sleep(&self, bound: Duration) {
        let signal = self.new_signal();
        signal.wait(Some(bound));
    }

    /// Another task that wants the lock would block the one thread there is, for ever: the one that holds it fails instead.
    fn check_may_wait(&self) {
        if let Some(held) = NoWaiting::because_of() {
            let place = Backtrace::force_capture();
            panic!("a task gives up its turn while it holds {held}, at\n{place}");
        }
    }

    /// Whether the running task is to end.
    fn is_killed(&self) -> bool {
        let state = self.state.lock();
        state.is_killing || state.current.is_some_and(|at| state.slots[at].is_killed)
    }

    fn unwind_if_killed(&self) {
        if self.is_killed() && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Something to wait on.
    pub fn signal(&self) -> Signal {
        Signal::Simulated(Arc::new(self.new_signal()))
    }

    fn new_signal(&self) -> SchedulerSignal {
        let mut state = self.state.lock();
        state.signals += 1;
        SchedulerSignal { id: state.signals, scheduler: self.me.clone() }
    }

    fn wake(state: &mut State, signal: u64) {
        for at in &state.live {
            let slot = &mut state.slots[*at];
            if matches!(slot.status, Status::Waiting { signal: waits, .. } if waits == signal) {
                slot.status = Status::Ready;
                slot.is_timed_out = false;
            }
        }
    }

    /// Waits on the stack of the main program: others run meanwhile.
    fn wait_outside(&self, bound: Option<Duration>) -> bool {
        let until = bound.map(|bound| self.clock.monotonic().saturating_add(bound));
        let is_over = |now: Duration| until.is_some_and(|until| now >= until);
        if is_over(self.clock.monotonic()) {
            return true;
        }
        let has_run = self.step();
        let now = self.clock.monotonic();
        if !has_run && let Some(until) = until {
            self.clock.advance(until.saturating_sub(now));
            return true;
        }
        assert!(has_run, "the main program waits for ever");
        is_over(now)
    }

    fn wait_on(&self, signal: u64, bound: Option<Duration>) -> bool {
        if !coroutine::is_inside() {
            return self.wait_outside(bound);
        }
        self.unwind_if_killed();
        let until = bound.map(|bound| self.clock.monotonic().saturating_add(bound));
        let mut state = self.state.lock();
        let Some(at) = state.current else { return true };
        if state.is_killing || state.slots[at].is_killed || std::thread::panicking() {
            // Unwinding already: what it waits for will not come.
            return true;
        }
        state.slots[at].status = Status::Waiting { signal, until };
        drop(state);
        self.check_may_wait();
        coroutine::suspend();
        self.unwind_if_killed();
        let state = self.state.lock();
        state.current.is_none_or(|at| state.slots[at].is_timed_out)
    }
}

struct SchedulerSignal {
    id: u64,
    scheduler: Weak<Scheduler>,
}

impl SimSignal for SchedulerSignal {
    fn wait(&self, bound: Option<Duration>) -> bool {
        self.scheduler.upgrade().is_none_or(|scheduler| scheduler.wait_on(self.id, bound))
    }

    fn notify(&self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            Scheduler::wake(&mut scheduler.state.lock(), self.id);
        }
    }

    fn another(&self) -> Arc<dyn SimSignal> {
        match self.scheduler.upgrade() {
            Some(scheduler) => Arc::new(scheduler.new_signal()),
            None => Arc::new(SchedulerSignal { id: 0, scheduler: Weak::new() }),
        }
    }
}

struct SchedulerTask {
    at: usize,
    name: String,
    scheduler: Weak<Scheduler>,
}

impl SimTask for SchedulerTask {
    fn join(&self) -> bool {
        let Some(scheduler) = self.scheduler.upgrade() else { return false };
        loop {
            let state = scheduler.state.lock();
            // After a kill the slots are those of a later life.
            let Some(slot) = state.slots.get(self.at).filter(|slot| slot.name == self.name) else {
                return false;
            };
            if slot.status == Status::Ended || state.is_killing {
                return slot.has_panicked;
            }
            let ended = slot.ended;
            drop(state);
            scheduler.wait_on(ended, None);
        }
    }

    fn is_current(&self) -> bool {
        self.scheduler.upgrade().is_some_and(|scheduler| scheduler.state.lock().current == Some(self.at))
    }
}

/// A process: what it spawns is named after it.
pub struct ProcessTasks {
    /// The scheduler.
    pub scheduler: Arc<Scheduler>,
    /// Begins the names of its tasks.
    pub prefix: String,
}

impl Tasks for ProcessTasks {
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        let name = format!("{}{name}", self.prefix);
        let at = self.scheduler.start(&name, run);
        Ok(Task::Simulated(Arc::new(SchedulerTask { at, name, scheduler: Arc::downgrade(&self.scheduler) })))
    }

    fn signal(&self) -> Signal {
        Signal::Simulated(Arc::new(self.scheduler.new_signal()))
    }

    fn takes_turns(&self) -> bool {
        true
    }
}
