//! Chunks and metadata after a power cut: each is made durable on its own, so a target may have chunks that the log has forgotten, and
//! the log may know of bytes that never reached a target.
//!
//! A target lists what may be concerned, its suspects (`crates/chunkstore/src/suspects.rs`). A start compares them before anybody is served,
//! so that a generation is never given out while chunks of that name are left, and no byte shows behind what a file has. While the
//! service runs, suspects are confirmed every few seconds: once what metadata knew of them is durable.

use crate::MetaService;
use crate::call::verb as number;
use crate::execute::itself;
use ashlar_namespace::record::Garbage;
use ashlar_namespace::{FileData, Kind, key, verb};
use ashlar_rpc::{Caller, Payload};
use ashlar_types::map::TargetState;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChunkId, Errno, FileLayout, InodeId, OpId, ShardSet, TargetId};
use std::ops::ControlFlow;

/// Suspects asked for at a time.
const PAGE: u32 = 256;

/// What metadata knows of a suspect.
enum Standing {
    /// A garbage record deletes or cuts the chunks, or a writer's record waits for a target that is missing.
    IsTakenCareOf,
    /// No file has these chunks on this target.
    Unknown,
    /// They belong to a file of this length.
    Live { layout: FileLayout, size: u64 },
}

impl MetaService {
    /// No inode id is given out that a lost part of the log may have given out before.
    pub(crate) fn skip_inode_ids(&self) -> Result<(), Errno> {
        let shards: Vec<_> = self.shards_here().0.iter().collect();
        let creds = itself();
        self.mutate(
            Caller::new(OpId::default(), &creds),
            number::SKIP_INODE_IDS,
            |txn, _| {
                shards.iter().try_for_each(|&shard| verb::skip_inode_ids(txn, shard))?;
                verb::next_incarnation(txn).map(drop)
            },
            |(), _| (),
        )?;
        // ORDER: durable before anybody is given one of the new ids.
        self.lane.flush_all().map_err(|error| self.answer(&error.into()))
    }

    /// Compares all suspects with metadata; tells how many there were. It may be interrupted and begun anew: suspects are forgotten last.
    pub(crate) fn reconcile(&self) -> Result<usize, Errno> {
        let (mut count, mut compared) = (0, Vec::new());
        for target in self.online_targets() {
            match self.reconcile_target(target) {
                Ok(0) => {}
                Ok(found) => {
                    count += found;
                    compared.push(target);
                }
                // Its suspects are compared by the start that finds it.
                Err(Errno::ENODEV) => {}
                Err(errno) => {
                    tracing::error!(%errno, %target, "chunks could not be compared with metadata after an unclean stop");
                    return Err(errno);
                }
            }
        }
        if compared.is_empty() {
            return Ok(0);
        }
        // ORDER: what was deleted and cut is durable, then what metadata was told, and only then the suspects are forgotten.
        for &target in &compared {
            self.storage.call(&StorageRequest::Sync { target }, Payload::None)?;
        }
        self.lane.flush_all().map_err(|error| self.answer(&error.into()))?;
        for &target in &compared {
            self.storage.call(&self.confirmation(target, u64::MAX), Payload::None)?;
        }
        Ok(count)
    }

    fn online_targets(&self) -> Vec<TargetId> {
        let map = self.map.read();
        let online = map.targets.iter().filter(|target| target.state == TargetState::Online);
        online.map(|target| target.id).collect()
    }

    fn reconcile_target(&self, target: TargetId) -> Result<usize, Errno> {
        let (mut count, mut after) = (0, None);
        loop {
            let (found, _) = self.suspects(target, after, PAGE)?;
            let Some(last) = found.last() else { return Ok(count) };
            after = Some(*last);
            count += found.len();
            for (inode, generation) in found {
                match self.reconcile_file(target, inode, generation) {
                    // One damaged chunk does not keep everything else from being served.
                    Err(Errno::EIO) => {
                        tracing::error!(%target, %inode, "a file could not be compared with its chunks; run `ashlar fsck`")
                    }
                    Err(Errno::EHOSTDOWN) => {
                        tracing::warn!(%target, %inode, "a file could not be compared with its chunks: another metadata server has to say first what was decided about it")
                    }
                    other => other?,
                }
            }
        }
    }

    /// A page of suspects, and what to confirm about those there were before.
    fn suspects(
        &self,
        target: TargetId,
        after: Option<(InodeId, u32)>,
        limit: u32,
    ) -> Result<(Vec<(InodeId, u32)>, u64), Errno> {
        match self.storage.call(
            &StorageRequest::Suspects {
                target,
                after,
                limit,
                shards: ShardSet::clone(&self.shards_here().0),
            },
            Payload::None,
        )? {
            StorageReply::Suspects { found, mark } => Ok((found, mark)),
            _ => Err(Errno::EPROTO),
        }
    }

    fn confirmation(&self, target: TargetId, mark: u64) -> StorageRequest {
        StorageRequest::Confirm { target, mark, shards: ShardSet::clone(&self.shards_here().0) }
    }

    fn reconcile_file(&self, target: TargetId, inode: InodeId, generation: u32) -> Result<(), Errno> {
        match self.standing(target, inode, generation)? {
            Standing::IsTakenCareOf => Ok(()),
            Standing::Unknown => {
                let blocks = self.delete_generation(target, inode, generation, 0)?;
                if blocks > 0 {
                    tracing::info!(%target, %inode, generation, blocks, "deleted chunks whose file was lost with the end of the log");
                }
                Ok(())
            }
            Standing::Live { layout, size } => {
                self.cut_behind(target, inode, &layout, size)?;
                self.settle_blocks(inode, &layout)
            }
        }
    }

