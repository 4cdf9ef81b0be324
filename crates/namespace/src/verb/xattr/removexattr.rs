//! `removexattr(2)`.

use super::{Space, delete, setxattr};
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::{Errno, InodeId};

/// Removes attribute `name` of `id`. Removing an ACL that is not there succeeds, as in Linux.
///
/// # Errors
/// `ENODATA` when there is none, `EPERM` or `EACCES` when the caller may not change it, `ERANGE`, `EINVAL` or `EOPNOTSUPP` for a name that
/// cannot be.
pub fn removexattr(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    id: InodeId,
    name: &[u8],
) -> Result<(), NsError> {
    let space = Space::of(name)?;
    space.check_change(context, txn.inode(id)?)?;
    match space {
        Space::AclAccess => setxattr::set_acl_access(txn, context, id, None, false),
        Space::AclDefault => setxattr::set_acl_default(txn, context, id, None),
        _ => {
            if !txn.inode(id)?.has_xattrs || txn.get(&key::xattr(id, name))?.is_none() {
                return Err(Errno::ENODATA.into());
            }
            delete(txn, id, name)?;
            txn.inode_mut(id)?.ctime = context.now;
            Ok(())
        }
    }
}
