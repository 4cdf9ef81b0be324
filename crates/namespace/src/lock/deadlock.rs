//! Deadlock detection for range locks of processes: a walk over who waits for whom.

use super::{LockHolder, LockTable};
use ashlar_types::InodeId;
use ashlar_types::message::LockRequest;
use std::collections::BTreeSet;

/// Most locks in the way that one walk looks at.
// LIMIT: beyond it the request waits, as if there were no cycle: Linux gives up after ten steps, for the same reason.
const STEPS_MAX: usize = 10_000;

/// Whether `holder` would wait for itself if it waited for `request`.
pub(super) fn would_close_a_cycle(table: &LockTable, holder: LockHolder, request: &LockRequest) -> bool {
    let mut steps = 0;
    let mut seen: BTreeSet<LockHolder> = BTreeSet::new();
    let mut open: Vec<LockHolder> = blockers(table, holder, request, &mut steps);
    while let Some(next) = open.pop() {
        if next == holder {
            return true;
        }
        if !seen.insert(next) {
            continue;
        }
        let files = (next, InodeId(0))..=(next, InodeId(u64::MAX));
        for (_, inode) in table.index.range(files) {
            let Some(file) = table.files.get(inode) else { continue };
            let of_next = file.waiting.iter().filter(|waiter| waiter.holder == next);
            for waiter in of_next.filter(|waiter| !waiter.is_ofd && !waiter.request.is_flock) {
                open.append(&mut blockers(table, next, &waiter.request, &mut steps));
                if steps >= STEPS_MAX {
                    return false;
                }
            }
        }
    }
    false
}

/// Who holds what `request` of `holder` waits for.
fn blockers(
    table: &LockTable,
    holder: LockHolder,
    request: &LockRequest,
    steps: &mut usize,
) -> Vec<LockHolder> {
    let Some(file) = table.files.get(&request.inode) else { return Vec::new() };
    let left = STEPS_MAX.saturating_sub(*steps);
    let found: Vec<LockHolder> =
        file.conflicts(holder, request).take(left).map(|conflict| conflict.holder).collect();
    *steps += found.len().max(1);
    found
}