    fn standing(&self, target: TargetId, inode: InodeId, generation: u32) -> Result<Standing, Errno> {
        let map = self.map.read().clone();
        let creds = itself();
        self.inspect(
            Caller::new(OpId::default(), &creds),
            |txn, _| {
                let garbage: Option<Garbage> =
                    txn.get_record(&key::garbage(inode, generation), "garbage record")?;
                // While a target was missing, others may have got the generation that a power cut had taken from it.
                if garbage.is_some_and(|garbage| map.targets_of(&garbage.layout).contains(&target)) {
                    return Ok(Standing::IsTakenCareOf);
                }
                let Some(record) = txn.find_inode(inode)? else { return Ok(Standing::Unknown) };
                let size = record.size;
                let Kind::Regular(FileData::Chunks { layout, .. }) = &record.kind else {
                    return Ok(Standing::Unknown);
                };
                let layout = layout.clone();
                if layout.generation != generation || !map.targets_of(&layout).contains(&target) {
                    return Ok(Standing::Unknown);
                }
                // Dead writers have been settled; whose record is still there could not be.
                let writers = key::writer(inode);
                let mut has_writer = false;
                txn.scan(&writers, &key::after_prefix(&writers), &mut |_, _| {
                    has_writer = true;
                    ControlFlow::Break(())
                })?;
                Ok(if has_writer { Standing::IsTakenCareOf } else { Standing::Live { layout, size } })
            },
            |standing, _| standing,
        )
    }

    /// Cuts what a target has of a file behind its end: bytes of a write that metadata does not know of. They would show when the file
    /// grows. Space reserved behind the end has no length and stays.
    fn cut_behind(
        &self,
        target: TargetId,
        inode: InodeId,
        layout: &FileLayout,
        size: u64,
    ) -> Result<(), Errno> {
        let (generation, chunk_bytes) = (layout.generation, u64::from(layout.chunk_bytes));
        let request = StorageRequest::Extent { target, inode, generation };
        let StorageReply::Extent(extent) = self.storage.call(&request, Payload::None)? else {
            return Err(Errno::EPROTO);
        };
        let end = extent.map_or(0, |(index, len, _)| index * chunk_bytes + u64::from(len));
        if end <= size {
            return Ok(());
        }
        tracing::info!(%target, %inode, size, end, "cut bytes behind the end of a file that a lost write had left");
        let boundary = size % chunk_bytes;
        let index = layout.chunk_index(size);
        if boundary > 0 && self.map.read().head(layout.chain(index)) == Some(target) {
            let request = StorageRequest::Truncate {
                target,
                chunk: ChunkId { inode, generation, index },
                chunk_bytes: layout.chunk_bytes,
                len: boundary as u32,
            };
            self.storage.call(&request, Payload::None)?;
        }
        self.delete_generation(target, inode, generation, size.div_ceil(chunk_bytes)).map(drop)
    }

    /// Has the file account for what its chunks hold.
    fn settle_blocks(&self, inode: InodeId, layout: &FileLayout) -> Result<(), Errno> {
        let blocks = match self.measure(inode, layout) {
            Ok((_, blocks)) => blocks,
            Err(Errno::ENODEV) => {
                tracing::warn!(%inode, "the blocks of a file wait for a missing target");
                return Ok(());
            }
            Err(errno) => return Err(errno),
        };
        let creds = itself();
        self.mutate(
            Caller::new(OpId::default(), &creds),
            number::COMMIT_WRITE,
            |txn, context| {
                let counted = txn.inode(inode)?.blocks;
                if counted == blocks {
                    return Ok(());
                }
                let report = verb::CommitWrite {
                    generation: Some(layout.generation),
                    blocks_delta: blocks as i64 - counted as i64,
                    ..verb::CommitWrite::default()
                };
                verb::commit_write(txn, context, inode, &report).map(drop)
            },
            |(), _| (),
        )
    }

    /// Lets the targets forget suspects of which metadata knows, durably, what it knew when they became durable. Nothing is lost when it
    /// fails: the suspects stay, and are confirmed later or compared by the next start.
    pub(crate) fn confirm_suspects(&self) {
        let mut marks = Vec::new();
        for target in self.online_targets() {
            match self.suspects(target, None, 1) {
                Ok((found, mark)) if !found.is_empty() => marks.push((target, mark)),
                Ok(_) | Err(Errno::ENODEV) => {}
                Err(errno) => tracing::warn!(%errno, %target, "a target does not tell what it waits for"),
            }
        }
        if marks.is_empty() {
            return;
        }
        // ORDER: what names a chunk is in the log before the chunk is on a target, so what was a suspect above is durable after this.
        if let Err(error) = self.lane.flush(self.lane.appended()) {
            self.answer(&error.into());
            return;
        }
        for (target, mark) in marks {
            if let Err(errno) = self.storage.call(&self.confirmation(target, mark), Payload::None) {
                tracing::warn!(%errno, %target, "a target does not take what metadata confirms");
            }
        }
    }

    /// Before the targets are closed in good order: makes everything durable on both sides, so that the next start has nothing to compare.
    pub fn prepare_stop(&self) {
        for target in self.online_targets() {
            match self.storage.call(&StorageRequest::Sync { target }, Payload::None) {
                Ok(_) | Err(Errno::ENODEV) => {}
                Err(errno) => tracing::warn!(%errno, %target, "a target could not be made durable"),
            }
        }
        self.confirm_suspects();
    }
}
