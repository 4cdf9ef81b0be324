//! Calls to the storage services about chunks of one file.

use crate::call::Who;
use crate::client::Client;
use crate::fan::Job;
use crate::file::File;
use crate::unsynced::{Marks, Synced};
use ashlar_rpc::placed::{at_all_places, at_each_place};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::block_sum::{BLOCK_BYTES, seal};
use ashlar_types::codec::crc32c;
use ashlar_types::message::{ChunkWritten, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, FileLayout, InodeId, OfChains, SessionId, TargetId};
use std::sync::Arc;
use std::time::Duration;

/// For how long a target is asked again that has chains whose copies change, and time between that.
const SYNC_AGAIN_MAX: Duration = Duration::from_secs(60);
const SYNC_AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// The sealed checksums of the blocks that `data`, beginning at `offset` of a chunk, covers whole.
pub(crate) fn block_sums(offset: u32, data: &[u8]) -> Vec<u32> {
    let skip = (BLOCK_BYTES - offset as usize % BLOCK_BYTES) % BLOCK_BYTES;
    let whole = data.get(skip..).unwrap_or_default();
    whole.chunks_exact(BLOCK_BYTES).map(|block| seal(crc32c(0, block))).collect()
}

/// What calls to the storage service have changed of the space that a file takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Units of 512 bytes.
    pub blocks_delta: i64,
    /// Whether that may not be all.
    pub doubt: BlockDoubt,
}

/// Why the chunks of a file may have grown or shrunk by more than anybody was told; the later ones are the graver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockDoubt {
    /// They have not.
    #[default]
    None,
    /// A call was made again, because its answer was lost with a server: see [`ChunkWritten::may_be_second`].
    MadeAgain,
    /// A call ended without an answer, in all the time that the mount waits: nobody knows whether it was carried out, and the target is not asked again before somebody syncs
    /// the file.
    Unanswered,
}

impl Growth {
    /// Adds what a call for a change of one chunk was answered. One that ended with an error may have been carried out all the same, its answer lost; but not where there was no
    /// space for it.
    pub(super) fn add(&mut self, outcome: Result<ChunkWritten, Errno>) -> Result<(), Errno> {
        match outcome {
            Ok(written) => {
                self.blocks_delta += written.blocks_delta;
                if written.may_be_second {
                    self.doubt = self.doubt.max(BlockDoubt::MadeAgain);
                }
                Ok(())
            }
            Err(errno) => {
                if errno != Errno::ENOSPC {
                    self.doubt = BlockDoubt::Unanswered;
                }
                Err(errno)
            }
        }
    }
}

/// How far a write got.
pub(crate) struct ChunksWritten {
    /// Bytes that are in the chunks, from the beginning on.
    pub bytes: usize,
    /// Change of allocated 512-byte units.
    pub grown: Growth,
    /// What ended it before all bytes were written.
    pub outcome: Result<(), Errno>,
    /// What is there behind the bytes that count.
    pub behind: Behind,
}

/// What a write has left behind the bytes that count.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// Parts of the file that are written, each in one chunk: from, to, bytes.
    pub written: Vec<(u64, u64)>,
    /// Whether a piece was not answered, so that its target may not answer other calls either.
    pub is_unanswered: bool,
}

impl Client {
    /// The chunk `index` of a file, its chain, and the target that takes writes to it.
    pub(crate) fn locate(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        index: u64,
    ) -> Result<(ChunkId, ChainId, TargetId), Errno> {
        self.locate_by_turn(inode, layout, index, 0)
    }

    /// As [`Client::locate`], of a target that is asked what is in the chunk: of a chain of several copies any one in sync, so that all of them have an equal part of what is read.
    fn locate_to_read(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        index: u64,
    ) -> Result<(ChunkId, ChainId, TargetId), Errno> {
        // Chunks of a stripe that follow one another in a chain go by turns, too.
        let turn = (index / layout.chains.len() as u64).wrapping_add(index).wrapping_add(inode.0);
        self.locate_by_turn(inode, layout, index, turn)
    }

