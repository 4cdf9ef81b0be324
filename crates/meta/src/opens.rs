//! Which session has which inode open, and which open inodes have lost their last name.

use ashlar_types::{DescriptionId, InodeId, SessionId, ShardId};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

/// One session's handles on an inode.
#[derive(Clone, Debug)]
struct Opened {
    session: SessionId,
    /// Each, and whether it is for writing.
    handles: SmallVec<[(DescriptionId, bool); 1]>,
    /// How often everything had been promised to be durable when the session opened the inode.
    promises_before: u64,
}

/// Descriptions that a session may have open at a server: as many as a process may have files open on Linux, unless told otherwise.
const OPENS_MAX: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct OpenTable {
    // LIMIT: `opens_max` descriptions of a session, and what its calls under way add.
    opened: FxHashMap<InodeId, SmallVec<[Opened; 1]>>,
    /// How many descriptions each session has open; none for those that have none.
    by_session: FxHashMap<SessionId, usize>,
    opens_max: usize,
    orphans: FxHashSet<InodeId>,
    /// Open inodes whose content somebody was promised to be durable.
    promised: FxHashSet<InodeId>,
    /// How often all content was promised to be.
    promises_of_all: u64,
}

impl Default for OpenTable {
    fn default() -> OpenTable {
        OpenTable {
            opened: FxHashMap::default(),
            by_session: FxHashMap::default(),
            opens_max: OPENS_MAX,
            orphans: FxHashSet::default(),
            promised: FxHashSet::default(),
            promises_of_all: 0,
        }
    }
}

impl OpenTable {
    /// Lets each session open descriptions up to so many from now on.
    pub(crate) fn limit(&mut self, opens_max: usize) {
        self.opens_max = opens_max;
    }

    /// Whether `session` may open one more. What it had open before a start, or at a server that gave a shard away, stays open in any case.
    pub(crate) fn has_room(&self, session: SessionId) -> bool {
        self.by_session.get(&session).is_none_or(|count| *count < self.opens_max)
    }

    /// `count` descriptions of `session` are closed.
    fn count_off(by_session: &mut FxHashMap<SessionId, usize>, session: SessionId, count: usize) {
        let Some(left) = by_session.get_mut(&session) else { return };
        *left = left.saturating_sub(count);
        if *left == 0 {
            by_session.remove(&session);
        }
    }

    /// For each session that has something open: how many inodes.
    pub(crate) fn inodes_by_session(&self) -> FxHashMap<SessionId, u64> {
        let mut counts = FxHashMap::default();
        self.opened.values().flatten().for_each(|opened| *counts.entry(opened.session).or_default() += 1);
        counts
    }

    /// How many inodes somebody has open.
    pub(crate) fn len(&self) -> usize {
        self.opened.len()
    }

    /// Notes a handle; once more is the same.
    pub(crate) fn open(&mut self, session: SessionId, inode: InodeId, handle: (DescriptionId, bool)) {
        let promises_before = self.promises_of_all;
        self.note(session, inode, handle, promises_before);
    }

    /// Notes a handle that was opened before the service was started: what was promised then is not known, so everything may have been.
    pub(crate) fn reopen(&mut self, session: SessionId, inode: InodeId, handle: (DescriptionId, bool)) {
        self.note(session, inode, handle, u64::MAX);
    }

    fn note(
        &mut self,
        session: SessionId,
        inode: InodeId,
        handle: (DescriptionId, bool),
        promises_before: u64,
    ) {
        let sessions = self.opened.entry(inode).or_default();
        match sessions.iter_mut().find(|opened| opened.session == session) {
            Some(opened) if opened.handles.iter().any(|(known, _)| *known == handle.0) => return,
            Some(opened) => opened.handles.push(handle),
            None => sessions.push(Opened { session, handles: smallvec![handle], promises_before }),
        }
        *self.by_session.entry(session).or_default() += 1;
    }

