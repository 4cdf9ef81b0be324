//! One replica's view of its group, as a state machine: which epoch it is at, who its peers are, until when it may answer, whom
//! it wants removed or promoted.
//!
//! | standing | means | leaves it when |
//! |---|---|---|
//! | `Restarted` | the stored epoch is one it took part in before it stopped (rule 5 of the module) | a newer membership is learned |
//! | `Storing` | a newer membership was learned and is not stored yet (rule 6) | it is stored, or a still newer one is learned |
//! | `Active` | takes part at its epoch | a newer membership is learned, or it stops |
//!
//! A replica sends and answers beacons, and is granted leases, only while it is active; so all that is volatile here is about
//! one epoch and may be forgotten with it.

use super::{Change, LeaseTerms, ReplicaId};
use ashlar_types::Epoch;
use ashlar_types::membership::{MEMBERS_MAX, Membership, Replicas};
use smallvec::SmallVec;
use std::time::Duration;

/// What a member wants done. The order of commands matters only where `Store` is concerned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command<R> {
    /// Make the membership durable, then call [`Member::stored`].
    // ORDER: nothing is sent or answered at this epoch before that.
    Store(Membership<R>),
    /// Ask `to` for a lease.
    Beacon {
        /// The peer.
        to: R,
        /// The sender's epoch.
        epoch: Epoch,
        /// When it is sent, by the sender's clock.
        sent_at: Duration,
    },
    /// Grant `to` the lease it asked for.
    Grant {
        /// The peer.
        to: R,
        /// The epoch of both.
        epoch: Epoch,
        /// From the beacon: the holder's clock.
        sent_at: Duration,
    },
    /// Ask any manager for a change of the membership at `expected`. It may be asked for again and again; the answer is a newer
    /// membership, or none.
    Propose {
        /// The epoch it is made for.
        expected: Epoch,
        /// The change.
        change: Change<R>,
    },
    /// Somebody is at a newer epoch: read the cluster map.
    Refresh,
}

/// Commands of a member that stands alone; machines that contain one have commands of their own.
pub type Commands<R> = Vec<Command<R>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Standing {
    Restarted,
    Storing,
    Active,
}

/// Another member of the group at the current epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer<R> {
    id: R,
    /// By this replica's clock: until when the lease from the peer lets it answer.
    granted_until: Option<Duration>,
    /// By this replica's clock: when it last answered the peer, or entered the epoch. Of one that is catching up, which asks for nothing, also
    /// the last question that it has answered.
    answered_at: Duration,
    /// Its removal was asked for: it is granted nothing more (rule 4).
    is_refused: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member<R> {
    id: R,
    terms: LeaseTerms,
    membership: Membership<R>,
    standing: Standing,
    // LIMIT: both below the members of a group.
    peers: SmallVec<[Peer<R>; MEMBERS_MAX]>,
    promoting: Replicas<R>,
    is_leaving: bool,
    next_beacon_at: Duration,
}

impl<R: ReplicaId> Member<R> {
    /// A replica that has never been in the group `membership` before; it stores it first.
    pub fn join<C: From<Command<R>>>(
        id: R,
        terms: LeaseTerms,
        membership: Membership<R>,
        now: Duration,
        out: &mut Vec<C>,
    ) -> Member<R> {
        out.push(Command::Store(membership.clone()).into());
        let mut member = Member::recover(id, terms, membership, now);
        member.standing = Standing::Storing;
        member
    }

    /// A replica that stopped after it had stored `membership`. `terms` must be safe.
    pub fn recover(id: R, terms: LeaseTerms, membership: Membership<R>, now: Duration) -> Member<R> {
        let has_forgotten = membership.is_member(id) && !membership.is_alone(id);
        let mut member = Member {
            id,
            terms,
            membership,
            standing: if has_forgotten { Standing::Restarted } else { Standing::Active },
            peers: SmallVec::new(),
            promoting: SmallVec::new(),
            is_leaving: false,
            next_beacon_at: now,
        };
        member.enter_epoch(now);
        member
    }

    /// A membership was read or announced; an older one than the current changes nothing.
    pub fn learn<C: From<Command<R>>>(&mut self, newer: &Membership<R>, now: Duration, out: &mut Vec<C>) {
        if newer.epoch <= self.membership.epoch {
            return;
        }
        self.membership = newer.clone();
        self.standing = Standing::Storing;
        self.enter_epoch(now);
        out.push(Command::Store(newer.clone()).into());
    }

    /// The membership of `epoch` is durable. Tells whether the replica takes part from now on.
    pub fn stored(&mut self, epoch: Epoch) -> bool {
        let is_awaited = self.standing == Standing::Storing && epoch == self.membership.epoch;
        if is_awaited {
            self.standing = Standing::Active;
        }
        is_awaited
    }

