//! Reports of size and times that have ended, so that whoever asks metadata for attributes knows whether the answer may be from before one.

use ashlar_types::InodeId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// LIMIT: of so many it is known whose they were; who has missed more takes one for his.
const RECENT: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reports {
    count: AtomicU64,
    recent: Mutex<[InodeId; RECENT]>,
}

impl Default for Reports {
    fn default() -> Reports {
        Reports { count: AtomicU64::new(0), recent: Mutex::new([InodeId(0); RECENT]) }
    }
}

impl Reports {
    /// How many have ended.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// One of `inode` has ended. ORDER: before its file forgets what it told, so that whoever misses that there finds this here.
    pub(crate) fn note(&self, inode: InodeId) {
        let mut recent = self.recent.lock();
        let count = self.count.load(SeqCst);
        recent[count as usize % RECENT] = inode;
        self.count.store(count + 1, SeqCst);
    }

    /// Whether one of `inode` has ended, perhaps, since there were `before`.
    pub(crate) fn has_since(&self, before: u64, inode: InodeId) -> bool {
        if self.count() == before {
            return false;
        }
        let recent = self.recent.lock();
        let now = self.count();
        now - before > RECENT as u64 || (before..now).any(|number| recent[number as usize % RECENT] == inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_reports_ended_is_known_of_the_last_ones() {
        let reports = Reports::default();
        let (one, other) = (InodeId(7), InodeId(8));
        assert!(!reports.has_since(0, one));
        reports.note(one);
        assert!(reports.has_since(0, one) && !reports.has_since(0, other) && !reports.has_since(1, one));
        for _ in 0..RECENT {
            reports.note(other);
        }
        assert!(reports.has_since(0, one), "it cannot be told any more");
        assert!(!reports.has_since(1, one) && reports.has_since(1, other));
    }
}