    /// The target whose turn it is of those in sync; the first turn is the head's.
    fn locate_by_turn(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        index: u64,
        turn: u64,
    ) -> Result<(ChunkId, ChainId, TargetId), Errno> {
        let chain = layout.chain(index);
        let map = self.map.read();
        let targets = map.chain(chain).map(|chain| chain.targets.as_slice()).unwrap_or_default();
        let at = usize::try_from(turn % targets.len().max(1) as u64).unwrap_or(0);
        let target = targets.get(at).copied().ok_or(Errno::EIO)?;
        Ok((ChunkId { inode, generation: layout.generation, index }, chain, target))
    }

    /// Index of the first chunk of the file that there is, from `from_index` on. A file may be long and have few.
    pub(crate) fn next_chunk(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        from_index: u64,
    ) -> Result<Option<u64>, Errno> {
        let (mut next, generation) = (None, layout.generation);
        at_each_place(&self.map, &*self.env.tasks, layout, |target, chains| {
            let request = StorageRequest::NextChunk { target, inode, generation, chains, from_index };
            match self.storage.call(&request, Payload::None)? {
                StorageReply::NextChunk(None) => {}
                StorageReply::NextChunk(Some(index)) => {
                    next = Some(next.map_or(index, |now: u64| now.min(index)));
                }
                other => return Err(unexpected(&other)),
            }
            Ok(())
        })?;
        Ok(next)
    }

    /// Writes `data` at `offset` of the file, the pieces of its chunks at the same time where they go over a network. `session` is the one that has the file for itself:
    /// another one that has taken its place does not. Bytes count up to the first piece that failed; some behind it may be there as well.
    pub(crate) fn write_chunks(
        &self,
        session: SessionId,
        (inode, layout): (InodeId, &FileLayout),
        offset: u64,
        data: &[u8],
    ) -> ChunksWritten {
        let (grown, behind) = (Growth::default(), Behind::default());
        let mut written = ChunksWritten { bytes: 0, grown, outcome: Ok(()), behind };
        let pieces: Vec<(u64, u32, u32)> = layout.pieces(offset, data.len() as u64).collect();
        if !self.checks_payload || pieces.len() == 1 {
            for (index, within, len) in pieces {
                let piece = &data[written.bytes..written.bytes + len as usize];
                let outcome = self.write_piece(session, (inode, layout, index), within, piece);
                self.note_change(inode, layout, index, outcome);
                written.outcome = written.grown.add(outcome);
                if written.outcome.is_err() {
                    break;
                }
                written.bytes += piece.len();
            }
            return written;
        }
        let outcomes = self.write_pieces(session, (inode, layout), &pieces, data);
        let mut at = 0;
        for (outcome, (index, within, len)) in outcomes.into_iter().zip(pieces) {
            let piece = &data[at..at + len as usize];
            let outcome = match outcome {
                // One at a time from here on, and no more once one has failed for good.
                Err(Errno::ENOSPC) if written.outcome.is_ok() => {
                    self.write_piece(session, (inode, layout, index), within, piece)
                }
                other => other,
            };
            let is_written = outcome.is_ok();
            self.note_change(inode, layout, index, outcome);
            written.behind.is_unanswered |= matches!(outcome, Err(Errno::ETIMEDOUT));
            let added = written.grown.add(outcome);
            if written.outcome.is_ok() {
                written.outcome = added;
                written.bytes += if is_written { piece.len() } else { 0 };
            } else if is_written {
                let from = offset + at as u64;
                written.behind.written.push((from, from + piece.len() as u64));
            }
            at += piece.len();
        }
        written
    }

