//! The metadata directory of a file system: its lock, the manager's state in it, and the lane.
//!
//! | file or directory | what |
//! |---|---|
//! | `lock` | held by whoever uses the directory; says who |
//! | `secrets`, `cluster-state` | the manager's; a directory with the second one holds a file system |
//! | `engine`, `lane` | the metadata |
//! | `creating` | a first start is under way: without `cluster-state` the rest is thrown away |
//! | `restored` | came from a backup; chunks newer than it are removed before anybody is served |

use super::first_start::FirstStart;
use super::scratch::Scratch;
use super::trouble;
use super::{Directories, MetaLock, require_owner};
use anyhow::{Context, Result, bail};
use ashlar_chunkstore::RESERVE_PART;
use ashlar_coord::local_file::{LocalFile, STATE_FILE};
use ashlar_env::os::ViewDisk;
use ashlar_env::{Disk, Env, OpenMode};
use ashlar_kv::{FjallEngine, FjallOptions, KvError, Lane, LaneConfig, Position, Snapshot};
use ashlar_manager::{Manager, SECRETS_FILE};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_namespace::key;
use ashlar_storage::StorageService;
use ashlar_types::{ClusterId, InodeId, LayoutPolicy};
use parking_lot::RwLock;
use std::path::Path;
use std::sync::Arc;

/// Directory of the lane's engine.
pub const ENGINE_DIR: &str = "engine";
/// Directory of the lane's log.
pub const LANE_DIR: &str = "lane";
/// File that is there while a first start is under way.
pub const CREATING_FILE: &str = "creating";
/// In the metadata directory from a restore to the end of the comparison after it.
pub const RESTORED_FILE: &str = "restored";
const LOG_WAY_OUT: &str = "restore the metadata with `ashlar restore`, or, if a position is named, give up what came later with `ashlar fsck --repair --give-up-log-from POSITION`";
const WAY_OUT: &str =
    "if files of it are damaged or lost, restore the metadata from a backup with `ashlar restore`";

/// The opened metadata directory, without its lane.
pub struct State {
    /// Clocks and randomness.
    pub env: Env,
    /// Where everything is.
    pub directories: Directories,
    /// The metadata directory.
    pub disk: Arc<dyn Disk>,
    /// Identity and map.
    pub manager: Manager,
    /// Where whoever only looks writes what has to be written.
    pub scratch: Option<Scratch>,
    /// What is taken away again if nobody gets to use it.
    // ORDER: before the lock, under which that is done.
    first_start: Option<FirstStart>,
    locks: Vec<MetaLock>,
}

