//! A storage server of the site: its targets, its lives, and how mounts and other storage servers reach it.

use super::disk::{ServerDisk, Switch};
use super::{CLUSTER, FIRST_STORAGE, Site, TARGETS_EACH};
use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Entropy};
use ashlar_kv::{Engine, MemoryEngine};
use ashlar_rpc::{MoveAttempt, OtherTargets, Payload, StorageCalls, StoragePeers};
use ashlar_storage::StorageService;
use ashlar_storage::moves::{AskToEnd, Moves, Outside, Told};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{ClusterMap, Epoch, Errno, NodeId, TargetId};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between looks whether a server has died that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// As in `ashlar storage`.
const TURN_MS: u64 = 20;
const TICK_MS: u64 = 100;
const TICK_SLOTS: usize = 64;
/// Time between two counts of what targets have, at the most.
const COUNT_MS: u64 = 8000;

/// One life of a server.
#[derive(Clone)]
pub(super) struct Life {
    number: u64,
    pub service: Arc<StorageService>,
    pub moves: Arc<Moves>,
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
}

/// What a target is on.
struct Place {
    disk: SimDisk,
    engine: MemoryEngine,
    identity: TargetIdentity,
}

/// See the module.
pub(super) struct Storage {
    at: usize,
    places: Vec<Place>,
    switch: Mutex<Arc<Switch>>,
    /// For how long it is away after the stop to come.
    pub away_ms: AtomicU64,
    /// The map that its next start has.
    kept: Arc<Mutex<Arc<ClusterMap>>>,
    /// Until then it cannot keep another one.
    keeps_nothing_until: Mutex<Duration>,
    lives: AtomicU64,
    life: Mutex<Option<Life>>,
}

/// What is answered to a call: the reply, what was read, and the epoch of the map of the server.
pub(super) struct Answer {
    pub reply: Result<StorageReply, Errno>,
    pub read: Vec<u8>,
    pub epoch: Epoch,
}

/// A call on its way to a server, and back.
pub(super) struct Call {
    pub request: StorageRequest,
    /// What is written.
    pub data: Vec<u8>,
    /// Who gives a chain away that it is about.
    pub from: Option<MoveAttempt>,
    /// How long it travels.
    pub after_ms: u64,
}

/// Where the answer to a call appears.
struct Awaited {
    life: u64,
    answer: Arc<Mutex<Option<Answer>>>,
    signal: Arc<ashlar_env::Signal>,
}

/// What one life of a server has of the others.
struct Wire {
    site: Weak<Site>,
    at: usize,
    life: u64,
    switch: Arc<Switch>,
}

