//! Goal: what a metadata server has acknowledged is in all copies of its log that count, and who has been replaced acknowledges nothing and tells nothing that is old, whichever copies are killed, lose their
//! power, hang, or cannot hear each other; and once nothing fails any more, all copies are in sync and equal. Method: the production copies (`ashlar_meta::replica`) over simulated
//! disks, in one thread, with a register and a list that whoever is primary changes and reads, and a map that is changed by compare-and-set.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{SimClock, SimDisk, SimEntropy};
use ashlar_env::{Continuity, Disk, Entropy, Env, OpenMode, replace_file};
use ashlar_kv::{
    Background, Engine, Frame, Key, KvError, Lane, LaneConfig, MemoryEngine, Snapshot, Urgency, WriteSet,
};
use ashlar_meta::replica::{
    Agreement, CopyPeers, CopyStore, Replica, ReplicaConfig, Standing, Tenure, prepare,
};
use ashlar_replication::membership::{Change, LeaseTerms, Proposer, plan};
use ashlar_rpc::HoldsBack;
use ashlar_sim::scheduler::{ProcessTasks, Scheduler};
use ashlar_types::membership::Membership;
use ashlar_types::{ClusterId, Epoch, Errno, NodeId, OpId, ShardId, Timespec};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([0xC0; 16]);
const NODES: usize = 3;
/// Calls that a service carries out at the same time.
const WORKERS: u64 = 4;
/// Where managers are, in the table of who cannot hear whom.
const MANAGERS: usize = NODES;

fn node_of(at: usize) -> NodeId {
    NodeId(at as u32 + 1)
}

/// The disk of a node, with the engines that are on it.
#[derive(Default)]
struct NodeDisk {
    disk: SimDisk,
    engines: Mutex<BTreeMap<u64, MemoryEngine>>,
}

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
    reads: u64,
    by_node: BTreeMap<usize, u64>,
    everything_sent: u64,
}

struct Site {
    scheduler: Arc<Scheduler>,
    clock: Arc<SimClock>,
    dice: SimEntropy,
    nodes: Vec<Node>,
    map: Mutex<(u64, Membership<NodeId>)>,
    /// Which node cannot hear which.
    cut: Mutex<BTreeSet<(usize, usize)>>,
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

    fn change(&self, expected: Epoch, by: Proposer<NodeId>, change: Change<NodeId>) {
        let mut map = self.map.lock();
        let next = Epoch(map.0 + 1);
        if let Ok(changed) = plan(&map.1, expected, by, change, next) {
            self.scheduler.note(&|| format!("{by:?} has {change:?}: {changed:?}"));
            *map = (next.0, changed);
        }
    }

    fn fail(&self, what: String) {
        self.scheduler.note(&|| format!("FAILED: {what}"));
        self.failures.lock().push(what);
    }
}

/// A life's way to its disk.
struct Store {
    site: Arc<Site>,
    at: usize,
    life: Arc<Life>,
    begun: AtomicU64,
}

impl Store {
    fn check(&self) -> Result<(), KvError> {
        if self.life.is_over.load(SeqCst) {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            return Err(KvError::Io { what: "a process that is dead".into(), source });
        }
        Ok(())
    }

    fn disk(&self) -> &NodeDisk {
        &self.site.nodes[self.at].disk
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, KvError> {
        let io = |source| KvError::Io { what: format!("read {name}"), source };
        match self.disk().disk.open(name, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io(error)),
            Ok(file) => {
                let mut bytes = vec![0; file.len().map_err(io)? as usize];
                let got = file.read_at(0, &mut bytes).map_err(io)?;
                bytes.truncate(got);
                Ok(Some(bytes))
            }
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), KvError> {
        self.check()?;
        let io = |source| KvError::Io { what: format!("write {name}"), source };
        self.site.sleep(self.site.dice.below(3_000));
        self.check()?;
        replace_file(&self.disk().disk, name, bytes).map_err(io)
    }

    fn open_number(&self, number: u64, keeps_log: bool) -> Result<Lane, KvError> {
        self.check()?;
        let engine = self.disk().engines.lock().entry(number).or_default().clone();
        let config = LaneConfig {
            lane: 3,
            segment_bytes: 32 << 10,
            overlay_bytes_max: 48 << 10,
            log_bytes_max: 96 << 10,
            retained_log_bytes: 8 << 10,
            reserve_bytes: 0,
            background: Background::Manual,
            keeps_log,
            ..LaneConfig::default()
        };
        let disk = Arc::new(self.disk().disk.clone());
        Lane::open(
            disk,
            &format!("lane-{number}"),
            Box::new(engine),
            &self.site.env(self.at),
            CLUSTER,
            config,
        )
    }

    fn current(&self) -> Result<u64, KvError> {
        let text = self.read("current")?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).parse().unwrap_or(0))
    }
}

