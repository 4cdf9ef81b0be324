//! Moves changes from the overlay to the engine, and drops the log behind them.

use super::note::Note;
use super::turn::Turn;
use super::{Background, Shared, State};
use crate::log::segment::SegmentFile;
use crate::log::writer::SealedSegment;
use crate::overlay::Overlay;
use crate::{KvError, Position};
use ashlar_env::{Signal, Tasks};
use parking_lot::{Mutex, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a waiting writer sleeps at most before it looks again, should it have missed the signal.
const RECHECK: Duration = Duration::from_millis(20);
/// While space is low, changes do not wait for longer than this to be taken by the engine: what they delete is not given back before.
const LOW_PAUSE: Duration = Duration::from_secs(2);
/// So many changes are worth a checkpoint of their own then.
const LOW_CHANGES_MIN: usize = 64;
/// What a checkpoint takes besides its changes, bytes: the engine's list of its files, filters, what a file system rounds up.
const BESIDE_CHANGES: u64 = 1 << 20;
/// But no more than this part of the reserve, which is small on a small disk.
const BESIDE_CHANGES_PART: u64 = 8;
/// Turns of giving space back, one after the other: of files that nothing needs any more, of deleted records, and of what that merge has found.
const GIVE_BACK_TURNS: usize = 3;
/// Time after one that found no space.
const GIVE_BACK_PAUSE: Duration = Duration::from_secs(600);

/// Who checkpoints, and who waits for it.
pub(super) struct Checkpoints {
    /// Held by whoever checkpoints.
    running: Turn,
    /// A checkpoint or a spare segment is wanted.
    is_work_wanted: AtomicBool,
    work_lock: Mutex<()>,
    /// Wakes the checkpoint thread.
    work: Signal,
    /// When the last one began, microseconds of the monotonic clock.
    began_us: AtomicU64,
    /// The last one did not begin, because there was no room for it.
    is_held_back: AtomicBool,
    /// What was set aside and may not enter the engine before it is committed in all copies that count.
    pending: Mutex<Option<Frozen>>,
    /// Before this moment of the monotonic clock, microseconds, nothing is merged to give space back.
    give_back_from_us: AtomicU64,
    done_lock: Mutex<()>,
    /// Wakes writers.
    done: Signal,
}

impl Checkpoints {
    pub(super) fn new(tasks: &dyn Tasks) -> Checkpoints {
        Checkpoints {
            running: Turn::new(tasks),
            is_work_wanted: AtomicBool::default(),
            work_lock: Mutex::default(),
            work: tasks.signal(),
            began_us: AtomicU64::new(0),
            is_held_back: AtomicBool::default(),
            pending: Mutex::default(),
            give_back_from_us: AtomicU64::new(0),
            done_lock: Mutex::default(),
            done: tasks.signal(),
        }
    }

    /// Waits until there may be something to do, at most `timeout`.
    pub(super) fn wait_for_work(&self, timeout: Duration) {
        let mut guard = self.work_lock.lock();
        if !self.is_work_wanted.load(Ordering::Acquire) {
            self.work.wait_for(&mut guard, timeout);
        }
    }

    pub(super) fn wake(&self) {
        let _guard = self.work_lock.lock();
        self.is_work_wanted.store(true, Ordering::Release);
        self.work.notify_all();
    }

    /// Whether there was no room for the last one: nobody needs to wait for the next one then.
    pub(super) fn is_held_back(&self) -> bool {
        self.is_held_back.load(Ordering::Relaxed)
    }

    /// Lets waiting writers look again.
    pub(super) fn wake_writers(&self) {
        let _guard = self.done_lock.lock();
        self.done.notify_all();
    }
}

/// What a freeze took.
struct Frozen {
    overlay: Arc<Overlay>,
    note: Note,
}

impl Shared {
    /// Wakes the checkpoint thread if the state calls for it.
    pub(super) fn request_work(&self, state: &State) {
        let is_wanted = self.is_checkpoint_due(state) || (state.log.wants_spare() && !self.space.is_low());
        if is_wanted && !self.checkpoints.is_work_wanted.load(Ordering::Acquire) {
            self.checkpoints.wake();
        }
    }

    fn is_checkpoint_due(&self, state: &State) -> bool {
        // Short of space a segment is worth more than what its early checkpoint costs: the next roll needs its blocks, and the reserve
        // can be given up for one roll only.
        state.frozen.is_none()
            && (state.active.bytes() >= self.config.freeze_bytes()
                || state.log.bytes() >= self.config.log_bytes_max.saturating_add(self.retained_log_bytes())
                || (self.space.is_low() && state.log.has_sealed()))
    }

    /// The exclusive lock, after a bounded wait for room in the overlay.
    /// Says too whether the wait was in vain.
    pub(super) fn lock_with_room(&self) -> (RwLockWriteGuard<'_, State>, bool) {
        let is_full = |state: &State| state.overlay_bytes() as u64 >= self.config.overlay_bytes_max;
        let state = self.write_state_with_room();
        if !is_full(&state) || self.config.background == Background::Manual {
            return (state, false);
        }
        if self.checkpoints.is_held_back() {
            return (state, true);
        }
        drop(state);
        // No checkpoint takes what is not decided: who waits for that ends the wait.
        if let Some(copies) = self.copies.get() {
            copies.await_turn();
        }
        let start = self.clock.monotonic();
        self.counters.write_waits.fetch_add(1, Ordering::Relaxed);
        loop {
            let mut guard = self.checkpoints.done_lock.lock();
            self.checkpoints.done.wait_for(&mut guard, RECHECK);
            drop(guard);
            let state = self.write_state_with_room();
            let waited = self.clock.monotonic().saturating_sub(start);
            let is_still_full = is_full(&state);
            let is_in_vain = self.health.is_stopped() || self.checkpoints.is_held_back();
            if !is_still_full || is_in_vain || waited >= self.config.stall_max {
                let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
                self.counters.write_wait_us.fetch_add(waited_us, Ordering::Relaxed);
                tracing::debug!(waited_us, "a writer waited for a checkpoint");
                return (state, is_still_full);
            }
        }
    }

    /// Without threads, the writer that meets a full overlay checkpoints it. An error stops the lane and shows at the commit.
    pub(super) fn checkpoint_if_full(&self) {
        let is_due = self.is_checkpoint_due(&self.read_state());
        if is_due
            && !self.health.is_stopped()
            && let Err(error) = self.checkpoint()
            && !matches!(error, KvError::NoSpace { .. })
        {
            tracing::error!(%error, "checkpoint failed");
        }
    }

    /// Checkpoints if it is due, keeps a spare segment and looks at free space.
    pub(super) fn tick_checkpoint(&self) -> Result<(), KvError> {
        self.checkpoints.is_work_wanted.store(false, Ordering::Release);
        self.health.check()?;
        self.look_for_space()?;
        let (is_due, wants_spare) = {
            let state = self.read_state();
            (
                self.is_checkpoint_due(&state) || self.is_wanted_for_space(&state) || self.is_one_pending(),
                state.log.wants_spare() && !self.space.is_low(),
            )
        };
        if wants_spare {
            self.add_spare()?;
        }
        if is_due {
            match self.checkpoint() {
                // It is due again at the next turn.
                Ok(()) | Err(KvError::NoSpace { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.space.is_low() {
            return Ok(());
        }
        // A checkpoint may have taken some.
        self.look_for_space()?;
        self.give_back()
    }

    fn look_for_space(&self) -> Result<(), KvError> {
        let refreshed = self.space.refresh(self.engine.merge_bytes());
        refreshed.map_err(|e| KvError::io(format!("look for space on {}", self.log_dir.disk.describe("")), e))
    }

    /// Log that is kept behind checkpoints, bytes.
    fn retained_log_bytes(&self) -> u64 {
        if self.copies.get().is_some() { self.config.retained_log_bytes } else { 0 }
    }

    /// Whether a checkpoint has begun that waits for copies.
    pub(super) fn is_one_pending(&self) -> bool {
        self.checkpoints.pending.lock().is_some()
    }

    /// Runs `run` while nobody checkpoints.
    pub(super) fn between_checkpoints<T>(&self, run: impl FnOnce() -> T) -> T {
        let _running = self.checkpoints.running.take();
        run()
    }

    /// Nobody checkpoints while `run` runs, and nothing is set aside for a checkpoint afterwards.
    pub(super) fn without_checkpoint<T>(&self, run: impl FnOnce() -> T) -> T {
        let _running = self.checkpoints.running.take();
        self.checkpoints.pending.lock().take();
        run()
    }

    /// Whether changes have waited for long enough while space is low.
    fn is_wanted_for_space(&self, state: &State) -> bool {
        let began = Duration::from_micros(self.checkpoints.began_us.load(Ordering::Relaxed));
        self.space.is_low()
            && state.frozen.is_none()
            && state.active.len() >= LOW_CHANGES_MIN
            && self.clock.monotonic().saturating_sub(began) >= LOW_PAUSE
    }

    /// Has the engine give back what deleted pairs hold, if it can.
    fn give_back(&self) -> Result<(), KvError> {
        for _ in 0..GIVE_BACK_TURNS {
            let start = self.clock.monotonic();
            if start < Duration::from_micros(self.checkpoints.give_back_from_us.load(Ordering::Relaxed)) {
                return Ok(());
            }
            match self.engine.give_back(self.space.bytes_free()) {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    let took = self.clock.monotonic().saturating_sub(start);
                    tracing::info!(
                        ?took,
                        "space was given back that deleted records or replaced files held: {}",
                        self.space.describe()
                    );
                    self.look_for_space()?;
                }
                Err(KvError::NoSpace { what }) => {
                    tracing::warn!(what, "no space to give back what deleted records hold");
                    // What such a merge has written takes space until the engine is opened again: many must not fill the disk.
                    let next = self.clock.monotonic() + GIVE_BACK_PAUSE;
                    let next_us = u64::try_from(next.as_micros()).unwrap_or(u64::MAX);
                    self.checkpoints.give_back_from_us.store(next_us, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn checkpoint(&self) -> Result<(), KvError> {
        let _running = self.checkpoints.running.take();
        self.health.check()?;
        // Nobody has said yet what of the log is committed.
        if self.config.keeps_log && self.copies.get().is_none() {
            return Ok(());
        }
        let start = self.clock.monotonic();
        let began_us = u64::try_from(start.as_micros()).unwrap_or(u64::MAX);
        self.checkpoints.began_us.store(began_us, Ordering::Relaxed);
        self.require_room()?;
        let pending = self.checkpoints.pending.lock().take();
        let Some(frozen) = pending.map_or_else(|| self.freeze(), |pending| Ok(Some(pending)))? else {
            return Ok(());
        };
        // What is not in all copies that count may still be taken back. It is looked for again at the next turn.
        if self.copies.get().is_some_and(|copies| copies.committed() < frozen.note.last.sequence) {
            *self.checkpoints.pending.lock() = Some(frozen);
            return Ok(());
        }
        let applied = self.apply(&frozen);
        if applied.is_ok() {
            self.write_state().frozen = None;
        }
        // Freed here, not under the lock: a large map takes a while.
        let position = frozen.note.applied;
        drop(frozen);
        let dropped = applied.and_then(|()| self.drop_log_before(position));
        self.checkpoints.wake_writers();
        dropped.map_err(|error| self.stop_on(error))?;
        let took_us = self.clock.monotonic().saturating_sub(start).as_micros();
        let took_us = u64::try_from(took_us).unwrap_or(u64::MAX);
        self.counters.last_checkpoint_us.store(took_us, Ordering::Relaxed);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Lets no checkpoint begin that could not end. One that found no space on its way has stopped the lane for good, and left files in
    /// the engine that take space until it is opened again; one that has not begun is made later, and the log keeps what it would have taken.
    fn require_room(&self) -> Result<(), KvError> {
        // What was set aside earlier and has waited for copies is among it.
        let bytes = self.read_state().overlay_bytes() as u64;
        if bytes == 0 {
            return Ok(());
        }
        // Twice: the new files, and what merging them into older ones takes meanwhile. For want of that the reserve is given up.
        let is_enough = self.space.require(bytes.saturating_mul(2)).and_then(|is_enough| {
            let least =
                bytes.saturating_add(BESIDE_CHANGES.min(self.config.reserve_bytes / BESIDE_CHANGES_PART));
            Ok(is_enough || self.space.has_free(least)?)
        });
        let look = |error| KvError::io("look for space before a checkpoint", error);
        if is_enough.map_err(|error| self.stop_on(look(error)))? {
            // ORDER: before it begins: writers wait for one that will end.
            self.checkpoints.is_held_back.store(false, Ordering::Relaxed);
            return Ok(());
        }
        if !self.checkpoints.is_held_back.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                bytes,
                "no room to take changes into the engine: they stay in the log, and nothing but what frees space is taken until there is"
            );
        }
        self.space.set_low();
        self.checkpoints.wake_writers();
        Err(KvError::NoSpace { what: format!("a checkpoint of {bytes} bytes: {}", self.space.describe()) })
    }

    /// Sets the active overlay aside; `None` when nothing was committed since the last checkpoint.
    fn freeze(&self) -> Result<Option<Frozen>, KvError> {
        let applied = self.checkpoint_note()?.map_or(Position(0), |note| note.applied);
        let mut state = self.write_state();
        if state.active.is_empty() && self.flusher.appended() <= applied {
            return Ok(None);
        }
        let overlay = Arc::new(std::mem::take(&mut state.active));
        state.frozen = Some(Arc::clone(&overlay));
        let note = Note {
            identity: self.log_dir.identity,
            applied: Position(state.log.end()),
            last: state.last,
            sequences: state.sequences.clone(),
        };
        Ok(Some(Frozen { overlay, note }))
    }

    pub(super) fn checkpoint_note(&self) -> Result<Option<Note>, KvError> {
        self.engine.note()?.map(|bytes| Note::decode(&bytes)).transpose()
    }

    fn apply(&self, frozen: &Frozen) -> Result<(), KvError> {
        // ORDER: the log first. The engine must not know a change that a power cut can still take from the log, or a later open
        // would find the log shorter than the checkpoint.
        self.flush(self.flusher.appended())?;
        self.engine.apply(&mut frozen.overlay.iter(), &frozen.note.encode())
    }

    /// Drops segments that the engine has all of. A few are kept for reuse.
    fn drop_log_before(&self, position: Position) -> Result<(), KvError> {
        let position = if self.space.is_low() {
            position.0
        } else {
            position.0.saturating_sub(self.retained_log_bytes())
        };
        let sealed = self.write_state().log.take_sealed_before(position);
        if !sealed.is_empty() {
            // ORDER: the next one first. It may have been begun after the flush in front of the checkpoint, and a power cut would leave neither: no log for the engine's position.
            self.flush_segments()?;
        }
        for segment in sealed {
            self.retire(segment)?;
        }
        Ok(())
    }

    fn retire(&self, sealed: SealedSegment) -> Result<(), KvError> {
        let segment = sealed.segment;
        let (number, segment_bytes) = {
            let mut state = self.write_state();
            (state.log.reserve_spare_number(), state.log.segment_bytes())
        };
        if segment.file_bytes != segment_bytes || self.space.is_low() {
            return self.log_dir.remove(&segment.path);
        }
        let spare = self.rename_to_spare(segment, number)?;
        let surplus = self.write_state().log.stock_spare(spare);
        surplus.map_or(Ok(()), |surplus| self.log_dir.remove(&surplus.path))
    }

    /// Gives a segment that is not used any more the name of spare `number`.
    pub(super) fn rename_to_spare(&self, segment: SegmentFile, number: u64) -> Result<SegmentFile, KvError> {
        let path = self.log_dir.spare_path(number);
        let renamed = self.log_dir.disk.rename(&segment.path, &path);
        renamed.map_err(|e| KvError::io(format!("rename {}", self.log_dir.describe(&segment.path)), e))?;
        Ok(SegmentFile { path, ..segment })
    }
}
