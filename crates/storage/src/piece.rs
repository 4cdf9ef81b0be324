//! One chunk on its way to another target, piece by piece. Between two pieces it may be changed: what is changed goes to both targets, and what a piece is
//! and how the chunk ends is looked up anew each time.

use crate::call::keep_whole_blocks;
use ashlar_chunkstore::{BlockSum, ChunkError, ChunkMap, ChunkStore, Run};
use ashlar_rpc::Payload;
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, LayoutPolicy, TargetId};

const BLOCK_BYTES: u32 = ashlar_types::block_sum::BLOCK_BYTES as u32;

/// Where it goes.
pub(crate) trait Destination {
    /// The target.
    fn target(&self) -> TargetId;
    /// The chain of the chunk.
    fn chain(&self) -> ChainId;
    /// Has it make a change.
    fn send(&self, request: StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno>;
}

/// Why a piece was not sent.
pub(crate) enum NotSent {
    /// It cannot be read here.
    Disk(ChunkError),
    /// It is not taken there.
    Refused(Errno),
}

impl From<ChunkError> for NotSent {
    fn from(error: ChunkError) -> NotSent {
        NotSent::Disk(error)
    }
}

/// See the module. Whoever sends something holds the chunk's lock.
pub(crate) struct Copy<'a> {
    pub store: &'a ChunkStore,
    pub to: &'a dyn Destination,
    pub chunk: ChunkId,
    /// Bytes of a piece at the most.
    pub piece_bytes: u32,
    /// Up to where it was sent, bytes; nothing before it was begun.
    at: Option<u32>,
    /// What is there may be the only content that somebody was told of, and is taken away by nothing but what comes in its place.
    is_over: bool,
    /// Blocks that cannot be read here, ascending: what is there of them stays.
    skipped: Vec<BlockSum>,
}

