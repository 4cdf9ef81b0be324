//! Changes of chunks: made here, then behind, then answered.

use super::watch::{HANG_AFTER, SYNC_HANG_AFTER};
use super::{AtTarget, Copies, Group, PASS_ON_MAX};
use crate::answer::answer;
use crate::call::changed_chunk;
use ashlar_chunkstore::{ChunkError, Lack};
use ashlar_replication::chain::{Begun, InFront, Outcome, Refused};
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChunkId, Errno, InodeId, OfChains, TargetId};
use smallvec::smallvec;
use std::sync::Arc;

/// A deletion in a chain that has begun.
pub(super) struct Deletion {
    group: Arc<Group>,
    begun: Begun<TargetId>,
    at_place: u8,
}

/// Who has passed something on.
pub(super) fn in_front(under: CopyUnder) -> InFront<TargetId> {
    InFront { id: under.from, epoch: under.epoch, turn: under.turn }
}

/// What a caller is told of an error of the target behind: to ask again, until the group is another one; but he can do something about a full disk.
pub(super) fn of_behind(errno: Errno) -> Errno {
    if errno == Errno::ENOSPC { errno } else { Errno::EREMCHG }
}

fn under_of(at: &AtTarget, begun: Begun<TargetId>, place: u8) -> CopyUnder {
    CopyUnder { from: at.id, epoch: begun.epoch, turn: begun.turn, place, is_piece: false }
}

