//! Directories that are split at this server, and which of them wait for whom.
//!
//! A step of a split needs the directory and one slice, at another server mostly. So directories stand in lines, one for each server that is to take part in their next step, and a
//! thread works through each line: what waits for a server that is away is in the way of nothing else.

use ashlar_types::{Errno, InodeId, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Time between looks whether there is something to be done that nobody has told of: a shard has come, or something went wrong.
const IDLE: Duration = Duration::from_secs(1);
/// Shortest and longest time until a directory is tried again with which something went wrong: it doubles.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// After so many tries in a row that came to nothing the log says so: a shard that moves, or a server that is started anew, costs a few.
const TRIES_UNTOLD: u32 = 3;
/// Large directories that wait for their turn.
// LIMIT: others are noted again when they grow.
const GROWN_MAX: usize = 64;

/// What the next step of a directory waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// For all servers: its split begins.
    Beginnings,
    /// For this one, which has the slice that is filled next.
    At(NodeId),
}

/// What one thread works at.
#[derive(Default)]
struct Waiting {
    // LIMIT: of directories that are being split here.
    next: VecDeque<InodeId>,
    in_hand: Option<InodeId>,
}

/// How far a split is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Since when it has been going on, by the monotonic clock.
    pub since: Duration,
    /// Entries that were moved.
    pub moved: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    /// Whether there may be others that are being split, or their lines may be others.
    is_to_look: bool,
    grown: VecDeque<InodeId>,
    /// Those that are being split.
    // LIMIT: as there are in the log.
    halfway: BTreeMap<InodeId, Progress>,
    /// Those with a thread.
    // LIMIT: one more than there are metadata servers.
    lines: BTreeMap<Line, Waiting>,
    failing: Failing,
}

impl Queue {
    pub(super) fn note_look(&mut self) {
        self.is_to_look = true;
    }

    /// For how long there is nothing to be done unless somebody says so; `None`: there is.
    pub(super) fn idle(&self, now: Duration) -> Option<Duration> {
        if self.is_to_look || self.may_begin(now) && !self.lines.contains_key(&Line::Beginnings) {
            return None;
        }
        Some(if self.failing.0.is_empty() { IDLE } else { RETRY_MIN })
    }

    /// Whether to look what is being split here.
    pub(super) fn take_look(&mut self, now: Duration) -> bool {
        std::mem::take(&mut self.is_to_look) || self.failing.is_due(now)
    }

    /// Notes what is being split here.
    pub(super) fn note_halfway(&mut self, found: &BTreeSet<InodeId>, now: Duration) {
        self.halfway.retain(|directory, _| found.contains(directory));
        for directory in found {
            self.halfway.entry(*directory).or_insert(Progress { since: now, moved: 0 });
        }
        let (grown, lines) = (&self.grown, &self.lines);
        let is_in_hand = |directory: &InodeId| lines.values().any(|line| line.in_hand == Some(*directory));
        self.failing.0.retain(|directory, _| {
            found.contains(directory) || grown.contains(directory) || is_in_hand(directory)
        });
    }

    /// Those that are being split and that nobody works at, but for those that have to wait.
    pub(super) fn due(&self, now: Duration) -> Vec<InodeId> {
        let is_due =
            |directory: &InodeId| self.failing.may_try(*directory, now) && !self.is_in_hand(*directory);
        self.halfway.keys().copied().filter(is_due).collect()
    }

    /// Puts directories into lines, and tells those that need a thread; they are taken to have one from now on.
    pub(super) fn line_up(&mut self, due: Vec<(InodeId, NodeId)>, now: Duration) -> Vec<Line> {
        self.lines.values_mut().for_each(|line| line.next.clear());
        let mut idle = Vec::new();
        for (directory, server) in due {
            if self.is_in_hand(directory) {
                continue;
            }
            let line = Line::At(server);
            let waiting = self.lines.entry(line).or_insert_with(|| {
                idle.push(line);
                Waiting::default()
            });
            waiting.next.push_back(directory);
        }
        if self.may_begin(now) {
            self.lines.entry(Line::Beginnings).or_insert_with(|| {
                idle.push(Line::Beginnings);
                Waiting::default()
            });
        }
        idle
    }

