//! Nobody is removed without a cause: a copy that could answer all along stays in sync.

use super::{MANAGERS, NODES, Site};
use std::time::Duration;

/// Who has been in sync for so short has not been waited for yet, whatever happened to it.
const PROMOTED_MIN: Duration = Duration::from_secs(1);
/// For so long after something has kept a copy from answering it may be removed for that: others wait for it for 10 s, and it may have been the only one that noticed.
const BLAMED_FOR: Duration = Duration::from_secs(12);

/// What is known of each node, by number.
#[derive(Default)]
pub(super) struct Blame {
    promoted_at: [Option<Duration>; NODES],
    disturbed_until: [Option<Duration>; NODES],
}

impl Blame {
    /// Something keeps node `at` from answering until `until`.
    pub(super) fn disturbed(&mut self, at: usize, until: Duration) {
        let known = &mut self.disturbed_until[at];
        *known = (*known).max(Some(until));
    }

    /// Node `at` is started anew, and does something from `from` on: nothing else that was so with it before keeps it from answering.
    pub(super) fn started(&mut self, at: usize, from: Duration) {
        self.disturbed_until[at] = Some(from);
    }

    pub(super) fn promoted(&mut self, at: usize, now: Duration) {
        self.promoted_at[at] = Some(now);
    }
}

/// Node `by` has had node `at` removed.
pub(super) fn look(site: &Site, by: usize, at: usize) {
    let now = site.now();
    let cut: Vec<usize> = site
        .cut
        .lock()
        .iter()
        .flat_map(|(one, other)| [*one, *other])
        .filter(|node| *node != MANAGERS)
        .collect();
    let blame = site.blame.lock();
    let since = blame.promoted_at[at].map(|promoted| now.saturating_sub(promoted));
    let is_promoted_now = since.is_some_and(|since| since < PROMOTED_MIN);
    let was_disturbed =
        |node: usize| blame.disturbed_until[node].is_some_and(|until| now < until + BLAMED_FOR);
    let had_cause = |node: usize| cut.contains(&node) || was_disturbed(node);
    let has_cause = had_cause(at) || had_cause(by);
    drop(blame);
    if is_promoted_now {
        site.fail(format!("node {by} has node {at} removed, which is in sync since {since:?}"));
    } else if !has_cause {
        site.fail(format!("node {by} has node {at} removed, and nothing has kept either from answering"));
    }
}
