//! The services of one machine on simulated disks.
#![allow(dead_code)] // each test file uses its own part
#![allow(clippy::unwrap_used)] // part of tests, which the lint does not see here

pub mod restarted;

use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_manager::{FoundTarget, Manager};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_storage::StorageService;
use ashlar_types::{ClusterId, ClusterMap, LayoutPolicy, TargetId};
use parking_lot::RwLock;
use std::sync::Arc;

/// Chunk size of all files, bytes.
pub const CHUNK_BYTES: usize = LayoutPolicy::CHUNK_BYTES_MIN as usize;
/// Targets, numbered from 1.
pub const TARGETS: u32 = 2;

/// Metadata and storage, started.
pub struct Services {
    pub env: Env,
    pub meta: Arc<MetaService>,
    pub storage: Arc<StorageService>,
    pub stores: Vec<(TargetId, Arc<ChunkStore>)>,
    pub manager: Manager,
    meta_disk: Arc<dyn Disk>,
    engine: MemoryEngine,
}

fn open_lane(disk: &Arc<dyn Disk>, engine: &MemoryEngine, env: &Env, cluster: ClusterId) -> Lane {
    let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
    Lane::open(disk.clone(), "lane", Box::new(engine.clone()), env, cluster, config).unwrap()
}

impl Services {
    /// A new file system: files over two targets, 16 KiB with the inode.
    pub fn start() -> Services {
        let env = Env::os();
        let meta_disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let draft = Manager::draft(&meta_disk, "", &env).unwrap();
        let cluster = draft.identity.cluster;
        Manager::create(draft, Box::new(LocalFile::new(meta_disk.clone(), ""))).unwrap();
        let coord = Box::new(LocalFile::new(meta_disk.clone(), ""));
        let manager = Manager::open(&meta_disk, "", coord).unwrap();
        let storage = Arc::new(StorageService::new());
        let (mut found, mut stores) = (Vec::new(), Vec::new());
        for number in 1..=TARGETS {
            let (target, uuid) = (TargetId(number), [number as u8; 16]);
            let identity = TargetIdentity { cluster, target, uuid: TargetUuid(uuid) };
            let disk = SimDisk::new();
            ChunkStore::format(&disk, &identity).unwrap();
            let engine = MemoryEngine::new();
            let opened =
                ChunkStore::open(Arc::new(disk), || Ok(Box::new(engine)), &env, &identity, Config::small());
            let store = Arc::new(opened.unwrap().0);
            storage.add_target(target, store.clone());
            stores.push((target, store));
            found.push(FoundTarget { id: target, uuid, path: format!("/{number}") });
        }
        manager.take_targets(ashlar_types::NodeId(1), &found).unwrap();
        let engine = MemoryEngine::new();
        let lane = open_lane(&meta_disk, &engine, &env, cluster);
        let config = MetaConfig {
            has_lost: false,
            keeps_sessions: false,
            lane: Arc::new(lane),
            env: env.clone(),
            name_hash_key: manager.identity().name_hash_key,
            map: manager.map(),
            storage: storage.clone(),
            peers: None,
        };
        let policy = LayoutPolicy {
            chunk_bytes: Some(LayoutPolicy::CHUNK_BYTES_MIN),
            stripe_count: Some(2),
            inline_bytes: Some(16 << 10),
            ..LayoutPolicy::default()
        };
        let (meta, _) =
            MetaService::start(config, RootSettings { policy, ..RootSettings::default() }).unwrap();
        Services { env, meta, storage, stores, manager, meta_disk, engine }
    }

    /// Stops the metadata service; its lane, to be looked at.
    pub fn stop(self) -> Lane {
        self.meta.stop().unwrap();
        let cluster = self.manager.identity().cluster;
        drop(self.meta);
        open_lane(&self.meta_disk, &self.engine, &self.env, cluster)
    }

    /// The cluster map.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.manager.map()
    }
}
