//! `setxattr(2)`, ACLs included.

use super::{Space, XATTR_NAMES_BYTES_MAX, XATTR_TOTAL_BYTES_MAX, XATTR_VALUE_BYTES_MAX, for_each};
use crate::acl::Acl;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use crate::verb::{privilege, slice};
use ashlar_types::attr::{MODE_PERMISSION_MASK, MODE_SETGID};
use ashlar_types::{Errno, InodeId};
use bytes::Bytes;
use std::ops::ControlFlow;

/// Whether the attribute has to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetxattrMode {
    /// Set it whether it is there or not.
    #[default]
    Any,
    /// `XATTR_CREATE`: it must not be there.
    Create,
    /// `XATTR_REPLACE`: it must be there.
    Replace,
}

/// What to set.
#[derive(Clone, Copy, Debug)]
pub struct SetxattrArgs<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether it has to be there; without meaning for ACLs.
    pub mode: SetxattrMode,
    /// For the access ACL: whether the kernel says that the set-group-id bit goes (`FUSE_SETXATTR_ACL_KILL_SGID`).
    pub kill_setgid: bool,
}

/// Sets an attribute of `id`. For ACLs an empty value (or a list without entries) removes; the access ACL changes the mode's permission bits.
///
/// # Errors
/// `EEXIST` and `ENODATA` by the mode, `E2BIG` for a value above 64 KiB, `ENOSPC` when the inode's attributes would exceed their bound, `EPERM` or
/// `EACCES` when the caller may not change it (`EACCES` also for a default ACL of anything but a directory), `EINVAL` for a malformed ACL,
/// `ERANGE`, `EINVAL` or `EOPNOTSUPP` for a name that cannot be.
pub fn setxattr(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    args: &SetxattrArgs<'_>,
) -> Result<(), NsError> {
    let space = Space::of(args.name)?;
    if args.value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(Errno::E2BIG.into());
    }
    space.check_change(context, txn.inode(id)?)?;
    match space {
        Space::AclAccess => {
            set_acl_access(txn, context, id, parse_acl(args.value)?.as_ref(), args.kill_setgid)
        }
        Space::AclDefault => set_acl_default(txn, context, id, parse_acl(args.value)?.as_ref()),
        _ => set_stored(txn, context, id, args),
    }
}

fn parse_acl(value: &[u8]) -> Result<Option<Acl>, Errno> {
    if value.is_empty() { Ok(None) } else { Acl::parse(value) }
}

fn set_stored(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    args: &SetxattrArgs<'_>,
) -> Result<(), NsError> {
    let (mut is_there, mut is_same) = (false, false);
    let (mut names_bytes, mut total_bytes) = (args.name.len() + 1, args.name.len() + 1 + args.value.len());
    if txn.inode(id)?.has_xattrs {
        for_each(txn, id, &mut |name, value| {
            if name == args.name {
                (is_there, is_same) = (true, *value == *args.value);
            } else {
                names_bytes += name.len() + 1;
                total_bytes += name.len() + 1 + value.len();
            }
            ControlFlow::Continue(())
        })?;
    }
    match args.mode {
        SetxattrMode::Create if is_there => return Err(Errno::EEXIST.into()),
        SetxattrMode::Replace if !is_there => return Err(Errno::ENODATA.into()),
        // As on ext4, setting what is there already changes nothing, not even ctime.
        _ if is_same => return Ok(()),
        _ => {}
    }
    if names_bytes > XATTR_NAMES_BYTES_MAX || total_bytes > XATTR_TOTAL_BYTES_MAX {
        return Err(Errno::ENOSPC.into());
    }
    txn.put(key::xattr(id, args.name), Bytes::copy_from_slice(args.value));
    txn.touch(id);
    let inode = txn.inode_mut(id)?;
    (inode.has_xattrs, inode.ctime) = (true, context.now);
    Ok(())
}

/// Sets or removes the access ACL and the permission bits it stands for (`posix_acl_update_mode`).
pub(super) fn set_acl_access(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    acl: Option<&Acl>,
    kill_setgid: bool,
) -> Result<(), NsError> {
    let inode = txn.inode(id)?;
    let mut mode = inode.mode;
    let mut stored = None;
    if let Some(acl) = acl {
        let (permissions, is_exact) = acl.equivalent_mode();
        mode = mode & !(MODE_PERMISSION_MASK & 0o777) | permissions;
        stored = (!is_exact).then(|| acl.encode());
        if mode & MODE_SETGID != 0 && (kill_setgid || !privilege::may_keep_setgid(context, inode.gid)?) {
            mode &= !MODE_SETGID;
        }
    }
    // As on ext4, what changes neither list nor mode does not change ctime either.
    if (inode.mode, &inode.acl_access) != (mode, &stored) {
        let before = inode.clone();
        let inode = txn.inode_mut(id)?;
        (inode.mode, inode.acl_access, inode.ctime) = (mode, stored, context.now);
        slice::mirror(txn, id, &before, false)?;
    }
    Ok(())
}

/// Sets or removes the default ACL of a directory.
pub(super) fn set_acl_default(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    acl: Option<&Acl>,
) -> Result<(), NsError> {
    if !txn.inode(id)?.is_directory() {
        return if acl.is_some() { Err(Errno::EACCES.into()) } else { Ok(()) };
    }
    let stored = acl.map(Acl::encode);
    if txn.inode(id)?.acl_default != stored {
        let before = txn.inode(id)?.clone();
        let inode = txn.inode_mut(id)?;
        (inode.acl_default, inode.ctime) = (stored, context.now);
        slice::mirror(txn, id, &before, false)?;
    }
    Ok(())
}
