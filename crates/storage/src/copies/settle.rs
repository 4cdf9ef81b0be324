//! The target behind is brought up to date: what it may lack is found out, and sent whole.

use super::{AtTarget, COMPARE_MAX, Copies, Group, Mended, PASS_ON_MAX, SYNC_MAX};
use crate::answer::answer;
use crate::piece::{Copy, Destination, NotSent};
use ashlar_chunkstore::{ChunkError, Damage, Lack};
use ashlar_replication::chain::Whole;
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, ClusterMap, Epoch, Errno, OfChains, TargetId};
use smallvec::smallvec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The target behind, at an epoch.
#[derive(Clone, Copy)]
struct Behind<'a> {
    copies: &'a Copies,
    chain: ChainId,
    to: TargetId,
    under: CopyUnder,
}

impl Destination for Behind<'_> {
    fn target(&self) -> TargetId {
        self.to
    }
    fn chain(&self) -> ChainId {
        self.chain
    }
    fn send(&self, request: StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        self.copies.outside.peers.call_of_copy(self.under, &request, payload, PASS_ON_MAX)
    }
}

impl Behind<'_> {
    fn ask(&self, request: &StorageRequest) -> Result<StorageReply, Errno> {
        self.copies.outside.peers.call_of_copy(self.under, request, Payload::None, COMPARE_MAX)
    }
}

/// Ends also when what it is for panics.
struct Tended(Arc<Group>);

impl Drop for Tended {
    fn drop(&mut self) {
        self.0.is_tended.store(false, SeqCst);
    }
}

/// What one has told of a chain that is asked what it has.
struct Compared {
    in_sync_at: Option<Epoch>,
    uncertain: BTreeSet<ChunkId>,
}

