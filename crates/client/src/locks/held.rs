//! The locks this client holds, as metadata knows them: a service that was started anew is told.
//!
//! A range lock of one owner replaces what that owner had in the range, as in the table of the service (`fs/locks.c` has the rules).

use ashlar_types::message::{LockKind, LockRange, LockRequest};
use ashlar_types::{DescriptionId, InodeId, LockOwner};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// A lock and the description it was taken through.
pub(crate) type Held = (LockRequest, DescriptionId);

/// See the module.
#[derive(Default)]
pub(crate) struct HeldLocks {
    // LIMIT: the service bounds what is held (ENOLCK).
    of: Mutex<ByOwner>,
}

type ByOwner = FxHashMap<(InodeId, LockOwner, bool), Vec<Held>>;

impl HeldLocks {
    /// The service has done what `request` says.
    pub(crate) fn note(&self, request: &LockRequest, through: DescriptionId) {
        note(&mut self.of.lock(), request, through);
    }

    /// The service is about to be asked for `request`. What it drops then is not held from now on: others may have it before the answer is here, and a service that was started anew must not be told that
    /// it is held. A flock that is to be converted is dropped first, also when the new one is refused or waited for (`flock(2)`). A range lock that is refused stays; but a read lock in place of
    /// whole locks of its owner is refused by nobody, and others read beside it from when the service is asked.
    pub(crate) fn note_before(&self, request: &LockRequest, through: DescriptionId) {
        let mut all = self.of.lock();
        let key = (request.inode, request.owner, request.is_flock);
        let Some(held) = all.get(&key) else { return };
        let is_converted = request.is_flock && held.iter().any(|(had, _)| had.kind != request.kind);
        let is_sure = !request.is_flock && request.kind == LockKind::Read && is_covered(held, request.range);
        if request.kind == LockKind::Unlock || is_sure {
            note(&mut all, request, through);
        } else if is_converted {
            all.remove(&key);
        }
    }

    /// The service has granted `request`; noted if that still counts when whoever takes or tells what is noted waits for this. Whether it is.
    pub(crate) fn note_while(
        &self,
        request: &LockRequest,
        through: DescriptionId,
        counts: impl FnOnce() -> bool,
    ) -> bool {
        let mut all = self.of.lock();
        let does_count = counts();
        if does_count {
            note(&mut all, request, through);
        }
        does_count
    }

    /// The locks of `owner` on `inode` have been dropped: all, or those taken through one description.
    pub(crate) fn release(
        &self,
        (inode, is_flock): (InodeId, bool),
        owner: LockOwner,
        through: Option<DescriptionId>,
    ) {
        let key = (inode, owner, is_flock);
        let mut all = self.of.lock();
        let Some(held) = all.get_mut(&key) else { return };
        held.retain(|(_, taken)| through.is_some_and(|through| through != *taken));
        if held.is_empty() {
            all.remove(&key);
        }
    }

