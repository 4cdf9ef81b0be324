//! `setattr` of an inode that is gone, but that the kernel of the client that removed it still has: the attributes are all there is of it,
//! and the client has them.

use super::setattr::{apply_to, check_times, plan};
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{FileData, Inode, Kind};
use ashlar_types::message::SetAttr;
use ashlar_types::{Attr, Errno, FileType, LayoutPolicy};

/// What [`super::setattr`] would make of `last`. Nothing is read or stored, so whoever makes `last` up deceives only himself.
///
/// # Errors
/// As [`super::setattr`]; `ESTALE` for a change of length, because the content is gone.
pub fn setattr_removed(context: &OpContext<'_>, last: &Attr, changes: &SetAttr) -> Result<Attr, NsError> {
    if changes.size.is_some() {
        return Err(Errno::ESTALE.into());
    }
    let mut inode = inode_of(last);
    check_times(context, &inode, changes)?;
    let plan = plan(context, &inode, changes)?;
    let is_empty = *changes == SetAttr { has_handle: changes.has_handle, ..SetAttr::default() };
    if !is_empty {
        apply_to(&mut inode, context, changes, &plan)?;
    }
    Ok(inode.attr(last.inode))
}

/// An inode with these attributes. What else it had nobody knows any more: access control lists count as part of the mode.
fn inode_of(last: &Attr) -> Inode {
    let policy = LayoutPolicy::default();
    let kind = match last.file_type() {
        FileType::Directory => Kind::Directory { parent: last.inode, policy },
        FileType::Regular => Kind::Regular(FileData::Inline { policy, generation: 0 }),
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo | FileType::CharDevice | FileType::BlockDevice | FileType::Socket => Kind::Special,
    };
    Inode {
        mode: last.mode,
        nlink: last.nlink,
        uid: last.uid,
        gid: last.gid,
        rdev: last.rdev,
        size: last.size,
        blocks: last.blocks,
        atime: last.atime,
        mtime: last.mtime,
        ctime: last.ctime,
        btime: last.btime,
        fileset: last.fileset,
        kind,
        acl_access: None,
        acl_default: None,
        has_xattrs: false,
    }
}
