//! What other targets of the same chains ask.

use super::change::in_front;
use super::group::State;
use super::{AtTarget, Copies, Group};
use crate::StorageService;
use crate::answer::answer;
use crate::call::carry_out;
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Epoch, Errno, NodeId, OfChains, TargetId};
use parking_lot::MutexGuard;
use std::sync::Arc;

// LIMIT: of one answer.
const UNCERTAIN_MAX: usize = 4096;

impl Copies {
    /// See [`ashlar_rpc::StoragePeers::call_of_copy`].
    ///
    /// # Errors
    /// As of that.
    pub(crate) fn call(
        &self,
        service: &StorageService,
        (node, under): (NodeId, CopyUnder),
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        let is_his = self.map().target(under.from).is_some_and(|target| target.node == node);
        if !is_his {
            return Err(Errno::EACCES);
        }
        let at = self.at(request.target()).ok_or(Errno::ENODEV)?;
        let group = |chain: ChainId| at.group(chain).ok_or(Errno::EREMCHG);
        match request {
            StorageRequest::CopyBeacon { from, chains, .. } if *from == under.from => {
                Ok(StorageReply::CopyGranted(self.grant(&at, *from, chains)))
            }
            StorageRequest::CopyCompare { chain, after, .. } => {
                self.tell_what_there_is(&*group(*chain)?, under, *after)
            }
            StorageRequest::TakeLossMark { chain, mark, .. } => {
                let group = group(*chain)?;
                drop(self.require_in_front_now(&group, under)?);
                {
                    let mut taken = group.mark_taken.lock();
                    // One of an earlier version has no turns.
                    if under.turn > 0 && *taken > (under.epoch, under.turn) {
                        return Ok(StorageReply::Done);
                    }
                    *taken = (under.epoch, under.turn);
                    at.store.take_loss_mark(*chain, Some(*mark)).map_err(|error| answer(at.id, &error))?;
                }
                self.pass_loss_mark_on(&at, &group, under)?;
                Ok(StorageReply::Done)
            }
            StorageRequest::CopyEmpty { chain, from, .. } => self.empty(&at, &*group(*chain)?, under, *from),
            StorageRequest::CopyBlocks { chain, chunk, blocks, .. } => {
                self.tell_blocks(&at, &*group(*chain)?, (*chunk, blocks, under))
            }
            StorageRequest::CopyAgain { from, chain, chunk, .. } if *from == under.from => {
                let is_taken = group(*chain)?.state.lock().replica.wanted_again(*chunk, *from, under.epoch);
                if is_taken { Ok(StorageReply::Done) } else { Err(Errno::EREMCHG) }
            }
            StorageRequest::CopyDigests { chain, from, to, .. } => {
                let group = group(*chain)?;
                self.require_in_front(&group, under)?;
                let (digests, next) = self.tell_digests((&at, &group), under, (*from, *to))?;
                Ok(StorageReply::CopyDigests { digests, next })
            }
            StorageRequest::CopyBeacon { .. } | StorageRequest::CopyAgain { .. } => Err(Errno::EACCES),
            StorageRequest::CopySettled { chain, chunk, .. } => {
                let group = group(*chain)?;
                // ORDER: behind the pieces of it.
                let _deletions = self.read_lock(group.file(chunk.inode));
                let _alone = self.write_lock(group.chunk(*chunk));
                self.take_settled((&at, &group), under, *chunk)
            }
            StorageRequest::DeleteGeneration { chains: OfChains::Only(chains), .. } if chains.len() == 1 => {
                let group = group(chains[0])?;
                self.delete_for(service, (&at, group), under, request)
            }
            StorageRequest::Sync { chains: OfChains::Only(chains), .. } => {
                // ORDER: at one epoch from here to the end, at which the asker is in front. One that has left, or has not begun yet, cannot say who is behind, and nothing would be durable there.
                let behind_him = |chain: &ChainId| {
                    let group = group(*chain)?;
                    epoch_behind(&group, under.from).map(|epoch| (group, epoch))
                };
                let groups: Vec<_> = chains.iter().map(behind_him).collect::<Result<_, _>>()?;
                self.sync_here(&at)?;
                self.sync_behind(&at, &groups, Some(under))?;
                Ok(StorageReply::Done)
            }
            _ => {
                let group = group(request.chain().ok_or(Errno::EINVAL)?)?;
                self.change((&at, &group), (request, payload), Some(under), |payload| {
                    let done = carry_out(service, &at.store, request, payload, &|_| true);
                    done.map_err(|error| {
                        service.report(at.id, &error);
                        answer(at.id, &error)
                    })
                })
            }
        }
    }

