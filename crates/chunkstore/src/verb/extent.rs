//! Extent: how far a file goes on this target, for the recovery of its size after its writer died.

use crate::cache::State;
use crate::checksum::BLOCK_BYTES;
use crate::error::ChunkError;
use crate::key::{self, Placement};
use crate::store::ChunkStore;
use ashlar_types::{ChainId, ChunkId, InodeId};

/// What a target has of one generation of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Index of the last chunk with a length above 0.
    pub last_index: u64,
    /// Its length, bytes.
    pub last_len: u32,
    /// Space held by all chunks, in units of 512 bytes.
    pub blocks: u64,
}

impl ChunkStore {
    /// The extent of one generation of a file; `None` when it has no chunk here. Costs a look at the header of each chunk
    /// that is neither full nor cached.
    ///
    /// # Errors
    /// [`ChunkError::Corrupt`] when a header is damaged.
    pub fn extent(&self, inode: InodeId, generation: u32) -> Result<Option<Extent>, ChunkError> {
        self.extent_of(inode, generation, &|_| true)
    }

    /// As [`ChunkStore::extent`], of those chains alone that `is_meant` says; it is asked with `None` for a chunk whose chain is not known.
    ///
    /// # Errors
    /// As [`ChunkStore::extent`].
    pub fn extent_of(
        &self,
        inode: InodeId,
        generation: u32,
        is_meant: &dyn Fn(Option<ChainId>) -> bool,
    ) -> Result<Option<Extent>, ChunkError> {
        self.check()?;
        let first = key::chunk(ChunkId { inode, generation, index: 0 });
        let mut extent: Option<Extent> = None;
        self.index.for_each(&first, &key::generation_end(inode, generation), |key, value| {
            let (id, placement) = (key::decode_chunk(key)?, Placement::decode(value)?);
            if !is_meant(placement.chain) {
                return Ok(());
            }
            let Some((len, held)) = self.size_of(id, placement)? else { return Ok(()) };
            let sum = extent.get_or_insert_default();
            sum.blocks += u64::from(held) * (BLOCK_BYTES as u64 / 512);
            if len > 0 {
                (sum.last_index, sum.last_len) = (id.index, len);
            }
            Ok(())
        })?;
        Ok(extent)
    }

    /// Index of the first chunk of one generation of a file that is here, from `from_index` on, of those chains that `is_meant` says.
    ///
    /// # Errors
    /// Those of the index.
    pub fn next_chunk(
        &self,
        inode: InodeId,
        generation: u32,
        from_index: u64,
        is_meant: &dyn Fn(Option<ChainId>) -> bool,
    ) -> Result<Option<u64>, ChunkError> {
        self.check()?;
        let (mut from, end) = (
            key::chunk(ChunkId { inode, generation, index: from_index }),
            key::generation_end(inode, generation),
        );
        // Few pairs at first: mostly the first one is meant.
        let mut count = 1;
        loop {
            let found = self.index.page(&from, &end, count)?;
            for (key, value) in &found {
                if is_meant(Placement::decode(value)?.chain) {
                    return Ok(Some(key::decode_chunk(key)?.index));
                }
            }
            let Some((last, _)) = found.last() else { return Ok(None) };
            from = last.clone();
            from.push(0);
            count = 256;
        }
    }

    /// Space held by a chunk, in units of 512 bytes.
    ///
    /// # Errors
    /// [`ChunkError::NotFound`]; [`ChunkError::Corrupt`] when its header is damaged.
    pub fn chunk_blocks(&self, id: ChunkId) -> Result<u64, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        match &*self.read_state(&entry)? {
            State::Present(chunk) => Ok(u64::from(chunk.blocks_held) * (BLOCK_BYTES as u64 / 512)),
            _ => Err(ChunkError::NotFound(id)),
        }
    }

    /// Length and held blocks of a chunk that the index had at `placement`; `None` when it is gone since.
    pub(crate) fn size_of(
        &self,
        id: ChunkId,
        placement: Placement,
    ) -> Result<Option<(u32, u32)>, ChunkError> {
        if placement.is_full {
            return self.held_blocks(id, placement).map(Some);
        }
        let entry = self.cache.entry(id);
        match &*self.read_state(&entry)? {
            State::Present(chunk) => Ok(Some((chunk.len, chunk.blocks_held))),
            _ => Ok(None),
        }
    }
}
