//! Attributes that came with a name, an open or a change, for the question about them that follows.
//!
//! A kernel may not keep attributes that it is told with a name where others may change them (`Adaptor::entry`), so it asks for them once more, by inode. It also
//! asks for those of a directory in which it has changed a name. Both questions are answered from here: what is here is under a lease, as what the kernel keeps is, and goes when that is recalled or lost. It also goes with
//! every change of it that this client makes itself: those are not recalled.
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
/// LIMIT: of so many changes it is known what they were of; who has missed more takes one for his.
const RECENT: usize = 128;

/// See the module.
#[derive(Default)]
pub(crate) struct Ahead {
    is_used: bool,
    parts: [Mutex<Part>; PARTS],
    turns: Mutex<Turns>,
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

/// What may have become old: what a call tells that began before is not kept.
struct Turns {
    /// Grows when everything may have.
    all: u64,
    /// How often one inode may have, and which it was lately.
    one: u64,
    recent: [InodeId; RECENT],
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { all: 0, one: 0, recent: [InodeId(0); RECENT] }
    }
}

impl Turns {
    fn note(&mut self, inode: InodeId) {
        self.recent[self.one as usize % RECENT] = inode;
        self.one += 1;
    }

    /// Whether nothing told of `inode` has become old since `turn`.
    fn is_as_at(&self, turn: Turn, inode: InodeId) -> bool {
        let is_other = |number: u64| self.recent[number as usize % RECENT] != inode;
        self.all == turn.all && self.one - turn.one <= RECENT as u64 && (turn.one..self.one).all(is_other)
    }

    fn turn(&self, era: u64) -> Turn {
        Turn { all: self.all, one: self.one, era }
    }
}

/// When a call began: what had become old by then, and the client's era.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    all: u64,
    one: u64,
    era: u64,
}

impl Ahead {
    /// A table that is kept, if it `is_used`.
    pub(crate) fn new(is_used: bool) -> Ahead {
        Ahead { is_used, ..Ahead::default() }
    }