    /// The next directory of a line, in hand from now on.
    pub(super) fn take(&mut self, line: Line, now: Duration) -> Option<InodeId> {
        let taken = match line {
            Line::Beginnings => {
                let may_try = |directory: &InodeId| self.failing.may_try(*directory, now);
                self.grown.iter().position(may_try).and_then(|at| self.grown.remove(at))
            }
            Line::At(_) => self.lines.get_mut(&line).and_then(|waiting| waiting.next.pop_front()),
        };
        self.lines.entry(line).or_default().in_hand = taken;
        taken
    }

    /// Puts a directory back that was in hand, with whether its split has ended, or what went wrong.
    pub(super) fn put_back(
        &mut self,
        line: Line,
        directory: InodeId,
        outcome: Result<bool, Errno>,
        now: Duration,
    ) {
        if let Some(waiting) = self.lines.get_mut(&line) {
            waiting.in_hand = None;
        }
        match outcome {
            Ok(has_ended) => {
                self.failing.0.remove(&directory);
                if has_ended {
                    self.halfway.remove(&directory);
                }
                self.is_to_look = true;
            }
            Err(errno) => {
                self.failing.note(directory, errno, now);
                if line == Line::Beginnings {
                    self.push_grown(directory);
                }
            }
        }
    }

    /// A line has no thread any more.
    pub(super) fn end_line(&mut self, line: Line) {
        self.lines.remove(&line);
        // What has come into it meanwhile.
        self.is_to_look = true;
    }

    /// Notes one that has grown large; whether it is new.
    pub(super) fn push_grown(&mut self, directory: InodeId) -> bool {
        let is_new = self.grown.len() < GROWN_MAX && !self.grown.contains(&directory);
        if is_new {
            self.grown.push_back(directory);
        }
        is_new
    }

    /// Notes that entries of a directory were moved; tells of all of its split.
    pub(super) fn note_moved(&mut self, directory: InodeId, entries: u64, now: Duration) -> Progress {
        let progress = self.halfway.entry(directory).or_insert(Progress { since: now, moved: 0 });
        progress.moved += entries;
        *progress
    }

    /// How many are being split.
    pub(super) fn under_way(&self) -> usize {
        self.halfway.len()
    }

    fn may_begin(&self, now: Duration) -> bool {
        self.grown.iter().any(|directory| self.failing.may_try(*directory, now))
    }

    fn is_in_hand(&self, directory: InodeId) -> bool {
        self.lines.values().any(|line| line.in_hand == Some(directory))
    }
}

/// Directories with which something went wrong the last time.
#[derive(Default)]
// LIMIT: of those that are being split here, and those that have grown large.
struct Failing(BTreeMap<InodeId, Failure>);

struct Failure {
    /// In a row.
    tries: u32,
    next_try: Duration,
}

impl Failing {
    fn may_try(&self, directory: InodeId, now: Duration) -> bool {
        self.0.get(&directory).is_none_or(|failure| failure.next_try <= now)
    }

    fn is_due(&self, now: Duration) -> bool {
        self.0.values().any(|failure| failure.next_try <= now)
    }

