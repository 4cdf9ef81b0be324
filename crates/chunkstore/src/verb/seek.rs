//! Seek: where data and holes are inside a chunk (`lseek(2)`, `SEEK_DATA` and `SEEK_HOLE`). Reserved blocks are holes.

use crate::cache::State;
use crate::checksum::{BLOCK, has_data};
use crate::error::ChunkError;
use crate::store::ChunkStore;
use ashlar_types::ChunkId;

impl ChunkStore {
    /// The first byte of data at or behind `offset`; `None` when there is none in this chunk.
    ///
    /// # Errors
    /// [`ChunkError::Corrupt`] when the header is damaged.
    pub fn seek_data(&self, id: ChunkId, offset: u32) -> Result<Option<u32>, ChunkError> {
        self.seek(id, offset, true)
    }

    /// The first byte of a hole at or behind `offset`; the length of the chunk when data goes on to its end, `offset` when it is
    /// behind that.
    ///
    /// # Errors
    /// As [`ChunkStore::seek_data`].
    pub fn seek_hole(&self, id: ChunkId, offset: u32) -> Result<u32, ChunkError> {
        Ok(self.seek(id, offset, false)?.unwrap_or(offset))
    }

    fn seek(&self, id: ChunkId, offset: u32, wants_data: bool) -> Result<Option<u32>, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        let state = self.read_state(&entry)?;
        let State::Present(chunk) = &*state else { return Ok(None) };
        if offset >= chunk.len {
            return Ok(None);
        }
        let blocks = offset / BLOCK..chunk.len.div_ceil(BLOCK);
        let found = blocks.into_iter().find(|block| has_data(chunk.sum(*block)) == wants_data);
        let end = (!wants_data).then_some(chunk.len);
        Ok(found.map(|block| (block * BLOCK).max(offset)).or(end))
    }
}