    /// The group of a chain, at the epoch at which the target in front asks.
    fn require_in_front_now<'a>(
        &self,
        group: &'a Group,
        under: CopyUnder,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        let state = group.state.lock();
        let is_in_front = state.replica.predecessor() == Some(under.from);
        let member = state.replica.member();
        let is_now = is_in_front && member.is_active() && member.epoch() == under.epoch;
        is_now.then_some(state).ok_or(Errno::EREMCHG)
    }

    /// What is here of a chain, for the target in front.
    fn tell_what_there_is(
        &self,
        group: &Group,
        under: CopyUnder,
        after: Option<ChunkId>,
    ) -> Result<StorageReply, Errno> {
        let state = self.require_in_front_now(group, under)?;
        let mut all = state.replica.uncertain();
        all.extend(&state.noted);
        let mut uncertain: Vec<ChunkId> =
            all.into_iter().filter(|chunk| after.is_none_or(|after| *chunk > after)).collect();
        let has_more = uncertain.len() > UNCERTAIN_MAX;
        uncertain.truncate(UNCERTAIN_MAX);
        Ok(StorageReply::CopyCompared { in_sync_at: state.in_sync_at, uncertain, has_more })
    }

    /// Deletes what there is of a chain that is sent whole.
    fn empty(
        &self,
        at: &AtTarget,
        group: &Group,
        under: CopyUnder,
        from: Option<ChunkId>,
    ) -> Result<StorageReply, Errno> {
        let failed = |error| answer(at.id, &error);
        let note = {
            let mut state = group.state.lock();
            if !state.replica.empties_here(in_front(under), &mut Vec::new()) {
                return Err(Errno::EREMCHG);
            }
            state.in_sync_at.take().map(|_| state.note())
        };
        if let Some(note) = note {
            // ORDER: before anything is gone that it speaks of.
            group.store.note_copy(group.chain, Some(note.encode())).map_err(failed)?;
        }
        let deleted = group.store.delete_of_chain(from, &|chain| chain == group.chain).map_err(failed)?;
        Ok(StorageReply::CopyEmptied(deleted.next))
    }

    fn take_settled(
        &self,
        (at, group): (&AtTarget, &Group),
        under: CopyUnder,
        chunk: ChunkId,
    ) -> Result<StorageReply, Errno> {
        let is_settled =
            || group.state.lock().replica.settled_in_front(chunk, in_front(under), &mut Vec::new());
        if !is_settled() {
            if !group.state.lock().replica.is_doubtful(chunk) {
                // What has not come is nowhere in front, and does not hold up the rest.
                self.was_sent_again(at, group, chunk);
            }
            // Who is further behind may lack it still.
            self.settle_locked((at, group), chunk)?;
            if !is_settled() {
                return Err(Errno::EREMCHG);
            }
        }
        self.was_sent_again(at, group, chunk);
        Ok(StorageReply::Done)
    }

    fn delete_for(
        &self,
        service: &StorageService,
        (at, group): (&AtTarget, Arc<Group>),
        under: CopyUnder,
        request: &StorageRequest,
    ) -> Result<StorageReply, Errno> {
        let StorageRequest::DeleteGeneration { inode, generation, from_index, .. } = *request else {
            return Err(Errno::EINVAL);
        };
        let locked = group.clone();
        let _alone = self.write_lock(locked.file(inode));
        let first = ChunkId { inode, generation, index: from_index };
        let chain = group.chain;
        let begun = self.begin_deletions(at, vec![group], first, Some(under))?;
        let deleted = {
            let _at_disk = self.at_disk(at);
            carry_out(service, &at.store, request, Payload::None, &|found| found == Some(chain))
                .map_err(|error| answer(at.id, &error))
        };
        self.end_deletions(at, begun, (inode, generation, from_index))?;
        deleted
    }
}

/// The epoch at which `from` is in front of this target, which takes part.
fn epoch_behind(group: &Group, from: TargetId) -> Result<Epoch, Errno> {
    let state = group.state.lock();
    let member = state.replica.member();
    let is_behind = state.replica.predecessor() == Some(from) && member.is_active();
    is_behind.then(|| member.epoch()).ok_or(Errno::EREMCHG)
}
