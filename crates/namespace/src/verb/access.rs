//! `access(2)`.

use super::permission;
use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::{Errno, InodeId};

/// Checks that the caller (by the ids in the context: real ones for `access`, effective ones for `eaccess`) has the permissions of
/// `mask` (4 read, 2 write, 1 execute; 0 asks only for existence).
///
/// # Errors
/// `EINVAL` for other bits, `EACCES`, `ESTALE`.
pub fn access(txn: &mut Txn<'_>, context: &OpContext<'_>, inode: InodeId, mask: u32) -> Result<(), NsError> {
    if mask & !(permission::READ | permission::WRITE | permission::EXECUTE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    permission::check(context, txn.inode(inode)?, mask)
}
