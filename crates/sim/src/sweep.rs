//! A sweep: every operation with every fault at every point where one can be.
//!
//! A point is an operation of a disk, or a border that a client's call crosses on its way to a service or back. Nobody has to name
//! points or keep a list of them: a case is run with the fault at the first one, the second, and so on, until it ends without having
//! met it. That last run is without a fault, and there everything must have been done.
//!
//! The state after a recovery must be the one before or the one after what was under way, and the one after if that was answered; the
//! file system must work on, and at its end nothing may be left behind. All that is judged by the oracle of the simulation of the
//! whole system ([`crate::oracle`]).

mod cases;

use crate::actor::{Mix, Worker};
use crate::copies::{Outcome, add};
use crate::machine::Setup;
use crate::oracle::Evictions;
use crate::run::{Plan, Report, Run};
use crate::scheduler::Scheduler;
use crate::site::sweep as across;
use ashlar_env::Entropy;
use ashlar_env::sim::FaultOp;
use ashlar_types::Durability;
use cases::{AFTERWARDS, CASES, Case, PRELUDE, Step};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Points of one case with one fault, at most; more are an error of the case.
const POINTS_MAX: u64 = 1000;
/// The collector looks every five seconds.
const REST: Duration = Duration::from_secs(12);
/// Who does what a case is about, and who comes afterwards.
const FIRST: usize = 0;
const SECOND: usize = 1;

/// What goes wrong at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The process ends in the middle of an operation that changes a disk.
    Kill,
    /// The power goes there.
    PowerCut,
    /// An operation of one disk fails: that of the metadata (0), or of the first target (1).
    Disk { disk: usize, op: FaultOp, errno: i32 },
    /// The client does nothing any more.
    ClientDies,
}

/// How the file system is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// Small files with their inodes, files over two targets, nothing durable before it is synced.
    Plain,
    /// All content in chunks, everything durable at once, and a checkpoint every few operations.
    Durable,
    /// Directories are split an entry at a time; checkpoints as well.
    Split,
}

/// What a seed stands for.
#[derive(Clone, Copy, Debug)]
enum Sweep {
    OneMachine(OneMachine),
    AcrossServers(&'static across::Case, across::Trouble),
}

/// A case on one machine.
#[derive(Clone, Copy, Debug)]
struct OneMachine {
    case: &'static Case,
    setting: Setting,
    trouble: Trouble,
}

const DISK_FAULTS: [(FaultOp, i32); 9] = [
    (FaultOp::Read, libc::EIO),
    (FaultOp::Write, libc::EIO),
    (FaultOp::Write, libc::ENOSPC),
    (FaultOp::Allocate, libc::EIO),
    (FaultOp::Allocate, libc::ENOSPC),
    (FaultOp::Sync, libc::EIO),
    (FaultOp::SyncDir, libc::EIO),
    (FaultOp::Name, libc::EIO),
    (FaultOp::Name, libc::ENOSPC),
];
const SETTINGS: [Setting; 3] = [Setting::Plain, Setting::Durable, Setting::Split];

/// Everything that may go wrong at a point of one machine.
fn troubles() -> Vec<Trouble> {
    let of_disks =
        (0..2).flat_map(|disk| DISK_FAULTS.iter().map(move |&(op, errno)| Trouble::Disk { disk, op, errno }));
    [Trouble::Kill, Trouble::PowerCut, Trouble::ClientDies].into_iter().chain(of_disks).collect()
}

fn seeds_of_one_machine() -> u64 {
    (CASES.len() * SETTINGS.len() * troubles().len()) as u64
}

/// Seeds with another case, setting or trouble each; those after them are the same again with other choices.
pub fn seeds_in_all() -> u64 {
    seeds_of_one_machine() + (across::CASES.len() * across::TROUBLES.len()) as u64
}

/// Seeds beside each other are this far apart in the list of all, so that a few of them are of all kinds.
const STRIDE: u64 = 1009;

impl Trouble {
    fn name(self) -> &'static str {
        match self {
            Trouble::Kill => "kills",
            Trouble::PowerCut => "power cuts",
            Trouble::ClientDies => "clients that died",
            Trouble::Disk { op: FaultOp::Read, .. } => "reads that failed",
            Trouble::Disk { op: FaultOp::Write, .. } => "writes that failed",
            Trouble::Disk { op: FaultOp::Allocate, .. } => "allocations that failed",
            Trouble::Disk { op: FaultOp::Sync | FaultOp::SyncDir, .. } => "syncs that failed",
            Trouble::Disk { op: FaultOp::Name, .. } => "changes of names on disk that failed",
        }
    }
}

