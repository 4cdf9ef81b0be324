//! `withdraw_layout`: a proposed layout will not be bound any more; its chunks become garbage.

use super::resize::withdraw_proposal;
use crate::context::OpContext;
use crate::error::NsError;
use crate::record::{FileData, Kind};
use crate::txn::Txn;
use ashlar_types::InodeId;

/// Makes the pending proposal of `id` void, if there is one: its writer's session has died, or gave up. With `only` no other
/// generation than that one: another writer may have been given a newer proposal since. Returns whether there was one; its garbage
/// record can be collected from now on. A layout that has been bound is no proposal any more and stays.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn withdraw_layout(
    txn: &mut Txn<'_>,
    _context: &OpContext<'_>,
    id: InodeId,
    only: Option<u32>,
) -> Result<bool, NsError> {
    txn.mark_frees_space();
    match txn.find_inode(id)?.map(|inode| &inode.kind) {
        Some(Kind::Regular(FileData::Inline { generation, .. }))
            if only.is_none_or(|only| only == *generation) =>
        {
            withdraw_proposal(txn, id)
        }
        _ => Ok(false),
    }
}
