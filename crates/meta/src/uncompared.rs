//! Targets that were missing at a start behind which something may have been lost. What they have may be of files that nobody knows any more, or longer than metadata has it; so their
//! suspects are not confirmed before each of them was looked at. That is done once they are there, beside those who use the file system, and changes nothing: what is too much on a target can be
//! told from what somebody is just writing only by a start, before anybody is served. A target that has too much stays as it is, and is told of, until that start; new files go
//! to others while there are some, and get generations that hardly any file has had. In most cases nothing of what was lost is there, and it counts as compared within seconds.
//!
//! It is not kept in the log: a start behind which nothing may have been lost takes all targets that it misses for such, if something ever was.

use crate::MetaService;
use crate::reconcile::Standing;
use ashlar_namespace::lease::LeaseTable;
use ashlar_rpc::{LastingSessions as _, Payload};
use ashlar_types::message::{LeaseSet, StorageReply, StorageRequest};
use ashlar_types::{Errno, InodeId, OfChains, OpId, SessionId, TargetId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::time::Duration;

/// Suspects asked for at a time.
const PAGE: u32 = 256;
/// For as long as files may be what metadata does not say they are before that is told, and the time between two such warnings, and between two looks after the first few.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Looks that are made in turn: what is being written or removed is as it is known in a moment.
const FEW_LOOKS: u32 = 3;
/// Files named with a warning.
const NAMED_MAX: usize = 8;

/// Files with their generation.
type Files = BTreeSet<(InodeId, u32)>;

/// What was seen of a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// A start would find nothing to do.
    Known,
    /// There is more than metadata knows of.
    More,
    /// A record says what becomes of it, or that somebody writes it.
    TakenCareOf,
    /// Somebody writes it, or the target does not answer.
    Unsure,
}

/// What is known of the suspects of a target that was missing.
#[derive(Clone, Default)]
struct Looked {
    /// Suspects from before the target was back that do not agree with metadata, as far as is known; `None`: it was not asked yet.
    // LIMIT: 12 bytes for each file that a target changed within seconds before it was away.
    left: Option<Files>,
    looks: u32,
    /// When it was looked at last, and when was told last what there is too much.
    looked: Option<Duration>,
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
        let is_over = |since: Duration| self.env.clock.monotonic().saturating_sub(since) >= TELL_EVERY;
        if looked.looks >= FEW_LOOKS && !looked.looked.is_none_or(is_over) {
            return Ok(());
        }
        let left = match looked.left.take() {
            Some(left) => left,
            // Of a shard that is on its way nothing would be listed.
            None if !self.has_all_its_shards() => return Ok(()),
            None => {
                // ORDER: before they are listed. What it has acknowledged and not synced is no suspect yet.
                self.sync_target(target)?;
                self.all_suspects(target)?
            }
        };
        let (mut more, mut unsure) = (Files::new(), Files::new());
        for (inode, generation) in left {
            if self.is_ending() {
                return Ok(());
            }
            match self.look_at_suspect(target, inode, generation) {
                Seen::Known => {}
                Seen::More => drop(more.insert((inode, generation))),
                Seen::TakenCareOf | Seen::Unsure => drop(unsure.insert((inode, generation))),
            }
        }
        if more.is_empty() && unsure.is_empty() {
            tracing::info!(%target, "a target that was missing at the start has nothing that metadata does not know");
            self.uncompared.forget(target);
            return Ok(());
        }
        looked.looks = looked.looks.saturating_add(1);
        looked.looked = Some(self.env.clock.monotonic());
        // What is being removed is gone in a moment.
        if !more.is_empty() && looked.told.is_none_or(is_over) {
            if looked.told.is_some() {
                let named: Vec<String> =
                    more.iter().take(NAMED_MAX).map(|(inode, _)| inode.to_string()).collect();
                tracing::warn!(
                    %target, files = more.len(), inodes = named.join(", "),
                    "a target has content that was lost with the end of the metadata log; the next start of this metadata server removes it"
                );
            }
            looked.told = looked.looked;
        }
        more.extend(unsure);
        self.uncompared.put(target, Looked { left: Some(more), ..looked });
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

    /// Whether all shards that the map gives to this server are here.
    fn has_all_its_shards(&self) -> bool {
        let map = self.map.read().clone();
        let mut mine = map.shards.iter().filter(|shard| shard.primary == self.across.node());
        mine.all(|shard| self.is_here(shard.id))
    }

    /// What a start would find of a suspect, and nothing is done about it.
    fn look_at_suspect(&self, target: TargetId, inode: InodeId, generation: u32) -> Seen {
        if !self.is_here(inode.home()) {
            // Whoever has its shard now says what becomes of it.
            let is_mine = self.map.read().primary(inode.home()) == Some(self.across.node());
            return if is_mine { Seen::Unsure } else { Seen::Known };
        }
        // Most are as they are known, and nobody is asked to report for that.
        let seen = self.compare_suspect((target, inode, generation), |_| false);
        if seen == Seen::Known {
            return seen;
        }
        let writers = |leases: &LeaseTable| leases.conflicts_of_data(OpId::default().session, inode, false);
        let Ok(_quiet) = self.quiet(inode, writers) else { return Seen::Unsure };
        let has_told = |session| {
            let leases = self.leases.lock();
            leases.has_session(session) && !leases.held(session, inode).meets(LeaseSet::WRITING)
        };
        let still_write = !writers(&self.leases.lock()).is_empty();
        match self.compare_suspect((target, inode, generation), has_told) {
            // Somebody who still writes may write what was lost. Else the record is of a writer that has ended, and its length is yet to be found out.
            Seen::TakenCareOf if !still_write => Seen::Known,
            Seen::TakenCareOf => Seen::Unsure,
            seen => seen,
        }
    }

    /// Compares a suspect with what metadata knows, beside all who use the file. Records of writers do not count that have told everything, as `has_told` says.
    fn compare_suspect(
        &self,
        suspect @ (target, inode, generation): (TargetId, InodeId, u32),
        has_told: impl Fn(SessionId) -> bool,
    ) -> Seen {
        let map = self.map.read().clone();
        let end_of = |generation, chains| {
            let request = StorageRequest::Extent { target, inode, generation, chains };
            self.storage.call(&request, Payload::None)
        };
        let (told, limit) = match self.standing(suspect, has_told) {
            Ok(Standing::IsTakenCareOf) => return Seen::TakenCareOf,
            Err(_) => return Seen::Unsure,
            Ok(Standing::Unknown(chains)) => (end_of(generation, chains), None),
            Ok(Standing::Live { mut layout, size }) => {
                // What it has of other chains it gets from whoever is in front of them.
                layout.chains.retain(|chain| map.head(*chain) == Some(target));
                (
                    end_of(generation, OfChains::Only(layout.chains)),
                    Some((u64::from(layout.chunk_bytes), size)),
                )
            }
        };
        match (told, limit) {
            (Ok(StorageReply::Extent(None)), _) => Seen::Known,
            (Ok(StorageReply::Extent(Some((index, len, _)))), Some((chunk_bytes, size)))
                if index * chunk_bytes + u64::from(len) <= size =>
            {
                Seen::Known
            }
            (Ok(StorageReply::Extent(Some(_))), _) => Seen::More,
            // As at a start: one damaged chunk does not keep everything else from being confirmed.
            (Err(Errno::EIO), _) => {
                tracing::error!(%target, %inode, "a file could not be compared with its chunks; run `ashlar fsck`");
                Seen::Known
            }
            _ => Seen::Unsure,
        }
    }
}
