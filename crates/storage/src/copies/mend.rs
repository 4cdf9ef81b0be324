//! A chunk that cannot be read here is brought back from another copy.
//!
//! | what is damaged | where | what is done |
//! |---|---|---|
//! | blocks | anywhere | those that have the same checksum behind are written here again |
//! | blocks that nobody behind has, a header | behind somebody | who is in front sends the chunk whole |
//! | a header | at the head | the target leaves the chain, and gets the chunk when it comes back |
//! | blocks that nobody behind has, of a change that nobody was told of | at the head | the same: those behind have what is older and counts |
//! | what nobody has | everywhere | stays as it is: reads fail |
//!
//! Nothing damaged is ever copied as if it were sound: a block is taken by its checksum alone, and one that is lost is lost in every copy that is made from then on
//! ([`ashlar_chunkstore::ChunkStore::lose_blocks`]).
//!
//! # When the head goes by what is older
//!
//! A change of a part of a block that was made at the head, and has not come behind, leaves a block there whose checksum nobody else has. If it is damaged before the chunk is sent behind, what is
//! behind is older and whole, and is what counts: the change was not acknowledged, and the chunk was not read here since (`ChainReplica::may_read`). It is not taken block by block,
//! which would need a word for what is there, and would mix two states of the chunk. The head leaves, and the next one goes on with the chunk as it is there, as if this one had died, which may happen at any
//! time and loses nothing that somebody was told of (`crates/model` removes anybody at any time). Whoever waits for the change asks the next head for it.
//!
//! That is so where the machine says it ([`ashlar_replication::chain::ChainReplica::may_fall_back`]): the target behind is in sync, has been asked what it lacks, and a change of this chunk was passed on and not answered. Not where the chunk is
//! unsettled because the target behind cannot read it, or a scrub has found it to be another one: what was settled is what counts, and is an error. It also has to answer, at this epoch, that its header of the chunk can be used and is not
//! the one that is here. Until that is known, and until the head has left, such a chunk does not count as sent.

use super::{AtTarget, BEACON_MAX, Copies, Group, PASS_ON_MAX};
use crate::answer::answer;
use ashlar_chunkstore::{BlockSum, Damage, sum_of};
use ashlar_replication::chain::Mender;
use ashlar_rpc::Payload;
use ashlar_rpc::wire::CopyUnder;
use ashlar_types::block_sum::BLOCK_BYTES;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Epoch, Errno, EventKind, TargetId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Blocks that one call asks for.
pub(super) const BLOCKS_MAX: usize = 64;
/// Time until the target in front is asked again for a chunk.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// For how long it is believed that nobody has what a chunk lacks.
const LOST_FOR: Duration = Duration::from_secs(10);
// LIMIT: of a chain; of a disk with more damage than that the rest is found out anew with each read.
const REMEMBERED_MAX: usize = 4096;

/// What has become of a damaged chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mended {
    /// It can be read.
    Whole,
    /// Others bring it back, or have it while this target has left.
    ByOthers,
    /// Nobody has it.
    Lost,
}

/// Of each block that was asked for its content, if it is there.
type Found = Vec<Option<Vec<u8>>>;

/// What is known of a damaged chunk.
#[derive(Clone, Copy)]
enum Known {
    /// The target in front was asked for it; ask again then.
    Asked(Duration),
    /// Nobody who is there has all of it, as was found out then, at that epoch.
    Lost(Duration, Epoch),
}

/// Damaged chunks of a chain.
#[derive(Default)]
pub(super) struct Damaged(Mutex<BTreeMap<ChunkId, Known>>);

impl Damaged {
    fn set(&self, chunk: ChunkId, known: Known) {
        let mut all = self.0.lock();
        if all.len() < REMEMBERED_MAX || all.contains_key(&chunk) {
            all.insert(chunk, known);
        }
    }

    fn has_room(&self, chunk: ChunkId) -> bool {
        let all = self.0.lock();
        all.len() < REMEMBERED_MAX || all.contains_key(&chunk)
    }

