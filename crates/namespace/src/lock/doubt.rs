//! Requests that may be part of a deadlock: it cannot be told yet whether somebody in it is only known by the name of somebody who is gone.

use super::file_locks::Waiter;
use super::{DESCRIPTION_END_MAX, WaitId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Most interrupted requests that are remembered.
// LIMIT: one that is forgotten is looked at later, when it has not been interrupted for a while.
const INTERRUPTED_MAX: usize = 256;

/// Since when a request may be part of a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// By the clock.
    pub(super) since: Duration,
    /// In the count of the table.
    pub(super) mark: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    // LIMIT: one for each request that waits.
    waiting: BTreeMap<WaitId, Doubt>,
    /// Those whose callers were interrupted, and when that was first seen: they are asked again at once, or not at all.
    interrupted: VecDeque<(Waiter, Doubt, Option<Duration>)>,
}

impl Doubts {
    pub(super) fn begin(&mut self, wait: WaitId, doubt: Doubt) {
        self.waiting.insert(wait, doubt);
    }

    pub(super) fn end(&mut self, wait: WaitId) -> Option<Doubt> {
        self.waiting.remove(&wait)
    }

    /// Those that are old enough to be decided; they are no doubts any more.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<(WaitId, Doubt)> {
        let is_old = |since: Duration| now.saturating_sub(since) >= DESCRIPTION_END_MAX;
        self.interrupted.retain_mut(|(_, _, seen)| !is_old(*seen.get_or_insert(now)));
        let mut due = Vec::new();
        self.waiting.retain(|&wait, &mut doubt| {
            let is_due = is_old(doubt.since);
            if is_due {
                due.push((wait, doubt));
            }
            !is_due
        });
        due
    }

    /// The caller of `waiter` was interrupted.
    pub(super) fn note_interrupted(&mut self, waiter: Waiter, doubt: Doubt) {
        if self.interrupted.len() == INTERRUPTED_MAX {
            self.interrupted.pop_front();
        }
        self.interrupted.push_back((waiter, doubt, None));
    }

    /// What was known of `waiter`, if it is one that was interrupted and asks again.
    pub(super) fn take_interrupted(&mut self, waiter: &Waiter) -> Option<Doubt> {
        let is_same = |known: &Waiter| {
            (known.holder, known.through, known.request) == (waiter.holder, waiter.through, waiter.request)
        };
        let at = self.interrupted.iter().position(|(known, ..)| is_same(known))?;
        self.interrupted.remove(at).map(|(_, doubt, _)| doubt)
    }
}
