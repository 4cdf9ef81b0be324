//! Has segments made while nobody holds the state lock: a new file waits for the disk.
//!
//! | who | when | meanwhile |
//! |---|---|---|
//! | the background | the active segment is half full | everybody goes on |
//! | whoever is about to write | it is nearly full, and there is no spare still | readers go on, and writers wait for the same file |
//! | a commit | its group fits into no spare, or the disk was full before | everybody waits, in front of the gate |
//!
//! The last one cannot let others in: what it is about to commit was decided on the state as it is.

use super::turn::{Taken, Turn};
use super::{Shared, State};
use crate::log::writer::create_spare_numbered;
use crate::{Frame, KvError};
use ashlar_env::{NoWaiting, Tasks};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// What this lock is called where somebody waits while holding it.
pub(super) const STATE_LOCK: &str = "the state lock of a lane";

/// How long somebody who wants the state lock tries for it before he sleeps. Measured with 2 and 8 threads that create and remove:
/// 20 us gain 25 % and 100 %, 50 us no more.
const SPIN: Duration = Duration::from_micros(20);

/// Who makes segments, and who waits for them.
pub(super) struct Segments {
    /// Closed while a commit has let go of the state lock and nobody may see or change what it guards.
    gate: Turn,
    /// A spare segment is being made.
    making: Turn,
}

impl Segments {
    pub(super) fn new(tasks: &dyn Tasks) -> Segments {
        Segments { gate: Turn::new(tasks), making: Turn::new(tasks) }
    }
}

/// What came of an attempt to have a spare segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spare {
    Made,
    /// Somebody else was making one, and it is over or takes long.
    WaitedFor,
    /// There is no space, or the lane is stopped.
    Refused,
}

/// The gate is closed for as long as it lives.
struct Closed<'a, 'state> {
    state: &'a mut RwLockWriteGuard<'state, State>,
    _gate: Taken<'a>,
}

impl Drop for Closed<'_, '_> {
    fn drop(&mut self) {
        // The lock is held again, whatever has happened.
        self.state.is_closed = false;
    }
}

impl Shared {
    /// The state, shared with other readers.
    pub(super) fn read_state(&self) -> RwLockReadGuard<'_, State> {
        loop {
            let state = self.spin(|| self.state.try_read()).unwrap_or_else(|| self.state.read());
            if !state.is_closed {
                return state;
            }
            drop(state);
            self.segments.gate.wait();
        }
    }

    /// As [`Shared::read_state`], for a thread that may have it already.
    pub(super) fn read_state_again(&self) -> RwLockReadGuard<'_, State> {
        loop {
            let state = self.state.read_recursive();
            if !state.is_closed {
                return state;
            }
            drop(state);
            self.segments.gate.wait();
        }
    }

    /// The state, for oneself.
    pub(super) fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        loop {
            let state = self.spin(|| self.state.try_write()).unwrap_or_else(|| self.state.write());
            if !state.is_closed {
                return state;
            }
            drop(state);
            self.segments.gate.wait();
        }
    }

    /// Tries for a moment. Whoever has the state lock keeps it for one call, some microseconds; to sleep and be woken costs more
    /// than that on both sides, on a virtual machine ten times as much.
    fn spin<T>(&self, attempt: impl Fn() -> Option<T>) -> Option<T> {
        let first = attempt();
        if first.is_some() {
            return first;
        }
        let end = self.clock.monotonic().saturating_add(SPIN);
        loop {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            let got = attempt();
            if got.is_some() || self.clock.monotonic() >= end {
                return got;
            }
        }
    }

    /// Lets go of the state lock while `run` waits for a disk. Nobody else sees or changes the state meanwhile.
    pub(super) fn behind_gate<T>(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        run: impl FnOnce() -> T,
    ) -> T {
        // It is free: whoever had it has held the state lock before and after.
        let closed = Closed { _gate: self.segments.gate.take(), state };
        closed.state.is_closed = true;
        RwLockWriteGuard::unlocked(closed.state, || NoWaiting::suspended(run))
    }

    /// The state for a writer, with room in the log for what it will commit: made before the lock is taken, so that no commit waits for it.
    /// Without space the commit decides.
    pub(super) fn write_state_with_room(&self) -> RwLockWriteGuard<'_, State> {
        let mut give_up = None;
        loop {
            let state = self.write_state();
            if !state.log.is_nearly_full() || self.space.is_low() || self.health.is_stopped() {
                return state;
            }
            let now = self.clock.monotonic();
            if now > *give_up.get_or_insert(now.saturating_add(self.config.stall_max)) {
                return state;
            }
            drop(state);
            // An error has stopped the lane, and shows at the commit.
            if matches!(self.make_spare(), Ok(Spare::Refused) | Err(_)) {
                return self.write_state();
            }
        }
    }

    /// Has the next segment ready before it is needed. Without space for it the roll decides.
    pub(super) fn add_spare(&self) -> Result<(), KvError> {
        self.make_spare().map(|_| ())
    }

    /// Makes a spare segment, or waits a moment for whoever is making one.
    fn make_spare(&self) -> Result<Spare, KvError> {
        let Some(_making) = self.segments.making.try_take() else { return Ok(Spare::WaitedFor) };
        if self.read_state().log.has_spare() {
            return Ok(Spare::WaitedFor);
        }
        let (number, bytes) = {
            let mut state = self.write_state();
            (state.log.reserve_spare_number(), state.log.segment_bytes())
        };
        match create_spare_numbered(&self.log_dir, number, bytes) {
            Ok(spare) => {
                let surplus = self.write_state().log.stock_spare(spare);
                surplus.map_or(Ok(()), |surplus| self.log_dir.remove(&surplus.path))?;
                Ok(Spare::Made)
            }
            Err(KvError::NoSpace { .. }) => {
                self.space.set_low();
                Ok(Spare::Refused)
            }
            Err(error) => Err(self.stop_on(error)),
        }
    }

    /// Makes the segment for `frames` if they fit into none that is there.
    ///
    /// # Errors
    /// [`KvError::NoSpace`] and [`KvError::Stopped`]: the log is as before; [`KvError::Io`].
    pub(super) fn make_segment_for(
        &self,
        state: &mut RwLockWriteGuard<'_, State>,
        frames: &[Frame],
    ) -> Result<(), KvError> {
        let Some(file_bytes) = state.log.missing_segment(frames)? else { return Ok(()) };
        let number = state.log.reserve_spare_number();
        let spare = self.behind_gate(state, || create_spare_numbered(&self.log_dir, number, file_bytes))?;
        state.log.add_spare(spare);
        // A flush may have failed meanwhile.
        self.health.check()
    }
}