    fn is_lost(&self, chunk: ChunkId, (now, epoch): (Duration, Epoch)) -> bool {
        matches!(self.0.lock().get(&chunk), Some(Known::Lost(at, of)) if *of == epoch && now < *at + LOST_FOR)
    }

    /// Whether it was found out at `epoch`, whenever that was.
    pub fn is_lost_at(&self, chunk: ChunkId, epoch: Epoch) -> bool {
        matches!(self.0.lock().get(&chunk), Some(Known::Lost(_, of)) if *of == epoch)
    }

    fn is_asked_for(&self, chunk: ChunkId) -> bool {
        matches!(self.0.lock().get(&chunk), Some(Known::Asked(_)))
    }

    /// Somebody else may have what nobody had.
    pub fn forget_lost(&self) {
        self.0.lock().retain(|_, known| !matches!(known, Known::Lost(..)));
    }

    fn forget(&self, chunk: ChunkId) {
        self.0.lock().remove(&chunk);
    }
}

impl Copies {
    /// Brings a chunk back that cannot be read at `at`. The caller has it not locked.
    ///
    /// # Errors
    /// When that is to be tried again.
    pub(super) fn mend(&self, at: &AtTarget, group: &Group, chunk: ChunkId) -> Result<Mended, Errno> {
        let _deletions = self.read_lock(group.file(chunk.inode));
        let _alone = self.write_lock(group.chunk(chunk));
        self.mend_locked(at, group, chunk)
    }

    /// As [`Copies::mend`], of a target and a chunk by their names; `None` where no other target has copies of the chunk.
    pub(crate) fn mend_named(&self, target: TargetId, chunk: ChunkId) -> Option<Result<Mended, Errno>> {
        let at = self.at(target)?;
        let chain = at.store.chain_of(chunk).ok().flatten()?;
        let group = at.group(chain).filter(|_| self.has_others(chain))?;
        Some(self.mend(&at, &group, chunk))
    }

    /// What a call is answered that has failed at the disk of `at`, with `chunk` not locked: to be asked again where another copy can stand for it.
    pub(super) fn failed_here(&self, at: &AtTarget, group: &Group, chunk: ChunkId) -> Errno {
        if at.store.stopped().is_some() {
            return self.of_target_out(at, group.chain);
        }
        let _deletions = self.read_lock(group.file(chunk.inode));
        let _alone = self.write_lock(group.chunk(chunk));
        self.of_damaged(at, group, chunk)
    }

    /// As [`Copies::failed_here`], with the chunk locked: it is brought back first, if that is possible.
    pub(super) fn of_damaged(&self, at: &AtTarget, group: &Group, chunk: ChunkId) -> Errno {
        match self.mend_locked(at, group, chunk) {
            Ok(Mended::Lost) => Errno::EIO,
            Ok(Mended::Whole | Mended::ByOthers) | Err(_) => Errno::EREMCHG,
        }
    }

    /// What is answered by a target whose disk does not work, and that is one of several, or was.
    pub(super) fn of_target_out(&self, at: &AtTarget, chain: ChainId) -> Errno {
        if self.is_alone(at, chain) { Errno::EIO } else { Errno::EREMCHG }
    }

    /// Whether `at` is the only one that has all of a chain, by the map. Not while it does not know whether another one was promoted, as it has asked for.
    pub(super) fn is_alone(&self, at: &AtTarget, chain: ChainId) -> bool {
        // Who has the state may be at a disk that hangs.
        let may_have_another = || {
            let group = at.group(chain);
            group.is_some_and(|group| {
                group.state.try_lock().is_none_or(|state| state.replica.is_behind_required())
            })
        };
        self.map().chain(chain).is_some_and(|chain| chain.targets.as_slice() == [at.id])
            && !may_have_another()
    }

    /// Whether another target has all of a chain, too, by the map.
    pub(super) fn has_others(&self, chain: ChainId) -> bool {
        self.map().chain(chain).is_some_and(|chain| chain.targets.len() > 1)
    }

