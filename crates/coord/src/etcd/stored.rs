//! The bytes under the key: our own number, who wrote, and the value.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `ASHETCD1` |
//! | 8 | 8 | revision, u64 |
//! | 16 | 4 | number of tags, u32, 1 to [`TAGS_MAX`] |
//! | 20 | 4 | CRC-32C, u32, over bytes 8 to 19 and all that follows the header |
//! | 24 | 16 each | tags, that of this revision first, then those of the revisions before |
//! | then | the rest | the value |
//!
//! Integers are little-endian. A tag is drawn at random for each change. Older ones are kept because a writer whose answer was
//! lost may look only after others have changed the value again: with its tag alone in the newest revision it could not know.

use crate::local_file::newer_format;
use ashlar_types::codec::crc32c;

const MAGIC: &[u8; 8] = b"ASHETCD1";
const HEADER_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Most tags that are kept.
// LIMIT: 1 KiB for each value. More changes than that within the ten seconds of a call end it with `CoordError::Io`.
pub(super) const TAGS_MAX: usize = 64;

/// Drawn at random by the writer of a revision.
pub(super) type Tag = [u8; TAG_BYTES];

/// A revision of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) revision: u64,
    /// Newest first.
    pub(super) tags: Vec<Tag>,
    pub(super) value: Vec<u8>,
}

impl Stored {
    /// What is stored as `revision` on top of `before`.
    pub(super) fn after(before: Option<&Stored>, revision: u64, tag: Tag, value: &[u8]) -> Stored {
        let older = before.map_or(&[][..], |before| &before.tags);
        let tags = std::iter::once(tag).chain(older.iter().copied()).take(TAGS_MAX).collect();
        Stored { revision, tags, value: value.to_vec() }
    }

    /// Who wrote `revision`, if that is still known.
    pub(super) fn writer_of(&self, revision: u64) -> Option<&Tag> {
        let changes_since = self.revision.checked_sub(revision)?;
        self.tags.get(usize::try_from(changes_since).ok()?)
    }

    /// The bytes for the key.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.tags.len() * TAG_BYTES + self.value.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.revision.to_le_bytes());
        out.extend_from_slice(&(self.tags.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(self.tags.as_flattened());
        out.extend_from_slice(&self.value);
        let sum = checksum(&out);
        out[20..24].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the bytes of `key`; `Err` tells what is wrong with them and the way out.
    pub(super) fn decode(key: &str, bytes: &[u8]) -> Result<Stored, String> {
        if let Some(what) = newer_format(key, bytes, MAGIC) {
            return Err(what);
        }
        split(bytes).map_err(|what| {
            format!(
                "{key}: {what}; restore etcd from a snapshot, or use another key if something else keeps its own data there"
            )
        })
    }
}

fn split(bytes: &[u8]) -> Result<Stored, &'static str> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or("shorter than its header")?;
    if &header[..8] != MAGIC {
        return Err("not a cluster state that ashlar has written");
    }
    let field =
        |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).map(u32::from_le_bytes).unwrap_or_default();
    if field(20) != checksum(bytes) {
        return Err("checksum does not match");
    }
    let tags = field(16) as usize;
    if !(1..=TAGS_MAX).contains(&tags) {
        return Err("impossible number of writers");
    }
    let (tags, value) = rest.split_at_checked(tags * TAG_BYTES).ok_or("truncated")?;
    Ok(Stored {
        revision: u64::from(field(8)) | u64::from(field(12)) << 32,
        tags: tags.as_chunks::<TAG_BYTES>().0.to_vec(),
        value: value.to_vec(),
    })
}

/// Over all but the magic and the checksum itself, of bytes that have a header.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c(crc32c(0, &bytes[8..20]), &bytes[HEADER_BYTES..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_are_told_from_good_ones() {
        let first = Stored::after(None, 1 << 40, [1; 16], b"first");
        let second = Stored::after(Some(&first), (1 << 40) + 1, [2; 16], b"second");
        let good = second.encode();
        assert_eq!(Stored::decode("key", &good), Ok(second));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Stored::decode("key", &bad).is_err(), "flip at {at}");
            assert!(Stored::decode("key", &good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_later_format_is_not_called_damage() {
        let mut later = Stored::after(None, 1, [1; 16], b"").encode();
        later[7] = b'2';
        let what = Stored::decode("etcd key /x", &later).unwrap_err();
        assert!(what.contains("etcd key /x has a newer format"), "{what}");
    }

    #[test]
    fn the_writers_of_the_last_changes_are_known_and_older_ones_are_forgotten() {
        let mut stored = Stored::after(None, 1, [1; 16], b"");
        for revision in 2..=100u64 {
            stored = Stored::after(Some(&stored), revision, [revision as u8; 16], b"");
        }
        assert_eq!(stored.tags.len(), TAGS_MAX);
        assert_eq!(stored.writer_of(100), Some(&[100; 16]));
        assert_eq!(stored.writer_of(37), Some(&[37; 16]));
        assert_eq!(stored.writer_of(36), None);
        assert_eq!(stored.writer_of(101), None);
    }
}
