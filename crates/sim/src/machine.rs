//! The simulated machine: its disks, and the services on them, started and stopped as `ashlar up` does.

use crate::audit;
use crate::oracle::Pairs;
use crate::scheduler::ProcessTasks;
use crate::watch::{Shared, WatchedDisk, WatchedMeta, WatchedStorage};
use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_client::{Client, ClientConfig, ResolveCredentials};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::sim::{SimClock, SimDisk, SimEntropy};
use ashlar_env::{Disk, Entropy, Env};
use ashlar_kv::{Background, Lane, LaneConfig, MemoryEngine};
use ashlar_manager::{FoundTarget, Manager};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::forced_codec::ForcedCodec;
use ashlar_storage::StorageService;
use ashlar_types::{ClusterMap, Credentials, Durability, Errno, LayoutPolicy, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Time between turns of background work of the targets, as in `ashlar up`.
const TICK: Duration = Duration::from_millis(100);
const TICK_SLOTS: usize = 64;

/// How a machine is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub targets: usize,
    pub stripe_count: u16,
    pub inline_bytes: u32,
    pub durability: Durability,
    pub overlay_bytes: u64,
    /// Of the log of the metadata, and of targets' whatever is usual.
    pub segment_bytes: u64,
    pub force_codec: bool,
    /// Directories with an entry are split an entry at a time while they are used.
    pub splits_in_steps: bool,
}

struct TargetDisk {
    disk: WatchedDisk,
    engine: MemoryEngine,
    identity: TargetIdentity,
}

/// Services that run.
struct Running {
    meta: Arc<MetaService>,
    storage: Arc<StorageService>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    name_hash_key: [u8; 16],
}

/// See the module.
pub struct Machine {
    pub shared: Arc<Shared>,
    pub clock: Arc<SimClock>,
    setup: Setup,
    entropy: Arc<SimEntropy>,
    meta_disk: WatchedDisk,
    meta_engine: MemoryEngine,
    targets: Vec<TargetDisk>,
    running: Option<Running>,
    has_lost_power: bool,
    /// The target that starts do without.
    missing: Option<usize>,
}

struct NobodyToAsk;

impl ResolveCredentials for NobodyToAsk {
    fn resolve(&self, _pid: u32, _known: &Credentials) -> Option<Credentials> {
        None
    }
}

fn text(what: &str) -> impl Fn(&dyn std::fmt::Display) -> String + '_ {
    move |error| format!("{what}: {error}")
}

impl Machine {
    /// A machine with empty disks.
    pub fn new(shared: Arc<Shared>, clock: Arc<SimClock>, setup: Setup, seed: u64) -> Machine {
        let disk =
            |pauses_in_sync| WatchedDisk { inner: SimDisk::new(), shared: shared.clone(), pauses_in_sync };
        let targets = (0..setup.targets)
            .map(|_| TargetDisk { disk: disk(false), engine: MemoryEngine::new(), identity: no_identity() })
            .collect();
        let meta_disk = disk(true);
        let entropy = Arc::new(SimEntropy::new(seed));
        let meta_engine = MemoryEngine::new();
        Machine {
            shared,
            clock,
            setup,
            entropy,
            meta_disk,
            meta_engine,
            targets,
            running: None,
            has_lost_power: false,
            missing: None,
        }
    }

    /// The environment of a process whose tasks' names begin with `prefix`.
    pub fn env(&self, prefix: &str) -> Env {
        let tasks = ProcessTasks { scheduler: self.shared.scheduler.clone(), prefix: prefix.to_owned() };
        Env { clock: self.clock.clone(), entropy: self.entropy.clone(), tasks: Arc::new(tasks) }
    }

    /// Whether power was cut in this run.
    pub fn has_lost_power(&self) -> bool {
        self.has_lost_power
    }

    /// The next starts find all targets but this one.
    pub fn set_missing(&mut self, missing: Option<usize>) {
        self.missing = missing.filter(|&target| target < self.targets.len());
    }

    fn targets_there(&self) -> impl Iterator<Item = &TargetDisk> {
        let numbered = self.targets.iter().enumerate();
        numbered.filter(|(number, _)| Some(*number) != self.missing).map(|(_, target)| target)
    }

    /// Disks, for faults: metadata first.
    pub fn disks(&self) -> Vec<&SimDisk> {
        std::iter::once(&self.meta_disk.inner)
            .chain(self.targets.iter().map(|target| &target.disk.inner))
            .collect()
    }

