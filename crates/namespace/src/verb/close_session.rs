//! `close_session`: a session that was to be remembered has ended.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use crate::verb::hear_of_session::forget_hearsay;
use ashlar_kv::Key;
use ashlar_types::SessionId;
use std::ops::ControlFlow;

/// Forgets `session` and the answers kept for it; what it held is for [`super::reap_session`].
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn close_session(txn: &mut Txn<'_>, session: SessionId) -> Result<(), NsError> {
    // LIMIT: one per slot, of which a session has 2^16 at the most.
    let mut kept = Vec::new();
    let prefix = key::reply_prefix(session);
    txn.scan(&prefix, &key::after_prefix(&prefix), &mut |record_key, _| {
        kept.push(Key::from_slice(record_key));
        ControlFlow::Continue(())
    })?;
    kept.into_iter().for_each(|record_key| txn.delete(record_key));
    txn.delete(key::session(session));
    forget_hearsay(txn, session)?;
    txn.mark_frees_space();
    Ok(())
}
