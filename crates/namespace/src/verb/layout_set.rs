//! `layout_set`: layout settings for new files of a directory, or for a file that is still empty.

use super::{privilege, slice};
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::{Capabilities, Errno, InodeId, LayoutPolicy};

/// Changes the settings that `changes` has; the others stay. What is in the directory already keeps what it got.
///
/// # Errors
/// `EPERM` unless the caller owns the inode or is privileged, `ENOTDIR` for a setting that is about directories alone, `EINVAL` for one out of its range, for a
/// file that has content, and for what is neither directory nor regular file.
pub fn layout_set(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    changes: &LayoutPolicy,
) -> Result<LayoutPolicy, NsError> {
    changes.check()?;
    let inode = txn.inode(id)?;
    let is_privileged = context.creds.caps.has(Capabilities::DAC_OVERRIDE);
    if !is_privileged {
        privilege::check_owner(context, inode)?;
    }
    if changes.directories.is_some() && !inode.is_directory() {
        return Err(Errno::ENOTDIR.into());
    }
    let is_settled = inode.size > 0 || inode.blocks > 0;
    match &inode.kind {
        Kind::Directory { .. } | Kind::WideDirectory { .. } | Kind::DirectoryInSplit { .. } => {}
        Kind::Regular(FileData::Inline { .. }) if !is_settled => {}
        _ => return Err(Errno::EINVAL.into()),
    }
    let before = inode.clone();
    let inode = txn.inode_mut(id)?;
    let policy = match &mut inode.kind {
        Kind::Directory { policy, .. }
        | Kind::WideDirectory { policy, .. }
        | Kind::DirectoryInSplit { policy, .. }
        | Kind::Regular(FileData::Inline { policy, .. }) => policy,
        Kind::Regular(FileData::Chunks { .. })
        | Kind::Symlink
        | Kind::Special
        | Kind::SyncSymlink
        | Kind::SyncSpecial
        | Kind::Slice { .. }
        | Kind::SliceInSplit { .. } => {
            return Err(Errno::EINVAL.into());
        }
    };
    *policy = changes.or(*policy).or(LayoutPolicy::root_default());
    let policy = *policy;
    inode.ctime = context.now;
    slice::mirror(txn, id, &before, false)?;
    Ok(policy)
}
