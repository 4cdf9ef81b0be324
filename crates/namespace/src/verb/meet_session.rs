//! `meet_session`: the holder of a session that has come along with a shard is here, or the session has something here.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::SessionId;

/// From now on `session` is as one that was opened here. Once more is the same.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn meet_session(txn: &mut Txn<'_>, session: SessionId) -> Result<(), NsError> {
    if txn.get(&key::unmet(session))?.is_some() {
        txn.delete(key::unmet(session));
    }
    Ok(())
}