impl<'a> Copy<'a> {
    /// A copy in the place of what is there, which counts for nothing.
    pub fn anew(
        store: &'a ChunkStore,
        to: &'a dyn Destination,
        chunk: ChunkId,
        piece_bytes: u32,
    ) -> Copy<'a> {
        Copy { store, to, chunk, piece_bytes, at: None, is_over: false, skipped: Vec::new() }
    }

    /// A copy over what is there.
    pub fn over(
        store: &'a ChunkStore,
        to: &'a dyn Destination,
        chunk: ChunkId,
        piece_bytes: u32,
    ) -> Copy<'a> {
        Copy { is_over: true, ..Copy::anew(store, to, chunk, piece_bytes) }
    }

    /// Begins anew: what was sent may be gone.
    pub fn begin_anew(&mut self) {
        self.at = None;
    }

    /// Begins anew, without these blocks, which are ascending.
    pub fn begin_without(&mut self, blocks: Vec<BlockSum>) {
        self.skipped = blocks;
        self.begin_anew();
    }

    /// Offset and length of what is to be sent next, bytes.
    pub fn next_piece(&self, map: &ChunkMap) -> Option<(u32, u32)> {
        let at = self.at.unwrap_or(0);
        let pieces = data_of(map).filter_map(|(begin, end)| {
            let mut begin = begin.max(at);
            let is_skipped =
                |at: u32| self.skipped.binary_search_by_key(&(at / BLOCK_BYTES), |(block, _)| *block);
            while begin < end && is_skipped(begin).is_ok() {
                begin = (begin / BLOCK_BYTES + 1) * BLOCK_BYTES;
            }
            let next = self.skipped.partition_point(|(block, _)| *block <= begin / BLOCK_BYTES);
            let end = self.skipped.get(next).map_or(end, |(block, _)| end.min(block * BLOCK_BYTES));
            (begin < end).then(|| (begin, (end - begin).min(self.piece_bytes)))
        });
        pieces.take(1).next()
    }

    /// Sends it, with the checksums it has here; tells how many bytes that were.
    pub fn send_piece(&mut self, map: &ChunkMap) -> Result<u32, NotSent> {
        let (target, chain, chunk, chunk_bytes) = self.names(map);
        if self.at.is_none() {
            if !self.is_over {
                self.send(
                    StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len: 0 },
                    Payload::None,
                )?;
            }
            self.at = Some(0);
        }
        let Some((offset, len)) = self.next_piece(map) else { return Ok(0) };
        let (mut piece, mut sums) = (vec![0; len as usize], Vec::new());
        self.store.read_with_sums(chunk, chunk_bytes, offset, &mut piece, &mut sums)?;
        if self.is_over {
            // The last block with its zeros: of what is there nothing is to be kept, and it may be damaged.
            piece.resize(piece.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        }
        keep_whole_blocks(&mut sums, offset as usize, piece.len());
        let request = StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums };
        self.send(request, Payload::Write(&piece))?;
        // What comes behind the end in the same block comes to both targets.
        self.at = Some((offset + len).next_multiple_of(BLOCK_BYTES));
        Ok(len)
    }

    /// Gives it its length, and reserves what is reserved here, when all of its data was sent.
    pub fn end(&self, map: &ChunkMap) -> Result<(), NotSent> {
        let (target, chain, chunk, chunk_bytes) = self.names(map);
        let end = data_of(map).map(|(_, end)| end).max().unwrap_or(0);
        if end == 0 && map.len > 0 && self.is_over {
            // As below, of a block whose content there counts for nothing.
            let (offset, sums) = ((map.len - 1) / BLOCK_BYTES * BLOCK_BYTES, Vec::new());
            self.send(
                StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums },
                Payload::Write(&[0; BLOCK_BYTES as usize]),
            )?;
        } else if end == 0 && map.len > 0 {
            // All of it is a hole, or reserved, and has a length.
            let (offset, sums) = (map.len - 1, Vec::new());
            self.send(
                StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums },
                Payload::Write(&[0]),
            )?;
            self.send(
                StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset, len: 1 },
                Payload::None,
            )?;
        } else if end < map.len && !self.is_over {
            let len = map.len;
            self.send(StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len }, Payload::None)?;
        }
        if self.is_over {
            // ORDER: what is a hole here may be damaged there, where the end is to be.
            self.punch_holes(map)?;
            self.cut(map)?;
        }
        // ORDER: after the length is set, which gives back what is reserved behind it.
        for Run { offset, len, .. } in map.runs.iter().filter(|run| !run.has_data).copied() {
            self.send(
                StorageRequest::Allocate { target, chunk, chain, chunk_bytes, offset, len },
                Payload::None,
            )?;
        }
        Ok(())
    }

    /// Has it end there where it ends here. If it ends within a block that cannot be read, here nor there, that is lost.
    fn cut(&self, map: &ChunkMap) -> Result<(), NotSent> {
        let ((target, chain, chunk, chunk_bytes), len) = (self.names(map), map.len);
        let last = len / BLOCK_BYTES;
        let skipped = self.skipped.iter().find(|(block, _)| len % BLOCK_BYTES > 0 && *block == last);
        match self.send(StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len }, Payload::None) {
            Err(NotSent::Refused(Errno::EIO)) if let Some(lost) = skipped => {
                let blocks = vec![*lost];
                self.send(
                    StorageRequest::CopyLost { target, chunk, chain, chunk_bytes, len, blocks },
                    Payload::None,
                )
            }
            done => done,
        }
    }

    /// Has zeros there where there is no data here.
    fn punch_holes(&self, map: &ChunkMap) -> Result<(), NotSent> {
        let (target, chain, chunk, chunk_bytes) = self.names(map);
        let mut at = 0;
        let end = Run { offset: map.len.next_multiple_of(BLOCK_BYTES), len: 0, has_data: false };
        for Run { offset, len, .. } in map.runs.iter().copied().filter(|run| run.has_data).chain([end]) {
            if offset > at {
                let len = offset - at;
                self.send(
                    StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset: at, len },
                    Payload::None,
                )?;
            }
            at = at.max(offset + len);
        }
        Ok(())
    }

    /// What there is of it on the other target, and of changes that went there, is taken back: here it is not any more.
    pub fn is_gone(&self) -> Result<(), NotSent> {
        let (target, chain, chunk) = (self.to.target(), self.to.chain(), self.chunk);
        let chunk_bytes = LayoutPolicy::CHUNK_BYTES_MIN;
        self.send(StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len: 0 }, Payload::None)
    }

    fn names(&self, map: &ChunkMap) -> (TargetId, ChainId, ChunkId, u32) {
        (self.to.target(), self.to.chain(), self.chunk, map.chunk_bytes)
    }

    fn send(&self, request: StorageRequest, payload: Payload<'_>) -> Result<(), NotSent> {
        self.to.send(request, payload).map(drop).map_err(NotSent::Refused)
    }
}

/// Beginning and end of each run of data, within the chunk's length.
fn data_of(map: &ChunkMap) -> impl Iterator<Item = (u32, u32)> + '_ {
    map.runs
        .iter()
        .filter(|run| run.has_data && run.offset < map.len)
        .map(|run| (run.offset, map.len.min(run.offset + run.len)))
}
