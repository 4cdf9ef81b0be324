//! Values as an engine stores them: a checksum over key and value before the value, so that a value that has moved to
//! another key, or changed on the way, is an error and not an answer.

use crate::KvError;
use ashlar_types::codec::crc32c;

/// Bytes before a value.
pub const SEAL_BYTES: usize = 4;

/// Key and value up to this length together are summed in one go.
const SHORT_BYTES: usize = 128;

/// Memory that the checksum takes eight bytes at a time from the first one on.
#[repr(align(8))]
struct Short([u8; SHORT_BYTES]);

/// The checksum of `value` under `key`.
pub fn seal(key: &[u8], value: &[u8]) -> [u8; SEAL_BYTES] {
    let len = key.len() + value.len();
    if len > SHORT_BYTES {
        return crc32c(crc32c(0, key), value).to_le_bytes();
    }
    // Most values are short, and a scan opens a million of them: two calls that go byte by byte to the next multiple of eight and from
    // the last one cost three times as much as these copies and one call.
    let mut short = Short([0; SHORT_BYTES]);
    short.0[..key.len()].copy_from_slice(key);
    short.0[key.len()..len].copy_from_slice(value);
    crc32c(0, &short.0[..len]).to_le_bytes()
}

/// The value in `stored`.
///
/// # Errors
/// [`KvError::Corrupt`] naming the key and `place`.
pub fn open<'s>(key: &[u8], stored: &'s [u8], place: &str) -> Result<&'s [u8], KvError> {
    if let Some((seal_read, value)) = stored.split_first_chunk::<SEAL_BYTES>()
        && *seal_read == seal(key, value)
    {
        return Ok(value);
    }
    let what = format!("value of key {} in {place} does not match its checksum", key.escape_ascii());
    Err(KvError::Corrupt { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
        [seal(key, value).as_slice(), value].concat()
    }

    #[test]
    fn a_value_opens_under_its_own_key_only() {
        assert_eq!(open(b"k1", &sealed(b"k1", b"value"), "t").unwrap(), b"value");
        assert_eq!(open(b"k1", &sealed(b"k1", b""), "t").unwrap(), b"");
        assert!(matches!(open(b"k2", &sealed(b"k1", b"value"), "t"), Err(KvError::Corrupt { .. })));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sealed(b"key", b"some value");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(b"key", &bad, "t").is_err(), "bit {bit}");
        }
        assert!(open(b"key", b"abc", "t").is_err());
    }
}
