//! `withdraw_layout`: a proposed layout will not be bound any more; its chunks become garbage.

use super::resize::withdraw_proposal;
use crate::context::OpContext;
use crate::error::NsError;
use crate::txn::Txn;
use ashlar_types::InodeId;

/// Makes the pending proposal of `id` void, if there is one: its writer's session has died, or gave up. Returns whether there
/// was one; its garbage record can be collected from now on.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn withdraw_layout(txn: &mut Txn<'_>, _context: &OpContext<'_>, id: InodeId) -> Result<bool, NsError> {
    txn.mark_frees_space();
    match txn.find_inode(id)? {
        Some(inode) if inode.as_regular().is_ok() => withdraw_proposal(txn, id),
        _ => Ok(false),
    }
}
