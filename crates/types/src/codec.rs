//! One codec for messages and stored values: postcard's wire format (varint integers, length-prefixed bytes).
//!
//! A frame around an encoded value carries version and checksum; this module only turns values into bytes and back.
//! Lengths are checked against the bytes that are there before anything is allocated.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Longest value that [`encode_exact`] encodes only once, bytes.
const EXACT_ROOM: usize = 256;

/// Why bytes did not decode, or a value did not encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not a value of the expected type.
    #[error("malformed {what}")]
    Malformed {
        /// What was expected.
        what: &'static str,
    },
    /// Bytes are left behind a whole value.
    #[error("{excess} bytes behind {what}")]
    Excess {
        /// What was expected.
        what: &'static str,
        /// How many bytes are left.
        excess: usize,
    },
}

/// Appends the encoding of `value` to `out`.
///
/// # Panics
/// Never for the types of this project: encoding into a growing buffer fails only for types of unknown length.
pub fn encode_into<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    let taken = std::mem::take(out);
    // INVARIANT: every encoded type is sized by serde; `use-std` extends the vector without a bound of its own.
    *out = postcard::to_extend(value, taken).expect("encoding into memory cannot fail");
}

/// The encoding of `value`.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    encode_into(value, &mut out);
    out
}

/// The encoding of `value` in memory of exactly its length, for what is kept: most records are a few dozen bytes.
pub fn encode_exact<T: Serialize>(value: &T) -> Bytes {
    let mut room = [0; EXACT_ROOM];
    match postcard::to_slice(value, &mut room) {
        Ok(encoded) => Bytes::copy_from_slice(encoded),
        // It is longer: nothing else can fail.
        Err(_) => encode(value).into(),
    }
}

/// Decodes a whole value; every byte must be used.
///
/// # Errors
/// [`CodecError`] when the bytes are not exactly one value.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, CodecError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(CodecError::Excess { what, excess: rest.len() }),
        Err(_) => Err(CodecError::Malformed { what }),
    }
}

/// CRC-32C (Castagnoli) of `bytes`, continuing from `seed` (0 to start).
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_encoding_has_the_bytes_of_any_other_whatever_its_length() {
        for len in [0, 1, 127, 128, EXACT_ROOM - 3, EXACT_ROOM - 2, EXACT_ROOM - 1, EXACT_ROOM, 5000] {
            let value = (7u32, "x".repeat(len));
            assert_eq!(encode_exact(&value), encode(&value), "{len}");
        }
    }
}
