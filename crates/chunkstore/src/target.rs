//! The file `target` names the target, the file `lock` says who has it open (`docs/formats/target.md`).

use crate::error::ChunkError;
use ashlar_env::{Disk, DiskFile, OpenMode};
use ashlar_types::codec::crc32c;
use ashlar_types::{ClusterId, Start, TargetId};
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

const PATH: &str = "target";
const PATH_NEW: &str = "target.new";
const LOCK_PATH: &str = "lock";
const MAGIC: [u8; 8] = *b"ASHLTRGT";
/// The newest format of a target this software knows, and the one it makes.
pub const FORMAT: u16 = 2;
/// Bytes of the file.
const HEADER_BYTES: usize = 68;
/// Bytes of a holder's name that are shown.
const HOLDER_BYTES_MAX: usize = 256;

/// Drawn at random when a target is made, so that two targets that were given one id are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TargetUuid(pub [u8; 16]);

impl fmt::Display for TargetUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ClusterId(self.0).fmt(f)
    }
}

impl fmt::Debug for TargetUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TargetUuid({self})")
    }
}

/// What a target is called, in its own header and by those who ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetIdentity {
    /// The file system.
    pub cluster: ClusterId,
    /// The target's number in the cluster map.
    pub target: TargetId,
    /// The target's own random name.
    pub uuid: TargetUuid,
}

/// What the file `target` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetHeader {
    /// Which target it is.
    pub identity: TargetIdentity,
    /// The last start of the file system that it took part in.
    pub start: Start,
}

impl TargetHeader {
    /// The bytes of the file `target`.
    pub fn encode(&self) -> Vec<u8> {
        let TargetHeader { identity, start } = self;
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&identity.target.0.to_le_bytes());
        out.extend_from_slice(&identity.cluster.0);
        out.extend_from_slice(&identity.uuid.0);
        out.extend_from_slice(&start.number.to_le_bytes());
        out.extend_from_slice(&start.tag.to_le_bytes());
        let crc = crc32c(0, &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the bytes of the file `target`; `file` is its name for messages.
    ///
    /// # Errors
    /// [`ChunkError::Corrupt`], [`ChunkError::Foreign`] (not a target at all) or [`ChunkError::Newer`].
    pub fn decode(bytes: &[u8], file: &str) -> Result<TargetHeader, ChunkError> {
        let corrupt = |what: &str| ChunkError::Corrupt { file: file.into(), what: what.into() };
        if !bytes.starts_with(&MAGIC) {
            return Err(ChunkError::Foreign {
                file: file.into(),
                what: "it is not a target's header".into(),
            });
        }
        let found = bytes.get(8..10).map_or(0, |raw| u16::from_le_bytes([raw[0], raw[1]]));
        // However long it is: another format is no damage.
        if found != FORMAT && is_sound(bytes) {
            return Err(ChunkError::Newer { file: file.into(), found, known: FORMAT });
        }
        let bytes: &[u8; HEADER_BYTES] = bytes.try_into().map_err(|_| corrupt("its length is wrong"))?;
        if !is_sound(bytes) {
            return Err(corrupt("its checksum is wrong"));
        }
        let short = || corrupt("it is short");
        let field = |at: usize| bytes.get(at..at + 16).and_then(|raw| <[u8; 16]>::try_from(raw).ok());
        let number = |at: usize| bytes.get(at..at + 8).and_then(|raw| <[u8; 8]>::try_from(raw).ok());
        let target = TargetId(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]));
        let (cluster, uuid) = field(16).zip(field(32)).ok_or_else(short)?;
        let (start, tag) = number(48).zip(number(56)).ok_or_else(short)?;
        Ok(TargetHeader {
            identity: TargetIdentity { cluster: ClusterId(cluster), target, uuid: TargetUuid(uuid) },
            start: Start { number: u64::from_le_bytes(start), tag: u64::from_le_bytes(tag) },
        })
    }
}

/// Whether the checksum at the end is that of the rest.
fn is_sound(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<4>().is_some_and(|(body, crc)| crc32c(0, body).to_le_bytes() == *crc)
}

/// Writes the header of a new target into an empty directory.
pub(crate) fn create(disk: &dyn Disk, identity: &TargetIdentity) -> Result<(), ChunkError> {
    let file = disk.describe(PATH);
    let io = |what: &str, error| ChunkError::io(format!("{what} {file}"), error);
    match disk.open(PATH, OpenMode::Read) {
        Ok(_) => return Err(ChunkError::Foreign { file, what: "there is a target here already".into() }),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(io("look for", error)),
    }
    disk.create_dir("slabs").map_err(|error| io("make slabs beside", error))?;
    disk.create_dir("index").map_err(|error| io("make index beside", error))?;
    // ORDER: the header gets its name last, once it is whole and durable; a directory without it is not a target.
    let header = disk.open(PATH_NEW, OpenMode::CreateOrOpen).map_err(|error| io("make", error))?;
    header.set_len(0).map_err(|error| io("make", error))?;
    let bytes = TargetHeader { identity: *identity, start: Start::default() }.encode();
    header.write_at(0, &bytes).map_err(|error| io("write", error))?;
    header.sync_data().map_err(|error| io("sync", error))?;
    disk.sync_dir("").map_err(|error| io("sync the directory of", error))?;
    disk.rename(PATH_NEW, PATH).map_err(|error| io("name", error))?;
    disk.sync_dir("").map_err(|error| io("sync the directory of", error))
}

