//! Where a copy of a metadata server is kept: a directory of its own in that of `ashlar meta`.
//!
//! | file or directory | what |
//! |---|---|
//! | `copy` | its membership, see `ashlar_meta::replica` |
//! | `current` | which of the following it is; 0 without: as decimal digits |
//! | `lane-N` | engine and log, as in any metadata directory |
//! | `identity` | name, certificate and key of the metadata server, as a node has its own |
//! | `founding` | metadata from before there were copies is being moved here |
//! | `damaged` | what was found to be damaged, while others had it: what there is is set aside once they go on without it |
//! | `set-aside` | the last that was |

use crate::node::state::{ENGINE_DIR, LANE_DIR, make_private_directory, open_lane};
use anyhow::{Context, Result, bail};
use ashlar_env::os::OsDisk;
use ashlar_env::{Continuity, Disk, Env, OpenMode, replace_file};
use ashlar_kv::{Engine, FjallEngine, KvError, Lane, LaneConfig};
use ashlar_meta::replica::CopyStore;
use ashlar_types::{ClusterId, NodeId};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Directory of all copies in that of `ashlar meta`.
const COPIES_DIR: &str = "copies";
const COPY_FILE: &str = "copy";
const CURRENT_FILE: &str = "current";
const FOUNDING_FILE: &str = "founding";
const IDENTITY_DIR: &str = "identity";
const DAMAGED_FILE: &str = "damaged";
const ASIDE_DIR: &str = "set-aside";
/// LIMIT: bytes of the files above that are read.
const BYTES_MAX: usize = 64 << 10;

/// See the module.
pub struct DirectoryStore {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    env: Env,
    cluster: ClusterId,
    /// The number of the lane that is begun.
    begun: Mutex<u64>,
}

fn io(what: String) -> impl FnOnce(std::io::Error) -> KvError {
    move |source| KvError::Io { what, source }
}

/// Servers of which `meta`, the directory of `ashlar meta`, has copies.
///
/// # Errors
/// When that cannot be read.
pub fn kept_in(meta: &Path) -> Result<Vec<NodeId>> {
    let path = meta.join(COPIES_DIR);
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", path.display())),
    };
    let mut kept = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", path.display()))?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|_| entry.path().join(COPY_FILE).exists()) {
            kept.push(NodeId(number));
        }
    }
    kept.sort();
    Ok(kept)
}

