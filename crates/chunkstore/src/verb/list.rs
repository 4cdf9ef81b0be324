//! List: all chunks, page by page, for the consistency check.

use crate::checksum::BLOCK_BYTES;
use crate::error::ChunkError;
use crate::key::{self, Placement};
use crate::store::ChunkStore;
use ashlar_types::{ChunkId, InodeId};

/// A chunk on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedChunk {
    /// The chunk.
    pub id: ChunkId,
    /// Its size class, bytes.
    pub chunk_bytes: u32,
    /// Its length, bytes; `None` when its header is damaged.
    pub len: Option<u32>,
    /// Space held, in units of 512 bytes; 0 when its header is damaged.
    pub blocks: u64,
}

/// A page of chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkPage {
    /// Chunks, ascending.
    pub chunks: Vec<ListedChunk>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<ChunkId>,
}

/// The id behind `id` in the order of the index.
pub(crate) fn successor(id: ChunkId) -> Option<ChunkId> {
    let ChunkId { inode, generation, index } = id;
    if let Some(index) = index.checked_add(1) {
        return Some(ChunkId { inode, generation, index });
    }
    if let Some(generation) = generation.checked_add(1) {
        return Some(ChunkId { inode, generation, index: 0 });
    }
    Some(ChunkId { inode: InodeId(inode.0.checked_add(1)?), generation: 0, index: 0 })
}

impl ChunkStore {
    /// Up to `limit` chunks (512 at most) at or behind `from`, ascending.
    ///
    /// # Errors
    /// [`ChunkError::Io`] and those of the index; a damaged header is no error here.
    pub fn list(&self, from: ChunkId, limit: usize) -> Result<ChunkPage, ChunkError> {
        self.check()?;
        let (_, end) = key::table_range(key::CHUNKS);
        let pairs = self.index.page(&key::chunk(from), &end, limit)?;
        let mut page = ChunkPage::default();
        for (key, value) in &pairs {
            let (id, placement) = (key::decode_chunk(key)?, Placement::decode(value)?);
            page.next = successor(id);
            let chunk_bytes = placement.slot.slab.class.chunk_bytes();
            let (len, held) = match self.size_of(id, placement) {
                Ok(Some((len, held))) => (Some(len), held),
                Ok(None) => continue,
                Err(ChunkError::Corrupt { .. } | ChunkError::Newer { .. }) => (None, 0),
                Err(error) => return Err(error),
            };
            let blocks = u64::from(held) * (BLOCK_BYTES as u64 / 512);
            page.chunks.push(ListedChunk { id, chunk_bytes, len, blocks });
        }
        Ok(page)
    }
}
