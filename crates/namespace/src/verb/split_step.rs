//! `split_step`: a directory that is being split gives its slices another part of its entries.
//!
//! Entries go in the order of their hashes, which is that of listings. The border of the directory says how far it is: names with smaller hashes are in
//! slices, the others in the directory itself. The slice whose turn it is says the same of itself, and both change in the transaction that moves
//! entries, so everybody finds each name in one place and no other at any time.

use super::slice;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{self, NameHash};
use crate::record::{Bucket, Inode, Kind, Wide};
use crate::txn::Txn;
use ashlar_kv::Key;
use ashlar_types::codec::CodecError;
use ashlar_types::{Errno, FileType, InodeId, Timespec, codec};
use bytes::Bytes;
use std::ops::ControlFlow;

/// Most entries that one step moves, as the service makes steps.
// LIMIT: they are in one message and one group of the log, about 100 bytes each, and whoever names something in the directory waits until they are moved.
pub const SPLIT_STEP_ENTRIES: usize = 256;

/// Bytes of buckets from which on a step takes no more of them.
// LIMIT: one bucket more has at most 35 KiB.
const STEP_BYTES: usize = 64 << 10;

/// How far a split is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitProgress {
    /// So many entries were moved, and there may be more.
    Moved(u64),
    /// So many entries were moved, the last ones: the directory is split.
    Ended(u64),
    /// There was nothing to be done: the directory is not being split, or has been removed.
    Nothing,
}

/// Begins to split the directory `id`, which is `directory`: its slices are there, and empty.
pub(super) fn begin(
    txn: &mut Txn<'_>,
    now: Timespec,
    (id, directory): (InodeId, &Inode),
    slices: Vec<InodeId>,
) -> Result<(), NsError> {
    let count = slices.len() as u16;
    for (index, inode) in (0..count).zip(&slices) {
        let mut record = slice::new_slice((id, directory), (index, count), now);
        slice::set_filled_until(&mut record, NameHash(0));
        txn.insert_inode(*inode, record)?;
    }
    let (parent, policy) = directory.as_directory()?;
    let wide = Wide { slices, slices_of_new: directory.slices_of_new() };
    let head = txn.inode_mut(id)?;
    head.kind = Kind::DirectoryInSplit { parent, policy, wide, border: NameHash(0), mtime_of_slices: None };
    head.ctime = now;
    txn.put(key::halfway(id), Bytes::new());
    // Names have been told under a lease on the directory. As long as this goes on no such lease is given, so steps have nothing to take back.
    txn.touch_entries(id);
    Ok(())
}

/// The slice to which the next step moves entries; `None` for a directory that is not being split.
pub fn next_slice(directory: &Inode) -> Option<InodeId> {
    let Kind::DirectoryInSplit { border, .. } = directory.kind else { return None };
    let slices = directory.slices();
    slices.get(border.slice(slices.len()).min(slices.len().checked_sub(1)?)).copied()
}