impl CopyStore for Store {
    fn open(&self, keeps_log: bool) -> Result<Lane, KvError> {
        self.open_number(self.current()?, keeps_log)
    }

    fn begin(&self) -> Result<Box<dyn Engine>, KvError> {
        self.check()?;
        let mut engines = self.disk().engines.lock();
        let number = engines.keys().last().copied().unwrap_or(0) + 1;
        self.begun.store(number, SeqCst);
        Ok(Box::new(engines.entry(number).or_default().clone()))
    }

    fn replace(&self, _engine: Box<dyn Engine>) -> Result<Lane, KvError> {
        let number = self.begun.load(SeqCst);
        self.write("current", number.to_string().as_bytes())?;
        self.site.told.lock().everything_sent += 1;
        self.open_number(number, true)
    }

    fn identity(&self) -> (ClusterId, u32) {
        (CLUSTER, 3)
    }

    fn keep(&self, bytes: &[u8]) -> Result<(), KvError> {
        self.write("copy", bytes)
    }

    fn kept(&self) -> Result<Option<Vec<u8>>, KvError> {
        self.read("copy")
    }

    fn continuity(&self) -> Option<Continuity> {
        self.disk().disk.continuity()
    }
}

/// The network, as one node sees it.
struct Wire {
    site: Arc<Site>,
    from: usize,
}

/// An answer that is on its way.
#[derive(Default)]
struct Reply(Mutex<Option<Vec<u8>>>);

impl CopyPeers for Wire {
    fn ask(&self, node: NodeId, head: &[u8], payload: &[u8], wait: Duration) -> Result<Vec<u8>, Errno> {
        let (site, from, to) = (&self.site, self.from, node.0 as usize - 1);
        site.sleep(20 + site.dice.below(300));
        let is_cut = site.cut.lock().contains(&(from, to)) || site.chance(300);
        let life = site.nodes[to].life.lock().clone();
        let replica = life.replica.lock().clone();
        let (Some(replica), false) = (replica, is_cut) else {
            site.scheduler.sleep(wait.min(Duration::from_millis(300)));
            return Err(Errno::EHOSTDOWN);
        };
        let (reply, arrived) = (Arc::new(Reply::default()), Arc::new(site.scheduler.signal()));
        let (head, payload) = (head.to_vec(), payload.to_vec());
        // It may come late, and twice.
        let (late, is_twice) =
            (if site.chance(400) { site.dice.below(9_000_000) } else { 0 }, site.chance(50));
        let (theirs, answer, told, done) = (site.clone(), reply.clone(), arrived.clone(), node_of(from));
        let serve = move || {
            theirs.sleep(late);
            let frozen = *theirs.nodes[to].frozen_until.lock();
            theirs.scheduler.sleep(frozen.saturating_sub(ashlar_env::Clock::monotonic(&*theirs.clock)));
            if is_twice {
                replica.hear(done, &head, &payload);
                theirs.sleep(theirs.dice.below(2_000));
            }
            let heard = replica.hear(done, &head, &payload);
            *answer.0.lock() = Some(heard);
            told.notify_all();
        };
        site.scheduler.start_detached(&format!("n{to}-serve"), Box::new(serve));
        let end = ashlar_env::Clock::monotonic(&*site.clock) + wait;
        let mut answer = reply.0.lock();
        while answer.is_none() {
            let left = end.saturating_sub(ashlar_env::Clock::monotonic(&*site.clock));
            if left.is_zero() {
                return Err(Errno::EHOSTDOWN);
            }
            arrived.wait_for(&mut answer, left);
        }
        let answer = answer.take().ok_or(Errno::EHOSTDOWN)?;
        let is_lost = site.cut.lock().contains(&(to, from)) || site.chance(300);
        if is_lost { Err(Errno::EHOSTDOWN) } else { Ok(answer) }
    }
}

