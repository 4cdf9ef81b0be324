//! A chain that comes from another target: who may change what of it is here.

use super::at_target::note_of;
use super::{Moves, Place};
use crate::answer::answer;
use crate::call::carry_out;
use crate::{InUse, StorageService};
use ashlar_chunkstore::{ChainNote, ChunkStore};
use ashlar_replication::hand_over::chain::{self, Copier, Note, Seen, Taking};
use ashlar_rpc::wire::CopyUnder;
use ashlar_rpc::{MoveAttempt, Payload, StoragePeers};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{ChainId, ChunkId, Epoch, Errno, NodeId, OfChains, TargetId};
use parking_lot::RwLock;
use std::sync::Arc;

/// See the module.
pub(super) struct Incoming {
    /// Who copies, by which move. Held while he changes something, so that a later one begins when that is over.
    taking: RwLock<Taking<SessionOwner>>,
}

fn copier((from, since): (MoveAttempt, Epoch)) -> Copier<SessionOwner> {
    Copier { owner: from.owner, number: from.number, since }
}

impl Moves {
    /// Chains that have come, or that are not to come any more, take no changes from peers.
    pub(super) fn forget_incoming(&self) {
        let map = self.map();
        let targets: Vec<_> = self.targets.read().iter().map(|(id, at)| (*id, at.clone())).collect();
        for (target, at) in targets {
            // Whoever holds it may be waiting for a disk.
            let Some(mut incoming) = at.incoming.try_lock() else { continue };
            incoming.retain(|id, incoming| {
                let (Some(taking), Some(seen)) = (incoming.taking.try_read(), Seen::of(&map, *id)) else {
                    return true;
                };
                !chain::is_over(seen, target, taking.since())
            });
        }
    }

    /// The chain that comes to `place`, if one does.
    fn incoming(&self, (target, chain): Place) -> Option<Arc<Incoming>> {
        self.at(target).incoming.lock().get(&chain).cloned()
    }

    /// Whether a chain comes to `place`, as far as anybody knows here.
    pub(super) fn is_coming(&self, (target, chain): Place) -> bool {
        self.at(target).incoming.lock().contains_key(&chain)
    }

    fn begin_incoming(
        &self,
        from: MoveAttempt,
        store: &ChunkStore,
        place @ (target, chain): Place,
        (epoch, at): (Epoch, Option<ChunkId>),
    ) -> Result<StorageReply, Errno> {
        let own = copier((from, epoch));
        self.require_coming(from, place, epoch)?;
        if at.is_none() {
            self.take_copier(place, own)?;
            let incoming = self.incoming(place).ok_or(Errno::ENOTCONN)?;
            let known = incoming.taking.read();
            if known.takes(&own) {
                let at_target = self.at(target);
                let _alone = at_target.noting.lock();
                store.note_chain(chain, None).map_err(|error| answer(target, &error))?;
            }
        }
        let incoming = self.incoming(place).ok_or(Errno::ENOTCONN)?;
        let known = incoming.taking.read();
        if !known.takes(&own) {
            return Err(Errno::ENOTCONN);
        }
        // ORDER: once more: nothing is deleted of a chain that is this target's by now.
        self.require_coming(from, place, epoch)?;
        if at.is_none() {
            // What was told here of the chain, when it was here before, is not what is told with it where it comes from.
            store.take_loss_mark(chain, None).map_err(|error| answer(target, &error))?;
        }
        let deleted =
            store.delete_of_chain(at, &|found| found == chain).map_err(|error| answer(target, &error))?;
        Ok(StorageReply::MoveBegun(deleted.next))
    }

    /// Checks that the map says that a chain comes here from the server of `from` by the move of `epoch`.
    fn require_coming(&self, from: MoveAttempt, (target, id): Place, epoch: Epoch) -> Result<(), Errno> {
        let map = self.map();
        // INVARIANT: what is noted of a chain goes by a map that the next start has, too: by one from before it had left here for the last time it would be served.
        if map.epoch < epoch || !(self.outside.is_kept)(map.epoch) {
            return Err(Errno::EREMCHG);
        }
        let seen = Seen::of(&map, id).ok_or(Errno::ESTALE)?;
        let head = seen.head.and_then(|head| map.target(head));
        let is_his = head.is_some_and(|head| head.node == from.owner.node);
        (chain::is_coming(seen, target, epoch) && is_his).then_some(()).ok_or(Errno::ESTALE)
    }