    /// Time has passed: beacons that are due, removals of peers whose grace is over, and requests nobody has answered.
    pub fn tick<C: From<Command<R>>>(&mut self, now: Duration, out: &mut Vec<C>) {
        // One that is catching up only asks for an epoch in which it takes part.
        let is_restarted = self.standing == Standing::Restarted;
        let has_to_speak = is_restarted || self.membership.is_in_sync(self.id);
        if !has_to_speak || self.standing == Standing::Storing || now < self.next_beacon_at {
            return;
        }
        self.next_beacon_at = now + self.terms.heartbeat;
        if is_restarted {
            self.propose(Change::Renew, out);
            return;
        }
        for i in 0..self.peers.len() {
            let peer = &mut self.peers[i];
            peer.is_refused |= now >= peer.answered_at + self.terms.grace;
            let (to, is_refused) = (peer.id, peer.is_refused);
            if is_refused {
                self.propose(Change::Remove(to), out);
            }
            out.push(Command::Beacon { to, epoch: self.membership.epoch, sent_at: now }.into());
        }
        for i in 0..self.promoting.len() {
            self.propose(Change::Promote(self.promoting[i]), out);
        }
        if self.is_leaving {
            self.propose(Change::Remove(self.id), out);
        }
    }

    /// A peer asks for a lease.
    pub fn beacon<C: From<Command<R>>>(
        &mut self,
        from: R,
        epoch: Epoch,
        sent_at: Duration,
        now: Duration,
        out: &mut Vec<C>,
    ) {
        if !self.admits(epoch, out) {
            return;
        }
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == from && !peer.is_refused) {
            peer.answered_at = peer.answered_at.max(now);
            out.push(Command::Grant { to: from, epoch, sent_at }.into());
        }
    }

    /// A peer grants the lease that was asked for at `sent_at`.
    pub fn granted<C: From<Command<R>>>(
        &mut self,
        from: R,
        epoch: Epoch,
        sent_at: Duration,
        out: &mut Vec<C>,
    ) {
        if !self.admits(epoch, out) {
            return;
        }
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == from) {
            peer.granted_until = peer.granted_until.max(Some(sent_at + self.terms.lease));
            if self.membership.catching_up.contains(&from) {
                peer.answered_at = peer.answered_at.max(sent_at);
            }
        }
    }

    /// Whether a message of `epoch` is of this replica's epoch and it takes part in it. A newer one makes it read the map.
    pub fn admits<C: From<Command<R>>>(&self, epoch: Epoch, out: &mut Vec<C>) -> bool {
        if epoch > self.membership.epoch {
            out.push(Command::Refresh.into());
        }
        epoch == self.membership.epoch && self.is_active()
    }

    /// `replica`, which is catching up, holds everything: ask for its promotion. From here on [`Member::required`] has it, because
    /// nobody can know when the change takes effect.
    pub fn promote<C: From<Command<R>>>(&mut self, replica: R, out: &mut Vec<C>) {
        if self.is_primary()
            && self.membership.catching_up.contains(&replica)
            && !self.promoting.contains(&replica)
        {
            self.promoting.push(replica);
            self.propose(Change::Promote(replica), out);
        }
    }

    /// Goes by itself: it stops answering at once, so nobody has to wait for its leases.
    pub fn leave<C: From<Command<R>>>(&mut self, out: &mut Vec<C>) {
        if self.is_active() && self.membership.is_in_sync(self.id) && self.membership.in_sync.len() > 1 {
            self.is_leaving = true;
            self.propose(Change::Remove(self.id), out);
        }
    }

    /// Whether this replica answers for the group now: it is the primary of its epoch, and no peer can have had it replaced.
    /// To be asked *after* the state was read or the change committed, and *before* the answer leaves.
    pub fn may_acknowledge(&self, now: Duration) -> bool {
        self.is_primary() && self.may_serve(now)
    }

    /// Whether this replica is surely still in sync, and so may answer reads of what is committed.
    pub fn may_serve(&self, now: Duration) -> bool {
        let has_lease = |peer: &Peer<R>| peer.granted_until.is_some_and(|until| now < until);
        self.is_active()
            && !self.is_leaving
            && self.membership.is_in_sync(self.id)
            && self.peers.iter().all(has_lease)
    }

    /// The membership it knows.
    pub fn membership(&self) -> &Membership<R> {
        &self.membership
    }

    /// The epoch of [`Member::membership`].
    pub fn epoch(&self) -> Epoch {
        self.membership.epoch
    }

    /// Its own id.
    pub fn id(&self) -> R {
        self.id
    }

    /// Whether it takes part at its epoch.
    pub fn is_active(&self) -> bool {
        self.standing == Standing::Active
    }

    /// Whether it takes part, as the primary.
    pub fn is_primary(&self) -> bool {
        self.is_active() && self.membership.primary() == self.id
    }

    /// Those whose copy a change must have before it is committed, besides the primary's own: the others in sync, and those
    /// whose promotion was asked for.
    pub fn required(&self) -> impl Iterator<Item = R> + '_ {
        self.membership.in_sync.iter().filter(|id| **id != self.id).chain(&self.promoting).copied()
    }

    fn enter_epoch(&mut self, now: Duration) {
        self.promoting.clear();
        self.is_leaving = false;
        self.next_beacon_at = now;
        self.peers.clear();
        if self.membership.is_member(self.id) {
            let others = self.membership.members().filter(|id| *id != self.id);
            self.peers.extend(others.map(|id| Peer {
                id,
                granted_until: None,
                answered_at: now,
                is_refused: false,
            }));
        }
    }

    fn propose<C: From<Command<R>>>(&self, change: Change<R>, out: &mut Vec<C>) {
        out.push(Command::Propose { expected: self.membership.epoch, change }.into());
    }
}
