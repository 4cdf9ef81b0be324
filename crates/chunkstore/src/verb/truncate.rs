//! Truncate: sets the length of a chunk.

use crate::cache::{Chunk, State};
use crate::checksum::{BLOCK, SUM_HOLE, ZEROS, has_data, sum_of};
use crate::error::ChunkError;
use crate::store::ChunkStore;
use crate::verb::write::UNITS;
use ashlar_kv::Urgency;
use ashlar_types::ChunkId;

impl ChunkStore {
    /// Sets the length of a chunk to `len` bytes; what is cut off reads as zeros if the chunk grows again, and gives its space
    /// back. To 0 is a delete. A chunk that is not here stays away. Returns the growth in units of 512 bytes, never positive.
    ///
    /// # Errors
    /// [`ChunkError::Checksum`] when the block at the new end is damaged; [`ChunkError::BadRequest`] as for writes.
    pub fn truncate(&self, id: ChunkId, chunk_bytes: u32, len: u32) -> Result<i64, ChunkError> {
        self.check()?;
        let class = ChunkStore::class_for(chunk_bytes, len, 0)?;
        if len == 0 {
            return Ok(-i64::try_from(self.delete(id)?).unwrap_or(i64::MAX));
        }
        let entry = self.cache.entry(id);
        let (mut state, change) = self.begin_change(&entry, (len - 1, chunk_bytes))?;
        let (State::Present(chunk), Some(mut change)) = (&mut *state, change) else { return Ok(0) };
        ChunkStore::check_class(chunk, class)?;
        let result = self.set_length(chunk, len);
        change.open_end = chunk.open_end();
        result
    }

    fn set_length(&self, chunk: &mut Chunk, len: u32) -> Result<i64, ChunkError> {
        let first_gone = len.div_ceil(BLOCK);
        let held_end = chunk.sums.iter().rposition(|sum| *sum != SUM_HOLE).map_or(0, |last| last as u32 + 1);
        if len == chunk.len && held_end <= first_gone {
            return Ok(0);
        }
        self.touched.note(chunk.identity.chunk);
        // ORDER: the index stops to call the chunk full before it is not.
        self.note_full(chunk, false, Urgency::FreesSpace)?;
        let (boundary, within) = (len / BLOCK, (len % BLOCK) as usize);
        let is_cut_within = within > 0 && len < chunk.len && has_data(chunk.sum(boundary));
        if is_cut_within {
            let block = self.read_block(chunk, boundary)?;
            let offset = chunk.slot.data_offset(len);
            self.write_in_place(chunk, (boundary, boundary + 1), offset, &[&ZEROS[within..]])?;
            chunk.set_sum(boundary, sum_of(&block[..within]));
        }
        let before = chunk.blocks_held;
        (first_gone..held_end).for_each(|block| chunk.set_sum(block, SUM_HOLE));
        chunk.len = len;
        // ORDER: the checksums say "no data" before the space goes, so that no reader after a stop finds zeros under a
        // checksum outside marked regions.
        self.write_sums(chunk, 0, held_end.max(first_gone), true)?;
        self.punch_blocks(chunk, first_gone, held_end)?;
        let forget_from = if is_cut_within { boundary } else { first_gone };
        self.have_forgotten(self.forget_lost(chunk, forget_from, held_end.max(first_gone)))?;
        // ORDER: once more: a round that has begun meanwhile does not have all of it.
        self.touched.note(chunk.identity.chunk);
        Ok((i64::from(chunk.blocks_held) - i64::from(before)) * UNITS)
    }
}
