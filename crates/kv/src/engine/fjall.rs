//! The engine on disk: fjall, an LSM-tree (`docs/adr/0002-embedded-engine.md` says why).
//!
//! A checkpoint is one ingestion: new table files are written, synced, and made part of the tree by one atomic, synced
//! change of its manifest. fjall's journal and memtables are not used, so nothing is written twice. Every block is
//! checked when it is read; values carry a checksum of ours besides ([`super::sealed`]).
//!
//! What is missing or does not belong together is found before fjall sees it ([`files`]): it would remove what is left.
//!
//! fjall may panic on files that its checksums do not cover and that do not make sense. No panic leaves this module: it
//! becomes [`KvError::Corrupt`].

mod files;
mod view;

use super::sealed::{self, SEAL_BYTES};
use super::{Changes, Engine, EngineReport, LastingSnapshot};
use crate::{KvError, Snapshot};
use bytes::Bytes;
use files::Found;
use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::config::{BloomConstructionPolicy, RestartIntervalPolicy};
use fjall::{
    AbstractTree, AnyTree, CompressionType, Database, Iter, Keyspace, KeyspaceCreateOptions,
    KvSeparationOptions, PersistMode, Readable, UserValue,
};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the note is: one byte, so that it is below every key (keys begin with two bytes of shard) and equal to none.
const NOTE_KEY: [u8; 1] = [0];
/// The lowest possible key.
const KEY_MIN: [u8; 2] = [0, 0];
// LIMIT: tables of unmerged checkpoints beyond which the next checkpoint waits for merging; a read may have to look into
// each of them.
const UNMERGED_TABLES_MAX: usize = 16;
// LIMIT: how long it waits. Reads get slower beyond it; nothing fails.
const MERGE_WAIT_MAX: Duration = Duration::from_secs(20);
/// Values up to here are copied out of the block that they are in, which need not stay in memory for them then.
const COPIED_BYTES_MAX: usize = 512;
const MERGE_POLL: Duration = Duration::from_millis(2);
// LIMIT: of what merging is thought to take at a time, bytes: all of the first two levels, or a table of a deeper one with the ten below it.
const MERGE_BYTES_MAX: u64 = 1 << 30;
/// Of values out of line at most this part is written anew in a merge: a fifth of the files that are stale to a third, and what else is stale when it ends.
const VALUES_PART: u64 = 4;
/// Deleted pairs are merged away when they are this part of all, and so many.
const DELETED_PART: u64 = 16;
const DELETED_MIN: u64 = 256;
/// Snapshots given back after which fjall looks which is the oldest one left.
const SNAPSHOTS_PER_LOOK: u64 = 10_000;

/// Settings of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FjallOptions {
    /// LIMIT: memory for cached blocks, bytes.
    pub cache_bytes: u64,
    /// Threads that merge tables.
    pub worker_threads: usize,
    /// LIMIT: table files kept open.
    pub open_files_max: usize,
    /// Values of this length and more are stored out of line, so that merging does not copy them; `None` stores all inline.
    /// Fixed when the engine is made.
    pub separate_values_from: Option<u32>,
}

impl Default for FjallOptions {
    fn default() -> FjallOptions {
        FjallOptions {
            cache_bytes: 64 << 20,
            worker_threads: 1,
            open_files_max: 256,
            separate_values_from: Some(1024),
        }
    }
}

struct Open {
    /// Behind its keyspace in drop order.
    keyspace: Keyspace,
    database: Database,
}

/// An engine in a directory of the local file system.
pub struct FjallEngine {
    path: PathBuf,
    open: RwLock<Option<Open>>,
    /// Whether tables are merged in the background.
    is_merging: bool,
    /// What the last merge of everything has left.
    left: Mutex<Left>,
}

/// What a merge of everything could not give back.
#[derive(Clone, Copy, Default)]
struct Left {
    /// Deletions: somebody looked at what was before them.
    deletions: u64,
    /// They can go when nobody looks at what was before this number of fjall's any more; `None` where nobody did.
    until: Option<u64>,
    /// It has found values out of line that nobody needs, which the next one gives back.
    are_values: bool,
}

impl FjallEngine {
    /// Opens the engine in `path`, or makes it; the parent directory must exist.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] when files of it are missing or damaged; they are left as they are. [`KvError::Io`].
    pub fn open(path: impl AsRef<Path>, options: FjallOptions) -> Result<FjallEngine, KvError> {
        let path = path.as_ref().to_owned();
        let found = files::look(&path)?;
        if found == Found::NoJournal {
            return Err(files::journal_missing(&path));
        }
        files::prepare(&path, found)?;
        FjallEngine::open_checked(path.clone(), path, options, true)
    }

