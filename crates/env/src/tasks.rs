//! Threads and waiting as a parameter: what starts a thread, and what a thread sleeps on.
//!
//! On the operating system a [`Signal`] is a condition variable and a [`Task`] a thread. In a simulation both belong to a
//! scheduler that runs all tasks on one thread and lets time pass only when none can go on. Running code pays a predictable
//! branch where it waits or wakes, and nothing anywhere else.

use crate::NoWaiting;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Starts tasks and makes what they wait on.
pub trait Tasks: Send + Sync {
    /// Starts `run` beside the caller. `name` is what tools for people show, at most 15 bytes of it.
    ///
    /// # Errors
    /// When no thread can be started.
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task>;

    /// Something to wait on.
    fn signal(&self) -> Signal;

    /// Waits for `time` by the clock of the tasks.
    fn pause(&self, time: Duration) {
        self.signal().wait_for(&mut Mutex::new(()).lock(), time);
    }

    /// The task that says this interrupts no other one when there is something for it: where all processors are busy it gets its turn a moment later, and finds more to do at once.
    fn give_way(&self) {}

    /// Whether tasks take turns on one thread: then nobody may wait for a lock in any other way than by [`Tasks::pause`], or who holds it never goes on.
    fn takes_turns(&self) -> bool {
        false
    }

    /// Runs one item of work of a task that is to go on whatever becomes of the item; tells whether it ended without a panic. What the
    /// item had locked is unlocked. In a simulation a panic goes on: it is a failure of the run.
    fn contain(&self, item: &mut dyn FnMut()) -> bool {
        item();
        true
    }
}

/// Time between two tries of a lock, where tasks take turns.
const TURN: Duration = Duration::from_micros(200);

impl dyn Tasks + '_ {
    /// Takes a lock that another task may hold while it waits for something else: with `lock`, or, where tasks take turns, with `try_lock`, again and again.
    pub fn take<G>(&self, try_lock: impl Fn() -> Option<G>, lock: impl FnOnce() -> G) -> G {
        if !self.takes_turns() {
            return lock();
        }
        loop {
            if let Some(guard) = try_lock() {
                return guard;
            }
            self.pause(TURN);
        }
    }
}

/// A started task. Dropping it leaves the task alone.
pub enum Task {
    /// A thread.
    Thread(JoinHandle<()>),
    /// A task of a simulation.
    Simulated(Arc<dyn SimTask>),
}

/// A task of a simulation.
pub trait SimTask: Send + Sync {
    /// Waits for its end; tells whether it panicked.
    fn join(&self) -> bool;
    /// Whether the caller is this task.
    fn is_current(&self) -> bool;
}

impl Task {
    /// Waits for the end of the task; tells whether it ended without a panic.
    pub fn join(self) -> bool {
        match self {
            Task::Thread(thread) => thread.join().is_ok(),
            Task::Simulated(task) => !task.join(),
        }
    }

    /// Whether the caller is this task.
    pub fn is_current(&self) -> bool {
        match self {
            Task::Thread(thread) => thread.thread().id() == std::thread::current().id(),
            Task::Simulated(task) => task.is_current(),
        }
    }
}

/// What tasks wait on, as on a condition variable: with the mutex that guards the condition, in a loop that looks at it.
pub enum Signal {
    /// A condition variable.
    Thread(Condvar),
    /// One of a simulation.
    Simulated(Arc<dyn SimSignal>),
}

/// What a task of a simulation waits on.
pub trait SimSignal: Send + Sync {
    /// Lets others run until it is notified or `bound` has passed; tells whether it has passed.
    fn wait(&self, bound: Option<Duration>) -> bool;
    /// Wakes all who wait.
    fn notify(&self);
    /// Another one of the same simulation.
    fn another(&self) -> Arc<dyn SimSignal>;
}

impl Default for Signal {
    fn default() -> Signal {
        Signal::Thread(Condvar::new())
    }
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signal")
    }
}

impl Signal {
    /// Another one of the same kind.
    #[must_use]
    pub fn another(&self) -> Signal {
        match self {
            Signal::Thread(_) => Signal::default(),
            Signal::Simulated(signal) => Signal::Simulated(signal.another()),
        }
    }

    /// Lets go of the mutex and waits to be notified; wake-ups without a reason happen.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        check_may_wait();
        match self {
            Signal::Thread(condvar) => condvar.wait(guard),
            Signal::Simulated(signal) => {
                MutexGuard::unlocked(guard, || signal.wait(None));
            }
        }
    }

    /// As [`Signal::wait`], for at most `bound`; tells whether that has passed.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, bound: Duration) -> bool {
        check_may_wait();
        match self {
            Signal::Thread(condvar) => condvar.wait_for(guard, bound).timed_out(),
            Signal::Simulated(signal) => MutexGuard::unlocked(guard, || signal.wait(Some(bound))),
        }
    }

    /// Wakes one that waits, or more.
    pub fn notify_one(&self) {
        match self {
            Signal::Thread(condvar) => {
                condvar.notify_one();
            }
            Signal::Simulated(signal) => signal.notify(),
        }
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        match self {
            Signal::Thread(condvar) => {
                condvar.notify_all();
            }
            Signal::Simulated(signal) => signal.notify(),
        }
    }
}

// INVARIANT: nobody waits who holds a lock under which that is forbidden. Checked where a mistake is found before it is shipped.
fn check_may_wait() {
    if cfg!(debug_assertions) && !std::thread::panicking() {
        let held = NoWaiting::because_of();
        assert!(held.is_none(), "a thread waits while it holds {}", held.unwrap_or_default());
    }
}
