//! Operations that change shards of several servers (`design.md` D3; protocol: `ashlar_replication::transaction`, ADR 0014).
//!
//! A call is decided on the server of the directory whose entries it changes. What it needs of others is asked for ([`ask`]); then the decision is
//! carried out everywhere or nowhere ([`coordinate`] here, [`participate`] there, [`resume`] after a failure).
//!
//! | who | holds | until |
//! |---|---|---|
//! | coordinator | keys it has read or will write, in memory | its decision is in the log, or it gives up |
//! | participant | keys of its part, in the log | it is told what was decided |
//!
//! Whoever meets a key that is held waits ([`MetaService::is_blocked`]), so nobody sees half of an operation, and no lease is granted on what may be
//! about to change. Nobody waits for another server, or for a recall, while he holds keys: he gives up, and tries again.
//!
//! ORDER: between servers nothing is said that a power cut could take back. A vote follows the durable record of the part, a decision is told when it is
//! durable, and that it is known is told when that is durable. The caller is answered before: what he is promised is what his durability setting says.

mod ask;
mod coordinate;
mod cut;
mod gate;
mod known;
#[cfg(test)]
mod malformed_test;
mod message;
mod moving;
mod participate;
mod resume;
mod unfinished;

pub(crate) use coordinate::{Decision, Voted};
pub(crate) use gate::Inside;
pub(crate) use known::{Known, PlacementOnce};
pub(crate) use moving::Unmet;
pub use moving::{Transfer, Transferred};
pub use unfinished::Unfinished;

use crate::MetaService;
use crate::waiting::Waiter;
use ashlar_env::Signal;
use ashlar_kv::Key;
use ashlar_namespace::{ShardChange, TxnOutcome};
use ashlar_replication::transaction::{TransactionId, Transactions};
use ashlar_rpc::MetaPeers;
use ashlar_types::{Epoch, Errno, InodeId, NodeId, ShardId, ShardSet};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The machine of one shard.
pub(crate) type Machine = Transactions<Key, ShardChange>;

/// For how long a call waits at a time for keys that are held.
const HELD_PAUSE: Duration = Duration::from_millis(50);

/// See the module.
pub(crate) struct Across {
    /// Other metadata servers; `None` where there cannot be any.
    peers: Option<Arc<dyn MetaPeers>>,
    node: NodeId,
    /// Which shards are here, and at which epoch that was looked up.
    here: RwLock<(Epoch, Arc<ShardSet>, bool)>,
    /// By shard, made when first needed.
    machines: Mutex<Machines>,
    /// Whether any key is held.
    is_any_held: AtomicBool,
    /// Nobody is served yet, and so nobody waits: whoever is to say what was decided may be starting, too.
    is_starting: AtomicBool,
    /// Signalled when keys are let go.
    changed: Signal,
    /// Inode ids of other shards that were given to this server and not used yet: the next one, and how many.
    pub(crate) reserved: Mutex<FxHashMap<ShardId, (InodeId, u64)>>,
    couriers: resume::Couriers,
    gates: gate::Gates,
    hands: Mutex<moving::Hands>,
    /// Signalled when a shard begins to come.
    arrival: Signal,
    sending: Mutex<moving::Sending>,
    cut: Mutex<cut::Cut>,
    tracker: moving::Tracker,
    /// No shard is to be sent for now.
    are_moves_paused: AtomicBool,
    /// Grows whenever other shards are here than before.
    generation: AtomicU64,
    /// Of the newest map by which a shard was given away, or this service began.
    renew_by: AtomicU64,
}

/// The machines of this server.
pub(crate) struct Machines {
    era: u64,
    /// The lives of those whose shards have come since the start: larger than any that the shard has had where it was.
    // LIMIT: as shards.
    lives: FxHashMap<ShardId, u64>,
    by_shard: FxHashMap<ShardId, Machine>,
}

impl Machines {
    fn of(&mut self, shard: ShardId) -> &mut Machine {
        let era = self.life_of(shard);
        self.by_shard.entry(shard).or_insert_with(|| Transactions::recover(shard, era, []))
    }

    /// In which life the machine of `shard` is, or would be.
    fn life_of(&self, shard: ShardId) -> u64 {
        self.lives.get(&shard).copied().unwrap_or(self.era)
    }

    /// Another server has the shard.
    fn forget(&mut self, shard: ShardId) {
        self.by_shard.remove(&shard);
    }

    /// Whether a transaction of any shard holds `key`.
    fn is_held(&self, key: &Key) -> bool {
        self.by_shard.values().any(|machine| machine.is_locked(key))
    }

    fn is_idle(&self) -> bool {
        self.by_shard.values().all(Machine::is_idle)
    }
}

impl Across {
    /// `era` is larger than that of any service before over the same log: the number of its start.
    pub(crate) fn new(
        peers: Option<Arc<dyn MetaPeers>>,
        node: NodeId,
        (era, shards): (u64, usize),
        changed: Signal,
    ) -> Across {
        let arrival = changed.another();
        Across {
            peers,
            node,
            here: RwLock::default(),
            machines: Mutex::new(Machines {
                era,
                lives: FxHashMap::default(),
                by_shard: FxHashMap::default(),
            }),
            is_any_held: AtomicBool::new(false),
            is_starting: AtomicBool::new(true),
            changed,
            reserved: Mutex::default(),
            couriers: resume::Couriers::default(),
            gates: gate::Gates::new(shards),
            hands: Mutex::default(),
            arrival,
            sending: Mutex::default(),
            cut: Mutex::default(),
            tracker: moving::Tracker::default(),
            are_moves_paused: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            renew_by: AtomicU64::new(0),
        }
    }

