//! One run: everything about it comes from its seed.

use crate::actor::{Mix, Worker, read_back};
use crate::machine::{Machine, Setup};
use crate::model::Model;
use crate::oracle::{Evictions, Oracle};
use crate::scheduler::Scheduler;
use crate::watch::Shared;
use ashlar_env::sim::{FaultOp, SimClock, SimEntropy};
use ashlar_env::{Clock, Entropy};
use ashlar_types::{Durability, Timespec};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

/// Turns of the scheduler after which a phase counts as hung.
const STEPS_MAX: u64 = 3_000_000;
/// Simulated time after which a phase counts as hung.
const PHASE_MAX: Duration = Duration::from_secs(3600);
/// The first of the seeds with directories that are split.
pub const SPLIT_SEEDS: u64 = 1 << 32;
/// The first of the seeds in which files are written by several clients at a time; nothing is split there.
pub const SHARE_SEEDS: u64 = 2 << 32;
/// The first of the seeds with several metadata servers, which are started anew while mounts have files open, and give each other shards.
pub const SITE_SEEDS: u64 = 3 << 32;
/// The first of the seeds with storage servers beside them, whose targets give each other chains while they are written.
pub const CHAIN_SEEDS: u64 = 4 << 32;
/// The first of the seeds, with storage servers or without, in which mounts are at metadata servers only where they have to be.
pub const FEW_SEEDS: u64 = 5 << 32;
/// The client that reads everything back.
const AUDITOR: usize = 99;

/// What goes wrong in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The process ends after so many disk operations.
    Crash(u64),
    /// Power is cut after so many disk operations.
    PowerCut(u64),
    /// One operation of one disk fails.
    DiskError {
        disk: u64,
        op: FaultOp,
        nth: u64,
        errno: i32,
    },
    /// A client stops for so many milliseconds of simulated time; `u64::MAX`: for ever.
    Hang {
        actor: usize,
        after_ms: u64,
        for_ms: u64,
    },
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    pub setup: Setup,
    pub mix: Mix,
    pub actors: usize,
    pub operations: usize,
    pub pause_percent: u64,
    pub phases: Vec<Fault>,
    /// The target that is missing in phases from the first on, before the second.
    pub missing: Option<(usize, usize, usize)>,
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was wrong; empty when nothing was.
    pub failures: Vec<String>,
    /// Equal for two runs of a seed.
    pub trace_hash: u64,
    /// Answers that were checked.
    pub answers: u64,
    /// Crashes and power cuts survived.
    pub crashes: u64,
    /// Turns taken.
    pub steps: u64,
    /// How often a chain was given to another target.
    pub moves: u64,
}

impl Plan {
    /// The plan of `seed`.
    pub fn of(seed: u64) -> Plan {
        let random = SimEntropy::new(seed ^ 0x005E_ED0F_A51A_7000);
        let pick = |list: &[u64]| list[random.below(list.len() as u64) as usize];
        let actors = 1 + random.below(3) as usize;
        let setup = Setup {
            targets: 1 + random.below(3) as usize,
            stripe_count: pick(&[1, 2, 0]) as u16,
            inline_bytes: pick(&[0, 4096, 16 << 10, 64 << 10]) as u32,
            durability: if random.below(5) == 0 { Durability::Sync } else { Durability::Async },
            overlay_bytes: pick(&[32 << 10, 128 << 10, 4 << 20]),
            segment_bytes: 256 << 10,
            force_codec: random.below(4) == 0,
            splits_in_steps: (SPLIT_SEEDS..SHARE_SEEDS).contains(&seed),
        };
        let write_max = pick(&[2000, 20_000, 150_000]);
        let mix = Mix {
            data_percent: pick(&[20, 50, 80]),
            sync_percent: pick(&[1, 5, 15]),
            write_max,
            offset_max: pick(&[8192, 70_000, 200_000]),
            rest_percent: pick(&[0, 2, 20]),
            hot_percent: pick(&[0, 50, 95]),
            // All seeds below keep their meaning.
            split_percent: if seed >= SPLIT_SEEDS { pick(&[3, 10, 30]) } else { 0 },
            share_percent: 0,
        };
        let mut phases: Vec<Fault> = (0..1 + random.below(4)).map(|_| Plan::fault(&random, actors)).collect();
        let operations = pick(&[10, 40, 120]) as usize;
        let pause_percent = pick(&[5, 40, 90]);
        let missing = Plan::missing(seed, setup.targets, actors, &mut phases);
        let plan = Plan { setup, mix, actors, operations, pause_percent, phases, missing };
        if seed >= SHARE_SEEDS { plan.with_sharing(seed) } else { plan }
    }

