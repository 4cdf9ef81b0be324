//! The switch that takes the target out of service (`design.md` D13): the first failed write or sync turns it, and it is
//! never turned back.

use crate::error::ChunkError;
use ashlar_env::Disk;
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The reason of one that was closed.
const CLOSED: &str = "it was closed";

/// Whether the target has stopped, and why.
pub(crate) struct StopSwitch {
    disk: Arc<dyn Disk>,
    is_stopped: AtomicBool,
    reason: Mutex<Option<String>>,
    /// A write or a sync has failed.
    has_failed: AtomicBool,
    /// What may be lost by that is to be noted on the disk, for the next open.
    is_to_note: AtomicBool,
}

impl StopSwitch {
    /// Of a target on `disk`, which goes on.
    pub(crate) fn new(disk: Arc<dyn Disk>) -> StopSwitch {
        StopSwitch {
            disk,
            is_stopped: AtomicBool::new(false),
            reason: Mutex::default(),
            has_failed: AtomicBool::new(false),
            is_to_note: AtomicBool::new(false),
        }
    }

    /// Stops the target, unless it is stopped already, because a write or a sync has failed; the error for the caller.
    pub(crate) fn stop(&self, what: String, error: &dyn Display) -> ChunkError {
        // What fails after a stop in good order has nothing left to lose.
        let is_closed = self.reason.lock().as_deref() == Some(CLOSED);
        let stopped = self.stop_for(what, error);
        if !is_closed && !self.has_failed.swap(true, Ordering::AcqRel) {
            self.is_to_note.store(true, Ordering::Release);
            self.note_again();
        }
        stopped
    }

    /// The same for a reason for which nothing is lost, or is noted as that by whoever found it.
    fn stop_for(&self, what: String, error: &dyn Display) -> ChunkError {
        let mut reason = self.reason.lock();
        if reason.is_none() {
            let first = format!("{what}: {error}");
            tracing::error!(reason = first, "the target stops");
            *reason = Some(first);
        }
        self.is_stopped.store(true, Ordering::Release);
        ChunkError::Stopped { what: reason.clone().unwrap_or_default() }
    }

    /// Notes on the disk that what was not synced may be lost, if that is to be noted. The disk may not answer to that either: it is tried again with each turn of the background.
    pub(crate) fn note_again(&self) {
        if !self.is_to_note.load(Ordering::Acquire) {
            return;
        }
        let reason = self.reason.lock().clone().unwrap_or_default();
        match self.disk.note_loss(&reason) {
            Ok(()) => self.is_to_note.store(false, Ordering::Release),
            Err(error) => {
                tracing::error!(%error, disk = self.disk.describe(""), "the target has stopped, and that is not noted yet: if it cannot be, unmount and mount its file system before it is used again");
            }
        }
    }

    /// Ends the use of the target because it was asked for.
    pub(crate) fn close(&self) {
        self.reason.lock().get_or_insert_with(|| CLOSED.to_owned());
        self.is_stopped.store(true, Ordering::Release);
    }

    /// # Errors
    /// [`ChunkError::Stopped`] with the first error.
    pub(crate) fn check(&self) -> Result<(), ChunkError> {
        if !self.is_stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(ChunkError::Stopped { what: self.reason.lock().clone().unwrap_or_default() })
    }

    /// Turns the switch when `error` says that the index stopped, which has noted what may be lost; hands the error on.
    pub(crate) fn observe(&self, error: ChunkError) -> ChunkError {
        match error {
            ChunkError::Stopped { what } => self.stop_for("index".into(), &what),
            other => other,
        }
    }
}
