//! A backup's part: compares, drops what the primary does not have, appends, reports.

use super::replica::{Backup, LogReplica, Role};
use super::{Command, EntryRun, LogIndex, LogPosition, Message, Sequence};
use crate::membership::ReplicaId;
use ashlar_types::Epoch;

impl<R: ReplicaId> LogReplica<R> {
    /// Entries after `previous` came from the primary of this epoch.
    pub(super) fn prepare(
        &mut self,
        base: Sequence,
        previous: LogPosition,
        entries: &[EntryRun],
        committed: Sequence,
        out: &mut Vec<Command<R>>,
    ) {
        // What is being installed replaces the log: the primary sends again what comes now.
        if !matches!(self.role, Role::Backup(_)) || self.installing.is_some() {
            return;
        }
        if self.has_what_is_lost(base, previous, entries) {
            self.discard(out);
        }
        // What the checkpoint covers is committed, so the primary has the same.
        let is_covered = previous.sequence < self.index.floor().sequence;
        if !is_covered && !self.index.has(previous) {
            let message = Message::Mismatch { epoch: self.member.epoch(), committed: self.committed };
            out.push(Command::Send { to: self.member.membership().primary(), message });
            return;
        }
        if self.index.epoch_at(base.next()).is_some_and(|epoch| epoch < self.member.epoch()) {
            self.truncate(base, out);
        }
        let through = self.take_entries(previous.sequence, entries, out);
        let Role::Backup(Backup { matched }) = &mut self.role else { return };
        *matched = (*matched).max(Some(through));
        self.report_prepared(out);
        let known = committed.min(through);
        if known > self.committed {
            self.committed = known;
            out.push(Command::Commit { through: known });
        }
    }

    /// Whether something that is committed here is not the primary's: it was acknowledged under `async` durability and lost by all that were in sync,
    /// while this replica was out of sync.
    fn has_what_is_lost(&self, base: Sequence, previous: LogPosition, entries: &[EntryRun]) -> bool {
        let (floor, committed) = (self.index.floor().sequence, self.committed);
        let differs = |sequence: Sequence, epoch: Epoch| {
            sequence >= floor && sequence <= committed && self.index.epoch_at(sequence) != Some(epoch)
        };
        let mut sequence = previous.sequence;
        // Of older epochs it has nothing behind its base; what it wrote itself since is here with its epoch.
        let behind = base.next().max(floor);
        let is_older = self.index.epoch_at(behind).is_some_and(|epoch| epoch < self.member.epoch());
        let mut is_lost = (behind <= committed && is_older) || differs(sequence, previous.epoch);
        for run in entries {
            // Epochs of a log ascend by runs, so the first and last of a run tell of all between that this log has.
            let (first, last) = (sequence.next(), Sequence(sequence.0 + run.count));
            let between =
                [first, last, floor, committed].into_iter().filter(|at| *at >= first && *at <= last);
            is_lost |= between.into_iter().any(|at| differs(at, run.epoch));
            sequence = last;
        }
        is_lost
    }

    /// Gives up what is here, to get all of it anew.
    fn discard(&mut self, out: &mut Vec<Command<R>>) {
        let (id, membership) = (self.member.id(), self.member.membership());
        // INVARIANT: of replicas in sync none has what another lacks.
        assert!(!membership.is_in_sync(id), "{} is committed, and not the primary's", self.committed);
        self.index = LogIndex::default();
        (self.stored, self.committed) = (Sequence(0), Sequence(0));
        self.role = Role::Backup(Backup { matched: None });
        out.push(Command::Discard);
    }

    /// Appends the entries the log does not have and tells where they end.
    fn take_entries(
        &mut self,
        previous: Sequence,
        entries: &[EntryRun],
        out: &mut Vec<Command<R>>,
    ) -> Sequence {
        let (mut sequence, mut skip, mut is_new) = (previous, 0, false);
        for run in entries {
            for _ in 0..run.count {
                sequence = sequence.next();
                is_new = is_new
                    || (sequence > self.index.floor().sequence
                        && self.index.epoch_at(sequence) != Some(run.epoch));
                if !is_new {
                    skip += 1;
                    continue;
                }
                if sequence <= self.index.last().sequence {
                    self.truncate(Sequence(sequence.0 - 1), out);
                }
                self.index.append(EntryRun { epoch: run.epoch, count: 1 });
            }
        }
        if is_new {
            out.push(Command::Append { skip });
        }
        sequence
    }

    /// A checkpoint came from the primary of this epoch.
    pub(super) fn checkpoint(&mut self, base: Sequence, at: LogPosition, out: &mut Vec<Command<R>>) {
        if !matches!(self.role, Role::Backup(_)) || self.installing.is_some() {
            return;
        }
        if self.has_what_is_lost(base, at, &[]) {
            self.discard(out);
        }
        // A log that has what the checkpoint covers has more, too, and may have reported it: it is not replaced.
        if at.sequence > self.committed && !self.index.has(at) {
            self.installing = Some(at);
            out.push(Command::Install { at });
        } else if let Role::Backup(Backup { matched }) = &mut self.role {
            *matched = (*matched).max(Some(at.sequence));
            self.report_prepared(out);
        }
    }

    /// State and log were replaced by a checkpoint that covers `at`, durably. Changes nothing if that was told before.
    pub fn installed(&mut self, at: LogPosition, out: &mut Vec<Command<R>>) {
        if self.installing != Some(at) {
            return;
        }
        self.installing = None;
        self.index = LogIndex::new(at, []);
        self.stored = at.sequence;
        self.committed = at.sequence;
        if let Role::Backup(Backup { matched }) = &mut self.role {
            *matched = Some(at.sequence);
            self.report_prepared(out);
        }
    }

    /// Tells the primary what is both compared and stored.
    pub(super) fn report_prepared(&mut self, out: &mut Vec<Command<R>>) {
        let Role::Backup(Backup { matched: Some(matched) }) = self.role else { return };
        let (epoch, through) = (self.member.epoch(), matched.min(self.stored));
        let to = self.member.membership().primary();
        out.push(Command::Send { to, message: Message::Prepared { epoch, through } });
    }

    fn truncate(&mut self, after: Sequence, out: &mut Vec<Command<R>>) {
        // INVARIANT: what is committed is in every in-sync log, the primary's too, and never differs.
        assert!(after >= self.committed, "{} is committed", self.committed);
        self.index.truncate(after);
        self.stored = self.stored.min(after);
        out.push(Command::Truncate { after });
    }
}
