//! Copies of chunks: the production storage services over simulated disks, with callers that write, read and delete blocks of chunks, and a map that is changed by compare-and-set.
//!
//! What was acknowledged is read at any target that may answer, whichever storage servers are killed, lose their power, hang, or cannot hear each other; and once nothing fails any more, all
//! copies are in sync and equal. Bits that flip on one disk are found, and brought back from another one. When all lose their power at once, what was synced is there. `ledger` has what may be read.

mod callers;
mod check;
mod ledger;
mod network;
mod node;
mod trouble;

use super::{Counts, Outcome, finish, step_while};
use crate::scheduler::{ProcessTasks, Scheduler};
use ashlar_chunkstore::ChunkStore;
use ashlar_env::sim::{SimClock, SimDisk, SimEntropy};
use ashlar_env::{Clock, Entropy, Env};
use ashlar_kv::MemoryEngine;
use ashlar_replication::membership::{Proposer, plan};
use ashlar_storage::StorageService;
use ashlar_storage::moves::Moves;
use ashlar_types::block_sum::BLOCK_BYTES;
use ashlar_types::map::{Chain, ChainCopies, Pool, Shard, Target, TargetState};
use ashlar_types::membership::Change;
use ashlar_types::message::ChainChange;
use ashlar_types::node::Listening;
use ashlar_types::{
    ChainId, ChunkId, ClusterId, ClusterMap, Epoch, InodeId, LayoutPolicy, Node as MapNode, NodeId, PoolId,
    Role, ShardId, TargetId, Timespec,
};
use ledger::{ChunkPlace, Ledger};
use parking_lot::{Mutex, RwLock};
use smallvec::smallvec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([1; 16]);
const NODES: usize = 3;
/// Where managers are, in the table of who cannot hear whom.
const MANAGERS: usize = NODES;
const CHUNK_BYTES: u32 = LayoutPolicy::CHUNK_BYTES_MIN;
const BLOCK: u32 = BLOCK_BYTES as u32;
const PIECE_BYTES: u32 = 2 * BLOCK;
/// Chunks of the file of each chain. Most is done with the first ones; what is done with others is not done again soon, so that whoever misses it is found out.
const CHUNKS: u64 = 9;
const BUSY_CHUNKS: u64 = 2;
const CALLERS: usize = 4;
/// How often something goes wrong.
const TROUBLES: usize = 40;

fn target_of(at: usize) -> TargetId {
    TargetId(at as u32)
}

/// One life of a process.
struct Life {
    is_over: AtomicBool,
    service: Arc<StorageService>,
    moves: Arc<Moves>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    store: Arc<ChunkStore>,
}

struct Node {
    disk: SimDisk,
    engine: MemoryEngine,
    life: Mutex<Option<Arc<Life>>>,
    frozen_until: Mutex<Duration>,
}

fn chunk_of((chain, index): ChunkPlace) -> ChunkId {
    ChunkId { inode: InodeId(100 + u64::from(chain)), generation: 1, index }
}

struct Site {
    scheduler: Arc<Scheduler>,
    clock: Arc<SimClock>,
    dice: SimEntropy,
    nodes: Vec<Node>,
    map: Mutex<Arc<ClusterMap>>,
    /// The node whose changes are answered when they are durable there, as on a disk that another server reaches, too.
    durable: Option<usize>,
    /// Which node cannot hear which.
    cut: Mutex<BTreeSet<(usize, usize)>>,
    is_troubled: AtomicBool,
    /// Callers end, each with what it is at: a deletion that nobody asks for any more may be made in front alone.
    is_over: AtomicBool,
    ledger: Mutex<Ledger>,
    /// The epoch from which on what a node has counts again, since its power was cut.
    cut_at: Mutex<Vec<u64>>,
    /// A target has come to be in sync since this was looked at.
    has_grown: AtomicBool,
    /// Somebody was removed from a group since it was looked what may be lost by that.
    is_removed: AtomicBool,
    /// Something on a disk may be damaged.
    is_rotten: AtomicBool,
    counts: Mutex<Counts>,
    failures: Mutex<Vec<String>>,
}

