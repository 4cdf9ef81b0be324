//! Opens a lane: identity, replay, a fresh log.

use super::checkpoint::Checkpoints;
use super::flush::Flusher;
use super::health::{Health, note_loss};
use super::kept::LogRuns;
use super::note::Note;
use super::segments::Segments;
use super::space::Space;
use super::stats::Counters;
use super::threads::Threads;
use super::{Background, Lane, LaneConfig, Shared, State};
use crate::engine::Engine;
use crate::log::format::{LogIdentity, LoggedFrame, SEGMENT_HEADER_BYTES};
use crate::log::replay::{Replayed, replay};
use crate::log::segment::{LogDir, LogFiles, SegmentFile};
use crate::log::writer::{
    FIRST_SPARE, LogWriter, create_spare_in_what_is_free, create_spare_numbered, find_spare,
};
use crate::overlay::Overlay;
use crate::{GroupNumber, KvError, Position};
use ashlar_env::{Disk, DiskFile, Env, OpenMode};
use ashlar_types::{ClusterId, ShardId};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub(super) fn open(
    disk: Arc<dyn Disk>,
    dir: &str,
    engine: Box<dyn Engine>,
    env: &Env,
    cluster: ClusterId,
    config: LaneConfig,
) -> Result<Lane, KvError> {
    if config.segment_bytes < 2 * SEGMENT_HEADER_BYTES as u64 || config.overlay_bytes_max == 0 {
        let what =
            format!("segments of {} bytes, overlay of {}", config.segment_bytes, config.overlay_bytes_max);
        return Err(KvError::Invalid { what });
    }
    let identity = LogIdentity { cluster, lane: config.lane };
    let log_dir = LogDir { disk: Arc::clone(&disk), path: format!("{dir}/log"), identity };
    let lock = prepare_directories(&log_dir, dir)?;
    let opened = open_locked((&disk, log_dir, lock), dir, engine, env, config);
    if let Err(error) = &opened
        && error.may_have_lost()
    {
        // What the engine was given meanwhile may be lost.
        note_loss(&*disk, &format!("open a lane: {error}"));
    }
    opened
}

fn open_locked(
    (disk, log_dir, lock): (&Arc<dyn Disk>, LogDir, Arc<dyn DiskFile>),
    dir: &str,
    engine: Box<dyn Engine>,
    env: &Env,
    config: LaneConfig,
) -> Result<Lane, KvError> {
    let space = Space::new(Arc::clone(disk), dir, &config, &*env.tasks);

    let files = log_dir.list()?;
    let mut recovery = Recovery::new(engine.as_ref(), &space, &config, (&log_dir, &files))?;
    let (replayed, kept) =
        if config.keeps_log { recovery.run_keeping(&files)? } else { (recovery.run(&files)?, Vec::new()) };
    let (sequences, last, runs, overlay) =
        (recovery.sequences, recovery.last, recovery.runs, recovery.overlay);
    // With a log that is kept nothing of it may go.
    let none = LogFiles { segments: Vec::new(), spares: files.spares.clone() };
    let replaceable = if config.keeps_log { &none } else { &files };
    let mut log = start_log(&log_dir, env, &config, &space, (replaceable, (replayed.end, last.sequence)))?;
    let kept_paths: Vec<String> = kept.iter().map(|sealed| sealed.segment.path.clone()).collect();
    log.keep_before(kept);
    // ORDER: the engine has everything, or the log that has it is durable, and the new segment is; only now may the old log go. Else a power cut could
    // leave neither a log nor the position at which it went on.
    let flusher = Flusher::new(replayed.end, log.active().clone(), env.tasks.signal());
    let shared = Arc::new(Shared {
        clock: Arc::clone(&env.clock),
        engine,
        state: RwLock::new(State { active: overlay, frozen: None, log, sequences, last, is_closed: false }),
        flusher,
        checkpoints: Checkpoints::new(&*env.tasks),
        segments: Segments::new(&*env.tasks),
        space,
        health: Health::new(Arc::clone(disk)),
        counters: Counters::default(),
        log_dir,
        config,
        copies: OnceLock::new(),
        runs,
    });
    shared.sync_new_log()?;
    remove_old_log(&shared.log_dir, &files, (replayed.end, &kept_paths))?;
    shared.counters.replayed_groups.store(replayed.groups, Ordering::Relaxed);
    let refreshed = shared.space.refresh(shared.engine.merge_bytes());
    refreshed.map_err(|e| KvError::io(format!("reserve space on {}", disk.describe(dir)), e))?;
    let threads = match shared.config.background {
        Background::Threads => Threads::start(&shared, &*env.tasks)?,
        Background::Manual => Threads::none(&shared, &*env.tasks),
    };
    let threads = Some(Mutex::new(threads));
    let lock = Arc::new(Mutex::new(Some(lock)));
    Ok(Lane { shared, threads, lock, is_withdrawn: AtomicBool::new(false) })
}

