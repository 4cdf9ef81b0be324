//! The self-describing 4 KiB block.

use crate::rng::pattern;

/// Bytes in a block.
pub const BLOCK_BYTES: usize = 4096;
const MAGIC: u32 = 0x6c65_6467;
const HEADER_BYTES: usize = 40;

/// Which block of which file this is, and which write made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId {
    /// The writer thread.
    pub writer: u32,
    /// The file, counted per writer.
    pub object: u64,
    /// Position in the file, in blocks.
    pub index: u64,
    /// The write, counted per writer from 1.
    pub version: u64,
}

/// What a block read back turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All zeros.
    Zero,
    /// A block some write made, intact.
    Written(BlockId),
    /// Anything else: damaged, torn or not ours.
    Damaged,
}

impl BlockId {
    /// The content of the block: header, then bytes that depend on the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.writer.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for field in [self.object, self.index, self.version] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        let seed = self.object ^ (self.index << 20) ^ (self.version << 40) ^ u64::from(self.writer);
        bytes.extend(pattern(seed, BLOCK_BYTES - HEADER_BYTES));
        let crc = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Recognizes a block; anything shorter than a block is damaged.
#[must_use]
pub fn decode(bytes: &[u8]) -> Found {
    let number = |at: usize, len: usize| -> Option<u64> {
        let mut field = [0u8; 8];
        field.get_mut(..len)?.copy_from_slice(bytes.get(at..at + len)?);
        Some(u64::from_le_bytes(field))
    };
    if bytes.len() == BLOCK_BYTES && bytes.iter().all(|byte| *byte == 0) {
        return Found::Zero;
    }
    let parse = || {
        let intact = bytes.len() == BLOCK_BYTES
            && number(0, 4)? == u64::from(MAGIC)
            && number(4, 4)? == u64::from(crc32c::crc32c(&bytes[8..]));
        intact.then_some(BlockId {
            writer: u32::try_from(number(8, 4)?).ok()?,
            object: number(16, 8)?,
            index: number(24, 8)?,
            version: number(32, 8)?,
        })
    };
    parse().map_or(Found::Damaged, Found::Written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_recognized_and_any_flipped_bit_is_noticed() {
        let id = BlockId { writer: 3, object: 9, index: 2, version: 77 };
        let bytes = id.encode();
        assert_eq!(bytes.len(), BLOCK_BYTES);
        assert_eq!(decode(&bytes), Found::Written(id));
        for at in (0..BLOCK_BYTES).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(decode(&damaged), Found::Damaged, "bit in byte {at}");
        }
        assert_eq!(decode(&vec![0; BLOCK_BYTES]), Found::Zero);
        assert_eq!(decode(&bytes[..100]), Found::Damaged);
    }
}
