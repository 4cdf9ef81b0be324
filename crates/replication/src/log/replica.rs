//! One replica of a shard's log. Its role follows from the membership: nothing makes it primary but its place there.

use super::primary::Primary;
use super::{Command, LogIndex, LogPosition, Message, Sequence};
use crate::membership::{LeaseTerms, Member, ReplicaId, Stored};
use ashlar_types::Epoch;
use ashlar_types::membership::Membership;
use std::time::Duration;

/// What a replica finds on its disk when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered<R> {
    /// What was stored last of the membership, with what is here of the entries that were reported ([`Member::recover`]).
    pub member: Stored<R>,
    /// The entries in the log; all of them are durable.
    pub index: LogIndex,
    /// A lower bound of what is committed, at least what the checkpoint covers.
    pub committed: Sequence,
}

/// What the replica is at its epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role<R> {
    /// It takes no part: no member, restarted, or the epoch is not stored yet.
    Idle,
    Primary(Primary<R>),
    Backup(Backup),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Backup {
    /// How much of the log was compared with the primary's at this epoch.
    pub matched: Option<Sequence>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogReplica<R> {
    pub(super) member: Member<R>,
    pub(super) index: LogIndex,
    /// The log is as durable as the setting asks up to here.
    pub(super) stored: Sequence,
    pub(super) committed: Sequence,
    pub(super) role: Role<R>,
    /// The checkpoint that replaces the log now.
    pub(super) installing: Option<LogPosition>,
}

impl<R: ReplicaId> LogReplica<R> {
    /// A replica with an empty log that is in its group for the first time, as [`Member::join`].
    pub fn join(
        id: R,
        terms: LeaseTerms,
        membership: Membership<R>,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> LogReplica<R> {
        LogReplica::empty(Member::join(id, terms, membership, now, out))
    }

    /// A replica whose disk was replaced, as [`Member::replaced`].
    pub fn replaced(id: R, terms: LeaseTerms, membership: Membership<R>, now: Duration) -> LogReplica<R> {
        LogReplica::empty(Member::replaced(id, terms, membership, now))
    }

    fn empty(member: Member<R>) -> LogReplica<R> {
        let index = LogIndex::default();
        let start = Sequence(0);
        LogReplica { member, index, stored: start, committed: start, role: Role::Idle, installing: None }
    }

    /// A replica that starts again with what is on its disk.
    pub fn recover(
        id: R,
        terms: LeaseTerms,
        recovered: Recovered<R>,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> LogReplica<R> {
        let Recovered { member, index, committed } = recovered;
        let member = Member::recover(id, terms, member, now);
        let stored = index.last().sequence;
        let mut replica = LogReplica { member, index, stored, committed, role: Role::Idle, installing: None };
        if replica.member.is_active() {
            replica.take_role(out);
        }
        replica
    }

    /// A membership was read or announced.
    pub fn learn(&mut self, newer: &Membership<R>, now: Duration, out: &mut Vec<Command<R>>) {
        self.member.learn(newer, now, out);
        if !self.member.is_active() {
            self.role = Role::Idle;
        }
    }

    /// The membership of `epoch` is durable.
    pub fn membership_stored(&mut self, epoch: Epoch, out: &mut Vec<Command<R>>) {
        if self.member.stored(epoch) {
            self.take_role(out);
        }
    }

    /// The log is durable up to `position`. A report about entries that were truncated since changes nothing.
    pub fn stored(&mut self, position: LogPosition, out: &mut Vec<Command<R>>) {
        if position.sequence <= self.stored || !self.index.has(position) {
            return;
        }
        self.stored = position.sequence;
        match self.role {
            Role::Primary(_) => self.advance(out),
            Role::Backup(_) => self.report_prepared(out),
            Role::Idle => {}
        }
    }

    /// How far a checkpoint of this replica may go: what is committed, and stored here.
    pub fn checkpoint_max(&self) -> Sequence {
        self.committed.min(self.stored)
    }

    /// A checkpoint of this replica's own covers the entries up to `through`: they leave the log.
    pub fn checkpointed(&mut self, through: Sequence) {
        // INVARIANT: what may still be truncated is in no checkpoint.
        assert!(through <= self.checkpoint_max(), "{through} is not committed");
        self.index.raise_floor(through);
    }

    /// A message of `from` arrived. Messages of other epochs change nothing; a newer one makes it read the map.
    pub fn receive(&mut self, from: R, message: &Message, out: &mut Vec<Command<R>>) {
        if !self.member.admits(message.epoch(), out) {
            return;
        }
        match message {
            Message::Prepare { base, previous, entries, committed, .. } => {
                if from == self.member.membership().primary() {
                    self.prepare(*base, *previous, entries, *committed, out);
                }
            }
            Message::Checkpoint { base, at, .. } => {
                if from == self.member.membership().primary() {
                    self.checkpoint(*base, *at, out);
                }
            }
            Message::Prepared { through, .. } => self.prepared(from, *through, out),
            Message::Mismatch { committed, .. } => self.mismatch(from, *committed, out),
        }
    }

    /// The membership's part: beacons, grants, time, promotions.
    pub fn member(&self) -> &Member<R> {
        &self.member
    }

    /// As [`LogReplica::member`], to tell it of time and beacons.
    pub fn member_mut(&mut self) -> &mut Member<R> {
        &mut self.member
    }

    /// Of a backup: what it has reported to the primary of its epoch, or would.
    pub fn reported(&self) -> Option<Sequence> {
        match self.role {
            Role::Backup(Backup { matched }) => matched.map(|matched| matched.min(self.stored)),
            _ => None,
        }
    }

    /// Of the primary: what another replica has reported at this epoch; `None` before its log was compared.
    pub fn matched(&self, id: R) -> Option<Sequence> {
        match &self.role {
            Role::Primary(primary) => primary.matched(id),
            _ => None,
        }
    }

    /// What is in the log.
    pub fn index(&self) -> &LogIndex {
        &self.index
    }

    /// What is known to be committed.
    pub fn committed(&self) -> Sequence {
        self.committed
    }

    fn take_role(&mut self, out: &mut Vec<Command<R>>) {
        let (id, membership) = (self.member.id(), self.member.membership());
        if membership.primary() == id {
            self.role = Role::Primary(Primary::new(membership, self.index.last().sequence));
            self.resend(out);
            self.advance(out);
        } else if membership.is_member(id) {
            self.role = Role::Backup(Backup { matched: None });
        } else {
            self.role = Role::Idle;
        }
    }
}
