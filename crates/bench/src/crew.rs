//! Threads that start together, on one machine or on many, and the time until the last of them has ended.

mod packed;
mod share;

pub use share::Share;

use crate::BenchError;
use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest latency that is told exactly; longer ones count as this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// What one thread did: how often, how much, and how long each operation took.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "packed::PackedTally", try_from = "packed::PackedTally")]
pub struct Tally {
    nanoseconds: Histogram<u64>,
    bytes: u64,
}

impl Default for Tally {
    fn default() -> Self {
        // Two digits: latencies are right within 1 %. From 100 ns on.
        let nanoseconds = Histogram::new_with_bounds(100, LATENCY_MAX.as_nanos() as u64, 2);
        Self {
            nanoseconds: nanoseconds.unwrap_or_else(|_| unreachable!("the bounds are constants")),
            bytes: 0,
        }
    }
}

impl Tally {
    /// Adds an operation that moved `bytes`.
    pub fn add(&mut self, latency: Duration, bytes: u64) {
        self.nanoseconds.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        self.bytes += bytes;
    }

    fn absorb(&mut self, other: &Tally) {
        self.bytes += other.bytes;
        if self.nanoseconds.add(&other.nanoseconds).is_err() {
            unreachable!("all have the same bounds");
        }
    }

    /// Operations.
    pub fn operations(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// Bytes moved by all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The latency that `part` (0 to 1) of the operations were not slower than; zero when there were none.
    pub fn latency(&self, part: f64) -> Duration {
        Duration::from_nanos(self.nanoseconds.value_at_quantile(part))
    }
}

/// What all threads did together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Their sum.
    pub tally: Tally,
    /// From the moment they were let go to the end of the last.
    pub time: Duration,
}

impl Outcome {
    /// Of several crews that worked at the same time: their sum, in the time of the longest.
    pub fn together(outcomes: &[Outcome]) -> Outcome {
        let mut tally = Tally::default();
        outcomes.iter().for_each(|outcome| tally.absorb(&outcome.tally));
        let time = outcomes.iter().map(|outcome| outcome.time).max().unwrap_or_default();
        Outcome { tally, time }
    }
}

/// Where the threads of this machine, when all of them are ready, wait for those of others.
pub trait Barrier: Sync {
    /// Says that this machine is ready; returns when all are, with the moment it heard of it.
    ///
    /// # Errors
    /// [`BenchError::Stopped`] when it will not come to that.
    fn pass(&self) -> Result<Instant, BenchError>;
}

/// What is known at the start.
#[derive(Default)]
struct Start {
    /// Threads that are ready.
    ready: usize,
    has_failed: bool,
    /// When they were let go.
    released: Option<Instant>,
}

/// Where threads wait for each other before they start.
#[derive(Default)]
struct Gate {
    start: Mutex<Start>,
    changed: Condvar,
}

/// A thread's place at the start.
pub struct Line<'a> {
    gate: &'a Gate,
    threads: usize,
    barrier: Option<&'a dyn Barrier>,
    stop: &'a AtomicBool,
}

impl Line<'_> {
    /// Waits until all are ready; the time begins when this returns. What comes before is preparation and not timed.
    ///
    /// # Errors
    /// [`BenchError::Stopped`] when another thread failed before it was ready, or the barrier does not open.
    pub fn start(&self) -> Result<(), BenchError> {
        let mut start = self.gate.start.lock();
        start.ready += 1;
        if start.ready == self.threads && !start.has_failed {
            drop(start);
            let released = match self.barrier {
                Some(barrier) => barrier.pass()?,
                None => Instant::now(),
            };
            self.gate.start.lock().released = Some(released);
            self.gate.changed.notify_all();
            return Ok(());
        }
        // LIMIT: each of the others gets here or fails.
        while start.released.is_none() && !start.has_failed {
            self.gate.changed.wait(&mut start);
        }
        if start.has_failed { Err(BenchError::Stopped) } else { Ok(()) }
    }

    /// To be asked between operations.
    ///
    /// # Errors
    /// [`BenchError::Stopped`] when another thread failed or the user wants to stop.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.stop.load(Relaxed) { Err(BenchError::Stopped) } else { Ok(()) }
    }
}

