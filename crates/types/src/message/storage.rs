//! Calls to the storage service. Payload of writes and reads is passed beside the message.

use crate::{ChainId, ChunkId, Epoch, InodeId, OfChains, ShardSet, TargetId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Another one from each time on when what a target had acknowledged of a chain, and not made durable, may have been lost. Whoever was told one mark when he changed something and hears of another one with
/// the sync that is to make it durable does not know whether it is there. The verifier of WRITE and COMMIT in RFC 1813, section 3.3.21, is for the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LossMark(pub u64);

impl LossMark {
    /// There is nothing to lose, or it is not known.
    pub const NONE: LossMark = LossMark(0);
}

/// A call to one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageRequest {
    /// Writes the payload into a chunk, creating it if need be.
    Write {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Offset in the chunk, bytes.
        offset: u32,
        /// Sealed CRC-32C ([`crate::block_sum`]) of each 4 KiB-aligned block that the payload covers whole, in order; empty
        /// when nothing can happen to the payload on the way (a caller in the same process).
        sums: Vec<u32>,
    },
    /// Reads into the payload buffer; what the chunk does not have reads as zeros.
    Read {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Offset in the chunk, bytes.
        offset: u32,
        /// Bytes wanted.
        len: u32,
        /// Whether the reply is to carry checksums, for a reader behind a network.
        want_sums: bool,
    },
    /// Cuts a chunk to `len` bytes.
    Truncate {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Bytes to keep.
        len: u32,
    },
    /// Makes a range read as zeros and frees its space.
    Punch {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Offset in the chunk, bytes.
        offset: u32,
        /// Length, bytes.
        len: u32,
    },
    /// Reserves space for a range; it reads as before, or as zeros.
    Allocate {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Offset in the chunk, bytes.
        offset: u32,
        /// Length, bytes.
        len: u32,
    },
    /// Deletes the chunks of a file's generation from `from_index` on, as many as one call may.
    DeleteGeneration {
        /// The target.
        target: TargetId,
        /// The file.
        inode: InodeId,
        /// The generation.
        generation: u32,
        /// Which of its chunks.
        chains: OfChains,
        /// First chunk to delete.
        from_index: u64,
    },
    /// Finds the next byte of data (or of a hole) in a chunk at or after `offset`.
    Seek {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Where to begin, bytes.
        offset: u32,
        /// Whether to look for data (else for a hole).
        data: bool,
    },
    /// What the target has of a file's generation.
    Extent {
        /// The target.
        target: TargetId,
        /// The file.
        inode: InodeId,
        /// The generation.
        generation: u32,
        /// Which of its chunks.
        chains: OfChains,
    },
    /// Makes everything acknowledged before durable.
    Sync {
        /// The target.
        target: TargetId,
        /// Chains whose content is meant, if not all.
        chains: OfChains,
    },
    /// Free and total space.
    Space {
        /// The target.
        target: TargetId,
    },
    /// If the local file system below is short of space: free at once what deleted chunks still hold there.
    GiveBack {
        /// The target.
        target: TargetId,
    },
    /// Files whose chunks changed, and of which metadata has not said since that it knows them durably.
    Suspects {
        /// The target.
        target: TargetId,
        /// The last one, with its generation, that the caller has; `None` at the beginning.
        after: Option<(InodeId, u32)>,
        /// Most to look at; the target may look at fewer, but lists none only at the end.
        limit: u32,
        /// Only files of these shards.
        shards: ShardSet,
    },
    /// What was a suspect up to `mark` is none any more.
    Confirm {
        /// The target.
        target: TargetId,
        /// From [`StorageReply::Suspects`]; `u64::MAX` for all.
        mark: u64,
        /// Only files of these shards: of others another server knows.
        shards: ShardSet,
    },
    /// The first chunk of a file's generation that is here, from `from_index` on.
    NextChunk {
        /// The target.
        target: TargetId,
        /// The file.
        inode: InodeId,
        /// The generation.
        generation: u32,
        /// Which of its chunks.
        chains: OfChains,
        /// First chunk to look at.
        from_index: u64,
    },
    /// The caller, which has a chain, is about to copy it to this target, for which the map says that the chain moves there. What the target
    /// has of it from an earlier attempt is deleted, as much as one call may. Changes of the chain's chunks that the caller sends from then on are
    /// carried out.
    MoveBegin {
        /// The target that is to have the chain.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// Of the map that says so.
        epoch: Epoch,
        /// First chunk to delete; `None` at the beginning.
        from: Option<ChunkId>,
    },
    /// All of the chain was sent: make it durable. Refused when the target does not remember the beginning.
    MoveSeal {
        /// The target that is to have the chain.
        target: TargetId,
        /// The chain.
        chain: ChainId,
    },
    /// How far moves of chains from this target are.
    Moves {
        /// The target.
        target: TargetId,
    },
    /// All files that have chunks on the target, answered as [`StorageRequest::Suspects`].
    Files {
        /// The target.
        target: TargetId,
        /// The last one, with its generation, that the caller has; `None` at the beginning.
        after: Option<(InodeId, u32)>,
        /// Most to tell; none are told only at the end.
        limit: u32,
        /// Only files of these shards.
        shards: ShardSet,
    },
    /// Reads some of what is there, and compares it with its checksums.
    Scrub {
        /// The target.
        target: TargetId,
        /// Where to go on, as the last answer said; empty at the beginning.
        from: Vec<u8>,
    },
    /// How fast chains leave the target.
    MoveRate {
        /// The target.
        target: TargetId,
    },
    /// Another target that keeps copies of the same chains asks for leases.
    CopyBeacon {
        /// The target that is asked.
        target: TargetId,
        /// The target that asks.
        from: TargetId,
        /// The chains, each with the epoch of its group as the asker knows it.
        // LIMIT: as chains of a target.
        chains: Vec<(ChainId, Epoch)>,
    },
    /// The target in front in a chain asks what may differ, at the beginning of an epoch.
    CopyCompare {
        /// The target that is asked.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// Of uncertain chunks, only those behind this one.
        after: Option<ChunkId>,
    },
    /// Delete what there is of a chain, as much as one call may: it is sent whole.
    CopyEmpty {
        /// The target.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// First chunk to delete; `None` at the beginning.
        from: Option<ChunkId>,
    },
    /// A chunk is certain: it was sent as it is in front.
    CopySettled {
        /// The target.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// The chunk.
        chunk: ChunkId,
    },
    /// The target in front cannot read blocks of a chunk, and asks for those of them that have the checksum that it has of them.
    CopyBlocks {
        /// The target that is asked.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// The chunk.
        chunk: ChunkId,
        /// The 4 KiB blocks in the chunk, each with its sealed checksum ([`crate::block_sum`]).
        // LIMIT: 64.
        blocks: Vec<(u32, u32)>,
    },
    /// The target behind cannot read what it has of a chunk, and asks for it.
    CopyAgain {
        /// The target in front.
        target: TargetId,
        /// The target that asks.
        from: TargetId,
        /// The chain.
        chain: ChainId,
        /// The chunk.
        chunk: ChunkId,
    },
    /// Blocks of a chunk that is sent whole cannot be read in front: what was in them is lost, and reads of them are to fail here, too.
    CopyLost {
        /// The target.
        target: TargetId,
        /// The chunk.
        chunk: ChunkId,
        /// Its chain.
        chain: ChainId,
        /// Chunk size of the file's layout, bytes.
        chunk_bytes: u32,
        /// Length of the chunk, bytes.
        len: u32,
        /// The 4 KiB blocks in the chunk, ascending, each with the sealed checksum of what was there.
        // LIMIT: those of a chunk.
        blocks: Vec<(u32, u32)>,
    },
    /// The chunks of a chain in short, for a comparison by the target in front.
    CopyDigests {
        /// The target that is asked.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// The first chunk; `None` for the first one there is.
        from: Option<ChunkId>,
        /// The first one that is not meant; `None`: up to the end.
        to: Option<ChunkId>,
    },
    /// What is told with changes of a chain where it comes from, another target, in front of this one or before it: from here on the same is told here.
    TakeLossMark {
        /// The target that is told.
        target: TargetId,
        /// The chain.
        chain: ChainId,
        /// The mark.
        mark: LossMark,
    },
    /// The operator says that another target never comes back: where this one lacks something of a chain since a power cut, and hears nobody who may have it, it has that one removed.
    GoOnWithout {
        /// The target that is told.
        target: TargetId,
        /// The other one.
        lost: TargetId,
    },
}

