//! What an inode's records in the other tables of its shard add up to.

use super::{Checker, EntryName, Finding, Stop};
use crate::body;
use crate::key::{self, BODY_PIECE_BYTES, COLLISIONS_MAX, NameHash};
use crate::record::{Bucket, FileData, Garbage, Inode, Kind};
use crate::verb::slice;
use ashlar_types::{FileType, InodeId, Name, SessionId, codec};

/// Sums over the records of one inode.
#[derive(Default)]
pub(super) struct Side {
    pub(super) entries: u64,
    pub(super) subdirectories: u32,
    pub(super) body_units: u64,
    pub(super) body_end: u64,
    pub(super) link_bytes: Option<u64>,
    pub(super) has_xattrs: bool,
    pub(super) is_halfway: bool,
}

/// The tables whose records belong to an inode, and the length of their keys; `X` keys are longer by a name.
pub(super) const TABLES: [(u8, usize); 8] =
    [(b'B', 15), (b'D', 18), (b'G', 15), (b'H', 11), (b'L', 11), (b'O', 19), (b'W', 19), (b'X', 12)];

/// Looks at one record of an inode that is there and adds it up.
pub(super) fn check_record(
    checker: &mut Checker<'_>,
    table: u8,
    (record_key, value): (&[u8], &[u8]),
    (id, inode): (InodeId, &Inode),
    side: &mut Side,
) -> Result<(), Stop> {
    let is_at_home = match (table, &inode.kind) {
        (b'B', Kind::Regular(FileData::Inline { .. })) => add_piece(side, record_key, value),
        (b'D', _) if inode.is_directory() => {
            return check_bucket(checker, (id, inode), record_key, value, side);
        }
        (b'H', Kind::DirectoryInSplit { .. }) => {
            side.is_halfway = true;
            true
        }
        (b'G', Kind::Regular(data)) => return check_garbage(checker, id, data, record_key, value),
        (b'L', Kind::Symlink | Kind::SyncSymlink) => {
            side.link_bytes = Some(value.len() as u64);
            true
        }
        (b'O', _) => return check_orphan(checker, id, inode, record_key),
        (b'W', Kind::Regular(FileData::Chunks { .. })) => true,
        (b'X', _) => {
            side.has_xattrs = true;
            true
        }
        _ => false,
    };
    if is_at_home { Ok(()) } else { checker.found(Finding::RecordStray { key: record_key.into() }) }
}

/// Adds a piece of a body; `false` for one that no verb can have written.
fn add_piece(side: &mut Side, record_key: &[u8], value: &[u8]) -> bool {
    let piece = record_key.get(11..15).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let start = u64::from(piece.unwrap_or(u32::MAX)) * u64::from(BODY_PIECE_BYTES);
    let is_possible =
        start < body::BODY_BYTES_MAX && !value.is_empty() && value.len() <= BODY_PIECE_BYTES as usize;
    if is_possible {
        side.body_units += body::units(value.len()).unsigned_abs();
        side.body_end = start + value.len() as u64;
    }
    is_possible
}

fn check_bucket(
    checker: &mut Checker<'_>,
    (directory, inode): (InodeId, &Inode),
    record_key: &[u8],
    value: &[u8],
    side: &mut Side,
) -> Result<(), Stop> {
    let (Ok(bucket), Some(hash)) =
        (codec::decode::<Bucket>(value, "directory bucket"), key::bucket_hash(record_key))
    else {
        return checker.found(Finding::ValueMalformed { key: record_key.into() });
    };
    checker.report.entries += bucket.entries.len() as u64;
    side.entries += bucket.entries.len() as u64;
    if let Some(what) = bucket_damage(&bucket) {
        checker.found(Finding::BucketMalformed { directory, hash, what })?;
    }
    for entry in &bucket.entries {
        if entry.file_type == FileType::Directory {
            side.subdirectories = side.subdirectories.saturating_add(1);
        }
        let Ok(name) = Name::new(&entry.name) else { continue };
        if NameHash::of(name, checker.args.hash_key) != hash {
            let entry = EntryName { directory, hash, name: entry.name.clone() };
            checker.found(Finding::EntryMisplaced { entry })?;
        } else if !matches!(inode.kind, Kind::WideDirectory { .. }) && !slice::has(inode, hash) {
            let entry = EntryName { directory, hash, name: entry.name.clone() };
            checker.found(Finding::EntryOutside { entry })?;
        }
    }
    Ok(())
}

/// What breaks a bucket's own rules.
fn bucket_damage(bucket: &Bucket) -> Option<&'static str> {
    let entries = &bucket.entries;
    let is_twice = |at: usize| entries.iter().skip(at + 1).any(|other| other.name == entries[at].name);
    if entries.is_empty() {
        Some("it is empty")
    } else if entries.windows(2).any(|pair| pair[0].collision >= pair[1].collision) {
        Some("its collision numbers do not ascend")
    } else if entries.iter().any(|entry| entry.collision > COLLISIONS_MAX) {
        Some("a collision number is out of range")
    } else if entries.iter().any(|entry| Name::new(&entry.name).is_err()) {
        Some("a name is not valid")
    } else if (0..entries.len()).any(is_twice) {
        Some("a name is there twice")
    } else {
        None
    }
}

fn check_garbage(
    checker: &mut Checker<'_>,
    inode: InodeId,
    data: &FileData,
    record_key: &[u8],
    value: &[u8],
) -> Result<(), Stop> {
    let (Ok(garbage), Some(generation)) =
        (codec::decode::<Garbage>(value, "garbage record"), generation_of(record_key))
    else {
        return checker.found(Finding::ValueMalformed { key: record_key.into() });
    };
    let (current, is_live) = match data {
        FileData::Inline { generation: current, .. } => (*current, false),
        FileData::Chunks { layout, .. } => (layout.generation, garbage.keep_bytes == 0),
    };
    match generation {
        generation if generation > current => checker.found(Finding::GarbageAhead { inode, generation }),
        generation if generation == current && is_live => {
            checker.found(Finding::GarbageLive { inode, generation })
        }
        _ => Ok(()),
    }
}

/// The generation in a garbage record's key.
fn generation_of(record_key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(record_key.get(11..15)?.try_into().ok()?))
}

fn check_orphan(
    checker: &mut Checker<'_>,
    id: InodeId,
    inode: &Inode,
    record_key: &[u8],
) -> Result<(), Stop> {
    let session = record_key.get(11..19).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    match session {
        Some(session) if inode.nlink > 0 => {
            checker.found(Finding::OrphanNamed { inode: id, session: SessionId(session) })
        }
        _ => Ok(()),
    }
}
