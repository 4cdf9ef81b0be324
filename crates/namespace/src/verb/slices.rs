//! `slices`: how a directory is split.

use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::InodeId;
use ashlar_types::message::SplitDirectory;

/// Tells which slices the directory `id` has. It needs no permission: slices are good for nothing to who may not use the directory.
///
/// # Errors
/// `ENOTDIR`, `ESTALE`.
pub fn slices(txn: &mut Txn<'_>, context: &OpContext<'_>, id: InodeId) -> Result<SplitDirectory, NsError> {
    let directory = txn.inode(id)?;
    directory.as_directory()?;
    directory.require_whole()?;
    let (slices, of_new) = (directory.slices().to_vec(), directory.slices_of_new());
    let border = directory.border().0;
    Ok(SplitDirectory { slices, of_new, border, hash_key: *context.hash_key })
}
