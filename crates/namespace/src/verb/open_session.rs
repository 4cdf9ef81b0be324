//! `open_session`: a session that the service is to remember when it is started anew.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use crate::verb::hear_of_session::forget_hearsay;
use ashlar_types::SessionId;
use ashlar_types::node::SessionOwner;

/// Notes `session` of `owner`, as one whose holder is here: nothing else is known of it by hearsay ([`super::hear_of_session`]).
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn open_session(txn: &mut Txn<'_>, session: SessionId, owner: SessionOwner) -> Result<(), NsError> {
    txn.put_record(key::session(session), &owner);
    forget_hearsay(txn, session)
}
