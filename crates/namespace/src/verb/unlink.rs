//! `unlink(2)`.

use super::permission::{self, Victim};
use super::{entry, forget_inode};
use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Attr, InodeId, Name};

/// What [`unlink`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnlinkReply {
    /// What the name stood for.
    pub inode: InodeId,
    /// Its attributes before the call.
    pub before: Attr,
    /// Its remaining links.
    pub nlink: u32,
}

/// Removes the entry `name`, not of a directory, from `parent`. The inode goes with its last name, or once nobody has it open any more.
///
/// # Errors
/// `ENOENT`, `ENOTDIR`; `EACCES`; `EPERM` by the sticky bit of `parent`; `EISDIR` for a directory.
pub fn unlink(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
) -> Result<UnlinkReply, NsError> {
    let (directory, place, inode) = entry::find(txn, context, parent, name)?;
    let victim = txn.inode(inode)?;
    permission::may_delete(context, &directory, victim, Victim::NoDirectory)?;
    let before = victim.attr(inode);
    txn.reveal(inode);

    place.remove(txn);
    entry::count(txn.inode_mut(parent)?, context.now, -1, 0)?;
    let nlink = forget_inode::drop_link(txn, context, inode)?;
    txn.mark_frees_space();
    Ok(UnlinkReply { inode, before, nlink })
}