impl Site {
    fn chance(&self, of: u64) -> bool {
        self.is_troubled.load(SeqCst) && self.dice.below(of) == 0
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn env(&self, prefix: String) -> Env {
        let tasks = ProcessTasks { scheduler: self.scheduler.clone(), prefix };
        Env {
            clock: self.clock.clone(),
            entropy: Arc::new(SimEntropy::new(self.dice.next_u64())),
            tasks: Arc::new(tasks),
        }
    }

    fn sleep(&self, micros: u64) {
        self.scheduler.sleep(Duration::from_micros(micros));
    }

    fn life(&self, at: usize) -> Option<Arc<Life>> {
        self.nodes[at].life.lock().clone()
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.map.lock().clone()
    }

    /// A manager changes the group of a chain.
    fn change(&self, by: Proposer<TargetId>, change: ChainChange) {
        let mut map = self.map.lock();
        let mut next = (**map).clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        let chain = &mut next.chains[change.chain.0 as usize];
        let group = chain.group().unwrap();
        if let Ok(changed) = plan(&group, change.expected, by, change.change, next.epoch) {
            self.scheduler.note(&|| format!("{by:?} has {change:?}: {changed:?}"));
            chain.set_group(&changed);
            next.check().unwrap();
            *map = Arc::new(next);
            self.has_grown.fetch_or(matches!(change.change, Change::Promote(_)), SeqCst);
            self.is_removed.fetch_or(matches!(change.change, Change::Remove(_)), SeqCst);
        }
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().entry(what).or_default() += 1;
    }

    fn fail(&self, what: String) {
        self.scheduler.note(&|| format!("FAILED: {what}"));
        self.failures.lock().push(what);
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.lock().contains(&(from, to)) || self.chance(400)
    }

    /// Lets tasks run until `end`, or something is wrong.
    fn step_until(&self, end: Duration) -> Result<(), String> {
        self.step_while(|| self.now() < end)
    }

    /// Lets tasks run until `goes_on` says otherwise, or something is wrong.
    fn step_while(&self, goes_on: impl Fn() -> bool) -> Result<(), String> {
        step_while(&self.scheduler, || {
            if self.is_removed.swap(false, SeqCst) {
                trouble::note_lost(self);
            }
            goes_on() && !self.is_failed()
        })
    }

    fn is_failed(&self) -> bool {
        !self.failures.lock().is_empty()
    }
}

fn first_map(dice: &SimEntropy) -> ClusterMap {
    let chain = |id: u32, wanted: u8, targets: &[usize]| Chain {
        id: ChainId(id),
        pool: PoolId(0),
        targets: targets.iter().copied().map(target_of).collect(),
        moving: None,
        copies: Some(ChainCopies {
            wanted,
            changed: Epoch(1),
            catching_up: smallvec![],
            former: smallvec![],
        }),
    };
    let mut chains = vec![chain(0, 2, &[0, 1]), chain(1, 2, &[1, 2])];
    if dice.below(3) > 0 {
        chains.push(chain(2, 3, &[2, 0, 1]));
    }
    let node = |at: usize| MapNode {
        id: NodeId(at as u32),
        name: format!("n{at}"),
        roles: Default::default(),
        policy: Default::default(),
        domain: String::new(),
        listening: vec![Listening { role: Role::Meta, addresses: vec![([127, 0, 0, 1], 1).into()] }],
    };
    let target = |at: usize| Target {
        id: target_of(at),
        uuid: [at as u8; 16],
        node: NodeId(at as u32),
        pool: PoolId(0),
        state: TargetState::Online,
        path: String::new(),
        is_draining: false,
    };
    let map = ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch(1),
        pools: vec![Pool { id: PoolId(0), name: "main".to_owned() }],
        targets: (0..NODES).map(target).collect(),
        chains,
        shards: vec![Shard { id: ShardId(0), primary: NodeId(0) }],
        nodes: (0..NODES).map(node).collect(),
        moves: Default::default(),
        filesets: Vec::new(),
    };
    map.check().unwrap();
    map
}

fn new_site(seed: u64, is_traced: bool) -> Arc<Site> {
    let clock = Arc::new(SimClock::new(Timespec::new(1_700_000_000, 0)));
    let scheduler = Scheduler::new(seed, clock.clone(), is_traced);
    let dice = SimEntropy::new(seed ^ 0x5EED);
    let node = |_| Node {
        disk: SimDisk::new(),
        engine: MemoryEngine::new(),
        life: Mutex::default(),
        frozen_until: Mutex::default(),
    };
    let map = Mutex::new(Arc::new(first_map(&dice)));
    Arc::new(Site {
        scheduler,
        clock,
        dice,
        nodes: (0..NODES).map(node).collect(),
        map,
        durable: seed.is_multiple_of(4).then_some((seed / 4) as usize % NODES),
        cut: Mutex::default(),
        is_troubled: AtomicBool::new(true),
        is_over: AtomicBool::new(false),
        ledger: Mutex::default(),
        cut_at: Mutex::new(vec![0; NODES]),
        has_grown: AtomicBool::new(false),
        is_removed: AtomicBool::new(false),
        is_rotten: AtomicBool::new(false),
        counts: Mutex::default(),
        failures: Mutex::default(),
    })
}

/// Runs `seed`; `note` gets the scheduler before it begins.
pub fn run(seed: u64, is_traced: bool, note: &dyn Fn(&Arc<Scheduler>)) -> Outcome {
    let site = new_site(seed, is_traced);
    note(&site.scheduler);
    let ended = whole(&site);
    let epochs = site.map().epoch.0;
    let mut counts = std::mem::take(&mut *site.counts.lock());
    counts.insert("epochs", epochs);
    let outcome = finish(&site.scheduler, &site.failures, ended, counts);
    site.nodes.iter().for_each(|node| drop(node.life.lock().take()));
    outcome
}

fn whole(site: &Arc<Site>) -> Result<(), String> {
    for at in 0..NODES {
        ChunkStore::format(&site.nodes[at].disk, &node::identity(at)).unwrap();
        node::start(site, at);
    }
    (0..CALLERS).for_each(|number| callers::start(site, number));
    for _ in 0..TROUBLES {
        let end = site.now() + Duration::from_millis(site.dice.below(3_000));
        let is_watched = site.dice.below(8) == 0;
        site.has_grown.store(false, SeqCst);
        let has_grown = || is_watched && site.has_grown.load(SeqCst);
        site.step_while(|| site.now() < end && !has_grown())?;
        if has_grown() {
            // Soon: with a sync of another chain all of a target is durable.
            let soon = if site.dice.below(2) == 0 { 5 } else { 100 };
            site.step_until(site.now() + Duration::from_millis(site.dice.below(soon)))?;
        }
        if site.is_failed() {
            return Ok(());
        }
        // What was durable before is so in the new one, too.
        if !has_grown() || !trouble::cut_all(site) {
            trouble::next(site);
        }
        trouble::rot(site, site.dice.below(NODES as u64) as usize);
    }
    check::heal(site)?;
    site.is_over.store(true, SeqCst);
    site.step_until(site.now() + Duration::from_secs(10))?;
    if site.is_failed() { Ok(()) } else { check::at_rest(site) }
}
