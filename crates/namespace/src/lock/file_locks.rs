//! The locks of one file: ranges by ascending start, flocks, and the requests that wait, in the order they came.
//!
//! Ranges of one holder never overlap, and touching ones of the same kind are one.

use super::{LOCK_END_MAX, LockConflict, LockHolder, WaitId};
use ashlar_types::Errno;
use ashlar_types::message::{LockKind, LockRange, LockRequest};
use std::collections::VecDeque;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: WaitId,
    pub(super) holder: LockHolder,
    pub(super) request: LockRequest,
    pub(super) is_ofd: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    holder: LockHolder,
    kind: LockKind,
    range: LockRange,
    pid: u32,
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
    ) -> impl Iterator<Item = LockConflict> + use<'a> {
        let (list, range) =
            if request.is_flock { (&self.flocks, WHOLE) } else { (&self.ranges, request.range) };
        let kind = request.kind;
        list.iter()
            .take_while(move |held| held.range.start <= range.end)
            .filter(move |held| held.holder != holder && kind != LockKind::Unlock)
            .filter(move |held| overlap(held.range, range) && excludes(held.kind, kind))
            .map(|held| LockConflict {
                holder: held.holder,
                kind: held.kind,
                range: held.range,
                pid: held.pid,
            })
    }

    /// Sets what `holder` has of the whole file. The old lock goes first, even when the new one is refused.
    pub(super) fn flock(
        &mut self,
        holder: LockHolder,
        request: &LockRequest,
        room: usize,
    ) -> Result<(), Errno> {
        let old = self.flocks.iter().find(|held| held.holder == holder);
        if old.is_some_and(|held| held.kind == request.kind) {
            return Ok(());
        }
        let room = room + usize::from(old.is_some());
        self.drop_held(holder, true);
        if request.kind == LockKind::Unlock {
            return Ok(());
        }
        if self.conflicts(holder, request).next().is_some() {
            return Err(Errno::EAGAIN);
        }
        if room == 0 {
            return Err(Errno::ENOLCK);
        }
        self.flocks.push(Held { holder, kind: request.kind, range: WHOLE, pid: request.pid });
        Ok(())
    }

    /// Sets what `holder` has of a range, or nothing of it, if no other holder is in the way and at most `room` more records come
    /// of it.
    pub(super) fn lock_range(
        &mut self,
        holder: LockHolder,
        request: &LockRequest,
        room: usize,
    ) -> Result<(), Errno> {
        if self.conflicts(holder, request).next().is_some() {
            return Err(Errno::EAGAIN);
        }
        let mut range = request.range;
        let mut rest: Vec<Held> = Vec::new();
        let mut replaced = 0;
        for old in self.ranges.iter().filter(|held| held.holder == holder && meet(held.range, request.range))
        {
            if old.kind == request.kind {
                replaced += 1;
                (range.start, range.end) = (range.start.min(old.range.start), range.end.max(old.range.end));
            } else if overlap(old.range, request.range) {
                replaced += 1;
                rest.extend(cut(old, request.range));
            }
        }
        if request.kind != LockKind::Unlock {
            rest.push(Held { holder, kind: request.kind, range, pid: request.pid });
        }
        if rest.len() > replaced + room {
            return Err(Errno::ENOLCK);
        }
        self.ranges.retain(|held| {
            let is_merged = held.kind == request.kind && meet(held.range, request.range);
            held.holder != holder || !(is_merged || overlap(held.range, request.range))
        });
        for held in rest {
            let at = self.ranges.partition_point(|other| other.range.start <= held.range.start);
            self.ranges.insert(at, held);
        }
        Ok(())
    }

    /// Drops what `holder` holds in ranges, or as a flock.
    pub(super) fn drop_held(&mut self, holder: LockHolder, is_flock: bool) {
        let list = if is_flock { &mut self.flocks } else { &mut self.ranges };
        list.retain(|held| held.holder != holder);
    }

    /// Drops the requests of `holder` that wait, and names them.
    pub(super) fn drop_waiting(&mut self, holder: LockHolder) -> Vec<WaitId> {
        let of_holder = self.waiting.iter().filter(|waiter| waiter.holder == holder);
        let gone = of_holder.map(|waiter| waiter.id).collect();
        self.waiting.retain(|waiter| waiter.holder != holder);
        gone
    }
}

/// What is left of `held` outside `range`, which overlaps it.
fn cut(held: &Held, range: LockRange) -> impl Iterator<Item = Held> {
    let left =
        (held.range.start < range.start).then(|| LockRange { start: held.range.start, end: range.start - 1 });
    let right = (held.range.end > range.end).then(|| LockRange { start: range.end + 1, end: held.range.end });
    let held = *held;
    left.into_iter().chain(right).map(move |range| Held { range, ..held })
}