    /// With several clients that are after one file, most of whose content is in chunks.
    fn with_sharing(mut self, seed: u64) -> Plan {
        let random = SimEntropy::new(seed ^ 0x0000_5AA2_E000_0000);
        let pick = |list: &[u64]| list[random.below(list.len() as u64) as usize];
        self.actors = self.actors.max(2) + random.below(2) as usize;
        self.setup.inline_bytes = pick(&[0, 0, 4096]) as u32;
        self.operations = pick(&[20, 60, 120]) as usize;
        let (data_percent, hot_percent) = (pick(&[60, 80, 90]), pick(&[50, 95, 100]));
        let (split_percent, share_percent) = (0, pick(&[40, 70, 100]));
        self.mix = Mix { data_percent, hot_percent, split_percent, share_percent, ..self.mix };
        self
    }

    /// Drawn from choices of their own, so that all other seeds keep their meaning.
    fn missing(
        seed: u64,
        targets: usize,
        actors: usize,
        phases: &mut Vec<Fault>,
    ) -> Option<(usize, usize, usize)> {
        let random = SimEntropy::new(seed ^ 0x0000_3155_1A67_0000);
        if targets < 2 || random.below(4) != 0 {
            return None;
        }
        let target = random.below(targets as u64) as usize;
        let from = 1 + random.below(phases.len() as u64) as usize;
        let to = from + 1 + random.below(2) as usize;
        while phases.len() < to {
            phases.push(Plan::fault(&random, actors));
        }
        // Sometimes there is time to see what became of it.
        if random.below(2) == 0 {
            phases.push(Plan::fault(&random, actors));
        }
        Some((target, from, to))
    }

    fn fault(random: &SimEntropy, actors: usize) -> Fault {
        let after = 1 + random.below(1 << (2 + random.below(9)));
        match random.below(10) {
            0 | 1 => Fault::None,
            2..5 => Fault::Crash(after),
            5..8 => Fault::PowerCut(after),
            8 => {
                let ops = [FaultOp::Write, FaultOp::Sync, FaultOp::Read, FaultOp::Allocate, FaultOp::Name];
                let op = ops[random.below(5) as usize];
                let errno = if random.below(2) == 0 { libc::EIO } else { libc::ENOSPC };
                let errno = if matches!(op, FaultOp::Read | FaultOp::Sync) { libc::EIO } else { errno };
                Fault::DiskError { disk: random.below(4), op, nth: 1 + random.below(60), errno }
            }
            _ => {
                // Not for longer than a recall waits, and then on: nothing here fences what an evicted session still writes. The edge of a storage server does, which is left out.
                let for_ms = [1500, 4000, u64::MAX][random.below(3) as usize];
                Fault::Hang {
                    actor: random.below(actors as u64) as usize,
                    after_ms: random.below(50),
                    for_ms,
                }
            }
        }
    }
}

/// A run that is under way.
pub(crate) struct Run {
    pub machine: Machine,
    pub shared: Arc<Shared>,
    pub plan: Plan,
    pub random: SimEntropy,
    crashes: u64,
}

