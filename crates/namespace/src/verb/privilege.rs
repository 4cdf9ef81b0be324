//! Owners, set-id bits and file capabilities: who may act as an inode's owner, and what content and owner changes take away
//! (`inode_owner_or_capable`, `setattr_should_drop_suidgid`, `ATTR_KILL_PRIV` of Linux).

use super::{permission, xattr};
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::Inode;
use crate::txn::Txn;
use ashlar_types::attr::{MODE_SETGID, MODE_SETUID};
use ashlar_types::{Errno, InodeId};

/// Execute permission of the group.
const MODE_GROUP_EXECUTE: u32 = 0o010;

/// `EPERM` unless the caller may act as the owner.
pub(super) fn check_owner(context: &OpContext<'_>, inode: &Inode) -> Result<(), NsError> {
    if permission::is_owner(context, inode) { Ok(()) } else { Err(Errno::EPERM.into()) }
}

/// Whether the caller may leave the set-group-id bit on a file of group `gid`.
///
/// # Errors
/// `EPERM` when that depends on groups the client has not told yet; it asks again with all of them.
pub(super) fn may_keep_setgid(context: &OpContext<'_>, gid: u32) -> Result<bool, NsError> {
    match permission::may_set_gid(context, gid) {
        false if !context.creds.complete => Err(Errno::EPERM.into()),
        may => Ok(may),
    }
}

/// What a write or truncation does to privileges: file capabilities go always, set-id bits when `kill_set_id`.
///
/// # Errors
/// As [`may_keep_setgid`].
pub(super) fn drop_for_write(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    kill_set_id: bool,
) -> Result<(), NsError> {
    xattr::drop_capability(txn, id)?;
    let inode = txn.inode(id)?;
    if !kill_set_id || inode.mode & (MODE_SETUID | MODE_SETGID) == 0 {
        return Ok(());
    }
    let mode = without_set_id(context, inode.mode, inode.gid)?;
    if mode != inode.mode {
        let inode = txn.inode_mut(id)?;
        (inode.mode, inode.ctime) = (mode, context.now);
    }
    Ok(())
}

/// `mode` of anything but a directory, of group `gid`, without what a write or change of owner takes away: the set-user-id bit, and
/// the set-group-id bit where it means a group to run as, or where the caller is not in that group.
///
/// # Errors
/// As [`may_keep_setgid`].
pub(super) fn without_set_id(context: &OpContext<'_>, mode: u32, gid: u32) -> Result<u32, NsError> {
    let mut mode = mode & !MODE_SETUID;
    if mode & MODE_SETGID != 0 && (mode & MODE_GROUP_EXECUTE != 0 || !may_keep_setgid(context, gid)?) {
        mode &= !MODE_SETGID;
    }
    Ok(mode)
}
