//! Chains that move from one target to another while they are used. [ADR 0017](../../../docs/adr/0017-chains-move-by-copying-with-changes.md) has the reasons.
//!
//! ```text
//!  source                       destination                 manager
//!    │ MoveBegin                    │                          │  map: the chain is the source's, and moves
//!    ├─────────────────────────────▶│ deletes what is left of an earlier attempt; remembers, in memory, who copies
//!    │ chunk after chunk, and every change of those that are there
//!    ├─────────────────────────────▶│
//!    │ MoveSeal                     │ syncs, notes durably that the chain has arrived
//!    ├─────────────────────────────▶│
//!    │ notes durably that the chain may be gone; answers nobody about it from here on (EREMCHG)
//!    │ MoveSeal                     │ syncs the rest
//!    ├─────────────────────────────▶│
//!    │ EndMove                      │                          │
//!    ├──────────────────────────────┼─────────────────────────▶│ compare-and-set: the chain is the destination's
//!    │ deletes its chunks           │ answers                  │
//! ```
//!
//! | who | answers about a chain |
//! |---|---|
//! | source | until it has noted that the chain may be gone and stops; again only if a manager has said, by compare-and-set, that the move did not take place |
//! | destination | once the map says so |
//!
//! Invariants:
//! - What was acknowledged by the source before it stopped, the destination has: a change is acknowledged when both have made it, unless the
//!   destination failed; then the move begins anew.
//! - The destination takes changes from the process that began the move alone, and from nobody once it was started anew itself. So what a power cut
//!   took from it is never the only copy.
//! - Nothing is deleted because of a map older than the one by which it came ([`ashlar_chunkstore::ChainNote`]), or that is not kept.
//! - A target whose disk hangs holds up nobody at other targets: what is waited for is of one target (`AtTarget`).
//!
//! What decides is `ashlar_replication::hand_over::chain`, which is explored by itself.

mod at_target;
mod copy;
mod gate;
mod incoming;
mod leftover;
mod outgoing;
mod report;

pub use ashlar_replication::hand_over::chain::Told;
pub use report::{REPORT_EVERY, REPORT_SELDOM};

use crate::StorageService;
use crate::copies::Copies;
use crate::pace::Paces;
use crate::throttle::Throttle;
use ashlar_chunkstore::ChunkError;
use ashlar_env::Env;
use ashlar_replication::hand_over::chain::Giving;
use ashlar_rpc::OtherTargets;
use ashlar_types::map::Move;
use ashlar_types::message::{ChainChange, MoveProgress};
use ashlar_types::{ChainId, ClusterMap, Epoch, TargetId};
use at_target::AtTarget;
use gate::Stage;
use outgoing::Outgoing;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A chain on a target.
pub(crate) type Place = (TargetId, ChainId);

/// How a move is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The chain.
    pub chain: ChainId,
    /// Whose it is.
    pub from: TargetId,
    /// The move.
    pub since: Epoch,
    /// Whether it is given up, if it has not been finished before.
    pub is_given_up: bool,
}

/// Asks a manager to end a move, and tells what has become of the question.
pub type AskToEnd = dyn Fn(End) -> Told + Send + Sync;

/// Asks a manager for changes of the groups of chains, on behalf of a target that is in them. What has become of it the map says.
pub type AskToChange = dyn Fn(TargetId, Vec<ChainChange>) + Send + Sync;

/// What moves and copies need of others.
pub struct Outside {
    /// The map, kept current.
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
    /// Whether the map of that epoch, or a newer one, is on the disk for the next start.
    pub is_kept: Box<dyn Fn(Epoch) -> bool + Send + Sync>,
    /// Other targets.
    pub peers: Arc<dyn OtherTargets>,
    /// A manager.
    pub end_move: Box<AskToEnd>,
    /// A manager, for groups of chains of several copies.
    pub change_chains: Box<AskToChange>,
    /// Clock and threads.
    pub env: Env,
    /// Bytes of a chunk that are sent together, a whole number of blocks: whoever changes the chunk waits for so long at the most.
    pub piece_bytes: u32,
}

impl Outside {
    /// Large enough that the time until it is answered does not count, and sent in a tenth of a second over 100 Mbit/s.
    pub const PIECE_BYTES: u32 = 1 << 20;
}

/// A move that did not go well.
struct Setback {
    moving: Move,
    retry_at: Duration,
    pause: Duration,
    attempts: u32,
    why: String,
}

/// Time until a move that failed is begun anew, at first and at the most: a server that was away is back at any moment, and nothing else says so.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(4);
/// Attempts after which a move is given up, so that the planner can choose another target.
const ATTEMPTS_MAX: u32 = 5;
/// For how long calls under way may hold up a move.
const STAGE_MAX: Duration = Duration::from_secs(10);
/// For how long movers are waited for at the end, and the time between two looks.
const STOP_MAX: Duration = Duration::from_secs(5);
const STOP_LOOK: Duration = Duration::from_millis(10);