    /// The service is about to serve.
    pub(crate) fn end_start(&self) {
        self.is_starting.store(false, SeqCst);
    }

    /// Has the next question look up anew which shards are here.
    fn look_again(&self) {
        let mut here = self.here.write();
        here.0 = Epoch::default();
        self.generation.fetch_add(1, SeqCst);
    }

    /// Changes whenever other shards are here than before. Who has looked at what is here, and finds the same number under the lane's lock, may go by it: who
    /// gives a shard away takes that lock afterwards.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Whether there can be other metadata servers.
    pub(crate) fn has_peers(&self) -> bool {
        self.peers.is_some()
    }

    /// Which node this is; 0 where there is only one.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Runs `change` on the machines, and wakes whoever waits for keys if some may have been let go.
    fn with<T>(&self, change: impl FnOnce(&mut Machines) -> T) -> T {
        let mut machines = self.machines.lock();
        let result = change(&mut machines);
        self.is_any_held.store(!machines.is_idle(), SeqCst);
        drop(machines);
        self.changed.notify_all();
        result
    }

    /// Whether a transaction holds one of `keys`.
    fn holds<'k>(&self, mut keys: impl Iterator<Item = &'k Key>) -> bool {
        if !self.is_any_held.load(SeqCst) {
            return false;
        }
        let machines = self.machines.lock();
        keys.any(|key| machines.is_held(key))
    }
}

impl MetaService {
    /// The shards that are here, and whether others have the rest.
    pub(crate) fn shards_here(&self) -> (Arc<ShardSet>, bool) {
        let map = self.map.read().clone();
        {
            let known = self.across.here.read();
            if known.0 == map.epoch {
                return (known.1.clone(), known.2);
            }
        }
        let mut known = self.across.here.write();
        let all = || map.shards.iter().map(|shard| shard.id);
        let away: Vec<ShardId> = {
            let hands = self.across.hands.lock();
            hands.arriving.keys().chain(&hands.frozen).copied().collect()
        };
        let is_mine = |shard: &ShardId| {
            !self.across.has_peers() || map.primary(*shard) == Some(self.across.node) && !away.contains(shard)
        };
        let here: ShardSet = all().filter(is_mine).collect();
        let has_others = all().any(|shard| !here.has(shard));
        if *known.1 != here {
            self.across.generation.fetch_add(1, SeqCst);
        }
        *known = (map.epoch, Arc::new(here), has_others);
        (known.1.clone(), has_others)
    }

    /// In which life the machine of `shard` is.
    fn life_of(&self, shard: ShardId) -> u64 {
        self.across.machines.lock().life_of(shard)
    }

    /// Whether this server has `shard`, or, where there are no others, all.
    pub(crate) fn is_here(&self, shard: ShardId) -> bool {
        !self.across.has_peers() || self.shards_here().0.has(shard)
    }

    /// Whether a transaction holds what a decision was made on, or is to change. To be asked under the lane's lock.
    pub(crate) fn is_blocked(&self, outcome: &TxnOutcome) -> bool {
        let written = outcome.writes.iter().flat_map(|(_, writes)| writes.0.iter().map(|(key, _)| key));
        self.across.holds(outcome.reads.iter().chain(written))
    }

    /// Waits a moment, a different one each time, after two tried to change the same things.
    ///
    /// # Errors
    /// `EHOSTDOWN` when `deadline` is past.
    pub(crate) fn back_off(&self, deadline: Duration) -> Result<(), Errno> {
        if self.is_ending() || self.env.clock.monotonic() > deadline {
            return Err(Errno::EHOSTDOWN);
        }
        self.env.tasks.pause(Duration::from_micros(500 + self.env.entropy.next_u64() % 9_500));
        Ok(())
    }

    /// Waits a moment for keys to be let go.
    ///
    /// # Errors
    /// `EHOSTDOWN`: until `deadline` they were not; the server that is to say what was decided does not answer. Or too many wait already.
    pub(crate) fn wait_for_keys(&self, waiter: Waiter, deadline: Duration) -> Result<(), Errno> {
        let is_worth_it = !self.across.is_starting.load(SeqCst) && !self.is_ending();
        if !is_worth_it || self.env.clock.monotonic() > deadline {
            return Err(Errno::EHOSTDOWN);
        }
        let turn = self.waiting.begin_or_look(waiter)?;
        let mut machines = self.across.machines.lock();
        if !machines.is_idle() {
            self.across.changed.wait_for(&mut machines, turn.at_most(HELD_PAUSE));
        }
        drop(machines);
        turn.end()
    }
}

/// A transaction's id as a key has it.
fn parts_of(id: TransactionId) -> (ShardId, u64, u64) {
    (id.coordinator, id.era, id.number)
}
