//! Targets that were missing at a start behind which something may have been lost. What they have may be of files that nobody knows any more, or longer than metadata has it; so their
//! suspects are not confirmed before each of them was looked at. That is done once they are there, beside those who use the file system, and changes nothing: what is too much on a target can be
//! told from what somebody is just writing only by a start, before anybody is served. A target that has too much stays as it is, and is told of, until that start; new files go
//! to others meanwhile. In most cases nothing of what was lost is there, and it counts as compared within seconds.
//!
//! It is not kept in the log: a start behind which nothing may have been lost takes all targets that it misses for such, if something ever was.

use crate::MetaService;
use crate::reconcile::Standing;
use ashlar_rpc::{LastingSessions as _, Payload};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{Errno, InodeId, OfChains, TargetId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::time::Duration;

/// Suspects asked for at a time.
const PAGE: u32 = 256;
/// For as long as files may be what metadata does not say they are before that is told, and the time between two such warnings.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Files named with a warning.
const NAMED_MAX: usize = 8;

/// Files with their generation.
type Files = BTreeSet<(InodeId, u32)>;

/// What is known of the suspects of a target that was missing.
#[derive(Clone, Default)]
struct Looked {
    /// Suspects from before the target was back that do not agree with metadata, as far as is known; `None`: it was not asked yet.
    // LIMIT: 12 bytes for each file that a target changed within seconds before it was away.
    left: Option<Files>,
    told: Option<Duration>,
}

/// See the module. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Uncompared {
    // LIMIT: as there are targets.
    targets: Mutex<BTreeMap<TargetId, Looked>>,
    /// A thread looks.
    is_looking: AtomicBool,
}

impl Uncompared {
    /// Notes targets.
    pub(crate) fn note(&self, targets: impl Iterator<Item = TargetId>) {
        self.targets.lock().extend(targets.map(|target| (target, Looked::default())));
    }

    /// Whether suspects of `target` are still to be looked at.
    pub(crate) fn has(&self, target: TargetId) -> bool {
        self.targets.lock().contains_key(&target)
    }

    /// It has nothing that metadata does not know.
    pub(crate) fn forget(&self, target: TargetId) {
        self.targets.lock().remove(&target);
    }

    fn of(&self, target: TargetId) -> Looked {
        self.targets.lock().get(&target).cloned().unwrap_or_default()
    }

    fn put(&self, target: TargetId, looked: Looked) {
        self.targets.lock().insert(target, looked);
    }
}

/// A thread looks, until dropped.
struct Looking(Arc<MetaService>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.uncompared.is_looking.store(false, Release);
    }
}

impl MetaService {
    /// Looks at what targets have that were missing at the start, in a thread of its own: that may take long. To be called every few seconds.
    pub(crate) fn begin_looking(self: &Arc<Self>) {
        // Sessions from before the start may have written what they have not told yet.
        if self.is_awaiting() {
            return;
        }
        let mut there = self.online_targets();
        there.retain(|target| self.uncompared.has(*target));
        if there.is_empty() || self.uncompared.is_looking.swap(true, AcqRel) {
            return;
        }
        let looking = Looking(self.clone());
        let look = move || {
            for target in there {
                match looking.0.look_at_suspects(target) {
                    Ok(()) | Err(Errno::ENODEV) => {}
                    Err(errno) => {
                        tracing::warn!(%errno, %target, "what a target has that was missing at the start could not be looked at; trying again")
                    }
                }
            }
        };
        // One that does not start drops what it was given.
        if let Err(error) = self.env.tasks.spawn("ashlar-look", Box::new(look)) {
            tracing::warn!(%error, "what a target has that was missing at the start cannot be looked at; trying again");
        }
    }

    fn look_at_suspects(&self, target: TargetId) -> Result<(), Errno> {
        let mut looked = self.uncompared.of(target);
        let mut left = match looked.left.take() {
            Some(left) => left,
            None => {
                // ORDER: before they are listed. What it has acknowledged and not synced is no suspect yet.
                self.sync_target(target)?;
                self.all_suspects(target)?
            }
        };
        let mut differing = Files::new();
        while let Some((inode, generation)) = left.pop_first() {
            if self.is_ending() {
                return Ok(());
            }
            // Whoever has its shard now says what becomes of it.
            if self.is_here(inode.home()) && !self.is_as_known(target, inode, generation) {
                differing.insert((inode, generation));
            }
        }
        if differing.is_empty() {
            tracing::info!(%target, "a target that was missing at the start has nothing that metadata does not know");
            self.uncompared.forget(target);
            return Ok(());
        }
        let now = self.env.clock.monotonic();
        // What is being written, or cut, is as it is known in a moment.
        if looked.told.is_none_or(|told| now.saturating_sub(told) >= TELL_EVERY) {
            if looked.told.is_some() {
                let named: Vec<String> =
                    differing.iter().take(NAMED_MAX).map(|(inode, _)| inode.to_string()).collect();
                tracing::warn!(
                    %target, files = differing.len(), inodes = named.join(", "),
                    "a target has content that was lost with the end of the metadata log; the next start of this metadata server removes it"
                );
            }
            looked.told = Some(now);
        }
        self.uncompared.put(target, Looked { left: Some(differing), ..looked });
        Ok(())
    }

    fn all_suspects(&self, target: TargetId) -> Result<Files, Errno> {
        let (mut all, mut after) = (Files::new(), None);
        loop {
            let (found, _) = self.suspects(target, after, PAGE)?;
            let Some(last) = found.last() else { return Ok(all) };
            after = Some(*last);
            all.extend(found);
        }
    }

    /// Whether a start would find nothing to do about a suspect. One that cannot be looked at counts as another.
    fn is_as_known(&self, target: TargetId, inode: InodeId, generation: u32) -> bool {
        match self.standing(target, inode, generation) {
            Ok(Standing::IsTakenCareOf) => true,
            Ok(Standing::Unknown(chains)) => {
                let request = StorageRequest::Extent { target, inode, generation, chains };
                matches!(self.storage.call(&request, Payload::None), Ok(StorageReply::Extent(None)))
            }
            Ok(Standing::Live { mut layout, size }) => {
                let map = self.map.read().clone();
                // What it has of other chains it gets from whoever is in front of them.
                layout.chains.retain(|chain| map.head(*chain) == Some(target));
                let chains = OfChains::Only(layout.chains);
                let request = StorageRequest::Extent { target, inode, generation, chains };
                match self.storage.call(&request, Payload::None) {
                    Ok(StorageReply::Extent(None)) => true,
                    Ok(StorageReply::Extent(Some((index, len, _)))) => {
                        index * u64::from(layout.chunk_bytes) + u64::from(len) <= size
                    }
                    _ => false,
                }
            }
            Err(_) => false,
        }
    }
}