/// Makes the lane's directories durable and takes its lock.
fn prepare_directories(log_dir: &LogDir, dir: &str) -> Result<Arc<dyn DiskFile>, KvError> {
    let disk = &log_dir.disk;
    let path = disk.describe(dir);
    let prepare = || {
        disk.create_dir(&log_dir.path)?;
        let lock = disk.open(&format!("{dir}/lock"), OpenMode::CreateOrOpen)?;
        let mut parent = dir;
        while let Some((above, _)) = parent.rsplit_once('/') {
            disk.sync_dir(above)?;
            parent = above;
        }
        disk.sync_dir("")?;
        disk.sync_dir(dir)?;
        Ok(lock)
    };
    let lock: Arc<dyn DiskFile> = prepare().map_err(|e| KvError::io(format!("prepare lane {path}"), e))?;
    let locked = lock.try_lock();
    locked.map_err(|e| KvError::io(format!("lock lane {path}, which may be open already"), e))?;
    Ok(lock)
}

/// Brings the engine up to the end of the log, or, where the log is kept, the overlay (`kept.rs`).
pub(super) struct Recovery<'a> {
    engine: &'a dyn Engine,
    space: &'a Space,
    pub(super) config: &'a LaneConfig,
    identity: LogIdentity,
    pub(super) applied: Position,
    sequences: FxHashMap<ShardId, u64>,
    pub(super) last: GroupNumber,
    pub(super) runs: LogRuns,
    overlay: Overlay,
    /// Files that may go if the engine needs their space.
    spares: Vec<String>,
    pub(super) log_dir: LogDir,
}

impl<'a> Recovery<'a> {
    fn new(
        engine: &'a dyn Engine,
        space: &'a Space,
        config: &'a LaneConfig,
        (log_dir, files): (&LogDir, &LogFiles),
    ) -> Result<Recovery<'a>, KvError> {
        let identity = log_dir.identity;
        let mut recovery = Recovery {
            engine,
            space,
            config,
            identity,
            applied: Position(0),
            sequences: FxHashMap::default(),
            last: GroupNumber::default(),
            runs: LogRuns::default(),
            overlay: Overlay::default(),
            spares: files.spares.clone(),
            log_dir: log_dir.clone(),
        };
        if let Some(bytes) = engine.note()? {
            let note = Note::decode(&bytes)?;
            if note.identity != identity {
                let what = format!(
                    "the engine holds file system {} lane {}, not {} lane {}",
                    note.identity.cluster, note.identity.lane, identity.cluster, identity.lane
                );
                return Err(KvError::Foreign { what });
            }
            (recovery.applied, recovery.sequences, recovery.last) = (note.applied, note.sequences, note.last);
        } else if let Some(oldest) = files.segments.first().filter(|oldest| oldest.first > 0) {
            // No damage of the log, and giving it up would leave nothing at all.
            let what = format!(
                "the engine holds nothing, but the log begins at {}: the engine's files are lost; restore them from a copy, or see what `ashlar fsck` can make anew",
                log_dir.describe(&oldest.path)
            );
            return Err(KvError::Corrupt { what });
        }
        Ok(recovery)
    }

    fn run(&mut self, files: &LogFiles) -> Result<Replayed, KvError> {
        let (from, give_up_from) = (self.applied.0, self.config.give_up_from);
        let log_dir = self.log_dir.clone();
        let mut replayed =
            replay(&log_dir, &files.segments, from, give_up_from, &mut |end, frames| self.take(end, frames))?;
        // What was replayed may be in the page cache only, and after a failed sync perhaps nowhere else: it is written anew, into
        // the engine, instead of being trusted in place.
        if replayed.groups > 0 {
            self.apply(Position(replayed.end))?;
            tracing::info!(groups = replayed.groups, position = replayed.end, "log replayed");
        }
        // The log goes on where the engine's note ends, not behind marks that the note does not know of.
        replayed.end = self.applied.0;
        self.runs.floor = self.last;
        Ok(replayed)
    }

    fn take(&mut self, end: u64, frames: Vec<LoggedFrame>) -> Result<(), KvError> {
        self.insert(end, frames)?;
        if self.overlay.bytes() >= self.config.freeze_bytes() { self.apply(Position(end)) } else { Ok(()) }
    }

    /// Takes a group that the engine does not have; it ends at `end`.
    pub(super) fn insert(&mut self, end: u64, frames: Vec<LoggedFrame>) -> Result<(), KvError> {
        self.last = self.last.next(frames.iter().map(|logged| logged.frame.epoch));
        for LoggedFrame { sequence, frame } in frames {
            let last = self.sequences.entry(frame.shard).or_insert(0);
            if sequence != *last + 1 {
                let what = format!(
                    "the log has frame {sequence} of {} behind frame {last}, before position {end}",
                    frame.shard
                );
                return Err(KvError::Corrupt { what });
            }
            *last = sequence;
            for (key, value) in frame.writes.0 {
                self.overlay.insert(key, value);
            }
        }
        Ok(())
    }

    fn apply(&mut self, applied: Position) -> Result<(), KvError> {
        let overlay = std::mem::take(&mut self.overlay);
        let needed = overlay.bytes() as u64 * 2;
        let is_enough = self.space.require(needed);
        if !is_enough.map_err(|e| KvError::io("look for space before replay", e))? {
            for spare in std::mem::take(&mut self.spares) {
                remove_if_there(&self.log_dir, &spare)?;
            }
        }
        let note =
            Note { identity: self.identity, applied, last: self.last, sequences: self.sequences.clone() };
        self.engine.apply(&mut overlay.iter(), &note.encode())?;
        self.applied = applied;
        Ok(())
    }
}