    /// Whether anything is kept, so that it is worth being told.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    fn part(&self, inode: InodeId) -> &Mutex<Part> {
        &self.parts[(inode.0 % PARTS as u64) as usize]
    }

    /// A call begins, in `era`.
    pub(crate) fn begin(&self, request: &MetaRequest<'_>, era: u64) -> Turn {
        // Where nothing is kept nobody looks at it, and a call in a process takes no lock for it.
        if !self.is_used {
            return Turn { all: 0, one: 0, era };
        }
        match Touched::by(request) {
            Touched::Nothing => {}
            Touched::One(inode) | Touched::NameIn(inode) => self.forget(inode),
            Touched::Anything => self.clear(),
        }
        self.turns.lock().turn(era)
    }

    /// Now, in `era`.
    pub(crate) fn turn(&self, era: u64) -> Turn {
        self.turns.lock().turn(era)
    }

    /// Whether nothing that was told of `inode` since `turn` has become old.
    pub(crate) fn is_as_at(&self, turn: Turn, inode: InodeId, era: u64) -> bool {
        turn.era == era && self.turns.lock().is_as_at(turn, inode)
    }

    /// It has ended, whether well or not. `directory`: what was told of the directory besides. `now` is only asked for if there is something to keep.
    pub(crate) fn end(
        &self,
        turn: Turn,
        touched: Touched,
        (reply, directory): (Option<&MetaReply>, Option<(Attr, LeaseSet)>),
        now: impl FnOnce() -> Duration,
    ) {
        if !self.is_used {
            return;
        }
        if touched != Touched::Nothing {
            return self.end_change(turn, touched, (reply, directory), now);
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

    /// What was asked while a change was under way may be from before it, so it makes old what it touches once more. What its own answer tells is from after it.
    fn end_change(
        &self,
        turn: Turn,
        touched: Touched,
        (reply, directory): (Option<&MetaReply>, Option<(Attr, LeaseSet)>),
        now: impl FnOnce() -> Duration,
    ) {
        let (made, found) = match (touched, reply) {
            // Whether it was carried out is not known, nor what it would have touched.
            (_, None) => return self.clear(),
            (Touched::NameIn(_), Some(MetaReply::Opened { open, created: false })) => {
                (None, Some(open.attr.inode))
            }
            (Touched::NameIn(_), Some(MetaReply::Opened { open, .. })) => {
                (Some((&open.attr, open.leases)), None)
            }
            (Touched::NameIn(_), Some(MetaReply::Attr { attr, leases })) => (Some((attr, *leases)), None),
            _ => (None, None),
        };
        let directory = directory.as_ref().map(|(attr, leases)| (attr, *leases));
        let old = match touched {
            Touched::One(inode) | Touched::NameIn(inode) => [Some(inode), found],
            Touched::Nothing | Touched::Anything => [None, None],
        };
        let (good, turn) = {
            let mut turns = self.turns.lock();
            // ORDER: looked at and noted at once. Another change of the same that ends in between would not be seen by either.
            let is_good = |told: &(&Attr, LeaseSet)| turns.is_as_at(turn, told.0.inode);
            let good = [made.filter(is_good), directory.filter(is_good)];
            old.into_iter().flatten().for_each(|inode| turns.note(inode));
            if touched == Touched::Anything {
                turns.all += 1;
            }
            (good, turns.turn(turn.era))
        };
        old.into_iter().flatten().for_each(|inode| self.remove(inode));
        if touched == Touched::Anything {
            self.remove_all();
        }
        if good.iter().any(Option::is_some) {
            self.keep(turn, good.into_iter().flatten(), now);
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
            // ORDER: looked at under the lock under which whoever notes that it is old takes it out, after that.
            if !self.turns.lock().is_as_at(turn, attr.inode) {
                continue;
            }
            if part.len() >= INODES_MAX {
                self.len.fetch_sub(part.len() as u64, SeqCst);
                part.clear();
            }
            let entry = Entry { attr: attr.clone(), leases, since: now, era: turn.era };
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

    /// What is known of `inode` and may still be taken, if it was asked for in `era`.
    pub(crate) fn look(&self, inode: InodeId, era: u64, now: Duration) -> Option<(Attr, LeaseSet)> {
        let part = self.part(inode).lock();
        let is_good = |entry: &&Entry| entry.era == era && now.saturating_sub(entry.since) < KEPT_MAX;
        part.get(&inode).filter(is_good).map(|entry| (entry.attr.clone(), entry.leases))
    }

    /// Somebody is about to change `inode`.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.turns.lock().note(inode);
        self.remove(inode);
    }

    fn remove(&self, inode: InodeId) {
        // ORDER: under the part's lock in any case. Who is putting it in has looked before it was noted as old, and has not counted it yet.
        if self.part(inode).lock().remove(&inode).is_some() {
            self.len.fetch_sub(1, SeqCst);
        }
    }

    /// Nothing that was told before this is good.
    pub(crate) fn clear(&self) {
        self.turns.lock().all += 1;
        self.remove_all();
    }

    fn remove_all(&self) {
        // ORDER: as above.
        for part in &self.parts {
            let mut part = part.lock();
            self.len.fetch_sub(part.len() as u64, SeqCst);
            part.clear();
        }
    }
}

/// Of what attributes may be others after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// Of nothing.
    Nothing,
    /// Of this inode alone.
    One(InodeId),
    /// Of this directory, in which it makes a name, and of what is there already: that is in the answer.
    NameIn(InodeId),
    /// It cannot be told.
    Anything,
}

impl Touched {
    /// By `request`.
    pub(crate) fn by(request: &MetaRequest<'_>) -> Touched {
        if !changes_something(request) {
            return Touched::Nothing;
        }
        match request {
            MetaRequest::Create { parent, .. }
            | MetaRequest::Mkdir { parent, .. }
            | MetaRequest::Mknod { parent, .. }
            | MetaRequest::Symlink { parent, .. } => Touched::NameIn(*parent),
            MetaRequest::Setattr { inode, .. }
            | MetaRequest::Open { inode, .. }
            | MetaRequest::Release { inode, .. }
            | MetaRequest::Setxattr { inode, .. }
            | MetaRequest::Removexattr { inode, .. }
            | MetaRequest::WriteInline { inode, .. }
            | MetaRequest::AllocateInline { inode, .. }
            | MetaRequest::ProposeLayout { inode }
            | MetaRequest::SetLayout { inode, .. }
            | MetaRequest::WithdrawLayout { inode, .. }
            | MetaRequest::AcquireData { inode, .. }
            | MetaRequest::AcquireShared { inode }
            | MetaRequest::CommitWrite { inode, .. } => Touched::One(*inode),
            // Durable is not other.
            MetaRequest::Sync(_) => Touched::Nothing,
            _ => Touched::Anything,
        }
    }

    /// Whether it is a change of names in one directory, whose attributes are then asked for.
    pub(crate) fn asks_for_directory(request: &MetaRequest<'_>) -> bool {
        matches!(
            request,
            MetaRequest::Create { .. }
                | MetaRequest::Mkdir { .. }
                | MetaRequest::Mknod { .. }
                | MetaRequest::Symlink { .. }
                | MetaRequest::Link { .. }
                | MetaRequest::Unlink { .. }
                | MetaRequest::Rmdir { .. }
                | MetaRequest::Rename { .. }
        )
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
            // What of it changes is forgotten by who tells it ([`crate::closes`]).
            | MetaRequest::Closes { .. }
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
        ahead.end(turn, Touched::by(&request), (Some(&MetaReply::Done), None), || AT);
    }

    fn keep_told(ahead: &Ahead, turn: Turn, leases: LeaseSet) {
        ahead.end(turn, Touched::Nothing, (Some(&told(leases)), None), || AT);
    }

    #[test]
    fn what_came_with_a_lease_answers_the_next_question_and_no_other() {
        let ahead = Ahead::new(true);
        let turn = look(&ahead);
        keep_told(&ahead, turn, LeaseSet::ATTR);
        assert_eq!(ahead.take(X, 4, || AT), Some((attr(), LeaseSet::ATTR)));
        assert_eq!(ahead.take(X, 4, || AT), None);
        keep_told(&ahead, turn, LeaseSet::ENTRIES);
        assert_eq!(ahead.take(X, 4, || AT), None, "without a lease");
        keep_told(&ahead, turn, LeaseSet::ATTR);
        assert_eq!(ahead.take(X, 4, || AT + KEPT_MAX), None, "too old");
        keep_told(&ahead, turn, LeaseSet::ATTR);
        assert_eq!(ahead.take(X, 5, || AT), None, "of another era");
        assert_eq!(ahead.len.load(SeqCst), 0);
    }

    #[test]
    fn a_recall_and_a_change_of_ones_own_take_it_away_also_from_what_is_on_its_way() {
        let ahead = Ahead::new(true);
        for spoil in [|ahead: &Ahead| ahead.forget(X), change, |ahead: &Ahead| ahead.clear()] {
            let turn = look(&ahead);
            keep_told(&ahead, turn, LeaseSet::ATTR);
            spoil(&ahead);
            assert_eq!(ahead.take(X, 4, || AT), None);
            let turn = look(&ahead);
            spoil(&ahead);
            keep_told(&ahead, turn, LeaseSet::ATTR);
            assert_eq!(ahead.take(X, 4, || AT), None, "the answer is from before");
        }
    }

    fn of(inode: InodeId) -> (Attr, LeaseSet) {
        (Attr { inode, ..attr() }, LeaseSet::ATTR)
    }

    const DIRECTORY: InodeId = InodeId(77);

    fn make(parent: InodeId) -> MetaRequest<'static> {
        MetaRequest::Mkdir { parent, name: ashlar_types::Name::new(b"x").unwrap(), mode: 0, umask: 0 }
    }

    #[test]
    fn what_a_change_tells_of_what_it_made_and_of_its_directory_is_kept() {
        let ahead = Ahead::new(true);
        let request = make(DIRECTORY);
        let turn = ahead.begin(&request, 4);
        // Of something else.
        let other = MetaRequest::Setattr { inode: InodeId(5), changes: Default::default() };
        let (other, touched) = (ahead.begin(&other, 4), Touched::by(&other));
        ahead.end(other, touched, (Some(&MetaReply::Done), None), || AT);
        let reply = told(LeaseSet::ATTR);
        ahead.end(turn, Touched::by(&request), (Some(&reply), Some(of(DIRECTORY))), || AT);
        assert_eq!(ahead.take(DIRECTORY, 4, || AT), Some(of(DIRECTORY)));
        assert_eq!(ahead.take(X, 4, || AT), Some((attr(), LeaseSet::ATTR)));
    }

    #[test]
    fn of_changes_beside_each_other_in_one_directory_neither_says_how_it_is() {
        let ahead = Ahead::new(true);
        let request = make(DIRECTORY);
        let touched = Touched::by(&request);
        let end = |turn, inode| {
            let (attr, leases) = of(InodeId(inode));
            let reply = MetaReply::Attr { attr, leases };
            ahead.end(turn, touched, (Some(&reply), Some(of(DIRECTORY))), || AT);
        };
        let (one, two) = (ahead.begin(&request, 4), ahead.begin(&request, 4));
        end(one, 5);
        assert_eq!(ahead.take(DIRECTORY, 4, || AT), None);
        end(two, 6);
        assert_eq!(ahead.take(DIRECTORY, 4, || AT), None);
        let both = [5, 6].map(|inode| ahead.take(InodeId(inode), 4, || AT).is_some());
        assert_eq!(both, [true, true], "what they made is nobody else's");
        // One that began before and ends after takes it away.
        let long = ahead.begin(&request, 4);
        end(ahead.begin(&request, 4), 5);
        end(long, 6);
        assert_eq!(ahead.take(DIRECTORY, 4, || AT), None);
    }

    #[test]
    fn a_change_whose_outcome_is_not_known_takes_everything_away() {
        let ahead = Ahead::new(true);
        keep_told(&ahead, look(&ahead), LeaseSet::ATTR);
        let request = make(DIRECTORY);
        ahead.end(ahead.begin(&request, 4), Touched::by(&request), (None, None), || AT);
        assert_eq!(ahead.take(X, 4, || AT), None);
    }

    #[test]
    fn what_changed_is_known_of_the_last_changes_and_assumed_of_older_ones() {
        let ahead = Ahead::new(true);
        let turn = look(&ahead);
        (0..RECENT as u64).for_each(|at| ahead.forget(InodeId(1000 + at)));
        keep_told(&ahead, turn, LeaseSet::ATTR);
        assert!(ahead.take(X, 4, || AT).is_some());
        ahead.forget(InodeId(1000));
        keep_told(&ahead, turn, LeaseSet::ATTR);
        assert!(ahead.take(X, 4, || AT).is_none());
    }

    #[test]
    fn it_is_bounded_and_in_a_process_it_is_not_used() {
        let ahead = Ahead::new(true);
        let turn = look(&ahead);
        for inode in 0..(INODES_MAX * PARTS * 3) as u64 {
            let attr = Attr { inode: InodeId(inode), ..attr() };
            ahead.end(
                turn,
                Touched::Nothing,
                (Some(&MetaReply::Attr { attr, leases: LeaseSet::ATTR }), None),
                || AT,
            );
        }
        assert!(ahead.parts.iter().all(|part| part.lock().len() <= INODES_MAX));
        ahead.clear();
        assert_eq!(ahead.len.load(SeqCst), 0);
        let ahead = Ahead::new(false);
        keep_told(&ahead, look(&ahead), LeaseSet::ATTR);
        assert_eq!(ahead.take(X, 4, || AT), None);
    }
}