/// See the module.
pub struct Moves {
    outside: Arc<Outside>,
    pub(crate) copies: Arc<Copies>,
    // LIMIT: as targets here.
    targets: RwLock<BTreeMap<TargetId, Arc<AtTarget>>>,
    /// Chains that go, and whose mover runs.
    // LIMIT: as moves in the map.
    running: Mutex<BTreeMap<Place, Arc<Outgoing>>>,
    // LIMIT: as moves in the map.
    setbacks: Mutex<BTreeMap<Place, Setback>>,
    throttle: Arc<Throttle>,
    /// Attempts so far.
    attempts: AtomicU64,
    /// Targets of whose chunks all chains are known.
    // LIMIT: as targets here.
    noted: Mutex<BTreeSet<TargetId>>,
    /// Bytes of each chain as they were counted last.
    counted: Mutex<BTreeMap<Place, u64>>,
    paces: Arc<Paces>,
    /// The map by which moves were begun last; `None` when they are to be looked at again.
    looked_at: Mutex<Option<Epoch>>,
    is_stopping: AtomicBool,
}

impl Moves {
    /// Moves by the map of `outside`. [`Moves::take_target`] must follow for each target before it serves, and [`Moves::turn`] a few times a second.
    pub fn new(outside: Outside) -> Moves {
        let (outside, throttle) = (Arc::new(outside), Arc::new(Throttle::default()));
        let paces = Arc::<Paces>::default();
        Moves {
            copies: Arc::new(Copies::new(outside.clone(), throttle.clone(), paces.clone())),
            outside,
            targets: RwLock::default(),
            running: Mutex::default(),
            setbacks: Mutex::default(),
            throttle,
            attempts: AtomicU64::new(0),
            noted: Mutex::default(),
            counted: Mutex::default(),
            paces,
            looked_at: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        }
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.outside.map.read().clone()
    }

    /// Whether what is changed in a chain at `target` is not answered before it is made at another one as well.
    pub(crate) fn is_passed_on(&self, target: TargetId, chain: ChainId) -> bool {
        self.copies.is_passed_on(target, chain)
    }

    /// What there is of moves at a target.
    fn at(&self, target: TargetId) -> Arc<AtTarget> {
        if let Some(known) = self.targets.read().get(&target) {
            return known.clone();
        }
        self.targets.write().entry(target).or_default().clone()
    }

    /// Learns what a target that is about to be served has noted of chains.
    ///
    /// # Errors
    /// Those of its index.
    pub fn take_target(
        &self,
        id: TargetId,
        store: &Arc<ashlar_chunkstore::ChunkStore>,
    ) -> Result<(), ChunkError> {
        self.copies.take_target(id, store)?;
        for (chain, note) in store.chain_notes()? {
            if let Some(giving) = Giving::recovered(at_target::note_of(note)) {
                // ORDER: before anybody is answered.
                self.set((id, chain), Some(Stage::Held));
                self.at(id).doubt(chain, giving);
            }
        }
        Ok(())
    }

    /// Forgets what is known of a target that is not in service here any more, and was taken out of the file system: no chain is there.
    pub fn forget_target(&self, id: TargetId) {
        self.copies.forget_target(id);
        self.targets.write().remove(&id);
        self.noted.lock().remove(&id);
        self.counted.lock().retain(|(target, _), _| *target != id);
        self.setbacks.lock().retain(|(target, _), _| *target != id);
        self.paces.forget(id);
    }

    /// Notes that content was copied from a target.
    fn note_copied(&self, target: TargetId, bytes: u64) {
        self.paces.note(target, bytes, self.outside.env.clock.monotonic());
    }

    /// What is copied from `target` in a second, for moves and to give others their copies, by the last ones, bytes.
    pub fn bytes_per_s(&self, target: TargetId) -> u64 {
        self.paces.bytes_per_s(target, self.outside.env.clock.monotonic())
    }

    /// What was copied from each target since this server was started, bytes.
    pub fn copied(&self) -> BTreeMap<TargetId, u64> {
        self.paces.totals()
    }

    /// The operator says that `lost` never comes back: chains in which `target` lacks something since a power cut, and hears nobody who may have it, go on without that one. Tells whether
    /// all of them have heard that. Asked for again after a start of the process, and where another epoch has begun meanwhile.
    pub fn go_on_without(&self, target: TargetId, lost: TargetId) -> bool {
        self.copies.go_on_without(target, lost)
    }

    /// Damaged blocks that were brought back from other copies since this server was started.
    pub fn blocks_mended(&self) -> u64 {
        self.copies.blocks_mended()
    }

    /// Begins what is due and ends what is over. To be called a few times a second, by one thread.
    pub fn turn(self: &Arc<Self>, service: &Arc<StorageService>) {
        self.forget_incoming();
        self.begin_moves(service);
        self.tend(service);
        self.copies.turn();
    }

