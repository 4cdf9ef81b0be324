//! Attributes that came with a name or an open, for the question about them that follows.
//!
//! A kernel may not keep attributes that it is told with a name where others may change them (`Adaptor::entry`), so it asks for them once more, by inode. That
//! question is answered from here: what is here is under a lease, as what the kernel keeps is, and goes when that is recalled or lost. It also goes with
//! every change that this client makes itself, of whatever inode: those are not recalled.
//!
//! Only for clients over a network; in a process a call costs less.

use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest};
use ashlar_types::{Attr, InodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// For how long: a program that lists a directory asks about what is in it right then. Much less than the term of a lease.
const KEPT_MAX: Duration = Duration::from_secs(2);
/// Inodes of a part.
// LIMIT: 16 parts of about 250 bytes an entry: 8 MiB. Past it a part begins anew, and what was in it is asked for.
const INODES_MAX: usize = 2048;
const PARTS: usize = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct Ahead {
    is_used: bool,
    parts: [Mutex<Part>; PARTS],
    /// Grows whenever something here may have become old. What a call tells that began before is not kept.
    turns: AtomicU64,
    /// Entries, about: nothing is to be done for the many calls that find none.
    len: AtomicU64,
}

type Part = FxHashMap<InodeId, Entry>;

struct Entry {
    attr: Attr,
    leases: LeaseSet,
    since: Duration,
    /// The client's, when it asked.
    era: u64,
}

/// When a call began: what had become old by then, and the client's era.
#[derive(Clone, Copy)]
pub(crate) struct Turn(u64, u64);

impl Ahead {
    /// A table that is kept, if it `is_used`.
    pub(crate) fn new(is_used: bool) -> Ahead {
        Ahead { is_used, ..Ahead::default() }
    }

    fn part(&self, inode: InodeId) -> &Mutex<Part> {
        &self.parts[(inode.0 % PARTS as u64) as usize]
    }

    /// A call begins, in `era`.
    pub(crate) fn begin(&self, request: &MetaRequest<'_>, era: u64) -> Turn {
        if self.is_used && changes_something(request) {
            self.clear();
        }
        Turn(self.turns.load(SeqCst), era)
    }

    /// It has ended, whether well or not. `now` is only asked for if there is something to keep.
    pub(crate) fn end(
        &self,
        turn: Turn,
        changes: bool,
        reply: Option<&MetaReply>,
        now: impl FnOnce() -> Duration,
    ) {
        if !self.is_used {
            return;
        }
        if changes {
            // ORDER: also after it: what was asked while it was under way may be from before it.
            return self.clear();
        }
        match reply {
            Some(MetaReply::Attr { attr, leases }) => self.keep(turn, std::iter::once((attr, *leases)), now),
            Some(MetaReply::Opened { open, .. }) => {
                self.keep(turn, std::iter::once((&open.attr, open.leases)), now);
            }
            Some(MetaReply::Entries { entries, .. }) if entries.iter().any(|entry| entry.attr.is_some()) => {
                let all =
                    entries.iter().filter_map(|entry| entry.attr.as_ref().map(|attr| (attr, entry.leases)));
                self.keep(turn, all, now);
            }
            _ => {}
        }
    }

    fn keep<'a>(
        &self,
        turn: Turn,
        all: impl Iterator<Item = (&'a Attr, LeaseSet)>,
        now: impl FnOnce() -> Duration,
    ) {
        let now = now();
        for (attr, leases) in all.filter(|(_, leases)| leases.has(LeaseSet::ATTR)) {
            let mut part = self.part(attr.inode).lock();
            // ORDER: looked at under the lock under which a recall takes it out.
            if self.turns.load(SeqCst) != turn.0 {
                return;
            }
            if part.len() >= INODES_MAX {
                self.len.fetch_sub(part.len() as u64, SeqCst);
                part.clear();
            }
            let entry = Entry { attr: attr.clone(), leases, since: now, era: turn.1 };
            if part.insert(attr.inode, entry).is_none() {
                self.len.fetch_add(1, SeqCst);
            }
        }
    }

    /// What is known of `inode`, once, and only if it was asked for in `era`.
    pub(crate) fn take(
        &self,
        inode: InodeId,
        era: u64,
        now: impl FnOnce() -> Duration,
    ) -> Option<(Attr, LeaseSet)> {
        if self.len.load(SeqCst) == 0 {
            return None;
        }
        let found = self.part(inode).lock().remove(&inode)?;
        self.len.fetch_sub(1, SeqCst);
        let is_good = found.era == era && now().saturating_sub(found.since) < KEPT_MAX;
        is_good.then_some((found.attr, found.leases))
    }

    /// Somebody else is about to change `inode`.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.turns.fetch_add(1, SeqCst);
        if self.part(inode).lock().remove(&inode).is_some() {
            self.len.fetch_sub(1, SeqCst);
        }
    }

    /// Nothing that was told before this is good.
    pub(crate) fn clear(&self) {
        self.turns.fetch_add(1, SeqCst);
        if self.len.load(SeqCst) == 0 {
            return;
        }
        for part in &self.parts {
            let mut part = part.lock();
            self.len.fetch_sub(part.len() as u64, SeqCst);
            part.clear();
        }
    }
}

