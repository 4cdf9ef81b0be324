//! `symlink(2)`.

use super::new_inode::{self, AskedMode};
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::Kind;
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, FileType, InodeId, Name, PATH_BYTES_MAX};
use bytes::Bytes;

/// What [`symlink`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymlinkReply {
    /// Attributes of the new link.
    pub attr: Attr,
}

/// Makes the symbolic link `name` in `parent`, pointing to `target`.
///
/// # Errors
/// `ENOENT` for an empty target, `ENAMETOOLONG` for one above [`PATH_BYTES_MAX`] bytes, `EINVAL` for one with a NUL; `EEXIST`, `ENOTDIR`, `EACCES`;
/// `ENOENT` in a removed directory; `ENOSPC`.
pub fn symlink(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
    target: &[u8],
) -> Result<SymlinkReply, NsError> {
    match target {
        [] => return Err(Errno::ENOENT.into()),
        _ if target.len() > PATH_BYTES_MAX => return Err(Errno::ENAMETOOLONG.into()),
        _ if target.contains(&0) => return Err(Errno::EINVAL.into()),
        _ => {}
    }
    let (directory, place) = new_inode::find_free_place(txn, context, parent, name)?;
    let (_, policy) = directory.as_directory()?;
    let asked = AskedMode { file_type: FileType::Symlink, mode: 0o777, umask: 0 };
    let mut inode = new_inode::plan(context, &directory, asked, Kind::new_symlink(&policy))?;
    inode.size = target.len() as u64;
    let id = txn.allocate_inode_id(parent.home())?;
    let attr = new_inode::apply(txn, context, place, id, inode)?;
    txn.put(key::link_target(id), Bytes::copy_from_slice(target));
    Ok(SymlinkReply { attr })
}
