//! Deleting and cutting chunks that no file refers to any more, after the record that says so is durable.
//!
//! `unlink` and truncation to nothing leave a garbage record; a thread deletes the chunks and then the record. A truncation to
//! something cuts at once, in the call, because the bytes beyond the new end must be gone before the file can grow again.

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::{DECIDE_MAX, itself};
use ashlar_env::{Signal, Tasks};
use ashlar_kv::{Position, Snapshot};
use ashlar_namespace::record::Garbage;
use ashlar_namespace::{FileData, Inode, Kind, NsError, Txn, key, verb};
use ashlar_rpc::placed::at_each_place;
use ashlar_rpc::{Caller, Payload};
use ashlar_types::codec;
use ashlar_types::map::TargetState;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, FileLayout, InodeId, OfChains, OpId, SessionId, TargetId};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The session of calls that the service makes by itself.
pub(crate) const SERVICE: SessionId = SessionId(0);
/// Garbage records taken up at a time.
const BATCH: usize = 256;
/// Time between looks for garbage that an error left behind.
const IDLE: Duration = Duration::from_secs(5);
/// For how long a call waits for those who keep copies of a chain to be others, and the time between two looks.
pub(crate) const GROUPS_MAX: Duration = Duration::from_secs(30);
pub(crate) const GROUPS_PAUSE: Duration = Duration::from_millis(100);

/// What became of a sync of several targets.
struct Synced {
    synced: BTreeSet<TargetId>,
    /// One of them has not answered for a chain with copies: who keeps them is just changing.
    is_changing: bool,
}

/// What became of the chunks that a record names.
struct DeletedChunks {
    /// Units of 512 bytes that were freed.
    blocks: u64,
    /// Whether all are gone.
    is_done: bool,
    /// Whether more may have been freed: an answer that told so was lost with its server, and the call was made again.
    is_unsure: bool,
}

/// Wakes the collector.
pub(crate) struct GarbageQueue {
    pending: Mutex<Option<Position>>,
    woken: Signal,
}

impl GarbageQueue {
    pub(crate) fn new(tasks: &dyn Tasks) -> GarbageQueue {
        GarbageQueue { pending: Mutex::default(), woken: tasks.signal() }
    }

    pub(crate) fn wake(&self, position: Position) {
        let mut pending = self.pending.lock();
        *pending = (*pending).max(Some(position));
        self.woken.notify_one();
    }

    fn wait(&self) -> Option<Position> {
        let mut pending = self.pending.lock();
        if pending.is_none() {
            self.woken.wait_for(&mut pending, IDLE);
        }
        pending.take()
    }
}

