//! Copies of metadata: the production copies of a metadata server's log (`ashlar_meta::replica`) over simulated disks, with a register and a list that whoever is primary changes and reads, and
//! a map that is changed by compare-and-set.
//!
//! What a metadata server has acknowledged is in all copies of its log that count, and who has been replaced acknowledges nothing and tells nothing that is old, whichever copies are killed, lose
//! their power, hang, or cannot hear each other; and once nothing fails any more, all copies are in sync and equal.

mod blame;
mod check;
mod damage;
mod network;
mod node;
mod store;
mod trouble;

use super::{Counts, Outcome, finish, step_while};
use crate::scheduler::{ProcessTasks, Scheduler};
use ashlar_env::sim::{SimClock, SimEntropy};
use ashlar_env::{Clock, Entropy, Env};
use ashlar_meta::replica::Replica;
use ashlar_replication::membership::{Change, Proposer, plan};
use ashlar_types::membership::Membership;
use ashlar_types::{ClusterId, Epoch, NodeId, Timespec};
use blame::Blame;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use store::NodeDisk;

const CLUSTER: ClusterId = ClusterId([0xC0; 16]);
const NODES: usize = 3;
/// Calls that a service carries out at the same time.
const WORKERS: u64 = 4;
/// Where managers are, in the table of who cannot hear whom.
const MANAGERS: usize = NODES;

fn node_of(at: usize) -> NodeId {
    NodeId(at as u32 + 1)
}

fn at_of(node: NodeId) -> usize {
    node.0 as usize - 1
}

/// How often something goes wrong.
const TROUBLES: usize = 40;

/// One life of a process.
struct Life {
    is_over: AtomicBool,
    replica: Mutex<Option<Arc<Replica>>>,
}

struct Node {
    disk: Arc<NodeDisk>,
    life: Mutex<Arc<Life>>,
    /// Does nothing before this time.
    frozen_until: Mutex<Duration>,
    /// What it holds was found to be damaged, and is there yet.
    has_found_damage: AtomicBool,
    /// It has nothing, and was a copy.
    has_lost_all: AtomicBool,
}

/// What was told to callers.
#[derive(Default)]
struct Told {
    /// Numbers that were acknowledged and, after a loss that is allowed, are still promised.
    acknowledged: BTreeSet<u64>,
    /// Those among them that no power cut may take.
    flushed: BTreeSet<u64>,
    newest: u64,
    /// How often all lost their power at once.
    cuts_of_all: u64,
    disks_failed: u64,
    /// What may have been lost by a power cut, and nobody was told.
    uncertain: BTreeSet<u64>,
    /// The last cut of all after which somebody has told a loss.
    cuts_told: u64,
    losses_told: u64,
    reads: u64,
    by_node: BTreeMap<usize, u64>,
    everything_sent: u64,
    /// Damaged copies that were made anew.
    set_aside: u64,
}

struct Site {
    scheduler: Arc<Scheduler>,
    clock: Arc<SimClock>,
    dice: SimEntropy,
    nodes: Vec<Node>,
    map: Mutex<(u64, Membership<NodeId>)>,
    /// A copy has come to be in sync since this was looked at.
    has_grown: AtomicBool,
    /// Nodes that may have lost something and were in sync ever since, or may have been: what they have counts for nothing.
    may_lack: Mutex<BTreeSet<usize>>,
    /// Which node cannot hear which.
    cut: Mutex<BTreeSet<(usize, usize)>>,
    blame: Mutex<Blame>,
    is_troubled: AtomicBool,
    next_number: AtomicU64,
    told: Mutex<Told>,
    failures: Mutex<Vec<String>>,
}

impl Site {
    fn chance(&self, of: u64) -> bool {
        self.is_troubled.load(SeqCst) && self.dice.below(of) == 0
    }

    fn env(&self, at: usize) -> Env {
        let tasks = ProcessTasks { scheduler: self.scheduler.clone(), prefix: format!("n{at}-") };
        Env {
            clock: self.clock.clone(),
            entropy: Arc::new(SimEntropy::new(self.dice.next_u64())),
            tasks: Arc::new(tasks),
        }
    }

