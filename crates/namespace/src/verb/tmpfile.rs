//! `open(2)` with `O_TMPFILE`: a file without a name.

use super::forget_inode::ORPHAN_LINKABLE;
use super::new_inode::{self, AskedMode};
use super::permission;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, FileType, InodeId};
use bytes::Bytes;

/// What [`tmpfile`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfileReply {
    /// Attributes of the new file; it has no link.
    pub attr: Attr,
}

/// Makes a regular file without a name, in the shard of directory `parent` and with its settings, held by the calling session: it is gone
/// when the session releases it, unless [`super::link()`] has given it a name. (`O_EXCL`, which forbids that, is kept by the
/// kernel that has the file open: no other client can know the inode.)
///
/// # Errors
/// `ENOTDIR`; `EACCES` without write and search permission on `parent`; `EPERM` in a removed directory; `ENOSPC`.
pub fn tmpfile(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    mode: u32,
    umask: u32,
) -> Result<TmpfileReply, NsError> {
    let directory = txn.inode(parent)?.clone();
    let (_, policy) = directory.as_directory()?;
    directory.require_whole()?;
    permission::check(context, &directory, permission::WRITE | permission::EXECUTE)?;
    if directory.nlink == 0 {
        // POSIX does not know the case; this is ext4's answer.
        return Err(Errno::EPERM.into());
    }
    let kind = Kind::Regular(FileData::Inline { policy: policy.of_file(), generation: 0 });
    let asked = AskedMode { file_type: FileType::Regular, mode, umask };
    let mut inode = new_inode::plan(context, &directory, asked, kind)?;
    inode.nlink = 0;
    let id = txn.allocate_inode_id(parent.home())?;
    let attr = inode.attr(id);
    txn.insert_inode(id, inode)?;
    txn.put(key::orphan(id, context.session), Bytes::from_static(ORPHAN_LINKABLE));
    txn.reveal(id);
    Ok(TmpfileReply { attr })
}
