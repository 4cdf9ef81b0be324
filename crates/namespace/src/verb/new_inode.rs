//! What every verb that makes an inode shares: owner, mode and ACLs as the directory and the caller determine them.

use super::entry::{self, Place};
use super::{permission, slice};
use crate::acl;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{Inode, Kind};
use crate::txn::Txn;
use ashlar_types::attr::{MODE_PERMISSION_MASK, MODE_SETGID, MODE_STICKY};
use ashlar_types::{Attr, Errno, FileType, InodeId, Name};

/// The mode a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AskedMode {
    pub(crate) file_type: FileType,
    /// Permission, set-id and sticky bits; others are ignored.
    pub(crate) mode: u32,
    /// The caller's umask, which a default ACL of the directory overrules.
    pub(crate) umask: u32,
}

/// Plans a new inode for the caller in `directory`: `inode_init_owner`, `mode_strip_sgid` and `posix_acl_create` of Linux.
pub(crate) fn plan(
    context: &OpContext<'_>,
    directory: &Inode,
    asked: AskedMode,
    kind: Kind,
) -> Result<Inode, NsError> {
    let mode = match asked.file_type {
        FileType::Directory => asked.mode & (0o777 | MODE_STICKY),
        FileType::Symlink => 0o777,
        _ => permission::strip_setgid(context, directory, asked.mode & MODE_PERMISSION_MASK)?,
    };
    let gives_group = directory.mode & MODE_SETGID != 0;
    let gid = if gives_group { directory.gid } else { context.creds.gid };
    let (uid, fileset) = (context.creds.uid, directory.fileset);
    let type_bits = asked.file_type.mode_bits();
    let mut inode = Inode::new(type_bits | mode, uid, gid, fileset, context.now, kind);
    match &directory.acl_default {
        _ if asked.file_type == FileType::Symlink => {}
        None => inode.mode &= !(asked.umask & 0o777),
        Some(default_acl) => {
            let inherited = acl::inherit(default_acl, inode.mode)?;
            (inode.mode, inode.acl_access) = (inherited.mode, inherited.access);
            if inode.is_directory() {
                inode.acl_default = Some(default_acl.clone());
            }
        }
    }
    if inode.is_directory() {
        inode.nlink = 2;
        if gives_group {
            inode.mode |= MODE_SETGID;
        }
    }
    Ok(inode)
}

/// Decides whether the caller may make `name` in `parent`: gives a copy of the parent and the free place, or the place with the
/// entry that is there already (for which write permission has not been asked).
///
/// # Errors
/// `ENOTDIR`, `EACCES`, `EREMOTE` when the parent is split, and for a free name `ENOENT` when it has been removed.
pub(crate) fn find_place<'n>(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'n>,
) -> Result<(Inode, Place<'n>), NsError> {
    let directory = txn.inode(parent)?.clone();
    directory.as_directory()?;
    permission::check(context, &directory, permission::EXECUTE)?;
    slice::require_here(context, &directory, name)?;
    let place = entry::locate(txn, context, parent, name)?;
    if place.entry().is_none() {
        permission::may_create(context, &directory)?;
    }
    Ok((directory, place))
}

/// As [`find_place`], for verbs that only make something new.
///
/// # Errors
/// As [`find_place`]; `EEXIST`.
pub(crate) fn find_free_place<'n>(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'n>,
) -> Result<(Inode, Place<'n>), NsError> {
    let (directory, place) = find_place(txn, context, parent, name)?;
    if place.entry().is_some() { Err(Errno::EEXIST.into()) } else { Ok((directory, place)) }
}

/// Adds a planned inode under the free `place`, and tells its attributes.
///
/// # Errors
/// `ENOSPC` and `EMLINK` when ids, cookies or the parent's links are used up.
pub(crate) fn apply(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    place: Place<'_>,
    id: InodeId,
    inode: Inode,
) -> Result<Attr, NsError> {
    let (attr, file_type) = (inode.attr(id), inode.file_type());
    let subdirectories = i32::from(inode.is_directory());
    entry::count(txn.inode_mut(place.directory())?, context.now, 1, subdirectories)?;
    place.set(txn, (id, file_type))?;
    txn.insert_inode(id, inode)?;
    txn.reveal(id);
    Ok(attr)
}
