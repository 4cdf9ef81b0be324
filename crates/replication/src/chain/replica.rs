//! One replica of a chain: what it keeps in memory, and its place among the members.

use super::{ChunkVersion, Command, Holdings, Message};
use crate::membership::{LeaseTerms, Member, ReplicaId, Stored};
use ashlar_types::membership::Membership;
use ashlar_types::{ChunkId, Epoch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A chunk that is uncertain here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Active {
    /// The newest version that was ordered here.
    pub version: ChunkVersion,
    /// The newest that is on disk.
    pub applied: ChunkVersion,
    /// Writes that were ordered before this version are of no interest any more; it is applied behind them.
    pub barrier: Option<ChunkVersion>,
    /// The version was ordered, or found to be the predecessor's, at this epoch.
    pub is_ordered: bool,
    /// The newest that the successor reported at this epoch.
    pub reported: Option<ChunkVersion>,
    /// The newest that is known to be committed at this epoch.
    pub committed: Option<ChunkVersion>,
}

impl Active {
    /// A chunk that is on disk as `version`.
    pub(super) fn new(version: ChunkVersion) -> Active {
        let applied = version;
        Active { version, applied, barrier: None, is_ordered: false, reported: None, committed: None }
    }

    /// Whether the chunk on disk is the version and no write is being applied. (The version of a copy may be one that was here before,
    /// so that it alone does not tell.)
    pub(super) fn is_quiet(&self) -> bool {
        self.barrier.is_none() && self.applied == self.version
    }
}

/// The member behind this one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Successor<R> {
    pub id: R,
    /// Its inventory of this epoch was received.
    pub is_compared: bool,
    /// Chunks that it may not have as they are here; without an inventory, all.
    // LIMIT: the chunks of a chain, of a replica that is catching up; else those with writes under way.
    pub unsettled: BTreeSet<ChunkId>,
}

impl<R> Successor<R> {
    /// Whether it has `chunk` as it was here when the epoch began, and was sent all that came since.
    pub(super) fn is_settled(&self, chunk: ChunkId) -> bool {
        self.is_compared && !self.unsettled.contains(&chunk)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainReplica<R> {
    pub(super) member: Member<R>,
    // LIMIT: chunks with writes under way; the caller bounds those.
    pub(super) active: BTreeMap<ChunkId, Active>,
    pub(super) predecessor: Option<R>,
    /// The predecessor has this replica's inventory of this epoch.
    pub(super) is_known: bool,
    pub(super) successor: Option<Successor<R>>,
}

impl<R: ReplicaId> ChainReplica<R> {
    /// A replica that is in its chain for the first time, as [`Member::join`]. It may have chunks from an earlier time.
    pub fn join(
        id: R,
        terms: LeaseTerms,
        membership: Membership<R>,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> ChainReplica<R> {
        ChainReplica::outside(Member::join(id, terms, membership, now, out))
    }

    /// A replica whose disk was replaced, as [`Member::replaced`].
    pub fn replaced(id: R, terms: LeaseTerms, membership: Membership<R>, now: Duration) -> ChainReplica<R> {
        ChainReplica::outside(Member::replaced(id, terms, membership, now))
    }

    /// Without a place among the others yet.
    fn outside(member: Member<R>) -> ChainReplica<R> {
        ChainReplica { member, active: BTreeMap::new(), predecessor: None, is_known: false, successor: None }
    }

    /// A replica that starts again with what is on its disk; `stored` is what it kept of its membership, with what is here of the writes that
    /// were reported ([`Member::recover`]).
    pub fn recover(
        id: R,
        terms: LeaseTerms,
        stored: Stored<R>,
        holdings: &impl Holdings,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> ChainReplica<R> {
        let mut replica = ChainReplica::outside(Member::recover(id, terms, stored, now));
        if replica.member.is_active() {
            replica.enter_epoch(holdings, out);
        }
        replica
    }

    /// A membership was read or announced.
    pub fn learn(&mut self, newer: &Membership<R>, now: Duration, out: &mut Vec<Command<R>>) {
        self.member.learn(newer, now, out);
        if !self.member.is_active() {
            (self.predecessor, self.successor) = (None, None);
        }
    }

    /// The membership of `epoch` is durable.
    pub fn membership_stored(&mut self, epoch: Epoch, holdings: &impl Holdings, out: &mut Vec<Command<R>>) {
        if self.member.stored(epoch) {
            self.enter_epoch(holdings, out);
        }
    }

    /// A message of `from` arrived. Messages of other epochs change nothing; a newer one makes it read the map.
    pub fn receive(
        &mut self,
        from: R,
        message: &Message<R>,
        holdings: &impl Holdings,
        out: &mut Vec<Command<R>>,
    ) {
        if !self.member.admits(message.epoch(), out) {
            return;
        }
        let is_before = self.predecessor == Some(from);
        let is_behind = self.successor.as_ref().is_some_and(|successor| successor.id == from);
        match message {
            Message::Write { chunk, version, previous, .. } if is_before => {
                self.take_write(*chunk, *version, *previous, holdings, out);
            }
            Message::Copy { chunk, version, .. } if is_before => {
                self.take_copy(*chunk, *version, holdings, out);
            }
            Message::Committed { chunk, version, .. } if is_before => self.commit(*chunk, *version, out),
            Message::Applied { chunk, version, .. } if is_behind => {
                self.reported(*chunk, *version, holdings, out);
            }
            Message::Inventory { holdings: theirs, .. } if is_behind => {
                self.send_on(Message::Compared { epoch: self.epoch() }, out);
                self.compare(theirs, holdings, out);
            }
            Message::Compared { .. } if is_before => self.is_known = true,
            Message::CaughtUp { replica, .. } => self.member.promote(*replica, out),
            _ => {}
        }
    }

    /// Whether `chunk` may be read here, if [`Member::may_serve`] says so as well: it is certain. Else a reader waits for its commit.
    pub fn is_certain(&self, chunk: ChunkId) -> bool {
        !self.active.contains_key(&chunk)
    }

    /// The membership's part: beacons, grants, time, promotions.
    pub fn member(&self) -> &Member<R> {
        &self.member
    }

    /// As [`ChainReplica::member`], to tell it of time and beacons.
    pub fn member_mut(&mut self) -> &mut Member<R> {
        &mut self.member
    }

    pub(super) fn is_head(&self) -> bool {
        self.member.is_primary()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.member.epoch()
    }

    /// The newest version of `chunk` that was ordered here.
    pub(super) fn newest(&self, chunk: ChunkId, holdings: &impl Holdings) -> ChunkVersion {
        self.active.get(&chunk).map_or_else(|| holdings.version(chunk), |active| active.version)
    }

    /// `chunk` gets the version `version`; if it was certain, it is at `applied`.
    pub(super) fn order(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        applied: ChunkVersion,
    ) -> &mut Active {
        let active = self.active.entry(chunk).or_insert(Active::new(applied));
        (active.version, active.is_ordered) = (version, true);
        active
    }

    pub(super) fn send_back(&self, message: Message<R>, out: &mut Vec<Command<R>>) {
        if let Some(to) = self.predecessor {
            out.push(Command::Send { to, message });
        }
    }

    pub(super) fn send_on(&self, message: Message<R>, out: &mut Vec<Command<R>>) {
        if let Some(successor) = &self.successor {
            out.push(Command::Send { to: successor.id, message });
        }
    }
}
