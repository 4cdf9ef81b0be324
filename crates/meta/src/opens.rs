//! Which session has which inode open, and which open inodes have lost their last name.

use ashlar_types::{InodeId, SessionId};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// One session's handles on an inode.
#[derive(Clone, Copy, Debug)]
struct Opened {
    session: SessionId,
    handles: u32,
    writers: u32,
}

/// See the module.
// LIMIT: one entry per inode that clients have open; clients are bounded by their kernels' open files.
#[derive(Debug, Default)]
pub(crate) struct OpenTable {
    opened: FxHashMap<InodeId, SmallVec<[Opened; 1]>>,
    orphans: FxHashSet<InodeId>,
}

impl OpenTable {
    pub(crate) fn open(&mut self, session: SessionId, inode: InodeId, write: bool) {
        let sessions = self.opened.entry(inode).or_default();
        match sessions.iter_mut().find(|opened| opened.session == session) {
            Some(opened) => {
                opened.handles += 1;
                opened.writers += u32::from(write);
            }
            None => sessions.push(Opened { session, handles: 1, writers: u32::from(write) }),
        }
    }

    /// One handle less; tells whether the session has none left on an inode without a name.
    pub(crate) fn close(&mut self, session: SessionId, inode: InodeId, write: bool) -> bool {
        let Some(sessions) = self.opened.get_mut(&inode) else { return false };
        let Some(at) = sessions.iter().position(|opened| opened.session == session) else { return false };
        let opened = &mut sessions[at];
        opened.handles = opened.handles.saturating_sub(1);
        opened.writers = opened.writers.saturating_sub(u32::from(write));
        if opened.handles > 0 {
            return false;
        }
        sessions.swap_remove(at);
        let is_last = sessions.is_empty();
        let is_orphan = self.orphans.contains(&inode);
        if is_last {
            self.opened.remove(&inode);
            self.orphans.remove(&inode);
        }
        is_orphan
    }

    /// Sessions that have `inode` open.
    pub(crate) fn sessions(&self, inode: InodeId) -> SmallVec<[SessionId; 2]> {
        self.opened
            .get(&inode)
            .map(|all| all.iter().map(|opened| opened.session).collect())
            .unwrap_or_default()
    }

    /// Whether a handle of `session`, for writing or not, shares the file with another session such that one of them writes.
    pub(crate) fn is_shared(&self, session: SessionId, inode: InodeId, write: bool) -> bool {
        let others = self.opened.get(&inode).map(SmallVec::as_slice).unwrap_or_default();
        others.iter().any(|opened| opened.session != session && (write || opened.writers > 0))
    }

    /// Whether `inode` is open without a name.
    pub(crate) fn is_orphan(&self, inode: InodeId) -> bool {
        self.orphans.contains(&inode)
    }

    /// Notes that an open inode has lost its last name.
    pub(crate) fn note_orphan(&mut self, inode: InodeId) {
        self.orphans.insert(inode);
    }

    /// Forgets a session.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        let orphans = &mut self.orphans;
        self.opened.retain(|inode, sessions| {
            sessions.retain(|opened| opened.session != session);
            if sessions.is_empty() {
                orphans.remove(inode);
            }
            !sessions.is_empty()
        });
    }
}
