//! What a chunk is made as, the first time something is written to it.

use ashlar_types::ChainId;

/// Size and chain of a chunk. The size is that of its file's layout and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes: one of the sizes of a layout.
    pub chunk_bytes: u32,
    /// The chain it is on, by which it is found when the chain goes to another target. `None` for a caller that has no chains; such a chunk stays
    /// where it is.
    pub chain: Option<ChainId>,
}

impl From<u32> for Shape {
    fn from(chunk_bytes: u32) -> Shape {
        Shape { chunk_bytes, chain: None }
    }
}

impl From<(u32, ChainId)> for Shape {
    fn from((chunk_bytes, chain): (u32, ChainId)) -> Shape {
        Shape { chunk_bytes, chain: Some(chain) }
    }
}

/// A chain in four bytes on disk: 0 where there is none.
pub(crate) fn encode_chain(chain: Option<ChainId>) -> u32 {
    chain.map_or(0, |chain| chain.0.saturating_add(1))
}

/// As [`encode_chain`] wrote it.
pub(crate) fn decode_chain(raw: u32) -> Option<ChainId> {
    raw.checked_sub(1).map(ChainId)
}