/// The target of a request, by reference to whatever the request is a reference to.
macro_rules! target_of {
    ($request:expr) => {
        match $request {
            StorageRequest::Write { target, .. }
            | StorageRequest::MoveBegin { target, .. }
            | StorageRequest::MoveSeal { target, .. }
            | StorageRequest::Moves { target }
            | StorageRequest::MoveRate { target }
            | StorageRequest::Read { target, .. }
            | StorageRequest::Truncate { target, .. }
            | StorageRequest::Punch { target, .. }
            | StorageRequest::Allocate { target, .. }
            | StorageRequest::DeleteGeneration { target, .. }
            | StorageRequest::Seek { target, .. }
            | StorageRequest::Extent { target, .. }
            | StorageRequest::NextChunk { target, .. }
            | StorageRequest::Sync { target, .. }
            | StorageRequest::Space { target }
            | StorageRequest::GiveBack { target }
            | StorageRequest::Suspects { target, .. }
            | StorageRequest::Files { target, .. }
            | StorageRequest::Scrub { target, .. }
            | StorageRequest::CopyBeacon { target, .. }
            | StorageRequest::CopyCompare { target, .. }
            | StorageRequest::CopyEmpty { target, .. }
            | StorageRequest::CopySettled { target, .. }
            | StorageRequest::CopyBlocks { target, .. }
            | StorageRequest::CopyAgain { target, .. }
            | StorageRequest::CopyLost { target, .. }
            | StorageRequest::CopyDigests { target, .. }
            | StorageRequest::TakeLossMark { target, .. }
            | StorageRequest::GoOnWithout { target, .. }
            | StorageRequest::Confirm { target, .. } => target,
        }
    };
}