    /// Opens what the engine in `path` holds and leaves it as it is: all that is written goes into `view`, a directory that must not
    /// be there yet, of which the caller disposes. Bytes that are written twice are those of the changes; tables are not merged.
    ///
    /// The caller makes sure that nobody has the engine open.
    ///
    /// # Errors
    /// As [`FjallEngine::open`], but a missing journal does no harm here.
    pub fn open_view(
        path: impl AsRef<Path>,
        view: impl AsRef<Path>,
        options: FjallOptions,
    ) -> Result<FjallEngine, KvError> {
        let (path, view) = (path.as_ref().to_owned(), view.as_ref().to_owned());
        let found = files::look(&path)?;
        view::make(&path, &view, found)?;
        files::prepare(&view, found)?;
        FjallEngine::open_checked(path, view, options, false)
    }

    /// Makes the engine's journal anew if nothing but that is missing, and tells its path then. The journal never holds anything.
    ///
    /// The caller makes sure that nobody has the engine open.
    ///
    /// # Errors
    /// As [`FjallEngine::open`].
    pub fn put_back_journal(path: impl AsRef<Path>) -> Result<Option<PathBuf>, KvError> {
        files::put_back_journal(path.as_ref())
    }

    /// The path of the engine's journal if nothing but that is missing.
    ///
    /// # Errors
    /// As [`FjallEngine::open`].
    pub fn missing_journal(path: impl AsRef<Path>) -> Result<Option<PathBuf>, KvError> {
        files::missing_journal(path.as_ref())
    }

    /// Opens the database in `place`; `path` is what it is called.
    fn open_checked(
        path: PathBuf,
        place: PathBuf,
        options: FjallOptions,
        is_merging: bool,
    ) -> Result<FjallEngine, KvError> {
        let open = guard(&path, "open", || {
            let threads = if is_merging { options.worker_threads.max(1) } else { 0 };
            let database = Database::builder(&place)
                .cache_size(options.cache_bytes)
                .worker_threads_unchecked(threads)
                .max_cached_files(Some(options.open_files_max))
                .open()?;
            let keyspace = database.keyspace("lane", || keyspace_options(&options))?;
            Ok(Open { keyspace, database })
        })?;
        Ok(FjallEngine { path, open: RwLock::new(Some(open)), is_merging, left: Mutex::default() })
    }

    fn with_open<T>(&self, what: &str, run: impl FnOnce(&Open) -> fjall::Result<T>) -> Result<T, KvError> {
        let open = self.open.read();
        let open =
            open.as_ref().ok_or_else(|| KvError::Stopped { what: "the engine is closed".to_owned() })?;
        guard(&self.path, what, || run(open))
    }

    fn get_sealed(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let stored = self.with_open("read", |open| open.keyspace.get(key))?;
        stored.map(|stored| opened(key, stored, &self.path)).transpose()
    }
}

/// The value of `key` that is stored as `stored` in the engine `path`.
fn opened(key: &[u8], stored: UserValue, path: &Path) -> Result<Bytes, KvError> {
    let value = sealed::open(key, &stored, &path.display().to_string())?;
    if value.len() < COPIED_BYTES_MAX {
        return Ok(Bytes::copy_from_slice(value));
    }
    Ok(Bytes::from_owner(stored).slice(SEAL_BYTES..))
}

/// Visits `pairs` of the engine `path`.
fn visit_all(path: &Path, mut pairs: Iter, visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
    let place = path.display().to_string();
    // The visitor runs outside the guard: its panics are its caller's.
    while let Some((key, stored)) =
        guard(path, "scan", || pairs.next().map(|pair| pair.into_inner()).transpose())?
    {
        if visit(&key, sealed::open(&key, &stored, &place)?).is_break() {
            break;
        }
    }
    Ok(())
}

/// What the engine held at one moment.
struct FjallSnapshot {
    path: PathBuf,
    keyspace: Keyspace,
    at: fjall::Snapshot,
}

impl Snapshot for FjallSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let stored = guard(&self.path, "read", || self.at.get(&self.keyspace, key))?;
        stored.map(|stored| opened(key, stored, &self.path)).transpose()
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        let from = from.max(&KEY_MIN);
        if from >= to {
            return Ok(());
        }
        let pairs = guard(&self.path, "scan", || Ok(self.at.range(&self.keyspace, from..to)))?;
        visit_all(&self.path, pairs, visit)
    }
}

