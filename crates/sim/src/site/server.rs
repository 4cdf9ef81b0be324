//! A metadata server of the site: its disk, its lives, and how others reach it.

use super::disk::{ServerDisk, Switch};
use super::{CLUSTER, HASH_KEY, Site};
use crate::scheduler::ProcessTasks;
use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Entropy, Env, Signal, SimTask, Task, Tasks};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::net::{Caller, Peer};
use ashlar_rpc::remote::{Granter, Routes};
use ashlar_rpc::serve::{MetaEndpoint, Proofs};
use ashlar_rpc::wire::{MetaAnswer, MetaCall, MoveState};
use ashlar_rpc::{LastingSessions, MetaPeers};
use ashlar_storage::StorageService;
use ashlar_types::codec::{decode, encode};
use ashlar_types::node::{Roles, SessionOwner};
use ashlar_types::{
    ClusterMap, Durability, Epoch, Errno, KeySet, LayoutPolicy, NodeId, PeerId, Role, SecretKey, ShardId,
};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between looks whether a server has died that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// For so long a server that is away is waited for at the most, which in a cluster is as long as the caller likes.
const SILENT_MAX: Duration = Duration::from_millis(200);

/// Starts nothing: what attends storage servers has none to attend.
struct NoTasks(Arc<dyn Tasks>);

struct Ended;

impl SimTask for Ended {
    fn join(&self) -> bool {
        false
    }

    fn is_current(&self) -> bool {
        false
    }
}

impl Tasks for NoTasks {
    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        Ok(Task::Simulated(Arc::new(Ended)))
    }

    fn signal(&self) -> Signal {
        self.0.signal()
    }
}

/// One life of a server.
struct Life {
    number: u64,
    meta: Arc<MetaService>,
    endpoint: Arc<MetaEndpoint>,
}

/// See the module.
pub(super) struct Server {
    at: usize,
    disk: SimDisk,
    engine: MemoryEngine,
    switch: Mutex<Arc<Switch>>,
    /// For how long it is away after the stop to come.
    pub away_ms: AtomicU64,
    /// Of each life: what is left of one that has ended hears of no newer map.
    pub map: Mutex<Arc<RwLock<Arc<ClusterMap>>>>,
    lives: AtomicU64,
    life: Mutex<Option<Life>>,
}

/// What one server has of the others.
struct Wire {
    from: usize,
    site: Weak<Site>,
}

pub(super) fn peer_of(node: NodeId, role: Role) -> Peer {
    let id = PeerId { cluster: CLUSTER, node, roles: Roles::default().with(role), host: None };
    Peer { id, role, instance: [node.0 as u8; 16], token: None }
}

impl MetaPeers for Wire {
    fn ask(&self, server: NodeId, message: &[u8], _: bool, wait: Duration) -> Result<Vec<u8>, Errno> {
        let site = self.site.upgrade().ok_or(Errno::EHOSTDOWN)?;
        let other = site.servers.get(server.0 as usize - 1).ok_or(Errno::EHOSTDOWN)?;
        let peer = peer_of(NodeId(self.from as u32 + 1), Role::Meta);
        let ask = || other.call(&site, &peer, &MetaCall::Peer(message), wait);
        let trouble = match site.sweep.as_ref() {
            Some(sweep) => sweep.message(),
            None => site.trouble(14),
        };
        match trouble {
            0 => {
                site.scheduler.sleep(wait.min(SILENT_MAX));
                return Err(Errno::EHOSTDOWN);
            }
            1 => drop(ask()),
            2 => site.sleep_ms(site.dice.below(20)),
            _ => {}
        }
        let answer = ask();
        match answer {
            Some((MetaAnswer::Peer(answer), _)) if trouble != 3 => Ok(answer),
            Some((MetaAnswer::Failed(errno), _)) => Err(errno),
            // One that is away is waited for.
            _ => {
                site.scheduler.sleep(wait.min(SILENT_MAX));
                Err(Errno::EHOSTDOWN)
            }
        }
    }
}

impl Server {
    pub fn new(at: usize, map: &ClusterMap) -> Server {
        Server {
            at,
            disk: SimDisk::new(),
            engine: MemoryEngine::new(),
            switch: Mutex::default(),
            away_ms: AtomicU64::new(0),
            map: Mutex::new(Arc::new(RwLock::new(Arc::new(map.clone())))),
            lives: AtomicU64::new(0),
            life: Mutex::default(),
        }
    }

    fn node(&self) -> NodeId {
        NodeId(self.at as u32 + 1)
    }

    fn prefix(&self) -> String {
        format!("s{}:", self.at)
    }

    /// Whether it has stopped by itself.
    pub fn is_off(&self) -> bool {
        self.switch.lock().is_off.load(SeqCst)
    }

    /// Has it stop after so many changes of its disk.
    pub fn stop_after(&self, changes: u64, away_ms: u64) {
        self.away_ms.store(away_ms, SeqCst);
        self.switch.lock().stop_in.store(changes as i64, SeqCst);
    }