    /// Makes a file system.
    ///
    /// # Errors
    /// In words.
    pub fn format(&mut self) -> Result<(), String> {
        let env = self.env("format:");
        let disk: Arc<dyn Disk> = Arc::new(self.meta_disk.clone());
        let draft = Manager::draft(&disk, "", &env).map_err(|error| text("draft")(&error))?;
        let cluster = draft.identity.cluster;
        *self.shared.cluster.lock() = Some(cluster);
        Manager::create(draft, Box::new(LocalFile::new(disk, ""))).map_err(|error| text("create")(&error))?;
        for (target, number) in self.targets.iter_mut().zip(1..) {
            let mut uuid = [0; 16];
            env.entropy.fill(&mut uuid);
            target.identity = TargetIdentity { cluster, target: TargetId(number), uuid: TargetUuid(uuid) };
            ChunkStore::format(&target.disk, &target.identity).map_err(|error| text("format")(&error))?;
        }
        Ok(())
    }

    fn lane_config(&self) -> LaneConfig {
        LaneConfig {
            segment_bytes: self.setup.segment_bytes,
            overlay_bytes_max: self.setup.overlay_bytes,
            log_bytes_max: 1 << 20,
            reserve_bytes: 0,
            background: Background::Threads,
            ..LaneConfig::default()
        }
    }

    fn root_settings(&self) -> RootSettings {
        let policy = LayoutPolicy {
            chunk_bytes: Some(LayoutPolicy::CHUNK_BYTES_MIN),
            stripe_count: Some(self.setup.stripe_count),
            inline_bytes: Some(self.setup.inline_bytes),
            durability: Some(self.setup.durability),
            ..LayoutPolicy::default()
        };
        RootSettings { policy, ..RootSettings::default() }
    }

    fn open_targets(&self, env: &Env) -> Result<Vec<(TargetId, Arc<ChunkStore>)>, String> {
        let mut stores = Vec::new();
        for target in self.targets_there() {
            let engine = target.engine.clone();
            let disk: Arc<dyn Disk> = Arc::new(target.disk.clone());
            let opened =
                ChunkStore::open(disk, || Ok(Box::new(engine)), env, &target.identity, Config::small());
            let (store, _) = opened.map_err(|error| format!("open {}: {error}", target.identity.target))?;
            stores.push((target.identity.target, Arc::new(store)));
        }
        Ok(stores)
    }

    fn manager(&self) -> Result<Manager, String> {
        let disk: Arc<dyn Disk> = Arc::new(self.meta_disk.clone());
        let coord = Box::new(LocalFile::new(disk.clone(), ""));
        let manager = Manager::open(&disk, "", coord).map_err(|error| text("open the manager")(&error))?;
        let found: Vec<FoundTarget> = self
            .targets_there()
            .map(|target| FoundTarget {
                id: target.identity.target,
                uuid: target.identity.uuid.0,
                path: format!("/{}", target.identity.target),
            })
            .collect();
        manager
            .take_targets(ashlar_types::NodeId(1), &found)
            .map_err(|error| text("take targets")(&error))?;
        Ok(manager)
    }

    fn open_lane(&self, env: &Env, manager: &Manager) -> Result<Lane, String> {
        let disk: Arc<dyn Disk> = Arc::new(self.meta_disk.clone());
        disk.end_loss().map_err(|error| text("read the metadata anew")(&error))?;
        let engine = Box::new(self.meta_engine.clone());
        let cluster = manager.identity().cluster;
        Lane::open(disk, "lane", engine, env, cluster, self.lane_config())
            .map_err(|error| text("open the metadata lane")(&error))
    }

    /// Starts the services. `look` sees the pairs of the lane, before recovery changes anything, and the files that have data on a target
    /// that is missing.
    ///
    /// # Errors
    /// In words: what could not be opened, or what a check found.
    pub fn start(&mut self, look: impl FnOnce(&Pairs, BTreeSet<u64>)) -> Result<(), String> {
        let env = self.env("server:");
        let manager = self.manager()?;
        let lane = self.open_lane(&env, &manager)?;
        let stores = self.open_targets(&env)?;
        let pairs = audit::pairs(&lane)?;
        let missing = self.missing.and_then(|number| self.targets.get(number));
        let hidden = missing
            .map(|target| audit::files_on(&pairs, &manager.map().read().clone(), target.identity.target));
        look(&pairs, hidden.unwrap_or_default());
        let name_hash_key = manager.identity().name_hash_key;
        if !pairs.is_empty() {
            let map = manager.map().read().clone();
            audit::namespace(&lane, map.shards.len() as u16, &name_hash_key)?;
        }
        let storage = Arc::new(StorageService::new());
        for (id, store) in stores {
            storage.add_target(id, store);
        }
        let watched = WatchedStorage {
            inner: storage.clone(),
            shared: self.shared.clone(),
            actor: None,
            is_spilling: Arc::new(AtomicBool::new(false)),
        };
        let config = MetaConfig {
            has_lost: false,
            keeps_sessions: false,
            lane: Arc::new(lane),
            env: env.clone(),
            name_hash_key,
            map: manager.map(),
            storage: Arc::new(watched),
            peers: None,
        };
        let started = MetaService::start(config, self.root_settings());
        let (meta, _) =
            started.map_err(|errno| format!("the metadata service does not recover: {errno:?}"))?;
        meta.start_collector().map_err(|error| text("start the collector")(&error))?;
        if self.setup.splits_in_steps {
            meta.split_in_steps(0, 1);
            meta.start_splitter(0).map_err(|error| text("start what splits directories")(&error))?;
        }
        self.start_background(&env, &storage)?;
        self.running = Some(Running { meta, storage, map: manager.map(), name_hash_key });
        Ok(())
    }