impl Setting {
    fn plan(self) -> Plan {
        let is_plain = self == Setting::Plain;
        let setup = Setup {
            targets: if self == Setting::Durable { 1 } else { 2 },
            stripe_count: 0,
            inline_bytes: match self {
                Setting::Plain => 16 << 10,
                Setting::Durable => 0,
                Setting::Split => 4096,
            },
            durability: if self == Setting::Durable { Durability::Sync } else { Durability::Async },
            overlay_bytes: if is_plain { 4 << 20 } else { 32 << 10 },
            segment_bytes: if is_plain { 256 << 10 } else { 64 << 10 },
            force_codec: self == Setting::Durable,
            splits_in_steps: self == Setting::Split,
        };
        // Nothing is drawn from it but how files are opened, and that is said.
        let mix = Mix {
            data_percent: 0,
            sync_percent: 0,
            write_max: 1,
            offset_max: 1,
            rest_percent: 0,
            hot_percent: 0,
            split_percent: u64::from(self == Setting::Split),
            share_percent: 0,
        };
        Plan { setup, mix, actors: 2, operations: 0, pause_percent: 10, phases: Vec::new(), missing: None }
    }
}

impl OneMachine {
    fn describe(&self) -> String {
        format!("{}, {:?}, {:?}", self.case.name, self.setting, self.trouble)
    }
}

impl Sweep {
    /// What `seed` stands for, and which choices are drawn where something is left to chance.
    fn of(seed: u64) -> (Sweep, u64) {
        let (all, on_one) = (seeds_in_all(), seeds_of_one_machine());
        let (at, round) = (seed % all * STRIDE % all, seed / all);
        if let Some(at) = at.checked_sub(on_one) {
            let count = across::TROUBLES.len() as u64;
            let (trouble, case) = (across::TROUBLES[(at % count) as usize], (at / count) as usize);
            return (Sweep::AcrossServers(&across::CASES[case], trouble), round);
        }
        let (troubles, settings) = (troubles(), SETTINGS.len() as u64);
        let count = troubles.len() as u64;
        let (trouble, setting, case) = (at % count, at / count % settings, at / count / settings);
        let (trouble, setting) = (troubles[trouble as usize], SETTINGS[setting as usize]);
        (Sweep::OneMachine(OneMachine { case: &CASES[case as usize], setting, trouble }), round)
    }

    fn describe(&self) -> String {
        match self {
            Sweep::OneMachine(sweep) => sweep.describe(),
            Sweep::AcrossServers(case, trouble) => format!("{}, {trouble:?}", case.name),
        }
    }

    fn trouble(&self) -> &'static str {
        match self {
            Sweep::OneMachine(sweep) => sweep.trouble.name(),
            Sweep::AcrossServers(_, across::Trouble::Kill { .. }) => "kills of one of two servers",
            Sweep::AcrossServers(_, across::Trouble::PowerCut { .. }) => "power cuts of one of two servers",
            Sweep::AcrossServers(..) => "messages between servers that went wrong",
        }
    }
}

/// The seed of a case with its setting and fault, as a failure names them, if there is such.
pub fn seed_of(what: &str) -> Option<u64> {
    (0..seeds_in_all()).find(|&seed| Sweep::of(seed).0.describe() == what)
}

