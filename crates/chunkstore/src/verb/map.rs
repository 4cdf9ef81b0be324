//! Map: which parts of a chunk have data, for whoever makes a copy of it.

use crate::cache::State;
use crate::checksum::{BLOCK, SUM_HOLE, has_data};
use crate::error::ChunkError;
use crate::store::ChunkStore;
use ashlar_types::ChunkId;

/// Blocks of a chunk that are alike, in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins, bytes.
    pub offset: u32,
    /// Its length, bytes; it may go beyond the chunk's.
    pub len: u32,
    /// Whether there is data; else there is space that was reserved.
    pub has_data: bool,
}

/// What there is of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkMap {
    /// Its size, bytes.
    pub chunk_bytes: u32,
    /// Its length, bytes.
    pub len: u32,
    /// What is not a hole, ascending.
    pub runs: Vec<Run>,
}

impl ChunkStore {
    /// What there is of a chunk; `None` when it is not here.
    ///
    /// # Errors
    /// [`ChunkError::Corrupt`] when its header is damaged.
    pub fn map(&self, id: ChunkId) -> Result<Option<ChunkMap>, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        let state = self.read_state(&entry)?;
        let State::Present(chunk) = &*state else { return Ok(None) };
        let mut runs: Vec<Run> = Vec::new();
        for (block, sum) in (0..).zip(&*chunk.sums) {
            if *sum == SUM_HOLE {
                continue;
            }
            let (offset, has_data) = (block * BLOCK, has_data(*sum));
            match runs.last_mut() {
                Some(run) if run.offset + run.len == offset && run.has_data == has_data => run.len += BLOCK,
                _ => runs.push(Run { offset, len: BLOCK, has_data }),
            }
        }
        Ok(Some(ChunkMap { chunk_bytes: chunk.slot.slab.class.chunk_bytes(), len: chunk.len, runs }))
    }
}