impl OtherTargets for Wire {
    fn call_in_attempt(
        &self,
        number: u64,
        request: &StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno> {
        let site = self.site.upgrade().ok_or(Errno::ETIMEDOUT)?;
        let other = site.storage_of(request.target()).ok_or(Errno::ENODEV)?;
        // What a process says whose disk has gone in the middle of something, nobody hears.
        if self.switch.is_off.load(SeqCst) {
            return Err(Errno::ETIMEDOUT);
        }
        let mut instance = [0; 16];
        instance[..8].copy_from_slice(&self.life.to_le_bytes());
        let owner = SessionOwner { node: NodeId(FIRST_STORAGE + self.at as u32), instance };
        let data = if let Payload::Write(data) = payload { data.to_vec() } else { Vec::new() };
        let trouble = site.trouble(250);
        let after_ms = match trouble {
            0 => {
                site.scheduler.sleep(wait);
                return Err(Errno::ETIMEDOUT);
            }
            // It arrives when nobody waits for it any more.
            1 => wait.as_millis() as u64 + site.dice.below(6000),
            2..6 => site.dice.below(1500),
            _ => site.dice.below(4),
        };
        let from = Some(MoveAttempt { owner, number });
        let call = Call { request: request.clone(), data, from, after_ms };
        let until = site.now() + wait;
        let answer = other.ask(&site, call, &|| site.now() < until);
        match answer {
            Some(answer) if trouble != 6 => answer.reply,
            // A server that is away is waited for.
            _ => {
                site.scheduler.sleep(until.saturating_sub(site.now()));
                Err(Errno::ETIMEDOUT)
            }
        }
    }
}

/// A manager, as one life of a server sees it.
fn end_move(site: Weak<Site>, at: usize, switch: Arc<Switch>) -> Box<AskToEnd> {
    Box::new(move |end| {
        let is_off = || switch.is_off.load(SeqCst);
        let Some(site) = site.upgrade().filter(|_| !is_off()) else { return Told::Unknown };
        let trouble = site.trouble(10);
        site.sleep_ms(site.dice.below(8));
        match trouble {
            0 => return Told::NotAsked,
            1 => return Told::Unknown,
            2 => {
                site.late_ends.lock().push((at, end));
                return Told::Unknown;
            }
            _ => {}
        }
        // It ends just before it is asked, or just after, and nobody hears the answer.
        let (is_last, is_before) = (site.trouble(16) == 0, site.dice.below(3) == 0);
        if is_last && is_before {
            site.storage[at].die(&site);
            return Told::Unknown;
        }
        let told = site.end_chain_move(at, end);
        if is_last {
            site.storage[at].die(&site);
        }
        site.sleep_ms(site.dice.below(8));
        if trouble == 3 || is_off() { Told::Unknown } else { told }
    })
}

impl Storage {
    /// One with empty targets.
    ///
    /// # Errors
    /// In words.
    pub fn new(at: usize, map: &ClusterMap) -> Result<Storage, String> {
        let format = |number: usize| {
            let id = 1 + (at * TARGETS_EACH + number) as u32;
            let uuid = TargetUuid([id as u8; 16]);
            let identity = TargetIdentity { cluster: CLUSTER, target: TargetId(id), uuid };
            let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
            ChunkStore::format(&disk, &identity).map_err(|error| format!("format {id}: {error}"))?;
            Ok(Place { disk, engine, identity })
        };
        Ok(Storage {
            at,
            places: (0..TARGETS_EACH).map(format).collect::<Result<_, String>>()?,
            switch: Mutex::default(),
            away_ms: AtomicU64::new(0),
            kept: Arc::new(Mutex::new(Arc::new(map.clone()))),
            keeps_nothing_until: Mutex::default(),
            lives: AtomicU64::new(0),
            life: Mutex::default(),
        })
    }

    fn prefix(&self) -> String {
        format!("t{}:", self.at)
    }

    /// Whether it has stopped by itself.
    pub fn is_off(&self) -> bool {
        self.switch.lock().is_off.load(SeqCst)
    }

    /// Has it stop after so many changes of its disks.
    pub fn stop_after(&self, changes: u64, away_ms: u64) {
        self.away_ms.store(away_ms, SeqCst);
        self.switch.lock().stop_in.store(changes as i64, SeqCst);
    }

    /// It ends at once: what it says from now on nobody hears.
    fn die(&self, site: &Site) {
        site.scheduler.note(&|| format!("storage server {} ends there", self.at));
        self.away_ms.store([5, 100, 1500, 4000][site.dice.below(4) as usize], SeqCst);
        self.switch.lock().is_off.store(true, SeqCst);
    }

    pub fn stop_never(&self) {
        self.switch.lock().keep_on();
        *self.keeps_nothing_until.lock() = Duration::ZERO;
    }

    pub fn keep_nothing_until(&self, until: Duration) {
        *self.keeps_nothing_until.lock() = until;
    }

    pub fn is_serving(&self) -> bool {
        self.life.lock().is_some()
    }

    pub fn life(&self) -> Option<Life> {
        self.life.lock().clone()
    }

    /// Its targets.
    pub fn targets(&self) -> impl Iterator<Item = TargetId> {
        self.places.iter().map(|place| place.identity.target)
    }

    /// Whether the map of `epoch` is there for its next start.
    pub fn has_kept(&self, epoch: Epoch) -> bool {
        self.kept.lock().epoch >= epoch
    }

