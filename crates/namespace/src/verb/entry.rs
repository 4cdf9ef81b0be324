//! Finding, adding and removing one directory entry: what every verb that names something shares.

use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{COLLISIONS_MAX, NameHash};
use crate::record::BucketEntry;
use crate::txn::Txn;
use ashlar_types::{Errno, FileType, InodeId, Name};
use smallvec::SmallVec;

/// The entry `name` of `directory`, if there is one.
pub(crate) fn find(
    txn: &Txn<'_>,
    context: &OpContext<'_>,
    directory: InodeId,
    name: Name<'_>,
) -> Result<Option<BucketEntry>, NsError> {
    let hash = NameHash::of(name, context.hash_key);
    let bucket = txn.bucket(directory, hash)?;
    Ok(bucket.entries.into_iter().find(|entry| entry.name.as_slice() == name.as_bytes()))
}

/// Adds or replaces the entry `name` of `directory`. Counting entries and times is the caller's.
pub(crate) fn set(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    directory: InodeId,
    name: Name<'_>,
    (inode, file_type): (InodeId, FileType),
) -> Result<(), NsError> {
    let hash = NameHash::of(name, context.hash_key);
    let mut bucket = txn.bucket(directory, hash)?;
    if let Some(entry) = bucket.entries.iter_mut().find(|entry| entry.name.as_slice() == name.as_bytes()) {
        (entry.inode, entry.file_type) = (inode, file_type);
    } else {
        let is_free = |number: &u8| bucket.entries.iter().all(|entry| entry.collision != *number);
        let collision = (0..=COLLISIONS_MAX).find(is_free).ok_or(Errno::ENOSPC)?;
        let name = SmallVec::from_slice(name.as_bytes());
        bucket.entries.push(BucketEntry { collision, file_type, inode, name });
        bucket.entries.sort_by_key(|entry| entry.collision);
    }
    txn.put_bucket(directory, hash, &bucket, name);
    Ok(())
}

/// Removes the entry `name` of `directory`, which must be there.
pub(crate) fn remove(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    directory: InodeId,
    name: Name<'_>,
) -> Result<(), NsError> {
    let hash = NameHash::of(name, context.hash_key);
    let mut bucket = txn.bucket(directory, hash)?;
    bucket.entries.retain(|entry| entry.name.as_slice() != name.as_bytes());
    txn.put_bucket(directory, hash, &bucket, name);
    Ok(())
}
