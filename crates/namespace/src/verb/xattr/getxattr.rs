//! `getxattr(2)`.

use super::Space;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::{Errno, InodeId};
use bytes::Bytes;

/// The value of attribute `name` of `id`. Telling its size alone, or that a buffer is too small, is the client's.
///
/// # Errors
/// `ENODATA` when there is none (or it is not for the caller's eyes), `EACCES` for `user.*` without read permission, `ERANGE`, `EINVAL` or
/// `EOPNOTSUPP` for a name that cannot be.
pub fn getxattr(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    name: &[u8],
) -> Result<Bytes, NsError> {
    let space = Space::of(name)?;
    let inode = txn.inode(id)?;
    space.check_read(context, inode)?;
    let value = match space {
        Space::AclAccess => inode.acl_access.clone(),
        Space::AclDefault => inode.acl_default.clone(),
        _ if !inode.has_xattrs => None,
        _ => txn.get(&key::xattr(id, name))?,
    };
    value.ok_or(NsError::Errno(Errno::ENODATA))
}