/// Marks a thread as failed unless it is told that all went well: also when it panics.
struct Failing<'a> {
    gate: &'a Gate,
    has_failed: &'a AtomicBool,
    is_well: bool,
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if !self.is_well {
            self.has_failed.store(true, Relaxed);
            self.gate.start.lock().has_failed = true;
            self.gate.changed.notify_all();
        }
    }
}

/// Threads of a plan that this machine has.
#[derive(Clone, Copy)]
pub struct Crew<'a> {
    /// Which they are.
    pub share: Share,
    /// Ends them from outside, when somebody sets it.
    pub cancel: &'a AtomicBool,
    /// Where they wait for those of other machines.
    pub barrier: Option<&'a dyn Barrier>,
}

impl<'a> Crew<'a> {
    /// All threads are this machine's.
    pub fn alone(cancel: &'a AtomicBool) -> Crew<'a> {
        Crew { share: Share::WHOLE, cancel, barrier: None }
    }

    /// Runs `work` on this machine's part of `threads` threads at once; each call gets its thread's number among all. When one fails the
    /// others stop at their next operation.
    ///
    /// # Errors
    /// The first error that is not merely that somebody else stopped.
    pub fn run<W>(&self, threads: usize, work: W) -> Result<Outcome, BenchError>
    where
        W: Fn(usize, &Line<'_>) -> Result<Tally, BenchError> + Sync,
    {
        let gate = Gate::default();
        let has_failed = AtomicBool::new(false);
        let numbers: Vec<usize> = self.share.threads(threads).collect();
        if let ([], Some(barrier)) = (&numbers[..], self.barrier) {
            barrier.pass()?;
        }
        let one = |thread: usize| {
            let mut failing = Failing { gate: &gate, has_failed: &has_failed, is_well: false };
            let line = Line { gate: &gate, threads: numbers.len(), barrier: self.barrier, stop: &has_failed };
            let tally = work(thread, &line)?;
            failing.is_well = true;
            Ok((Instant::now(), tally))
        };
        let results: Vec<Result<_, BenchError>> = std::thread::scope(|scope| {
            let one = &one;
            let mut running = Vec::with_capacity(numbers.len());
            let mut refused = None;
            for &thread in &numbers {
                match std::thread::Builder::new().spawn_scoped(scope, move || one(thread)) {
                    Ok(started) => running.push(started),
                    Err(answer) => {
                        // Those that wait for it at the start must not wait for ever.
                        drop(Failing { gate: &gate, has_failed: &has_failed, is_well: false });
                        refused = Some(Err(BenchError::Threads { threads: numbers.len(), answer }));
                        break;
                    }
                }
            }
            while running.iter().any(|thread| !thread.is_finished()) {
                if self.cancel.load(Relaxed) {
                    has_failed.store(true, Relaxed);
                }
                // Short phases must not be told longer: the time is taken by the threads themselves.
                std::thread::park_timeout(Duration::from_millis(5));
            }
            let ended = running.into_iter().map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked)));
            refused.into_iter().chain(ended).collect()
        });
        let released = gate.start.lock().released;
        sum_up(results, released)
    }
}

