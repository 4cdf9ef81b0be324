//! `getattr`: what `stat(2)` asks.

use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Attr, InodeId};

/// What [`getattr`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetattrReply {
    /// The attributes.
    pub attr: Attr,
}

/// The attributes of `inode`. No permission is needed on the inode itself; finding it took search permission on the way.
///
/// # Errors
/// `ESTALE` when there is no such inode.
pub fn getattr(txn: &mut Txn<'_>, inode: InodeId) -> Result<GetattrReply, NsError> {
    let attr = txn.inode(inode)?.attr(inode);
    txn.reveal(inode);
    Ok(GetattrReply { attr })
}
