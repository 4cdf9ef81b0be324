//! `set_fileset`: an inode goes into another fileset.

use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Errno, FilesetId, InodeId};

/// Takes `inode` out of the fileset `from` into `fileset`. One that is there already stays. What is in a directory does not go with it.
///
/// # Errors
/// `EXDEV` for an inode of a third fileset, `EINVAL` for the root of the file system, `ESTALE`.
pub fn set_fileset(
    txn: &mut Txn<'_>,
    inode: InodeId,
    from: FilesetId,
    fileset: FilesetId,
) -> Result<(), NsError> {
    let now = txn.inode(inode)?.fileset;
    if inode == InodeId::ROOT {
        return Err(Errno::EINVAL.into());
    }
    if now == fileset {
        return Ok(());
    }
    if now != from {
        return Err(Errno::EXDEV.into());
    }
    txn.inode_mut(inode)?.fileset = fileset;
    Ok(())
}