    /// Writes `pieces` of `data`, each into its chunk, at the same time; what came of each, up to the last one that was begun: none is after one has failed, unless for want of
    /// space.
    fn write_pieces(
        &self,
        session: SessionId,
        (inode, layout): (InodeId, &FileLayout),
        pieces: &[(u64, u32, u32)],
        data: &[u8],
    ) -> Vec<Result<ChunkWritten, Errno>> {
        // Helpers have what they need of their own.
        let all: Arc<[u8]> = data.into();
        let (mut at, chunk_bytes) = (0, layout.chunk_bytes);
        let mut jobs: Vec<Job<Result<ChunkWritten, Errno>>> = Vec::with_capacity(pieces.len());
        for (index, offset, len) in pieces {
            let (place, range) = (self.locate(inode, layout, *index), at..at + *len as usize);
            let (offset, all, storage) = (*offset, all.clone(), self.storage.clone());
            at = range.end;
            jobs.push(Box::new(move || {
                let (chunk, chain, target) = place?;
                let piece = &all[range];
                let sums = block_sums(offset, piece);
                let request = StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums };
                written(storage.call_in(session, &request, Payload::Write(piece))?)
            }));
        }
        self.fan.run(jobs, |outcome| outcome.is_err_and(|errno| errno != Errno::ENOSPC))
    }

    /// Writes into one chunk.
    fn write_piece(
        &self,
        session: SessionId,
        (inode, layout, index): (InodeId, &FileLayout, u64),
        within: u32,
        piece: &[u8],
    ) -> Result<ChunkWritten, Errno> {
        let (chunk, chain, target) = self.locate(inode, layout, index)?;
        let sums = if self.checks_payload { block_sums(within, piece) } else { Vec::new() };
        let chunk_bytes = layout.chunk_bytes;
        let request = StorageRequest::Write { target, chunk, chain, chunk_bytes, offset: within, sums };
        written(self.with_room(|| self.storage.call_in(session, &request, Payload::Write(piece)))?)
    }

    /// Runs `change`, and once more if it found no space and metadata has made what room it can. Bounded: see [`MetaRequest::MakeRoom`].
    pub(crate) fn with_room<T>(&self, mut change: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        match change() {
            Err(Errno::ENOSPC) => {
                self.call_done(&Who::system(), MetaRequest::MakeRoom)?;
                change()
            }
            other => other,
        }
    }

    /// Fills `out` from `offset` of the file; holes read as zeros. The caller has cut the range to the file's size.
    ///
    /// # Errors
    /// What the storage service answers; `EIO` when checksums do not match.
    pub(crate) fn read_chunks(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Errno> {
        let pieces: Vec<(u64, u32, u32)> = layout.pieces(offset, out.len() as u64).collect();
        if !self.checks_payload || pieces.len() == 1 {
            let mut rest = out;
            for (index, within, len) in pieces {
                let (piece, behind) = rest.split_at_mut(len as usize);
                rest = behind;
                let place = self.locate_to_read(inode, layout, index)?;
                read_piece(&*self.storage, place, (layout.chunk_bytes, within), self.checks_payload, piece)?;
            }
            return Ok(());
        }
        let chunk_bytes = layout.chunk_bytes;
        let mut jobs: Vec<Job<Result<Vec<u8>, Errno>>> = Vec::with_capacity(pieces.len());
        for (index, within, len) in &pieces {
            let (place, storage) = (self.locate_to_read(inode, layout, *index)?, self.storage.clone());
            let (within, len) = (*within, *len as usize);
            jobs.push(Box::new(move || {
                let mut piece = vec![0; len];
                read_piece(&*storage, place, (chunk_bytes, within), true, &mut piece).map(|()| piece)
            }));
        }
        let mut at = 0;
        for piece in self.fan.run(jobs, Result::is_err) {
            let piece = piece?;
            out[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        Ok(())
    }

    /// Makes everything the targets of `layout` have acknowledged durable, all at the same time, and tells whether they have what this client has changed since it did that last; each open
    /// file description is to hear of what they have not.
    pub(crate) fn sync_layout(&self, file: &File, layout: &FileLayout) -> Result<Synced, Errno> {
        self.sync_noted(file.inode, layout, || {
            tracing::error!(inode = %file.inode, "a storage server has lost what was written and not synced");
            file.state.lock().note_loss();
        })
    }

    /// The same; `lost` is called instead where something is lost.
    pub(super) fn sync_noted(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        lost: impl FnOnce(),
    ) -> Result<Synced, Errno> {
        // ORDER: before anything is synced: what is changed from here on is left to the next one.
        let noted = self.unsynced.noted(inode, layout.generation);
        let synced = self.sync_places(layout)?;
        Ok(self.unsynced.synced(inode, &noted, &synced, lost))
    }

    /// Makes what is on the chains of `layout` durable; their marks, of servers that tell them.
    fn sync_places(&self, layout: &FileLayout) -> Result<Marks, Errno> {
        let mut marks = Marks::new();
        at_all_places(&self.map, &*self.env.tasks, layout, |places| {
            let job = |(target, chains): (TargetId, OfChains)| {
                let storage = self.storage.clone();
                Box::new(move || sync_target(&*storage, target, chains)) as Job<Result<Marks, Errno>>
            };
            let targets: Vec<TargetId> = places.iter().map(|(target, _)| *target).collect();
            let done = self.fan.run(places.into_iter().map(job).collect(), ends_sync);
            let told = |(done, target): (Result<Marks, Errno>, TargetId)| match done {
                // A target that was emptied may be gone; the chains that it had were made durable where they went.
                Err(Errno::ENODEV) if self.map.read().target(target).is_none() => Err(Errno::EREMCHG),
                Ok(found) => {
                    marks.extend(found);
                    Ok(())
                }
                Err(errno) => Err(errno),
            };
            done.into_iter().zip(targets).map(told).collect()
        })?;
        Ok(marks)
    }

    /// Makes everything a target has acknowledged of `chains` durable.
    pub(crate) fn sync_target(&self, target: TargetId, chains: OfChains) -> Result<(), Errno> {
        let end = self.env.clock.monotonic() + SYNC_AGAIN_MAX;
        loop {
            match sync_target(&*self.storage, target, chains.clone()) {
                // Copies of one of its chains come or go.
                Err(Errno::EREMCHG) if self.env.clock.monotonic() < end => {
                    self.env.tasks.pause(SYNC_AGAIN_PAUSE);
                }
                done => return done.map(drop),
            }
        }
    }

    /// What came of a change of the chunk `index`; remembered until it is made durable, where a server can lose what this client has seen done.
    pub(super) fn note_change(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        index: u64,
        outcome: Result<ChunkWritten, Errno>,
    ) {
        if let Ok(ChunkWritten { mark, .. }) = outcome
            && self.checks_payload
        {
            self.unsynced.note(inode, layout.generation, (layout.chain(index), mark));
        }
    }
}

/// Whether a sync is over with what one target answered; chains may have gone to another one.
fn ends_sync(done: &Result<Marks, Errno>) -> bool {
    !matches!(done, Ok(_) | Err(Errno::EREMCHG | Errno::ENODEV))
}

/// Makes everything a target has acknowledged of `chains` durable; their marks, if it tells them.
fn sync_target(storage: &dyn StorageCalls, target: TargetId, chains: OfChains) -> Result<Marks, Errno> {
    match storage.call(&StorageRequest::Sync { target, chains }, Payload::None)? {
        StorageReply::Synced(marks) => Ok(marks),
        StorageReply::Done => Ok(Marks::new()),
        other => Err(unexpected(&other)),
    }
}

/// The answer to a write.
fn written(reply: StorageReply) -> Result<ChunkWritten, Errno> {
    match reply {
        StorageReply::Written(written) => Ok(written),
        other => Err(unexpected(&other)),
    }
}

/// Fills `out` from `within` of a chunk of at most `chunk_bytes`.
fn read_piece(
    storage: &dyn StorageCalls,
    (chunk, chain, target): (ChunkId, ChainId, TargetId),
    (chunk_bytes, within): (u32, u32),
    want_sums: bool,
    out: &mut [u8],
) -> Result<(), Errno> {
    // No longer than a chunk.
    let len = out.len() as u32;
    let request = StorageRequest::Read { target, chunk, chain, chunk_bytes, offset: within, len, want_sums };
    match storage.call(&request, Payload::Read(out))? {
        StorageReply::Read { sums } if !want_sums || sums == block_sums(within, out) => Ok(()),
        StorageReply::Read { .. } => {
            tracing::error!(%chunk, %target, "content changed on the way from the target");
            Err(Errno::EIO)
        }
        other => Err(unexpected(&other)),
    }
}

/// An answer of the wrong kind.
pub(crate) fn unexpected(reply: &StorageReply) -> Errno {
    tracing::error!(?reply, "storage service gave an answer of the wrong kind");
    Errno::EPROTO
}
