//! A lane: one log, one overlay, one engine, one writer at a time.
//!
//! ```text
//!   commit ──> log (one write) ──> active overlay ──freeze──> frozen overlay ──checkpoint──> engine
//!                │ flush: one fdatasync for all who wait                        │ then log segments behind it go
//! ```
//!
//! Locks, in the order in which they may be taken: checkpoint, state, flush. The state lock is shared by readers and
//! exclusive for a writer; no system call but the append (and, at a roll, a header and a rename) is made under it, and never a
//! sync. A new segment is made outside it (`segments.rs`).

mod backup;
mod checkpoint;
mod config;
mod export;
mod feed;
mod flush;
mod health;
mod kept;
mod note;
mod open;
mod read_through;
mod reader;
mod segments;
mod space;
mod stats;
mod threads;
mod turn;
mod writer;

pub use config::{Background, LaneConfig};
pub use export::{Export, Import};
pub use feed::GroupCursor;
pub use kept::LogRuns;
pub use reader::LaneReader;
pub use stats::LaneStats;
pub use writer::{LaneWriter, Urgency};

use crate::engine::{Engine, LastingSnapshot};
use crate::log::segment::LogDir;
use crate::log::writer::LogWriter;
use crate::overlay::Overlay;
use crate::{Copies, EngineReport, GroupNumber, KvError, Position};
use ashlar_env::{Clock, Disk, DiskFile, Env, NoWaiting};
use ashlar_types::{ClusterId, ShardId};
use checkpoint::Checkpoints;
use flush::Flusher;
use health::Health;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use segments::Segments;
use space::Space;
use stats::Counters;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use threads::Threads;

/// What the state lock guards.
pub(crate) struct State {
    active: Overlay,
    /// Being applied to the engine.
    frozen: Option<Arc<Overlay>>,
    log: LogWriter,
    /// The last frame's number in each shard. LIMIT: one entry per shard of the file system, 65,536 at most.
    sequences: FxHashMap<ShardId, u64>,
    /// The last group in the log.
    last: GroupNumber,
    /// A commit has let go of the lock to wait for a disk: whoever gets it now waits at the gate (`segments.rs`).
    is_closed: bool,
}

impl State {
    /// Memory of both overlays, estimated, bytes.
    fn overlay_bytes(&self) -> usize {
        self.active.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.bytes())
    }

    /// The number of the shard's last frame; 0 when it has had none.
    fn sequence(&self, shard: ShardId) -> u64 {
        self.sequences.get(&shard).copied().unwrap_or(0)
    }
}

/// What the lane's handle and its threads share.
pub(crate) struct Shared {
    config: LaneConfig,
    clock: Arc<dyn Clock>,
    log_dir: LogDir,
    engine: Box<dyn Engine>,
    state: RwLock<State>,
    flusher: Flusher,
    checkpoints: Checkpoints,
    segments: Segments,
    space: Space,
    health: Health,
    counters: Counters,
    /// Where there are copies.
    copies: OnceLock<Arc<dyn Copies>>,
    /// What the log began with.
    runs: LogRuns,
}

/// A durable ordered map with one writer at a time. See the crate's documentation.
///
/// Dropping a lane stops its threads and leaves everything else to the next [`Lane::open`], as a crash of the process does;
/// [`Lane::close`] makes the next open quick.
pub struct Lane {
    shared: Arc<Shared>,
    /// None in a part that was handed out ([`Lane::hand_out`]).
    threads: Option<Mutex<Threads>>,
    /// Held for its lock, until the lane is closed: others who use it may let go of theirs later.
    lock: Arc<Mutex<Option<Arc<dyn DiskFile>>>>,
    /// Nothing is committed any more through this one.
    is_withdrawn: AtomicBool,
}

