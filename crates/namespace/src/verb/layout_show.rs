//! `layout_show`: the layout settings of a directory or file, and where the file's chunks are.

use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::{Errno, FileLayout, InodeId, LayoutPolicy};

/// What `layout_show` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutReply {
    /// Settings for new files in the directory, or for the file when it next outgrows its inode; every field is set.
    pub policy: LayoutPolicy,
    /// Where the file's chunks are, if it has any.
    pub layout: Option<FileLayout>,
}

/// Tells the layout of `id`. Like `stat(2)` it needs no permission on the inode itself.
///
/// # Errors
/// `EINVAL` for what is neither directory nor regular file.
pub fn layout_show(txn: &mut Txn<'_>, _context: &OpContext<'_>, id: InodeId) -> Result<LayoutReply, NsError> {
    let (policy, layout) = match &txn.inode(id)?.kind {
        Kind::Directory { policy, .. }
        | Kind::WideDirectory { policy, .. }
        | Kind::Slice { policy, .. }
        | Kind::DirectoryInSplit { policy, .. }
        | Kind::SliceInSplit { policy, .. }
        | Kind::Regular(FileData::Inline { policy, .. }) => (*policy, None),
        Kind::Regular(FileData::Chunks { layout, policy }) => (*policy, Some(layout.clone())),
        Kind::Symlink | Kind::Special | Kind::SyncSymlink | Kind::SyncSpecial => {
            return Err(Errno::EINVAL.into());
        }
    };
    Ok(LayoutReply { policy: policy.or(LayoutPolicy::root_default()), layout })
}
