//! `release`: a session has closed its last handle on an inode.

use super::forget_inode::forget_inode;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::{InodeId, SessionId};
use std::ops::ControlFlow;

/// Ends what `session` held of `id`: if it was the last that held an unlinked inode, that is forgotten. The writer record
/// is not touched: it goes with [`super::commit_write`], which says what was written. An inode that is gone is no error.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn release(
    txn: &mut Txn<'_>,
    _context: &OpContext<'_>,
    id: InodeId,
    session: SessionId,
) -> Result<(), NsError> {
    let orphan_key = key::orphan(id, session);
    if txn.get(&orphan_key)?.is_none() {
        return Ok(());
    }
    txn.delete(orphan_key);
    txn.mark_frees_space();
    let is_unlinked = txn.find_inode(id)?.is_some_and(|inode| inode.nlink == 0);
    if is_unlinked && !is_held(txn, id)? {
        forget_inode(txn, id)?;
    }
    Ok(())
}

/// Whether any session still holds the unlinked inode.
fn is_held(txn: &Txn<'_>, id: InodeId) -> Result<bool, NsError> {
    let prefix = key::orphan_prefix(id);
    let mut is_found = false;
    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |_, _| {
        is_found = true;
        ControlFlow::Break(())
    })?;
    Ok(is_found)
}