/// Sweeps what `seed` stands for; `note` gets the scheduler of each run before it begins.
pub fn run(seed: u64, is_traced: bool, note: &dyn Fn(&Arc<Scheduler>)) -> Outcome {
    let (sweep, round) = Sweep::of(seed);
    let mut all = Outcome::default();
    for nth in 0..POINTS_MAX {
        let (report, is_met) = match sweep {
            Sweep::OneMachine(sweep) => Pass::run(sweep, (nth, round), is_traced, note),
            Sweep::AcrossServers(case, trouble) => across::run(case, trouble, (nth, round), is_traced, note),
        };
        all.trace = all.trace.rotate_left(7) ^ report.trace_hash;
        let counts = [
            (sweep.trouble(), u64::from(is_met)),
            ("answers checked", report.answers),
            ("recoveries", report.crashes),
        ];
        add(&mut all.counts, &counts.into());
        let place = |what: &String| format!("{} at point {nth}: {what}", sweep.describe());
        all.failures.extend(report.failures.iter().map(place));
        if !is_met || !all.failures.is_empty() {
            return all;
        }
    }
    all.failures.push(format!("{}: it does not end after {POINTS_MAX} points", sweep.describe()));
    all
}

/// One run of a case with its trouble at one point.
struct Pass {
    sweep: OneMachine,
    nth: u64,
    run: Run,
}

/// What is done once all is there that a case needs.
struct Then {
    /// Has the trouble come.
    arm: Box<dyn FnOnce() + Send>,
    steps: &'static [Step],
}

/// What a worker tells when it has come to its end.
#[derive(Default)]
struct Told {
    is_over: AtomicBool,
    /// The first step that was not taken, or failed.
    missed: Mutex<Option<String>>,
}

impl Pass {
    /// How it went, and whether it has met the trouble.
    fn run(
        sweep: OneMachine,
        (nth, round): (u64, u64),
        is_traced: bool,
        note: &dyn Fn(&Arc<Scheduler>),
    ) -> (Report, bool) {
        // The same up to the trouble for all points.
        let run = Run::new(round, sweep.setting.plan(), is_traced, note);
        run.shared.scheduler.note(&|| format!("{} at point {nth}", sweep.describe()));
        let mut pass = Pass { sweep, nth, run };
        let outcome = pass.whole();
        (pass.run.end(outcome.as_ref().map(drop).map_err(Clone::clone)), outcome.unwrap_or(false))
    }

    fn whole(&mut self) -> Result<bool, String> {
        self.run.machine.format()?;
        self.run.machine.start(|_, _| ())?;
        let first = self.worker(FIRST)?;
        let told =
            self.take(first, PRELUDE, Some(Then { arm: self.arming(), steps: self.sweep.case.steps }))?;
        let is_met = self.disarm();
        if self.run.has_failed() {
            return Ok(is_met);
        }
        match is_met {
            true => self.recover()?,
            false => {
                self.run.shared.oracle.lock().model.forget_actor(FIRST);
                if let Some(missed) = told.missed.lock().take() {
                    return Err(format!("{missed}, although nothing has gone wrong"));
                }
            }
        }
        if !self.run.has_failed() {
            self.work_afterwards()?;
        }
        if !self.run.has_failed() {
            self.run.finish()?;
        }
        Ok(is_met)
    }

    /// Whoever comes next works, as far as that is possible; then everything starts anew and must be as it was.
    fn recover(&mut self) -> Result<(), String> {
        let trouble = self.sweep.trouble;
        if !self.run.shared.is_off() {
            self.work_afterwards()?;
        }
        self.run.shared.oracle.lock().may_evict = Evictions::Nobody;
        if self.run.has_failed() {
            return Ok(());
        }
        let is_disk = matches!(trouble, Trouble::Disk { .. });
        let is_power_cut = trouble == Trouble::PowerCut || is_disk && self.nth.is_multiple_of(2);
        // After a failed sync some is on the disk, and some in memory only.
        let is_loss = matches!(trouble, Trouble::Disk { op: FaultOp::Sync, .. });
        self.run.recover(is_power_cut, is_loss, self.nth as usize)
    }

