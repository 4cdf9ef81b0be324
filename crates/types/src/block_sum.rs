//! Checksums of 4 KiB blocks in the form in which they are stored and compared.
//!
//! A block's checksum is the CRC-32C of its bytes, *sealed*: two values are taken for blocks without data of their own, so a checksum
//! that happens to be one of them becomes the next number. Sealing twice changes nothing. Whoever compares checksums of blocks,
//! a client with what a target sent included, compares sealed ones.

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Stored for a block that was never written: it reads as zeros and holds no space.
pub const SUM_HOLE: u32 = 0;
/// Stored for a block whose space is reserved: it reads as zeros whatever is on the disk ("RSVD"). Many bits away from
/// [`SUM_HOLE`], so that no flipped bit makes one of the other.
pub const SUM_RESERVED: u32 = u32::from_le_bytes(*b"RSVD");

/// The sealed form of a computed CRC-32C.
pub const fn seal(crc: u32) -> u32 {
    match crc {
        SUM_HOLE => 1,
        SUM_RESERVED => SUM_RESERVED + 1,
        other => other,
    }
}