    /// A handle less; tells whether the session has none left on an inode without a name. One that is not known, because the session had closed
    /// it before the service was started anew, is closed in any case.
    pub(crate) fn close(&mut self, session: SessionId, inode: InodeId, handle: DescriptionId) -> bool {
        // ORDER: the note stays until the inode is gone: another session may have closed it like this, too.
        let Some(sessions) = self.opened.get_mut(&inode) else { return self.orphans.contains(&inode) };
        let Some(at) = sessions.iter().position(|opened| opened.session == session) else {
            return self.orphans.contains(&inode);
        };
        let opened = &mut sessions[at];
        let before = opened.handles.len();
        opened.handles.retain(|(known, _)| *known != handle);
        OpenTable::count_off(&mut self.by_session, session, before - opened.handles.len());
        if !opened.handles.is_empty() {
            return false;
        }
        sessions.swap_remove(at);
        let is_last = sessions.is_empty();
        let is_orphan = self.orphans.contains(&inode);
        if is_last {
            self.opened.remove(&inode);
            self.promised.remove(&inode);
        }
        is_orphan
    }

    /// Whether `session` has `inode` open, and if so, whether for writing.
    pub(crate) fn opened(&self, session: SessionId, inode: InodeId) -> Option<bool> {
        let opened = self.opened.get(&inode)?.iter().find(|opened| opened.session == session)?;
        Some(opened.handles.iter().any(|(_, write)| *write))
    }

    /// Whether any session has `inode` open.
    pub(crate) fn is_open(&self, inode: InodeId) -> bool {
        self.opened.contains_key(&inode)
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
        let writes = |opened: &Opened| opened.handles.iter().any(|(_, write)| *write);
        others.iter().any(|opened| opened.session != session && (write || writes(opened)))
    }

    /// Whether `inode` is open without a name.
    pub(crate) fn is_orphan(&self, inode: InodeId) -> bool {
        self.orphans.contains(&inode)
    }

    /// Notes that somebody is promised that the content of `inode` is durable. What nobody has open needs no note: whoever opens it and
    /// finds content in it does not take that for his own.
    pub(crate) fn promise(&mut self, inode: InodeId) {
        if self.opened.contains_key(&inode) {
            self.promised.insert(inode);
        }
    }

    /// Notes that somebody is promised that all content is durable.
    pub(crate) fn promise_all(&mut self) {
        self.promises_of_all += 1;
    }

    /// Whether anybody may have been promised that the content of `inode` is durable since `session` opened it.
    pub(crate) fn is_promised(&self, session: SessionId, inode: InodeId) -> bool {
        let opened = self.opened.get(&inode).map(SmallVec::as_slice).unwrap_or_default();
        let own = opened.iter().find(|opened| opened.session == session);
        self.promised.contains(&inode) || own.is_none_or(|own| own.promises_before != self.promises_of_all)
    }

    /// Notes that an open inode has lost its last name.
    pub(crate) fn note_orphan(&mut self, inode: InodeId) {
        self.orphans.insert(inode);
    }

    /// Forgets an inode that is no more.
    pub(crate) fn forget_orphan(&mut self, inode: InodeId) {
        self.orphans.remove(&inode);
    }

    /// All handles on inodes of `shard`.
    pub(crate) fn of_shard(&self, shard: ShardId) -> Vec<(SessionId, InodeId, (DescriptionId, bool))> {
        let of_shard = self.opened.iter().filter(|(inode, _)| inode.home() == shard);
        let handles = |(inode, sessions): (&InodeId, &SmallVec<[Opened; 1]>)| {
            let inode = *inode;
            let of = |opened: &Opened| {
                let session = opened.session;
                opened.handles.clone().into_iter().map(move |handle| (session, inode, handle))
            };
            sessions.iter().flat_map(of).collect::<Vec<_>>()
        };
        of_shard.flat_map(handles).collect()
    }