impl Lane {
    /// Opens the lane in directory `dir` of `disk`, or makes it. Replays the log into `engine`, so that the lane starts
    /// with an empty log whose every earlier change is durable.
    ///
    /// # Errors
    /// [`KvError::Corrupt`] when durable records of the log are damaged or missing, [`KvError::Foreign`] when log or
    /// engine are of another file system, lane or newer format, [`KvError::Io`] for the rest, among them a lane that is
    /// open already (`WouldBlock`).
    ///
    /// Whoever opens the engine has called [`Disk::end_loss`] before.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &str,
        engine: Box<dyn Engine>,
        env: &Env,
        cluster: ClusterId,
        config: LaneConfig,
    ) -> Result<Lane, KvError> {
        open::open(disk, dir, engine, env, cluster, config)
    }

    /// Reads with others at the same time, while no change happens. Keep it short: writers wait for it. A thread must not take
    /// a second one, or become the writer, while it holds one.
    pub fn read(&self) -> LaneReader<'_> {
        LaneReader::new(&self.shared)
    }

    /// What it holds now, for whoever reads for long: nobody waits for him. Changes that are not in the engine yet are copied, so it is made soonest right
    /// after a checkpoint. To be dropped before [`Lane::close`].
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn snapshot(&self) -> Result<LastingSnapshot, KvError> {
        self.shared.snapshot()
    }

    /// Becomes the writer. Waits for other readers and writers, and while both overlays are full for a checkpoint, at most
    /// [`LaneConfig::stall_max`]; if it is not done then, commits answer [`KvError::Stalled`].
    ///
    /// A thread that holds a writer must not call [`Lane::checkpoint_now`] or [`Lane::close`].
    pub fn write(&self) -> LaneWriter<'_> {
        LaneWriter::new(&self.shared, &self.is_withdrawn)
    }

    /// The same lane for a user who may be told to use it no more ([`Lane::withdraw`]) while others go on.
    pub fn hand_out(&self) -> Lane {
        let (shared, lock) = (self.shared.clone(), self.lock.clone());
        Lane { shared, threads: None, lock, is_withdrawn: AtomicBool::new(false) }
    }

    /// From now on commits through this one answer [`KvError::NotPrimary`]: its user has ended, whatever threads of his are at work yet. Must not be called by who is the writer.
    pub fn withdraw(&self) {
        // Not while a group is on its way.
        let _state = self.shared.write_state();
        self.is_withdrawn.store(true, Ordering::SeqCst);
    }

    /// Makes every group up to `position` durable, in all copies that count. Callers at the same time share one sync.
    ///
    /// # Errors
    /// [`KvError::Io`]; the lane is stopped then.
    pub fn flush(&self, position: Position) -> Result<(), KvError> {
        self.shared.flush_all_copies(position)
    }

    /// Makes every group committed before the call durable.
    ///
    /// # Errors
    /// As [`Lane::flush`].
    pub fn flush_all(&self) -> Result<(), KvError> {
        self.shared.flush_all_copies(self.appended())
    }

    /// Makes every group committed before the call durable here, whatever copies have.
    ///
    /// # Errors
    /// As [`Lane::flush`].
    pub fn flush_here(&self) -> Result<(), KvError> {
        self.shared.flush(self.appended())
    }

    /// Has `copies` told of every group from now on, and asked before one is committed. It stays so until the lane is closed.
    ///
    /// # Errors
    /// [`KvError::Invalid`] when that was said before.
    pub fn replicate_with(&self, copies: Arc<dyn Copies>) -> Result<(), KvError> {
        // Not while a group is on its way.
        let _state = self.shared.write_state();
        let set = self.shared.copies.set(copies);
        set.map_err(|_| KvError::Invalid { what: "the lane is replicated already".to_owned() })
    }

    /// See [`Copies::held_up_at`]; zero where there are no copies.
    pub fn held_up_at(&self) -> Duration {
        self.shared.copies.get().map_or(Duration::ZERO, |copies| copies.held_up_at())
    }

    /// Whether [`Lane::replicate_with`] was called.
    pub fn is_replicated(&self) -> bool {
        self.shared.copies.get().is_some()
    }

    /// The last group in the log.
    pub fn last_group(&self) -> GroupNumber {
        self.shared.read_state_again().last
    }

    /// Runs `run` while nobody commits. It must not wait, nor call the lane.
    pub fn between_groups<T>(&self, run: impl FnOnce() -> T) -> T {
        let _state = self.shared.write_state();
        let _held = NoWaiting::begin(segments::STATE_LOCK);
        run()
    }

    /// The last group that is in a checkpoint.
    ///
    /// # Errors
    /// As [`Engine::note`].
    pub fn checkpointed(&self) -> Result<GroupNumber, KvError> {
        Ok(self.shared.checkpoint_note()?.map(|note| note.last).unwrap_or_default())
    }

    /// Which groups the log had when it was opened.
    pub fn runs_at_open(&self) -> &LogRuns {
        &self.shared.runs
    }

    /// Everything up to here is durable.
    pub fn durable(&self) -> Position {
        self.shared.flusher.durable()
    }

    /// Position behind the last committed group.
    pub fn appended(&self) -> Position {
        self.shared.flusher.appended()
    }

    /// The number of the last frame of `shard`; 0 when it has had none.
    pub fn shard_sequence(&self, shard: ShardId) -> u64 {
        self.shared.read_state_again().sequence(shard)
    }

    /// Applies what was committed before the call to the engine and drops the log behind it. Where there are copies, some of what they have, at the most.
    ///
    /// # Errors
    /// [`KvError::NoSpace`]: there is no room for it, and nothing has changed; it is made later. Other [`KvError`]; the lane is stopped then.
    pub fn checkpoint_now(&self) -> Result<(), KvError> {
        self.shared.checkpoint()
    }

    /// Does what is due in the background: flush, checkpoint, spare segment, space check. Only for lanes opened with
    /// [`Background::Manual`], where nothing else does it.
    ///
    /// # Errors
    /// As [`Lane::flush`] and [`Lane::checkpoint_now`].
    pub fn tick(&self) -> Result<(), KvError> {
        self.shared.tick_flush()?;
        self.shared.tick_checkpoint()
    }

    /// Reads all of the engine and checks every checksum.
    ///
    /// # Errors
    /// The first fault, as [`Engine::verify`].
    pub fn verify(&self) -> Result<EngineReport, KvError> {
        self.shared.health.check()?;
        self.shared.engine.verify()
    }

    /// Looks at free space now instead of at the next turn of the background, after somebody has made room. Answers whether changes
    /// that need space are still refused.
    ///
    /// # Errors
    /// [`KvError::Io`] when the file system does not tell its space, or the reserve cannot be made durable; the lane is stopped then.
    pub fn is_space_low_now(&self) -> Result<bool, KvError> {
        self.shared.health.check()?;
        let refreshed = self.shared.space.refresh(self.shared.engine.merge_bytes());
        refreshed.map_err(|error| {
            let what = format!("look for space on {}", self.shared.log_dir.disk.describe(""));
            self.shared.stop_on(KvError::io(what, error))
        })?;
        let is_low = self.shared.space.is_low();
        if is_low {
            // What deleted pairs hold is given back there.
            self.shared.checkpoints.wake();
        }
        Ok(is_low)
    }

    /// Why the lane takes no more changes; `None` while it does.
    pub fn stopped(&self) -> Option<String> {
        match self.shared.health.check() {
            Err(KvError::Stopped { what }) => Some(what),
            _ => None,
        }
    }

    /// Counters and sizes.
    pub fn stats(&self) -> LaneStats {
        self.shared.stats()
    }

    /// Flushes, checkpoints and closes the engine. Later calls answer [`KvError::Stopped`]. Without room for the checkpoint it closes without:
    /// the log has the changes, for the next open.
    ///
    /// # Errors
    /// What the flush, the checkpoint or the engine answer; the lane is closed all the same.
    pub fn close(&self) -> Result<(), KvError> {
        self.stop_threads();
        let checkpointed = match self.shared.checkpoint() {
            Err(KvError::NoSpace { .. }) => self.flush_here(),
            // What copies may not have stays in the log, and all of it while nobody has said what they have.
            Ok(()) if self.shared.config.keeps_log || self.is_replicated() => self.flush_here(),
            other => other,
        };
        self.shared.health.close();
        let closed = self.shared.engine.close();
        *self.lock.lock() = None;
        checkpointed.and(closed)
    }
}

