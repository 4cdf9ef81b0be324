//! `rmdir(2)`.

use super::permission::{self, Victim};
use super::{entry, forget_inode, slice};
use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, InodeId, Name};

/// What [`rmdir`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RmdirReply {
    /// The directory that was removed.
    pub inode: InodeId,
    /// Its attributes before the call.
    pub before: Attr,
}

/// Removes the empty directory `name` from `parent`. A session that has it open keeps an empty directory without links.
///
/// # Errors
/// `ENOENT`; `ENOTDIR` when `parent` or what the name stands for is no directory; `EACCES`; `EPERM` by the sticky bit of `parent`; `EBUSY` for
/// the root; `ENOTEMPTY`.
pub fn rmdir(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
) -> Result<RmdirReply, NsError> {
    let (directory, place, inode) = entry::find(txn, context, parent, name)?;
    let victim = txn.inode(inode)?;
    permission::may_delete(context, &directory, victim, Victim::Directory)?;
    if inode == InodeId::ROOT {
        return Err(Errno::EBUSY.into());
    }
    slice::require_empty(txn, inode)?;
    let before = slice::whole_attr(txn, inode)?;
    txn.reveal(inode);

    place.remove(txn);
    entry::count(txn.inode_mut(parent)?, context.now, -1, -1)?;
    slice::forget_slices(txn, inode)?;
    forget_inode::drop_link(txn, context, inode)?;
    txn.mark_frees_space();
    Ok(RmdirReply { inode, before })
}
