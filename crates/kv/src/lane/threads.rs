//! The lane's two background threads: one flushes, one checkpoints.

use super::Shared;
use crate::KvError;
use ashlar_env::{Signal, Task, Tasks};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between looks whether copies have what a checkpoint waits for.
const LOOK_FOR_COPIES: Duration = Duration::from_millis(5);

/// Running threads; none in a lane that is driven by hand.
pub(super) struct Threads {
    shared: Arc<Shared>,
    stop: Arc<StopSignal>,
    handles: Vec<Task>,
}

struct StopSignal {
    is_set: AtomicBool,
    lock: Mutex<()>,
    changed: Signal,
}

impl StopSignal {
    fn new(changed: Signal) -> StopSignal {
        StopSignal { is_set: AtomicBool::default(), lock: Mutex::default(), changed }
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    fn wait(&self, timeout: Duration) {
        let mut guard = self.lock.lock();
        if !self.is_set() {
            self.changed.wait_for(&mut guard, timeout);
        }
    }
}

/// Runs one turn; a panic stops the lane as an error does.
fn run_turn(shared: &Shared, what: &str, turn: impl FnOnce() -> Result<(), KvError>) {
    match catch_unwind(AssertUnwindSafe(turn)) {
        Ok(Ok(()) | Err(KvError::Stopped { .. })) => {}
        Ok(Err(error)) => shared.health.stop_after(&format!("{what}: "), &error),
        Err(_) => shared.health.stop(&format!("{what} panicked")),
    }
    if shared.health.is_stopped() {
        shared.wake_waiting();
    }
}

impl Threads {
    /// No threads.
    pub(super) fn none(shared: &Arc<Shared>, tasks: &dyn Tasks) -> Threads {
        let stop = Arc::new(StopSignal::new(tasks.signal()));
        Threads { shared: Arc::clone(shared), stop, handles: Vec::new() }
    }

    /// Starts both.
    pub(super) fn start(shared: &Arc<Shared>, tasks: &dyn Tasks) -> Result<Threads, KvError> {
        let mut threads = Threads::none(shared, tasks);
        // Half the interval: what is written just after one flush began is on disk an interval later.
        let period = (shared.config.flush_interval / 2).max(Duration::from_millis(1));
        threads.spawn(tasks, "kv-flush", move |shared, stop| {
            while !stop.is_set() && !shared.health.is_stopped() {
                stop.wait(period);
                if !stop.is_set() {
                    run_turn(shared, "flush", || shared.tick_flush());
                }
            }
        })?;
        threads.spawn(tasks, "kv-checkpoint", move |shared, stop| {
            while !stop.is_set() && !shared.health.is_stopped() {
                let at_most = if shared.is_one_pending() { period.min(LOOK_FOR_COPIES) } else { period };
                shared.checkpoints.wait_for_work(at_most);
                if !stop.is_set() {
                    run_turn(shared, "checkpoint", || shared.tick_checkpoint());
                }
            }
        })?;
        Ok(threads)
    }

    fn spawn(
        &mut self,
        tasks: &dyn Tasks,
        name: &str,
        run: impl FnOnce(&Shared, &StopSignal) + Send + 'static,
    ) -> Result<(), KvError> {
        let (shared, stop) = (Arc::clone(&self.shared), Arc::clone(&self.stop));
        let spawned = tasks.spawn(name, Box::new(move || run(&shared, &stop)));
        self.handles.push(spawned.map_err(|e| KvError::io(format!("start thread {name}"), e))?);
        Ok(())
    }

    /// Ends both and waits for them; a running checkpoint is finished.
    pub(super) fn stop(&mut self) {
        {
            let _guard = self.stop.lock.lock();
            self.stop.is_set.store(true, Ordering::Release);
            self.stop.changed.notify_all();
        }
        self.shared.checkpoints.wake();
        for handle in self.handles.drain(..) {
            if !handle.join() {
                self.shared.health.stop("a background thread panicked");
            }
        }
    }
}

impl Shared {
    /// Lets those who wait see that the lane has stopped.
    fn wake_waiting(&self) {
        self.flusher.wake();
        self.checkpoints.wake_writers();
    }
}
