//! `set_fileset`: an inode goes into another fileset.

use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Errno, FilesetId, InodeId};

/// Takes `inode` out of the fileset `from` into `fileset`. One that is there already stays. What is in a directory does not go with it, and its slices, of
/// which the caller knows `slices`, have gone before: one after the other, as a transaction over all of them would hardly ever find all unchanged.
///
/// # Errors
/// `EAGAIN` for a directory that has been split meanwhile; `EXDEV` for an inode of a third fileset, `EINVAL` for the root of the file system, `ESTALE`.
pub fn set_fileset(
    txn: &mut Txn<'_>,
    inode: InodeId,
    (from, fileset): (FilesetId, FilesetId),
    slices: u16,
) -> Result<(), NsError> {
    let record = txn.inode(inode)?;
    let (now, slices_now) = (record.fileset, record.slices().len());
    if inode == InodeId::ROOT {
        return Err(Errno::EINVAL.into());
    }
    if now == fileset {
        return Ok(());
    }
    if now != from {
        return Err(Errno::EXDEV.into());
    }
    if slices_now != usize::from(slices) {
        return Err(Errno::EAGAIN.into());
    }
    txn.inode_mut(inode)?.fileset = fileset;
    Ok(())
}