impl Lane {
    fn stop_threads(&self) {
        if let Some(threads) = &self.threads {
            threads.lock().stop();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl Shared {
    /// Remembers the first error that makes the lane unusable, and hands it on.
    fn stop_on(&self, error: KvError) -> KvError {
        if matches!(error, KvError::Io { .. } | KvError::Corrupt { .. } | KvError::NoSpace { .. }) {
            self.health.stop_after("", &error);
        }
        // A disk that fails is another matter: what was stored is as it was.
        if let KvError::Corrupt { .. } = error {
            return reader::answered_elsewhere(self.copies.get(), error);
        }
        error
    }

    fn stats(&self) -> LaneStats {
        let state = self.read_state_again();
        let (log_bytes, overlay_bytes) = (state.log.bytes(), state.overlay_bytes());
        let overlay_entries = state.active.len() + state.frozen.as_ref().map_or(0, |overlay| overlay.len());
        drop(state);
        let counters = &self.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        LaneStats {
            log_bytes,
            overlay_bytes: overlay_bytes as u64,
            overlay_entries: overlay_entries as u64,
            engine_bytes: self.engine.bytes_used(),
            appended_groups: load(&counters.appended_groups),
            flush_count: load(&counters.flushes),
            checkpoint_count: load(&counters.checkpoints),
            last_checkpoint: std::time::Duration::from_micros(load(&counters.last_checkpoint_us)),
            write_waits: load(&counters.write_waits),
            write_wait_total: std::time::Duration::from_micros(load(&counters.write_wait_us)),
            refused_for_space: load(&counters.refused_for_space),
            is_space_low: self.space.is_low(),
            replayed_groups: load(&counters.replayed_groups),
        }
    }
}