    fn start_background(&self, env: &Env, storage: &Arc<StorageService>) -> Result<(), String> {
        let (weak, shared) = (Arc::downgrade(storage), self.shared.clone());
        let run = move || {
            loop {
                shared.scheduler.sleep(TICK);
                let Some(storage) = weak.upgrade() else { return };
                for (_, store) in storage.targets() {
                    // A target that has stopped says so to whoever calls it.
                    let _ = store.background_tick(TICK_SLOTS);
                }
            }
        };
        env.tasks.spawn("tick", Box::new(run)).map(drop).map_err(|error| text("start the background")(&error))
    }

    /// Opens a session as client `actor`.
    ///
    /// # Errors
    /// What the service answers.
    pub fn connect(&self, actor: usize) -> Result<Arc<Client>, Errno> {
        let running = self.running.as_ref().ok_or(Errno::ENOTCONN)?;
        let is_spilling = Arc::new(AtomicBool::new(false));
        let (shared, spilling) = (self.shared.clone(), is_spilling.clone());
        let meta =
            Arc::new(WatchedMeta { inner: running.meta.clone(), shared: shared.clone(), actor, is_spilling });
        let storage = Arc::new(WatchedStorage {
            inner: running.storage.clone(),
            shared,
            actor: Some(actor),
            is_spilling: spilling,
        });
        let is_forced = self.setup.force_codec;
        let client = Client::connect(ClientConfig {
            meta: if is_forced { Arc::new(ForcedCodec(meta)) } else { meta },
            storage: if is_forced { Arc::new(ForcedCodec(storage)) } else { storage },
            map: running.map.clone(),
            env: self.env(&format!("c{actor}:")),
            credentials: Arc::new(NobodyToAsk),
            checks_payload: false,
            comes_back: false,
            wait_max: ashlar_client::WAIT_MIN,
        })?;
        // There is no kernel that would have to drop pages.
        client.set_frees_filled_pages();
        self.shared.oracle.lock().connected(actor, client.session());
        Ok(client)
    }

    /// The machine stops: every task ends where it stands, and the disks keep what they keep. Power comes back at once. `is_loss`: what was not synced may be lost all the same.
    pub fn crash(&mut self, is_power_cut: bool, is_loss: bool) {
        self.shared.is_off.store(true, Relaxed);
        self.shared.scheduler.kill_all();
        self.running = None;
        self.has_lost_power |= is_power_cut || is_loss;
        for disk in self.disks() {
            let seed = self.entropy.next_u64();
            if is_power_cut { disk.crash(seed) } else { disk.kill_process() }
        }
        self.shared.stop_in.store(-1, Relaxed);
        self.shared.is_off.store(false, Relaxed);
    }

    /// Stops the services in good order and checks everything that must hold then. Clients have disconnected.
    ///
    /// # Errors
    /// In words: what does not hold.
    pub fn stop_and_audit(&mut self) -> Result<(), String> {
        let Some(running) = self.running.take() else { return Err("nothing runs".into()) };
        running.meta.prepare_stop();
        running.meta.stop().map_err(|error| text("stop the metadata service")(&error))?;
        let Running { meta, storage, map, name_hash_key } = running;
        let stores = storage.targets();
        drop((meta, storage));
        self.shared.scheduler.kill_all();
        let map = map.read().clone();
        let env = self.env("audit:");
        let manager = self.manager()?;
        let lane = self.open_lane(&env, &manager)?;
        audit::namespace(&lane, map.shards.len() as u16, &name_hash_key)?;
        audit::nothing_left_behind(&lane)?;
        audit::chunks(&lane, &map, &stores, self.has_lost_power)?;
        audit::no_suspects(&stores)?;
        for (id, store) in &stores {
            audit::scrub(*id, store)?;
            store.close().map_err(|error| text("close a target")(&error))?;
        }
        lane.close().map_err(|error| text("close the lane")(&error))?;
        self.shared.scheduler.kill_all();
        Ok(())
    }

    /// Whether a target has taken itself out of service.
    pub fn has_stopped_target(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| {
            running.storage.targets().iter().any(|(_, store)| store.stopped().is_some())
        })
    }

    /// Whether chunks wait to be deleted, or other work of the service is left.
    pub fn has_garbage(&self) -> bool {
        self.shared.oracle.lock().newest().keys().any(|key| key.get(2) == Some(&b'G'))
    }
}

fn no_identity() -> TargetIdentity {
    TargetIdentity {
        cluster: ashlar_types::ClusterId([0; 16]),
        target: TargetId(0),
        uuid: TargetUuid([0; 16]),
    }
}
