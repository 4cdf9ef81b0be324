//! `readlink(2)`.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_kv::KvError;
use ashlar_types::{Errno, InodeId};
use bytes::Bytes;

/// What [`readlink`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadlinkReply {
    /// The target, 1 to `PATH_BYTES_MAX` bytes.
    pub target: Bytes,
}

/// The target of the symbolic link `inode`.
///
/// # Errors
/// `EINVAL` when it is none, `ESTALE` when there is no such inode.
pub fn readlink(txn: &mut Txn<'_>, inode: InodeId) -> Result<ReadlinkReply, NsError> {
    if !txn.inode(inode)?.kind.is_symlink() {
        return Err(Errno::EINVAL.into());
    }
    let missing = || KvError::Corrupt { what: format!("symbolic link {inode} has no target") };
    let target = txn.get(&key::link_target(inode))?.ok_or_else(missing)?;
    Ok(ReadlinkReply { target })
}
