//! `lookup`: one step of path resolution.

use super::{entry, permission, slice};
use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, InodeId, Name};

/// What `lookup` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupReply {
    /// What the name stands for.
    pub inode: InodeId,
    /// Its attributes, unless another server has it.
    pub attr: Option<Attr>,
}

/// Finds `name` in directory `parent`.
///
/// # Errors
/// `ENOENT` when there is no such entry, `ENOTDIR` when `parent` is no directory, `EACCES` when the caller may not search it, `EREMOTE`
/// when it is split.
pub fn lookup(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
) -> Result<LookupReply, NsError> {
    let directory = txn.inode(parent)?;
    directory.as_directory()?;
    permission::check(context, directory, permission::EXECUTE)?;
    slice::require_here(context, directory, name)?;
    let place = entry::locate(txn, context, parent, name)?;
    let inode = place.entry().ok_or(Errno::ENOENT)?.inode;
    if txn.is_elsewhere(inode) {
        return Ok(LookupReply { inode, attr: None });
    }
    let attr = txn.inode(inode)?.attr(inode);
    txn.reveal(inode);
    Ok(LookupReply { inode, attr: Some(attr) })
}