/// Moves up to `entries_max` entries. With the last ones the split ends. Whatever a step does, it needs the directory and one slice.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer; [`NsError::Elsewhere`]; `ESTALE` for a slice that is not there; `EIO` where the counts in the store are wrong.
pub fn split_step(
    txn: &mut Txn<'_>,
    _context: &OpContext<'_>,
    id: InodeId,
    entries_max: usize,
) -> Result<SplitProgress, NsError> {
    let found = txn.find_inode(id)?.filter(|directory| !directory.slices().is_empty()).cloned();
    let Some((directory, border)) = found.and_then(|directory| match directory.kind {
        Kind::DirectoryInSplit { border, .. } => Some((directory, border)),
        _ => None,
    }) else {
        txn.delete(key::halfway(id));
        return Ok(SplitProgress::Nothing);
    };
    let count = directory.slices().len();
    let index = border.slice(count).min(count - 1);
    let slice = next_slice(&directory).ok_or(Errno::EIO)?;
    // Asked for before anything is looked for: it may be at another server.
    let record = txn.inode_mut(slice)?;
    record.kind.is_slice().then_some(()).ok_or(Errno::EIO)?;
    let end_of_slice = NameHash::begin_of_slice(index + 1, count);
    let (buckets, next) = take(txn, id, (border, end_of_slice), entries_max)?;
    let (mut entries, mut subdirectories) = (0u64, 0u32);
    for (bucket_key, value) in buckets {
        let bucket: Bucket = codec::decode(&value, "directory bucket")?;
        let hash = key::bucket_hash(&bucket_key).ok_or(Errno::EIO)?;
        entries += bucket.entries.len() as u64;
        let of_directories = bucket.entries.iter().filter(|entry| entry.file_type == FileType::Directory);
        subdirectories += of_directories.count() as u32;
        txn.put(key::bucket(slice, hash), value);
        txn.delete(bucket_key);
    }
    let mut record = txn.inode(slice)?.clone();
    record.size = record.size.checked_add(entries).ok_or(Errno::EIO)?;
    record.nlink = record.nlink.checked_add(subdirectories).ok_or(Errno::EMLINK)?;
    slice::set_filled_until(&mut record, next);
    let head = txn.inode_mut(id)?;
    head.size = head.size.checked_sub(entries).ok_or(Errno::EIO)?;
    head.nlink = head.nlink.checked_sub(subdirectories).ok_or(Errno::EIO)?;
    if let Kind::DirectoryInSplit { border, .. } = &mut head.kind {
        *border = next;
    }
    let is_end = next >= NameHash::END;
    if is_end {
        end(head, &mut record)?;
        txn.delete(key::halfway(id));
    }
    *txn.inode_mut(slice)? = record;
    Ok(if is_end { SplitProgress::Ended(entries) } else { SplitProgress::Moved(entries) })
}

/// Buckets with their keys.
type Buckets = Vec<(Key, Bytes)>;

/// The first buckets of a directory in a range of hashes, and up to where there are no others.
fn take(
    txn: &Txn<'_>,
    id: InodeId,
    (from, to): (NameHash, NameHash),
    entries_max: usize,
) -> Result<(Buckets, NameHash), NsError> {
    let (mut buckets, mut entries, mut bytes) = (Vec::new(), 0, 0);
    let (mut next, mut damage) = (to, None);
    let end =
        if to < NameHash::END { key::bucket(id, to) } else { key::after_prefix(&key::bucket_prefix(id)) };
    txn.scan(&key::bucket(id, from), &end, &mut |bucket_key, value| {
        let Some(hash) = key::bucket_hash(bucket_key) else {
            damage = Some(CodecError::Malformed { what: "key of a directory bucket" });
            return ControlFlow::Break(());
        };
        if entries >= entries_max || bytes >= STEP_BYTES {
            next = hash;
            return ControlFlow::Break(());
        }
        match codec::decode::<Bucket>(value, "directory bucket") {
            Ok(bucket) => entries += bucket.entries.len(),
            Err(error) => {
                damage = Some(error);
                return ControlFlow::Break(());
            }
        }
        bytes += value.len();
        buckets.push((Key::from_slice(bucket_key), Bytes::copy_from_slice(value)));
        ControlFlow::Continue(())
    })?;
    damage.map_or(Ok((buckets, next)), |error| Err(error.into()))
}

/// Makes of a directory all of whose entries are in its slices one that is split; `last` is the slice that was filled last.
///
/// No other slice has a part in it. They are in use by now, and whoever wanted all of them unchanged for a moment would hardly ever get them.
fn end(head: &mut Inode, last: &mut Inode) -> Result<(), NsError> {
    let Kind::DirectoryInSplit { parent, policy, wide, mtime_of_slices, .. } = head.kind.clone() else {
        return Err(Errno::EIO.into());
    };
    if head.size != 0 {
        return Err(Errno::EIO.into());
    }
    // From now on slices alone say when names changed: one whose time differs from the directory's is later.
    if let Some(set) = mtime_of_slices {
        last.mtime = if last.mtime == set { head.mtime } else { last.mtime.max(head.mtime) };
        head.mtime = set;
    }
    head.kind = Kind::WideDirectory { parent, policy, wide };
    Ok(())
}