impl StorageRequest {
    /// The target the call is for.
    pub fn target(&self) -> TargetId {
        *target_of!(self)
    }

    /// The same request, for another target.
    #[must_use]
    pub fn at(mut self, other: TargetId) -> StorageRequest {
        *target_of!(&mut self) = other;
        self
    }

    /// The chain of the one chunk that the request is about. `None` where it is about several, or about the target.
    pub fn chain(&self) -> Option<ChainId> {
        match self {
            StorageRequest::Write { chain, .. }
            | StorageRequest::Read { chain, .. }
            | StorageRequest::Truncate { chain, .. }
            | StorageRequest::Punch { chain, .. }
            | StorageRequest::Allocate { chain, .. }
            | StorageRequest::Seek { chain, .. }
            | StorageRequest::CopyLost { chain, .. } => Some(*chain),
            _ => None,
        }
    }
}

/// A chain that moves from one target to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveProgress {
    /// Which chain.
    pub chain: ChainId,
    /// Where it goes.
    pub to: TargetId,
    /// Chunks that are there.
    pub chunks_done: u64,
    /// Bytes that were sent for them.
    pub bytes_done: u64,
    /// Bytes that its chunks have here, as they were counted last; 0 before that.
    pub bytes_total: u64,
    /// What keeps it from going on, in words; empty while it goes on.
    pub obstacle: String,
}

/// What a write did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkWritten {
    /// Change of allocated space in units of 512 bytes.
    pub blocks_delta: i64,
    /// Whether the call may have been carried out once before: by a server that did not answer, and whose place another process has taken, or another
    /// server. What it changed then is not in `blocks_delta`. It does not travel: the caller's end of the connection knows.
    #[serde(skip)]
    pub may_be_second: bool,
    /// What is to be the same when the change is made durable. It travels in [`StorageReply::WrittenAt`].
    #[serde(skip)]
    pub mark: LossMark,
}

