//! `create`: the making half of `open(2)` with `O_CREAT`.

use super::new_inode::{self, AskedMode};
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::{Attr, Errno, FileType, InodeId, Name};

/// Arguments of [`create`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateArgs {
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// The caller's umask; without effect where the directory has a default ACL.
    pub umask: u32,
    /// Whether an existing entry is an error (`O_EXCL`).
    pub exclusive: bool,
}

/// What [`create`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateReply {
    /// The file, new or old.
    pub inode: InodeId,
    /// Its attributes, unless another server has it.
    pub attr: Option<Attr>,
    /// Whether it is new.
    pub created: bool,
}

/// Makes the regular file `name` in `parent`, or finds what has this name already: possibly no regular file, and without asking
/// whether the caller may open it, which is for `open` to do.
///
/// # Errors
/// `EEXIST` for an existing entry if `exclusive`, else `EISDIR` for an existing directory; `ENOTDIR`, `EACCES`; `ENOENT` in a removed
/// directory; `ENOSPC`.
pub fn create(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
    args: CreateArgs,
) -> Result<CreateReply, NsError> {
    let (directory, place) = new_inode::find_place(txn, context, parent, name)?;
    if let Some(existing) = place.entry() {
        if args.exclusive {
            return Err(Errno::EEXIST.into());
        }
        if existing.file_type == FileType::Directory {
            return Err(Errno::EISDIR.into());
        }
        let id = existing.inode;
        if txn.is_elsewhere(id) {
            return Ok(CreateReply { inode: id, attr: None, created: false });
        }
        let attr = txn.inode(id)?.attr(id);
        txn.reveal(id);
        return Ok(CreateReply { inode: id, attr: Some(attr), created: false });
    }
    let (_, policy) = directory.as_directory()?;
    let kind = Kind::Regular(FileData::Inline { policy: policy.of_file(), generation: 0 });
    let asked = AskedMode { file_type: FileType::Regular, mode: args.mode, umask: args.umask };
    let inode = new_inode::plan(context, &directory, asked, kind)?;
    let id = txn.allocate_inode_id(parent.home())?;
    let attr = new_inode::apply(txn, context, place, id, inode)?;
    Ok(CreateReply { inode: id, attr: Some(attr), created: true })
}