fn keyspace_options(options: &FjallOptions) -> KeyspaceCreateOptions {
    let bloom = |policy| FilterPolicyEntry::Bloom(policy);
    let separation = options.separate_values_from.map(|threshold| {
        KvSeparationOptions::default().separation_threshold(threshold).compression(CompressionType::None)
    });
    KeyspaceCreateOptions::default()
        // Metadata is dense already, and a lookup decompresses a whole block: measured in the ADR.
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .data_block_size_policy(BlockSizePolicy::all(4096))
        .data_block_restart_interval_policy(RestartIntervalPolicy::all(8))
        // Lookups of names that do not exist are as common as others: every create makes one. So every level has filters.
        .filter_policy(FilterPolicy::all(bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
        .with_kv_separation(separation)
}

/// Runs a call into fjall and translates its errors and panics.
fn guard<T>(path: &Path, what: &str, run: impl FnOnce() -> fjall::Result<T>) -> Result<T, KvError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(translate(path, what, error)),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let what = format!("engine {} panicked in {what}: {message}; {WAY_OUT}", path.display());
            Err(KvError::Corrupt { what })
        }
    }
}

/// Holds for whatever the engine is of; who opens it says more.
const WAY_OUT: &str = "restore it from a copy, or see what `ashlar fsck` can make anew";

fn translate(path: &Path, what: &str, error: fjall::Error) -> KvError {
    let context = format!("{what} engine {}", path.display());
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            // A table that ends too early is damaged, not unreadable.
            if source.kind() == io::ErrorKind::UnexpectedEof {
                return KvError::Corrupt { what: format!("{context}: {source}; {WAY_OUT}") };
            }
            KvError::Io { what: context, source }
        }
        fjall::Error::Locked => KvError::Io { what: context, source: io::ErrorKind::WouldBlock.into() },
        fjall::Error::Poisoned => {
            let source = io::Error::other("merging tables failed earlier; the log has the first error");
            KvError::Io { what: context, source }
        }
        error => KvError::Corrupt { what: format!("{context}: {error}; {WAY_OUT}") },
    }
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.get_sealed(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError> {
        let from = from.max(&KEY_MIN);
        if from >= to {
            return Ok(());
        }
        let open = self.open.read();
        let open =
            open.as_ref().ok_or_else(|| KvError::Stopped { what: "the engine is closed".to_owned() })?;
        let pairs = guard(&self.path, "scan", || Ok(open.keyspace.range(from..to)))?;
        visit_all(&self.path, pairs, visit)
    }

    fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        let (keyspace, at) =
            self.with_open("look at", |open| Ok((open.keyspace.clone(), open.database.snapshot())))?;
        Ok(Box::new(FjallSnapshot { path: self.path.clone(), keyspace, at }))
    }

    fn apply(&self, changes: &mut Changes<'_>, note: &[u8]) -> Result<(), KvError> {
        let mut sealed = Vec::new();
        let mut seal = |key: &[u8], value: &[u8]| {
            sealed.clear();
            sealed.extend_from_slice(&sealed::seal(key, value));
            sealed.extend_from_slice(value);
            UserValue::from(sealed.as_slice())
        };
        self.with_open("checkpoint into", |open| {
            // Says whether a merge has failed; an ingestion does not.
            open.database.persist(PersistMode::Buffer)?;
            if self.is_merging {
                wait_for_merging(&open.keyspace);
            }
            let mut ingestion = open.keyspace.start_ingestion()?;
            ingestion.write(NOTE_KEY.as_slice(), seal(&NOTE_KEY, note))?;
            for (key, value) in changes {
                match value {
                    Some(value) => ingestion.write(key.as_slice(), seal(key, value))?,
                    None => ingestion.write_tombstone(key.as_slice())?,
                }
            }
            // ORDER: fjall syncs the tables and their directory, then the new manifest, then the file that names it; the last
            // rename is the moment at which the checkpoint counts.
            ingestion.finish()?;
            // The checkpoint counts already; what stays takes space until the next one.
            if let Err(error) = drop_old_versions(open) {
                tracing::warn!(%error, path = %self.path.display(), "files that nobody reads any more could not be removed");
            }
            Ok(())
        })?;
        // A second look, for the price of one read: versions are numbered by the engine, and with a number too low the new state
        // would be hidden by the old one. Then the note is the old one too.
        if self.note()?.as_deref() == Some(note) {
            return Ok(());
        }
        let what = format!("engine {} does not show the checkpoint it took; {WAY_OUT}", self.path.display());
        Err(KvError::Corrupt { what })
    }

    fn note(&self) -> Result<Option<Bytes>, KvError> {
        self.get_sealed(&NOTE_KEY)
    }

    fn verify(&self) -> Result<EngineReport, KvError> {
        let mut report = EngineReport::default();
        self.note()?;
        self.scan(&KEY_MIN, &[0xFF; crate::KEY_BYTES_MAX + 1], &mut |key, value| {
            report.pairs += 1;
            report.bytes += (key.len() + value.len()) as u64;
            ControlFlow::Continue(())
        })?;
        Ok(report)
    }

    fn bytes_used(&self) -> u64 {
        self.open.read().as_ref().map_or(0, |open| open.keyspace.disk_space())
    }

    fn merge_bytes(&self) -> u64 {
        self.open.read().as_ref().map_or(0, |open| sizes(&open.keyspace).for_a_merge().min(MERGE_BYTES_MAX))
    }

    fn give_back(&self, bytes_free: u64) -> Result<bool, KvError> {
        if !self.is_merging {
            return Ok(false);
        }
        let is_done = self.with_open("merge the tables of", |open| {
            // What earlier merges have replaced may be the room that this one wants.
            let are_dropped = look_who_reads_and_drop(open)?;
            let (tree, mut left) = (&open.keyspace.tree, self.left.lock());
            let looked_at_from = looked_at_from(open);
            if left.until.is_some_and(|until| looked_at_from >= until) {
                (left.deletions, left.until) = (0, None);
            }
            let wanted = (tree.approximate_len() as u64 / DELETED_PART).max(DELETED_MIN);
            let is_wanted =
                left.are_values || tree.tombstone_count() >= left.deletions.saturating_add(wanted);
            if !is_wanted || sizes(&open.keyspace).for_a_merge() > bytes_free {
                return Ok(are_dropped);
            }
            // The number that the look has taken: above those of all deletions.
            let now = open.database.seqno().saturating_sub(1);
            open.keyspace.major_compact()?;
            look_who_reads_and_drop(open)?;
            // Which values out of line nobody needs is known when it ends, and what is known when a merge begins is what it gives back.
            let is_much = tree.stale_blob_bytes() > sizes(&open.keyspace).values / VALUES_PART;
            *left = Left {
                deletions: tree.tombstone_count(),
                until: (looked_at_from < now).then_some(now),
                are_values: is_much && !left.are_values,
            };
            Ok(true)
        });
        match is_done {
            Err(KvError::Io { what, source }) if crate::log::writer::is_out_of_space(&source) => {
                Err(KvError::NoSpace { what: format!("{what}: {source}") })
            }
            other => other,
        }
    }

    fn close(&self) -> Result<(), KvError> {
        let Some(open) = self.open.write().take() else { return Ok(()) };
        guard(&self.path, "close", || {
            drop(open);
            Ok(())
        })
    }
}