/// Runs `work` on `threads` threads of this machine alone, as [`Crew::run`].
///
/// # Errors
/// As there.
pub fn run<W>(threads: usize, cancel: &AtomicBool, work: W) -> Result<Outcome, BenchError>
where
    W: Fn(usize, &Line<'_>) -> Result<Tally, BenchError> + Sync,
{
    Crew::alone(cancel).run(threads, work)
}

fn sum_up(
    results: Vec<Result<(Instant, Tally), BenchError>>,
    released: Option<Instant>,
) -> Result<Outcome, BenchError> {
    let mut done = Vec::with_capacity(results.len());
    let mut stopped = None;
    for result in results {
        match result {
            Ok(one) => done.push(one),
            Err(BenchError::Stopped) => stopped = Some(BenchError::Stopped),
            Err(error) => return Err(error),
        }
    }
    if let Some(stopped) = stopped {
        return Err(stopped);
    }
    let last = done.iter().map(|(end, _)| *end).max();
    let mut tally = Tally::default();
    done.iter().for_each(|(_, one)| tally.absorb(one));
    let time = released.zip(last).map_or(Duration::ZERO, |(begin, end)| end.saturating_duration_since(begin));
    Ok(Outcome { tally, time })
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn what_all_threads_do_is_summed_up_and_nobody_starts_before_all_are_ready() {
        let ready = std::sync::atomic::AtomicUsize::new(0);
        let outcome = run(3, &GO_ON, |thread, line| {
            ready.fetch_add(1, Relaxed);
            line.start()?;
            assert_eq!(ready.load(Relaxed), 3);
            let mut tally = Tally::default();
            tally.add(Duration::from_micros(10 * (thread as u64 + 1)), 100);
            Ok(tally)
        });
        let tally = outcome.unwrap().tally;
        assert_eq!((tally.operations(), tally.bytes()), (3, 300));
        assert!(tally.latency(0.5).as_micros().abs_diff(20) <= 1 && tally.latency(1.0).as_micros() >= 29);
    }

    #[test]
    fn a_thread_that_fails_before_the_start_holds_nobody_up() {
        let failed = run(4, &GO_ON, |thread, line| {
            if thread == 2 {
                return Err(BenchError::Plan("no".into()));
            }
            line.start().map(|()| Tally::default())
        });
        assert!(matches!(failed, Err(BenchError::Plan(_))), "{failed:?}");
    }

    #[test]
    fn a_thread_that_fails_or_panics_stops_the_others() {
        for panics in [false, true] {
            let failed = run(3, &GO_ON, |thread, line| {
                line.start()?;
                if thread == 0 {
                    assert!(!panics, "on purpose");
                    return Err(BenchError::Plan("no".into()));
                }
                loop {
                    line.check()?;
                }
            });
            let is_told = matches!(
                (&failed, panics),
                (Err(BenchError::Plan(_)), false) | (Err(BenchError::Panicked), true)
            );
            assert!(is_told, "{failed:?}");
        }
    }

    /// Opens after `0`, or never.
    struct Later(Option<Duration>);

    impl Barrier for Later {
        fn pass(&self) -> Result<Instant, BenchError> {
            std::thread::sleep(self.0.ok_or(BenchError::Stopped)?);
            Ok(Instant::now())
        }
    }

    #[test]
    fn the_time_begins_when_the_barrier_opens_and_each_machine_has_its_threads() {
        let barrier = Later(Some(Duration::from_millis(200)));
        let crew = Crew { share: Share { machine: 1, machines: 2 }, cancel: &GO_ON, barrier: Some(&barrier) };
        let seen = Mutex::new(Vec::new());
        let outcome = crew.run(5, |thread, line| {
            line.start()?;
            seen.lock().push(thread);
            Ok(Tally::default())
        });
        assert!(outcome.unwrap().time < Duration::from_millis(150), "the wait does not count");
        seen.lock().sort_unstable();
        assert_eq!(*seen.lock(), [1, 3]);
    }

    #[test]
    fn a_barrier_that_does_not_open_stops_all_also_where_no_thread_is() {
        let barrier = Later(None);
        for threads in [1, 6] {
            let crew =
                Crew { share: Share { machine: 1, machines: 2 }, cancel: &GO_ON, barrier: Some(&barrier) };
            let stopped = crew.run(threads, |_, line| line.start().map(|()| Tally::default()));
            assert!(matches!(stopped, Err(BenchError::Stopped)));
        }
    }

    #[test]
    fn a_cancelled_run_ends() {
        let cancel = AtomicBool::new(false);
        let ended = run(2, &cancel, |_, line| {
            line.start()?;
            cancel.store(true, Relaxed);
            loop {
                line.check()?;
            }
        });
        assert!(matches!(ended, Err(BenchError::Stopped)));
    }
}
