//! The cluster-wide lock table of a shard's files: byte ranges (`fcntl(2)`, of processes and of open file descriptions) and whole
//! files (`flock(2)`). Sans-IO: calls in, grants out; the service answers and notifies sessions.
//!
//! The two kinds do not meet, as on Linux. Rules, by `fs/locks.c`:
//! - Only held locks are in the way, never waiting ones; when something is released, waiters are tried in the order they came.
//! - A range lock of one owner replaces what that owner had in the range (split, merge, up- and downgrade are one step; a waiting
//!   upgrade keeps the old lock). A flock conversion gives up the old lock first, even if it then waits or fails.
//! - A process that would wait for itself through other waiting processes is told `EDEADLK`; flock and what is known for an open file
//!   description are not looked at. Only waits of this table are known: a cycle through files of two servers is not found.
//!
//! An owner is an address of the client's kernel. That of a description is used again at once, and the end of the description told later. So a
//! lock knows through which description it was taken: the end of that one drops its own locks, and not those of another at its address; and
//! a cycle that may be one only because two have been at an address is a deadlock if it is still there when the end of the
//! first must have been told ([`LockTable::end_deadlocks`]).
//!
//! | state of a request | event | becomes |
//! |---|---|---|
//! | - | [`LockTable::lock`] | held, or refused with `EAGAIN` |
//! | - | [`LockTable::lock_wait`] | held, or queued |
//! | queued | a release | held: a [`LockGrant`] is put out |
//! | queued | [`LockTable::cancel`], end of the session | gone |
//! | queued | [`LockTable::end_deadlocks`] | gone, if it is part of a cycle: a [`LockGrant`] tells |
//! | held | unlock, release, end of the session | gone |

mod deadlock;
mod doubt;
mod file_locks;
mod handover;

pub use handover::{LockHeld, LockWaiting};

use ashlar_types::message::{LockKind, LockRange, LockRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, LockOwner, SessionId};
use doubt::{Doubt, Doubts};
use file_locks::{FileLocks, Held, Waiter};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The last byte a range can have: a lock up to it is a lock to the end of the file, wherever that is.
pub const LOCK_END_MAX: u64 = u64::MAX >> 1;

/// In this time the end of a description has been told: by the kernel at once, in the background, so that only a server without a free
/// thread hears of it late.
pub const DESCRIPTION_END_MAX: Duration = Duration::from_secs(1);

/// Bounds of a table; what would exceed one is refused with `ENOLCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimits {
    /// Most held ranges and flocks.
    // LIMIT: about 150 bytes each with the index, so 150 MB at the default.
    pub held_max: usize,
    /// Most of them on one file.
    // LIMIT: every call on a file passes over its ranges.
    pub held_per_file_max: usize,
    /// Most waiting requests.
    pub waiting_max: usize,
}

impl Default for LockLimits {
    fn default() -> LockLimits {
        LockLimits { held_max: 1 << 20, held_per_file_max: 1 << 16, waiting_max: 1 << 16 }
    }
}

/// Who holds or wants a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockHolder {
    /// The session.
    pub session: SessionId,
    /// The owner inside the session.
    pub owner: LockOwner,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFrom {
    /// The session.
    pub session: SessionId,
    /// The open file description that it was made through.
    pub through: DescriptionId,
}

/// A waiting request: the session and the ticket it chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId {
    /// The session.
    pub session: SessionId,
    /// Its ticket.
    pub ticket: u64,
}

/// Tells a session that its waiting request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockGrant {
    /// Which request.
    pub wait: WaitId,
    /// Held from now on, or `ENOLCK` when the table was full at that moment, or `EDEADLK`.
    pub outcome: Result<(), Errno>,
}

/// A lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockConflict {
    /// Who holds it.
    pub holder: LockHolder,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// Where; the whole file for a flock.
    pub range: LockRange,
    /// The process that took it.
    pub pid: u32,
}

/// How a request that may wait began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// Held.
    Granted,
    /// Waiting; a [`LockGrant`] will tell.
    Queued,
}

