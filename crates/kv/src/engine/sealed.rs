//! Values as an engine stores them: a checksum over key and value before the value, so that a value that has moved to
//! another key, or changed on the way, is an error and not an answer.

use crate::KvError;
use ashlar_types::codec::crc32c;
use bytes::Bytes;

/// Bytes before a value.
pub const SEAL_BYTES: usize = 4;

/// The checksum of `value` under `key`.
pub fn seal(key: &[u8], value: &[u8]) -> [u8; SEAL_BYTES] {
    crc32c(crc32c(0, key), value).to_le_bytes()
}

/// The value in `stored`.
///
/// # Errors
/// [`KvError::Corrupt`] naming the key and `place`.
pub fn open(key: &[u8], stored: Bytes, place: &str) -> Result<Bytes, KvError> {
    if stored.len() >= SEAL_BYTES {
        let value = stored.slice(SEAL_BYTES..);
        if stored[..SEAL_BYTES] == seal(key, &value) {
            return Ok(value);
        }
    }
    let what = format!("value of key {} in {place} does not match its checksum", key.escape_ascii());
    Err(KvError::Corrupt { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(key: &[u8], value: &[u8]) -> Bytes {
        [seal(key, value).as_slice(), value].concat().into()
    }

    #[test]
    fn a_value_opens_under_its_own_key_only() {
        assert_eq!(open(b"k1", sealed(b"k1", b"value"), "t").unwrap(), "value");
        assert_eq!(open(b"k1", sealed(b"k1", b""), "t").unwrap(), "");
        assert!(matches!(open(b"k2", sealed(b"k1", b"value"), "t"), Err(KvError::Corrupt { .. })));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sealed(b"key", b"some value");
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(b"key", bad.into(), "t").is_err(), "bit {bit}");
        }
        assert!(open(b"key", Bytes::from_static(b"abc"), "t").is_err());
    }
}
