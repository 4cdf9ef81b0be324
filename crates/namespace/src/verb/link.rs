//! `link(2)`: one more name for an inode.

use super::forget_inode::ORPHAN_LINKABLE;
use super::{entry, new_inode};
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::NLINK_MAX;
use crate::txn::Txn;
use ashlar_kv::Key;
use ashlar_types::{Attr, Errno, InodeId, Name};
use std::ops::ControlFlow;

/// What [`link`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReply {
    /// Attributes of the inode, with its new number of links.
    pub attr: Attr,
}

/// Adds the entry `name` in `parent` for `inode`. An inode without any link can get its first one only if
/// [`super::tmpfile()`] made it; it then no longer depends on the session that holds it open.
///
/// # Errors
/// `EEXIST`, `ENOTDIR`, `EACCES`; `ENOENT` in a removed directory, and for an inode whose last link is gone; `EXDEV` across
/// filesets; `EPERM` for a directory; `EMLINK` at [`NLINK_MAX`] links; `ENOSPC`.
pub fn link(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    inode: InodeId,
    parent: InodeId,
    name: Name<'_>,
) -> Result<LinkReply, NsError> {
    let (directory, place) = new_inode::find_free_place(txn, context, parent, name)?;
    let record = txn.inode(inode)?;
    if record.fileset != directory.fileset {
        return Err(Errno::EXDEV.into());
    }
    if record.is_directory() {
        return Err(Errno::EPERM.into());
    }
    if record.nlink >= NLINK_MAX {
        return Err(Errno::EMLINK.into());
    }
    let orphan_keys = if record.nlink == 0 { linkable_orphan(txn, inode)? } else { Vec::new() };

    for orphan_key in orphan_keys {
        txn.delete(orphan_key);
    }
    let record = txn.inode_mut(inode)?;
    record.nlink += 1;
    record.ctime = context.now;
    let (attr, file_type) = (record.attr(inode), record.file_type());
    entry::count(txn.inode_mut(parent)?, context.now, 1, 0)?;
    place.set(txn, (inode, file_type))?;
    txn.reveal(inode);
    Ok(LinkReply { attr })
}

/// The orphan records of an inode without links, one of which must say that it may get a name.
fn linkable_orphan(txn: &Txn<'_>, inode: InodeId) -> Result<Vec<Key>, NsError> {
    let prefix = key::orphan_prefix(inode);
    let mut keys = Vec::new();
    let mut is_linkable = false;
    // LIMIT: one record per session that has the file open; the service bounds its sessions.
    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |key, value| {
        is_linkable |= value == ORPHAN_LINKABLE;
        keys.push(Key::from_slice(key));
        ControlFlow::Continue(())
    })?;
    if is_linkable { Ok(keys) } else { Err(Errno::ENOENT.into()) }
}
