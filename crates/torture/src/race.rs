//! Threads that race: each makes one step after the other until the time is over, and what no race explains is reported.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;

use crate::report::Report;
use crate::rng::Rng;
use crate::sys::Errno;

/// Of so many calls one may answer ESTALE. A call by name on a file that was removed or replaced since the kernel found it looks the name up
/// once more; when that one is replaced as well, ESTALE is the answer. With two mounts Linux answers it by itself, too, when a lookup finds a
/// directory that the other mount has moved while a rename on this mount is under way (`__d_unalias` in fs/dcache.c only tries the lock),
/// as on NFS.
const CALLS_PER_STALE: u64 = 200;

/// LIMIT: milliseconds of a round that ends after so many steps.
const ROUND_MILLIS_MAX: u64 = 3_600_000;

/// LIMIT: unexpected answers after which a thread stops.
const SURPRISES_MAX: usize = 20;

/// Where and for how long threads race.
#[derive(Args, Debug)]
pub struct Course {
    /// A directory on the file system under test.
    #[arg(long)]
    dir: PathBuf,
    /// The same directory through another mount; the threads are shared out among all of them.
    #[arg(long)]
    also_dir: Vec<PathBuf>,
    /// Seconds of racing.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Race for so many steps in all instead, however long they take (at most an hour a round).
    #[arg(long)]
    ops: Option<u64>,
    /// Rounds; each races for its share of the seconds and is checked.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// The seed that fixes the steps (not how they interleave).
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Course {
    /// How many rounds there are; at least one.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.max(1)
    }

    /// When a round that begins now is over.
    #[must_use]
    pub fn end_of_round(&self) -> Instant {
        let millis = if self.ops.is_some() { ROUND_MILLIS_MAX } else { self.seconds * 1000 / self.rounds() };
        Instant::now() + Duration::from_millis(millis)
    }

    /// How many steps each of so many threads makes in a round at most.
    #[must_use]
    pub fn steps_of_round(&self, threads: u64) -> u64 {
        self.ops.map_or(u64::MAX, |ops| ops.div_ceil(self.rounds() * threads.max(1)))
    }

    /// `folder` through every mount, the first first.
    #[must_use]
    pub fn roots(&self, folder: &str) -> Vec<PathBuf> {
        std::iter::once(&self.dir).chain(&self.also_dir).map(|dir| dir.join(folder)).collect()
    }

    /// What a thread draws its steps of a round from.
    #[must_use]
    pub fn rng(&self, round: u64, thread: u64) -> Rng {
        Rng::derive(self.seed, round * 1000 + thread)
    }
}

/// What went wrong in a step.
#[derive(Debug)]
pub enum Wrong {
    /// A call failed.
    Call(Errno),
    /// A call succeeded and told what cannot be.
    Told(String),
}

impl From<Errno> for Wrong {
    fn from(errno: Errno) -> Self {
        Self::Call(errno)
    }
}

/// How to race.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    /// Threads.
    pub threads: u64,
    /// When they stop.
    pub end: Instant,
    /// Steps after which each stops.
    pub steps_max: u64,
    /// How long a step may take.
    pub stall: Duration,
    /// What a race may answer.
    pub expected: &'static [i32],
}

#[derive(Default)]
struct Tally {
    steps: u64,
    stale: u64,
    surprises: Vec<String>,
}

impl Race {
    /// Races `racer(0)`, `racer(1)` and so on, each called again and again for its next step: what it was, and how it went. True if all
    /// threads ended in time. One that hangs cannot be ended, only reported.
    pub fn run<R>(self, round: u64, racer: impl Fn(u64) -> R, report: &mut Report) -> bool
    where
        R: FnMut() -> (String, Result<(), Wrong>) + Send + 'static,
    {
        let made = Arc::new(AtomicU64::new(0));
        let threads: Vec<JoinHandle<Tally>> = (0..self.threads)
            .map(|thread| {
                let (mut step, made) = (racer(thread), made.clone());
                let counted = move || {
                    let done = step();
                    made.fetch_add(1, Ordering::Relaxed);
                    done
                };
                std::thread::spawn(move || self.steps(&format!("round {round}, thread {thread}"), counted))
            })
            .collect();
        // Behind the end, or without one, a thread hangs when nobody has made a step for as long as one may take.
        let mut last = (0, Instant::now());
        while threads.iter().any(|thread| !thread.is_finished()) && last.1.elapsed() < self.stall {
            std::thread::sleep(Duration::from_millis(10));
            let now = made.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        let (mut hanging, mut calls, mut stale_calls) = (0, 0, 0);
        for thread in threads {
            if !thread.is_finished() {
                hanging += 1;
                continue;
            }
            match thread.join() {
                Ok(Tally { steps, stale, surprises }) => {
                    calls += steps;
                    stale_calls += stale;
                    report.pass_many(steps - surprises.len() as u64);
                    surprises.into_iter().for_each(|surprise| report.fail(surprise));
                }
                Err(_) => report.fail("a racing thread panicked"),
            }
        }
        report.check(stale_calls <= calls / CALLS_PER_STALE, || {
            format!("round {round}: {stale_calls} of {calls} calls answered ESTALE")
        });
        if hanging > 0 {
            report.fail(format!(
                "round {round}: {hanging} threads hang for more than {} s",
                self.stall.as_secs()
            ));
        }
        hanging == 0
    }

    fn steps(self, place: &str, mut step: impl FnMut() -> (String, Result<(), Wrong>)) -> Tally {
        let mut tally = Tally::default();
        while Instant::now() < self.end
            && tally.steps < self.steps_max
            && tally.surprises.len() < SURPRISES_MAX
        {
            tally.steps += 1;
            match step() {
                (_, Ok(())) => {}
                (_, Err(Wrong::Call(errno))) if self.expected.contains(&errno.0) => {}
                (_, Err(Wrong::Call(Errno(libc::ESTALE)))) => tally.stale += 1,
                (what, Err(Wrong::Call(errno))) => tally.surprises.push(format!("{place}: {what}: {errno}")),
                (what, Err(Wrong::Told(told))) => tally.surprises.push(format!("{place}: {what}: {told}")),
            }
        }
        tally
    }
}