impl Copies {
    fn behind<'a>(&'a self, at: &AtTarget, group: &Group, whole: Whole<TargetId>) -> Behind<'a> {
        let Whole { to, epoch, turn } = whole;
        let place = group.state.lock().replica.place() + 1;
        let under = CopyUnder { from: at.id, epoch, turn, place, is_piece: false };
        Behind { copies: self, chain: group.chain, to, under }
    }

    /// Has the target behind brought up to date by a thread of its own, if there is something to do and nobody does it.
    pub(super) fn tend(self: &Arc<Self>, at: &Arc<AtTarget>, group: &Arc<Group>) {
        {
            let state = group.state.lock();
            let has_work = state.replica.to_compare().is_some()
                || state.replica.has_caught_up().is_some()
                || state.replica.next_unsettled(None).is_some();
            if !has_work || group.is_tended.swap(true, SeqCst) {
                return;
            }
        }
        let tended = Tended(group.clone());
        let (copies, at) = (self.clone(), at.clone());
        let run = Box::new(move || {
            let tended = tended;
            if let Err(errno) = copies.bring_up(&at, &tended.0) {
                tracing::debug!(chain = %tended.0.chain, target = %at.id, %errno, "the target behind is not brought up to date for now");
            }
        });
        if let Err(error) = self.outside.env.tasks.spawn("ashlar-copy", run) {
            tracing::error!(%error, "no thread can be started; a copy is brought up to date later");
        }
    }

    /// # Errors
    /// What the target behind, or the disk here, answers; it is tried again later.
    fn bring_up(&self, at: &AtTarget, group: &Group) -> Result<(), Errno> {
        loop {
            if self.is_stopping() {
                return Ok(());
            }
            let (to_compare, epoch, caught_up, is_required) = {
                let state = group.state.lock();
                let (replica, epoch) = (&state.replica, state.replica.member().epoch());
                (replica.to_compare(), epoch, replica.has_caught_up(), replica.is_behind_required())
            };
            if let Some((to, is_in_sync)) = to_compare {
                self.compare((at, group), (to, epoch), is_in_sync)?;
            } else if let Some(to) = caught_up {
                let behind = self.behind(at, group, Whole { to, epoch, turn: 0 });
                let chains = OfChains::Only(smallvec![group.chain]);
                let request = StorageRequest::Sync { target: to, chains };
                // ORDER: durable before it counts as a copy of what others have made durable here. Most of it before it is required, so that who syncs does not wait for that; and what
                // has come meanwhile, which somebody may have synced who did not have to wait for it, once it is.
                self.outside.peers.call_of_copy(behind.under, &request, Payload::None, SYNC_MAX)?;
                let mut state = group.state.lock();
                if !is_required {
                    state.replica.require(to);
                    continue;
                }
                let mut out = Vec::new();
                state.replica.promote(to, epoch, &mut out);
                group.carry_out(&mut state, out).map_err(|error| answer(at.id, &error))?;
            } else if !self.settle_all(at, group)? {
                return Ok(());
            }
        }
    }

    /// Finds out what the target behind may lack.
    fn compare(
        &self,
        (at, group): (&AtTarget, &Group),
        (to, epoch): (TargetId, Epoch),
        is_in_sync: bool,
    ) -> Result<(), Errno> {
        group.sent.0.store(0, Relaxed);
        group.sent.1.store(0, Relaxed);
        let mut behind = self.behind(at, group, Whole { to, epoch, turn: 0 });
        self.tell_loss_mark(group, &behind)?;
        let theirs = ask_what_it_has(&behind)?;
        let mut lacks = theirs.uncertain;
        if !is_in_sync {
            let note = group.state.lock().lacking.get(&to).copied();
            let is_noted = note.zip(theirs.in_sync_at).is_some_and(|(note, at)| note.covers(at));
            let whole = group.state.lock().replica.empties().ok_or(Errno::EREMCHG)?;
            behind.under.turn = whole.turn;
            let made_ready = if is_noted {
                tracing::info!(chain = %group.chain, from = %at.id, %to, "what changed while it was away is brought to a copy");
                self.take_lacks((at, group), &behind, &mut lacks)
            } else {
                tracing::info!(chain = %group.chain, from = %at.id, %to, "a copy is made anew");
                empty(&behind).and_then(|()| list((at, group), &mut lacks))
            };
            if let Err(errno) = made_ready {
                group.state.lock().replica.gave_up(whole);
                return Err(errno);
            }
        }
        group.state.lock().replica.compared(epoch, lacks);
        group.damaged.forget_lost();
        Ok(())
    }

    /// Has the target behind tell with changes what is told with them here, should it be in front one day. One of an earlier version does not take it, and tells its own mark once it is replaced by this one: a
    /// client hears that something may be lost that is not.
    ///
    /// # Errors
    /// When that is to be tried again.
    fn tell_loss_mark(&self, group: &Group, behind: &Behind<'_>) -> Result<(), Errno> {
        let (target, chain, mut behind) = (behind.to, group.chain, *behind);
        // ORDER: before the mark is read. Whoever tells a newer one has a later turn.
        behind.under.turn = group.marks_told.fetch_add(1, SeqCst) + 1;
        let request = StorageRequest::TakeLossMark { target, chain, mark: group.store.loss_mark(chain) };
        match behind.ask(&request) {
            Ok(_) => Ok(()),
            Err(Errno::EIO) => {
                tracing::debug!(%chain, %target, "a copy does not take the mark of a chain");
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Has those further behind take the mark that has come from in front: what they were told before was the one from before that.
    ///
    /// # Errors
    /// As of [`Copies::tell_loss_mark`].
    pub(super) fn pass_loss_mark_on(
        &self,
        at: &AtTarget,
        group: &Group,
        under: CopyUnder,
    ) -> Result<(), Errno> {
        let next = {
            let state = group.state.lock();
            state.replica.successor().filter(|_| state.replica.is_behind_required())
        };
        let Some(to) = next else { return Ok(()) };
        self.tell_loss_mark(group, &self.behind(at, group, Whole { to, epoch: under.epoch, turn: 0 }))
    }

    /// Has deletions that the target behind has missed made there, and adds the chunks that it lacks to `lacks`.
    fn take_lacks(
        &self,
        (at, group): (&AtTarget, &Group),
        behind: &Behind<'_>,
        lacks: &mut BTreeSet<ChunkId>,
    ) -> Result<(), Errno> {
        let mut after = None;
        loop {
            let page =
                group.store.lacks((group.chain, behind.to), after).map_err(|error| answer(at.id, &error))?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(*last);
            for lack in page {
                match lack {
                    Lack::Chunk(chunk) => {
                        lacks.insert(chunk);
                    }
                    Lack::Deletion(first) => self.delete_again((at, group), behind, first, lacks)?,
                }
            }
        }
    }

    /// Has chunks of one generation of a file deleted behind, from `first` on, and adds those to `lacks` that are here.
    fn delete_again(
        &self,
        (at, group): (&AtTarget, &Group),
        behind: &Behind<'_>,
        ChunkId { inode, generation, index: from_index }: ChunkId,
        lacks: &mut BTreeSet<ChunkId>,
    ) -> Result<(), Errno> {
        // Nothing of the file is changed here meanwhile, so what is sent after it is all that there is.
        let _alone = self.write_lock(group.file(inode));
        let (target, chains) = (behind.to, OfChains::Only(smallvec![group.chain]));
        let request = StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
        self.delete_behind(behind.under, &request)?;
        let mut from = Some(from_index);
        while let Some(index) = from {
            let is_meant = |chain| chain == Some(group.chain);
            let next = group.store.next_chunk(inode, generation, index, &is_meant);
            let next = next.map_err(|error| answer(at.id, &error))?;
            lacks.extend(next.map(|index| ChunkId { inode, generation, index }));
            from = next.and_then(|index| index.checked_add(1));
        }
        Ok(())
    }

    /// Sends all chunks whole that are to be; false if none could be sent.
    fn settle_all(&self, at: &AtTarget, group: &Group) -> Result<bool, Errno> {
        let (mut after, mut is_any, mut failed) = (None, false, None);
        loop {
            let (next, epoch, is_required) = {
                let state = group.state.lock();
                let (next, epoch) = (state.replica.next_unsettled(after), state.replica.member().epoch());
                (next, epoch, state.replica.is_behind_required())
            };
            let Some(chunk) = next else { return failed.map_or(Ok(is_any), Err) };
            after = Some(chunk);
            if !is_required {
                self.pay_for(at, group, (chunk, epoch))?;
            }
            if self.is_stopping() {
                return Ok(false);
            }
            let _deletions = self.read_lock(group.file(chunk.inode));
            let _alone = self.write_lock(group.chunk(chunk));
            let clock = &self.outside.env.clock;
            let begun = clock.monotonic();
            let settled = self.settle_locked((at, group), chunk);
            if !is_required {
                self.throttle.sent(begun, self.map().moves.rate_mib_s, clock.monotonic());
            }
            match settled {
                Ok(is_settled) => is_any |= is_settled,
                // What is damaged here, or has no room there, does not hold up the others.
                Err(errno @ (Errno::EIO | Errno::ENOSPC)) => {
                    tracing::warn!(chain = %group.chain, target = %at.id, %chunk, %errno, "a chunk cannot be brought to a copy for now");
                    failed = Some(errno);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Sends `chunk`, which the caller has locked, whole to the target behind; false if that is not to be, or not yet.
    ///
    /// # Errors
    /// What became of it otherwise.
    pub(super) fn settle_locked(
        &self,
        (at, group): (&AtTarget, &Group),
        chunk: ChunkId,
    ) -> Result<bool, Errno> {
        let Some(whole) = group.state.lock().replica.settles(chunk) else { return Ok(false) };
        let mut behind = self.behind(at, group, whole);
        behind.under.is_piece = true;
        let sent = self.send_readable((at, group), &behind, chunk);
        let request = StorageRequest::CopySettled { target: whole.to, chain: group.chain, chunk };
        let settled = sent.and_then(|()| {
            self.outside.peers.call_of_copy(behind.under, &request, Payload::None, PASS_ON_MAX)
        });
        let mut state = group.state.lock();
        match settled {
            Ok(_) => state.replica.settled(chunk, whole.epoch),
            Err(_) => state.replica.gave_up(whole),
        }
        settled.map(|_| true)
    }

    /// Sends what can be read of a chunk, once that was brought back which the target behind has. To one in sync, which is to have it in any case, nothing else;
    /// to one that is brought up to date, that the rest is lost.
    fn send_readable(
        &self,
        (at, group): (&AtTarget, &Group),
        behind: &Behind<'_>,
        chunk: ChunkId,
    ) -> Result<(), Errno> {
        let mut copy = Copy::over(&group.store, behind, chunk, self.outside.piece_bytes);
        let of_copy = |error: NotSent| match error {
            NotSent::Disk(error) => answer(at.id, &error),
            NotSent::Refused(errno) => errno,
        };
        match self.send_or_make_way((at, group), behind, &mut copy) {
            Err(NotSent::Disk(
                ChunkError::Checksum { .. } | ChunkError::Corrupt { .. } | ChunkError::Io { .. },
            )) => {}
            sent => return sent.map_err(of_copy),
        }
        let (is_required, is_head) = {
            let state = group.state.lock();
            (state.replica.is_behind_required(), state.replica.predecessor().is_none())
        };
        let mut damage = group.store.damage(chunk).map_err(|error| answer(at.id, &error))?;
        // Once for each epoch: with much that is lost everywhere the new copy would never be through.
        if !is_required
            && !is_head
            && damage.is_some()
            && !group.damaged.is_lost_at(chunk, behind.under.epoch)
        {
            match self.mend_locked(at, group, chunk) {
                Ok(Mended::Lost) => {}
                Ok(Mended::Whole) => damage = None,
                // Who is in front has it, or is yet to say that it has not: a copy in which it is lost would be taken for one that has all. It holds up no other chunk.
                Ok(Mended::ByOthers) | Err(_) => return Err(Errno::EIO),
            }
        }
        let (chunk_bytes, len, blocks) = match damage {
            None => return self.send_or_make_way((at, group), behind, &mut copy).map_err(of_copy),
            Some(Damage::Header { .. }) if is_required => {
                self.mend_locked(at, group, chunk)?;
                return Err(Errno::EREMCHG);
            }
            Some(Damage::Header { chunk_bytes }) => {
                copy.is_gone().map_err(of_copy)?;
                (chunk_bytes, chunk_bytes, Damage::all_blocks(chunk_bytes))
            }
            Some(Damage::Blocks { chunk_bytes, len, blocks }) => {
                let mut left = self.bring_back(at, group, chunk, &blocks)?;
                if is_required && !left.is_empty() {
                    // ORDER: before it counts as sent. What is behind may be older, and what counts.
                    match self.mend_locked(at, group, chunk)? {
                        Mended::Whole => left.clear(),
                        Mended::ByOthers => return Err(Errno::EREMCHG),
                        Mended::Lost => {}
                    }
                }
                copy.begin_without(left.clone());
                self.send_or_make_way((at, group), behind, &mut copy).map_err(of_copy)?;
                (chunk_bytes, len, left)
            }
        };
        if blocks.is_empty() || is_required {
            return Ok(());
        }
        tracing::error!(target = %at.id, chain = %group.chain, %chunk, blocks = blocks.len(), "what is damaged here is lost in a copy, too");
        let (target, chain) = (behind.to, group.chain);
        let request = StorageRequest::CopyLost { target, chunk, chain, chunk_bytes, len, blocks };
        behind.send(request, Payload::None).map(drop)
    }

    /// As [`Copies::send_whole`]. If what is there cannot be used, it first becomes a chunk with this length and these checksums in which everything is lost: what has not come yet is an error there,
    /// and not zeros, and can be told by its checksum.
    fn send_or_make_way(
        &self,
        (at, group): (&AtTarget, &Group),
        behind: &Behind<'_>,
        copy: &mut Copy<'_>,
    ) -> Result<(), NotSent> {
        let sent = self.send_whole((at, group), copy);
        let Err(NotSent::Refused(Errno::EIO)) = sent else { return sent };
        let chunk = copy.chunk;
        // What is there is no content to go by, should this one be damaged, too.
        group.state.lock().replica.wanted_again(chunk, behind.to, behind.under.epoch);
        let Some((chunk_bytes, len, blocks)) = group.store.sums(chunk)? else { return sent };
        let (target, chain) = (behind.to, group.chain);
        let request = StorageRequest::CopyLost { target, chunk, chain, chunk_bytes, len, blocks };
        behind.send(request, Payload::None).map_err(NotSent::Refused)?;
        copy.begin_anew();
        self.send_whole((at, group), copy)
    }

    fn send_whole(&self, (at, group): (&AtTarget, &Group), copy: &mut Copy<'_>) -> Result<(), NotSent> {
        loop {
            let Some(map) = copy.store.map(copy.chunk)? else { return copy.is_gone() };
            let bytes = copy.send_piece(&map)?;
            group.sent.1.fetch_add(bytes.into(), Relaxed);
            self.paces.note(at.id, bytes.into(), self.outside.env.clock.monotonic());
            if copy.next_piece(&map).is_none() {
                group.sent.0.fetch_add(1, Relaxed);
                return copy.end(&map);
            }
        }
    }

    /// Waits until a chunk may be sent at the rate that is set, and while moves are paused, if no copy is lacking. Before it is locked: nobody who uses it waits for that.
    fn pay_for(&self, at: &AtTarget, group: &Group, (chunk, epoch): (ChunkId, Epoch)) -> Result<(), Errno> {
        let rate = self.map().moves.rate_mib_s;
        let bytes = || {
            let map = group.store.map(chunk).map_err(|error| answer(at.id, &error))?;
            Ok::<_, Errno>(map.map_or(0, |map| u64::from(map.len)))
        };
        let clock = &self.outside.env.clock;
        let due = self.throttle.due(bytes, rate, clock.monotonic())?;
        while !self.throttle.is_over(due, rate, clock.monotonic()) || is_held_up(&self.map(), group.chain) {
            self.outside.env.tasks.pause(super::LOOK);
            let is_over = group.state.lock().replica.member().epoch() != epoch;
            if is_over || self.is_stopping() {
                return Err(Errno::EREMCHG);
            }
        }
        Ok(())
    }
}

/// Whether what is sent of `chain` waits until moves go on. What makes a lost copy good does not.
pub(super) fn is_held_up(map: &ClusterMap, chain: ChainId) -> bool {
    map.moves.is_paused && map.chain(chain).is_none_or(|chain| !chain.is_short())
}

fn ask_what_it_has(behind: &Behind<'_>) -> Result<Compared, Errno> {
    let mut all = Compared { in_sync_at: None, uncertain: BTreeSet::new() };
    let mut after = None;
    loop {
        let request = StorageRequest::CopyCompare { target: behind.to, chain: behind.chain, after };
        match behind.ask(&request)? {
            StorageReply::CopyCompared { in_sync_at, uncertain, has_more } => {
                all.in_sync_at = in_sync_at;
                after = uncertain.last().copied().or(after);
                let is_empty = uncertain.is_empty();
                all.uncertain.extend(uncertain);
                if !has_more || is_empty {
                    return Ok(all);
                }
            }
            _ => return Err(Errno::EPROTO),
        }
    }
}

/// Has all of the chain deleted there.
fn empty(behind: &Behind<'_>) -> Result<(), Errno> {
    let mut from = None;
    loop {
        let request = StorageRequest::CopyEmpty { target: behind.to, chain: behind.chain, from };
        match behind.ask(&request)? {
            StorageReply::CopyEmptied(None) => return Ok(()),
            StorageReply::CopyEmptied(next) => from = next,
            _ => return Err(Errno::EPROTO),
        }
    }
}

/// Adds all chunks of the chain to `lacks`.
fn list((at, group): (&AtTarget, &Group), lacks: &mut BTreeSet<ChunkId>) -> Result<(), Errno> {
    let mut from = None;
    loop {
        let page = group.store.list_chain(group.chain, from);
        let page = page.map_err(|error: ChunkError| answer(at.id, &error))?;
        lacks.extend(page.chunks);
        match page.next {
            Some(next) => from = Some(next),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::PoolId;
    use ashlar_types::map::{Chain, ChainCopies};
    use ashlar_types::testing::map_in_domains;

    #[test]
    fn a_pause_of_moves_holds_up_drains_and_not_what_makes_a_lost_copy_good() {
        let mut map = map_in_domains(&[0, 1, 2], &["", "", ""]);
        let copies = ChainCopies {
            wanted: 2,
            changed: Epoch(1),
            catching_up: smallvec![TargetId(2)],
            former: smallvec![],
        };
        let (id, targets) = (ChainId(0), smallvec![TargetId(0), TargetId(1)]);
        map.chains.push(Chain { id, pool: PoolId(0), targets, moving: None, copies: Some(copies) });
        assert!(!is_held_up(&map, id));
        map.moves.is_paused = true;
        assert!(is_held_up(&map, id), "two have it, and one of them is to go");
        map.chains[0].targets.pop();
        assert!(!is_held_up(&map, id));
    }
}
