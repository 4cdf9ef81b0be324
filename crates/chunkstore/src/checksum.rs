//! Block checksums in the form in which they are stored and shown.
//!
//! The values are those of [`ashlar_types::block_sum`]: a reader at the far end compares the same ones.

use ashlar_types::codec::crc32c;

pub use ashlar_types::block_sum::{BLOCK_BYTES, SUM_HOLE, SUM_RESERVED, seal};

/// [`BLOCK_BYTES`] for arithmetic on offsets.
pub(crate) const BLOCK: u32 = BLOCK_BYTES as u32;

/// A block of zeros.
pub(crate) static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

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
