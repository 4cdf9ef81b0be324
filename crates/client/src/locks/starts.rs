//! Which starts of metadata servers this client has heard of: what one said about a lock does not count once it was started anew. That of another one does; asked a second time it
//! would grant a lock that has been given back meanwhile, to nobody.

use crate::client::Client;
use ashlar_types::{InodeId, NodeId, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// How often each server was started anew, as far as this client was asked what it has.
#[derive(Debug, Default)]
pub(crate) struct LockStarts {
    // LIMIT: one entry per metadata server.
    heard: Mutex<BTreeMap<NodeId, u64>>,
}

impl LockStarts {
    pub(crate) fn note(&self, server: NodeId) {
        *self.heard.lock().entry(server).or_insert(0) += 1;
    }
}

/// A time, by sessions and starts.
pub(super) struct LockTime {
    session: SessionId,
    /// Which had the inode in question.
    server: NodeId,
    heard: BTreeMap<NodeId, u64>,
}

impl Client {
    /// Now, for a call about `inode`.
    pub(super) fn lock_time(&self, inode: InodeId) -> LockTime {
        let (session, server) = (self.session(), self.server_of(inode));
        LockTime { session, server, heard: self.lock_starts.heard.lock().clone() }
    }

    /// Whether the session is the same as `before`, and neither the server that had `inode` then nor the one that has it now was started anew since.
    pub(super) fn is_still(&self, before: &LockTime, inode: InodeId) -> bool {
        let heard = self.lock_starts.heard.lock();
        let is_as_before = |server: &NodeId| heard.get(server) == before.heard.get(server);
        self.session() == before.session && [before.server, self.server_of(inode)].iter().all(is_as_before)
    }
}