impl MetaService {
    /// Starts the collector; it ends with the service.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start_collector(self: &Arc<Self>) -> std::io::Result<()> {
        let weak: Weak<MetaService> = Arc::downgrade(self);
        let run = move || {
            let mut confirmed_at = None;
            while let Some(service) = weak.upgrade() {
                service.garbage.wait();
                if service.is_stopping.load(Acquire) {
                    return;
                }
                // A panic ends this turn only: nobody else would notice that chunks are never deleted any more.
                let went_well = service.env.tasks.contain(&mut || {
                    if let Err(errno) = service.collect_all() {
                        tracing::error!(%errno, "could not delete chunks of removed files; trying again later");
                    }
                });
                if !went_well {
                    tracing::error!("deleting chunks of removed files ended by a panic; trying again later");
                }
                let now = service.env.clock.monotonic();
                if confirmed_at.is_none_or(|at: Duration| now.saturating_sub(at) >= IDLE) {
                    service.begin_looking();
                    if !service.env.tasks.contain(&mut || service.confirm_suspects()) {
                        tracing::error!(
                            "confirming what targets wait for ended by a panic; trying again later"
                        );
                    }
                    confirmed_at = Some(now);
                }
            }
        };
        self.env.tasks.spawn("ashlar-collect", Box::new(run)).map(drop)
    }

    /// Ends collector and trimmer and flushes the lane.
    ///
    /// # Errors
    /// What the lane answers.
    pub fn stop(&self) -> Result<(), ashlar_kv::KvError> {
        self.is_stopping.store(true, Release);
        self.garbage.woken.notify_all();
        self.trim_pause.notify_all();
        self.splits.wake();
        self.end_backup();
        if self.lane.is_replicated() { Ok(()) } else { self.lane.close() }
    }

    /// Deletes the chunks of all garbage records there are.
    pub(crate) fn collect_all(&self) -> Result<(), Errno> {
        self.collect_until(|_| false)
    }

    /// Deletes the chunks of garbage records until none is left, or `is_enough` for the units of 512 bytes that were freed so far.
    /// Several threads may collect at the same time: what one finds done is nothing to do.
    pub(crate) fn collect_until(&self, is_enough: impl Fn(u64) -> bool) -> Result<(), Errno> {
        let mut blocks_freed: u64 = 0;
        loop {
            let found = self.find_garbage(BATCH)?;
            if found.is_empty() {
                return Ok(());
            }
            // ORDER: chunks go only after the record that nothing refers to them is durable; else a power cut could bring the
            // file back without its bytes.
            self.lane.flush(self.lane.appended()).map_err(|error| self.answer(&error.into()))?;
            let mut is_any_left = false;
            let mut deleted = Vec::with_capacity(found.len());
            // ORDER: until the records are gone. Chunks must not be deleted when the next server may have given their name out anew.
            let mut inside = Vec::with_capacity(found.len());
            for (inode, garbage) in &found {
                match self.enter(inode.home()) {
                    Ok(gate) => inside.push(gate),
                    Err(_) => {
                        is_any_left = true;
                        continue;
                    }
                }
                if !self.may_collect(*inode, garbage)? {
                    // A layout somebody is just filling; it is bound, or withdrawn when its session ends.
                    is_any_left = true;
                    continue;
                }
                let is_over = |freed: u64| {
                    self.is_stopping.load(Acquire) || is_enough(blocks_freed.saturating_add(freed))
                };
                match self.delete_chunks(*inode, garbage, &is_over) {
                    // Its target is missing or out of service; the others' garbage need not wait for it.
                    Err(Errno::ENODEV | Errno::EIO) => is_any_left = true,
                    other => {
                        let DeletedChunks { blocks, is_done, .. } = other?;
                        blocks_freed += blocks;
                        if is_done {
                            deleted.push((*inode, garbage, blocks));
                        } else {
                            // The rest is deleted by whoever comes next.
                            is_any_left = true;
                        }
                    }
                }
                if self.is_stopping.load(Acquire) || is_enough(blocks_freed) {
                    break;
                }
            }
            // ORDER: the deletions are durable before the records go; else a power cut could bring back chunks that nobody knows of.
            let Synced { synced, .. } =
                self.sync_targets_of(deleted.iter().map(|(_, garbage, _)| &garbage.layout));
            for (inode, garbage, freed) in deleted {
                if self.map.read().targets_of(&garbage.layout).iter().all(|target| synced.contains(target)) {
                    self.forget_garbage(inode, garbage, freed, SERVICE)?;
                } else {
                    is_any_left = true;
                }
            }
            let is_over = self.is_stopping.load(Acquire) || is_enough(blocks_freed);
            if found.len() < BATCH || is_any_left || is_over {
                return Ok(());
            }
        }
    }

    fn find_garbage(&self, limit: usize) -> Result<Vec<(InodeId, Garbage)>, Errno> {
        let mut found = Vec::new();
        // What is left of a shard that is about to leave is deleted where it goes: here nobody may be at it then.
        let mut shards: Vec<_> = self.shards_here().0.iter().collect();
        shards.retain(|shard| !self.is_being_sent(*shard));
        for shard in shards {
            let (from, to) = key::table_range(shard, b'G');
            let mut damage = None;
            self.lane
                .read()
                .scan(&from, &to, &mut |record_key, value| {
                    match (key::inode_of(record_key), codec::decode::<Garbage>(value, "garbage record")) {
                        // A file that was cut but not emptied is still being written; only the call that truncates it, or the next one that
                        // wants to write, may cut it.
                        (Some(_), Ok(garbage)) if garbage.keep_bytes > 0 => {}
                        (Some(inode), Ok(garbage)) => found.push((inode, garbage)),
                        _ => damage = Some(Errno::EIO),
                    }
                    if found.len() < limit && damage.is_none() {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })
                .map_err(|error| self.answer(&error.into()))?;
            if let Some(errno) = damage {
                tracing::error!(%shard, "a garbage record is damaged; run `ashlar fsck`");
                return Err(errno);
            }
            if found.len() >= limit {
                break;
            }
        }
        Ok(found)
    }

    /// Deletes or cuts what one record names, and the record; tells the units of 512 bytes that were freed. `behalf_of` is the session
    /// whose call waits for it, so that nothing is recalled from it: it could not give it back. `is_again`: somebody may have begun it who could not tell
    /// what was freed.
    pub(crate) fn collect_one(
        &self,
        inode: InodeId,
        garbage: &Garbage,
        (behalf_of, is_again): (SessionId, bool),
    ) -> Result<u64, Errno> {
        let DeletedChunks { blocks: mut blocks_freed, is_unsure, .. } =
            self.delete_chunks(inode, garbage, &|_| false)?;
        // ORDER: as in `collect_all`; here the old bytes behind the cut would be back.
        let layout = &garbage.layout;
        let give_up = self.env.clock.monotonic() + GROUPS_MAX;
        loop {
            let targets = self.map.read().targets_of(layout);
            let Synced { synced, is_changing } = self.sync_targets_of([layout]);
            if targets.iter().all(|target| synced.contains(target)) {
                break;
            }
            // Unless a chain has gone to another target meanwhile, or who keeps its copies is just changing.
            let may_change = is_changing && self.env.clock.monotonic() < give_up;
            if !may_change && self.map.read().targets_of(layout) == targets {
                return Err(Errno::EIO);
            }
            if may_change {
                self.env.tasks.pause(GROUPS_PAUSE);
            }
        }
        if is_unsure || is_again {
            blocks_freed = self.missing_blocks(inode, layout)?.unwrap_or(blocks_freed);
        }
        self.forget_garbage(inode, garbage, blocks_freed, behalf_of)?;
        Ok(blocks_freed)
    }

    /// Makes what the targets of `layouts` have acknowledged durable.
    fn sync_targets_of<'l>(&self, layouts: impl IntoIterator<Item = &'l FileLayout>) -> Synced {
        let map = self.map.read().clone();
        // By chains: one that goes to another target is asked for there, and a target that is silent is not waited for once others have its chains.
        let mut chains: BTreeMap<TargetId, BTreeSet<ChainId>> = BTreeMap::new();
        for chain in layouts.into_iter().flat_map(|layout| layout.chains.iter().copied()) {
            if let Some(target) = map.head(chain) {
                chains.entry(target).or_default().insert(chain);
            }
        }
        let (mut synced, mut is_changing) = (BTreeSet::new(), false);
        for (target, chains) in chains {
            let chains = OfChains::Only(chains.into_iter().collect());
            match self.storage.call(&StorageRequest::Sync { target, chains }, Payload::None) {
                Ok(_) => {
                    synced.insert(target);
                }
                Err(Errno::EREMCHG) => is_changing = true,
                Err(errno) => {
                    tracing::warn!(%errno, %target, "deleted chunks could not be made durable; they are deleted again later");
                }
            }
        }
        Synced { synced, is_changing }
    }

    /// Deletes or cuts the chunks that one record names, until `is_enough` for the units of 512 bytes that were freed so far.
    fn delete_chunks(
        &self,
        inode: InodeId,
        garbage: &Garbage,
        is_enough: &dyn Fn(u64) -> bool,
    ) -> Result<DeletedChunks, Errno> {
        let layout = &garbage.layout;
        let chunk_bytes = u64::from(layout.chunk_bytes);
        let (mut blocks_freed, mut is_unsure) = (0, false);
        let boundary = garbage.keep_bytes % chunk_bytes;
        if boundary > 0 {
            let index = layout.chunk_index(garbage.keep_bytes);
            let chain = layout.chain(index);
            let target = self.map.read().head(chain).ok_or(Errno::EIO)?;
            let chunk = ChunkId { inode, generation: layout.generation, index };
            let request = StorageRequest::Truncate {
                target,
                chunk,
                chain,
                chunk_bytes: layout.chunk_bytes,
                len: boundary as u32,
            };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Written(written) => {
                    blocks_freed += written.blocks_delta.min(0).unsigned_abs();
                    is_unsure |= written.may_be_second;
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        let from_index = garbage.keep_bytes.div_ceil(chunk_bytes);
        let mut is_done = true;
        at_each_place(&self.map, &*self.env.tasks, layout, |target, chains| {
            if !is_done {
                return Ok(());
            }
            let is_over = |freed: u64| is_enough(blocks_freed + freed);
            let place = (target, inode, layout.generation, from_index);
            let deleted = self.delete_some_of_generation(place, chains, &is_over)?;
            blocks_freed += deleted.blocks;
            is_unsure |= deleted.is_unsure;
            is_done = deleted.is_done;
            Ok(())
        })?;
        Ok(DeletedChunks { blocks: blocks_freed, is_done, is_unsure })
    }

    /// Units of 512 bytes that a file counts for and its chunks do not have; `None` when it has other chunks by now. Nobody writes it meanwhile.
    fn missing_blocks(&self, inode: InodeId, layout: &FileLayout) -> Result<Option<u64>, Errno> {
        let (_, blocks) = self.measure(inode, layout)?;
        let creds = itself();
        let counted = self.inspect(
            Caller::new(OpId::default(), &creds),
            |txn, _| {
                let found = txn.find_inode(inode)?;
                Ok(found
                    .filter(|found| Self::generation_of(found) == Some(layout.generation))
                    .map(|found| found.blocks))
            },
            |counted, _| counted,
        )?;
        Ok(counted.map(|counted| counted.saturating_sub(blocks)))
    }

    /// Removes the record whose chunks are gone.
    fn forget_garbage(
        &self,
        inode: InodeId,
        garbage: &Garbage,
        blocks_freed: u64,
        behalf_of: SessionId,
    ) -> Result<(), Errno> {
        let creds = itself();
        let (generation, keep_bytes) = (garbage.layout.generation, garbage.keep_bytes);
        let cut = verb::Collected { generation, keep_bytes, blocks_freed };
        self.mutate(
            Caller::new(OpId { session: behalf_of, sequence: 0 }, &creds),
            number::COLLECTED,
            |txn, context| {
                txn.mark_frees_space();
                verb::collected(txn, context, inode, &cut)
            },
            |(), _| (),
        )
    }

    /// Deletes what a target has of `chains` of a generation of a file from a chunk on; tells the units of 512 bytes that were freed.
    pub(crate) fn delete_generation(
        &self,
        place: (TargetId, InodeId, u32, u64),
        chains: OfChains,
    ) -> Result<u64, Errno> {
        Ok(self.delete_some_of_generation(place, chains, &|_| false)?.blocks)
    }

    /// As [`MetaService::delete_generation`], until `is_enough` for what was freed so far: a file may be very large.
    fn delete_some_of_generation(
        &self,
        (target, inode, generation, from_index): (TargetId, InodeId, u32, u64),
        chains: OfChains,
        is_enough: &dyn Fn(u64) -> bool,
    ) -> Result<DeletedChunks, Errno> {
        let (mut freed, mut is_unsure) = (0, false);
        loop {
            let chains = chains.clone();
            let request = StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Deleted { blocks, is_done, may_be_second } => {
                    freed += blocks;
                    is_unsure |= may_be_second;
                    if is_done || is_enough(freed) {
                        return Ok(DeletedChunks { blocks: freed, is_done, is_unsure });
                    }
                }
                _ => return Err(Errno::EPROTO),
            }
        }
    }

    fn may_collect(&self, inode: InodeId, garbage: &Garbage) -> Result<bool, Errno> {
        let creds = itself();
        let caller = Caller::new(OpId::default(), &creds);
        let generation = garbage.layout.generation;
        self.inspect(
            caller,
            |txn, _| {
                // The record was found a while ago. If it is gone or another now, the layout it stood for has been bound, and perhaps
                // cut since: its chunks are live.
                let now: Option<Garbage> =
                    txn.get_record(&key::garbage(inode, generation), "garbage record")?;
                let is_there = now.as_ref() == Some(garbage);
                Ok(is_there && verb::may_collect(txn, inode, generation)?)
            },
            |may, _| may,
        )
    }

    /// Whether all targets of a file are there to cut their part. Asked before the cut is noted: what is noted will be carried out, sooner
    /// or later, and the call that was told of the failure would have had its effect after all.
    ///
    /// # Errors
    /// `ENODEV` when a target is missing, `EIO` when one has stopped.
    pub(crate) fn check_can_be_cut(&self, inode: &Inode) -> Result<(), NsError> {
        let Kind::Regular(FileData::Chunks { layout, .. }) = &inode.kind else { return Ok(()) };
        let map = self.map.read().clone();
        // Of a chain with copies somebody else is the head in a moment.
        let is_alone = |chain: &&ChainId| !map.is_copied(**chain);
        let heads = layout.chains.iter().filter(is_alone).filter_map(|chain| map.head(*chain));
        for target in heads.collect::<BTreeSet<TargetId>>() {
            if !map.targets.iter().any(|known| known.id == target && known.state == TargetState::Online) {
                return Err(Errno::ENODEV.into());
            }
            if !self.has_answered(target) {
                return Err(Errno::EIO.into());
            }
        }
        Ok(())
    }

    /// Whether a cut of `inode` is noted already: somebody may have begun it.
    pub(crate) fn has_cut_pending(txn: &mut Txn<'_>, inode: InodeId) -> Result<bool, NsError> {
        let generation = txn.find_inode(inode)?.and_then(Self::generation_of);
        let Some(generation) = generation else { return Ok(false) };
        Ok(txn.get(&key::garbage(inode, generation))?.is_some())
    }

    /// Carries out a cut of `inode` that an earlier truncation left behind.
    pub(crate) fn cut_pending(&self, inode: InodeId, behalf_of: SessionId) -> Result<(), Errno> {
        let creds = itself();
        let caller = Caller::new(OpId::default(), &creds);
        let generation = self.inspect(
            caller,
            |txn, _| Ok(txn.find_inode(inode)?.and_then(Self::generation_of)),
            |generation, _| generation,
        )?;
        match generation {
            Some(generation) => self.cut(inode, generation, (behalf_of, true)),
            None => Ok(()),
        }
    }

    /// Carries out the truncation of a file with chunks: the record is durable first, then the bytes beyond the end go. One cut of a
    /// file at a time, and each looks at the record anew: once one has returned, the file may be written beyond its end again. `is_again` as for
    /// [`MetaService::collect_one`].
    pub(crate) fn cut(
        &self,
        inode: InodeId,
        generation: u32,
        (behalf_of, is_again): (SessionId, bool),
    ) -> Result<(), Errno> {
        let _cutting = self.cutting.begin(inode)?;
        self.lane.flush(self.lane.appended()).map_err(|error| self.answer(&error.into()))?;
        let record = self
            .lane
            .read()
            .get(&key::garbage(inode, generation))
            .map_err(|error| self.answer(&error.into()))?;
        let Some(bytes) = record else {
            self.cutting.note(inode, true);
            return Ok(());
        };
        let garbage: Garbage = codec::decode(&bytes, "garbage record").map_err(|_| Errno::EIO)?;
        let is_again = is_again || self.cutting.has_failed(inode);
        let done = self.collect_one(inode, &garbage, (behalf_of, is_again)).map(|_| ());
        self.cutting.note(inode, done.is_ok());
        done
    }
}