impl State {
    /// Opens the state of a file system that exists. `holder` is what others are told while it is open.
    ///
    /// # Errors
    /// When somebody else has it open, or a file of it is damaged; the text names the file and the way out.
    pub fn open(mut directories: Directories, holder: &str) -> Result<State> {
        require_owner(&directories.meta)?;
        let (env, disk) = (Env::os(), directories.meta_disk());
        let lock = MetaLock::take(&disk, &directories.meta, holder)?;
        directories.look_again()?;
        let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), "")))
            .with_context(|| format!("cannot open the file system at {}", directories.meta.display()))?;
        // A first start that ended between its last two steps.
        remove_if_there(&disk, &directories.meta, CREATING_FILE)?;
        Ok(State { env, directories, disk, manager, scratch: None, first_start: None, locks: vec![lock] })
    }

    /// As [`State::open`], for whoever only looks: nothing changes in the directories, which may be on a disk that is full or
    /// read-only. What the logs hold, and what recovery puts right, is seen all the same: it is kept in memory and in a temporary
    /// directory.
    ///
    /// # Errors
    /// As [`State::open`], and when there is no temporary directory.
    pub fn look_at(mut directories: Directories, holder: &str) -> Result<State> {
        let disk: Arc<dyn Disk> = Arc::new(ViewDisk::new(&directories.meta));
        let lock = MetaLock::take_to_look(&directories.meta_disk(), &directories.meta, holder)?;
        directories.look_again()?;
        let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), "")))
            .with_context(|| format!("cannot open the file system at {}", directories.meta.display()))?;
        let scratch = Some(Scratch::new()?);
        Ok(State {
            env: Env::os(),
            directories,
            disk,
            manager,
            scratch,
            first_start: None,
            locks: vec![lock],
        })
    }

    /// Of a file system of many servers, all of which are stopped: identity and map in `disk`, the directory of a manager. `locks` are those of the metadata of
    /// all servers; `is_look`: nothing is to change.
    ///
    /// # Errors
    /// When there is no temporary directory.
    pub fn of_servers(
        env: Env,
        directories: Directories,
        disk: Arc<dyn Disk>,
        manager: Manager,
        (locks, is_look): (Vec<MetaLock>, bool),
    ) -> Result<State> {
        let scratch = is_look.then(Scratch::new).transpose()?;
        Ok(State { env, directories, disk, manager, scratch, first_start: None, locks })
    }

    /// As [`State::open`], or makes a new file system where there is none.
    ///
    /// # Errors
    /// As [`State::open`], and when the directory holds something else.
    pub fn open_or_create(mut directories: Directories, holder: &str) -> Result<State> {
        if directories.exists {
            return State::open(directories, holder);
        }
        let (env, disk) = (Env::os(), directories.meta_disk());
        let begun = FirstStart::begin(&directories);
        make_private_directory(&directories.meta)?;
        let lock = MetaLock::take(&disk, &directories.meta, holder)?;
        // ORDER: declared after the lock, so that what a failure leaves is taken away under it.
        let mut first_start = begun;
        directories.look_again()?;
        if exists(&disk, STATE_FILE)? || directories.targets.iter().any(|(_, header)| header.is_some()) {
            bail!(
                "somebody else is making a file system at {} just now; try again",
                directories.meta.display()
            );
        }
        first_start.begin_making();
        let manager = create(&disk, &directories.meta, &env)
            .with_context(|| format!("cannot make a file system at {}", directories.meta.display()))?;
        first_start.note_cluster(manager.identity().cluster);
        // Nobody who expects an old file system is to take this one for it.
        eprintln!(
            "ashlar: made a new file system, {}, with its metadata at {}",
            manager.identity().cluster,
            directories.meta.display()
        );
        Ok(State {
            env,
            directories,
            disk,
            manager,
            scratch: None,
            first_start: Some(first_start),
            locks: vec![lock],
        })
    }

    /// Somebody uses the file system: from now on it stays, whatever becomes of this start.
    pub fn keep(&self) {
        if let Some(first_start) = &self.first_start {
            first_start.keep();
        }
    }

    /// Tells whoever wants this file system next that it will be free soon.
    pub fn note_ending(&self) {
        self.locks.iter().for_each(MetaLock::note_ending);
    }

    /// Who the file system is.
    pub fn cluster(&self) -> ClusterId {
        self.manager.identity().cluster
    }

    /// Opens the metadata. `give_up_from` is a position of the log at which damage is taken for its end.
    ///
    /// # Errors
    /// When log or engine are damaged or of another file system, and when there is no root directory in it.
    pub fn open_lane(&self, give_up_from: Option<Position>) -> Result<Lane> {
        let lane = self.open_any_lane(give_up_from)?;
        if has_root(&lane)? {
            return Ok(lane);
        }
        lane.close().context("cannot close the metadata")?;
        bail!(
            "the metadata in {} has no root directory, which every file system has from its first moment on: files of {}/{ENGINE_DIR} \
             and {LANE_DIR} are lost; restore them with `ashlar restore`",
            self.directories.meta.display(),
            self.directories.meta.display()
        )
    }

    fn open_any_lane(&self, give_up_from: Option<Position>) -> Result<Lane> {
        self.open_lane_in(&self.disk, &self.directories.meta, give_up_from)
    }

    /// Opens the metadata in `disk`, the directory `meta`, whoever's it is.
    ///
    /// # Errors
    /// When log or engine are damaged or of another file system.
    pub fn open_lane_in(
        &self,
        disk: &Arc<dyn Disk>,
        meta: &Path,
        give_up_from: Option<Position>,
    ) -> Result<Lane> {
        let cluster = self.cluster();
        let Some(scratch) = &self.scratch else {
            let is_beside_data =
                self.directories.targets.iter().any(|(path, _)| self.directories.are_on_one_disk(path));
            let merge_part = if is_beside_data { RESERVE_PART } else { LaneConfig::default().merge_part };
            let config = LaneConfig { give_up_from, merge_part, ..LaneConfig::default() };
            return open_lane(disk, meta, &self.env, cluster, config);
        };
        let path = meta.join(ENGINE_DIR);
        let engine = FjallEngine::open_view(&path, scratch.place(), engine_options()).map_err(|error| {
            let way_out = scratch.way_out(&error).unwrap_or_else(|| WAY_OUT.to_owned());
            anyhow::Error::new(error)
                .context(format!("cannot look at the metadata in {}; {way_out}", path.display()))
        })?;
        let config = LaneConfig { give_up_from, ..LaneConfig::default() };
        let lane = Lane::open(disk.clone(), LANE_DIR, Box::new(engine), &self.env, cluster, config);
        lane.map_err(|error| {
            let way_out =
                scratch.way_out(&error).unwrap_or_else(|| format!("if it is damaged, {LOG_WAY_OUT}"));
            let path = meta.join(LANE_DIR);
            anyhow::Error::new(error)
                .context(format!("cannot look at the metadata log in {}; {way_out}", path.display()))
        })
    }

    /// Whether this metadata came from a backup and has not been compared with the targets yet.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn is_restored(&self) -> Result<bool> {
        exists(&self.disk, RESTORED_FILE).with_context(|| {
            format!("cannot look for {RESTORED_FILE} in {}", self.directories.meta.display())
        })
    }

    /// Notes that the comparison after a restore is done.
    ///
    /// # Errors
    /// When the note cannot be removed.
    pub fn forget_restored(&self) -> Result<()> {
        remove_if_there(&self.disk, &self.directories.meta, RESTORED_FILE)
    }
}

