//! `open_session`: a session that the service is to remember when it is started anew.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::SessionId;
use ashlar_types::node::SessionOwner;

/// Notes `session` of `owner`.
///
/// # Errors
/// None today.
pub fn open_session(txn: &mut Txn<'_>, session: SessionId, owner: SessionOwner) -> Result<(), NsError> {
    txn.put_record(key::session(session), &owner);
    Ok(())
}