/// How a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitArgs {
    /// Names the request in its session; not used by another waiting request of it.
    pub ticket: u64,
    /// Whether the owner is known for an open file description (`F_OFD_SETLKW`): it is no party to a deadlock.
    pub is_ofd: bool,
    /// The time, by a clock that does not go back.
    pub now: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct LockTable {
    limits: LockLimits,
    files: FxHashMap<InodeId, FileLocks>,
    /// On which files a holder holds or waits: finds them again when a session ends.
    index: BTreeSet<(LockHolder, InodeId)>,
    /// On which file, and for whom, a request waits.
    waits: BTreeMap<WaitId, (InodeId, LockHolder)>,
    /// Which of them may be part of a deadlock.
    doubts: Doubts,
    held: usize,
    /// Grows with every lock taken or waited for.
    last_mark: u64,
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::new(LockLimits::default())
    }
}

impl LockTable {
    /// An empty table.
    pub fn new(limits: LockLimits) -> LockTable {
        LockTable {
            limits,
            files: FxHashMap::default(),
            index: BTreeSet::new(),
            waits: BTreeMap::new(),
            doubts: Doubts::default(),
            held: 0,
            last_mark: 0,
        }
    }

    /// Takes, changes or (with [`LockKind::Unlock`]) gives up a lock without waiting. Requests that were waiting and now hold are
    /// appended to `grants`, whatever the answer: a failed flock conversion has given up the old lock.
    ///
    /// # Errors
    /// `EAGAIN` when another holder's lock is in the way, `EINVAL` for a range that ends before it begins or beyond [`LOCK_END_MAX`],
    /// `ENOLCK` when a bound is reached (an unlock in the middle of a range needs one more record, too).
    pub fn lock(
        &mut self,
        LockFrom { session, through }: LockFrom,
        request: &LockRequest,
        grants: &mut Vec<LockGrant>,
    ) -> Result<(), Errno> {
        check(request)?;
        let holder = LockHolder { session, owner: request.owner };
        let outcome = self.try_now(holder, through, request);
        self.settle(request.inode, grants);
        outcome
    }

    /// Takes or changes a lock, waiting if need be.
    ///
    /// # Errors
    /// `EDEADLK` when waiting would never end, `ENOLCK` when a bound is reached, `EINVAL` as [`LockTable::lock`], for an unlock, and for a
    /// ticket that is in use.
    pub fn lock_wait(
        &mut self,
        LockFrom { session, through }: LockFrom,
        request: &LockRequest,
        wait: WaitArgs,
        grants: &mut Vec<LockGrant>,
    ) -> Result<LockWait, Errno> {
        check(request)?;
        let wait_id = WaitId { session, ticket: wait.ticket };
        if request.kind == LockKind::Unlock || self.waits.contains_key(&wait_id) {
            return Err(Errno::EINVAL);
        }
        let holder = LockHolder { session, owner: request.owner };
        let outcome = match self.try_now(holder, through, request) {
            Ok(()) => Ok(LockWait::Granted),
            Err(Errno::EAGAIN) => {
                let waiter = Waiter { id: wait_id, holder, through, request: *request, is_ofd: wait.is_ofd };
                self.enqueue(waiter, wait.now).map(|()| LockWait::Queued)
            }
            Err(errno) => Err(errno),
        };
        self.settle(request.inode, grants);
        outcome
    }

    /// Ends a waiting request (its caller was interrupted). `false` when it does not wait: a grant is on its way, or was.
    pub fn cancel(&mut self, session: SessionId, ticket: u64) -> bool {
        let wait_id = WaitId { session, ticket };
        let doubt = self.doubts.end(wait_id);
        let Some((inode, holder)) = self.waits.remove(&wait_id) else { return false };
        if let Some(doubt) = doubt
            && let Some(waiter) = self.files.get(&inode).and_then(|file| file.waiter(wait_id))
        {
            self.doubts.note_interrupted(waiter, doubt);
        }
        self.change(inode, holder, |file| file.waiting.retain(|waiter| waiter.id != wait_id));
        true
    }

    /// The first lock that would refuse a range request (`F_GETLK`), or a flock.
    ///
    /// # Errors
    /// `EINVAL` as [`LockTable::lock`], and for an unlock.
    pub fn test(&self, session: SessionId, request: &LockRequest) -> Result<Option<LockConflict>, Errno> {
        check(request)?;
        if request.kind == LockKind::Unlock {
            return Err(Errno::EINVAL);
        }
        let holder = LockHolder { session, owner: request.owner };
        let first = |file: &FileLocks| file.conflicts(holder, request).next().map(|held| file.shown(held));
        Ok(self.files.get(&request.inode).and_then(first))
    }

