//! Whether a lane may still be used (`design.md` D13: errors in writing and syncing are final).

use crate::KvError;
use ashlar_env::Disk;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fine until stopped once, with the first reason.
pub(super) struct Health {
    disk: Arc<dyn Disk>,
    is_stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Health {
    /// Of a lane on `disk`.
    pub(super) fn new(disk: Arc<dyn Disk>) -> Health {
        Health { disk, is_stopped: AtomicBool::new(false), reason: Mutex::default() }
    }

    /// Ends the use of the lane because it was asked for.
    pub(super) fn close(&self) {
        self.reason.lock().get_or_insert_with(|| "it was closed".to_owned());
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Ends the use of the lane, because of `reason`.
    pub(super) fn stop(&self, reason: &str) {
        let mut first = self.reason.lock();
        if first.is_none() {
            tracing::error!(reason, "lane stopped");
            *first = Some(reason.to_owned());
        }
        self.is_stopped.store(true, Ordering::Release);
    }

    /// As [`Health::stop`], because of `error`, after `what`. Where the disk has failed, whoever opens the lane next is to know that something may be lost.
    pub(super) fn stop_after(&self, what: &str, error: &KvError) {
        let reason = format!("{what}{error}");
        self.stop(&reason);
        if error.may_have_lost() {
            note_loss(&*self.disk, &reason);
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(super) fn check(&self) -> Result<(), KvError> {
        if !self.is_stopped() {
            return Ok(());
        }
        let reason = self.reason.lock().clone();
        Err(KvError::Stopped { what: reason.unwrap_or_default() })
    }
}

/// Notes on a disk that has failed that something may be lost ([`Disk::note_loss`]).
pub(super) fn note_loss(disk: &dyn Disk, what: &str) {
    if let Err(error) = disk.note_loss(what) {
        tracing::error!(%error, disk = disk.describe(""), "a lane has stopped, and that cannot be noted: unmount and mount its file system before it is opened again");
    }
}