    /// Has a new attempt take the place of those before.
    fn take_copier(&self, (target, chain): Place, own: Copier<SessionOwner>) -> Result<(), Errno> {
        let at = self.at(target);
        let incoming = {
            let mut all = at.incoming.lock();
            let new = || Arc::new(Incoming { taking: RwLock::new(Taking::new(own)) });
            all.entry(chain).or_insert_with(new).clone()
        };
        if incoming.taking.write().begin(own) { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    fn seal_incoming(
        &self,
        store: &ChunkStore,
        (target, chain): Place,
        since: Epoch,
    ) -> Result<StorageReply, Errno> {
        let at = self.at(target);
        // ORDER: content, then the note that it is whole; the caller may have the chain given to this target after that.
        let sealed = store.sync().and_then(|()| {
            let _alone = at.noting.lock();
            let before = store.chain_notes()?.get(&chain).copied().map(note_of);
            match chain::arrived(before, since) {
                Note::Arrived(since) => store.note_chain(chain, Some(ChainNote::Arrived { since })),
                // It has left again while this waited for the disk, and its mover heard nothing of it.
                Note::Leaving(_) => Ok(()),
            }
        });
        sealed.map(|()| StorageReply::Done).map_err(|error| answer(target, &error))
    }
}

/// The chain that a request of a peer is about.
fn chain_of(request: &StorageRequest) -> Option<ChainId> {
    match request {
        StorageRequest::MoveBegin { chain, .. }
        | StorageRequest::MoveSeal { chain, .. }
        | StorageRequest::TakeLossMark { chain, .. } => Some(*chain),
        StorageRequest::DeleteGeneration { chains: OfChains::Only(chains), .. } => match chains.as_slice() {
            [one] => Some(*one),
            _ => None,
        },
        other => other.chain(),
    }
}

impl StoragePeers for StorageService {
    fn call_of_copy(
        &self,
        node: NodeId,
        under: CopyUnder,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        let moves = self.moves.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        // It is not closed under this.
        let _in_use = self.target_for_call(request.target()).ok_or(Errno::ENODEV)?;
        moves.copies.call(self, (node, under), request, payload)
    }

    fn call_of_peer(
        &self,
        from: MoveAttempt,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        let moves = self.moves.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        let target: TargetId = request.target();
        let InUse { store, _call, .. } = self.target_for_call(target).ok_or(Errno::ENODEV)?;
        let chain = chain_of(request).ok_or(Errno::EINVAL)?;
        let place = (target, chain);
        if let StorageRequest::MoveBegin { epoch, from: at, .. } = request {
            return moves.begin_incoming(from, &store, place, (*epoch, *at));
        }
        let incoming = moves.incoming(place).ok_or(Errno::ENOTCONN)?;
        let own = |since: Epoch| copier((from, since));
        if matches!(request, StorageRequest::MoveSeal { .. }) {
            let mut known = incoming.taking.write();
            let since = known.since();
            known.seal(&own(since));
        }
        let known = incoming.taking.read();
        // A call of an earlier attempt has come late, or that of a later one was never heard.
        if !known.takes(&own(known.since())) {
            return Err(Errno::ENOTCONN);
        }
        match request {
            StorageRequest::MoveSeal { .. } => moves.seal_incoming(&store, place, known.since()),
            StorageRequest::TakeLossMark { mark, .. } => {
                let taken = store.take_loss_mark(chain, Some(*mark));
                taken.map(|()| StorageReply::Done).map_err(|error| answer(target, &error))
            }
            _ => carry_out(self, &store, request, payload, &|found| found == Some(chain))
                .map_err(|error| answer(target, &error)),
        }
    }
}