    fn sleep(&self, micros: u64) {
        self.scheduler.sleep(Duration::from_micros(micros));
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn change(&self, expected: Epoch, by: Proposer<NodeId>, change: Change<NodeId>) {
        let mut map = self.map.lock();
        let next = Epoch(map.0 + 1);
        if let Ok(changed) = plan(&map.1, expected, by, change, next) {
            self.has_grown.fetch_or(matches!(change, Change::Promote(_)), SeqCst);
            // Out of sync it is given what it lacks.
            self.may_lack.lock().retain(|at| changed.is_in_sync(node_of(*at)));
            self.scheduler.note(&|| format!("{by:?} has {change:?}: {changed:?}"));
            *map = (next.0, changed);
            drop(map);
            match (by, change) {
                (_, Change::Promote(node)) => self.blame.lock().promoted(at_of(node), self.now()),
                (Proposer::Replica(by), Change::Remove(node)) if by != node => {
                    blame::look(self, at_of(by), at_of(node));
                }
                _ => {}
            }
        }
    }

    fn fail(&self, what: String) {
        self.scheduler.note(&|| format!("FAILED: {what}"));
        self.failures.lock().push(what);
    }

    /// Lets tasks run until `end`, or something is wrong.
    fn step_until(&self, end: Duration) -> Result<(), String> {
        self.step_while(|| self.now() < end)
    }

    /// Lets tasks run until `goes_on` says otherwise, or something is wrong.
    fn step_while(&self, goes_on: impl Fn() -> bool) -> Result<(), String> {
        step_while(&self.scheduler, || goes_on() && !self.is_failed())
    }

    fn is_failed(&self) -> bool {
        !self.failures.lock().is_empty()
    }
}

fn new_site(seed: u64, is_traced: bool) -> Arc<Site> {
    let clock = Arc::new(SimClock::new(Timespec::new(1_700_000_000, 0)));
    let scheduler = Scheduler::new(seed, clock.clone(), is_traced);
    let node = |_| Node {
        disk: Arc::default(),
        life: Mutex::new(Arc::new(Life { is_over: AtomicBool::new(true), replica: Mutex::default() })),
        frozen_until: Mutex::default(),
        has_found_damage: AtomicBool::new(false),
        has_lost_all: AtomicBool::new(false),
    };
    let dice = SimEntropy::new(seed ^ 0x5EED);
    // Some begin with one copy, and get the others later.
    let first = if dice.below(3) == 0 { 1 } else { NODES };
    Arc::new(Site {
        scheduler,
        clock,
        dice,
        nodes: (0..NODES).map(node).collect(),
        map: Mutex::new((1, Membership::new(Epoch(1), (0..first).map(node_of)))),
        has_grown: AtomicBool::new(false),
        may_lack: Mutex::default(),
        cut: Mutex::default(),
        blame: Mutex::default(),
        is_troubled: AtomicBool::new(true),
        next_number: AtomicU64::new(0),
        told: Mutex::default(),
        failures: Mutex::default(),
    })
}

/// Runs `seed`; `note` gets the scheduler before it begins.
pub fn run(seed: u64, is_traced: bool, note: &dyn Fn(&Arc<Scheduler>)) -> Outcome {
    let site = new_site(seed, is_traced);
    note(&site.scheduler);
    let ended = whole(&site);
    let told = std::mem::take(&mut *site.told.lock());
    let counts: Counts = [
        ("acknowledged", told.acknowledged.len() as u64),
        ("reads", told.reads),
        ("runs with take-overs", u64::from(told.by_node.len() > 1)),
        ("copies sent whole", told.everything_sent),
        ("damaged copies set aside", told.set_aside),
        ("cuts of all", told.cuts_of_all),
        ("failures of a disk", told.disks_failed),
        ("losses told", told.losses_told),
        ("epochs", site.map.lock().0),
    ]
    .into();
    let outcome = finish(&site.scheduler, &site.failures, ended, counts);
    site.nodes.iter().for_each(|node| drop(node.life.lock().replica.lock().take()));
    outcome
}

fn whole(site: &Arc<Site>) -> Result<(), String> {
    (0..NODES).for_each(|at| node::start(site, at));
    let mut cut_at = vec![0; NODES];
    for _ in 0..TROUBLES {
        let end = site.now() + Duration::from_millis(site.dice.below(3_000));
        let is_watched = site.dice.below(8) == 0;
        site.has_grown.store(false, SeqCst);
        let has_grown = || is_watched && site.has_grown.load(SeqCst);
        site.step_while(|| site.now() < end && !has_grown())?;
        if has_grown() {
            site.step_until(site.now() + Duration::from_millis(site.dice.below(100)))?;
        }
        if site.is_failed() {
            return Ok(());
        }
        damage::tend(site);
        if has_grown() {
            // What was durable before is so in the new one, too.
            trouble::cut_all(site, &mut cut_at);
        } else {
            trouble::next(site, &mut cut_at);
        }
    }
    check::heal(site)?;
    if site.is_failed() { Ok(()) } else { check::at_rest(site) }
}