    fn note(&mut self, directory: InodeId, errno: Errno, now: Duration) {
        let failure = self.0.entry(directory).or_insert(Failure { tries: 0, next_try: now });
        let wait = RETRY_MIN.saturating_mul(1 << failure.tries.min(8)).min(RETRY_MAX);
        failure.next_try = now + wait;
        failure.tries = failure.tries.saturating_add(1);
        if failure.tries == TRIES_UNTOLD {
            tracing::warn!(%directory, %errno, "a directory cannot be split, or not to its end; this is tried again and again");
        } else {
            tracing::debug!(%directory, %errno, "splitting a directory has to wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const FIRST: InodeId = InodeId(10);
    const SECOND: InodeId = InodeId(11);
    const NEAR: NodeId = NodeId(1);
    const AWAY: NodeId = NodeId(2);

    fn queue(halfway: &[InodeId]) -> Queue {
        let mut queue = Queue::default();
        queue.note_halfway(&halfway.iter().copied().collect(), NOW);
        queue
    }

    #[test]
    fn what_waits_for_one_server_is_in_the_way_of_nothing_that_waits_for_another() {
        let mut queue = queue(&[FIRST, SECOND]);
        assert_eq!(queue.due(NOW), [FIRST, SECOND]);
        let lines = queue.line_up(vec![(FIRST, AWAY), (SECOND, NEAR)], NOW);
        assert_eq!(lines, [Line::At(AWAY), Line::At(NEAR)]);
        assert_eq!(queue.take(Line::At(AWAY), NOW), Some(FIRST));
        assert_eq!(queue.take(Line::At(NEAR), NOW), Some(SECOND));
        queue.put_back(Line::At(NEAR), SECOND, Ok(true), NOW);
        assert_eq!((queue.take(Line::At(NEAR), NOW), queue.under_way()), (None, 1));
    }

    #[test]
    fn nobody_else_works_at_a_directory_that_is_in_hand() {
        let mut queue = queue(&[FIRST, SECOND]);
        queue.line_up(vec![(FIRST, AWAY), (SECOND, AWAY)], NOW);
        assert_eq!(queue.take(Line::At(AWAY), NOW), Some(FIRST));
        assert_eq!(queue.due(NOW), [SECOND]);
        // It came into hand after it was asked what is due, and what waits in a line may go to another one.
        assert_eq!(queue.line_up(vec![(FIRST, NEAR), (SECOND, NEAR)], NOW), [Line::At(NEAR)]);
        assert_eq!(queue.take(Line::At(NEAR), NOW), Some(SECOND));
        assert_eq!(queue.take(Line::At(NEAR), NOW), None);
        queue.put_back(Line::At(AWAY), FIRST, Ok(false), NOW);
        assert_eq!((queue.due(NOW), queue.under_way()), (vec![FIRST, SECOND], 2));
    }

    #[test]
    fn one_that_fails_is_tried_again_after_a_time_that_grows() {
        let mut queue = queue(&[FIRST]);
        let line = Line::At(AWAY);
        let mut now = NOW;
        for wait in [500, 1000, 2000, 4000, 5000, 5000] {
            queue.line_up(vec![(FIRST, AWAY)], now);
            assert_eq!(queue.take(line, now), Some(FIRST));
            queue.put_back(line, FIRST, Err(Errno::EHOSTDOWN), now);
            let again = now + Duration::from_millis(wait);
            assert_eq!(queue.due(again - Duration::from_millis(1)), []);
            assert_eq!(queue.due(again), [FIRST]);
            now = again;
        }
        queue.put_back(line, FIRST, Ok(false), now);
        assert_eq!(queue.due(now), [FIRST]);
    }

    #[test]
    fn a_directory_that_has_grown_and_cannot_be_split_yet_is_not_lost() {
        let mut queue = Queue::default();
        assert!(queue.push_grown(FIRST) && !queue.push_grown(FIRST));
        assert_eq!((queue.idle(NOW), queue.line_up(Vec::new(), NOW)), (None, vec![Line::Beginnings]));
        assert_eq!(queue.take(Line::Beginnings, NOW), Some(FIRST));
        assert!(queue.idle(NOW).is_some(), "a thread is at it");
        queue.put_back(Line::Beginnings, FIRST, Err(Errno::EHOSTDOWN), NOW);
        assert_eq!(queue.take(Line::Beginnings, NOW), None);
        queue.end_line(Line::Beginnings);
        assert!(queue.take_look(NOW));
        let later = NOW + RETRY_MIN;
        assert_eq!((queue.idle(NOW), queue.idle(later)), (Some(RETRY_MIN), None));
        assert_eq!(queue.line_up(Vec::new(), later), [Line::Beginnings]);
        assert_eq!(queue.take(Line::Beginnings, later), Some(FIRST));
    }
}
