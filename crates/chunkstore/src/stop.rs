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
    /// What may be lost by that is noted on the disk, for the next open.
    is_noted: AtomicBool,
}

impl StopSwitch {
    /// Of a target on `disk`, which goes on.
    pub(crate) fn new(disk: Arc<dyn Disk>) -> StopSwitch {
        let (is_stopped, is_noted) = (AtomicBool::new(false), AtomicBool::new(false));
        StopSwitch { disk, is_stopped, reason: Mutex::default(), is_noted }
    }

    /// Stops the target, unless it is stopped already; the error for the caller.
    pub(crate) fn stop(&self, what: String, error: &dyn Display) -> ChunkError {
        let mut reason = self.reason.lock();
        if reason.is_none() {
            let first = format!("{what}: {error}");
            tracing::error!(reason = first, "the target stops");
            *reason = Some(first);
        }
        self.is_stopped.store(true, Ordering::Release);
        let what = reason.clone().unwrap_or_default();
        drop(reason);
        self.note(&what);
        ChunkError::Stopped { what }
    }

    /// Notes on the disk that what was not synced may be lost, unless that is done. The disk may not answer to that either: it is tried again with each turn of the background.
    fn note(&self, what: &str) {
        if self.is_noted.load(Ordering::Acquire) {
            return;
        }
        match self.disk.note_loss(what) {
            Ok(()) => self.is_noted.store(true, Ordering::Release),
            Err(error) => {
                tracing::error!(%error, disk = self.disk.describe(""), "the target has stopped, and that cannot be noted: unmount and mount its file system before it is used again");
            }
        }
    }

    /// Notes what [`StopSwitch::stop`] could not note.
    pub(crate) fn note_again(&self) {
        let reason = self.reason.lock().clone();
        match reason {
            Some(what) if what != CLOSED => self.note(&what),
            _ => {}
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

    /// Turns the switch when `error` says that the index stopped; hands the error on.
    pub(crate) fn observe(&self, error: ChunkError) -> ChunkError {
        match error {
            ChunkError::Stopped { what } => self.stop("index".into(), &what),
            other => other,
        }
    }
}
