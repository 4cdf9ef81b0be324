//! Chain: the chunks of one chain, for whoever takes the chain to another target.

use super::delete::DELETE_BATCH;
use super::successor;
use crate::error::ChunkError;
use crate::key::{self, Placement};
use crate::store::ChunkStore;
use ashlar_types::{ChainId, ChunkId, InodeId};
use std::collections::BTreeMap;

/// The first chunk there can be.
const FIRST: ChunkId = ChunkId { inode: InodeId(0), generation: 0, index: 0 };

/// A page of chunks of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainPage {
    /// Chunks, ascending; a page that is not the last may have none.
    pub chunks: Vec<ChunkId>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<ChunkId>,
}

/// What a call of [`ChunkStore::delete_of_chain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletedOfChain {
    /// Chunks removed.
    pub chunks: u64,
    /// Call again from this chunk; `None` when nothing is left.
    pub next: Option<ChunkId>,
}

impl ChunkStore {
    /// Chunks of `chain` at or behind `from` (from the first one on if that is `None`), ascending. Looks at up to 512 chunks of any chain.
    ///
    /// # Errors
    /// Those of the index.
    pub fn list_chain(&self, chain: ChainId, from: Option<ChunkId>) -> Result<ChainPage, ChunkError> {
        self.check()?;
        self.page_of_chains(from, usize::MAX, &|found| found == Some(chain))
    }

    /// Removes chunks of those chains that `is_meant` says, at or behind `from`, as [`ChunkStore::delete`] does. It is not asked about chunks
    /// whose chain is not known: they stay. Looks at up to 256 chunks of any chain.
    ///
    /// # Errors
    /// As [`ChunkStore::delete`].
    pub fn delete_of_chain(
        &self,
        from: Option<ChunkId>,
        is_meant: &dyn Fn(ChainId) -> bool,
    ) -> Result<DeletedOfChain, ChunkError> {
        self.check()?;
        let page = self.page_of_chains(from, DELETE_BATCH, &|found| found.is_some_and(is_meant))?;
        Ok(DeletedOfChain { chunks: self.delete_all(&page.chunks)?.chunks, next: page.next })
    }

    /// The bytes that the chunks of each chain may have by their sizes; under `None` those of chunks whose chain is not known. Looks at the
    /// whole index and at no chunk.
    ///
    /// # Errors
    /// Those of the index.
    pub fn bytes_by_chain(&self) -> Result<BTreeMap<Option<ChainId>, u64>, ChunkError> {
        self.check()?;
        let (from, to) = key::table_range(key::CHUNKS);
        // LIMIT: an element per chain of the file system.
        let mut bytes = BTreeMap::new();
        self.index.for_each(&from, &to, |_, value| {
            let placement = Placement::decode(value)?;
            *bytes.entry(placement.chain).or_insert(0) += u64::from(placement.slot.slab.class.chunk_bytes());
            Ok(())
        })?;
        Ok(bytes)
    }

    fn page_of_chains(
        &self,
        from: Option<ChunkId>,
        limit: usize,
        is_meant: &dyn Fn(Option<ChainId>) -> bool,
    ) -> Result<ChainPage, ChunkError> {
        let (_, end) = key::table_range(key::CHUNKS);
        let pairs = self.index.page(&key::chunk(from.unwrap_or(FIRST)), &end, limit)?;
        let mut page = ChainPage::default();
        for (key, value) in &pairs {
            let id = key::decode_chunk(key)?;
            page.next = successor(id);
            if is_meant(Placement::decode(value)?.chain) {
                page.chunks.push(id);
            }
        }
        Ok(page)
    }
}
