//! Deleting and cutting chunks that no file refers to any more, after the record that says so is durable.
//!
//! `unlink` and truncation to nothing leave a garbage record; a thread deletes the chunks and then the record. A truncation to
//! something cuts at once, in the call, because the bytes beyond the new end must be gone before the file can grow again.

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::{DECIDE_MAX, itself};
use ashlar_kv::{Position, Snapshot};
use ashlar_namespace::record::Garbage;
use ashlar_namespace::{key, verb};
use ashlar_rpc::{Caller, Payload};
use ashlar_types::codec;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChunkId, Errno, InodeId, OpId, TargetId};
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Garbage records taken up at a time.
const BATCH: usize = 256;
/// Time between looks for garbage that an error left behind.
const IDLE: Duration = Duration::from_secs(5);

/// Wakes the collector.
#[derive(Default)]
pub(crate) struct GarbageQueue {
    pending: Mutex<Option<Position>>,
    woken: Condvar,
}

impl GarbageQueue {
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
        std::thread::Builder::new().name("ashlar-collect".into()).spawn(move || {
            while let Some(service) = weak.upgrade() {
                service.garbage.wait();
                if service.is_stopping.load(Acquire) {
                    return;
                }
                if let Err(errno) = service.collect_all() {
                    tracing::error!(%errno, "could not delete chunks of removed files; trying again later");
                }
            }
        })?;
        Ok(())
    }

    /// Ends the collector and flushes the lane.
    ///
    /// # Errors
    /// What the lane answers.
    pub fn stop(&self) -> Result<(), ashlar_kv::KvError> {
        self.is_stopping.store(true, Release);
        self.garbage.woken.notify_all();
        self.lane.close()
    }

    /// Deletes the chunks of all garbage records there are.
    pub(crate) fn collect_all(&self) -> Result<(), Errno> {
        loop {
            let found = self.find_garbage(BATCH)?;
            if found.is_empty() {
                return Ok(());
            }
            // ORDER: chunks go only after the record that nothing refers to them is durable; else a power cut could bring the
            // file back without its bytes.
            self.lane.flush(self.lane.appended()).map_err(|error| self.answer(&error.into()))?;
            let mut is_any_left = false;
            for (inode, garbage) in &found {
                if !self.may_collect(*inode, garbage)? {
                    // A layout somebody is just filling; it is bound, or withdrawn when its session ends.
                    is_any_left = true;
                    continue;
                }
                match self.collect_one(*inode, garbage) {
                    // Its target is missing or out of service; the others' garbage need not wait for it.
                    Err(Errno::ENODEV | Errno::EIO) => is_any_left = true,
                    other => other?,
                }
                if self.is_stopping.load(Acquire) {
                    return Ok(());
                }
            }
            if found.len() < BATCH || is_any_left {
                return Ok(());
            }
        }
    }

    fn find_garbage(&self, limit: usize) -> Result<Vec<(InodeId, Garbage)>, Errno> {
        let mut found = Vec::new();
        let shards: Vec<_> = self.map.read().shards.iter().map(|shard| shard.id).collect();
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

    /// Deletes or cuts what one record names, and the record.
    pub(crate) fn collect_one(&self, inode: InodeId, garbage: &Garbage) -> Result<(), Errno> {
        let layout = &garbage.layout;
        let map = self.map.read().clone();
        let targets = map.targets_of(layout);
        let chunk_bytes = u64::from(layout.chunk_bytes);
        let mut blocks_freed: u64 = 0;
        let boundary = garbage.keep_bytes % chunk_bytes;
        if boundary > 0 {
            let index = layout.chunk_index(garbage.keep_bytes);
            let target = map.head(layout.chain(index)).ok_or(Errno::EIO)?;
            let chunk = ChunkId { inode, generation: layout.generation, index };
            let request = StorageRequest::Truncate {
                target,
                chunk,
                chunk_bytes: layout.chunk_bytes,
                len: boundary as u32,
            };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Written(written) => blocks_freed += written.blocks_delta.min(0).unsigned_abs(),
                _ => return Err(Errno::EPROTO),
            }
        }
        let from_index = garbage.keep_bytes.div_ceil(chunk_bytes);
        for target in targets {
            blocks_freed += self.delete_generation(target, inode, layout.generation, from_index)?;
        }
        let creds = itself();
        let cut =
            verb::Collected { generation: layout.generation, keep_bytes: garbage.keep_bytes, blocks_freed };
        self.mutate(
            Caller { op: OpId::default(), creds: &creds },
            number::COLLECTED,
            |txn, context| {
                txn.mark_frees_space();
                verb::collected(txn, context, inode, &cut)
            },
            |(), _| (),
        )
    }

    fn delete_generation(
        &self,
        target: TargetId,
        inode: InodeId,
        generation: u32,
        from_index: u64,
    ) -> Result<u64, Errno> {
        let mut freed = 0;
        loop {
            let request = StorageRequest::DeleteGeneration { target, inode, generation, from_index };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::Deleted { blocks, is_done } => {
                    freed += blocks;
                    if is_done {
                        return Ok(freed);
                    }
                }
                _ => return Err(Errno::EPROTO),
            }
        }
    }

    fn may_collect(&self, inode: InodeId, garbage: &Garbage) -> Result<bool, Errno> {
        let creds = itself();
        let caller = Caller { op: OpId::default(), creds: &creds };
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

    /// Carries out a cut of `inode` that an earlier truncation left behind.
    pub(crate) fn cut_pending(&self, inode: InodeId) -> Result<(), Errno> {
        let creds = itself();
        let caller = Caller { op: OpId::default(), creds: &creds };
        let generation = self.inspect(
            caller,
            |txn, _| Ok(txn.find_inode(inode)?.and_then(Self::generation_of)),
            |generation, _| generation,
        )?;
        match generation {
            Some(generation) => self.cut(inode, generation),
            None => Ok(()),
        }
    }

    /// Carries out the truncation of a file with chunks: the record is durable first, then the bytes beyond the end go. One cut of a
    /// file at a time, and each looks at the record anew: once one has returned, the file may be written beyond its end again.
    pub(crate) fn cut(&self, inode: InodeId, generation: u32) -> Result<(), Errno> {
        let _cutting = self.cutting.begin(inode)?;
        self.lane.flush(self.lane.appended()).map_err(|error| self.answer(&error.into()))?;
        let record = self
            .lane
            .read()
            .get(&key::garbage(inode, generation))
            .map_err(|error| self.answer(&error.into()))?;
        let Some(bytes) = record else { return Ok(()) };
        let garbage: Garbage = codec::decode(&bytes, "garbage record").map_err(|_| Errno::EIO)?;
        self.collect_one(inode, &garbage)
    }
}

/// Files that are being cut.
#[derive(Default)]
pub(crate) struct CutsUnderWay {
    // LIMIT: one per call under way.
    inodes: Mutex<FxHashSet<InodeId>>,
    ended: Condvar,
}

/// One file being cut, until dropped.
pub(crate) struct CutUnderWay<'a>(&'a CutsUnderWay, InodeId);

impl CutsUnderWay {
    fn begin(&self, inode: InodeId) -> Result<CutUnderWay<'_>, Errno> {
        let mut inodes = self.inodes.lock();
        while !inodes.insert(inode) {
            if self.ended.wait_for(&mut inodes, DECIDE_MAX).timed_out() {
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
