//! `split`: a directory gets slices, each of which has the entries whose names have a certain range of hashes, so that several servers carry it.

use super::{privilege, slice, split_step};
use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{self, NameHash};
use crate::record::{Bucket, Inode, Kind, Wide};
use crate::txn::Txn;
use ashlar_kv::Key;
use ashlar_types::{Capabilities, Errno, FileType, InodeId, SLICES_MAX, codec};
use bytes::Bytes;
use std::ops::ControlFlow;

/// Most entries that a directory may have to be split at once.
// LIMIT: they go to the slices in one transaction, in one message to each server.
pub const SPLIT_ENTRIES_MAX: u64 = 1024;

/// Splits the directory `id` into `count` slices, with the entries it has: at once, or, with more than [`SPLIT_ENTRIES_MAX`], step by step
/// ([`super::split_step()`]), which this begins. One that is split into as many, or being split, stays as it is.
///
/// Entries keep their hashes, so a listing that is under way goes on where it was. Inodes of files stay where they are; those of files that are made from then on
/// are with the slice of their name.
///
/// # Errors
/// `EPERM` unless the caller owns the directory or is privileged; `EINVAL` for a number of slices out of 2 to [`SLICES_MAX`], or one for which there are not
/// enough shards; `EEXIST` when it is split otherwise; `ENOTDIR`; `ENOENT` for a directory that has been removed; `EHOSTDOWN` when a server that is to have a slice does not answer.
pub fn split(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId, count: u16) -> Result<(), NsError> {
    split_above(txn, context, id, count, SPLIT_ENTRIES_MAX)
}

/// As [`split`], with steps for a directory of more than `at_once` entries.
///
/// # Errors
/// As [`split`].
pub fn split_above(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    count: u16,
    at_once: u64,
) -> Result<(), NsError> {
    let directory = may_split(txn, context, id)?;
    if !(2..=SLICES_MAX).contains(&count) {
        return Err(Errno::EINVAL.into());
    }
    if directory.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    match directory.slices().len() {
        0 => {}
        slices if slices == usize::from(count) => return Ok(()),
        _ => return Err(Errno::EEXIST.into()),
    }
    let shards = context.placement.shards_for_slices(id.home(), count);
    match shards.len() {
        0 => return Err(Errno::EHOSTDOWN.into()),
        found if found < usize::from(count) => return Err(Errno::EINVAL.into()),
        _ => {}
    }
    let slices = txn.allocate_inode_ids(&shards)?;
    if directory.size > at_once.min(SPLIT_ENTRIES_MAX) {
        return split_step::begin(txn, context.now, (id, &directory), slices);
    }
    let records = move_entries(txn, context, (id, &directory), &slices)?;
    for (slice, record) in slices.iter().zip(records) {
        txn.insert_inode(*slice, record)?;
    }
    let (parent, policy) = directory.as_directory()?;
    let head = txn.inode_mut(id)?;
    (head.size, head.nlink, head.ctime) = (0, 2, context.now);
    let wide = Wide { slices, slices_of_new: directory.slices_of_new() };
    head.kind = Kind::WideDirectory { parent, policy, wide };
    // Names that are there, and that are not, have been told under a lease on the directory; from now on they are the slices'.
    txn.touch_entries(id);
    Ok(())
}

/// Has directories that are made in the directory `id` from now on made with `count` slices; 0: not split.
///
/// # Errors
/// As [`split`].
pub fn split_new(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId, count: u16) -> Result<(), NsError> {
    let before = may_split(txn, context, id)?;
    if count == 1 || count > SLICES_MAX {
        return Err(Errno::EINVAL.into());
    }
    let (parent, policy) = before.as_directory()?;
    let directory = txn.inode_mut(id)?;
    match &mut directory.kind {
        Kind::WideDirectory { wide, .. } | Kind::DirectoryInSplit { wide, .. } => wide.slices_of_new = count,
        kind => {
            let wide = Wide { slices: Vec::new(), slices_of_new: count };
            *kind = Kind::WideDirectory { parent, policy, wide };
        }
    }
    if matches!(&directory.kind, Kind::WideDirectory { wide, .. } if *wide == Wide::default()) {
        directory.kind = Kind::Directory { parent, policy };
    }
    directory.ctime = context.now;
    slice::mirror(txn, id, &before, false)
}

/// The record of a directory that the caller may split.
fn may_split(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId) -> Result<Inode, NsError> {
    let directory = txn.inode(id)?.clone();
    directory.as_directory()?;
    directory.require_whole()?;
    if !context.creds.caps.has(Capabilities::DAC_OVERRIDE) {
        privilege::check_owner(context, &directory)?;
    }
    Ok(directory)
}

/// Moves the entries of a directory to its new slices; the records of these.
fn move_entries(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    (id, directory): (InodeId, &Inode),
    slices: &[InodeId],
) -> Result<Vec<Inode>, NsError> {
    let count = slices.len();
    let mut records: Vec<Inode> = (0..count as u16)
        .map(|index| slice::new_slice((id, directory), (index, count as u16), context.now))
        .collect();
    let mut buckets: Vec<(Key, Bytes)> = Vec::new();
    // LIMIT: SPLIT_ENTRIES_MAX.
    txn.scan(
        &key::bucket_prefix(id),
        &key::after_prefix(&key::bucket_prefix(id)),
        &mut |bucket_key, value| {
            buckets.push((Key::from_slice(bucket_key), Bytes::copy_from_slice(value)));
            ControlFlow::Continue(())
        },
    )?;
    for (bucket_key, value) in buckets {
        let bucket: Bucket = codec::decode(&value, "directory bucket")?;
        let hash = key::bucket_hash(&bucket_key).unwrap_or(NameHash(1));
        let at = hash.slice(count);
        let subdirectories = bucket.entries.iter().filter(|entry| entry.file_type == FileType::Directory);
        let record = &mut records[at];
        record.nlink += subdirectories.count() as u32;
        record.size += bucket.entries.len() as u64;
        txn.put(key::bucket(slices[at], hash), value);
        txn.delete(bucket_key);
    }
    Ok(records)
}
