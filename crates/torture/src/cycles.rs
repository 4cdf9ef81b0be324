//! The shared part of the crash tests: writers that run while the server dies, and the checks after it is back.
//!
//! Each cycle has a directory and ledgers of its own. After a restart the newest directory is verified, and the one before it once
//! more: what was right stays right. Older ones are removed, which gives the server deletes to lose as well.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::ledger::expect::Mode;
use crate::ledger::verify::{Tolerance, verify};
use crate::ledger::writer::{Ending, Job, run};
use crate::report::Report;
use crate::rng::split_mix;
use crate::server::Launch;

/// The longest a writer may hang once its server is gone and its mount removed.
const WRITER_STALL: Duration = Duration::from_secs(60);

/// The writers of one cycle.
#[derive(Debug)]
pub struct Writers {
    threads: Vec<JoinHandle<anyhow::Result<Ending>>>,
    stop: Arc<AtomicBool>,
}

/// What all cycles share.
#[derive(Clone, Debug)]
pub struct Cycles {
    /// Where everything is.
    pub launch: Launch,
    /// Writers per cycle.
    pub writers: u32,
    /// Fixes the choices of all writers.
    pub seed: u64,
    /// What counts as promised.
    pub mode: Mode,
}

impl Cycles {
    fn tree(&self, cycle: u64) -> PathBuf {
        self.launch.mountpoint().join(format!("cycle-{cycle}"))
    }

    fn ledgers(&self, cycle: u64) -> PathBuf {
        self.launch.work.join("ledgers").join(cycle.to_string())
    }

    /// Starts the writers of `cycle`.
    ///
    /// # Errors
    /// When a directory or a thread cannot be made.
    pub fn start_writers(&self, cycle: u64) -> anyhow::Result<Writers> {
        let (tree, ledgers) = (self.tree(cycle), self.ledgers(cycle));
        fs::create_dir(&tree).with_context(|| format!("create {}", tree.display()))?;
        fs::File::open(self.launch.mountpoint())
            .and_then(|dir| dir.sync_all())
            .context("sync the directory of the cycles")?;
        fs::create_dir_all(&ledgers).with_context(|| format!("create {}", ledgers.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for writer in 0..self.writers {
            let job = Job {
                tree: tree.clone(),
                ledgers: ledgers.clone(),
                writer,
                seed: split_mix(self.seed ^ cycle),
                ops_max: u64::MAX,
                mode: self.mode,
            };
            let stop = Arc::clone(&stop);
            threads.push(
                std::thread::Builder::new()
                    .name(format!("writer-{writer}"))
                    .spawn(move || run(&job, &stop))?,
            );
        }
        // The first promises must be made before the server may die, or there is nothing to verify.
        let begun = |writer| crate::ledger::record::Ledger::path(&ledgers, writer).exists();
        let end = Instant::now() + WRITER_STALL;
        while !(0..self.writers).all(begun) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Writers { threads, stop })
    }

    /// Writes and syncs a file now that the disk is gone; true if the server claims that it worked.
    #[must_use]
    pub fn sync_succeeds(&self, cycle: u64) -> bool {
        use std::io::Write;
        let mut file = match fs::File::create(self.tree(cycle).join("after-the-cut")) {
            Ok(file) => file,
            Err(_) => return false,
        };
        file.write_all(&[1; 10_000]).and_then(|()| file.sync_all()).is_ok()
    }

    /// Verifies the trees of `cycle` and of the one before.
    ///
    /// # Errors
    /// When a ledger cannot be read.
    pub fn verify(&self, cycle: u64) -> anyhow::Result<Report> {
        let mut report = Report::new();
        for number in cycle.saturating_sub(1)..=cycle {
            let (tree, ledgers) = (self.tree(number), self.ledgers(number));
            report.absorb(verify(&tree, &ledgers, self.writers, self.mode, Tolerance::None, &mut 0)?);
        }
        Ok(report)
    }

    /// Removes what no later verification looks at once `cycle` is verified.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn retire(&self, cycle: u64) -> anyhow::Result<()> {
        let Some(old) = cycle.checked_sub(2) else { return Ok(()) };
        for directory in [self.tree(old), self.ledgers(old)] {
            fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))?;
        }
        Ok(())
    }
}

impl Writers {
    /// Whether any writer ended before it was told to: something failed while the server was alive.
    #[must_use]
    pub fn any_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Lets the writers end; what returns to them from now on does not count as answered.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Waits for the writers after their server was killed. Their operations are added up; how they ended counts only when one had
    /// `failed_early`. A writer that hangs is a failure.
    pub fn join(self, failed_early: bool, report: &mut Report) -> u64 {
        self.stop();
        let end = Instant::now() + WRITER_STALL;
        let mut sum = 0;
        for thread in self.threads {
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !thread.is_finished() {
                report.fail(format!("a writer still hangs {WRITER_STALL:?} after its server was killed"));
                continue;
            }
            match thread.join() {
                Ok(Ok(Ending::Finished { operations })) => sum += operations,
                Ok(Ok(Ending::Failed { operations, what })) => {
                    sum += operations;
                    if failed_early {
                        report.fail(format!("while the server was alive: {what}"));
                    }
                }
                Ok(Err(error)) if failed_early => report.fail(format!("a writer broke: {error:#}")),
                Ok(Err(_)) => {}
                Err(_) => report.fail("a writer panicked"),
            }
        }
        sum
    }
}