/// Files remembered whose last cut has failed.
const FAILED_MAX: usize = 1024;

/// Files whose last cut here has failed: what it freed nobody has counted.
#[derive(Default)]
struct Failed {
    // LIMIT: `FAILED_MAX`.
    inodes: FxHashSet<InodeId>,
    /// There were more: all count as failed from then on, and are measured.
    are_too_many: bool,
}

/// Files that are being cut.
pub(crate) struct CutsUnderWay {
    // LIMIT: one per call under way.
    inodes: Mutex<FxHashSet<InodeId>>,
    failed: Mutex<Failed>,
    ended: Signal,
}

/// One file being cut, until dropped.
pub(crate) struct CutUnderWay<'a>(&'a CutsUnderWay, InodeId);

impl CutsUnderWay {
    pub(crate) fn new(tasks: &dyn Tasks) -> CutsUnderWay {
        CutsUnderWay { inodes: Mutex::default(), failed: Mutex::default(), ended: tasks.signal() }
    }

    fn has_failed(&self, inode: InodeId) -> bool {
        let failed = self.failed.lock();
        failed.are_too_many || failed.inodes.contains(&inode)
    }

    fn note(&self, inode: InodeId, is_done: bool) {
        let mut failed = self.failed.lock();
        if is_done {
            failed.inodes.remove(&inode);
        } else if failed.inodes.len() < FAILED_MAX {
            failed.inodes.insert(inode);
        } else {
            failed.are_too_many = true;
        }
    }

    fn begin(&self, inode: InodeId) -> Result<CutUnderWay<'_>, Errno> {
        let mut inodes = self.inodes.lock();
        while !inodes.insert(inode) {
            if self.ended.wait_for(&mut inodes, DECIDE_MAX) {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(CutUnderWay(self, inode))
    }
}

impl Drop for CutUnderWay<'_> {
    fn drop(&mut self) {
        self.0.inodes.lock().remove(&self.1);
        self.0.ended.notify_all();
    }
}
