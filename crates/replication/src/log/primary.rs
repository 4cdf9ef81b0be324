//! The primary's part: appends, sends, counts, acknowledges, and brings others up to date.

use super::replica::{LogReplica, Role};
use super::{Command, EntryRun, EntryRuns, LogPosition, Message, Sequence};
use crate::membership::ReplicaId;
use ashlar_types::membership::{MEMBERS_MAX, Membership};
use smallvec::SmallVec;

/// Most entries in one message.
// LIMIT: with entries of at most 1 MiB this bounds a message; whoever sends may cut at a size as well.
const ENTRIES_PER_MESSAGE_MAX: u64 = 256;
/// Most entries on their way to one replica, besides what resending takes.
// LIMIT: a replica that does not report is sent nothing more; four full messages keep a link busy while the first is answered.
const ENTRIES_UNDER_WAY_MAX: u64 = 4 * ENTRIES_PER_MESSAGE_MAX;
/// A replica that is catching up and lacks no more than this is waited for.
const LACKING_MAX: u64 = ENTRIES_PER_MESSAGE_MAX;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Primary<R> {
    /// The end of the log when the epoch began; nothing is answered before it is committed.
    base: Sequence,
    others: SmallVec<[Progress<R>; MEMBERS_MAX]>,
}

/// How far another replica is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Progress<R> {
    id: R,
    /// It has reported the primary's log up to here; `None` until logs were compared at this epoch.
    matched: Option<Sequence>,
    /// The next entry to send.
    next: Sequence,
    /// The checkpoint that is on its way to it.
    installing: Option<Sequence>,
}

impl<R: ReplicaId> Primary<R> {
    pub(super) fn new(membership: &Membership<R>, last: Sequence) -> Primary<R> {
        let others = membership.members().filter(|id| *id != membership.primary());
        let progress = |id| Progress { id, matched: None, next: last.next(), installing: None };
        Primary { base: last, others: others.map(progress).collect() }
    }

    pub(super) fn matched(&self, id: R) -> Option<Sequence> {
        self.others.iter().find(|other| other.id == id)?.matched
    }
}

impl<R: ReplicaId> LogReplica<R> {
    /// The primary takes one more entry; the caller writes it to the log at the position this tells, reports it with
    /// [`LogReplica::stored`], and answers when it is acknowledged. `None`: this is not the primary.
    pub fn append(&mut self, out: &mut Vec<Command<R>>) -> Option<LogPosition> {
        let Role::Primary(primary) = &self.role else { return None };
        let epoch = self.member.epoch();
        self.index.append(EntryRun { epoch, count: 1 });
        for i in 0..primary.others.len() {
            self.send(i, out);
        }
        Some(self.index.last())
    }

    /// Whether a decision may be made from the log's end: everything before this epoch is committed again.
    /// An answer that changes nothing waits, as every other, until the log's end at its decision is acknowledged.
    pub fn is_serving(&self) -> bool {
        matches!(&self.role, Role::Primary(primary) if self.committed >= primary.base)
    }

    /// Sends again what was not reported: after a new connection, or when no report came for a while. The first message of an
    /// epoch is one of these; it compares logs.
    pub fn resend(&mut self, out: &mut Vec<Command<R>>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let last = self.index.last().sequence;
        for other in &mut primary.others {
            (other.next, other.installing) = (other.matched.unwrap_or(last).next(), None);
        }
        for i in 0..primary.others.len() {
            self.push(i, out);
        }
    }

    /// As [`LogReplica::resend`], to one replica.
    pub fn resend_to(&mut self, to: R, out: &mut Vec<Command<R>>) {
        let last = self.index.last().sequence;
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(i) = primary.others.iter().position(|other| other.id == to) else { return };
        let other = &mut primary.others[i];
        (other.next, other.installing) = (other.matched.unwrap_or(last).next(), None);
        self.push(i, out);
    }

    /// Sends entries, if there are any, the logs were compared, and not too many are on their way.
    fn send(&mut self, i: usize, out: &mut Vec<Command<R>>) {
        let Role::Primary(primary) = &self.role else { return };
        let other = &primary.others[i];
        let has_room = other.matched.is_some_and(|matched| other.next.0 <= matched.0 + ENTRIES_UNDER_WAY_MAX);
        if has_room && other.installing.is_none() && other.next <= self.index.last().sequence {
            self.push(i, out);
        }
    }

    /// Sends what comes next, if only where it would begin.
    fn push(&mut self, i: usize, out: &mut Vec<Command<R>>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let other = &mut primary.others[i];
        let (to, epoch) = (other.id, self.member.epoch());
        let before = Sequence(other.next.0 - 1);
        let message = match self.index.epoch_at(before) {
            Some(previous_epoch) => {
                let previous = LogPosition { sequence: before, epoch: previous_epoch };
                let entries: EntryRuns = self.index.runs_from(other.next, ENTRIES_PER_MESSAGE_MAX);
                other.next.0 += entries.iter().map(|run| run.count).sum::<u64>();
                Message::Prepare { epoch, base: primary.base, previous, entries, committed: self.committed }
            }
            None => {
                other.installing = Some(self.index.floor().sequence);
                Message::Checkpoint { epoch, base: primary.base, at: self.index.floor() }
            }
        };
        out.push(Command::Send { to, message });
    }

    /// Another replica has the log up to `through`.
    pub(super) fn prepared(&mut self, from: R, through: Sequence, out: &mut Vec<Command<R>>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(i) = primary.others.iter().position(|other| other.id == from) else { return };
        // What is not there yet nobody can have.
        if through > self.index.last().sequence {
            return;
        }
        let other = &mut primary.others[i];
        other.matched = other.matched.max(Some(through));
        other.next = other.next.max(through.next());
        other.installing = other.installing.filter(|at| through < *at);
        // What was acknowledged may be more than this primary knows to be committed, but is not behind its base.
        // ORDER: a replica is required before its promotion is asked for, so it has whatever is committed from now on.
        let wanted = self.committed.max(primary.base);
        if through >= wanted {
            self.member.promote(from, out);
        } else if through.0 + LACKING_MAX >= wanted.0 {
            self.member.await_copy(from);
        }
        self.send(i, out);
        self.advance(out);
    }

    /// Another replica's log differs behind `committed`, or may.
    pub(super) fn mismatch(&mut self, from: R, committed: Sequence, out: &mut Vec<Command<R>>) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(i) = primary.others.iter().position(|other| other.id == from) else { return };
        // One that is catching up may have found that what it has is lost, and begins anew.
        let is_counted = self.member.membership().is_in_sync(from) || self.member.may_be_promoted(from);
        let other = &mut primary.others[i];
        let begins_anew = !is_counted && other.matched > Some(committed);
        if (other.matched.is_none() || begins_anew) && committed <= self.index.last().sequence {
            (other.matched, other.next, other.installing) = (None, committed.next(), None);
            self.push(i, out);
        }
    }

    /// Commits what all required replicas have.
    pub(super) fn advance(&mut self, out: &mut Vec<Command<R>>) {
        let Role::Primary(primary) = &self.role else { return };
        let all = self.member.required().map(|id| primary.matched(id)).min().flatten();
        let is_required = self.member.required().next().is_some();
        let Some(theirs) = (if is_required { all } else { Some(self.stored) }) else { return };
        let through = theirs.min(self.stored);
        if through > self.committed && through >= primary.base {
            self.committed = through;
            out.push(Command::Acknowledge { through });
        }
    }
}