    /// As [`Copies::mend`], with the chunk locked.
    ///
    /// # Errors
    /// As of that.
    pub(super) fn mend_locked(&self, at: &AtTarget, group: &Group, chunk: ChunkId) -> Result<Mended, Errno> {
        let now = self.outside.env.clock.monotonic();
        // Who does not take part, or is no member any more, knows of no others, and of none that is to do something.
        let epoch = || {
            let state = group.state.lock();
            let member = state.replica.member();
            let is_one = member.membership().is_in_sync(at.id) || state.replica.predecessor().is_some();
            if member.is_active() && is_one { Ok(member.epoch()) } else { Err(Errno::EREMCHG) }
        };
        let begun_at = epoch()?;
        if group.damaged.is_lost(chunk, (now, begun_at)) {
            return Ok(Mended::Lost);
        }
        let failed = |error| answer(at.id, &error);
        let has_header_back = at.store.mend_header(chunk).map_err(failed)?;
        let Some(damage) = at.store.damage(chunk).map_err(failed)? else {
            if has_header_back {
                self.tell_mended(at, chunk, "its header was written again");
            }
            return Ok(Mended::Whole);
        };
        let is_header = matches!(damage, Damage::Header { .. });
        // Looked at once more: a place may take what is written and not give it back.
        if let Damage::Blocks { blocks, .. } = &damage
            && self.bring_back(at, group, chunk, blocks)?.is_empty()
            && at.store.damage(chunk).map_err(failed)?.is_none()
        {
            return Ok(Mended::Whole);
        }
        if !group.damaged.has_room(chunk) {
            // Of those that are known some are to be brought back first.
            return Err(Errno::EREMCHG);
        }
        let is_head = group.state.lock().replica.predecessor().is_none();
        let is_for_others = !is_head || is_header || self.may_fall_back(at, group, chunk)?;
        let mender = if is_for_others { self.ask_others(at, group, chunk)? } else { None };
        match mender {
            Some(Mender::InFront(_)) => {
                // Asked with the next turn.
                group.damaged.set(chunk, Known::Asked(now));
                Ok(Mended::ByOthers)
            }
            Some(Mender::WhoIsNext) => Ok(Mended::ByOthers),
            None if epoch()? != begun_at => Err(Errno::EREMCHG),
            None => {
                group.damaged.set(chunk, Known::Lost(now, begun_at));
                tracing::error!(target = %at.id, chain = %group.chain, %chunk, "no copy that is there has what is damaged here");
                Ok(Mended::Lost)
            }
        }
    }

    /// Whether a head that cannot read blocks of `chunk`, which nobody behind has as they were here, does no harm when it leaves in favour of the target behind; see the module.
    ///
    /// # Errors
    /// `EREMCHG` when that is not known yet.
    fn may_fall_back(&self, at: &AtTarget, group: &Group, chunk: ChunkId) -> Result<bool, Errno> {
        let behind = group.state.lock().replica.may_fall_back(chunk).map_err(|_| Errno::EREMCHG)?;
        let Some(behind) = behind else { return Ok(false) };
        let may = self.has_another_behind(at, group, chunk)?;
        if may {
            tracing::warn!(target = %at.id, chain = %group.chain, %chunk, %behind, "what is damaged here was never acknowledged: the target behind is to go on with what it has");
        }
        Ok(may)
    }

    fn ask_others(
        &self,
        at: &AtTarget,
        group: &Group,
        chunk: ChunkId,
    ) -> Result<Option<Mender<TargetId>>, Errno> {
        let failed = |error| answer(at.id, &error);
        let mut state = group.state.lock();
        // ORDER: noted before the machine may ask to leave: who comes back must know that it lacks this.
        group.note_uncertain(&mut state, chunk).map_err(failed)?;
        let mut out = Vec::new();
        let mender = state.replica.damaged(chunk, self.outside.env.clock.monotonic(), &mut out);
        group.carry_out(&mut state, out).map_err(failed)?;
        mender.map_err(|_| Errno::EREMCHG)
    }