/// Runs `seed`.
pub fn run(seed: u64, is_traced: bool) -> Report {
    let plan = Plan::of(seed);
    run_plan(seed, plan, is_traced)
}

/// Runs `plan` with the choices of `seed`.
pub fn run_plan(seed: u64, plan: Plan, is_traced: bool) -> Report {
    run_watched(seed, plan, is_traced, |_| ())
}

/// As [`run_plan`]; `note` gets the scheduler before it begins.
pub fn run_watched(seed: u64, plan: Plan, is_traced: bool, note: impl FnOnce(&Arc<Scheduler>)) -> Report {
    if seed >= SITE_SEEDS {
        return crate::site::run(seed, is_traced, note);
    }
    let mut run = Run::new(seed, plan, is_traced, note);
    let outcome = run.whole();
    run.end(outcome)
}

impl Run {
    /// Everything there is before a machine is started; `note` gets the scheduler.
    pub fn new(seed: u64, plan: Plan, is_traced: bool, note: impl FnOnce(&Arc<Scheduler>)) -> Run {
        let clock = Arc::new(SimClock::new(Timespec::new(1_700_000_000, 0)));
        let scheduler = Scheduler::new(seed, clock.clone(), is_traced);
        note(&scheduler);
        let shared = Arc::new(Shared {
            scheduler: scheduler.clone(),
            oracle: Mutex::new(Oracle::new()),
            random: SimEntropy::new(seed ^ 0xBAD5_EED0),
            pause_percent: plan.pause_percent,
            stop_in: AtomicI64::new(-1),
            is_off: AtomicBool::new(false),
            dies_in: AtomicI64::new(-1),
            is_dead: AtomicBool::new(false),
            cluster: Mutex::new(None),
        });
        scheduler.note(&|| format!("{plan:?}"));
        shared.oracle.lock().may_split = plan.mix.split_percent > 0;
        shared.oracle.lock().may_share = plan.mix.share_percent > 0;
        let machine = Machine::new(shared.clone(), clock, plan.setup, seed ^ 0x00D1_5C00);
        let random = SimEntropy::new(seed ^ 0x0000_FA17);
        Run { machine, shared, plan, random, crashes: 0 }
    }

    /// How it went, if it ended with `outcome`.
    pub fn end(self, outcome: Result<(), String>) -> Report {
        let Run { machine, shared, crashes, .. } = self;
        let scheduler = shared.scheduler.clone();
        let mut failures = std::mem::take(&mut shared.oracle.lock().failures);
        failures.extend(scheduler.panics());
        failures.extend(outcome.err());
        scheduler.kill_all();
        drop(machine);
        let answers = shared.oracle.lock().checked;
        let (trace_hash, steps) = (scheduler.trace_hash(), scheduler.steps());
        Report { failures, trace_hash, answers, crashes, steps, moves: 0 }
    }

    /// Whether something is wrong already.
    pub fn has_failed(&self) -> bool {
        !self.shared.oracle.lock().failures.is_empty() || !self.shared.scheduler.panics().is_empty()
    }

    fn whole(&mut self) -> Result<(), String> {
        self.machine.format()?;
        self.machine.start(|_, _| ())?;
        for (number, fault) in self.plan.phases.clone().into_iter().enumerate() {
            self.shared.scheduler.note(&|| format!("PHASE {number}: {fault:?}"));
            self.phase(number, fault)?;
            if self.has_failed() {
                return Ok(());
            }
        }
        self.finish()
    }

    /// Lets tasks run until `is_over`, the machine stops, or something is wrong.
    pub fn run_until(&self, is_over: &dyn Fn() -> bool) -> Result<(), String> {
        let scheduler = &self.shared.scheduler;
        let (steps, start) = (scheduler.steps(), self.machine.clock.monotonic());
        while !is_over() && !self.shared.is_off() && !self.has_failed() {
            if !scheduler.step() {
                return Err("nothing can run any more".into());
            }
            let took = self.machine.clock.monotonic().saturating_sub(start);
            if scheduler.steps() - steps > STEPS_MAX || took > PHASE_MAX {
                return Err(format!("a phase does not end (after {took:?})"));
            }
        }
        Ok(())
    }