/// Notes in the header that the target takes part in `start`.
///
/// In place, so that a full disk does not keep the target closed; all of the header is in the first 512 bytes and changes by one
/// write, so no power cut tears it.
pub(crate) fn note_start(disk: &dyn Disk, identity: &TargetIdentity, start: Start) -> Result<(), ChunkError> {
    let bytes = TargetHeader { identity: *identity, start }.encode();
    let store = || {
        let file = disk.open(PATH, OpenMode::ReadWrite)?;
        file.write_at(0, &bytes)?;
        file.sync_data()
    };
    store().map_err(|error| ChunkError::io(format!("write {}", disk.describe(PATH)), error))
}

/// Reads a target's header.
pub(crate) fn read_header(disk: &dyn Disk) -> Result<TargetHeader, ChunkError> {
    let name = disk.describe(PATH);
    let file =
        disk.open(PATH, OpenMode::Read).map_err(|error| ChunkError::io(format!("open {name}"), error))?;
    let mut bytes = [0; HEADER_BYTES + 1];
    let got = file.read_at(0, &mut bytes).map_err(|error| ChunkError::io(format!("read {name}"), error))?;
    TargetHeader::decode(&bytes[..got], &name)
}

/// Reads a target's header and compares it with the one that is asked for.
pub(crate) fn require_identity(
    disk: &dyn Disk,
    expected: &TargetIdentity,
) -> Result<TargetHeader, ChunkError> {
    let header = read_header(disk)?;
    let found = header.identity;
    if found == *expected {
        return Ok(header);
    }
    let show = |id: &TargetIdentity| format!("{} {} of file system {}", id.target, id.uuid, id.cluster);
    let what = format!("it is {}, not {}", show(&found), show(expected));
    Err(ChunkError::Foreign { file: disk.describe(PATH), what })
}

/// Locks the target for the life of the returned handle and writes `holder` into the lock file.
pub(crate) fn lock(disk: &dyn Disk, holder: &str) -> Result<Arc<dyn DiskFile>, ChunkError> {
    let name = disk.describe(LOCK_PATH);
    let io = |what: &str, error| ChunkError::io(format!("{what} {name}"), error);
    let file = disk.open(LOCK_PATH, OpenMode::CreateOrOpen).map_err(|error| io("open", error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let mut text = [0; HOLDER_BYTES_MAX];
            let got = file.read_at(0, &mut text).unwrap_or(0);
            let holder = String::from_utf8_lossy(&text[..got]).trim().to_string();
            return Err(ChunkError::Locked { file: name, holder });
        }
        Err(error) => return Err(io("lock", error)),
    }
    // A full disk must not keep the target closed: the text is for people only.
    let told = file.set_len(0).and_then(|()| file.write_at(0, holder.as_bytes()));
    if let Err(error) = told {
        tracing::warn!(file = name, %error, "cannot write the holder into the lock file");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_round_trip_and_names_its_damage() {
        let identity = TargetIdentity {
            cluster: ClusterId([1; 16]),
            target: TargetId(7),
            uuid: TargetUuid(*b"0123456789abcdef"),
        };
        let header = TargetHeader { identity, start: Start { number: 5, tag: 6 } };
        let bytes = header.encode();
        assert_eq!(TargetHeader::decode(&bytes, "t").unwrap(), header);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(TargetHeader::decode(&damaged, "t").is_err(), "byte {at}");
            assert!(TargetHeader::decode(&bytes[..at], "t").is_err(), "length {at}");
        }
        for (found, len) in [(FORMAT + 1, HEADER_BYTES), (1, 52)] {
            let mut other = bytes[..len - 4].to_vec();
            other[8..10].copy_from_slice(&found.to_le_bytes());
            other.extend_from_slice(&crc32c(0, &other).to_le_bytes());
            let refused = TargetHeader::decode(&other, "t");
            assert!(matches!(refused, Err(ChunkError::Newer { found: told, .. }) if told == found));
        }
    }

    #[test]
    fn ten_thousand_headers_with_other_fields_are_refused_or_read() {
        let header = TargetHeader {
            identity: TargetIdentity {
                cluster: ClusterId([1; 16]),
                target: TargetId(2),
                uuid: TargetUuid([3; 16]),
            },
            start: Start { number: 4, tag: 5 },
        };
        let random = ashlar_env::sim::SimEntropy::new(9);
        let mut read = 0;
        for _ in 0..10_000 {
            let mut bytes = header.encode();
            bytes.truncate(HEADER_BYTES - 4);
            let (at, len) = [(0, 8), (8, 2), (10, 2), (12, 4), (16, 16), (32, 16), (48, 8), (56, 8)]
                [random.below(8) as usize];
            bytes[at..at + len].iter_mut().for_each(|byte| *byte = random.below(4) as u8 * 85);
            match random.below(10) {
                0 => bytes.truncate(random.below(64) as usize),
                1 => bytes.resize(64 + random.below(100) as usize, 0),
                _ => {}
            }
            bytes.extend_from_slice(&crc32c(0, &bytes).to_le_bytes());
            if let Ok(found) = TargetHeader::decode(&bytes, "t") {
                read += 1;
                assert_eq!(TargetHeader::decode(&found.encode(), "t").unwrap(), found);
            }
        }
        assert!(read > 1000, "{read} read");
    }
}
