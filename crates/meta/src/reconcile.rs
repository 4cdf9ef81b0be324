//! Chunks and metadata after a power cut: each is made durable on its own, so a target may have chunks that the log has forgotten, and
//! the log may know of bytes that never reached a target.
//!
//! A target lists what may be concerned, its suspects (`crates/chunkstore/src/suspects.rs`). A start compares them before anybody is served (one that has lost nothing does without targets that do not answer),
//! so that a generation is never given out while chunks of that name are left, and no byte shows behind what a file has. While the
//! service runs, suspects are confirmed every few seconds: once what metadata knew of them is durable. Those of a target that was missing at a start after which
//! something may have been lost are looked at first, when it is there ([`crate::uncompared`]).
//!
//! Metadata from a backup is older than the targets: then all files are suspects, those of targets and those of metadata.

use crate::MetaService;
use crate::call::verb as number;
use crate::collect::{GROUPS_MAX, GROUPS_PAUSE};
use crate::execute::itself;
use ashlar_kv::{Key, Snapshot};
use ashlar_namespace::record::Garbage;
use ashlar_namespace::{FileData, Inode, Kind, key, verb};
use ashlar_rpc::placed::at_each_place;
use ashlar_rpc::{Caller, Payload};
use ashlar_types::map::TargetState;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{
    ChunkId, Errno, FileLayout, InodeId, OfChains, OpId, SessionId, ShardId, ShardSet, TargetId, codec,
};
use std::ops::ControlFlow;
use std::time::Duration;

/// Suspects asked for at a time.
const PAGE: u32 = 256;

/// For how long a start that has lost nothing waits for chains whose copies change, all in all: while they are made anew on other targets they change on and on.
const CHANGE_MAX: Duration = Duration::from_secs(1);

/// What was asked of a target; `None` from one that is missing, or hangs, or whose copies change on and on: nobody is kept from being served by that. Its suspects stay, and whoever has lost something looks at them when
/// it is there.
///
/// # Errors
/// What else it has answered.
fn there<T>(target: TargetId, asked: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match asked {
        Ok(told) => Ok(Some(told)),
        Err(Errno::ENODEV) => Ok(None),
        Err(errno @ (Errno::ETIMEDOUT | Errno::EREMCHG)) => {
            tracing::warn!(%errno, %target, "chunks of a target are compared with metadata later");
            Ok(None)
        }
        Err(errno) => {
            tracing::error!(%errno, %target, "chunks could not be compared with metadata after an unclean stop");
            Err(errno)
        }
    }
}

/// What metadata knows of a suspect.
pub(crate) enum Standing {
    /// A garbage record deletes or cuts the chunks, or a writer's record waits for a target that is missing.
    IsTakenCareOf,
    /// No file has chunks of these chains on this target.
    Unknown(OfChains),
    /// They belong to a file of this length.
    Live { layout: FileLayout, size: u64 },
}

impl MetaService {
    /// Begins a start, after which something may be missing if it `has_lost`: no inode id is given out that a lost part of the log may have given out before.
    pub(crate) fn skip_inode_ids(&self, has_lost: bool) -> Result<(), Errno> {
        let shards: Vec<_> = self.shards_here().0.iter().collect();
        let creds = itself();
        self.mutate(
            Caller::new(OpId::default(), &creds),
            number::SKIP_INODE_IDS,
            |txn, _| {
                shards.iter().try_for_each(|&shard| verb::skip_inode_ids(txn, shard))?;
                verb::next_incarnation(txn, has_lost).map(drop)
            },
            |(), _| (),
        )?;
        // ORDER: durable before anybody is given one of the new ids.
        self.lane.flush_all().map_err(|error| self.answer(&error.into()))
    }

    /// Compares all suspects with metadata; tells how many there were. It may be interrupted and begun anew: suspects are forgotten last.
    pub(crate) fn reconcile(&self) -> Result<usize, Errno> {
        if self.lost_since > 0 {
            self.uncompared.note(self.map.read().targets.iter().map(|target| target.id));
        }
        let has_lost = self.lost_since == self.incarnation;
        let patience = if has_lost { GROUPS_MAX } else { CHANGE_MAX };
        let (give_up, mut compared) = (self.env.clock.monotonic() + patience, Vec::new());
        let mut is_short = false;
        for target in self.online_targets() {
            // A start that has lost nothing, and has waited for one target, does not wait for the next: that may be for the same reason.
            if is_short && !has_lost && self.env.clock.monotonic() >= give_up {
                continue;
            }
            match there(target, self.reconcile_target(target, give_up))? {
                Some(found) => compared.push((target, found)),
                None => is_short = true,
            }
        }
        // ORDER: what was deleted and cut is durable, then what metadata was told, and only then the suspects are forgotten.
        let mut synced = Vec::new();
        for (target, found) in compared {
            if found == 0 {
                self.uncompared.forget(target);
            } else if there(target, self.sync_target_until(target, give_up))?.is_some() {
                synced.push((target, found));
            }
        }
        if synced.is_empty() {
            return Ok(0);
        }
        self.lane.flush_all().map_err(|error| self.answer(&error.into()))?;
        for &(target, _) in &synced {
            self.uncompared.forget(target);
            there(target, self.storage.call(&self.confirmation(target, u64::MAX), Payload::None))?;
        }
        Ok(synced.iter().map(|(_, found)| found).sum())
    }