struct Managers {
    site: Arc<Site>,
    node: NodeId,
}

impl Agreement for Managers {
    fn propose(&self, expected: Epoch, change: Change<NodeId>) {
        self.site.sleep(self.site.dice.below(40_000));
        let at = self.node.0 as usize - 1;
        if !self.site.chance(5) && !self.site.cut.lock().contains(&(at, MANAGERS)) {
            self.site.change(expected, Proposer::Replica(self.node), change);
        }
    }

    fn refresh(&self) {}
}

fn key(text: &str) -> Key {
    let mut key = Key::from_slice(&0u16.to_be_bytes());
    key.extend_from_slice(text.as_bytes());
    key
}

fn register(lane: &dyn Snapshot) -> Result<u64, KvError> {
    let found = lane.get(&key("register"))?;
    Ok(found.map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap()))
}

/// What the service of a node does: it changes the register, or reads it, and callers are told when that may be.
fn serve_one(site: &Arc<Site>, at: usize, tenure: &Tenure) -> Result<(), KvError> {
    let lane = tenure.lane();
    let theirs = site.clone();
    // At times nothing changes: then a primary that hears nobody any more has nothing that waits to be committed.
    let is_quiet = ashlar_env::Clock::monotonic(&*site.clock).as_secs() % 9 < 4 && site.dice.below(200) > 0;
    if is_quiet || site.dice.below(3) == 0 {
        let before = site.told.lock().newest;
        let found = register(&lane.read())?;
        if site.dice.below(8) == 0 {
            site.sleep(site.dice.below(3_000));
        }
        tenure.hold(Box::new(move |is_told| {
            if is_told {
                theirs.told.lock().reads += 1;
                if found < before {
                    theirs.fail(format!("node {at} told {found} when {before} had been acknowledged"));
                }
            }
        }));
        return Ok(());
    }
    let mut writer = lane.write();
    let number = site.next_number.fetch_add(1, SeqCst) + 1;
    let mut writes =
        vec![(key(&format!("n{number:06}")), Some(Bytes::from(vec![7; site.dice.below(400) as usize])))];
    writes.push((key("register"), Some(Bytes::from(number.to_string()))));
    let frame = Frame {
        shard: ShardId(0),
        epoch: Epoch(0),
        op: OpId::default(),
        verb: 1,
        writes: WriteSet(writes),
        reply: Bytes::new(),
    };
    let position = writer.commit(vec![frame], Urgency::Normal)?;
    drop(writer);
    let cuts_before = site.told.lock().cuts_of_all;
    let is_flushed = site.dice.below(12) == 0;
    if is_flushed {
        lane.flush(position)?;
        let mut told = site.told.lock();
        if told.cuts_of_all == cuts_before {
            told.flushed.insert(number);
        }
    }
    tenure.hold(Box::new(move |is_told| {
        if is_told {
            let mut told = theirs.told.lock();
            told.acknowledged.insert(number);
            told.newest = told.newest.max(number);
            *told.by_node.entry(at).or_default() += 1;
        }
    }));
    Ok(())
}

fn serve_while_primary(site: &Arc<Site>, at: usize, replica: &Arc<Replica>, tenure: &Tenure) {
    while replica.standing().is_serving {
        match serve_one(site, at, tenure) {
            Ok(()) | Err(KvError::NotPrimary { .. } | KvError::Stalled { .. }) => {}
            Err(error) => return site.fail(format!("node {at}: {error}")),
        }
        site.sleep(site.dice.below(15_000));
    }
}