/// Begins the log anew at `position`, behind group `sequence`.
fn start_log(
    log_dir: &LogDir,
    env: &Env,
    config: &LaneConfig,
    space: &Space,
    (files, (position, sequence)): (&LogFiles, (u64, u64)),
) -> Result<LogWriter, KvError> {
    let spare = first_spare(log_dir, config.segment_bytes, space, (files, position))?;
    let entropy = Arc::clone(&env.entropy);
    LogWriter::create(log_dir.clone(), entropy, config.segment_bytes, (position, sequence), spare)
}

/// The file of the first segment. On a full disk it is what an earlier run has left, or takes the place of that, or is short: a
/// lane that does not open cannot be deleted from.
fn first_spare(
    log_dir: &LogDir,
    segment_bytes: u64,
    space: &Space,
    (files, position): (&LogFiles, u64),
) -> Result<SegmentFile, KvError> {
    let create = || create_spare_numbered(log_dir, FIRST_SPARE, segment_bytes);
    let mut made = create();
    let is_refused = |made: &Result<SegmentFile, KvError>| matches!(made, Err(KvError::NoSpace { .. }));
    if is_refused(&made)
        && let Some(spare) = find_spare(log_dir, &files.spares, segment_bytes)?
    {
        made = Ok(spare);
    }
    if is_refused(&made) && space.release_reserve() {
        made = create();
    }
    if is_refused(&made) {
        // ORDER: the engine has everything before `position`. The segment that holds it stays, because it shows that the log goes on
        // there until the new segment is durable.
        let kept = files.segments.iter().rposition(|segment| segment.first <= position).unwrap_or(0);
        for segment in &files.segments[..kept] {
            log_dir.remove(&segment.path)?;
        }
        made = create_spare_in_what_is_free(log_dir, FIRST_SPARE, segment_bytes);
    }
    made
}

/// Removes what the new segment replaces; not those `kept`.
fn remove_old_log(
    log_dir: &LogDir,
    files: &LogFiles,
    (position, kept): (u64, &[String]),
) -> Result<(), KvError> {
    let begun = log_dir.segment_path(position);
    let is_old = |path: &&String| **path != begun && !kept.contains(path);
    let old = files.segments.iter().map(|segment| &segment.path).filter(is_old);
    for path in old.chain(&files.spares) {
        remove_if_there(log_dir, path)?;
    }
    log_dir.sync()
}

/// What the new segment was made of, or made room for, is gone already.
fn remove_if_there(log_dir: &LogDir, path: &str) -> Result<(), KvError> {
    match log_dir.disk.remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(KvError::io(format!("remove {}", log_dir.describe(path)), error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