    /// Drops the range locks (or the flock) that an owner holds on a file, all, because a descriptor was closed, or those taken through
    /// one description, because that has ended. Waiting requests stay.
    pub fn release(
        &mut self,
        session: SessionId,
        (owner, through): (LockOwner, Option<DescriptionId>),
        (inode, is_flock): (InodeId, bool),
        grants: &mut Vec<LockGrant>,
    ) {
        let holder = LockHolder { session, owner };
        self.change(inode, holder, |file| file.drop_held(holder, is_flock, through));
        self.settle(inode, grants);
    }

    /// Whether something on a file is held or waited for through a description of a session.
    pub fn has_description(&self, session: SessionId, through: DescriptionId, inode: InodeId) -> bool {
        self.files.get(&inode).is_some_and(|file| file.of_description(session, through).next().is_some())
    }

    /// Drops whatever is held or waited for on a file through a description of a session, which has ended: what its owners have not dropped, because that did not arrive, nobody holds.
    pub fn release_description(
        &mut self,
        session: SessionId,
        through: DescriptionId,
        inode: InodeId,
        grants: &mut Vec<LockGrant>,
    ) {
        let Some(file) = self.files.get(&inode) else { return };
        let holders: BTreeSet<LockHolder> = file.of_description(session, through).collect();
        holders.into_iter().for_each(|holder| self.drop_all(holder, inode, Some(through)));
        self.settle(inode, grants);
    }

    /// Ends waits that began [`DESCRIPTION_END_MAX`] ago with `EDEADLK` if they may have been part of a deadlock then, and are.
    /// To be called every now and then; costs nothing when there are none.
    pub fn end_deadlocks(&mut self, now: Duration, grants: &mut Vec<LockGrant>) {
        for (wait, doubt) in self.doubts.take_due(now) {
            let place = self.waits.get(&wait).copied();
            let waiter = place.and_then(|(inode, _)| self.files.get(&inode)?.waiter(wait));
            let Some(waiter) = waiter else { continue };
            if deadlock::closes_a_cycle(self, &waiter, doubt.mark) {
                if self.cancel(wait.session, wait.ticket) {
                    grants.push(LockGrant { wait, outcome: Err(Errno::EDEADLK) });
                }
            } else if deadlock::may_close_a_cycle(self, &waiter) {
                // A part of it was taken meanwhile, which may be of a description that is closed: that will have been told next time.
                let mark = self.next_mark();
                self.doubts.begin(wait, Doubt { since: now, mark });
            }
        }
    }

    /// Drops everything an owner holds or waits for, on all files.
    pub fn release_owner(&mut self, session: SessionId, owner: LockOwner, grants: &mut Vec<LockGrant>) {
        let holder = LockHolder { session, owner };
        self.release_range((holder, InodeId(0)), (holder, InodeId(u64::MAX)), grants);
    }

    /// Drops everything a session holds or waits for: it has ended.
    pub fn release_session(&mut self, session: SessionId, grants: &mut Vec<LockGrant>) {
        let first = LockHolder { session, owner: LockOwner(0) };
        let last = LockHolder { session, owner: LockOwner(u64::MAX) };
        self.release_range((first, InodeId(0)), (last, InodeId(u64::MAX)), grants);
    }

    /// Whether a request of `session` waits under `ticket`.
    pub fn waits(&self, session: SessionId, ticket: u64) -> bool {
        self.waits.contains_key(&WaitId { session, ticket })
    }

    /// For each session that holds locks or waits for them: on how many files, each counted once per owner of locks.
    pub fn files_by_session(&self) -> FxHashMap<SessionId, u64> {
        let mut counts = FxHashMap::default();
        self.index.iter().for_each(|(holder, _)| *counts.entry(holder.session).or_default() += 1);
        counts
    }

    /// Held ranges and flocks.
    pub fn held_count(&self) -> usize {
        self.held
    }

    /// Waiting requests.
    pub fn waiting_count(&self) -> usize {
        self.waits.len()
    }

    fn release_range(
        &mut self,
        from: (LockHolder, InodeId),
        to: (LockHolder, InodeId),
        grants: &mut Vec<LockGrant>,
    ) {
        let places: Vec<(LockHolder, InodeId)> = self.index.range(from..=to).copied().collect();
        // Everything goes before anybody is granted: a request of the same session must not be granted on the way.
        places.iter().for_each(|&(holder, inode)| self.drop_all(holder, inode, None));
        for (_, inode) in places {
            self.settle(inode, grants);
        }
    }