/// A life of a node.
fn live(site: &Arc<Site>, at: usize, life: &Arc<Life>) -> Result<(), KvError> {
    let store = Store { site: site.clone(), at, life: life.clone(), begun: AtomicU64::new(0) };
    let config = ReplicaConfig {
        node: node_of(at),
        env: site.env(at),
        terms: LeaseTerms::DEFAULT,
        store: Arc::new(store),
        peers: Arc::new(Wire { site: site.clone(), from: at }),
        agreement: Arc::new(Managers { site: site.clone(), node: node_of(at) }),
    };
    let membership = site.map.lock().1.clone();
    if config.store.kept()?.is_none() {
        prepare(&*config.store, &membership)?;
    }
    let replica = Replica::start(config, &membership)?;
    *life.replica.lock() = Some(replica.clone());
    let (theirs, copy) = (site.clone(), replica.clone());
    let follow = move || loop {
        theirs.sleep(1_000 + theirs.dice.below(60_000));
        if theirs.cut.lock().contains(&(MANAGERS, at)) {
            continue;
        }
        let membership = theirs.map.lock().1.clone();
        if copy.learn(&membership).is_err() {
            return;
        }
    };
    site.scheduler.start_detached(&format!("n{at}-follow"), Box::new(follow));
    let (theirs, copy) = (site.clone(), replica.clone());
    let tick = move || loop {
        // Seldom, so that a power cut takes something.
        theirs.sleep(100_000 + theirs.dice.below(900_000));
        let _ = copy.lane().tick();
    };
    site.scheduler.start_detached(&format!("n{at}-tick"), Box::new(tick));
    loop {
        let standing = replica.standing();
        let begun = if standing.is_serving { replica.begin_service() } else { None };
        let Some(tenure) = begun else {
            site.sleep(2_000 + site.dice.below(5_000));
            continue;
        };
        site.scheduler.note(&|| format!("node {at} serves: {standing:?}"));
        let workers = Arc::new(AtomicU64::new(WORKERS));
        for _ in 0..WORKERS {
            let (theirs, copy, left) = (site.clone(), replica.clone(), workers.clone());
            let tenure = tenure.clone();
            let work = move || {
                serve_while_primary(&theirs, at, &copy, &tenure);
                left.fetch_sub(1, SeqCst);
            };
            site.scheduler.start_detached(&format!("n{at}-main-work"), Box::new(work));
        }
        while workers.load(SeqCst) > 0 {
            site.sleep(1_000);
        }
        tenure.end();
    }
}

fn start_node(site: &Arc<Site>, at: usize) {
    let life = Arc::new(Life { is_over: AtomicBool::new(false), replica: Mutex::default() });
    *site.nodes[at].life.lock() = life.clone();
    let theirs = site.clone();
    let run = move || {
        if let Err(error) = live(&theirs, at, &life)
            && !life.is_over.load(SeqCst)
        {
            theirs.fail(format!("node {at}: {error}"));
        }
    };
    site.scheduler.start_detached(&format!("n{at}-main"), Box::new(run));
}

fn kill_node(site: &Arc<Site>, at: usize, is_power: bool) {
    site.scheduler.note(&|| format!("node {at} dies; power: {is_power}"));
    let life = site.nodes[at].life.lock().clone();
    life.is_over.store(true, SeqCst);
    site.scheduler.kill(&format!("n{at}-"));
    let replica = life.replica.lock().take();
    drop(replica);
    let disk = &site.nodes[at].disk.disk;
    if is_power {
        disk.crash(site.dice.next_u64())
    } else {
        disk.kill_process()
    }
    start_node(site, at);
}

/// All lose their power at once: what was not flushed may be lost.
fn cut_all(site: &Arc<Site>, cut_at: &mut [u64]) {
    {
        let mut told = site.told.lock();
        told.cuts_of_all += 1;
        told.acknowledged = told.flushed.clone();
        told.newest = told.flushed.last().copied().unwrap_or(0);
    }
    let epoch = site.map.lock().1.epoch.0;
    (0..NODES).for_each(|at| {
        cut_at[at] = epoch + 1;
        kill_node(site, at, true);
    });
}

/// Whether a power cut of `at` may take nothing that is promised: others in sync run, have all they had, and this one's loss will be found out by its own start.
fn may_cut_power(site: &Site, at: usize, cut_at: &[u64]) -> bool {
    let (_, membership) = &*site.map.lock();
    let mut others = membership.in_sync.iter().filter(|node| **node != node_of(at));
    let is_member = membership.is_in_sync(node_of(at));
    let is_whole = |node: &NodeId| cut_at[node.0 as usize - 1] < membership.epoch.0;
    !is_member || (others.clone().next().is_some() && others.all(is_whole))
}

fn standing(site: &Site, at: usize) -> Option<Standing> {
    let replica = site.nodes[at].life.lock().replica.lock().clone();
    replica.map(|replica| replica.standing())
}

