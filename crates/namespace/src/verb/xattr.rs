//! Extended attributes (`xattr(7)`): the rules of their namespaces, and the verbs, one per file.
//!
//! | names | read | changed by |
//! |---|---|---|
//! | `user.*` | with read permission; only regular files and directories have them | with write permission; in a sticky directory only its owner |
//! | `trusted.*` | with `CAP_SYS_ADMIN`; to others they do not exist | with `CAP_SYS_ADMIN` |
//! | `security.capability` | always | with `CAP_SYS_ADMIN` or `CAP_FOWNER` (the kernel has asked for `CAP_SETFCAP`, which credentials here do not tell; no ordinary user has either) |
//! | other `security.*` | always | with `CAP_SYS_ADMIN` |
//! | `system.posix_acl_*` | always | the owner; these are in the inode record |

mod getxattr;
mod listxattr;
mod removexattr;
mod setxattr;

pub use getxattr::getxattr;
pub use listxattr::listxattr;
pub use removexattr::removexattr;
pub use setxattr::{SetxattrArgs, SetxattrMode, setxattr};

use super::permission;
use crate::acl;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{Inode, Kind};
use crate::txn::Txn;
use ashlar_types::attr::MODE_STICKY;
use ashlar_types::{Capabilities, Errno, InodeId};
use std::ops::ControlFlow;

/// Longest name, bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value, bytes (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of names (each with its NUL) of one inode (`XATTR_LIST_MAX`): a longer list could not be told.
pub const XATTR_NAMES_BYTES_MAX: usize = 64 << 10;
/// Most bytes of names and values of one inode together.
// LIMIT: every set reads the inode's attributes to count them; four of the largest fit.
pub const XATTR_TOTAL_BYTES_MAX: usize = 256 << 10;

/// The attribute that holds the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";

/// What a name says about who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Capability,
    Security,
    AclAccess,
    AclDefault,
}

impl Space {
    /// The space of `name`.
    ///
    /// # Errors
    /// `ERANGE` for a name that is empty or too long, `EINVAL` for one that is only a prefix or has a NUL, `EOPNOTSUPP` for an unknown prefix.
    fn of(name: &[u8]) -> Result<Space, Errno> {
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::ERANGE);
        }
        if name.contains(&0) {
            return Err(Errno::EINVAL);
        }
        match name {
            CAPABILITY => return Ok(Space::Capability),
            acl::XATTR_ACCESS => return Ok(Space::AclAccess),
            acl::XATTR_DEFAULT => return Ok(Space::AclDefault),
            _ => {}
        }
        let prefixes: [(&[u8], Space); 3] =
            [(b"user.", Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
        for (prefix, space) in prefixes {
            match name.strip_prefix(prefix) {
                Some(b"") => return Err(Errno::EINVAL),
                Some(_) => return Ok(space),
                None => {}
            }
        }
        Err(Errno::EOPNOTSUPP)
    }

    /// Checks that the caller may read attributes of this space of `inode` (`xattr_permission`).
    fn check_read(self, context: &OpContext<'_>, inode: &Inode) -> Result<(), NsError> {
        match self {
            Space::User if !may_have_user(inode) => Err(Errno::ENODATA.into()),
            Space::User => permission::check(context, inode, permission::READ),
            Space::Trusted if !is_admin(context) => Err(Errno::ENODATA.into()),
            Space::AclAccess | Space::AclDefault if inode.kind.is_symlink() => Err(Errno::EOPNOTSUPP.into()),
            _ => Ok(()),
        }
    }

    /// Checks that the caller may change attributes of this space of `inode` (`xattr_permission`, `cap_inode_setxattr`).
    fn check_change(self, context: &OpContext<'_>, inode: &Inode) -> Result<(), NsError> {
        inode.require_whole()?;
        let is_allowed = match self {
            Space::User => {
                let is_sticky_directory = inode.is_directory() && inode.mode & MODE_STICKY != 0;
                if may_have_user(inode) && (!is_sticky_directory || permission::is_owner(context, inode)) {
                    return permission::check(context, inode, permission::WRITE);
                }
                false
            }
            Space::Trusted | Space::Security => is_admin(context),
            Space::Capability => is_admin(context) || context.creds.caps.has(Capabilities::FOWNER),
            Space::AclAccess | Space::AclDefault if inode.kind.is_symlink() => {
                return Err(Errno::EOPNOTSUPP.into());
            }
            Space::AclAccess | Space::AclDefault => permission::is_owner(context, inode),
        };
        if is_allowed { Ok(()) } else { Err(Errno::EPERM.into()) }
    }
}

fn may_have_user(inode: &Inode) -> bool {
    matches!(inode.kind, Kind::Regular(_)) || inode.is_directory()
}

fn is_admin(context: &OpContext<'_>) -> bool {
    context.creds.caps.has(Capabilities::SYS_ADMIN)
}

/// Visits the stored attributes of `id`: name and value.
fn for_each(txn: &Txn<'_>, id: InodeId, visit: &mut ashlar_kv::Visit<'_>) -> Result<(), NsError> {
    let prefix = key::xattr_prefix(id);
    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |xattr_key, value| {
        visit(xattr_key.get(prefix.len()..).unwrap_or_default(), value)
    })
}

/// Removes one stored attribute, which must be there, and notes when it was the last.
fn delete(txn: &mut Txn<'_>, id: InodeId, name: &[u8]) -> Result<(), NsError> {
    txn.delete(key::xattr(id, name));
    let mut is_last = true;
    for_each(txn, id, &mut |_, _| {
        is_last = false;
        ControlFlow::Break(())
    })?;
    txn.touch(id);
    if is_last {
        txn.inode_mut(id)?.has_xattrs = false;
    }
    Ok(())
}

/// Takes the capabilities off a program whose content or owner changes.
pub(super) fn drop_capability(txn: &mut Txn<'_>, id: InodeId) -> Result<(), NsError> {
    if txn.inode(id)?.has_xattrs && txn.get(&key::xattr(id, CAPABILITY))?.is_some() {
        delete(txn, id, CAPABILITY)?;
    }
    Ok(())
}
