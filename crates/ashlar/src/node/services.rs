//! Starting and stopping the services of a single machine, step by step.

use super::Directories;
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::{ChunkStore, TargetIdentity, TargetUuid};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, DiskFile, Env, OpenMode};
use ashlar_kv::{Engine, FjallEngine, FjallOptions, Lane, LaneConfig};
use ashlar_manager::{FoundTarget, Manager};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::forced_codec::ForcedCodec;
use ashlar_rpc::{MetaCalls, StorageCalls};
use ashlar_storage::StorageService;
use ashlar_types::{ClusterId, ClusterMap, LayoutPolicy, TargetId};
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between turns of background work of the targets.
const TICK: Duration = Duration::from_millis(100);
/// Slots of background work per turn and target.
const TICK_SLOTS: usize = 64;

/// How to start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServicesConfig {
    /// Pass every message through its codec.
    pub force_codec: bool,
}

/// The services of a file system, running.
pub struct Services {
    env: Env,
    config: ServicesConfig,
    manager: Manager,
    storage: Arc<StorageService>,
    meta: Arc<MetaService>,
    directories: Directories,
    is_stopping: Arc<AtomicBool>,
    background: Option<JoinHandle<()>>,
    _meta_lock: Arc<dyn DiskFile>,
}

impl Services {
    /// Starts everything, or makes a new file system if there is none.
    ///
    /// # Errors
    /// The first step that fails, with the directory or file and the way out. Nothing is left running.
    pub fn start(directories: Directories, config: ServicesConfig) -> Result<Services> {
        let env = Env::os();
        make_private_directory(&directories.meta)?;
        let disk = directories.meta_disk();
        let meta_lock = lock_metadata(&disk, &directories)?;
        let manager = open_manager(&disk, &directories, &env)?;
        let cluster = manager.identity().cluster;
        let stores = open_targets(&directories, &manager, &env)?;
        let storage = Arc::new(StorageService::new());
        for (id, store) in stores {
            storage.add_target(id, store);
        }
        let lane = open_lane(&disk, &directories, &env, cluster)?;
        let meta_config = MetaConfig {
            lane,
            env: env.clone(),
            name_hash_key: manager.identity().name_hash_key,
            map: manager.map(),
            storage: storage.clone(),
        };
        let (meta, report) = MetaService::start(meta_config, root_settings())
            .context("the metadata service could not recover; the log has details, and `ashlar fsck` checks everything")?;
        if report.sessions_reaped > 0 {
            tracing::info!(?report, "cleaned up after mounts that had not ended");
        }
        meta.start_collector().context("cannot start a thread")?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let background = start_background(&storage, &is_stopping)?;
        Ok(Services {
            env,
            config,
            manager,
            storage,
            meta,
            directories,
            is_stopping,
            background: Some(background),
            _meta_lock: meta_lock,
        })
    }

    /// The metadata service as clients call it.
    pub fn meta_calls(&self) -> Arc<dyn MetaCalls> {
        if self.config.force_codec { Arc::new(ForcedCodec(self.meta.clone())) } else { self.meta.clone() }
    }

    /// The storage services as clients call them.
    pub fn storage_calls(&self) -> Arc<dyn StorageCalls> {
        if self.config.force_codec {
            Arc::new(ForcedCodec(self.storage.clone()))
        } else {
            self.storage.clone()
        }
    }

    /// The storage service, for administration.
    pub fn storage(&self) -> &Arc<StorageService> {
        &self.storage
    }

    /// The cluster map, kept current.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.manager.map()
    }

    /// Clocks and randomness.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Who this file system is.
    pub fn cluster(&self) -> ClusterId {
        self.manager.identity().cluster
    }

    /// Where its metadata is.
    pub fn meta_directory(&self) -> &PathBuf {
        &self.directories.meta
    }

    /// Inodes in use.
    ///
    /// # Errors
    /// When the metadata cannot be read.
    pub fn inodes_used(&self) -> Result<u64> {
        self.meta.inodes_used().context("cannot read the accounting")
    }

    /// Stops everything in order: metadata first, so that nothing refers to what the targets have not written.
    ///
    /// # Errors
    /// The first failure; the rest is stopped all the same.
    pub fn stop(mut self) -> Result<()> {
        self.is_stopping.store(true, Relaxed);
        if let Some(thread) = self.background.take()
            && thread.join().is_err()
        {
            tracing::error!("the background thread of the targets ended by a panic");
        }
        let synced = self
            .storage
            .targets()
            .into_iter()
            .try_for_each(|(id, store)| store.close().with_context(|| format!("could not close {id}")));
        let stopped = self.meta.stop().context("could not close the metadata log");
        synced.and(stopped)
    }
}

/// The root of a new file system: of the user who starts it, like the directory a mount point is.
fn root_settings() -> RootSettings {
    // SAFETY: geteuid and getegid have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    RootSettings { mode: 0o755, uid, gid, policy: LayoutPolicy::default() }
}

fn make_private_directory(path: &PathBuf) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot make directory {}", path.display()))
}

