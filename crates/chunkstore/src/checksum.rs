//! Block checksums in the form in which they are stored and shown.
//!
//! A block is 4 KiB. Its checksum is the CRC-32C of its bytes, *sealed*: two values are taken for blocks without data of
//! their own, so a checksum that happens to be one of them is stored as the next number. Sealing twice changes nothing, so
//! a reader that computes its own checksum seals it and compares.

use ashlar_types::codec::crc32c;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// [`BLOCK_BYTES`] for arithmetic on offsets.
pub(crate) const BLOCK: u32 = BLOCK_BYTES as u32;

/// Stored for a block that was never written: it reads as zeros and holds no space.
pub const SUM_HOLE: u32 = 0;
/// Stored for a block whose space is reserved: it reads as zeros whatever is on the disk ("RSVD"). Many bits away from
/// [`SUM_HOLE`], so that no flipped bit makes one of the other.
pub const SUM_RESERVED: u32 = u32::from_le_bytes(*b"RSVD");

/// A block of zeros.
pub(crate) static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The stored form of a computed CRC-32C.
pub const fn seal(crc: u32) -> u32 {
    match crc {
        SUM_HOLE => 1,
        SUM_RESERVED => SUM_RESERVED + 1,
        other => other,
    }
}

/// The sealed checksum of `bytes` as the beginning of a block whose rest is zeros; at most [`BLOCK_BYTES`].
pub fn sum_of(bytes: &[u8]) -> u32 {
    let padding = BLOCK_BYTES - bytes.len();
    let crc = crc32c(0, bytes);
    seal(if padding == 0 { crc } else { crc32c(crc, &ZEROS[..padding]) })
}

/// Whether a block with this stored value has data of its own.
pub(crate) const fn has_data(sum: u32) -> bool {
    sum != SUM_HOLE && sum != SUM_RESERVED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealing_keeps_the_two_special_values_free_and_is_idempotent() {
        for crc in [0, 1, 2, SUM_RESERVED - 1, SUM_RESERVED, SUM_RESERVED + 1, u32::MAX] {
            assert!(has_data(seal(crc)));
            assert_eq!(seal(seal(crc)), seal(crc));
        }
        assert_eq!(sum_of(&[7; 10]), sum_of(&[[7; 10].as_slice(), &[0; 4086]].concat()));
        assert_eq!(sum_of(&[]), sum_of(&ZEROS));
    }
}
