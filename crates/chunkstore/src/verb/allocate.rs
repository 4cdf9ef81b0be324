//! Allocate: reserves space ahead of writes.

use crate::alloc::Purpose;
use crate::cache::{Chunk, State};
use crate::checksum::{BLOCK, SUM_HOLE, SUM_RESERVED};
use crate::error::ChunkError;
use crate::geometry::Class;
use crate::shape::Shape;
use crate::store::ChunkStore;
use crate::verb::write::UNITS;
use ashlar_types::{ChainId, ChunkId};

impl ChunkStore {
    /// Reserves space for the blocks of a range (`posix_fallocate(3)`) and makes the chunk if it is not here. The blocks
    /// read as zeros and count as held; the length stays. Returns the growth in units of 512 bytes.
    ///
    /// # Errors
    /// [`ChunkError::NoSpace`], with nothing changed; [`ChunkError::BadRequest`] as for writes.
    pub fn allocate(
        &self,
        id: ChunkId,
        shape: impl Into<Shape>,
        offset: u32,
        len: u32,
    ) -> Result<i64, ChunkError> {
        self.check()?;
        let Shape { chunk_bytes, chain } = shape.into();
        let class = ChunkStore::class_for(chunk_bytes, offset, len as usize)?;
        if len == 0 {
            return Ok(0);
        }
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        let entry = self.cache.entry(id);
        let mut state = self.write_state(&entry)?;
        if let State::Present(chunk) = &mut *state {
            ChunkStore::check_class(chunk, class)?;
            return self.reserve(chunk, first, end);
        }
        let chunk = self.create_reserved((id, chain), class, first, end)?;
        let growth = i64::from(chunk.blocks_held) * UNITS;
        *state = State::Present(chunk);
        self.cache.recharge(&entry, &state);
        Ok(growth)
    }

    /// Reserves the holes among the blocks `[first, end)`. No data and no checksum of data changes, so no region needs a
    /// mark: after a power cut a block is a hole or reserved, and reads as zeros.
    fn reserve(&self, chunk: &mut Chunk, first: u32, end: u32) -> Result<i64, ChunkError> {
        let holes: Vec<u32> = (first..end).filter(|block| chunk.sum(*block) == SUM_HOLE).collect();
        let (Some(from), Some(to)) = (holes.first().copied(), holes.last().map(|last| last + 1)) else {
            return Ok(0);
        };
        self.touched.note(chunk.identity.chunk);
        self.admit_space(holes.len() as u64 * u64::from(BLOCK))?;
        let (place, bytes) = (chunk.slot.data_offset(from * BLOCK), u64::from(to - from) * u64::from(BLOCK));
        self.slabs.change(&chunk.slab, |file| file.allocate(place, bytes))?;
        holes.iter().for_each(|block| chunk.set_sum(*block, SUM_RESERVED));
        self.write_sums(chunk, from, to, false)?;
        // ORDER: once more: a round that has begun meanwhile does not have it.
        self.touched.note(chunk.identity.chunk);
        Ok(holes.len() as i64 * UNITS)
    }

    fn create_reserved(
        &self,
        id: (ChunkId, Option<ChainId>),
        class: Class,
        first: u32,
        end: u32,
    ) -> Result<Chunk, ChunkError> {
        let bytes = u64::from(end - first) * u64::from(BLOCK);
        self.create_with(id, class, Purpose::Part, bytes, |chunk| {
            (first..end).for_each(|block| chunk.set_sum(block, SUM_RESERVED));
            let header = self.encode_header(chunk);
            let (slot, place) = (chunk.slot.offset(), chunk.slot.data_offset(first * BLOCK));
            self.slabs.change(&chunk.slab, |file| {
                file.allocate(place, bytes).and_then(|()| file.write_at(slot, &header))
            })
        })
    }
}
