//! `hear_of_session`: a session that has come along with a shard from another server.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::node::SessionOwner;
use ashlar_types::{SessionId, ShardId};
use bytes::Bytes;

/// Notes `session` of `owner`, and that its holder has not been here: should the shard not come, it may never hear that this server knows of it. `holds_in`: a shard in which it has something, all of which is
/// here; should that turn out to be this server's, the session is one as any other.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn hear_of_session(
    txn: &mut Txn<'_>,
    session: SessionId,
    owner: SessionOwner,
    holds_in: Option<ShardId>,
) -> Result<(), NsError> {
    txn.put_record(key::session(session), &owner);
    let mut shards = txn.get(&key::unmet(session))?.map_or_else(Vec::new, |known| known.to_vec());
    if let Some(shard) = holds_in
        && !is_holder(&shards, shard)
    {
        // LIMIT: two bytes per shard.
        shards.extend_from_slice(&shard.0.to_be_bytes());
    }
    txn.put(key::unmet(session), Bytes::from(shards));
    Ok(())
}

/// Nothing is known of `session` by hearsay any more. Most have no such record, and the log gets no deletion for them.
pub(super) fn forget_hearsay(txn: &mut Txn<'_>, session: SessionId) -> Result<(), NsError> {
    if txn.get(&key::unmet(session))?.is_some() {
        txn.delete(key::unmet(session));
    }
    Ok(())
}

/// Whether an unmet session, of which `noted` is in the log, has something in `shard`.
pub fn is_holder(noted: &[u8], shard: ShardId) -> bool {
    noted.chunks_exact(2).any(|known| known == shard.0.to_be_bytes())
}
