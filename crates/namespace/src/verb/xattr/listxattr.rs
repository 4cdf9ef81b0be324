//! `listxattr(2)`.

use super::for_each;
use crate::acl;
use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::InodeId;
use bytes::Bytes;
use std::ops::ControlFlow;

/// The names of all attributes of `id` that the caller may know of, each with a NUL behind it: ACLs first, then by name.
///
/// # Errors
/// `ESTALE` when the inode is gone.
pub fn listxattr(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId) -> Result<Bytes, NsError> {
    let inode = txn.inode(id)?;
    let mut list = Vec::new();
    let acls = [(&inode.acl_access, acl::XATTR_ACCESS), (&inode.acl_default, acl::XATTR_DEFAULT)];
    for (_, name) in acls.iter().filter(|(acl, _)| acl.is_some()) {
        list.extend_from_slice(name);
        list.push(0);
    }
    if inode.has_xattrs {
        // LIMIT: setxattr keeps the names of an inode within XATTR_NAMES_BYTES_MAX.
        for_each(txn, id, &mut |name, _| {
            if !name.starts_with(b"trusted.") || super::is_admin(context) {
                list.extend_from_slice(name);
                list.push(0);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(list.into())
}