fn lock_metadata(disk: &Arc<dyn Disk>, directories: &Directories) -> Result<Arc<dyn DiskFile>> {
    let shown = directories.meta.join("lock");
    let file = disk
        .open("lock", OpenMode::CreateOrOpen)
        .with_context(|| format!("cannot open {}", shown.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => bail!(
            "{} is in use by another running ashlar; stop that one first (`ashlar status` shows it)",
            directories.meta.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", shown.display())),
    }
}

fn open_manager(disk: &Arc<dyn Disk>, directories: &Directories, env: &Env) -> Result<Manager> {
    let coord = Box::new(LocalFile::new(disk.clone(), ""));
    let opened = if directories.exists {
        Manager::open(disk, "", coord)
    } else {
        Manager::create(disk, "", coord, env)
    };
    opened.with_context(|| format!("cannot open the file system at {}", directories.meta.display()))
}

/// Opens known targets, makes new ones, and brings the map up to date; missing ones are named.
fn open_targets(
    directories: &Directories,
    manager: &Manager,
    env: &Env,
) -> Result<Vec<(TargetId, Arc<ChunkStore>)>> {
    let cluster = manager.identity().cluster;
    let known = manager.map().read().clone();
    let mut next_id = known.targets.iter().map(|target| target.id.0 + 1).max().unwrap_or(1);
    for identity in directories.targets.iter().filter_map(|(_, identity)| *identity) {
        next_id = next_id.max(identity.target.0 + 1);
    }
    let mut found = Vec::new();
    for (path, identity) in &directories.targets {
        let identity = match identity {
            Some(identity) if identity.cluster != cluster => bail!(
                "{} belongs to file system {}, not to {} at {}",
                path.display(),
                identity.cluster,
                cluster,
                directories.meta.display()
            ),
            Some(identity) => *identity,
            None => {
                refuse_vanished(&known, path)?;
                let identity = new_identity(cluster, TargetId(next_id), env);
                next_id += 1;
                make_private_directory(path)?;
                ChunkStore::format(&OsDisk::new(path), &identity)
                    .with_context(|| format!("cannot make a target at {}", path.display()))?;
                identity
            }
        };
        found.push((path, identity));
    }
    let listed: Vec<FoundTarget> = found
        .iter()
        .map(|(path, identity)| FoundTarget {
            id: identity.target,
            uuid: identity.uuid.0,
            path: path.display().to_string(),
        })
        .collect();
    let map = manager.take_targets(&listed).context("cannot change the cluster map")?;
    for missing in map.targets.iter().filter(|target| target.state == ashlar_types::map::TargetState::Offline)
    {
        tracing::warn!(target_id = %missing.id, path = missing.path, "a target is missing; its data cannot be read until it is listed with --data");
        eprintln!(
            "ashlar: {} is missing (last seen at {}); files with data on it give ENODEV until it is back",
            missing.id, missing.path
        );
    }
    found
        .into_iter()
        .map(|(path, identity)| Ok((identity.target, open_target(path, &identity, env)?)))
        .collect()
}

/// An empty directory where a target used to be is a disk that is not mounted, not a place for a new target.
fn refuse_vanished(known: &ClusterMap, path: &std::path::Path) -> Result<()> {
    let shown = path.display().to_string();
    match known.targets.iter().find(|target| target.path == shown) {
        Some(target) => bail!(
            "{} was at {shown}, but nothing is there: is its disk mounted? To start without it, leave this --data out",
            target.id
        ),
        None => Ok(()),
    }
}

fn new_identity(cluster: ClusterId, target: TargetId, env: &Env) -> TargetIdentity {
    let mut uuid = [0; 16];
    env.entropy.fill(&mut uuid);
    TargetIdentity { cluster, target, uuid: TargetUuid(uuid) }
}

fn open_target(path: &std::path::Path, identity: &TargetIdentity, env: &Env) -> Result<Arc<ChunkStore>> {
    let config = ashlar_chunkstore::Config {
        holder: format!("ashlar up, process {}", std::process::id()),
        ..ashlar_chunkstore::Config::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(path));
    let engine_path = path.join(ashlar_chunkstore::ENGINE_DIR);
    let engine = || {
        let options = FjallOptions { worker_threads: 1, ..FjallOptions::default() };
        Ok(Box::new(FjallEngine::open(&engine_path, options)?) as Box<dyn Engine>)
    };
    let (store, report) = ChunkStore::open(disk, engine, env, identity, config)
        .with_context(|| format!("cannot open the target at {}; leave it out to start without it", path.display()))?;
    tracing::info!(target_id = %identity.target, ?report, "target opened");
    Ok(Arc::new(store))
}

fn open_lane(disk: &Arc<dyn Disk>, directories: &Directories, env: &Env, cluster: ClusterId) -> Result<Lane> {
    let path = directories.meta.join("engine");
    let engine = FjallEngine::open(&path, FjallOptions { cache_bytes: 64 << 20, ..FjallOptions::default() })
        .with_context(|| format!("cannot open the metadata in {}", path.display()))?;
    Lane::open(disk.clone(), "lane", Box::new(engine), env, cluster, LaneConfig::default())
        .with_context(|| format!("cannot open the metadata log in {}", directories.meta.display()))
}

fn start_background(storage: &Arc<StorageService>, is_stopping: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
    let (storage, is_stopping) = (storage.clone(), is_stopping.clone());
    std::thread::Builder::new()
        .name("ashlar-targets".into())
        .spawn(move || {
            while !is_stopping.load(Relaxed) {
                std::thread::sleep(TICK);
                for (id, store) in storage.targets() {
                    if let Err(error) = store.background_tick(TICK_SLOTS) {
                        tracing::error!(target_id = %id, %error, "background work of a target failed");
                    }
                }
            }
        })
        .context("cannot start a thread")
}