    /// Forgets them, without closing anything: another server knows.
    pub(crate) fn forget_shard(&mut self, shard: ShardId) {
        let by_session = &mut self.by_session;
        self.opened.retain(|inode, sessions| {
            let goes = inode.home() == shard;
            if goes {
                let handles = |opened: &Opened| (opened.session, opened.handles.len());
                sessions.iter().map(handles).for_each(|(session, count)| {
                    OpenTable::count_off(by_session, session, count);
                });
            }
            !goes
        });
        self.orphans.retain(|inode| inode.home() != shard);
        self.promised.retain(|inode| inode.home() != shard);
    }

    /// Forgets a session.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        self.by_session.remove(&session);
        let promised = &mut self.promised;
        self.opened.retain(|inode, sessions| {
            sessions.retain(|opened| opened.session != session);
            if sessions.is_empty() {
                promised.remove(inode);
            }
            !sessions.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const X: InodeId = InodeId(7);
    const Y: InodeId = InodeId(8);

    #[test]
    fn what_a_session_has_open_is_counted_whatever_closes_it() {
        let mut table = OpenTable::default();
        table.limit(3);
        let elsewhere = InodeId(5 << 48 | 7);
        table.open(A, X, (DescriptionId(1), true));
        table.open(A, X, (DescriptionId(2), false));
        table.open(A, X, (DescriptionId(2), false));
        assert!(table.has_room(A), "the same once more is none");
        table.open(A, elsewhere, (DescriptionId(3), false));
        assert!(!table.has_room(A) && table.has_room(B));
        table.reopen(A, Y, (DescriptionId(4), true));
        assert!(!table.close(A, X, DescriptionId(9)), "not known");
        assert!(!table.has_room(A), "four");
        table.close(A, X, DescriptionId(2));
        assert!(!table.has_room(A), "three");
        table.close(A, X, DescriptionId(1));
        assert!(table.has_room(A), "two");
        table.open(A, X, (DescriptionId(5), true));
        assert!(!table.has_room(A));
        table.forget_shard(elsewhere.home());
        assert!(table.has_room(A), "of another server now");
        table.open(A, X, (DescriptionId(6), true));
        assert!(!table.has_room(A));
        table.end_session(A);
        assert!(table.has_room(A) && table.by_session.is_empty());
    }

    /// After a start of the service, before which both had closed it: each has a record of its own that goes with its close.
    #[test]
    fn who_closes_a_file_without_a_name_that_was_closed_before_a_start_is_told_to_let_go_of_it_each() {
        let mut table = OpenTable::default();
        table.note_orphan(X);
        assert!(table.close(A, X, DescriptionId(1)));
        assert!(table.close(B, X, DescriptionId(2)));
        table.forget_orphan(X);
        assert!(!table.close(B, X, DescriptionId(2)), "it is gone");
    }

    #[test]
    fn a_sync_of_anybody_promises_the_content_of_a_file_to_all_who_have_it_open() {
        let mut table = OpenTable::default();
        table.open(A, X, (DescriptionId(1), true));
        table.open(A, Y, (DescriptionId(2), true));
        assert!(!table.is_promised(A, X), "nobody has synced");
        table.open(B, X, (DescriptionId(3), false));
        table.promise(X);
        assert!(table.is_promised(A, X));
        assert!(!table.is_promised(A, Y), "another file was synced");
        assert!(!table.close(B, X, DescriptionId(3)));
        assert!(table.is_promised(A, X), "the close of whoever synced takes no promise back");
        assert!(!table.close(A, X, DescriptionId(1)));
        table.open(A, X, (DescriptionId(1), true));
        assert!(!table.is_promised(A, X), "opened anew");
    }

    #[test]
    fn a_sync_of_everything_promises_what_was_open_then() {
        let mut table = OpenTable::default();
        table.open(A, X, (DescriptionId(1), true));
        table.promise_all();
        table.open(A, Y, (DescriptionId(2), true));
        assert!(table.is_promised(A, X));
        assert!(!table.is_promised(A, Y), "opened after the sync");
        assert!(table.is_promised(B, Y), "a session that has it not open knows nothing");
        table.end_session(A);
        assert!(table.is_promised(A, X));
    }
}