    fn work_afterwards(&self) -> Result<(), String> {
        match self.worker(SECOND) {
            Ok(second) => {
                self.take(second, AFTERWARDS, None)?;
                self.run.shared.oracle.lock().model.forget_actor(SECOND);
                Ok(())
            }
            Err(_) if self.run.shared.oracle.lock().is_disk_broken => Ok(()),
            Err(what) => Err(what),
        }
    }

    /// Somebody who works as `actor`, with a session of its own.
    fn worker(&self, actor: usize) -> Result<Worker, String> {
        let client = self.run.machine.connect(actor);
        let client = client.map_err(|errno| format!("no session for actor {actor}: {errno:?}"))?;
        let is_durable = self.run.plan.setup.durability == Durability::Sync;
        let (shared, seed) = (self.run.shared.clone(), self.run.random.next_u64());
        Ok(Worker::new(actor, client, shared, seed, (self.run.plan.mix, is_durable)))
    }

    /// Has `worker` take `steps`, and `then` others and wait until nothing is left to do; its session ends with that.
    fn take(
        &self,
        mut worker: Worker,
        steps: &'static [Step],
        then: Option<Then>,
    ) -> Result<Arc<Told>, String> {
        let (actor, told) = (worker.actor, Arc::new(Told::default()));
        let theirs = told.clone();
        let run = move || {
            let mut missed = cases::follow(&mut worker, steps);
            if let Some(Then { arm, steps }) = then {
                arm();
                missed = missed.or(cases::follow(&mut worker, steps));
                worker.shared.scheduler.sleep(REST);
            }
            let ended = worker.client.disconnect();
            missed = missed.or(ended.err().map(|errno| format!("the end of the session answers {errno:?}")));
            *theirs.missed.lock() = missed;
            theirs.is_over.store(true, Relaxed);
        };
        self.run.shared.scheduler.start(&format!("c{actor}:work"), Box::new(run));
        self.run.run_until(&|| told.is_over.load(Relaxed) || actor == FIRST && self.is_dead())?;
        Ok(told)
    }

    /// The client of the first actor has died.
    fn is_dead(&self) -> bool {
        self.run.shared.is_dead.load(Relaxed)
    }

    /// What has the trouble come.
    fn arming(&self) -> Box<dyn FnOnce() + Send> {
        let (shared, nth) = (self.run.shared.clone(), self.nth);
        match self.sweep.trouble {
            Trouble::Kill | Trouble::PowerCut => Box::new(move || shared.stop_in.store(nth as i64, Relaxed)),
            Trouble::ClientDies => Box::new(move || {
                shared.dies_in.store(nth as i64, Relaxed);
                shared.oracle.lock().may_evict = Evictions::Only(FIRST);
            }),
            Trouble::Disk { disk, op, errno } => {
                let disk = self.run.machine.disks()[disk].clone();
                Box::new(move || {
                    disk.fail_nth(op, nth + 1, errno);
                    shared.oracle.lock().is_disk_broken = true;
                })
            }
        }
    }

    /// Nothing goes wrong any more; tells whether something has.
    fn disarm(&self) -> bool {
        let shared = &self.run.shared;
        shared.stop_in.store(-1, Relaxed);
        shared.dies_in.store(-1, Relaxed);
        match self.sweep.trouble {
            Trouble::Kill | Trouble::PowerCut => shared.is_off(),
            Trouble::ClientDies => self.is_dead(),
            Trouble::Disk { disk, errno, .. } => {
                let disks = self.run.machine.disks();
                let is_met = disks[disk].failures_left() == 0;
                disks[disk].forget_failures();
                // A disk that was full for a moment is one that works; a target has stopped if that was in what it had reserved.
                let is_over = errno == libc::ENOSPC && !self.run.machine.has_stopped_target();
                shared.oracle.lock().is_disk_broken &= is_met && !is_over;
                is_met
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn seeds_stand_for_everything_once() {
        let all: BTreeSet<String> = (0..seeds_in_all()).map(|seed| Sweep::of(seed).0.describe()).collect();
        assert_eq!(
            all.len() as u64,
            seeds_in_all(),
            "{STRIDE} divides the number of seeds, or a name is there twice"
        );
    }
}
