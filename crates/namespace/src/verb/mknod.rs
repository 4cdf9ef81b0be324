//! `mknod(2)` and `mkfifo(3)`.

use super::new_inode::{self, AskedMode};
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::attr::MODE_TYPE_MASK;
use ashlar_types::{Attr, Capabilities, Errno, FileType, InodeId, Name};

/// Device number of a whiteout of overlayfs, which anybody may make.
pub(super) const WHITEOUT_RDEV: u32 = 0;

/// Arguments of [`mknod`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MknodArgs {
    /// Type, permission, set-id and sticky bits; no type bits mean a regular file.
    pub mode: u32,
    /// The caller's umask; without effect where the directory has a default ACL.
    pub umask: u32,
    /// Device number (Linux `makedev` encoding); ignored for what is no device.
    pub rdev: u32,
}

/// What [`mknod`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MknodReply {
    /// Attributes of the new node.
    pub attr: Attr,
}

/// Makes the node `name` in `parent`: pipe, socket, device or empty regular file.
///
/// # Errors
/// `EPERM` for a directory, `EINVAL` for a symbolic link or an unknown type; `EEXIST`, `ENOTDIR`, `EACCES`; `ENOENT` in a removed directory;
/// `EPERM` for a device without `CAP_MKNOD`, save the character device 0:0; `ENOSPC`.
pub fn mknod(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    parent: InodeId,
    name: Name<'_>,
    args: MknodArgs,
) -> Result<MknodReply, NsError> {
    let file_type = match FileType::from_mode(args.mode & MODE_TYPE_MASK) {
        Some(FileType::Directory) => return Err(Errno::EPERM.into()),
        Some(FileType::Symlink) | None => return Err(Errno::EINVAL.into()),
        Some(file_type) => file_type,
    };
    let (directory, place) = new_inode::find_free_place(txn, context, parent, name)?;
    let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    let is_whiteout = file_type == FileType::CharDevice && args.rdev == WHITEOUT_RDEV;
    if is_device && !is_whiteout && !context.creds.caps.has(Capabilities::MKNOD) {
        return Err(Errno::EPERM.into());
    }
    let (_, policy) = directory.as_directory()?;
    let kind = match file_type {
        FileType::Regular => Kind::Regular(FileData::Inline { policy: policy.of_file(), generation: 0 }),
        _ => Kind::new_special(&policy),
    };
    let asked = AskedMode { file_type, mode: args.mode, umask: args.umask };
    let mut inode = new_inode::plan(context, &directory, asked, kind)?;
    inode.rdev = if is_device { args.rdev } else { 0 };
    let id = txn.allocate_inode_id(parent.home())?;
    let attr = new_inode::apply(txn, context, place, id, inode)?;
    Ok(MknodReply { attr })
}
