//! The locks of one file: ranges by ascending start, flocks, and the requests that wait, in the order they came.
//!
//! Ranges of one holder never overlap, and touching ones of the same kind that were taken through the same description are one.

use super::{LOCK_END_MAX, LockConflict, LockHeld, LockHolder, WaitId};
use ashlar_types::message::{LockKind, LockRange, LockRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, SessionId};
use std::collections::VecDeque;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: WaitId,
    pub(super) holder: LockHolder,
    pub(super) through: DescriptionId,
    pub(super) request: LockRequest,
    pub(super) is_ofd: bool,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) holder: LockHolder,
    pub(super) through: DescriptionId,
    kind: LockKind,
    range: LockRange,
    pid: u32,
    /// When it, or the newest part of it, was taken, in the count of the table.
    pub(super) mark: u64,
}

impl Held {
    /// What `request` asks for.
    pub(super) fn wanted(
        holder: LockHolder,
        through: DescriptionId,
        request: &LockRequest,
        mark: u64,
    ) -> Held {
        let range = if request.is_flock { WHOLE } else { request.range };
        Held { holder, through, kind: request.kind, range, pid: request.pid, mark }
    }

    /// Whether it and `wanted`, which touches it, become one.
    fn joins(&self, wanted: &Held) -> bool {
        (self.holder, self.through, self.kind) == (wanted.holder, wanted.through, wanted.kind)
            && meet(self.range, wanted.range)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    ranges: Vec<Held>,
    flocks: Vec<Held>,
    pub(super) waiting: VecDeque<Waiter>,
}

const WHOLE: LockRange = LockRange { start: 0, end: LOCK_END_MAX };

fn excludes(one: LockKind, other: LockKind) -> bool {
    one == LockKind::Write || other == LockKind::Write
}

fn overlap(one: LockRange, other: LockRange) -> bool {
    one.start <= other.end && other.start <= one.end
}

/// Whether two ranges overlap or touch. Ends are at most 2^63-1, so that adding 1 cannot overflow.
fn meet(one: LockRange, other: LockRange) -> bool {
    one.start <= other.end + 1 && other.start <= one.end + 1
}

impl FileLocks {
    /// Held ranges and flocks.
    pub(super) fn held_count(&self) -> usize {
        self.ranges.len() + self.flocks.len()
    }

    /// What is held on the file, which is `inode`, as requests that would take it.
    pub(super) fn held(&self, inode: InodeId) -> impl Iterator<Item = LockHeld> + use<'_> {
        let ranges = self.ranges.iter().map(|held| (held, false));
        let all = ranges.chain(self.flocks.iter().map(|held| (held, true)));
        all.map(move |(held, is_flock)| {
            let Held { holder, through, kind, range, pid, .. } = *held;
            let request = LockRequest { inode, owner: holder.owner, kind, range, pid, is_flock };
            LockHeld { session: holder.session, through, request }
        })
    }

