//! `hear_of_session`: a session that has come along with a shard from another server.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::SessionId;
use ashlar_types::node::SessionOwner;
use bytes::Bytes;

/// Notes `session` of `owner`, and that its holder has not been here: should the shard not come, it may never hear that this server knows of it.
///
/// # Errors
/// As [`super::open_session`].
pub fn hear_of_session(txn: &mut Txn<'_>, session: SessionId, owner: SessionOwner) -> Result<(), NsError> {
    super::open_session(txn, session, owner)?;
    txn.put(key::unmet(session), Bytes::new());
    Ok(())
}