    /// All of them, which are not held any more.
    pub(crate) fn take(&self) -> Vec<Held> {
        self.of.lock().drain().flat_map(|(_, held)| held).collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Held> {
        self.of.lock().values().flatten().copied().collect()
    }
}

fn note(all: &mut ByOwner, request: &LockRequest, through: DescriptionId) {
    let key = (request.inode, request.owner, request.is_flock);
    let held = all.entry(key).or_default();
    if request.is_flock {
        held.clear();
    } else {
        *held = held.iter().flat_map(|lock| outside(lock, request.range)).collect();
    }
    if request.kind != LockKind::Unlock {
        add(held, (*request, through));
    }
    if held.is_empty() {
        all.remove(&key);
    }
}

/// Whether the locks of one owner, none of which overlaps another, cover `range`, and nothing beside it: who replaces them has no more locks than before.
fn is_covered(held: &[Held], range: LockRange) -> bool {
    let bytes = |start: u64, end: u64| (u128::from(end) + 1).saturating_sub(u128::from(start));
    let is_in = |(lock, _): &&Held| range.start <= lock.range.start && lock.range.end <= range.end;
    let covered = held.iter().filter(is_in).map(|(lock, _)| bytes(lock.range.start, lock.range.end));
    covered.sum::<u128>() == bytes(range.start, range.end)
}

/// What is left of a lock beside `range`.
fn outside(lock: &Held, range: LockRange) -> impl Iterator<Item = Held> {
    let (request, through) = *lock;
    let LockRange { start, end } = request.range;
    let piece = move |start, end| (LockRequest { range: LockRange { start, end }, ..request }, through);
    let (left, right) = if end < range.start || start > range.end {
        (Some(piece(start, end)), None)
    } else {
        (
            (start < range.start).then(|| piece(start, range.start.saturating_sub(1))),
            (end > range.end).then(|| piece(range.end.saturating_add(1), end)),
        )
    };
    left.into_iter().chain(right)
}

/// Adds a lock that overlaps none, as one with its like beside it: who locks a file piece by piece has one.
fn add(held: &mut Vec<Held>, (mut request, through): Held) {
    held.retain(|(other, taken)| {
        let is_like = *taken == through && other.kind == request.kind && !request.is_flock;
        let (start, end) = (request.range.start, request.range.end);
        if is_like && other.range.end.checked_add(1) == Some(start) {
            request.range.start = other.range.start;
        } else if is_like && end.checked_add(1) == Some(other.range.start) {
            request.range.end = other.range.end;
        } else {
            return true;
        }
        false
    });
    held.push((request, through));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(kind: LockKind, start: u64, end: u64) -> LockRequest {
        let range = LockRange { start, end };
        LockRequest { inode: InodeId(7), owner: LockOwner(1), pid: 1, kind, range, is_flock: false }
    }

    fn shown(held: &HeldLocks) -> Vec<(LockKind, u64, u64)> {
        let mut all: Vec<_> = held
            .all()
            .into_iter()
            .map(|(request, _)| (request.kind, request.range.start, request.range.end))
            .collect();
        all.sort_by_key(|(_, start, _)| *start);
        all
    }

    #[test]
    fn a_lock_replaces_what_its_owner_had_there() {
        use LockKind::{Read, Unlock, Write};
        let (held, one) = (HeldLocks::default(), DescriptionId(1));
        held.note(&range(Write, 0, 99), one);
        held.note(&range(Read, 10, 19), one);
        assert_eq!(shown(&held), [(Write, 0, 9), (Read, 10, 19), (Write, 20, 99)]);
        held.note(&range(Unlock, 5, 14), one);
        assert_eq!(shown(&held), [(Write, 0, 4), (Read, 15, 19), (Write, 20, 99)]);
        held.note(&range(Write, 5, 19), one);
        assert_eq!(shown(&held), [(Write, 0, 99)], "pieces that are alike are one");
        held.note(&range(Unlock, 0, u64::MAX >> 1), one);
        assert!(held.all().is_empty());
    }

    /// Told to a service that was started anew it would be in the way of who has it.
    #[test]
    fn what_the_service_drops_is_not_held_from_when_it_is_asked() {
        let held = HeldLocks::default();
        let flock = |kind| LockRequest { is_flock: true, ..range(kind, 0, 0) };
        held.note(&flock(LockKind::Read), DescriptionId(1));
        held.note(&range(LockKind::Read, 0, 9), DescriptionId(1));
        held.note_before(&flock(LockKind::Read), DescriptionId(1));
        assert_eq!(shown(&held).len(), 2, "nothing is converted");
        held.note_before(&flock(LockKind::Write), DescriptionId(1));
        held.note_before(&range(LockKind::Write, 0, 9), DescriptionId(1));
        assert_eq!(shown(&held), [(LockKind::Read, 0, 9)], "a range lock that is refused stays");
        held.note_before(&range(LockKind::Unlock, 0, 4), DescriptionId(1));
        assert_eq!(shown(&held), [(LockKind::Read, 5, 9)]);
    }

    /// Others may read from when the service is asked; told as a write lock it would be in their way.
    #[test]
    fn a_write_lock_is_a_read_lock_from_when_the_service_is_asked() {
        use LockKind::{Read, Write};
        let (held, one) = (HeldLocks::default(), DescriptionId(1));
        held.note(&range(Write, 0, 9), one);
        held.note(&range(Write, 20, u64::MAX), one);
        held.note_before(&range(Read, 5, 24), one);
        assert_eq!(shown(&held), [(Write, 0, 9), (Write, 20, u64::MAX)], "others may have what is between");
        held.note(&range(Read, 10, 19), one);
        held.note_before(&range(Read, 5, 24), one);
        assert_eq!(shown(&held).len(), 3, "there may be no room for the parts of a lock");
        held.note_before(&range(Read, 0, 19), one);
        assert_eq!(shown(&held), [(Read, 0, 19), (Write, 20, u64::MAX)]);
        held.note_before(&range(Read, 0, u64::MAX), one);
        assert_eq!(shown(&held), [(Read, 0, u64::MAX)]);
    }

    #[test]
    fn what_does_not_count_any_more_is_not_held() {
        let (held, one) = (HeldLocks::default(), DescriptionId(1));
        assert!(held.note_while(&range(LockKind::Read, 0, 9), one, || true));
        assert!(!held.note_while(&range(LockKind::Write, 0, 99), one, || false));
        assert_eq!(shown(&held), [(LockKind::Read, 0, 9)]);
    }

    #[test]
    fn what_was_taken_through_another_description_stays() {
        let held = HeldLocks::default();
        held.note(&range(LockKind::Write, 0, 9), DescriptionId(1));
        held.note(&range(LockKind::Write, 10, 19), DescriptionId(2));
        held.release((InodeId(7), false), LockOwner(1), Some(DescriptionId(1)));
        assert_eq!(shown(&held), [(LockKind::Write, 10, 19)]);
        held.release((InodeId(7), true), LockOwner(1), None);
        assert_eq!(shown(&held).len(), 1, "a flock is another lock");
        held.release((InodeId(7), false), LockOwner(1), None);
        assert!(shown(&held).is_empty());
    }

    #[test]
    fn a_conversion_of_a_flock_is_one_lock() {
        let held = HeldLocks::default();
        let flock = |kind| LockRequest { is_flock: true, ..range(kind, 0, 0) };
        held.note(&flock(LockKind::Read), DescriptionId(1));
        held.note(&flock(LockKind::Write), DescriptionId(1));
        assert_eq!(shown(&held), [(LockKind::Write, 0, 0)]);
    }
}