    /// Whether nothing is held or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.held_count() == 0 && self.waiting.is_empty()
    }

    /// Whether `holder` holds or waits.
    pub(super) fn has(&self, holder: LockHolder) -> bool {
        self.ranges.iter().chain(&self.flocks).any(|held| held.holder == holder)
            || self.waiting.iter().any(|waiter| waiter.holder == holder)
    }

    /// What other holders have that refuses `request`.
    pub(super) fn conflicts<'a>(
        &'a self,
        holder: LockHolder,
        request: &LockRequest,
    ) -> impl Iterator<Item = &'a Held> + use<'a> {
        let (list, range) =
            if request.is_flock { (&self.flocks, WHOLE) } else { (&self.ranges, request.range) };
        let kind = request.kind;
        list.iter()
            .take_while(move |held| held.range.start <= range.end)
            .filter(move |held| held.holder != holder && kind != LockKind::Unlock)
            .filter(move |held| overlap(held.range, range) && excludes(held.kind, kind))
    }

    /// `held` as a caller sees it: one lock with what the same holder has beside it, through whichever description.
    pub(super) fn shown(&self, held: &Held) -> LockConflict {
        let &Held { holder, kind, mut range, pid, .. } = held;
        let same = || self.ranges.iter().filter(|other| other.holder == holder && other.kind == kind);
        for other in same() {
            if other.range.start == range.end + 1 {
                range.end = other.range.end;
            }
        }
        for other in same().rev() {
            if other.range.end + 1 == range.start {
                range.start = other.range.start;
            }
        }
        LockConflict { holder, kind, range, pid }
    }

    /// The request that waits as `id`.
    pub(super) fn waiter(&self, id: WaitId) -> Option<Waiter> {
        self.waiting.iter().find(|waiter| waiter.id == id).copied()
    }

    /// Sets what `holder` has of the whole file. The old lock goes first, even when the new one is refused.
    pub(super) fn flock(&mut self, wanted: Held, request: &LockRequest, room: usize) -> Result<(), Errno> {
        let holder = wanted.holder;
        let old = self.flocks.iter().find(|held| held.holder == holder);
        if old.is_some_and(|held| held.kind == request.kind) {
            return Ok(());
        }
        let room = room + usize::from(old.is_some());
        self.drop_held(holder, true, None);
        if request.kind == LockKind::Unlock {
            return Ok(());
        }
        if self.conflicts(holder, request).next().is_some() {
            return Err(Errno::EAGAIN);
        }
        if room == 0 {
            return Err(Errno::ENOLCK);
        }
        self.flocks.push(wanted);
        Ok(())
    }

    /// Sets what a holder has of a range to `wanted`, which is what `request` asks for, or to nothing, if no other holder is in the way
    /// and at most `room` more records come of it.
    pub(super) fn lock_range(
        &mut self,
        mut wanted: Held,
        request: &LockRequest,
        room: usize,
    ) -> Result<(), Errno> {
        let (holder, asked) = (wanted.holder, wanted);
        if self.conflicts(holder, request).next().is_some() {
            return Err(Errno::EAGAIN);
        }
        let mut rest: Vec<Held> = Vec::new();
        let mut replaced = 0;
        for old in self.ranges.iter().filter(|held| held.holder == holder && meet(held.range, request.range))
        {
            if old.joins(&asked) {
                replaced += 1;
                if covers(old.range, asked.range) {
                    // Nothing of it is new.
                    wanted.mark = old.mark;
                }
                wanted.range.start = wanted.range.start.min(old.range.start);
                wanted.range.end = wanted.range.end.max(old.range.end);
            } else if overlap(old.range, request.range) {
                replaced += 1;
                rest.extend(cut(old, request.range));
            }
        }
        if request.kind != LockKind::Unlock {
            rest.push(wanted);
        }
        if rest.len() > replaced + room {
            return Err(Errno::ENOLCK);
        }
        self.ranges.retain(|held| {
            held.holder != holder || !(held.joins(&asked) || overlap(held.range, request.range))
        });
        for held in rest {
            let at = self.ranges.partition_point(|other| other.range.start <= held.range.start);
            self.ranges.insert(at, held);
        }
        Ok(())
    }

    /// Drops what `holder` holds in ranges, or as a flock: what it took through `through`, or all.
    pub(super) fn drop_held(&mut self, holder: LockHolder, is_flock: bool, through: Option<DescriptionId>) {
        let list = if is_flock { &mut self.flocks } else { &mut self.ranges };
        list.retain(|held| held.holder != holder || through.is_some_and(|through| through != held.through));
    }

    /// Drops the requests of `holder` that wait, those made through `through`, or all, and names them.
    pub(super) fn drop_waiting(&mut self, holder: LockHolder, through: Option<DescriptionId>) -> Vec<WaitId> {
        let is_meant = |waiter: &Waiter| {
            waiter.holder == holder && through.is_none_or(|through| through == waiter.through)
        };
        let gone = self.waiting.iter().filter(|waiter| is_meant(waiter)).map(|waiter| waiter.id).collect();
        self.waiting.retain(|waiter| !is_meant(waiter));
        gone
    }

    /// Who holds or waits for something through a description of a session; some more than once.
    pub(super) fn of_description(
        &self,
        session: SessionId,
        through: DescriptionId,
    ) -> impl Iterator<Item = LockHolder> + use<'_> {
        let held = self.ranges.iter().chain(&self.flocks).map(|held| (held.holder, held.through));
        let all = held.chain(self.waiting.iter().map(|waiter| (waiter.holder, waiter.through)));
        all.filter(move |(holder, by)| holder.session == session && *by == through).map(|(holder, _)| holder)
    }
}

fn covers(range: LockRange, part: LockRange) -> bool {
    range.start <= part.start && range.end >= part.end
}

/// What is left of `held` outside `range`, which overlaps it.
fn cut(held: &Held, range: LockRange) -> impl Iterator<Item = Held> {
    let left =
        (held.range.start < range.start).then(|| LockRange { start: held.range.start, end: range.start - 1 });
    let right = (held.range.end > range.end).then(|| LockRange { start: range.end + 1, end: held.range.end });
    let held = *held;
    left.into_iter().chain(right).map(move |range| Held { range, ..held })
}