    pub(crate) fn online_targets(&self) -> Vec<TargetId> {
        let map = self.map.read();
        let online = map.targets.iter().filter(|target| target.state == TargetState::Online);
        online.map(|target| target.id).collect()
    }

    fn reconcile_target(&self, target: TargetId, give_up: Duration) -> Result<usize, Errno> {
        let compare = || self.compare_all(target, |after| Ok(self.suspects(target, after, PAGE)?.0));
        self.while_copies_change(give_up, compare)
    }

    /// Compares everything that `targets` have of the shards that are here with metadata that comes from a backup, in favour of that. Before anybody is served:
    /// what is newer than it would show in new files. It may be interrupted and begun anew.
    ///
    /// # Errors
    /// `ENODEV` and `ETIMEDOUT` for a target that does not answer, `EIO` from the store and from targets.
    pub fn settle_restored(&self, targets: &[TargetId]) -> Result<(), Errno> {
        let shards = self.shards_here().0;
        for &target in targets {
            self.compare_all(target, |after| {
                let request =
                    StorageRequest::Files { target, after, limit: PAGE, shards: ShardSet::clone(&shards) };
                match self.storage.call(&request, Payload::None)? {
                    StorageReply::Suspects { found, .. } => Ok(found),
                    _ => Err(Errno::EPROTO),
                }
            })?;
        }
        // Chunks that were deleted since are no suspects: what they held is lost, and not counted any more.
        for shard in shards.iter() {
            self.settle_all_blocks(shard)?;
        }
        targets.iter().try_for_each(|target| self.sync_target(*target))?;
        self.lane.flush_all().map_err(|error| self.answer(&error.into()))
    }

    /// Has everything that a target has acknowledged made durable.
    pub(crate) fn sync_target(&self, target: TargetId) -> Result<(), Errno> {
        self.sync_target_until(target, self.env.clock.monotonic() + GROUPS_MAX)
    }

    fn sync_target_until(&self, target: TargetId, give_up: Duration) -> Result<(), Errno> {
        let sync = StorageRequest::Sync { target, chains: OfChains::All };
        self.while_copies_change(give_up, || self.storage.call(&sync, Payload::None).map(drop))
    }