    /// Has every mover end, and waits for that for a few seconds at the most: what one is at then is found out by the next start.
    pub fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        self.copies.stop();
        let clock = &self.outside.env.clock;
        let deadline = clock.monotonic() + STOP_MAX;
        while !self.running.lock().is_empty() && clock.monotonic() < deadline {
            self.outside.env.tasks.pause(STOP_LOOK);
        }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Changes the stage of a chain, however long calls take that are under way.
    fn set(&self, place: Place, stage: Option<Stage>) {
        while !self.at(place.0).gates.set(place, stage.clone(), STAGE_MAX, &*self.outside.env.tasks) {
            tracing::warn!(chain = %place.1, target = %place.0, "calls that are under way hold up what is to become of a chain");
        }
    }

    fn begin_moves(self: &Arc<Self>, service: &Arc<StorageService>) {
        let map = self.map();
        let now = self.outside.env.clock.monotonic();
        let is_due = self.setbacks.lock().values().any(|setback| setback.retry_at <= now);
        let is_known = self.looked_at.lock().replace(map.epoch) == Some(map.epoch);
        if self.is_stopping() || map.moves.is_paused || is_known && !is_due {
            return;
        }
        self.setbacks.lock().retain(|(target, chain), setback| {
            map.head(*chain) == Some(*target)
                && map.chain(*chain).and_then(|chain| chain.moving) == Some(setback.moving)
        });
        for (chain, moving) in map.chains.iter().filter_map(|chain| Some((chain, chain.moving?))) {
            let Some(&target) = chain.targets.first() else { continue };
            let place = (target, chain.id);
            let waits = self.setbacks.lock().get(&place).is_some_and(|setback| now < setback.retry_at);
            let is_known = self.running.lock().contains_key(&place) || self.at(target).is_doubtful(chain.id);
            let Some(store) = service.target(target).filter(|_| !waits && !is_known) else { continue };
            let attempt = self.attempts.fetch_add(1, SeqCst) + 1;
            let Outside { peers, env, .. } = &*self.outside;
            let outgoing = Outgoing::new((place, attempt), moving, peers.clone(), env.tasks.clone());
            let outgoing = Arc::new(outgoing);
            self.running.lock().insert(place, outgoing.clone());
            let moves = self.clone();
            let run = Box::new(move || moves.run(&store, &outgoing));
            if let Err(error) = self.outside.env.tasks.spawn("ashlar-move", run) {
                tracing::error!(%error, "a move cannot be begun");
                self.running.lock().remove(&place);
                *self.looked_at.lock() = None;
            }
        }
    }

    /// Notes that a move has failed, for the next attempt and for people.
    fn set_back(&self, outgoing: &Outgoing, why: String) {
        let (place, moving) = (outgoing.place(), outgoing.moving());
        let mut setbacks = self.setbacks.lock();
        let before = setbacks.get(&place).filter(|setback| setback.moving == moving);
        let pause = before.map_or(RETRY_MIN, |setback| (setback.pause * 2).min(RETRY_MAX));
        let (target, chain) = place;
        tracing::warn!(%chain, from = %target, to = %moving.to, why, "a move did not go well; it is begun anew");
        let retry_at = self.outside.env.clock.monotonic() + pause;
        let attempts = before.map_or(1, |setback| setback.attempts + 1);
        setbacks.insert(place, Setback { moving, retry_at, pause, attempts, why });
        drop(setbacks);
        if attempts >= ATTEMPTS_MAX {
            // Another target may do better. If no manager answers, the next attempt is made here.
            let end = End { chain, from: target, since: moving.since, is_given_up: true };
            let _ = (self.outside.end_move)(end);
        }
    }

    /// How far the moves from `target` are.
    pub fn progress(&self, target: TargetId) -> Vec<MoveProgress> {
        let map = self.map();
        let moving = map.chains_at(target).filter_map(|chain| Some((chain.id, chain.moving?)));
        let progress = moving.map(|(chain, moving)| {
            let place = (target, chain);
            let running = self.running.lock().get(&place).cloned();
            let (chunks_done, bytes_done) = running.map(|running| running.sent()).unwrap_or_default();
            let setback = self.setbacks.lock().get(&place).map(|setback| setback.why.clone());
            let obstacle = if map.moves.is_paused { Some("moves are paused".to_owned()) } else { setback };
            MoveProgress {
                chain,
                to: moving.to,
                chunks_done,
                bytes_done,
                bytes_total: self.counted.lock().get(&place).copied().unwrap_or(0),
                obstacle: obstacle.unwrap_or_default(),
            }
        });
        let copies = self.copies.progress(target).into_iter().map(|progress| {
            let bytes_total = self.counted.lock().get(&(target, progress.chain)).copied().unwrap_or(0);
            MoveProgress { bytes_total, ..progress }
        });
        progress.chain(copies).collect()
    }
}
