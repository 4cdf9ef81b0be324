//! The metadata service for clients that must not change anything, whatever their mounts say: a remount may make a mount writable again.

use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, NodeId, SessionId};
use std::sync::Arc;

/// Answers `EROFS` to what would change something.
pub struct ReadOnlyMeta(pub Arc<dyn MetaCalls>);

impl MetaCalls for ReadOnlyMeta {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.0.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if is_change(&request) { Err(Errno::EROFS) } else { self.0.call(caller, request) }
    }

    fn start_of(&self, session: SessionId, server: NodeId) -> u64 {
        self.0.start_of(session, server)
    }
}

/// Whether a client that must not change anything has no business asking for it.
fn is_change(request: &MetaRequest<'_>) -> bool {
    match request {
        // What only somebody who changes something needs.
        MetaRequest::WithdrawLayout { .. } | MetaRequest::MakeRoom => true,
        // Without WRITE there is only a time of access in it. And of an inode that is gone nothing is stored.
        MetaRequest::CommitWrite { .. } | MetaRequest::SetattrRemoved { .. } => false,
        other => other.is_change(),
    }
}