/// For whoever looks for the cause of a failure.
fn describe(site: &Site, at: usize) -> String {
    let replica = site.nodes[at].life.lock().replica.lock().clone();
    replica.map_or_else(String::new, |replica| {
        format!("{:?} broken: {:?}", replica.standing(), replica.broken())
    })
}

/// One action of the world.
fn trouble(site: &Arc<Site>, cut_at: &mut [u64]) {
    let at = site.dice.below(NODES as u64) as usize;
    match site.dice.below(18) {
        0..=1 => kill_node(site, at, false),
        2 if may_cut_power(site, at, cut_at) => {
            // It counts from now on as one that may lack what it has reported, until it is in sync at a later epoch.
            cut_at[at] = site.map.lock().1.epoch.0 + 1;
            kill_node(site, at, true);
        }
        3..=4 => {
            let until =
                ashlar_env::Clock::monotonic(&*site.clock) + Duration::from_millis(site.dice.below(15_000));
            site.scheduler.note(&|| format!("node {at} hangs until {until:?}"));
            *site.nodes[at].frozen_until.lock() = until;
            site.scheduler.freeze(&format!("n{at}-"), until);
        }
        5..=6 => {
            let other = site.dice.below(NODES as u64 + 1) as usize;
            site.cut.lock().insert((at, other));
            if site.dice.below(2) == 0 {
                site.cut.lock().insert((other, at));
            }
        }
        // A cut heals soon.
        10..=14 => site.cut.lock().clear(),
        8 => {
            // Alone, and still thinking that it is primary.
            let others = (0..=NODES).filter(|other| *other != at);
            site.cut.lock().extend(others.flat_map(|other| [(at, other), (other, at)]));
        }
        9 if site.dice.below(3) == 0 => cut_all(site, cut_at),
        _ => {
            let (epoch, missing) = {
                let (_, membership) = &*site.map.lock();
                (membership.epoch, (0..NODES).map(node_of).find(|node| !membership.is_member(*node)))
            };
            if let Some(node) = missing {
                site.change(epoch, Proposer::Operator, Change::Admit(node));
            }
        }
    }
}

fn all(lane: &Lane) -> BTreeMap<Vec<u8>, Bytes> {
    let mut pairs = BTreeMap::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        pairs.insert(key.to_vec(), Bytes::copy_from_slice(value));
        ControlFlow::Continue(())
    };
    lane.read().scan(&[], &[0xFF; 600], &mut visit).unwrap();
    pairs
}

struct Outcome {
    acknowledged: usize,
    reads: u64,
    nodes: usize,
    everything_sent: u64,
    cuts_of_all: u64,
    trace: u64,
    epochs: u64,
}

