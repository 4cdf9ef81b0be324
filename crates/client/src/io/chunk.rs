//! Calls to the storage services about chunks of one file.

use crate::call::Who;
use crate::client::Client;
use ashlar_rpc::Payload;
use ashlar_rpc::placed::at_each_place;
use ashlar_types::block_sum::{BLOCK_BYTES, seal};
use ashlar_types::codec::crc32c;
use ashlar_types::message::{ChunkWritten, MetaRequest, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, FileLayout, InodeId, OfChains, SessionId, TargetId};

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
        let mut rest = out;
        for (index, within, len) in layout.pieces(offset, rest.len() as u64) {
            let (piece, behind) = rest.split_at_mut(len as usize);
            rest = behind;
            let (chunk, chain, target) = self.locate(inode, layout, index)?;
            let request = StorageRequest::Read {
                target,
                chunk,
                chain,
                chunk_bytes: layout.chunk_bytes,
                offset: within,
                len,
                want_sums: self.checks_payload,
            };
            match self.storage.call(&request, Payload::Read(piece))? {
                StorageReply::Read { sums } if !self.checks_payload || sums == block_sums(within, piece) => {}
                StorageReply::Read { .. } => {
                    tracing::error!(%chunk, %target, "content changed on the way from the target");
                    return Err(Errno::EIO);
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// Makes everything a target has acknowledged of `chains` durable.
    pub(crate) fn sync_target(&self, target: TargetId, chains: OfChains) -> Result<(), Errno> {
        match self.storage.call(&StorageRequest::Sync { target, chains }, Payload::None)? {
            StorageReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// An answer of the wrong kind.
pub(crate) fn unexpected(reply: &StorageReply) -> Errno {
    tracing::error!(?reply, "storage service gave an answer of the wrong kind");
    Errno::EPROTO
}
