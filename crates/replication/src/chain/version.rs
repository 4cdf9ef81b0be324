//! Versions of chunks, and what a target has of a chain.

use ashlar_types::{ChunkId, Epoch};
use serde::{Deserialize, Serialize};

/// Names the content of a chunk. Versions of one chunk are ordered as they were given. The default is a chunk that was never
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkVersion {
    /// The epoch of the head that gave it.
    pub epoch: Epoch,
    /// Counts the writes of the chunk.
    pub number: u64,
}

/// A chunk as a target has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holding {
    /// Which chunk.
    pub chunk: ChunkId,
    /// Its version: of the last write that was begun.
    pub version: ChunkVersion,
    /// Whether that write may not be complete, or not be committed.
    pub is_uncertain: bool,
}

/// What the target has of the chain's chunks: the chunk store's index.
pub trait Holdings {
    /// The version of `chunk`, also of an uncertain one.
    fn version(&self, chunk: ChunkId) -> ChunkVersion;

    /// Calls `visit` with every chunk that is uncertain.
    fn for_each_uncertain(&self, visit: &mut dyn FnMut(Holding));

    /// Calls `visit` with every chunk.
    fn for_each(&self, visit: &mut dyn FnMut(Holding));
}
