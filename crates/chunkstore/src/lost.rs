//! Blocks whose content is lost, as the index has them (table `l`).
//!
//! Such a block does not match its checksum, and is an error by that. After a power cut a mismatch in a dirty region is taken for a write in flight, though, and the block as it is:
//! zeros would be content. A block with a record is not: it stays an error until it matches.
//!
//! | the block is | the record |
//! |---|---|
//! | about to be noted as lost | durable, before its checksum is in the header |
//! | lost | there |
//! | written again, or a hole | goes, once that is durable; a recovery that finds it first looks whether the block matches |

use crate::cache::Chunk;
use crate::checksum::{BLOCK, BLOCK_BYTES, has_data, sum_of};
use crate::error::ChunkError;
use crate::index::{Changes, Verb};
use crate::key::{self, LostRecord};
use crate::store::ChunkStore;
use ashlar_kv::{Key, Urgency};
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

    /// There is one more.
    pub(crate) fn came(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// So many have gone.
    pub(crate) fn gone(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}

impl ChunkStore {
    /// Counts the records, at an open, and takes away those of chunks that are not here any more.
    pub(crate) fn count_lost(&self) -> Result<(), ChunkError> {
        let (from, to) = key::table_range(key::LOST);
        let mut stale = Vec::new();
        self.index.for_each(&from, &to, |key, value| {
            let (id, record) = (key::decode_lost(key)?, LostRecord::decode(value)?);
            match self.index.placement(id)? {
                Some(placement) if placement.generation == record.generation => self.lost.came(),
                // Of a slot that the chunk was in before.
                _ => stale.push(Key::from_slice(key)),
            }
            Ok(())
        })?;
        self.index.commit(Verb::NoteLost, Urgency::FreesSpace, |changes| {
            changes.extend(stale.into_iter().map(|key| (key, None)));
        })?;
        Ok(())
    }

    /// Whether there is a record of a chunk.
    pub(crate) fn has_lost_record(&self, id: ChunkId) -> Result<bool, ChunkError> {
        Ok(!self.lost.are_none() && self.index.get(&key::lost(id))?.is_some())
    }

    /// The blocks of a chunk that are noted as lost, ascending.
    pub(crate) fn lost_blocks(&self, chunk: &Chunk) -> Result<Vec<u32>, ChunkError> {
        if self.lost.are_none() {
            return Ok(Vec::new());
        }
        let Some(value) = self.index.get(&key::lost(chunk.identity.chunk))? else { return Ok(Vec::new()) };
        let record = LostRecord::decode(&value)?;
        // Of a slot that the chunk was in before, it says nothing.
        Ok(if record.generation == chunk.identity.generation { record.blocks } else { Vec::new() })
    }

    /// Notes blocks of a chunk that is here as lost, durably. To be called before their checksums are in the header.
    pub(crate) fn note_lost(&self, chunk: &Chunk, blocks: &[u32]) -> Result<(), ChunkError> {
        let is_new = !self.has_lost_record(chunk.identity.chunk)?;
        let mut all = self.lost_blocks(chunk)?;
        all.extend_from_slice(blocks);
        all.sort_unstable();
        all.dedup();
        let put = |changes: &mut Changes| put_lost(chunk, all, changes);
        let position = self.index.commit(Verb::NoteLost, Urgency::FreesSpace, put)?;
        if is_new {
            self.lost.came();
        }
        self.index.flush(position)
    }

    /// Forgets that blocks `[from, to)` of a chunk are lost: something else is there by now, as the header says.
    pub(crate) fn forget_lost(&self, chunk: &Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        self.retain_lost(chunk, |block| Ok(!(from..to).contains(&block)))
    }

    /// Forgets those of the blocks `[from, to)` that are not lost any more, although nobody came to [`ChunkStore::forget_lost`].
    pub(crate) fn settle_lost(&self, chunk: &Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.retain_lost(chunk, |block| {
            if !(from..to).contains(&block) {
                return Ok(true);
            }
            if !has_data(chunk.sum(block)) {
                return Ok(false);
            }
            let place = chunk.slot.data_offset(block * BLOCK);
            let is_read = self.slabs.read_if_it_can_be(&chunk.slab, place, &mut bytes)?;
            Ok(!is_read || sum_of(&bytes) != chunk.sum(block))
        })
    }

    /// What of an outcome of [`ChunkStore::forget_lost`] and [`ChunkStore::settle_lost`] matters to whoever has made a change: the change is done, and a record that stays is looked at by the next recovery.
    pub(crate) fn have_forgotten(&self, outcome: Result<(), ChunkError>) -> Result<(), ChunkError> {
        match outcome {
            Err(error @ ChunkError::Stopped { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "blocks that were written again count as lost until the next start");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn retain_lost(
        &self,
        chunk: &Chunk,
        mut is_lost: impl FnMut(u32) -> Result<bool, ChunkError>,
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
        // ORDER: what is there is durable before the record goes. Others flush the index whenever they want, and what a power cut left would be taken as it is.
        self.slabs.sync(&chunk.slab)?;
        self.index.commit(Verb::NoteLost, Urgency::FreesSpace, |changes| put_lost(chunk, after, changes))?;
        self.lost.gone(usize::from(is_last));
        Ok(())
    }
}

/// The change that makes `blocks` the record of a chunk.
pub(crate) fn put_lost(chunk: &Chunk, blocks: Vec<u32>, changes: &mut Changes) {
    let record = LostRecord { generation: chunk.identity.generation, blocks };
    let value = (!record.blocks.is_empty()).then(|| record.encode());
    changes.insert(key::lost(chunk.identity.chunk), value);
}