    /// It hears of a map, perhaps, and keeps what it has heard of, perhaps.
    pub fn hear(&self, site: &Site, newest: &Arc<ClusterMap>, is_told: bool, keeps: bool) {
        let Some(life) = self.life() else { return };
        let keeps = keeps && site.now() >= *self.keeps_nothing_until.lock();
        let known = {
            let mut map = life.map.write();
            if is_told && newest.epoch > map.epoch {
                *map = newest.clone();
            }
            map.clone()
        };
        let mut kept = self.kept.lock();
        if keeps && known.epoch > kept.epoch {
            *kept = known;
        }
    }

    /// Begins a life.
    pub fn start(&self, site: &Arc<Site>) {
        let number = self.lives.fetch_add(1, SeqCst) + 1;
        site.scheduler.note(&|| format!("storage server {} starts for the {number}. time", self.at));
        let before = self.switch.lock().stop_in.load(SeqCst);
        *self.switch.lock() = Switch::new(if number == 1 { -1 } else { before });
        // A manager has answered, or it goes by what it has kept.
        if !site.is_troubled.load(SeqCst) || site.trouble(3) == 0 {
            *self.kept.lock() = Arc::new(site.truth.lock().clone());
        }
        let (site, at) = (site.clone(), self.at);
        let run = {
            let site = site.clone();
            move || {
                let server = &site.storage[at];
                if let Err(why) = server.live(&site, number)
                    && !server.is_off()
                {
                    site.fail(why);
                }
            }
        };
        site.scheduler.start(&format!("{}main", self.prefix()), Box::new(run));
    }

    fn open(&self, site: &Arc<Site>, place: &Place, switch: &Arc<Switch>) -> Result<Arc<ChunkStore>, String> {
        let inner = place.disk.clone();
        let disk = ServerDisk { inner, switch: switch.clone(), pauses_in_sync: false, site: site.me.clone() };
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let engine = || Ok(Box::new(place.engine.clone()) as Box<dyn Engine>);
        ChunkStore::open(disk, engine, &site.env(&self.prefix()), &place.identity, Config::small())
            .map(|(store, _)| Arc::new(store))
            .map_err(|error| format!("{} cannot be opened: {error}", place.identity.target))
    }

    /// A life, until it is ended.
    fn live(&self, site: &Arc<Site>, number: u64) -> Result<(), String> {
        let (switch, kept) = (self.switch.lock().clone(), self.kept.clone());
        let map = Arc::new(RwLock::new(kept.lock().clone()));
        let wire = Wire { site: site.me.clone(), at: self.at, life: number, switch: switch.clone() };
        let moves = Arc::new(Moves::new(Outside {
            map: map.clone(),
            is_kept: Box::new(move |epoch| kept.lock().epoch >= epoch),
            peers: Arc::new(wire),
            end_move: end_move(site.me.clone(), self.at, switch.clone()),
            change_chains: Box::new(|_, _| {}),
            env: site.env(&self.prefix()),
            piece_bytes: 2 * ashlar_types::block_sum::BLOCK_BYTES as u32,
        }));
        let service = Arc::new(StorageService::with_moves(moves.clone()));
        for place in &self.places {
            let (target, store) = (place.identity.target, self.open(site, place, &switch)?);
            moves.take_target(target, &store).map_err(|error| format!("{target}: {error}"))?;
            service.add_target(target, store);
            // Others do something meanwhile.
            site.sleep_ms(site.dice.below(3));
        }
        let life = Life { number, service, moves, map };
        *self.life.lock() = Some(life.clone());
        site.scheduler.note(&|| format!("storage server {} serves", self.at));
        let (ticking, theirs) = (life.clone(), site.clone());
        let tick = move || {
            loop {
                theirs.sleep_ms(TICK_MS);
                for (_, store) in ticking.service.targets() {
                    // A target that has stopped says so to whoever calls it.
                    let _ = store.background_tick(TICK_SLOTS);
                }
            }
        };
        site.scheduler.start(&format!("{}tick", self.prefix()), Box::new(tick));
        let (counting, theirs) = (life.clone(), site.clone());
        let count = move || {
            loop {
                theirs.sleep_ms(COUNT_MS / 2 + theirs.dice.below(COUNT_MS / 2));
                for (target, _) in counting.service.targets() {
                    let _ = counting.moves.count(&counting.service, target);
                }
            }
        };
        site.scheduler.start(&format!("{}count", self.prefix()), Box::new(count));
        loop {
            life.moves.turn(&life.service);
            site.sleep_ms(TURN_MS);
        }
    }