impl Copies {
    /// A change of one chunk, of a caller or passed on by the target in front.
    ///
    /// # Errors
    /// `EREMCHG` when it is to be asked for again, and what `run` answers.
    pub(super) fn change(
        &self,
        (at, group): (&AtTarget, &Group),
        (request, payload): (&StorageRequest, Payload<'_>),
        under: Option<CopyUnder>,
        run: impl FnOnce(Payload<'_>) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let chunk = changed_chunk(request).ok_or(Errno::EINVAL)?;
        let _deletions = self.read_lock(group.file(chunk.inode));
        let _alone = self.write_lock(group.chunk(chunk));
        if under.is_none() {
            let at_disk = self.at_disk(at);
            let looked = group.store.look(chunk);
            drop(at_disk);
            if let Err(ChunkError::Corrupt { .. }) = looked {
                // ORDER: before it is noted as changed. Nothing of it can be, and who is away may have it whole.
                return Err(self.of_damaged(at, group, chunk));
            }
        }
        let begun = self.begin_change((at, group), chunk, under)?;
        let data = if let Payload::Write(data) = &payload { Some(*data) } else { None };
        let is_lost = matches!(request, StorageRequest::CopyLost { .. });
        let done = {
            // What is lost is durable before the index has it.
            let hangs_after = if is_lost { SYNC_HANG_AFTER } else { HANG_AFTER };
            let _at_disk = at.watch.enter(self.outside.env.clock.monotonic() + hangs_after);
            run(payload)
        };
        // ORDER: before the rest is sent. What was there may have been an error, and what comes is content.
        let done = if is_lost { done.and_then(|done| self.sync_here(at).map(|()| done)) } else { done };
        let passed_on = match (&done, begun.on) {
            (Ok(_), Some(next)) => {
                let payload = data.map_or(Payload::None, Payload::Write);
                self.pass_on((at, group), (next, begun), request, payload)
            }
            _ => Ok(()),
        };
        let outcome = match (&done, &passed_on) {
            (Ok(_), Ok(())) => Outcome::Made,
            (Ok(_), Err(_)) => Outcome::NotBehind,
            (Err(_), _) => Outcome::Failed,
        };
        let may_answer = group.state.lock().replica.end(chunk, begun, outcome);
        let reply = match done {
            Err(Errno::EIO) if at.store.stopped().is_some() => {
                return Err(self.of_target_out(at, group.chain));
            }
            // Something of it is to be kept and cannot be read: it is brought back, and the caller asks again.
            Err(Errno::EIO) if under.is_none() => return Err(self.of_damaged(at, group, chunk)),
            done => done?,
        };
        match passed_on {
            _ if may_answer => Ok(reply),
            Err(errno) => Err(of_behind(errno)),
            Ok(()) => Err(Errno::EREMCHG),
        }
    }

    fn begin_change(
        &self,
        (at, group): (&AtTarget, &Group),
        chunk: ChunkId,
        under: Option<CopyUnder>,
    ) -> Result<Begun<TargetId>, Errno> {
        let from = under.map(in_front);
        let mut has_settled = false;
        loop {
            let at_disk = self.at_disk(at);
            let mut state = group.state.lock();
            // Who is not heard is about to be removed. Nobody waits for an answer that does not come, and everybody goes on at the moment at which it is.
            if state.replica.is_behind_silent(self.outside.env.clock.monotonic()) {
                return Err(Errno::EREMCHG);
            }
            let mut out = Vec::new();
            let begun = match (from, under) {
                (Some(from), Some(CopyUnder { is_piece: true, .. })) => {
                    state.replica.begin_piece(chunk, from, &mut out)
                }
                _ => state.replica.begin(chunk, from, &mut out),
            };
            match begun {
                Ok(begun) => {
                    // ORDER: before the first byte is changed.
                    let noted = group.note_change(&mut state, chunk);
                    if let Err(error) = noted {
                        state.replica.end(chunk, begun, Outcome::Failed);
                        return Err(answer(at.id, &error));
                    }
                    return Ok(begun);
                }
                Err(Refused::NotNow) => return Err(Errno::EREMCHG),
                Err(Refused::Unsettled) if has_settled => return Err(Errno::EREMCHG),
                Err(Refused::Unsettled) => {
                    drop((state, at_disk));
                    // Whoever calls holds the chunk.
                    self.settle_locked((at, group), chunk).map_err(of_behind)?;
                    has_settled = true;
                }
            }
        }
    }

    /// Has the target behind make a change that was made here.
    fn pass_on(
        &self,
        (at, group): (&AtTarget, &Group),
        (next, begun): (TargetId, Begun<TargetId>),
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<(), Errno> {
        let place = group.state.lock().replica.place() + 1;
        let under = under_of(at, begun, place);
        let request = request.clone().at(next);
        self.outside.peers.call_of_copy(under, &request, payload, PASS_ON_MAX).map(drop)
    }

    /// Begins a deletion of chunks of one generation of a file, from an index on, in `groups`. Whoever calls has the file locked.
    ///
    /// # Errors
    /// `EREMCHG` when one of them does not take it now.
    pub(super) fn begin_deletions(
        &self,
        at: &AtTarget,
        groups: Vec<Arc<Group>>,
        first: ChunkId,
        under: Option<CopyUnder>,
    ) -> Result<Vec<Deletion>, Errno> {
        let from = under.map(in_front);
        let mut deletions = Vec::with_capacity(groups.len());
        for group in groups {
            let _at_disk = self.at_disk(at);
            let mut state = group.state.lock();
            let begun = state.replica.begin_deletion(from, &mut Vec::new()).map_err(|_| Errno::EREMCHG)?;
            let noted = group.note_lack(&mut state, Lack::Deletion(first));
            noted.map_err(|error| answer(at.id, &error))?;
            let at_place = state.replica.place();
            drop(state);
            deletions.push(Deletion { group, begun, at_place });
        }
        Ok(deletions)
    }

    /// Has what was deleted here deleted behind.
    ///
    /// # Errors
    /// `EREMCHG` when it may not be answered.
    pub(super) fn end_deletions(
        &self,
        at: &AtTarget,
        deletions: Vec<Deletion>,
        (inode, generation, from_index): (InodeId, u32, u64),
    ) -> Result<(), Errno> {
        let mut ended = Ok(());
        for Deletion { group, begun, at_place } in deletions {
            let passed_on = begun.on.map_or(Ok(()), |target| {
                let chains = OfChains::Only(smallvec![group.chain]);
                let request =
                    StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
                self.delete_behind(under_of(at, begun, at_place + 1), &request)
            });
            let outcome = if passed_on.is_ok() { Outcome::Made } else { Outcome::NotBehind };
            if !group.state.lock().replica.end_deletion(begun, outcome) {
                ended = Err(Errno::EREMCHG);
            }
        }
        ended
    }

    /// Has the target of a deletion carry it out to its end.
    pub(super) fn delete_behind(&self, under: CopyUnder, request: &StorageRequest) -> Result<(), Errno> {
        loop {
            match self.outside.peers.call_of_copy(under, request, Payload::None, PASS_ON_MAX)? {
                StorageReply::Deleted { is_done: false, .. } => {}
                _ => return Ok(()),
            }
        }
    }
}
