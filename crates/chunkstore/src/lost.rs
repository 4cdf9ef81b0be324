//! Blocks whose content is lost, as the index has them (table `l`).
//!
//! Such a block does not match its checksum, and is an error by that. After a power cut a mismatch in a dirty region is taken for a write in flight, though, and the block as it is:
//! zeros would be content. The record tells the two apart: a block whose checksum in the header is the one of the record has not been written since.
//!
//! | the block is | the record | its checksum in the header |
//! |---|---|---|
//! | about to be noted as lost | durable | of what was there |
//! | lost | there | that of the record |
//! | written again, or a hole | goes, behind the header | of what was written |

use crate::cache::Chunk;
use crate::checksum::{BLOCK, BLOCK_BYTES, sum_of};
use crate::error::ChunkError;
use crate::index::{Changes, Verb};
use crate::key::{self, LostRecord};
use crate::store::ChunkStore;
use crate::verb::BlockSum;
use ashlar_kv::Urgency;
use ashlar_types::ChunkId;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many chunks have a record: as a rule none, and then nobody looks for one.
// ORDER: relaxed. A chunk's record, and so its part of the count, changes under the lock of the chunk.
#[derive(Default)]
pub(crate) struct LostChunks(AtomicUsize);

impl LostChunks {
    fn are_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// So many records have gone.
    pub(crate) fn gone(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}

impl ChunkStore {
    /// Counts the records, at an open.
    pub(crate) fn count_lost(&self) -> Result<(), ChunkError> {
        let (from, to) = key::table_range(key::LOST);
        self.index.for_each(&from, &to, |_, _| {
            self.lost.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Whether there is a record of a chunk.
    pub(crate) fn has_lost_record(&self, id: ChunkId) -> Result<bool, ChunkError> {
        Ok(!self.lost.are_none() && self.index.get(&key::lost(id))?.is_some())
    }

    /// The blocks of a chunk that are noted as lost, ascending.
    pub(crate) fn lost_blocks(&self, chunk: &Chunk) -> Result<Vec<BlockSum>, ChunkError> {
        if self.lost.are_none() {
            return Ok(Vec::new());
        }
        let Some(value) = self.index.get(&key::lost(chunk.identity.chunk))? else { return Ok(Vec::new()) };
        let record = LostRecord::decode(&value)?;
        // Of a slot that the chunk was in before, it says nothing.
        Ok(if record.generation == chunk.identity.generation { record.blocks } else { Vec::new() })
    }

    /// Notes blocks of a chunk as lost, durably; `blocks` are ascending. To be called before their checksums are in the header.
    pub(crate) fn note_lost(&self, chunk: &Chunk, blocks: &[BlockSum]) -> Result<(), ChunkError> {
        let is_new = !self.has_lost_record(chunk.identity.chunk)?;
        let mut all = self.lost_blocks(chunk)?;
        all.retain(|(block, _)| blocks.binary_search_by_key(block, |(block, _)| *block).is_err());
        all.extend_from_slice(blocks);
        all.sort_unstable();
        let put = |changes: &mut Changes| put_record(chunk, all, changes);
        let position = self.index.commit(Verb::NoteLost, Urgency::FreesSpace, put)?;
        if is_new {
            self.lost.0.fetch_add(1, Ordering::Relaxed);
        }
        self.index.flush(position)
    }

    /// Forgets that blocks `[from, to)` of a chunk are lost: something else is there by now, as the header says.
    pub(crate) fn forget_lost(&self, chunk: &Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        self.retain_lost(chunk, |(block, _)| Ok(!(from..to).contains(&block)))
    }

    /// Forgets those that were written again by a process that did not come to [`ChunkStore::forget_lost`]; before a recovery takes blocks as they are.
    pub(crate) fn settle_lost(&self, chunk: &Chunk) -> Result<(), ChunkError> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.retain_lost(chunk, |(block, sum)| {
            if chunk.sum(block) != sum {
                return Ok(false);
            }
            match self.slabs.read(&chunk.slab, chunk.slot.data_offset(block * BLOCK), &mut bytes) {
                Ok(()) => Ok(sum_of(&bytes) != sum),
                Err(ChunkError::Io { .. }) => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    fn retain_lost(
        &self,
        chunk: &Chunk,
        mut is_lost: impl FnMut(BlockSum) -> Result<bool, ChunkError>,
    ) -> Result<(), ChunkError> {
        let before = self.lost_blocks(chunk)?;
        let mut after = Vec::with_capacity(before.len());
        for block in &before {
            if is_lost(*block)? {
                after.push(*block);
            }
        }
        if after.len() == before.len() {
            return Ok(());
        }
        let is_last = after.is_empty();
        // ORDER: not flushed. A sync that makes the block durable flushes what is before it in the log, and until then it may be lost again.
        let done = self
            .index
            .commit(Verb::NoteLost, Urgency::FreesSpace, |changes| put_record(chunk, after, changes));
        match done {
            Ok(_) => self.lost.gone(usize::from(is_last)),
            // What is there differs from the record, or matches it and is whole: a recovery sees that.
            Err(ChunkError::NoSpace { .. } | ChunkError::Busy { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn put_record(chunk: &Chunk, blocks: Vec<BlockSum>, changes: &mut Changes) {
    let record = LostRecord { generation: chunk.identity.generation, blocks };
    let value = (!record.blocks.is_empty()).then(|| record.encode());
    changes.insert(key::lost(chunk.identity.chunk), value);
}