    /// Writes those blocks again that a target behind has, and tells which are left. The caller has the chunk locked.
    ///
    /// # Errors
    /// When the target behind is not heard, and those of the disk here.
    pub(super) fn bring_back(
        &self,
        at: &AtTarget,
        group: &Group,
        chunk: ChunkId,
        blocks: &[BlockSum],
    ) -> Result<Vec<BlockSum>, Errno> {
        let mut left = Vec::new();
        let mut from = None;
        for some in blocks.chunks(BLOCKS_MAX) {
            let Some((to, found)) = self.blocks_behind((at, group), chunk, some, 0)? else {
                left.extend_from_slice(some);
                continue;
            };
            for (&(block, sum), bytes) in some.iter().zip(found) {
                // By what is here of it: whoever sends something else is not believed.
                let Some(bytes) = bytes.filter(|bytes| bytes.len() <= BLOCK_BYTES && sum_of(bytes) == sum)
                else {
                    left.push((block, sum));
                    continue;
                };
                let mended = at.store.mend_block(chunk, block, &bytes);
                if mended.map_err(|error| answer(at.id, &error))? {
                    from = Some(to);
                } else {
                    left.push((block, sum));
                }
            }
        }
        if let Some(from) = from {
            let count = blocks.len() - left.len();
            self.mended.fetch_add(count as u64, Relaxed);
            self.tell_mended(at, chunk, &format!("{count} blocks of 4 KiB were brought back from {from}"));
        }
        Ok(left)
    }

