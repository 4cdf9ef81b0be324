//! Finding, adding and removing one directory entry: what every verb that names something shares.

use super::{permission, slice};
use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{COLLISIONS_MAX, NameHash};
use crate::record::{Bucket, BucketEntry, Inode, Kind};
use crate::txn::Txn;
use ashlar_types::{Errno, FileType, InodeId, Name, Timespec};
use smallvec::SmallVec;

/// A name in a directory, looked up: with an entry or without. It is a copy of what the store had; after a change of another entry of
/// the same directory in the same transaction it must be looked up again.
pub(crate) struct Place<'n> {
    directory: InodeId,
    name: Name<'n>,
    hash: NameHash,
    bucket: Bucket,
}

/// Looks `name` up in `directory`, which must have it itself ([`slice::require_here`]).
pub(crate) fn locate<'n>(
    txn: &Txn<'_>,
    context: &OpContext<'_>,
    directory: InodeId,
    name: Name<'n>,
) -> Result<Place<'n>, NsError> {
    let hash = NameHash::of(name, context.hash_key);
    let bucket = txn.bucket(directory, hash)?;
    Ok(Place { directory, name, hash, bucket })
}

/// Finds the entry `name` that is to be removed from `parent`: gives a copy of the directory, the place, and what the name stands for.
///
/// # Errors
/// `ENOENT`, `ENOTDIR`; `EACCES` when the caller may not search `parent`; `EREMOTE` when it is split.
pub(crate) fn find<'n>(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'n>,
) -> Result<(Inode, Place<'n>, InodeId), NsError> {
    let directory = txn.inode(parent)?.clone();
    directory.as_directory()?;
    permission::check(context, &directory, permission::EXECUTE)?;
    slice::require_here(context, &directory, name)?;
    let place = locate(txn, context, parent, name)?;
    let inode = place.entry().ok_or(Errno::ENOENT)?.inode;
    Ok((directory, place, inode))
}

impl<'n> Place<'n> {
    /// The entry, if there is one.
    pub(crate) fn entry(&self) -> Option<&BucketEntry> {
        self.bucket.entries.iter().find(|entry| entry.name.as_slice() == self.name.as_bytes())
    }

    /// The name.
    pub(crate) fn name(&self) -> Name<'n> {
        self.name
    }

    /// The directory.
    pub(crate) fn directory(&self) -> InodeId {
        self.directory
    }

    /// Adds or replaces the entry. A replaced entry keeps its readdir cookie. Counting entries and times is the caller's.
    ///
    /// # Errors
    /// `ENOSPC` when more names than can be told apart share a hash.
    pub(crate) fn set(
        mut self,
        txn: &mut Txn<'_>,
        (inode, file_type): (InodeId, FileType),
    ) -> Result<(), NsError> {
        let entries = &mut self.bucket.entries;
        if let Some(entry) = entries.iter_mut().find(|entry| entry.name.as_slice() == self.name.as_bytes()) {
            (entry.inode, entry.file_type) = (inode, file_type);
        } else {
            let is_free = |number: &u8| entries.iter().all(|entry| entry.collision != *number);
            let collision = (0..=COLLISIONS_MAX).find(is_free).ok_or(Errno::ENOSPC)?;
            let name = SmallVec::from_slice(self.name.as_bytes());
            let position = entries.partition_point(|entry| entry.collision < collision);
            entries.insert(position, BucketEntry { collision, file_type, inode, name });
        }
        txn.put_bucket(self.directory, self.hash, &self.bucket, self.name);
        Ok(())
    }

    /// Removes the entry, which must be there. Counting entries and times is the caller's.
    pub(crate) fn remove(mut self, txn: &mut Txn<'_>) {
        self.bucket.entries.retain(|entry| entry.name.as_slice() != self.name.as_bytes());
        txn.put_bucket(self.directory, self.hash, &self.bucket, self.name);
    }
}

/// Stamps `directory`, one of whose entries changed, and counts: `entries` more entries and `subdirectories` more among them.
///
/// # Errors
/// `EMLINK` when a directory's subdirectories no longer fit its link count, `EIO` when the counts in the store are wrong.
pub(crate) fn count(
    directory: &mut Inode,
    now: Timespec,
    entries: i64,
    subdirectories: i32,
) -> Result<(), NsError> {
    // INVARIANT: size is the number of entries and nlink 2 + subdirectories; fsck repairs both.
    directory.size = directory.size.checked_add_signed(entries).ok_or(Errno::EIO)?;
    directory.nlink = directory.nlink.checked_add_signed(subdirectories).ok_or(Errno::EMLINK)?;
    if let Kind::DirectoryInSplit { mtime_of_slices, .. } = &mut directory.kind {
        mtime_of_slices.get_or_insert(directory.mtime);
    }
    (directory.mtime, directory.ctime) = (now, now);
    Ok(())
}
