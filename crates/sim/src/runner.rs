//! Runs seeds with a bound on real time: a seed that hangs fails, and the next ones run.

use crate::copies::{Counts, Outcome, add};
use crate::run::{self, Plan, Report};
use crate::scheduler::Scheduler;
use crate::simulation::Simulation;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Real time after which a seed counts as hung. Most take milliseconds, none more than seconds.
pub const SEED_MAX: Duration = Duration::from_secs(60);

/// What a seed is told to do: it tells which scheduler it has.
type Job<T> = Box<dyn FnOnce(&dyn Fn(&Arc<Scheduler>)) -> T + Send>;

/// The thread that runs seeds. One that hangs is left behind: nothing ends a thread that waits for a lock.
struct Worker<T> {
    jobs: Sender<Job<T>>,
    done: Receiver<T>,
    scheduler: Arc<Mutex<Weak<Scheduler>>>,
}

/// See the module.
pub struct Runner<T = Report> {
    worker: Option<Worker<T>>,
    seed_max: Duration,
}

impl<T: Send + 'static> Default for Runner<T> {
    fn default() -> Runner<T> {
        Runner::new(SEED_MAX)
    }
}

impl<T: Send + 'static> Worker<T> {
    fn start() -> Worker<T> {
        let (jobs, todo) = channel::<Job<T>>();
        let (tell, done) = channel();
        let scheduler: Arc<Mutex<Weak<Scheduler>>> = Arc::default();
        let theirs = scheduler.clone();
        std::thread::spawn(move || {
            for job in todo {
                let note = |scheduler: &Arc<Scheduler>| *theirs.lock() = Arc::downgrade(scheduler);
                // Nobody listens any more: it has taken too long.
                if tell.send(job(&note)).is_err() {
                    return;
                }
            }
        });
        Worker { jobs, done, scheduler }
    }

    fn run(&self, job: Job<T>, seed_max: Duration) -> Result<T, String> {
        // An error shows at the answer.
        let _ = self.jobs.send(job);
        self.done.recv_timeout(seed_max).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                let stuck = self.scheduler.lock().upgrade().and_then(|scheduler| scheduler.what_runs());
                format!("it does not end within {seed_max:?} of real time; {}", stuck.unwrap_or_default())
            }
            RecvTimeoutError::Disconnected => "the simulator itself has panicked".to_owned(),
        })
    }
}

impl<T: Send + 'static> Runner<T> {
    /// One that gives a seed `seed_max` of real time.
    pub fn new(seed_max: Duration) -> Runner<T> {
        Runner { worker: None, seed_max }
    }

    fn run_job(&mut self, job: Job<T>) -> Result<T, String> {
        let worker = self.worker.get_or_insert_with(Worker::start);
        let done = worker.run(job, self.seed_max);
        if done.is_err() {
            self.worker = None;
        }
        done
    }
}

impl Runner<Report> {
    /// Runs `seed` of the simulation of the whole system.
    pub fn run(&mut self, seed: u64, is_traced: bool) -> Report {
        self.run_plan(seed, Plan::of(seed), is_traced)
    }

    /// Runs `plan` with the choices of `seed`.
    pub fn run_plan(&mut self, seed: u64, plan: Plan, is_traced: bool) -> Report {
        let job: Job<Report> = Box::new(move |note| run::run_watched(seed, plan, is_traced, note));
        self.run_job(job).unwrap_or_else(|what| Report { failures: vec![what], ..Report::default() })
    }
}

impl Runner<Outcome> {
    /// Runs `seed` of a simulation, twice if that is wanted: two runs that are not the same are a failure.
    pub fn run_of(
        &mut self,
        simulation: Simulation,
        seed: u64,
        (is_traced, is_twice): (bool, bool),
    ) -> Outcome {
        let mut once = |is_traced: bool| {
            let job: Job<Outcome> = Box::new(move |note| simulation.run(seed, is_traced, note));
            self.run_job(job).unwrap_or_else(|what| Outcome { failures: vec![what], ..Outcome::default() })
        };
        let mut outcome = once(is_traced);
        if is_twice {
            let again = once(false);
            if again != outcome {
                let what = format!("two runs of the seed are not the same: {outcome:?}, then {again:?}");
                outcome.failures.push(what);
            }
        }
        outcome
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Of what.
    pub simulation: Simulation,
    /// Which seeds.
    pub seeds: Range<u64>,
    /// Each is run twice, and both runs compared.
    pub is_twice: bool,
    /// Show what happens.
    pub is_traced: bool,
    /// So many seeds at a time.
    pub jobs: usize,
    /// Begin no more once so many seeds have failed.
    pub failures_max: u64,
    /// Real time that a seed may take.
    pub seed_max: Duration,
}

/// What has come of a batch.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub passed: u64,
    /// And those that failed.
    pub failed: Vec<u64>,
    /// What has happened in all of them.
    pub counts: Counts,
}

impl Batch {
    /// Runs all seeds, each in one of some threads; `tell` hears of those that fail, when they do.
    pub fn run(&self, tell: &(dyn Fn(u64, &[String]) + Sync)) -> Summary {
        let (next, is_over) = (AtomicU64::new(self.seeds.start), AtomicBool::new(false));
        let summary = Mutex::new(Summary::default());
        let work = || {
            let mut runner: Runner<Outcome> = Runner::new(self.seed_max);
            while !is_over.load(SeqCst) {
                let seed = next.fetch_add(1, SeqCst);
                if seed >= self.seeds.end {
                    return;
                }
                let outcome = runner.run_of(self.simulation, seed, (self.is_traced, self.is_twice));
                let mut summary = summary.lock();
                add(&mut summary.counts, &outcome.counts);
                if outcome.failures.is_empty() {
                    summary.passed += 1;
                    continue;
                }
                summary.failed.push(seed);
                tell(seed, &outcome.failures);
                if summary.failed.len() as u64 >= self.failures_max {
                    is_over.store(true, SeqCst);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(work);
            }
        });
        summary.into_inner()
    }
}
