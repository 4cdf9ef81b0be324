//! `reap_session`: what a dead session left in a shard, a bounded part per call.

use super::release::release;
use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_kv::Key;
use ashlar_types::{InodeId, SessionId, ShardId};
use std::ops::ControlFlow;

/// Which part of which dead session's records to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReapArgs {
    /// The dead session.
    pub session: SessionId,
    /// The shard.
    pub shard: ShardId,
    /// Where to begin: `None`, or `next` of the reply before.
    pub from: Option<Key>,
    /// Most records (of any session) to look at in this call, 1 or more.
    pub records_max: u32,
}

/// What one call found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReapReply {
    /// Unlinked inodes that the session no longer holds.
    pub released: u32,
    /// Files whose chunks the session was writing: their length in the record may be old. The service asks the chains and then
    /// calls [`super::commit_write`] with `done` in the name of the session, which removes the record.
    pub unsettled: Vec<InodeId>,
    /// Where to continue; `None` when the shard is done.
    pub next: Option<Key>,
}

/// Releases orphans of a dead session and lists the files it was writing.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn reap_session(
    txn: &mut Txn<'_>,
    context: &OpContext<'_>,
    args: &ReapArgs,
) -> Result<ReapReply, NsError> {
    let mut reply = ReapReply::default();
    let mut budget = args.records_max.max(1);
    txn.mark_frees_space();
    for table in [b'O', b'W'] {
        let (mut from, to) = key::table_range(args.shard, table);
        if let Some(start) = &args.from {
            from = from.max(start.clone());
        }
        if from >= to {
            continue;
        }
        let (found, next) = of_session(txn, &from, &to, args.session, &mut budget)?;
        for id in found {
            if table == b'O' {
                release(txn, context, id, args.session)?;
                reply.released += 1;
            } else if txn.peek_inode(id)?.is_some() {
                reply.unsettled.push(id);
            } else {
                txn.delete(key::writer_of(id, args.session));
            }
        }
        if next.is_some() {
            reply.next = next;
            return Ok(reply);
        }
    }
    Ok(reply)
}

/// The session's inodes in a range of table `O` or `W`, and where the budget ran out.
fn of_session(
    txn: &Txn<'_>,
    from: &[u8],
    to: &[u8],
    session: SessionId,
    budget: &mut u32,
) -> Result<(Vec<InodeId>, Option<Key>), NsError> {
    let mut found = Vec::new();
    let mut next = None;
    txn.scan(from, to, &mut |record_key, _| {
        if *budget == 0 {
            next = Some(Key::from_slice(record_key));
            return ControlFlow::Break(());
        }
        *budget -= 1;
        if record_key.get(11..) == Some(&session.0.to_be_bytes())
            && let Some(id) = key::inode_of(record_key)
        {
            found.push(id);
        }
        ControlFlow::Continue(())
    })?;
    Ok((found, next))
}