    pub fn stop_never(&self) {
        self.switch.lock().keep_on();
    }

    pub fn is_serving(&self) -> bool {
        self.life.lock().is_some()
    }

    /// Whether nothing is to be moved or split.
    pub fn is_quiet(&self) -> bool {
        let life = self.life.lock();
        let Some(life) = &*life else { return false };
        let is_under_way = |info: &ashlar_rpc::wire::MoveInfo| !matches!(info.state, MoveState::Failed(_));
        !life.meta.moves().iter().any(is_under_way) && life.meta.measures().splits.under_way == 0
    }

    pub fn sessions(&self) -> usize {
        self.life.lock().as_ref().map_or(1, |life| life.endpoint.sessions() + life.meta.awaited().len())
    }

    pub fn send(&self, site: &Site, shard: ShardId, to: NodeId) {
        let meta = self.life.lock().as_ref().map(|life| life.meta.clone());
        // Each time another command: one that asked for what was withdrawn since is not heard again.
        let asker =
            SessionOwner { node: NodeId(99), instance: u128::from(site.dice.below(u64::MAX)).to_be_bytes() };
        let told = meta.map(|meta| LastingSessions::move_shards(&*meta, &[shard], to, asker));
        site.scheduler.note(&|| format!("{shard} is wanted at {to}: {told:?}"));
    }

    pub fn withdraw(&self, site: &Site, shard: ShardId) {
        let meta = self.life.lock().as_ref().map(|life| life.meta.clone());
        let told = meta.map(|meta| meta.withdraw_moves(&[shard]));
        site.scheduler.note(&|| format!("{shard} is to stay: {told:?}"));
    }

    /// Its store.
    ///
    /// # Errors
    /// In words.
    pub fn lane(&self, site: &Site, prefix: &str) -> Result<Lane, String> {
        let disk = ServerDisk {
            inner: self.disk.clone(),
            switch: self.switch.lock().clone(),
            pauses_in_sync: true,
            site: site.me.clone(),
        };
        let config = LaneConfig { reserve_bytes: 0, segment_bytes: 256 << 10, ..LaneConfig::default() };
        let disk: Arc<dyn Disk> = Arc::new(disk);
        disk.end_loss().map_err(|error| format!("server {} cannot read anew: {error}", self.at))?;
        Lane::open(disk, "lane", Box::new(self.engine.clone()), &site.env(prefix), CLUSTER, config)
            .map_err(|error| format!("the store of server {} cannot be opened: {error}", self.at))
    }

    /// Begins a life.
    pub fn start(&self, site: &Arc<Site>) {
        let number = self.lives.fetch_add(1, SeqCst) + 1;
        site.scheduler.note(&|| format!("server {} starts for the {number}. time", self.at));
        let before = self.switch.lock().stop_in.load(SeqCst);
        *self.switch.lock() = Switch::new(if number == 1 { -1 } else { before });
        // As its start is told to the manager: what was asked by an older map is not carried out any more.
        site.change_map(|map| map.epoch = Epoch(map.epoch.0 + 1));
        *self.map.lock() = Arc::new(RwLock::new(Arc::new(site.truth.lock().clone())));
        let (site, at) = (site.clone(), self.at);
        let run = {
            let site = site.clone();
            move || {
                let server = &site.servers[at];
                if let Err(why) = server.live(&site, number)
                    && !server.is_off()
                {
                    site.fail(why);
                }
            }
        };
        site.scheduler.start(&format!("{}main", self.prefix()), Box::new(run));
    }

    fn service(&self, site: &Arc<Site>, env: &Env) -> Result<Arc<MetaService>, String> {
        let peers: Arc<dyn MetaPeers> = Arc::new(Wire { from: self.at, site: site.me.clone() });
        let config = MetaConfig {
            has_lost: false,
            lane: Arc::new(self.lane(site, &self.prefix())?),
            env: env.clone(),
            name_hash_key: HASH_KEY,
            map: self.map.lock().clone(),
            keeps_sessions: true,
            storage: Arc::new(StorageService::new()),
            peers: Some((peers, self.node())),
        };
        let durability = if site.plan.is_power { Durability::Sync } else { Durability::Async };
        let policy = LayoutPolicy { durability: Some(durability), ..LayoutPolicy::default() };
        let settings = RootSettings { policy, ..RootSettings::default() };
        let (meta, _) = MetaService::start(config, settings)
            .map_err(|errno| format!("server {} does not recover: {errno:?}", self.at))?;
        let failed = |error: io::Error| format!("server {}: {error}", self.at);
        meta.start_collector().map_err(failed)?;
        meta.start_trimmer().map_err(failed)?;
        meta.split_in_steps(0, 1);
        meta.start_splitter(0).map_err(failed)?;
        Ok(meta)
    }

