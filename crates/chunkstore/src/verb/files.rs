//! Files: whose chunks there are, page by page, for whoever compares all of them with metadata.

use super::successor;
use crate::error::ChunkError;
use crate::key;
use crate::store::ChunkStore;
use ashlar_types::{ChunkId, InodeId, ShardSet};

/// Chunks looked at together.
const PAGE: usize = 512;

impl ChunkStore {
    /// Up to `limit` files of `shards`, each with the generation of its chunks, behind `after`, ascending. None only at the end.
    ///
    /// # Errors
    /// [`ChunkError::Io`] and those of the index.
    pub fn files(
        &self,
        after: Option<(InodeId, u32)>,
        limit: usize,
        shards: &ShardSet,
    ) -> Result<Vec<(InodeId, u32)>, ChunkError> {
        self.check()?;
        let (_, end) = key::table_range(key::CHUNKS);
        let first = ChunkId { inode: InodeId(0), generation: 0, index: 0 };
        let behind =
            |(inode, generation): (InodeId, u32)| successor(ChunkId { inode, generation, index: u64::MAX });
        let mut from = after.map_or(Some(first), behind);
        let mut found: Vec<(InodeId, u32)> = Vec::new();
        while let Some(start) = from {
            let pairs = self.index.page(&key::chunk(start), &end, PAGE)?;
            from = None;
            for (record_key, _) in &pairs {
                let id = key::decode_chunk(record_key)?;
                let file = (id.inode, id.generation);
                if shards.has(id.inode.home()) && found.last() != Some(&file) {
                    if found.len() >= limit {
                        return Ok(found);
                    }
                    found.push(file);
                }
                from = successor(id);
            }
        }
        Ok(found)
    }
}
