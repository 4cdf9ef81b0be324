//! `mkdir(2)`.

use super::new_inode::{self, AskedMode};
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::Kind;
use crate::txn::Txn;
use ashlar_types::{Attr, FileType, InodeId, Name};

/// What [`mkdir`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkdirReply {
    /// Attributes of the new directory.
    pub attr: Attr,
}

/// Makes the directory `name` in `parent`, in the shard that placement gives, with the parent's layout settings. Of `mode` only the
/// permission and sticky bits count; `umask` is without effect where the parent has a default ACL.
///
/// # Errors
/// `EEXIST`, `ENOTDIR`, `EACCES`; `ENOENT` in a removed directory; `EMLINK`, `ENOSPC`.
pub fn mkdir(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
    mode: u32,
    umask: u32,
) -> Result<MkdirReply, NsError> {
    let (directory, place) = new_inode::find_free_place(txn, context, parent, name)?;
    let (_, policy) = directory.as_directory()?;
    let asked = AskedMode { file_type: FileType::Directory, mode, umask };
    let inode = new_inode::plan(context, &directory, asked, Kind::Directory { parent, policy })?;
    let id = txn.allocate_inode_id(context.placement.shard_for_directory(parent))?;
    let attr = new_inode::apply(txn, context, place, id, inode)?;
    Ok(MkdirReply { attr })
}
