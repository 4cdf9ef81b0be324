//! The switch that takes the target out of service (`design.md` D13): the first failed write or sync turns it, and it is
//! never turned back.

use crate::error::ChunkError;
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the target has stopped, and why.
#[derive(Default)]
pub(crate) struct StopSwitch {
    is_stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl StopSwitch {
    /// Stops the target, unless it is stopped already; the error for the caller.
    pub(crate) fn stop(&self, what: String, error: &dyn Display) -> ChunkError {
        let mut reason = self.reason.lock();
        if reason.is_none() {
            let first = format!("{what}: {error}");
            tracing::error!(reason = first, "the target stops");
            *reason = Some(first);
        }
        self.is_stopped.store(true, Ordering::Release);
        ChunkError::Stopped { what: reason.clone().unwrap_or_default() }
    }

    /// Ends the use of the target because it was asked for.
    pub(crate) fn close(&self) {
        self.reason.lock().get_or_insert_with(|| "it was closed".to_owned());
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
