//! Whether a lane may still be used (`design.md` D13: errors in writing and syncing are final).

use crate::KvError;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Fine until stopped once, with the first reason.
#[derive(Debug, Default)]
pub(super) struct Health {
    is_stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Health {
    /// Ends the use of the lane because it was asked for.
    pub(super) fn close(&self) {
        self.reason.lock().get_or_insert_with(|| "it was closed".to_owned());
        self.is_stopped.store(true, Ordering::Release);
    }

    pub(super) fn stop(&self, reason: &str) {
        let mut first = self.reason.lock();
        if first.is_none() {
            tracing::error!(reason, "lane stopped");
            *first = Some(reason.to_owned());
        }
        self.is_stopped.store(true, Ordering::Release);
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