/// Removes the files that only older versions of the tables need, and that nobody reads any more; tells whether there were such versions. fjall does it at the end of a merge alone, with what
/// it knew when that began: the files that a merge has replaced would stay until the end of the one after it, which may never have room to begin.
fn drop_old_versions(open: &Open) -> fjall::Result<bool> {
    let mut versions = open.keyspace.tree.get_version_history_lock();
    let before = versions.len();
    versions.maintenance(open.keyspace.path(), looked_at_from(open))?;
    Ok(versions.len() < before)
}

/// What is older by fjall's numbers nobody looks at, as far as fjall knows.
fn looked_at_from(open: &Open) -> u64 {
    open.database.supervisor.snapshot_tracker.get_seqno_safe_to_gc()
}

/// As [`drop_old_versions`], after a look for the oldest state that somebody reads, which fjall takes at a checkpoint and once in so many snapshots given back.
fn look_who_reads_and_drop(open: &Open) -> fjall::Result<bool> {
    let supervisor = &open.database.supervisor;
    {
        let _versions = open.keyspace.tree.get_version_history_lock();
        // A number that no change has: what is older than the version before the newest number is not read, and the newest version has to be that one. ORDER: under the
        // lock that versions take their numbers under, or a snapshot could begin between a version's number and the version.
        supervisor.snapshot_tracker.publish(supervisor.seqno.next());
    }
    for _ in 0..SNAPSHOTS_PER_LOOK {
        drop(supervisor.snapshot_tracker.open());
    }
    drop_old_versions(open)
}

/// What an engine has on disk, bytes.
struct Sizes {
    tables: u64,
    /// Values out of line.
    values: u64,
}

impl Sizes {
    /// What a merge of everything takes for a while.
    fn for_a_merge(&self) -> u64 {
        self.tables + self.values / VALUES_PART
    }
}

fn sizes(keyspace: &Keyspace) -> Sizes {
    let tables = match &keyspace.tree {
        AnyTree::Standard(tree) => tree.disk_space(),
        AnyTree::Blob(tree) => tree.index.disk_space(),
    };
    Sizes { tables, values: keyspace.disk_space().saturating_sub(tables) }
}

fn wait_for_merging(keyspace: &Keyspace) {
    let start = Instant::now();
    while keyspace.l0_table_count() >= UNMERGED_TABLES_MAX {
        if start.elapsed() >= MERGE_WAIT_MAX {
            let tables = keyspace.l0_table_count();
            tracing::warn!(tables, "merging tables does not keep up; reads get slower");
            return;
        }
        std::thread::sleep(MERGE_POLL);
    }
}