    /// What targets behind have of blocks, and who is asked; `None` where nobody is behind.
    ///
    /// # Errors
    /// When the next one does not answer.
    fn blocks_behind(
        &self,
        (at, group): (&AtTarget, &Group),
        chunk: ChunkId,
        blocks: &[BlockSum],
        place: u8,
    ) -> Result<Option<(TargetId, Found)>, Errno> {
        let (next, epoch) = {
            let state = group.state.lock();
            (state.replica.successor(), state.replica.member().epoch())
        };
        let Some(target) = next else { return Ok(None) };
        let request =
            StorageRequest::CopyBlocks { target, chain: group.chain, chunk, blocks: blocks.to_vec() };
        let under =
            CopyUnder { from: at.id, epoch, turn: 0, place: place.saturating_add(1), is_piece: false };
        match self.outside.peers.call_of_copy(under, &request, Payload::None, PASS_ON_MAX)? {
            StorageReply::CopyBlocks(found) if found.len() == blocks.len() => Ok(Some((target, found))),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Tells the target in front what there is here, or further behind, of blocks that it cannot read.
    pub(super) fn tell_blocks(
        &self,
        at: &AtTarget,
        group: &Group,
        (chunk, blocks, under): (ChunkId, &[BlockSum], CopyUnder),
    ) -> Result<StorageReply, Errno> {
        if blocks.len() > BLOCKS_MAX {
            return Err(Errno::EINVAL);
        }
        self.require_in_front(group, under)?;
        // Without the chunk's lock: what has that checksum is what is meant, whatever happens to it.
        let found = at.store.blocks_matching(chunk, blocks);
        let mut found = found.unwrap_or_else(|error| {
            tracing::debug!(target = %at.id, %chunk, %error, "a chunk that is damaged in front is damaged here, too");
            vec![None; blocks.len()]
        });
        let missing: Vec<usize> = (0..found.len()).filter(|at| found[*at].is_none()).collect();
        let wanted: Vec<BlockSum> = missing.iter().map(|at| blocks[*at]).collect();
        if !wanted.is_empty()
            && let Some((_, further)) = self.blocks_behind((at, group), chunk, &wanted, under.place)?
        {
            missing.into_iter().zip(further).for_each(|(at, bytes)| found[at] = bytes);
        }
        Ok(StorageReply::CopyBlocks(found))
    }

    /// Refuses what only the target in front may ask for.
    ///
    /// # Errors
    /// `EREMCHG`: it may be in front by another map.
    pub(super) fn require_in_front(&self, group: &Group, under: CopyUnder) -> Result<(), Errno> {
        let is_in_front = group.state.lock().replica.predecessor() == Some(under.from);
        if is_in_front { Ok(()) } else { Err(Errno::EREMCHG) }
    }

    /// The target in front has sent a chunk whole: if it was asked for that and damage is left, nobody has better.
    pub(super) fn was_sent_again(&self, at: &AtTarget, group: &Group, chunk: ChunkId) {
        if !group.damaged.is_asked_for(chunk) {
            return;
        }
        match at.store.damage(chunk) {
            Ok(None) => {
                group.damaged.forget(chunk);
                self.tell_mended(at, chunk, "it was sent again by the target in front");
            }
            Ok(Some(_)) => {
                let epoch = group.state.lock().replica.member().epoch();
                group.damaged.set(chunk, Known::Lost(self.outside.env.clock.monotonic(), epoch));
            }
            Err(error) => {
                tracing::debug!(target = %at.id, %chunk, %error, "a chunk that was sent again cannot be looked at")
            }
        }
    }

    /// Asks targets in front for chunks that are damaged here, by a thread of its own.
    pub(super) fn ask_again(self: &Arc<Self>, at: &Arc<AtTarget>) {
        let now = self.outside.env.clock.monotonic();
        let mut due: Vec<(TargetId, ChainId, Epoch, ChunkId)> = Vec::new();
        for group in at.groups() {
            let mut damaged = group.damaged.0.lock();
            if damaged.is_empty() {
                continue;
            }
            let state = group.state.lock();
            let (in_front, epoch) = (state.replica.predecessor(), state.replica.member().epoch());
            let has_room = damaged.len() < REMEMBERED_MAX / 2;
            damaged.retain(|chunk, known| match known {
                Known::Asked(_) => in_front.is_some() && state.replica.is_doubtful(*chunk),
                Known::Lost(at, of) => *of == epoch && (has_room || now < *at + LOST_FOR),
            });
            let Some(in_front) = in_front else { continue };
            for (chunk, known) in damaged.iter_mut() {
                if let Known::Asked(next) = known
                    && *next <= now
                {
                    *next = now + ASK_EVERY;
                    due.push((in_front, group.chain, epoch, *chunk));
                }
            }
        }
        if due.is_empty() || at.is_asking_again.swap(true, SeqCst) {
            return;
        }
        let (copies, own) = (self.clone(), at.clone());
        let run = Box::new(move || {
            for (target, chain, epoch, chunk) in due {
                let request = StorageRequest::CopyAgain { target, from: own.id, chain, chunk };
                let under = CopyUnder { epoch, ..CopyUnder::between_servers(own.id, 0) };
                let asked = copies.outside.peers.call_of_copy(under, &request, Payload::None, BEACON_MAX);
                if let Err(errno) = asked {
                    tracing::debug!(%target, %chain, %chunk, %errno, "the target in front does not take that a chunk is to be sent again");
                }
            }
            own.is_asking_again.store(false, SeqCst);
        });
        if self.outside.env.tasks.spawn("ashlar-mend", run).is_err() {
            at.is_asking_again.store(false, SeqCst);
        }
    }

    fn tell_mended(&self, at: &AtTarget, chunk: ChunkId, how: &str) {
        tracing::info!(target = %at.id, %chunk, how, "a damaged chunk is whole again");
        if let Some(reports) = self.reports.get() {
            let text = format!("chunk {chunk}: {how}");
            reports.report(EventKind::DamageMended, &at.id.to_string(), &text);
        }
    }

    /// Blocks that were brought back since this server was started.
    pub fn blocks_mended(&self) -> u64 {
        self.mended.load(Relaxed)
    }
}