    /// Drops what `holder` holds or waits for on a file, through one description or any.
    fn drop_all(&mut self, holder: LockHolder, inode: InodeId, through: Option<DescriptionId>) {
        let gone = self.change(inode, holder, |file| {
            file.drop_held(holder, true, through);
            file.drop_held(holder, false, through);
            file.drop_waiting(holder, through)
        });
        for wait_id in gone {
            self.forget_wait(wait_id);
        }
    }

    /// Takes the lock if nothing is in the way.
    fn try_now(
        &mut self,
        holder: LockHolder,
        through: DescriptionId,
        request: &LockRequest,
    ) -> Result<(), Errno> {
        let wanted = Held::wanted(holder, through, request, self.next_mark());
        let room = self.limits.held_max.saturating_sub(self.held);
        let per_file_max = self.limits.held_per_file_max;
        self.change(request.inode, holder, |file| {
            let room = room.min(per_file_max.saturating_sub(file.held_count()));
            if request.is_flock {
                file.flock(wanted, request, room)
            } else {
                file.lock_range(wanted, request, room)
            }
        })
    }

    fn next_mark(&mut self) -> u64 {
        self.last_mark += 1;
        self.last_mark
    }

    fn forget_wait(&mut self, wait_id: WaitId) -> Option<(InodeId, LockHolder)> {
        self.doubts.end(wait_id);
        self.waits.remove(&wait_id)
    }

    fn enqueue(&mut self, waiter: Waiter, now: Duration) -> Result<(), Errno> {
        let is_process = !waiter.is_ofd && !waiter.request.is_flock;
        if is_process && deadlock::closes_a_cycle(self, &waiter, 0) {
            return Err(Errno::EDEADLK);
        }
        let is_doubtful = is_process && deadlock::may_close_a_cycle(self, &waiter);
        if self.waits.len() >= self.limits.waiting_max {
            return Err(Errno::ENOLCK);
        }
        self.waits.insert(waiter.id, (waiter.request.inode, waiter.holder));
        if is_doubtful {
            // A call that a signal has interrupted begins anew, and signals may come more often than doubts are looked at.
            let fresh = Doubt { since: now, mark: self.next_mark() };
            let doubt = self.doubts.take_interrupted(&waiter).unwrap_or(fresh);
            self.doubts.begin(waiter.id, doubt);
        }
        self.change(waiter.request.inode, waiter.holder, |file| file.waiting.push_back(waiter));
        Ok(())
    }

    /// Grants what nothing is in the way of any more.
    fn settle(&mut self, inode: InodeId, grants: &mut Vec<LockGrant>) {
        let mut at = 0;
        while let Some(file) = self.files.get(&inode)
            && let Some(waiter) = file.waiting.get(at).copied()
        {
            if file.conflicts(waiter.holder, &waiter.request).next().is_some() {
                at += 1;
                continue;
            }
            let outcome = self.try_now(waiter.holder, waiter.through, &waiter.request);
            self.forget_wait(waiter.id);
            self.change(inode, waiter.holder, |file| file.waiting.remove(at));
            grants.push(LockGrant { wait: waiter.id, outcome });
            if waiter.request.kind == LockKind::Read {
                // It may have replaced an exclusive lock: those who came before it get another chance.
                at = 0;
            }
        }
    }

    /// Changes a file's locks for `holder` and keeps counts and index with them.
    fn change<T>(
        &mut self,
        inode: InodeId,
        holder: LockHolder,
        change: impl FnOnce(&mut FileLocks) -> T,
    ) -> T {
        let file = self.files.entry(inode).or_default();
        let before = file.held_count();
        let result = change(file);
        self.held = self.held + file.held_count() - before;
        if file.has(holder) {
            self.index.insert((holder, inode));
        } else {
            self.index.remove(&(holder, inode));
        }
        if file.is_empty() {
            self.files.remove(&inode);
        }
        result
    }
}

fn check(request: &LockRequest) -> Result<(), Errno> {
    let is_range = request.range.start <= request.range.end && request.range.end <= LOCK_END_MAX;
    if is_range || request.is_flock { Ok(()) } else { Err(Errno::EINVAL) }
}
