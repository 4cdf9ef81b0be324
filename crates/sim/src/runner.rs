//! Runs seeds with a bound on real time: a seed that hangs fails, and the next ones run.

use crate::run::{self, Plan, Report};
use crate::scheduler::Scheduler;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Real time after which a seed counts as hung. Most take milliseconds, none more than seconds.
pub const SEED_MAX: Duration = Duration::from_secs(60);

/// The thread that runs seeds. One that hangs is left behind: nothing ends a thread that waits for a lock.
struct Worker {
    seeds: Sender<(u64, Plan, bool)>,
    reports: Receiver<Report>,
    scheduler: Arc<Mutex<Weak<Scheduler>>>,
}

/// See the module.
pub struct Runner {
    worker: Option<Worker>,
    seed_max: Duration,
}

impl Default for Runner {
    fn default() -> Runner {
        Runner::new(SEED_MAX)
    }
}

impl Worker {
    fn start() -> Worker {
        let (seeds, todo) = channel::<(u64, Plan, bool)>();
        let (done, reports) = channel();
        let scheduler: Arc<Mutex<Weak<Scheduler>>> = Arc::default();
        let theirs = scheduler.clone();
        std::thread::spawn(move || {
            for (seed, plan, is_traced) in todo {
                let note = |scheduler: &Arc<Scheduler>| *theirs.lock() = Arc::downgrade(scheduler);
                // Nobody listens any more: it has taken too long.
                if done.send(run::run_watched(seed, plan, is_traced, note)).is_err() {
                    return;
                }
            }
        });
        Worker { seeds, reports, scheduler }
    }

    fn run(&self, seed: u64, plan: Plan, is_traced: bool, seed_max: Duration) -> Result<Report, String> {
        // An error shows at the answer.
        let _ = self.seeds.send((seed, plan, is_traced));
        self.reports.recv_timeout(seed_max).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let stuck = self.scheduler.lock().upgrade().and_then(|scheduler| scheduler.what_runs());
                format!("it does not end within {seed_max:?} of real time; {}", stuck.unwrap_or_default())
            }
            RecvTimeoutError::Disconnected => "the simulator itself has panicked".to_owned(),
        })
    }
}

impl Runner {
    /// One that gives a seed `seed_max` of real time.
    pub fn new(seed_max: Duration) -> Runner {
        Runner { worker: None, seed_max }
    }

    /// Runs `seed`.
    pub fn run(&mut self, seed: u64, is_traced: bool) -> Report {
        self.run_plan(seed, Plan::of(seed), is_traced)
    }

    /// Runs `plan` with the choices of `seed`.
    pub fn run_plan(&mut self, seed: u64, plan: Plan, is_traced: bool) -> Report {
        let worker = self.worker.get_or_insert_with(Worker::start);
        worker.run(seed, plan, is_traced, self.seed_max).unwrap_or_else(|what| {
            self.worker = None;
            Report { failures: vec![what], ..Report::default() }
        })
    }
}
