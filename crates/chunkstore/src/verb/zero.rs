//! Punch and zero: a range reads as zeros; its space goes or stays.

use crate::cache::{Chunk, State};
use crate::checksum::{BLOCK, SUM_HOLE, ZEROS, has_data, sum_of};
use crate::error::ChunkError;
use crate::header::InFlight;
use crate::store::ChunkStore;
use crate::verb::write::UNITS;
use ashlar_kv::Urgency;
use ashlar_types::ChunkId;

/// What becomes of the space of zeroed blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Freed,
    Kept,
}

impl ChunkStore {
    /// Makes a range read as zeros and gives the space of whole blocks in it back (`FALLOC_FL_PUNCH_HOLE`); the length stays.
    /// Returns the growth in units of 512 bytes, never positive.
    ///
    /// # Errors
    /// As [`ChunkStore::truncate`].
    pub fn punch(&self, id: ChunkId, chunk_bytes: u32, offset: u32, len: u32) -> Result<i64, ChunkError> {
        self.clear_range(id, chunk_bytes, (offset, len), Space::Freed)
    }

    /// Makes a range read as zeros and reserves its space (`FALLOC_FL_ZERO_RANGE`); the length stays. Returns the growth in
    /// units of 512 bytes, never negative.
    ///
    /// # Errors
    /// As [`ChunkStore::allocate`] and [`ChunkStore::truncate`].
    pub fn zero(&self, id: ChunkId, chunk_bytes: u32, offset: u32, len: u32) -> Result<i64, ChunkError> {
        self.clear_range(id, chunk_bytes, (offset, len), Space::Kept)?;
        self.allocate(id, chunk_bytes, offset, len)
    }

    fn clear_range(
        &self,
        id: ChunkId,
        chunk_bytes: u32,
        (offset, len): (u32, u32),
        space: Space,
    ) -> Result<i64, ChunkError> {
        self.check()?;
        let class = ChunkStore::class_for(chunk_bytes, offset, len as usize)?;
        if len == 0 {
            return Ok(0);
        }
        let end = offset + len;
        let entry = self.cache.entry(id);
        let (mut state, change) = self.begin_change(&entry, (offset, end))?;
        let (State::Present(chunk), Some(mut change)) = (&mut *state, change) else { return Ok(0) };
        ChunkStore::check_class(chunk, class)?;
        self.touched.note(id);
        let before = chunk.blocks_held;
        let cleared = self.clear_edges(chunk, offset, end).and_then(|()| match space {
            Space::Freed => self.free_blocks(chunk, offset.div_ceil(BLOCK), end / BLOCK),
            Space::Kept => self.zero_blocks(chunk, offset.div_ceil(BLOCK), end / BLOCK),
        });
        // Whatever was done is told to the header, also when the rest failed.
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let noted = self.write_sums(chunk, first, last, false);
        // ORDER: once more: a round that has begun meanwhile does not have all of it.
        self.touched.note(id);
        change.open_end = chunk.open_end();
        if let (Err(_), Ok(())) = (&cleared, &noted) {
            // Of a part it may be so.
            self.have_forgotten(self.settle_lost(chunk, first, last))?;
        }
        cleared.and(noted)?;
        if space == Space::Freed {
            // ORDER: the checksums say "no data" before the space goes.
            self.punch_blocks(chunk, offset.div_ceil(BLOCK), end / BLOCK)?;
        }
        self.have_forgotten(self.forget_lost(chunk, first, last))?;
        Ok((i64::from(chunk.blocks_held) - i64::from(before)) * UNITS)
    }

    /// Zeros the parts of blocks at both ends of `[offset, end)`.
    fn clear_edges(&self, chunk: &mut Chunk, offset: u32, end: u32) -> Result<(), ChunkError> {
        let head_end = offset.next_multiple_of(BLOCK).min(end);
        self.clear_edge(chunk, offset, head_end)?;
        let tail = end - end % BLOCK;
        if tail >= head_end { self.clear_edge(chunk, tail, end) } else { Ok(()) }
    }

    /// Zeros `[from, to)`, which lies in one block.
    fn clear_edge(&self, chunk: &mut Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        let block = from / BLOCK;
        if from == to || !has_data(chunk.sum(block)) {
            return Ok(());
        }
        let mut bytes = self.read_block(chunk, block)?;
        let within = (from % BLOCK) as usize..(from % BLOCK + to - from) as usize;
        bytes[within.clone()].fill(0);
        let place = chunk.slot.data_offset(from);
        self.write_in_place(chunk, (block, block + 1), place, &[&bytes[within]])?;
        chunk.set_sum(block, sum_of(bytes.as_slice()));
        Ok(())
    }

    /// Blocks `[from, to)` become holes.
    fn free_blocks(&self, chunk: &mut Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        if from < to {
            // ORDER: the index stops to call the chunk full before it is not.
            self.note_full(chunk, false, Urgency::FreesSpace)?;
        }
        (from..to).for_each(|block| chunk.set_sum(block, SUM_HOLE));
        Ok(())
    }

    /// Blocks of `[from, to)` that have data get zeros as data: reserving them instead would leave the old bytes below, to be
    /// found by a power cut in the middle of a later write.
    fn zero_blocks(&self, chunk: &mut Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        let zeros = sum_of(&ZEROS);
        let sums = &chunk.sums[from as usize..to.max(from) as usize];
        let all: Vec<_> = crate::piece::runs(from, sums).filter(|(_, _, has_data)| *has_data).collect();
        if let (Some((from, ..)), Some((_, to, _))) = (all.first(), all.last()) {
            self.note_in_flight(chunk, InFlight { from: *from, to: *to })?;
        }
        for (from, to, _) in all {
            let parts: Vec<&[u8]> = (from..to).map(|_| ZEROS.as_slice()).collect();
            let place = chunk.slot.data_offset(from * BLOCK);
            self.write_in_place(chunk, (from, to), place, &parts)?;
            (from..to).for_each(|block| chunk.set_sum(block, zeros));
        }
        Ok(())
    }
}