    /// A life, until it is ended.
    fn live(&self, site: &Arc<Site>, number: u64) -> Result<(), String> {
        let env = site.env(&self.prefix());
        let meta = self.service(site, &env)?;
        let map = self.map.lock().clone();
        let tasks = ProcessTasks { scheduler: site.scheduler.clone(), prefix: self.prefix() };
        let idle = Env { tasks: Arc::new(NoTasks(Arc::new(tasks))), ..env.clone() };
        let caller = Caller::new(site.identity.clone(), Role::Meta, [1; 16], Arc::default());
        let routes = Arc::new(Routes::new(Arc::new(caller), map.clone()));
        let keys = KeySet(vec![(1, SecretKey([5; 32]))]);
        let granter = Granter::start(routes, idle, (CLUSTER, self.node()), keys, None)
            .map_err(|error| format!("no granter: {error}"))?;
        let proofs = Arc::new(Proofs::new(CLUSTER, &SecretKey([6; 32])));
        let endpoint = MetaEndpoint::new(meta.clone(), map, env.clock.clone(), granter, proofs);
        let endpoint = Arc::new(endpoint);
        *self.life.lock() = Some(Life { number, meta: meta.clone(), endpoint: endpoint.clone() });
        site.scheduler.note(&|| format!("server {} serves", self.at));
        let (sender, theirs) = (meta.clone(), site.clone());
        let send = move || {
            let ask =
                |shards: &[ShardId], from, to, seen| theirs.ask_manager((shards.to_vec(), from, to, seen));
            loop {
                let pause = sender.carry_out_moves(&ask);
                theirs.scheduler.sleep(pause.max(Duration::from_millis(1)));
            }
        };
        site.scheduler.start(&format!("{}send", self.prefix()), Box::new(send));
        let (receiver, theirs) = (meta.clone(), site.clone());
        let tend = move || {
            loop {
                match receiver.tend_shards() {
                    Ok(pause) => receiver.await_shards(pause),
                    Err(_) => theirs.sleep_ms(50),
                }
            }
        };
        site.scheduler.start(&format!("{}shards", self.prefix()), Box::new(tend));
        loop {
            site.sleep_ms(1000);
            endpoint.tidy();
            meta.resume_across();
        }
    }

    /// Ends a life where it stands.
    pub fn stop(&self, site: &Site) {
        self.switch.lock().is_off.store(true, SeqCst);
        site.scheduler.kill(&self.prefix());
        self.forget();
        let seed = site.entropy.next_u64();
        if site.plan.is_power {
            self.disk.crash(seed)
        } else {
            self.disk.kill_process()
        }
        let switch = self.switch.lock().clone();
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
        let Some(Life { meta, endpoint, .. }) = self.life.lock().take() else {
            return Err("a server is not there at the end".into());
        };
        meta.prepare_stop();
        meta.stop().map_err(|error| format!("server {} cannot stop: {error}", self.at))?;
        drop((meta, endpoint));
        site.scheduler.kill(&self.prefix());
        Ok(())
    }

    /// One call of `peer`: the answer, and the epoch of the map of the server. `None` when it is away, or has ended before it has answered, or takes too long.
    pub fn call(
        &self,
        site: &Arc<Site>,
        peer: &Peer,
        call: &MetaCall<'_>,
        wait: Duration,
    ) -> Option<(MetaAnswer, Epoch)> {
        let (number, endpoint) = {
            let life = self.life.lock();
            let life = life.as_ref()?;
            (life.number, life.endpoint.clone())
        };
        let answered: Arc<Mutex<Option<(MetaAnswer, Epoch)>>> = Arc::default();
        let signal = Arc::new(site.scheduler.signal());
        let (message, peer, map) = (encode(call), *peer, self.map.lock().clone());
        let switch = self.switch.lock().clone();
        let serve = {
            let (site, answered, signal) = (site.clone(), answered.clone(), signal.clone());
            move || {
                if site.dice.below(8) == 0 {
                    site.sleep_ms(site.dice.below(6));
                }
                let answer = match decode::<MetaCall<'_>>(&message, "metadata call") {
                    Ok(call) => endpoint.answer(&peer, call),
                    Err(_) => Err("that is no call to metadata"),
                };
                let epoch = map.read().epoch;
                // It has stopped in the middle of something: nobody hears of that.
                if switch.is_off.load(SeqCst) {
                    return;
                }
                match answer {
                    Ok(answer) => {
                        // As it would travel.
                        let decoded = decode(&encode(&answer), "answer of metadata").ok();
                        *answered.lock() = decoded.map(|answer| (answer, epoch));
                    }
                    Err(why) => site.fail(format!("a call is refused: {why}")),
                }
                signal.notify_all();
            }
        };
        site.scheduler.start_detached(&format!("{}call", self.prefix()), Box::new(serve));
        let until = site.now() + wait;
        loop {
            let mut answer = answered.lock();
            if answer.is_some() {
                return answer.take();
            }
            if self.lives.load(SeqCst) != number || !self.is_serving() || site.now() >= until {
                return None;
            }
            signal.wait_for(&mut answer, LOOK_EVERY);
        }
    }
}