    /// Does something once more, until `give_up`, when it meets chains whose copies are just changing.
    fn while_copies_change<T>(
        &self,
        give_up: Duration,
        does: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            match does() {
                Err(Errno::EREMCHG) if self.env.clock.monotonic() < give_up => {
                    self.env.tasks.pause(GROUPS_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Has all files of a shard account for what their chunks hold.
    fn settle_all_blocks(&self, shard: ShardId) -> Result<(), Errno> {
        let mut from = key::table_range(shard, b'I').0;
        let to = key::table_range(shard, b'I').1;
        loop {
            let mut page: Vec<(InodeId, FileLayout)> = Vec::new();
            let mut last = None;
            let mut left = PAGE * 16;
            let mut visit = |record_key: &[u8], value: &[u8]| {
                last = Some(Key::from_slice(record_key));
                if let (Some(inode), Ok(record)) =
                    (key::inode_of(record_key), codec::decode::<Inode>(value, "inode record"))
                    && let Kind::Regular(FileData::Chunks { layout, .. }) = record.kind
                {
                    page.push((inode, layout));
                }
                left -= 1;
                if left > 0 && page.len() < PAGE as usize {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            };
            self.lane.read().scan(&from, &to, &mut visit).map_err(|error| self.answer(&error.into()))?;
            let Some(last) = last else { return Ok(()) };
            from = last;
            from.push(0);
            for (inode, layout) in page {
                if self.is_settled(inode)? {
                    self.settle_blocks(inode, &layout)?;
                }
            }
        }
    }

    /// Whether nothing is to be done yet about a file's chunks that would change what they hold.
    fn is_settled(&self, inode: InodeId) -> Result<bool, Errno> {
        let creds = itself();
        self.inspect(
            Caller::new(OpId::default(), &creds),
            |txn, _| {
                let mut is_settled = true;
                for prefix in [key::writer(inode), key::garbage_prefix(inode)] {
                    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |_, _| {
                        is_settled = false;
                        ControlFlow::Break(())
                    })?;
                }
                Ok(is_settled)
            },
            |is_settled, _| is_settled,
        )
    }

    fn compare_all(
        &self,
        target: TargetId,
        page: impl Fn(Option<(InodeId, u32)>) -> Result<Vec<(InodeId, u32)>, Errno>,
    ) -> Result<usize, Errno> {
        let (mut count, mut after) = (0, None);
        loop {
            let found = page(after)?;
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
    pub(crate) fn suspects(
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
        match self.standing((target, inode, generation), |_| false)? {
            Standing::IsTakenCareOf => Ok(()),
            Standing::Unknown(chains) => {
                let blocks = self.delete_generation((target, inode, generation, 0), chains)?;
                if blocks > 0 {
                    tracing::info!(%target, %inode, generation, blocks, "deleted chunks whose file was lost with the end of the log");
                }
                Ok(())
            }
            Standing::Live { layout, size } => {
                self.cut_behind(inode, &layout, size)?;
                self.settle_blocks(inode, &layout)
            }
        }
    }

    /// What metadata knows of what a target has of a generation of a file. Records of writers do not count that have told everything, as `has_told` says.
    pub(crate) fn standing(
        &self,
        (target, inode, generation): (TargetId, InodeId, u32),
        has_told: impl Fn(SessionId) -> bool,
    ) -> Result<Standing, Errno> {
        let map = self.map.read().clone();
        let creds = itself();
        self.inspect(
            Caller::new(OpId::default(), &creds),
            |txn, _| {
                let garbage: Option<Garbage> =
                    txn.get_record(&key::garbage(inode, generation), "garbage record")?;
                // While a target was missing, others may have got the generation that a power cut had taken from it.
                // A chain that has moved, or is just moving, is no stray: what is on the other target is the file's.
                let strays = |layout: &FileLayout| Standing::Unknown(OfChains::Except(layout.chains.clone()));
                if let Some(Garbage { layout, .. }) = garbage {
                    let is_there = map.targets_of(&layout).contains(&target);
                    return Ok(if is_there { Standing::IsTakenCareOf } else { strays(&layout) });
                }
                let nobodys = Standing::Unknown(OfChains::All);
                let Some(record) = txn.find_inode(inode)? else { return Ok(nobodys) };
                let size = record.size;
                let Kind::Regular(FileData::Chunks { layout, .. }) = &record.kind else {
                    return Ok(nobodys);
                };
                let layout = layout.clone();
                if layout.generation != generation {
                    return Ok(nobodys);
                }
                if !map.targets_of(&layout).contains(&target) {
                    return Ok(strays(&layout));
                }
                // Dead writers have been settled; whose record is still there could not be.
                let writers = key::writer(inode);
                let mut has_writer = false;
                txn.scan(&writers, &key::after_prefix(&writers), &mut |record_key, _| {
                    has_writer = !key::session_of_record(record_key).is_some_and(&has_told);
                    if has_writer { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
                Ok(if has_writer { Standing::IsTakenCareOf } else { Standing::Live { layout, size } })
            },
            |standing, _| standing,
        )
    }

    /// Cuts what targets have of a file behind its end: bytes of a write that metadata does not know of. They would show when the file
    /// grows. Space reserved behind the end has no length and stays.
    fn cut_behind(&self, inode: InodeId, layout: &FileLayout, size: u64) -> Result<(), Errno> {
        at_each_place(&self.map, &*self.env.tasks, layout, |target, chains| {
            match self.cut_behind_at(target, &chains, inode, layout, size) {
                // Its suspects are compared by the start that finds it.
                Err(Errno::ENODEV) => Ok(()),
                other => other,
            }
        })
    }

    fn cut_behind_at(
        &self,
        target: TargetId,
        chains: &OfChains,
        inode: InodeId,
        layout: &FileLayout,
        size: u64,
    ) -> Result<(), Errno> {
        let (generation, chunk_bytes) = (layout.generation, u64::from(layout.chunk_bytes));
        let request = StorageRequest::Extent { target, inode, generation, chains: chains.clone() };
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
        let chain = layout.chain(index);
        if boundary > 0 && chains.has(Some(chain)) {
            let request = StorageRequest::Truncate {
                target,
                chunk: ChunkId { inode, generation, index },
                chain,
                chunk_bytes: layout.chunk_bytes,
                len: boundary as u32,
            };
            self.storage.call(&request, Payload::None)?;
        }
        let place = (target, inode, generation, size.div_ceil(chunk_bytes));
        self.delete_generation(place, chains.clone()).map(drop)
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
            if self.uncompared.has(target) {
                continue;
            }
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
            match self.storage.call(&StorageRequest::Sync { target, chains: OfChains::All }, Payload::None) {
                Ok(_) | Err(Errno::ENODEV) => {}
                Err(errno) => tracing::warn!(%errno, %target, "a target could not be made durable"),
            }
        }
        self.confirm_suspects();
    }
}
