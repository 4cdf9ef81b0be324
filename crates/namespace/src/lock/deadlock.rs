//! Deadlock detection for range locks of processes: a walk over who waits for whom.

use super::file_locks::Waiter;
use super::{LockHolder, LockTable};
use ashlar_types::{DescriptionId, InodeId};
use std::collections::BTreeSet;

/// Most locks in the way, files of those who hold them, and requests that wait there, that one walk looks at.
// LIMIT: beyond it the request waits, as if there were no cycle: Linux gives up after ten steps, for the same reason.
const STEPS_MAX: usize = 10_000;

/// Whoever is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Blocker {
    holder: LockHolder,
    /// Through which description he has what is in the way, if another that waits under the same name may be somebody else: an
    /// address that was of a description that is closed. One that waits is not closed.
    through: Option<DescriptionId>,
}

impl Blocker {
    /// Whether it is he who makes `waiter`.
    fn waits_as(&self, waiter: &Waiter) -> bool {
        self.holder == waiter.holder && self.through.is_none_or(|through| through == waiter.through)
    }
}

/// Whether the request `waiter` waits for itself, or would, if all who have the same name are the same.
pub(super) fn may_close_a_cycle(table: &LockTable, waiter: &Waiter) -> bool {
    closes_a_cycle(table, waiter, u64::MAX)
}

/// Whether the request `waiter` waits for itself, or would if it waited. Of locks taken before `mark` it is known that they are not of a
/// description that is closed.
pub(super) fn closes_a_cycle(table: &LockTable, waiter: &Waiter, mark: u64) -> bool {
    let mut steps = 0;
    let mut seen: BTreeSet<Blocker> = BTreeSet::new();
    let mut open: Vec<Blocker> = blockers(table, waiter, mark, &mut steps);
    while let Some(next) = open.pop() {
        if next.waits_as(waiter) {
            return true;
        }
        if !seen.insert(next) {
            continue;
        }
        let files = (next.holder, InodeId(0))..=(next.holder, InodeId(u64::MAX));
        for (_, inode) in table.index.range(files) {
            let Some(file) = table.files.get(inode) else { continue };
            steps += 1 + file.waiting.len();
            if steps >= STEPS_MAX {
                return false;
            }
            let of_next = file.waiting.iter().filter(|waiter| next.waits_as(waiter));
            for waiter in of_next.filter(|waiter| !waiter.is_ofd && !waiter.request.is_flock) {
                open.append(&mut blockers(table, waiter, mark, &mut steps));
            }
        }
    }
    false
}

/// Who holds what `waiter` waits for.
fn blockers(table: &LockTable, waiter: &Waiter, mark: u64, steps: &mut usize) -> Vec<Blocker> {
    let Some(file) = table.files.get(&waiter.request.inode) else { return Vec::new() };
    let left = STEPS_MAX.saturating_sub(*steps);
    let in_the_way = file.conflicts(waiter.holder, &waiter.request).take(left);
    let found: Vec<Blocker> = in_the_way
        .map(|held| Blocker { holder: held.holder, through: (held.mark >= mark).then_some(held.through) })
        .collect();
    *steps += found.len().max(1);
    found
}