    /// Ends a life where it stands.
    pub fn stop(&self, site: &Site) {
        let switch = self.switch.lock().clone();
        switch.is_off.store(true, SeqCst);
        site.scheduler.kill(&self.prefix());
        self.forget();
        if site.plan.is_power {
            site.content.note_cut(&site.truth.lock(), &self.targets().collect::<Vec<_>>());
        }
        for place in &self.places {
            let seed = site.entropy.next_u64();
            if site.plan.is_power { place.disk.crash(seed) } else { place.disk.kill_process() }
        }
        switch.reset();
    }

    pub fn forget(&self) {
        let life = self.life.lock().take();
        drop(life);
    }

    /// Ends it in good order.
    ///
    /// # Errors
    /// In words.
    pub fn end(&self, site: &Site) -> Result<(), String> {
        let life = self.life.lock().take().ok_or("a storage server is not there at the end")?;
        life.moves.stop();
        site.scheduler.kill(&self.prefix());
        for (target, store) in life.service.targets() {
            store.close().map_err(|error| format!("{target} cannot be closed: {error}"))?;
        }
        Ok(())
    }

    /// One call, which is answered, or not, while `is_awaited`. `None` when the server is away, or ends before it has answered.
    pub fn ask(&self, site: &Arc<Site>, call: Call, is_awaited: &dyn Fn() -> bool) -> Option<Answer> {
        let Awaited { life, answer, signal } = self.send(site, call)?;
        loop {
            let mut answer = answer.lock();
            if answer.is_some() {
                return answer.take();
            }
            if self.lives.load(SeqCst) != life || !self.is_serving() || !is_awaited() {
                return None;
            }
            signal.wait_for(&mut answer, LOOK_EVERY);
        }
    }

    fn send(&self, site: &Arc<Site>, call: Call) -> Option<Awaited> {
        let life = self.life()?;
        let answered: Arc<Mutex<Option<Answer>>> = Arc::default();
        let signal = Arc::new(site.scheduler.signal());
        let awaited = Awaited { life: life.number, answer: answered.clone(), signal: signal.clone() };
        let (site, switch, at) = (site.clone(), self.switch.lock().clone(), self.at);
        let serve = {
            let site = site.clone();
            move || {
                let Call { request, data, from, after_ms } = call;
                site.sleep_ms(after_ms);
                let mut read = Vec::new();
                let reply = carry_out(&life, &request, (&data, &mut read), from);
                if matches!(request, StorageRequest::MoveSeal { .. }) && site.trouble(24) == 0 {
                    site.storage[at].die(&site);
                }
                // It has stopped in the middle of something: nobody hears of that.
                if switch.is_off.load(SeqCst) {
                    return;
                }
                if from.is_none() && reply.is_ok() {
                    site.require_served(&request);
                }
                let epoch = life.map.read().epoch;
                site.sleep_ms(site.dice.below(3));
                *answered.lock() = Some(Answer { reply, read, epoch });
                signal.notify_all();
            }
        };
        site.scheduler.start_detached(&format!("{}call", self.prefix()), Box::new(serve));
        Some(awaited)
    }
}

fn carry_out(
    life: &Life,
    request: &StorageRequest,
    (data, read): (&[u8], &mut Vec<u8>),
    from: Option<MoveAttempt>,
) -> Result<StorageReply, Errno> {
    let payload = match request {
        StorageRequest::Write { .. } => Payload::Write(data),
        StorageRequest::Read { len, .. } => {
            *read = vec![0xEE; *len as usize];
            Payload::Read(read)
        }
        _ => Payload::None,
    };
    match from {
        Some(from) => life.service.call_of_peer(from, request, payload),
        None => life.service.call(request, payload),
    }
}
