//! Targets of which one is missing for metadata.

use super::World;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, TargetId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// See the module. Clients reach it.
pub struct Missing {
    storage: Arc<dyn StorageCalls>,
    target: TargetId,
    is_missing: Arc<AtomicBool>,
    /// It is there, and its disk does not answer: what it remembers it tells.
    hangs: bool,
}

impl Missing {
    /// A world with two targets of `capacity` bytes, of which metadata does not find `target` while `is_missing`.
    pub fn world(capacity: u64, target: TargetId, is_missing: &Arc<AtomicBool>) -> World {
        Missing::make(capacity, target, is_missing, false)
    }

    /// The same, with one whose disk does not answer.
    #[allow(dead_code, reason = "not every test has use for it")]
    pub fn hanging_world(capacity: u64, target: TargetId, hangs: &Arc<AtomicBool>) -> World {
        Missing::make(capacity, target, hangs, true)
    }

    fn make(capacity: u64, target: TargetId, is_missing: &Arc<AtomicBool>, hangs: bool) -> World {
        let is_missing = is_missing.clone();
        World::whose_metadata_calls(capacity, &[capacity], |storage| {
            Arc::new(Missing { storage, target, is_missing, hangs })
        })
    }
}

impl StorageCalls for Missing {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        if request.target() == self.target && self.is_missing.load(SeqCst) {
            match request {
                StorageRequest::Suspects { .. } if self.hangs => {}
                _ if self.hangs => return Err(Errno::ETIMEDOUT),
                _ => return Err(Errno::ENODEV),
            }
        }
        self.storage.call(request, payload)
    }
}