/// Notes in `disk`, the metadata directory `path`, that what is in it comes from a backup.
///
/// # Errors
/// When the note cannot be stored.
pub fn note_restored(disk: &Arc<dyn Disk>, path: &Path) -> Result<()> {
    note(disk, path, RESTORED_FILE)
}

/// Makes a directory, and its parents, that only its owner can look into.
///
/// # Errors
/// As mkdir(2); the text names it.
pub fn make_private_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        let way_out = trouble::way_out(&error).map(|way_out| format!("; {way_out}")).unwrap_or_default();
        anyhow::Error::new(error).context(format!("cannot make directory {}{way_out}", path.display()))
    })
}

/// Opens the lane of a metadata directory.
///
/// # Errors
/// As [`Lane::open`]; the text names the directory.
pub fn open_lane(
    disk: &Arc<dyn Disk>,
    meta: &Path,
    env: &Env,
    cluster: ClusterId,
    config: LaneConfig,
) -> Result<Lane> {
    if crate::cluster::has_only_copies(meta) {
        bail!(
            "{} has copies of the metadata of servers, and no other metadata: `ashlar meta` serves them",
            meta.display()
        );
    }
    // ORDER: before anything is read that a failed sync may have left in memory alone.
    if disk.end_loss().with_context(|| format!("cannot read {} anew", meta.display()))? {
        tracing::warn!(path = %meta.display(), "the metadata log has stopped after an error of its disk: what was not durable then may be lost");
    }
    let path = meta.join(ENGINE_DIR);
    let engine = FjallEngine::open(&path, engine_options()).map_err(|error| {
        let way_out = engine_way_out(&path, &error);
        anyhow::Error::new(error)
            .context(format!("cannot open the metadata in {}; {way_out}", path.display()))
    })?;
    Lane::open(disk.clone(), LANE_DIR, Box::new(engine), env, cluster, config).map_err(|error| {
        let way_out = match trouble::way_out(&error) {
            Some(way_out) => way_out.to_owned(),
            None => format!("if it is damaged, {LOG_WAY_OUT}"),
        };
        let path = meta.join(LANE_DIR);
        anyhow::Error::new(error)
            .context(format!("cannot open the metadata log in {}; {way_out}", path.display()))
    })
}