/// Whether attributes of anything may be others after a call. What is not known to be harmless does.
pub(crate) fn changes_something(request: &MetaRequest<'_>) -> bool {
    !matches!(
        request,
        MetaRequest::Lookup { .. }
            | MetaRequest::Getattr { .. }
            | MetaRequest::Open { truncate: false, .. }
            | MetaRequest::Readlink { .. }
            | MetaRequest::Readdir { .. }
            | MetaRequest::Access { .. }
            | MetaRequest::Getxattr { .. }
            | MetaRequest::Listxattr { .. }
            | MetaRequest::Statfs
            | MetaRequest::ReadInline { .. }
            | MetaRequest::AcquireData { write: false, .. }
            | MetaRequest::Lock { .. }
            | MetaRequest::LockWait { .. }
            | MetaRequest::LockCancel { .. }
            | MetaRequest::LockTest(_)
            | MetaRequest::LockRelease { .. }
            | MetaRequest::LayoutShow { .. }
            | MetaRequest::Slices { .. }
            | MetaRequest::RecallDone { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::{FilesetId, Timespec};

    const X: InodeId = InodeId(33);
    const AT: Duration = Duration::from_secs(100);

    fn attr() -> Attr {
        let time = Timespec { secs: 0, nanos: 0 };
        Attr {
            inode: X,
            mode: 0o100_644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 7,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            block_size: 4096,
            fileset: FilesetId(0),
        }
    }

    fn told(leases: LeaseSet) -> MetaReply {
        MetaReply::Attr { attr: attr(), leases }
    }

    fn look(ahead: &Ahead) -> Turn {
        ahead.begin(&MetaRequest::Getattr { inode: X }, 4)
    }

    fn change(ahead: &Ahead) {
        let request = MetaRequest::MakeRoom;
        let turn = ahead.begin(&request, 4);
        ahead.end(turn, changes_something(&request), Some(&MetaReply::Done), || AT);
    }

    #[test]
    fn what_came_with_a_lease_answers_the_next_question_and_no_other() {
        let ahead = Ahead::new(true);
        let turn = look(&ahead);
        ahead.end(turn, false, Some(&told(LeaseSet::ATTR)), || AT);
        assert_eq!(ahead.take(X, 4, || AT), Some((attr(), LeaseSet::ATTR)));
        assert_eq!(ahead.take(X, 4, || AT), None);
        ahead.end(turn, false, Some(&told(LeaseSet::ENTRIES)), || AT);
        assert_eq!(ahead.take(X, 4, || AT), None, "without a lease");
        ahead.end(turn, false, Some(&told(LeaseSet::ATTR)), || AT);
        assert_eq!(ahead.take(X, 4, || AT + KEPT_MAX), None, "too old");
        ahead.end(turn, false, Some(&told(LeaseSet::ATTR)), || AT);
        assert_eq!(ahead.take(X, 5, || AT), None, "of another era");
        assert_eq!(ahead.len.load(SeqCst), 0);
    }

    #[test]
    fn a_recall_and_a_change_of_ones_own_take_it_away_also_from_what_is_on_its_way() {
        let ahead = Ahead::new(true);
        for spoil in [|ahead: &Ahead| ahead.forget(X), change, |ahead: &Ahead| ahead.clear()] {
            let turn = look(&ahead);
            ahead.end(turn, false, Some(&told(LeaseSet::ATTR)), || AT);
            spoil(&ahead);
            assert_eq!(ahead.take(X, 4, || AT), None);
            let turn = look(&ahead);
            spoil(&ahead);
            ahead.end(turn, false, Some(&told(LeaseSet::ATTR)), || AT);
            assert_eq!(ahead.take(X, 4, || AT), None, "the answer is from before");
        }
    }

    #[test]
    fn it_is_bounded_and_in_a_process_it_is_not_used() {
        let ahead = Ahead::new(true);
        let turn = look(&ahead);
        for inode in 0..(INODES_MAX * PARTS * 3) as u64 {
            let attr = Attr { inode: InodeId(inode), ..attr() };
            ahead.end(turn, false, Some(&MetaReply::Attr { attr, leases: LeaseSet::ATTR }), || AT);
        }
        assert!(ahead.parts.iter().all(|part| part.lock().len() <= INODES_MAX));
        ahead.clear();
        assert_eq!(ahead.len.load(SeqCst), 0);
        let ahead = Ahead::new(false);
        ahead.end(look(&ahead), false, Some(&told(LeaseSet::ATTR)), || AT);
        assert_eq!(ahead.take(X, 4, || AT), None);
    }
}