/// Where the log and engine of the copy of `server` are that is in `meta`, the directory of `ashlar meta`.
///
/// # Errors
/// When that cannot be read, or it is being moved there.
pub fn lane_of(meta: &Path, server: NodeId) -> Result<PathBuf> {
    let path = meta.join(COPIES_DIR).join(server.0.to_string());
    if path.join(FOUNDING_FILE).exists() {
        bail!("{} is not complete: start and stop `ashlar meta` there first", path.display());
    }
    let text = match std::fs::read_to_string(path.join(CURRENT_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "0".to_owned(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let number: u64 = text.trim().parse().with_context(|| format!("{} is damaged", path.display()))?;
    Ok(path.join(lane_dir(number)))
}

/// Whether `meta`, the directory of `ashlar meta`, has copies, and no metadata but those.
pub fn has_only_copies(meta: &Path) -> bool {
    !meta.join(ENGINE_DIR).exists() && meta.join(COPIES_DIR).exists()
}

impl DirectoryStore {
    /// The copy of `server` in `meta`, the directory of `ashlar meta`; made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(meta: &Path, server: NodeId, env: &Env, cluster: ClusterId) -> Result<DirectoryStore> {
        let path = meta.join(COPIES_DIR).join(server.0.to_string());
        make_private_directory(&path)?;
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&path));
        Ok(DirectoryStore { path, disk, env: env.clone(), cluster, begun: Mutex::default() })
    }

    /// Where who the metadata server is is kept.
    pub fn identity_path(&self) -> PathBuf {
        self.path.join(IDENTITY_DIR)
    }

    /// Whether it has been a copy.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn is_used(&self) -> Result<bool> {
        Ok(self.kept()?.is_some())
    }

    /// Removes it, if it is there.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn remove(&self) -> Result<()> {
        self.make_no_copy()?;
        for path in self.lanes()? {
            std::fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        self.remove_file(DAMAGED_FILE)
    }

    /// Notes that it is damaged, as `what` says.
    ///
    /// # Errors
    /// When that cannot be stored.
    pub fn note_damage(&self, what: &str) -> Result<(), KvError> {
        self.write(DAMAGED_FILE, what.as_bytes())
    }

    /// Whether it was noted to be damaged.
    pub fn is_damaged(&self) -> bool {
        self.path.join(DAMAGED_FILE).exists()
    }

    /// Sets aside what there is, in place of what was before: from now on it is that of a machine that has lost what it had. Tells where that is.
    ///
    /// # Errors
    /// When it cannot be moved; then the same is done again later.
    pub fn set_aside(&self) -> Result<PathBuf> {
        let aside = self.path.join(ASIDE_DIR);
        // ORDER: what makes it a copy first, and the note last: until then this is done again. What is there is moved last of all, behind what attempts have left, so that nothing of it is removed then.
        self.make_no_copy()?;
        let mut lanes = self.lanes()?;
        let number = |path: &PathBuf| number_of(path.file_name()?.to_str()?);
        lanes.sort_by_key(|path| std::cmp::Reverse(number(path)));
        if !lanes.is_empty() && aside.exists() {
            std::fs::remove_dir_all(&aside).with_context(|| format!("cannot remove {}", aside.display()))?;
        }
        make_private_directory(&aside)?;
        for path in lanes {
            let name = path.file_name().context("a lane without a name")?;
            std::fs::rename(&path, aside.join(name))
                .with_context(|| format!("cannot move {} to {}", path.display(), aside.display()))?;
        }
        self.disk.sync_dir("").with_context(|| format!("cannot sync {}", self.path.display()))?;
        self.remove_file(DAMAGED_FILE)?;
        Ok(aside)
    }

    /// How long ago something was set aside, if anything was.
    pub fn since_set_aside(&self) -> Option<Duration> {
        let changed = std::fs::metadata(self.path.join(ASIDE_DIR)).and_then(|aside| aside.modified());
        // A clock that was set back makes it just now.
        changed.ok().map(|changed| changed.elapsed().unwrap_or_default())
    }

    /// From now on, durably, the directory is that of no copy.
    fn make_no_copy(&self) -> Result<()> {
        self.remove_file(COPY_FILE)?;
        self.remove_file(CURRENT_FILE)?;
        self.disk.sync_dir("").with_context(|| format!("cannot sync {}", self.path.display()))
    }

    fn remove_file(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        if !path.exists() {
            return Ok(());
        }
        self.disk.remove(name).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// All directories of logs and engines.
    fn lanes(&self) -> Result<Vec<PathBuf>> {
        let list = || format!("cannot list {}", self.path.display());
        let mut lanes = Vec::new();
        for entry in std::fs::read_dir(&self.path).with_context(list)? {
            let path = entry.with_context(list)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with("lane-")) {
                lanes.push(path);
            }
        }
        Ok(lanes)
    }

    /// Begins to take over the metadata in `meta`, which has no copies: `prepare` notes in this store what it becomes.
    ///
    /// # Errors
    /// When it cannot be moved. What was begun is ended by [`DirectoryStore::end_founding`].
    pub fn found(&self, meta: &Path, prepare: impl FnOnce(&DirectoryStore) -> Result<()>) -> Result<()> {
        let next = self.newest()? + 1;
        // ORDER: what is to be done is noted first, and done again as far as it was not: each step may be the last one before a crash.
        self.write(FOUNDING_FILE, next.to_string().as_bytes())?;
        prepare(self)?;
        self.end_founding(meta)
    }

    /// Ends what [`DirectoryStore::found`] has begun, if anything.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn end_founding(&self, meta: &Path) -> Result<()> {
        let Some(number) = self.number_in(FOUNDING_FILE)? else { return Ok(()) };
        let sync = |path: &Path| {
            std::fs::File::open(path)
                .and_then(|directory| directory.sync_all())
                .with_context(|| format!("cannot sync {}", path.display()))
        };
        let place = self.path.join(lane_dir(number));
        make_private_directory(&place)?;
        // ORDER: the places are there before anything is in them.
        for path in [meta.to_owned(), meta.join(COPIES_DIR), self.path.clone()] {
            sync(&path)?;
        }
        for name in [ENGINE_DIR, LANE_DIR] {
            let (from, to) = (meta.join(name), place.join(name));
            if from.exists() && to.exists() {
                bail!("{} and {} are both there: one of them is a copy", from.display(), to.display());
            }
            if from.exists() {
                std::fs::rename(&from, &to)
                    .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
            }
        }
        // ORDER: where they come to before where they were.
        sync(&place)?;
        sync(meta)?;
        self.write(CURRENT_FILE, number.to_string().as_bytes())?;
        self.disk.remove(FOUNDING_FILE).context("cannot remove the note of a founding")?;
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, KvError> {
        let what = || format!("read {}", self.path.join(name).display());
        let file = match self.disk.open(name, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(what())(error)),
        };
        let mut bytes = vec![0; BYTES_MAX];
        let mut len = 0;
        loop {
            let got = file.read_at(len as u64, &mut bytes[len..]).map_err(io(what()))?;
            if got == 0 {
                break;
            }
            len += got;
        }
        bytes.truncate(len);
        Ok(Some(bytes))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), KvError> {
        replace_file(&*self.disk, name, bytes)
            .map_err(io(format!("write {}", self.path.join(name).display())))
    }

    fn number_in(&self, name: &str) -> Result<Option<u64>, KvError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
        let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
        number.map(Some).ok_or_else(|| KvError::Corrupt {
            what: format!(
                "{} is damaged; remove the copy, and it is made anew",
                self.path.join(name).display()
            ),
        })
    }

    /// The largest number that a lane has here.
    fn newest(&self) -> Result<u64, KvError> {
        let names = self.disk.list("").map_err(io(format!("list {}", self.path.display())))?;
        Ok(names.iter().filter_map(|name| number_of(name)).max().unwrap_or(0))
    }

    fn open_number(&self, number: u64, keeps_log: bool) -> Result<Lane, KvError> {
        let place = self.path.join(lane_dir(number));
        let failed = |error: anyhow::Error| match error.downcast::<KvError>() {
            Ok(error) => error,
            Err(other) => {
                io(format!("open {}", place.display()))(std::io::Error::other(format!("{other:#}")))
            }
        };
        make_private_directory(&place).map_err(failed)?;
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(&place));
        let config = LaneConfig { keeps_log, ..LaneConfig::default() };
        open_lane(&disk, &place, &self.env, self.cluster, config).map_err(failed)
    }
}