fn run_seed(seed: u64, is_traced: bool) -> Outcome {
    let clock = Arc::new(SimClock::new(Timespec::new(1_700_000_000, 0)));
    let scheduler = Scheduler::new(seed, clock.clone(), is_traced);
    let node = |_| Node {
        disk: Arc::default(),
        life: Mutex::new(Arc::new(Life { is_over: AtomicBool::new(true), replica: Mutex::default() })),
        frozen_until: Mutex::default(),
    };
    let dice = SimEntropy::new(seed ^ 0x5EED);
    // Some begin with one copy, and get the others later.
    let first = if dice.below(3) == 0 { 1 } else { NODES };
    let site = Arc::new(Site {
        scheduler: scheduler.clone(),
        clock: clock.clone(),
        dice,
        nodes: (0..NODES).map(node).collect(),
        map: Mutex::new((1, Membership::new(Epoch(1), (0..first).map(node_of)))),
        cut: Mutex::default(),
        is_troubled: AtomicBool::new(true),
        next_number: AtomicU64::new(0),
        told: Mutex::default(),
        failures: Mutex::default(),
    });
    (0..NODES).for_each(|at| start_node(&site, at));
    let mut cut_at = vec![0; NODES];
    let now = || ashlar_env::Clock::monotonic(&*clock);
    let step_until = |end: Duration| {
        while now() < end && site.failures.lock().is_empty() {
            assert!(scheduler.step(), "seed {seed}: nobody will ever run again");
        }
    };
    for _ in 0..40 {
        step_until(now() + Duration::from_millis(site.dice.below(3_000)));
        trouble(&site, &mut cut_at);
    }
    site.is_troubled.store(false, SeqCst);
    site.cut.lock().clear();
    let healed = now();
    let is_whole = || {
        let membership = site.map.lock().1.clone();
        let standings: Vec<_> = (0..NODES).filter_map(|at| standing(&site, at)).collect();
        site.nodes.iter().all(|node| *node.frozen_until.lock() < now())
            && membership.in_sync.len() == NODES
            && standings.len() == NODES
            && standings.iter().all(|standing| standing.is_active && standing.epoch == membership.epoch)
            && standings.iter().any(|standing| standing.is_serving)
    };
    while !is_whole() && site.failures.lock().is_empty() {
        step_until(now() + Duration::from_millis(500));
        assert!(
            now() - healed < Duration::from_secs(120),
            "seed {seed}: the copies are not whole again: {:?} {:?}",
            site.map.lock(),
            (0..NODES).map(|at| describe(&site, at)).collect::<Vec<_>>()
        );
        let (epoch, missing) = {
            let (_, membership) = &*site.map.lock();
            (membership.epoch, (0..NODES).map(node_of).find(|node| !membership.is_member(*node)))
        };
        if let Some(node) = missing {
            site.change(epoch, Proposer::Operator, Change::Admit(node));
        }
    }
    let failures = site.failures.lock().clone();
    assert!(
        failures.is_empty() && scheduler.panics().is_empty(),
        "seed {seed}: {failures:?} {:?}",
        scheduler.panics()
    );
    check_at_rest(&site, seed, &step_until);
    let told = site.told.lock();
    let outcome = Outcome {
        acknowledged: told.acknowledged.len(),
        reads: told.reads,
        nodes: told.by_node.len(),
        everything_sent: told.everything_sent,
        cuts_of_all: told.cuts_of_all,
        trace: scheduler.trace_hash(),
        epochs: site.map.lock().0,
    };
    drop(told);
    scheduler.kill_all();
    for node in &site.nodes {
        node.life.lock().replica.lock().take();
    }
    outcome
}

/// All copies have everything that was acknowledged, and the same, once nobody changes anything.
fn check_at_rest(site: &Arc<Site>, seed: u64, step_until: &dyn Fn(Duration)) {
    for at in 0..NODES {
        site.scheduler.kill(&format!("n{at}-main"));
    }
    step_until(ashlar_env::Clock::monotonic(&*site.clock) + Duration::from_secs(20));
    let failures = site.failures.lock().clone();
    let panics = site.scheduler.panics();
    assert!(failures.is_empty() && panics.is_empty(), "seed {seed}, at rest: {failures:?} {panics:?}");
    let lanes: Vec<_> = (0..NODES)
        .map(|at| site.nodes[at].life.lock().replica.lock().as_ref().unwrap().lane())
        .map(|lane| (lane.last_group(), all(&lane)))
        .collect();
    for (at, lane) in lanes.iter().enumerate() {
        assert!(*lane == lanes[0], "seed {seed}: copy {at} has {:?}, the first {:?}", lane.0, lanes[0].0);
        for number in &site.told.lock().acknowledged {
            let is_there = lane.1.contains_key(key(&format!("n{number:06}")).as_slice());
            assert!(is_there, "seed {seed}: {number} was acknowledged, and copy {at} has it not");
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("ASHLAR_SEED"), number("ASHLAR_SEEDS")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 0..count.unwrap_or(8),
    }
}

#[test]
fn copies_of_metadata_lose_nothing() {
    let (mut acknowledged, mut reads, mut many, mut sent, mut epochs, mut cuts) = (0, 0, 0, 0, 0, 0);
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = run_seed(seed, count == 1);
        (acknowledged, reads) = (acknowledged + outcome.acknowledged, reads + outcome.reads);
        many += usize::from(outcome.nodes > 1);
        (sent, epochs) = (sent + outcome.everything_sent, epochs + outcome.epochs);
        cuts += outcome.cuts_of_all;
    }
    eprintln!(
        "{acknowledged} acknowledged, {reads} reads, {many} runs with take-overs, {sent} copies sent whole, {epochs} epochs, {cuts} cuts of all"
    );
    if count > 1 {
        assert!(
            acknowledged > 3000 && reads > 3000 && many > 4 && sent > 5 && cuts > 3,
            "too little has happened"
        );
        assert_eq!(run_seed(3, false).trace, run_seed(3, false).trace, "one seed has two runs");
    }
}