/// The answer of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageReply {
    /// Written, cut, punched or allocated.
    Written(ChunkWritten),
    /// Read: the payload buffer is filled.
    Read {
        /// Sealed CRC-32C ([`crate::block_sum`]) of each 4 KiB-aligned block the range covers whole, in order, if they were wanted.
        sums: Vec<u32>,
    },
    /// Deleted some; call again while `is_done` is false.
    Deleted {
        /// Units of 512 bytes freed by this call.
        blocks: u64,
        /// Whether nothing is left.
        is_done: bool,
        /// As in [`ChunkWritten`]: more may have been freed than that.
        #[serde(skip)]
        may_be_second: bool,
    },
    /// Offset found, or none up to the end of the chunk.
    Found(Option<u32>),
    /// Last chunk index with its length in bytes, and allocated units of 512 bytes in all; `None` without chunks.
    Extent(Option<(u64, u32, u64)>),
    /// Done.
    Done,
    /// Space in bytes: total, free.
    Space {
        /// Total.
        bytes_total: u64,
        /// Free.
        bytes_free: u64,
    },
    /// Suspects.
    Suspects {
        /// Files and generations, ascending.
        found: Vec<(InodeId, u32)>,
        /// What to confirm about all that was a suspect before the call.
        mark: u64,
    },
    /// Index of the chunk, if there is one.
    NextChunk(Option<u64>),
    /// A move may begin; or something of an earlier one is still there: call again from this chunk.
    MoveBegun(Option<ChunkId>),
    /// Moves under way.
    Moves(Vec<MoveProgress>),
    /// What some of it is like.
    Scrubbed {
        /// What is not as it was written, in words; with the file, if it is a file's.
        findings: Vec<(Option<InodeId>, String)>,
        /// Where to go on; empty at the end.
        next: Vec<u8>,
        /// Bytes that were read.
        bytes_read: u64,
    },
    /// What was copied from the target for moves in the last seconds, bytes per second.
    MoveRate(u64),
    /// Of each chain that was asked for: the newest epoch of its group that is known here, and whether the lease is granted.
    CopyGranted(Vec<(ChainId, Epoch, bool)>),
    /// What a target has of a chain.
    CopyCompared {
        /// The last epoch of the group at which it was in sync, if it has had all since then that it has acknowledged; `None`: it may have anything.
        in_sync_at: Option<Epoch>,
        /// Chunks of which it is not known whether others have what is there, ascending.
        uncertain: Vec<ChunkId>,
        /// Whether there are more behind the last one.
        has_more: bool,
    },
    /// The first chunk of the chain that is still there.
    CopyEmptied(Option<ChunkId>),
    /// Of each block that was asked for: its content up to the chunk's length, if it has that checksum there.
    CopyBlocks(Vec<Option<Vec<u8>>>),
    /// What a target has of a part of a chain.
    CopyDigests {
        /// Chunks, ascending, each with a sum over its length and the checksums of its blocks; without one if it cannot be read.
        // LIMIT: 512 of each target that is meant.
        digests: Vec<(ChunkId, Option<u64>)>,
        /// Where to go on; `None` at the end.
        next: Option<ChunkId>,
    },
    /// As [`StorageReply::Written`], on the way from a server to somebody who knows of marks.
    WrittenAt(ChunkWritten, LossMark),
    /// What was acknowledged of these chains is durable, unless it was under another mark than this.
    // LIMIT: the chains that were asked for.
    Synced(SmallVec<[(ChainId, LossMark); 4]>),
}

impl StorageReply {
    /// As it travels to somebody who knows of marks, or does not.
    #[must_use]
    pub fn sent(self, with_marks: bool) -> StorageReply {
        match self {
            StorageReply::Written(written) if with_marks => {
                StorageReply::WrittenAt(ChunkWritten { mark: LossMark::NONE, ..written }, written.mark)
            }
            StorageReply::Synced(_) if !with_marks => StorageReply::Done,
            other => other,
        }
    }

    /// What [`StorageReply::sent`] was made of.
    #[must_use]
    pub fn received(self) -> StorageReply {
        match self {
            StorageReply::WrittenAt(written, mark) => StorageReply::Written(ChunkWritten { mark, ..written }),
            other => other,
        }
    }
}