    fn phase(&mut self, number: usize, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Crash(after) | Fault::PowerCut(after) => self.shared.stop_in.store(after as i64, Relaxed),
            Fault::DiskError { disk, op, nth, errno } => {
                let disks = self.machine.disks();
                disks[disk as usize % disks.len()].fail_nth(op, nth, errno);
                self.shared.oracle.lock().is_disk_broken = true;
            }
            Fault::None | Fault::Hang { .. } => {}
        }
        let may_evict = match fault {
            Fault::Hang { .. } => Evictions::Anybody,
            _ => Evictions::Nobody,
        };
        self.shared.oracle.lock().may_evict = may_evict;
        let ends: Vec<Arc<AtomicBool>> = (0..self.plan.actors).map(|_| Arc::default()).collect();
        let mut clients = Vec::new();
        for (actor, end) in ends.iter().enumerate() {
            let Ok(client) = self.machine.connect(actor) else { continue };
            clients.push(client.clone());
            let is_durable = self.plan.setup.durability == Durability::Sync;
            let seed = self.random.next_u64();
            let mut worker =
                Worker::new(actor, client, self.shared.clone(), seed, (self.plan.mix, is_durable));
            let (end, operations) = (end.clone(), self.plan.operations);
            let run = move || {
                worker.work(operations);
                end.store(true, Relaxed);
            };
            self.shared.scheduler.start(&format!("c{actor}:work"), Box::new(run));
        }
        if let Fault::Hang { actor, after_ms, for_ms } = fault {
            self.start_hang(actor, after_ms, for_ms);
        }
        let hung = match fault {
            Fault::Hang { actor, for_ms: u64::MAX, .. } => Some(actor),
            _ => None,
        };
        let is_over = || {
            let mut all = ends.iter().enumerate();
            all.all(|(actor, end)| end.load(Relaxed) || hung == Some(actor))
        };
        self.run_until(&is_over)?;
        if self.has_failed() {
            return Ok(());
        }
        let is_broken = matches!(fault, Fault::DiskError { .. });
        let is_off = self.shared.is_off();
        let missing = self.missing_in(number + 1);
        let is_other = missing != self.missing_in(number);
        self.machine.set_missing(missing);
        if is_off || is_broken || hung.is_some() || is_other || self.random.below(4) == 0 {
            drop(clients);
            // After a failed sync some is on the disk, and some in memory only.
            let is_loss = matches!(fault, Fault::DiskError { op: FaultOp::Sync, .. });
            let is_power_cut = matches!(fault, Fault::PowerCut(_)) || is_broken && self.random.below(2) == 0;
            return self.recover(is_power_cut, is_loss, number);
        }
        self.shared.stop_in.store(-1, Relaxed);
        self.shared.oracle.lock().check_orphans();
        self.disconnect(clients)
    }

    fn missing_in(&self, phase: usize) -> Option<usize> {
        let (target, from, to) = self.plan.missing?;
        (from..to).contains(&phase).then_some(target)
    }

    fn start_hang(&self, actor: usize, after_ms: u64, for_ms: u64) {
        let (shared, clock) = (self.shared.clone(), self.machine.clock.clone());
        let run = move || {
            shared.scheduler.sleep(Duration::from_millis(after_ms));
            let now = clock.monotonic();
            let until = if for_ms == u64::MAX { Duration::MAX } else { now + Duration::from_millis(for_ms) };
            shared.scheduler.freeze(&format!("c{actor}:"), until);
        };
        self.shared.scheduler.start("hang", Box::new(run));
    }

    /// Ends the sessions of `clients`.
    pub fn disconnect(&self, clients: Vec<Arc<ashlar_client::Client>>) -> Result<(), String> {
        let (left, all) = (Arc::new(AtomicI64::new(0)), clients.len() as i64);
        for client in clients {
            let (left, shared) = (left.clone(), self.shared.clone());
            let run = move || {
                let ended = client.disconnect();
                shared.scheduler.note(&|| format!("disconnected: {ended:?}"));
                left.fetch_add(1, Relaxed);
            };
            self.shared.scheduler.start("disconnect", Box::new(run));
        }
        self.run_until(&|| left.load(Relaxed) == all)?;
        let mut oracle = self.shared.oracle.lock();
        for actor in 0..self.plan.actors {
            oracle.model.forget_actor(actor);
        }
        Ok(())
    }

    /// Crashes, starts again, perhaps several times, and compares.
    pub fn recover(&mut self, mut is_power_cut: bool, is_loss: bool, number: usize) -> Result<(), String> {
        let mut stops_left = self.random.below(3);
        loop {
            self.shared.scheduler.note(&|| format!("CRASH in phase {number}, power cut {is_power_cut}"));
            self.machine.crash(is_power_cut, is_loss);
            self.crashes += 1;
            if stops_left > 0 {
                // Recovery itself is cut short.
                stops_left -= 1;
                self.shared.stop_in.store(self.random.below(60) as i64, Relaxed);
            }
            let shared = self.shared.clone();
            let started = self.machine.start(|pairs, hidden| {
                shared.oracle.lock().recovered(pairs, is_power_cut || is_loss, hidden);
            });
            if self.has_failed() {
                return Ok(());
            }
            if !self.shared.is_off() {
                started?;
                let found = self.read_back()?;
                if let Some(found) = found {
                    self.shared.stop_in.store(-1, Relaxed);
                    self.shared.oracle.lock().verify(found, is_power_cut || is_loss);
                    return Ok(());
                }
                if self.has_failed() {
                    return Ok(());
                }
            }
            is_power_cut |= self.random.below(2) == 0;
        }
    }

    /// Everything there is; `None` when the machine stops meanwhile.
    fn read_back(&self) -> Result<Option<Model>, String> {
        let client = match self.machine.connect(AUDITOR) {
            Ok(client) => client,
            Err(_) if self.shared.is_off() => return Ok(None),
            Err(errno) => return Err(format!("no session after recovery: {errno:?}")),
        };
        let slot = Arc::new(Mutex::new(None));
        let (theirs, hidden) = (slot.clone(), self.shared.oracle.lock().hidden.clone());
        let run = move || {
            let model = read_back(&client, &hidden);
            if let Err(errno) = client.disconnect() {
                *theirs.lock() = Some(Err(format!("the auditor cannot disconnect: {errno:?}")));
            } else {
                *theirs.lock() = Some(model);
            }
        };
        self.shared.scheduler.start("auditor", Box::new(run));
        self.run_until(&|| slot.lock().is_some())?;
        if self.shared.is_off() {
            return Ok(None);
        }
        slot.lock().take().transpose()
    }

    /// Ends in good order: nothing may be left behind, and a last look finds everything.
    pub fn finish(&mut self) -> Result<(), String> {
        if let Some(found) = self.read_back()? {
            let mut oracle = self.shared.oracle.lock();
            crate::oracle::forget_dead(&mut oracle.model);
            let expected = oracle.expected_now();
            if let Some(what) = crate::compare::difference(&expected, &found) {
                return Err(format!("at the end: {what}"));
            }
        }
        let start = self.machine.clock.monotonic();
        let clock = self.machine.clock.clone();
        // An hour is a phase; the collector looks every 5 seconds.
        self.run_until(&|| {
            !self.machine.has_garbage() || clock.monotonic().saturating_sub(start) > Duration::from_secs(30)
        })?;
        if self.machine.has_garbage() {
            return Err("the collector leaves garbage behind".into());
        }
        self.machine.stop_and_audit()
    }
}
