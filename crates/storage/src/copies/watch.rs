//! Whether a disk answers: what is at it, and until when that may take.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// For how long a disk may be at one change, read, or note before it counts as hanging: shorter than anybody waits, and longer than a busy disk takes.
pub(super) const HANG_AFTER: Duration = Duration::from_secs(5);
/// The same for making durable all that there is.
pub(super) const SYNC_HANG_AFTER: Duration = Duration::from_secs(15);

/// See the module.
#[derive(Default)]
pub(super) struct Watch {
    // LIMIT: calls that are carried out.
    due: Mutex<BTreeMap<u64, Duration>>,
    next: AtomicU64,
}

/// Something is at the disk, until this is dropped.
pub(super) struct AtDisk<'a> {
    watch: &'a Watch,
    number: u64,
}

impl Drop for AtDisk<'_> {
    fn drop(&mut self) {
        self.watch.due.lock().remove(&self.number);
    }
}

impl Watch {
    /// Something that is to be over by `due` goes to the disk.
    pub fn enter(&self, due: Duration) -> AtDisk<'_> {
        let number = self.next.fetch_add(1, Relaxed);
        self.due.lock().insert(number, due);
        AtDisk { watch: self, number }
    }

    /// Whether something is not over that was to be.
    pub fn is_hanging(&self, now: Duration) -> bool {
        self.due.lock().values().any(|due| *due <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_hangs_while_something_is_late_at_it() {
        let watch = Watch::default();
        let at = |seconds: u64| Duration::from_secs(seconds);
        let slow = watch.enter(at(30));
        let quick = watch.enter(at(6));
        assert!(!watch.is_hanging(at(5)) && watch.is_hanging(at(6)));
        drop(quick);
        assert!(!watch.is_hanging(at(29)) && watch.is_hanging(at(30)));
        drop(slow);
        assert!(!watch.is_hanging(at(1000)));
    }
}
