//! Which starts of metadata servers this client has heard of: what one said about a lock does not count once it was started anew, nor once the session has ended. That of another one
//! does; asked a second time it would grant a lock that has been given back meanwhile, to nobody.

use crate::client::Client;
use ashlar_types::{InodeId, NodeId, SessionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How often each server was started anew, as far as this client was asked what it has, and how many of its sessions have ended.
#[derive(Debug, Default)]
pub(crate) struct LockStarts {
    sessions_ended: AtomicU64,
    // LIMIT: one entry per metadata server.
    heard: Mutex<BTreeMap<NodeId, u64>>,
}

impl LockStarts {
    pub(crate) fn note(&self, server: NodeId) {
        *self.heard.lock().entry(server).or_insert(0) += 1;
    }

    pub(crate) fn note_session_ended(&self) {
        self.sessions_ended.fetch_add(1, SeqCst);
    }
}

/// A time, by sessions and starts.
#[derive(Clone)]
pub(super) struct LockTime {
    session: SessionId,
    sessions_ended: u64,
    /// Which had the inode in question.
    server: NodeId,
    heard: BTreeMap<NodeId, u64>,
}

impl Client {
    /// Now, for a call about `inode`.
    pub(super) fn lock_time(&self, inode: InodeId) -> LockTime {
        let (session, server) = (self.session(), self.server_of(inode));
        let sessions_ended = self.lock_starts.sessions_ended.load(SeqCst);
        LockTime { session, sessions_ended, server, heard: self.lock_starts.heard.lock().clone() }
    }

    /// Whether the session is the same as `before`, and neither the server that had `inode` then nor the one that has it now was started anew since.
    pub(super) fn is_still(&self, before: &LockTime, inode: InodeId) -> bool {
        let heard = self.lock_starts.heard.lock();
        let is_as_before = |server: &NodeId| heard.get(server) == before.heard.get(server);
        // Between the end of a session and the next one it still has the number of the one that has ended.
        let is_same = self.session() == before.session
            && self.lock_starts.sessions_ended.load(SeqCst) == before.sessions_ended;
        is_same && [before.server, self.server_of(inode)].iter().all(is_as_before)
    }

    /// Whether the session of `before` has ended since and the next one has not begun.
    pub(super) fn is_without_session(&self, before: &LockTime) -> bool {
        // ORDER: in this order. The next one begins after the end of the last was noted.
        let has_ended = self.lock_starts.sessions_ended.load(SeqCst) != before.sessions_ended;
        has_ended && self.session() == before.session
    }
}