fn number_of(lane: &str) -> Option<u64> {
    lane.strip_prefix("lane-")?.parse().ok()
}

fn lane_dir(number: u64) -> String {
    format!("lane-{number}")
}

impl CopyStore for DirectoryStore {
    fn open(&self, keeps_log: bool) -> Result<Lane, KvError> {
        let current = self.number_in(CURRENT_FILE)?.unwrap_or(0);
        // What attempts have left that did not become it.
        let names = self.disk.list("").map_err(io(format!("list {}", self.path.display())))?;
        for name in names.iter().filter(|name| name.starts_with("lane-") && **name != lane_dir(current)) {
            let path = self.path.join(name);
            std::fs::remove_dir_all(&path).map_err(io(format!("remove {}", path.display())))?;
        }
        self.open_number(current, keeps_log)
    }

    fn begin(&self) -> Result<Box<dyn Engine>, KvError> {
        let (newest, current) = (self.newest()?, self.number_in(CURRENT_FILE)?.unwrap_or(0));
        for number in (current + 1)..=newest {
            let path = self.path.join(lane_dir(number));
            if path.exists() {
                std::fs::remove_dir_all(&path).map_err(io(format!("remove {}", path.display())))?;
            }
        }
        let number = newest.max(current) + 1;
        let place = self.path.join(lane_dir(number));
        make_private_directory(&place).map_err(|error| {
            io(format!("make {}", place.display()))(std::io::Error::other(format!("{error:#}")))
        })?;
        let engine = FjallEngine::open(place.join(ENGINE_DIR), crate::node::state::engine_options())?;
        *self.begun.lock() = number;
        Ok(Box::new(engine))
    }

    fn replace(&self, engine: Box<dyn Engine>) -> Result<Lane, KvError> {
        engine.close()?;
        drop(engine);
        let number = *self.begun.lock();
        let before = self.number_in(CURRENT_FILE)?.unwrap_or(0);
        if number <= before {
            return Err(KvError::Invalid {
                what: "a copy that was not begun is to be put in its place".to_owned(),
            });
        }
        let place = self.path.join(lane_dir(number));
        // ORDER: what is in it is durable, and is found there, before it is the current one: that of before is removed.
        let synced = std::fs::File::open(&place).and_then(|directory| directory.sync_all());
        synced.map_err(io(format!("sync {}", place.display())))?;
        self.write(CURRENT_FILE, number.to_string().as_bytes())?;
        let lane = self.open_number(number, true)?;
        let path = self.path.join(lane_dir(before));
        // It is looked for again at the next start.
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!(%error, path = %path.display(), "a copy that was replaced is still there");
        }
        Ok(lane)
    }

    fn identity(&self) -> (ClusterId, u32) {
        (self.cluster, LaneConfig::default().lane)
    }

    fn keep(&self, bytes: &[u8]) -> Result<(), KvError> {
        self.write(COPY_FILE, bytes)
    }

    fn kept(&self) -> Result<Option<Vec<u8>>, KvError> {
        self.read(COPY_FILE)
    }

    fn continuity(&self) -> Option<Continuity> {
        // What is lost is lost of the log and the engine, and noted there. Before there are any, nothing is.
        let place = self.path.join(lane_dir(self.number_in(CURRENT_FILE).ok()?.unwrap_or(0)));
        if place.exists() { OsDisk::new(place).continuity() } else { self.disk.continuity() }
    }
}
