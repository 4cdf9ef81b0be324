//! The value in a file, for a single machine.
//!
//! Bytes (`docs/formats/cluster-state.md`): magic `ASHLCRD2`, revision u64, length u32, CRC-32C u32 over revision, length and
//! value, then the value; integers little-endian. A change writes a new file beside the old one, syncs it, and renames it over.

use crate::{Coord, CoordError};
use ashlar_env::{Disk, OpenMode};
use ashlar_types::codec::crc32c;
use parking_lot::Mutex;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"ASHLCRD2";
/// The format before: the frame is the same, and the value was a map alone.
const MAGIC_BEFORE: &[u8; 8] = b"ASHLCRD1";
/// The file's name.
pub const STATE_FILE: &str = "cluster-state";
const HEADER_BYTES: usize = 24;
/// Largest value, bytes.
// LIMIT: a map of 10,000 targets and a million chains is about 20 MiB.
const VALUE_BYTES_MAX: u64 = 64 << 20;

/// See the module.
pub struct LocalFile {
    disk: Arc<dyn Disk>,
    directory: String,
    name: String,
    /// What to do about a damaged file.
    remedy: &'static str,
    changing: Mutex<()>,
}

const REMEDY: &str =
    "restore it from a backup (`ashlar restore`), or move the file away only if this is a new file system";

impl LocalFile {
    /// The value in file `cluster-state` of `directory`, which must exist.
    pub fn new(disk: Arc<dyn Disk>, directory: &str) -> LocalFile {
        LocalFile::named(disk, directory, STATE_FILE, REMEDY)
    }

    /// A value in another file of `directory`; `remedy` is what to do when it is damaged.
    pub fn named(disk: Arc<dyn Disk>, directory: &str, name: &str, remedy: &'static str) -> LocalFile {
        let (directory, name) = (directory.to_owned(), name.to_owned());
        LocalFile { disk, directory, name, remedy, changing: Mutex::new(()) }
    }

    fn path(&self, name: &str) -> String {
        if self.directory.is_empty() { name.to_owned() } else { format!("{}/{name}", self.directory) }
    }

    fn io<T>(&self, name: &str, what: &str, outcome: std::io::Result<T>) -> Result<T, CoordError> {
        outcome.map_err(|source| CoordError::Io {
            what: format!("{what} {}", self.disk.describe(&self.path(name))),
            source,
        })
    }

    fn corrupt(&self, what: &str) -> CoordError {
        CoordError::Corrupt {
            what: format!("{}: {what}; {}", self.disk.describe(&self.path(&self.name)), self.remedy),
        }
    }
}

/// What to say of `file` if its `magic` is that of a later format than `known`: they differ in their last character, a digit.
pub fn newer_format(file: &str, magic: &[u8], known: &[u8; 8]) -> Option<String> {
    let (name, digit) = (&known[..7], known[7]);
    // Behind 9 comes A.
    let is_later = |found: &u8| (found.is_ascii_digit() || found.is_ascii_uppercase()) && *found > digit;
    (magic.starts_with(name) && magic.get(7).is_some_and(is_later)).then(|| {
        format!(
            "{file} has a newer format than this software knows: use a newer ashlar; if none was ever used here it is damaged, and \
             `ashlar restore` brings it back from a backup"
        )
    })
}

/// Splits the file's bytes into revision and value; `Err` tells what is wrong.
pub fn decode(bytes: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    let (header, value) = bytes.split_at_checked(HEADER_BYTES).ok_or("shorter than its header")?;
    let field =
        |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).map(u32::from_le_bytes).unwrap_or_default();
    if &header[..8] != MAGIC && &header[..8] != MAGIC_BEFORE {
        return Err("not a cluster state file of this format version");
    }
    if field(16) as usize != value.len() {
        return Err("truncated or extended");
    }
    if field(20) != crc32c(crc32c(0, &header[8..20]), value) {
        return Err("checksum does not match");
    }
    Ok((u64::from(field(8)) | u64::from(field(12)) << 32, value))
}

/// The file's bytes.
pub fn encode(revision: u64, value: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&revision.to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    let sum = crc32c(crc32c(0, &out[8..20]), value);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(value);
    out
}

impl Coord for LocalFile {
    fn load(&self) -> Result<(u64, Vec<u8>), CoordError> {
        let file = match self.disk.open(&self.path(&self.name), OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, Vec::new())),
            other => self.io(&self.name, "opening", other)?,
        };
        let len = self.io(&self.name, "reading", file.len())?;
        if len > VALUE_BYTES_MAX {
            return Err(self.corrupt("larger than any cluster state"));
        }
        let mut bytes = vec![0; len as usize];
        let got = self.io(&self.name, "reading", file.read_at(0, &mut bytes))?;
        let file = self.disk.describe(&self.path(&self.name));
        if let Some(what) = newer_format(&file, &bytes[..got], MAGIC) {
            return Err(CoordError::Corrupt { what });
        }
        let (revision, value) = decode(&bytes[..got]).map_err(|what| self.corrupt(what))?;
        Ok((revision, value.to_vec()))
    }

    fn compare_and_set(&self, expected: u64, value: &[u8]) -> Result<u64, CoordError> {
        let _changing = self.changing.lock();
        let (found, _) = self.load()?;
        if found != expected {
            return Err(CoordError::Conflict { expected, found });
        }
        let revision = expected + 1;
        let name = &format!("{}.new", self.name);
        let path = self.path(name);
        let file = self.io(name, "creating", self.disk.open(&path, OpenMode::CreateOrOpen))?;
        let bytes = encode(revision, value);
        self.io(name, "writing", file.set_len(0).and_then(|()| file.write_at(0, &bytes)))?;
        // ORDER: the new content is durable before the name points to it, and the name before anybody acts on it.
        self.io(name, "syncing", file.sync_data())?;
        self.io(name, "renaming", self.disk.rename(&path, &self.path(&self.name)))?;
        self.io("", "syncing directory", self.disk.sync_dir(&self.directory))?;
        Ok(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_are_told_from_good_ones() {
        let good = encode(7, b"value");
        assert_eq!(decode(&good), Ok((7, b"value".as_slice())));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_err(), "flip at {at}");
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
    }
}
