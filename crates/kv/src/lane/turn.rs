//! What one thread does at a time, where the others may have to wait for a disk: a lock whose waiting a simulation knows of.

use ashlar_env::{Signal, Tasks};
use parking_lot::Mutex;
use std::time::Duration;

/// How long one that waits sleeps at most before it looks again.
const RECHECK: Duration = Duration::from_millis(20);

/// See the module.
pub(super) struct Turn {
    is_taken: Mutex<bool>,
    ended: Signal,
}

/// The turn of whoever has this.
pub(super) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.ended.notify_all();
    }
}

impl Turn {
    pub(super) fn new(tasks: &dyn Tasks) -> Turn {
        Turn { is_taken: Mutex::default(), ended: tasks.signal() }
    }

    /// Takes the turn, after a moment's wait if somebody has it; nothing if he still has.
    pub(super) fn try_take(&self) -> Option<Taken<'_>> {
        let mut is_taken = self.is_taken.lock();
        if *is_taken {
            self.ended.wait_for(&mut is_taken, RECHECK);
        }
        let is_free = !std::mem::replace(&mut *is_taken, true);
        is_free.then(|| Taken(self))
    }

    /// Takes the turn, whenever it comes.
    pub(super) fn take(&self) -> Taken<'_> {
        loop {
            if let Some(taken) = self.try_take() {
                return taken;
            }
        }
    }

    /// Waits until nobody has the turn, a moment at most.
    pub(super) fn wait(&self) {
        let mut is_taken = self.is_taken.lock();
        if *is_taken {
            self.ended.wait_for(&mut is_taken, RECHECK);
        }
    }
}
