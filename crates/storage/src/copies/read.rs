//! What changes nothing: reads of chunks, at any target in sync, what there is of whole files, at the head, and syncs.

use super::group::State;
use super::watch::SYNC_HANG_AFTER;
use super::{AtTarget, Copies, Group, SYNC_MAX};
use crate::answer::answer;
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Epoch, Errno, OfChains, TargetId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Copies {
    /// A look at one chunk.
    ///
    /// # Errors
    /// `EREMCHG` when it cannot be answered here for now, and what `run` answers.
    pub(super) fn read(
        &self,
        (at, group): (&AtTarget, &Group),
        chunk: ChunkId,
        payload: Payload<'_>,
        run: impl FnOnce(Payload<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let unchanged = self.read_lock(group.chunk(chunk));
        let may_read = || {
            let now = self.outside.env.clock.monotonic();
            if group.state.lock().replica.may_read(chunk, now) { Ok(()) } else { Err(Errno::EREMCHG) }
        };
        may_read()?;
        let reply = {
            let _at_disk = self.at_disk(at);
            run(payload)
        };
        if reply == Err(Errno::EIO) {
            drop(unchanged);
            return Err(self.failed_here(at, group, chunk));
        }
        // ORDER: once more: whoever has taken this one's place meanwhile may have changed it.
        may_read()?;
        reply
    }

    /// Whether what there is of whole files on a chain may be told here.
    pub(super) fn may_tell(&self, group: &Group) -> bool {
        let now = self.outside.env.clock.monotonic();
        group.state.lock().replica.may_tell(now)
    }

    /// Makes everything durable here.
    ///
    /// # Errors
    /// Those of the disk.
    pub(super) fn sync_here(&self, at: &AtTarget) -> Result<(), Errno> {
        let _at_disk = at.watch.enter(self.outside.env.clock.monotonic() + SYNC_HANG_AFTER);
        at.store.sync().map_err(|error| answer(at.id, &error))
    }

    /// Has what was made durable here of `groups` made durable behind. `under`: of the target in front, if one has passed it on.
    ///
    /// # Errors
    /// `EREMCHG` when one of them has changed meanwhile, or a target behind has not done it.
    pub(super) fn sync_behind(
        &self,
        at: &AtTarget,
        groups: &[(Arc<Group>, Epoch)],
        under: Option<CopyUnder>,
    ) -> Result<(), Errno> {
        let is_at = |state: &State, epoch: Epoch| {
            let member = state.replica.member();
            member.is_active() && member.epoch() == epoch
        };
        let mut behind: BTreeMap<TargetId, SmallVec<[ChainId; 4]>> = BTreeMap::new();
        for (group, epoch) in groups {
            let state = group.state.lock();
            // ORDER: who is behind is known of the epoch that the caller looks at, and of no other.
            if !is_at(&state, *epoch) {
                return Err(Errno::EREMCHG);
            }
            if let Some(next) = state.replica.successor().filter(|_| state.replica.is_behind_required()) {
                behind.entry(next).or_default().push(group.chain);
            }
        }
        let place = under.map_or(1, |under| under.place.saturating_add(1));
        for (target, chains) in behind {
            let request = StorageRequest::Sync { target, chains: OfChains::Only(chains) };
            let under = CopyUnder::between_servers(at.id, place);
            let synced = self.outside.peers.call_of_copy(under, &request, Payload::None, SYNC_MAX);
            synced.map_err(super::change::of_behind)?;
        }
        // What was acknowledged at an epoch that began meanwhile may be where nobody has synced.
        let is_same = |(group, epoch): &(Arc<Group>, Epoch)| is_at(&group.state.lock(), *epoch);
        if groups.iter().all(is_same) { Ok(()) } else { Err(Errno::EREMCHG) }
    }
}