pub fn engine_options() -> FjallOptions {
    FjallOptions { cache_bytes: 64 << 20, ..FjallOptions::default() }
}

/// What to do about an engine in `path` that does not open.
fn engine_way_out(path: &Path, error: &KvError) -> &'static str {
    if let Some(way_out) = trouble::way_out(error) {
        return way_out;
    }
    match FjallEngine::missing_journal(path) {
        Ok(Some(_)) => "`ashlar fsck --repair` puts it right",
        _ => WAY_OUT,
    }
}

fn has_root(lane: &Lane) -> Result<bool> {
    Ok(lane.read().get(&key::inode(InodeId::ROOT)).context("cannot read the root directory")?.is_some())
}

fn create(disk: &Arc<dyn Disk>, meta: &Path, env: &Env) -> Result<Manager> {
    if !exists(disk, CREATING_FILE)? {
        let found = [SECRETS_FILE, ENGINE_DIR, LANE_DIR].into_iter().find(|name| meta.join(name).exists());
        if let Some(found) = found {
            bail!(
                "there is {found}, but no {STATE_FILE}: if this was a file system, restore it with `ashlar restore`; if its first \
                 start or a restore was cut short, remove the directory and try again"
            );
        }
    }
    // ORDER: the note before anything else, `cluster-state` last but for the removal of the note: whatever is there without it is
    // a first start that was cut short, and what is there with it is whole.
    note(disk, meta, CREATING_FILE)?;
    for name in [ENGINE_DIR, LANE_DIR] {
        match std::fs::remove_dir_all(meta.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", meta.join(name).display()));
            }
            _ => {}
        }
    }
    let draft = Manager::draft(disk, "", env)?;
    let lane = open_lane(disk, meta, env, draft.identity.cluster, LaneConfig::default())?;
    let config = MetaConfig {
        has_lost: false,
        keeps_sessions: false,
        lane: Arc::new(lane),
        env: env.clone(),
        name_hash_key: draft.identity.name_hash_key,
        map: Arc::new(RwLock::new(Arc::new(draft.map.clone()))),
        storage: Arc::new(StorageService::new()),
        peers: None,
    };
    let (service, _) =
        MetaService::start(config, root_settings()).context("cannot make the root directory")?;
    service.stop().context("cannot store the root directory")?;
    let manager = Manager::create(draft, Box::new(LocalFile::new(disk.clone(), "")))?;
    remove_if_there(disk, meta, CREATING_FILE)?;
    Ok(manager)
}

/// The root of a new file system: of the user who starts it, like the directory a mount point is.
pub fn root_settings() -> RootSettings {
    // SAFETY: geteuid and getegid have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    RootSettings { mode: 0o755, uid, gid, policy: LayoutPolicy::default() }
}

fn exists(disk: &Arc<dyn Disk>, name: &str) -> std::io::Result<bool> {
    match disk.open(name, OpenMode::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn note(disk: &Arc<dyn Disk>, meta: &Path, name: &str) -> Result<()> {
    let store = || {
        disk.open(name, OpenMode::CreateOrOpen)?.sync_data()?;
        disk.sync_dir("")
    };
    store().with_context(|| format!("cannot make {}", meta.join(name).display()))
}

fn remove_if_there(disk: &Arc<dyn Disk>, meta: &Path, name: &str) -> Result<()> {
    let remove = || match disk.remove(name) {
        Ok(()) => disk.sync_dir(""),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    remove().with_context(|| format!("cannot remove {}", meta.join(name).display()))
}
