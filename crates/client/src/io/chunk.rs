//! Calls to the storage services about chunks of one file.

use crate::call::Who;
use crate::client::Client;
use ashlar_env::Task;
use ashlar_rpc::placed::at_each_place;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::block_sum::{BLOCK_BYTES, seal};
use ashlar_types::codec::crc32c;
use ashlar_types::message::{ChunkWritten, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, FileLayout, InodeId, OfChains, SessionId, TargetId};
use parking_lot::Mutex;
use std::sync::Arc;

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
}

impl Client {
    /// The chunk `index` of a file, its chain, and the target that takes writes to it.
    pub(crate) fn locate(
        &self,
        inode: InodeId,
        layout: &FileLayout,
        index: u64,
    ) -> Result<(ChunkId, ChainId, TargetId), Errno> {
        let chain = layout.chain(index);
        let target = self.map.read().head(chain).ok_or(Errno::EIO)?;
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

    /// Writes `data` at `offset` of the file, chunk by chunk, up to the first piece that fails. `session` is the one that has the file for itself:
    /// another one that has taken its place does not.
    pub(crate) fn write_chunks(
        &self,
        session: SessionId,
        (inode, layout): (InodeId, &FileLayout),
        offset: u64,
        data: &[u8],
    ) -> ChunksWritten {
        let mut written = ChunksWritten { bytes: 0, grown: Growth::default(), outcome: Ok(()) };
        for (index, within, len) in layout.pieces(offset, data.len() as u64) {
            let piece = &data[written.bytes..written.bytes + len as usize];
            let outcome = self.write_piece(session, (inode, layout, index), within, piece);
            written.outcome = written.grown.add(outcome);
            if written.outcome.is_err() {
                break;
            }
            written.bytes += piece.len();
        }
        written
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
        match self.with_room(|| self.storage.call_in(session, &request, Payload::Write(piece)))? {
            StorageReply::Written(written) => Ok(written),
            other => Err(unexpected(&other)),
        }
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

    /// Fills `out` from `offset` of the file; holes read as zeros. Over a network pieces of several chunks are read at the same time. The caller has cut the range to the file's size.
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
        let mut reads = Vec::new();
        for (index, within, len) in layout.pieces(offset, out.len() as u64) {
            let (chunk, chain, target) = self.locate(inode, layout, index)?;
            let (chunk_bytes, want_sums) = (layout.chunk_bytes, self.checks_payload);
            let offset = within;
            reads.push(StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums });
        }
        // A call of a function takes less than a thread.
        let is_far = self.checks_payload && !self.env.tasks.takes_turns();
        let (alone, beside) = reads.split_at(if is_far { reads.len().min(1) } else { reads.len() });
        let beside: Vec<Beside> = beside.iter().map(|request| self.begin_read(request)).collect();
        let mut rest = out;
        let mut next_piece = |request: &StorageRequest| {
            let (piece, behind) = std::mem::take(&mut rest).split_at_mut(len_of(request));
            rest = behind;
            piece
        };
        // All that were begun are waited for, and the first error is told.
        let mut outcome = Ok(());
        for request in alone {
            outcome = outcome.and_then(|()| read_piece(&*self.storage, request, next_piece(request)));
        }
        for (request, read) in reads[alone.len()..].iter().zip(beside) {
            let piece = next_piece(request);
            outcome = match read.end() {
                Some(Ok(bytes)) => outcome.map(|()| piece.copy_from_slice(&bytes)),
                Some(Err(errno)) => outcome.and(Err(errno)),
                // There was no thread for it.
                None => outcome.and_then(|()| read_piece(&*self.storage, request, piece)),
            };
        }
        outcome
    }

    /// Has another thread read a piece.
    fn begin_read(&self, request: &StorageRequest) -> Beside {
        let read = Arc::new(Mutex::new(None));
        let (storage, own, result) = (self.storage.clone(), request.clone(), read.clone());
        let run = move || {
            let mut bytes = vec![0; len_of(&own)];
            let outcome = read_piece(&*storage, &own, &mut bytes);
            *result.lock() = Some(outcome.map(|()| bytes));
        };
        // LIMIT: as pieces of a request of the kernel, of which it has as many under way as it was told.
        match self.env.tasks.spawn("ashlar-read", Box::new(run)) {
            Ok(task) => Beside { task: Some(task), read },
            Err(error) => {
                tracing::debug!(%error, "no thread to read a piece; it is read after the others");
                Beside { task: None, read }
            }
        }
    }

    /// Makes everything a target has acknowledged of `chains` durable.
    pub(crate) fn sync_target(&self, target: TargetId, chains: OfChains) -> Result<(), Errno> {
        match self.storage.call(&StorageRequest::Sync { target, chains }, Payload::None)? {
            StorageReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// A piece that another thread reads.
struct Beside {
    task: Option<Task>,
    read: Arc<Mutex<Option<Result<Vec<u8>, Errno>>>>,
}

impl Beside {
    /// What was read, once it is; nothing where there was no thread, or that ended by a panic.
    fn end(self) -> Option<Result<Vec<u8>, Errno>> {
        self.task?.join();
        self.read.lock().take()
    }
}

fn len_of(request: &StorageRequest) -> usize {
    if let StorageRequest::Read { len, .. } = request { *len as usize } else { 0 }
}

/// Reads what is in one chunk, and checks that it is as it was there.
fn read_piece(storage: &dyn StorageCalls, request: &StorageRequest, piece: &mut [u8]) -> Result<(), Errno> {
    let StorageRequest::Read { target, chunk, offset, want_sums, .. } = request else {
        return Err(Errno::EPROTO);
    };
    match storage.call(request, Payload::Read(piece))? {
        StorageReply::Read { sums } if !want_sums || sums == block_sums(*offset, piece) => Ok(()),
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
