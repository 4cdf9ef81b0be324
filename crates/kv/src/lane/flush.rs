//! Group commit: one sync for all who wait.

use super::Shared;
use crate::log::segment::SegmentFile;
use crate::{KvError, Position};
use ashlar_env::Signal;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long one that waits sleeps at most before it looks again.
const RECHECK: Duration = Duration::from_millis(20);

/// What has been written, what is durable, and who syncs.
pub(super) struct Flusher {
    appended: AtomicU64,
    durable: AtomicU64,
    inner: Mutex<Pending>,
    done: Signal,
}

struct Pending {
    /// A caller is syncing; the others wait for it.
    has_leader: bool,
    /// Segments that may hold something not durable, in order; the last one is the active one. LIMIT: segments between two
    /// flushes; the flush interval bounds them.
    segments: Vec<SegmentFile>,
    /// A segment was begun since the directory was synced.
    is_dir_dirty: bool,
}

impl Flusher {
    /// For a log that is durable up to `position` and goes on in `active`.
    pub(super) fn new(position: u64, active: SegmentFile, done: Signal) -> Flusher {
        let pending = Pending { has_leader: false, segments: vec![active], is_dir_dirty: true };
        Flusher {
            appended: AtomicU64::new(position),
            durable: AtomicU64::new(position),
            inner: Mutex::new(pending),
            done,
        }
    }

    pub(super) fn appended(&self) -> Position {
        Position(self.appended.load(Ordering::Acquire))
    }

    pub(super) fn durable(&self) -> Position {
        Position(self.durable.load(Ordering::Acquire))
    }

    /// A group is in the log. Called under the lane's exclusive lock, in order.
    pub(super) fn publish(&self, appended: Position) {
        self.appended.store(appended.0, Ordering::Release);
    }

    /// The log goes on in `segment`. Called before the group in it is published.
    pub(super) fn add_segment(&self, segment: SegmentFile) {
        let mut inner = self.inner.lock();
        // An empty segment whose place was too small for a group is replaced under its name.
        inner.segments.retain(|older| older.first < segment.first);
        inner.segments.push(segment);
        inner.is_dir_dirty = true;
    }

    /// Has nobody sync until `run` has ended, and takes back what the log has lost with it: it ends at the position that `run` tells.
    pub(super) fn go_back<T>(
        &self,
        run: impl FnOnce() -> Result<(Position, SegmentFile, T), KvError>,
    ) -> Result<T, KvError> {
        let mut inner = self.inner.lock();
        while inner.has_leader {
            self.done.wait_for(&mut inner, RECHECK);
        }
        inner.has_leader = true;
        drop(inner);
        let gone_back = run();
        let mut inner = self.inner.lock();
        inner.has_leader = false;
        let went = gone_back.map(|(end, active, told)| {
            inner.segments.retain(|segment| segment.first < end.0);
            inner.segments.push(active);
            inner.is_dir_dirty = true;
            self.durable.fetch_min(end.0, Ordering::AcqRel);
            self.appended.store(end.0, Ordering::Release);
            told
        });
        drop(inner);
        self.done.notify_all();
        went
    }

    /// Lets those who wait look again.
    pub(super) fn wake(&self) {
        let _inner = self.inner.lock();
        self.done.notify_all();
    }
}

impl Shared {
    /// As [`Shared::flush`], here and in all copies that count, at the same time.
    pub(super) fn flush_all_copies(&self, position: Position) -> Result<(), KvError> {
        let Some(copies) = self.copies.get() else { return self.flush(position) };
        // ORDER: asked for after `position` was told, so it is not behind that.
        let sequence = self.read_state_again().last.sequence;
        copies.begin_flush(sequence);
        self.flush(position)?;
        copies.end_flush(sequence)
    }

    pub(super) fn flush(&self, position: Position) -> Result<(), KvError> {
        let flusher = &self.flusher;
        // What was never appended cannot be waited for.
        let position = position.min(flusher.appended());
        if flusher.durable() >= position {
            return Ok(());
        }
        self.flush_until(|_| flusher.durable() >= position)
    }

    /// Has every segment that was begun so far be there after a power cut.
    pub(super) fn flush_segments(&self) -> Result<(), KvError> {
        self.flush_until(|pending| !pending.is_dir_dirty && !pending.has_leader)?;
        // ORDER: looked at last. Somebody else may have tried, and failed.
        self.health.check()
    }

    fn flush_until(&self, is_done: impl Fn(&Pending) -> bool) -> Result<(), KvError> {
        let flusher = &self.flusher;
        let mut inner = flusher.inner.lock();
        loop {
            if is_done(&inner) {
                return Ok(());
            }
            self.health.check()?;
            if !inner.has_leader {
                break;
            }
            flusher.done.wait(&mut inner);
        }
        inner.has_leader = true;
        // `appended` is read before the segments are copied: a group published by now is in one of them.
        let target = flusher.appended();
        let segments = inner.segments.clone();
        let is_dir_dirty = std::mem::take(&mut inner.is_dir_dirty);
        drop(inner);

        let synced = self.sync_segments(&segments, is_dir_dirty).map_err(|error| self.stop_on(error));
        let mut inner = flusher.inner.lock();
        inner.has_leader = false;
        if synced.is_ok() {
            flusher.durable.fetch_max(target.0, Ordering::AcqRel);
            // All but the newest copied are sealed and synced as a whole; it may still be written to.
            let newest_first = segments.last().map_or(0, |segment| segment.first);
            inner.segments.retain(|segment| segment.first >= newest_first);
        }
        drop(inner);
        flusher.done.notify_all();
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        synced
    }

    fn sync_segments(&self, segments: &[SegmentFile], is_dir_dirty: bool) -> Result<(), KvError> {
        // ORDER: older segments first, the directory last; nobody is told before all are done, so the order only matters to
        // what an unlucky power cut leaves of the rest.
        for segment in segments {
            let synced = segment.file.sync_data();
            synced.map_err(|e| KvError::of_sync(&self.log_dir.describe(&segment.path), e))?;
        }
        if is_dir_dirty { self.log_dir.sync() } else { Ok(()) }
    }

    /// Makes the segment with which the lane begins durable.
    pub(super) fn sync_new_log(&self) -> Result<(), KvError> {
        let segments = self.flusher.inner.lock().segments.clone();
        self.sync_segments(&segments, true)?;
        self.flusher.inner.lock().is_dir_dirty = false;
        Ok(())
    }

    /// Flushes if there is something to flush; else notes in the log how far it is durable, once.
    pub(super) fn tick_flush(&self) -> Result<(), KvError> {
        self.health.check()?;
        let (appended, durable) = (self.flusher.appended(), self.flusher.durable());
        if appended > durable {
            return self.flush(appended);
        }
        let mut state = self.write_state();
        if self.flusher.appended() == durable && state.log.wants_mark(durable.0) {
            match state.log.append_mark(durable.0) {
                // Without the mark, damage to the last flushed groups looks like a torn tail. Nothing else depends on it.
                Err(KvError::NoSpace { .. }) | Ok(()) => {}
                Err(error) => return Err(self.stop_on(error)),
            }
        }
        Ok(())
    }
}
