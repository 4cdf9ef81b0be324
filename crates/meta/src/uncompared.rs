//! Targets that were missing at a start after which something may have been lost. What they have may be of files that nobody knows any more, or longer than metadata
//! has it; so their suspects are not confirmed before they were compared, which is done once they are there, beside those who use the file system: nobody
//! is granted anything on a file while it is compared, and whoever writes it tells first what he has written. Until then other targets get what is new.
//!
//! It is not kept in the log: a start after which nothing may have been lost takes all targets that it misses for such, if something ever was.

use crate::MetaService;
use ashlar_rpc::LastingSessions as _;
use ashlar_types::{Errno, TargetId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};

/// See the module. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Uncompared {
    // LIMIT: as there are targets.
    targets: Mutex<BTreeSet<TargetId>>,
    /// A thread compares some.
    is_comparing: AtomicBool,
}

impl Uncompared {
    /// Notes targets.
    pub(crate) fn note(&self, targets: impl Iterator<Item = TargetId>) {
        self.targets.lock().extend(targets);
    }

    /// Whether the suspects of `target` are still to be compared.
    pub(crate) fn has(&self, target: TargetId) -> bool {
        self.targets.lock().contains(&target)
    }

    /// Its suspects were compared.
    pub(crate) fn forget(&self, target: TargetId) {
        self.targets.lock().remove(&target);
    }
}

/// A thread compares, until dropped.
struct Comparing(Arc<MetaService>);

impl Drop for Comparing {
    fn drop(&mut self) {
        self.0.uncompared.is_comparing.store(false, Release);
    }
}

impl MetaService {
    /// Compares what targets have that were missing at the start, in a thread of its own: that may take long. To be called every few seconds.
    pub(crate) fn begin_comparing(self: &Arc<Self>) {
        // Sessions from before the start may have written what they have not told yet.
        if self.is_awaiting() {
            return;
        }
        let mut there = self.online_targets();
        there.retain(|target| self.uncompared.has(*target));
        if there.is_empty() || self.uncompared.is_comparing.swap(true, AcqRel) {
            return;
        }
        let comparing = Comparing(self.clone());
        let compare = move || {
            for target in there {
                comparing.0.compare_late(target);
            }
        };
        // One that does not start drops what it was given.
        if let Err(error) = self.env.tasks.spawn("ashlar-compare", Box::new(compare)) {
            tracing::warn!(%error, "what a target has cannot be compared with metadata; trying again");
        }
    }

    /// The same of one target.
    fn compare_late(&self, target: TargetId) {
        match self.compare_and_confirm(target) {
            Ok(0) => {}
            Ok(found) => {
                tracing::info!(%target, files = found, "compared what a target has, that was missing at the start, with metadata")
            }
            // It has gone again.
            Err(Errno::ENODEV) => {}
            Err(errno) => {
                tracing::warn!(%errno, %target, "what a target has, that was missing at the start, could not be compared with metadata; trying again")
            }
        }
    }

    fn compare_and_confirm(&self, target: TargetId) -> Result<usize, Errno> {
        // ORDER: what becomes a suspect from here on is not covered by the mark: metadata knows it, and confirms it later.
        let (_, mark) = self.suspects(target, None, 1)?;
        let found = self.reconcile_target(target)?;
        if found > 0 {
            // ORDER: as at a start.
            self.sync_target(target)?;
            self.lane.flush_all().map_err(|error| self.answer(&error.into()))?;
            self.storage.call(&self.confirmation(target, mark), ashlar_rpc::Payload::None)?;
        }
        self.uncompared.forget(target);
        Ok(found)
    }
}
