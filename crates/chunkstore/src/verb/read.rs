//! Read, verified block by block.

use crate::cache::{Chunk, State};
use crate::checksum::{BLOCK, BLOCK_BYTES, ZEROS, has_data, sum_of};
use crate::error::ChunkError;
use crate::store::ChunkStore;
use ashlar_types::ChunkId;
use std::sync::atomic::Ordering;

impl ChunkStore {
    /// Fills `out` from `offset` of a chunk of `chunk_bytes`. Returns how many bytes exist, 0 for a chunk that is not here; the
    /// rest of `out` is zeros. Every block touched is checked against its checksum.
    ///
    /// # Errors
    /// [`ChunkError::Checksum`] for damaged data, of which no byte may be used, and [`ChunkError::Corrupt`] for a damaged header;
    /// [`ChunkError::BadRequest`] for a range outside the chunk or another chunk size than it has.
    pub fn read(
        &self,
        id: ChunkId,
        chunk_bytes: u32,
        offset: u32,
        out: &mut [u8],
    ) -> Result<usize, ChunkError> {
        self.read_with(id, chunk_bytes, offset, out, |_, _, _| ())
    }

    /// As [`ChunkStore::read`], and puts into `sums` the sealed checksum ([`crate::seal`]) of each block that `out` touches,
    /// in order, so that the reader at the far end can check whole blocks again. Blocks without data have that of zeros.
    ///
    /// # Errors
    /// As [`ChunkStore::read`].
    pub fn read_with_sums(
        &self,
        id: ChunkId,
        chunk_bytes: u32,
        offset: u32,
        out: &mut [u8],
        sums: &mut Vec<u32>,
    ) -> Result<usize, ChunkError> {
        let zeros = sum_of(&ZEROS);
        sums.clear();
        self.read_with(id, chunk_bytes, offset, out, |chunk, first, last| {
            sums.extend((first..last).map(|block| {
                let sum = chunk.map_or(crate::checksum::SUM_HOLE, |chunk| chunk.sum(block));
                if has_data(sum) { sum } else { zeros }
            }));
        })
    }

    fn read_with(
        &self,
        id: ChunkId,
        chunk_bytes: u32,
        offset: u32,
        out: &mut [u8],
        visit: impl FnOnce(Option<&Chunk>, u32, u32),
    ) -> Result<usize, ChunkError> {
        self.check()?;
        let class = ChunkStore::class_for(chunk_bytes, offset, out.len())?;
        let last = (offset + out.len() as u32).div_ceil(BLOCK);
        let entry = self.cache.entry(id);
        let state = self.read_state(&entry)?;
        let State::Present(chunk) = &*state else {
            out.fill(0);
            visit(None, offset / BLOCK, last);
            return Ok(0);
        };
        ChunkStore::check_class(chunk, class)?;
        let count = (chunk.len.saturating_sub(offset) as usize).min(out.len());
        let (data, rest) = out.split_at_mut(count);
        rest.fill(0);
        self.fill(chunk, offset, data)?;
        visit(Some(chunk), offset / BLOCK, last);
        self.counters.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Reads bytes that exist.
    fn fill(&self, chunk: &Chunk, offset: u32, out: &mut [u8]) -> Result<(), ChunkError> {
        let end = offset + out.len() as u32;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let sums = &chunk.sums[first as usize..(last as usize).max(first as usize)];
        if !sums.iter().any(|sum| has_data(*sum)) {
            out.fill(0);
            return Ok(());
        }
        // What lies behind the length are zeros, so a read up to the length sees whole blocks.
        if offset.is_multiple_of(BLOCK) && (end.is_multiple_of(BLOCK) || end == chunk.len) {
            self.slabs.read(&chunk.slab, chunk.slot.data_offset(offset), out)?;
            return self.check_blocks(chunk, first, out);
        }
        let mut blocks = vec![0; (last - first) as usize * BLOCK_BYTES];
        self.slabs.read(&chunk.slab, chunk.slot.data_offset(first * BLOCK), &mut blocks)?;
        self.check_blocks(chunk, first, &mut blocks)?;
        let within = (offset % BLOCK) as usize;
        out.copy_from_slice(&blocks[within..within + out.len()]);
        Ok(())
    }

    /// Checks blocks that were read, and makes zeros of those without data.
    fn check_blocks(&self, chunk: &Chunk, first: u32, bytes: &mut [u8]) -> Result<(), ChunkError> {
        for (block, bytes) in (first..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
            if has_data(chunk.sum(block)) {
                self.verify(chunk, block, sum_of(bytes))?;
            } else {
                bytes.fill(0);
            }
        }
        Ok(())
    }
}
