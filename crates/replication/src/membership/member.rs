//! One replica's view of its group, as a state machine: which epoch it is at, who its peers are, until when it may answer, whom
//! it wants removed or promoted.
//!
//! | standing | means | leaves it when |
//! |---|---|---|
//! | `Restarted` | the stored epoch is one it took part in before it stopped (rule 5 of the module), or it is behind (rule 7) | a newer membership is learned |
//! | `Storing` | a newer membership was learned and is not stored yet (rule 6) | it is stored, or a still newer one is learned |
//! | `Active` | takes part at its epoch | a newer membership is learned, or it stops |
//!
//! A replica sends and answers beacons, and is granted leases, only while it is active; so all that is volatile here is about
//! one epoch and may be forgotten with it.

use super::{Change, LeaseTerms, ReplicaId};
use ashlar_types::Epoch;
use ashlar_types::membership::{MEMBERS_MAX, Membership, Replicas};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::time::Duration;

/// What a member wants done. The order of commands matters only where `Store` is concerned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command<R> {
    /// Make it durable, then call [`Member::stored`].
    // ORDER: nothing is sent or answered at this epoch before that.
    Store(Stored<R>),
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

/// What is on a replica's disk of that which it had reported to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Content {
    /// All of it, or what is missing will be found out: it is out of sync.
    Whole,
    /// Not all: the power was cut before it was stored.
    Short,
    /// Nothing: the disk is another.
    Missing,
}

/// What a member keeps on disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stored<R> {
    /// The newest membership it knows.
    pub membership: Membership<R>,
    /// What else the disk has.
    pub content: Content,
}

/// Commands of a member that stands alone; machines that contain one have commands of their own.
pub type Commands<R> = Vec<Command<R>>;

/// In a beacon in place of an epoch: no lease is asked for, but whether anybody is there who has something. Whoever does not know it grants nothing.
pub const IS_ANYBODY_THERE: Epoch = Epoch(0);
/// For so many heartbeats an answer to that counts.
const HEARD_BEATS: u32 = 4;

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
    /// It has asked for a lease since: it is alive, and a new epoch will do.
    has_returned: bool,
    /// When one that does not take part asked, and heard that it runs, and its disk has something.
    heard_at: Option<Duration>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member<R> {
    id: R,
    terms: LeaseTerms,
    membership: Membership<R>,
    standing: Standing,
    // LIMIT: all below the members of a group.
    peers: SmallVec<[Peer<R>; MEMBERS_MAX]>,
    /// Those that are catching up and whose copy a change must have all the same.
    awaited: Replicas<R>,
    /// Those of them whose promotion was asked for.
    promoting: Replicas<R>,
    is_leaving: bool,
    /// Its disk does not work.
    is_out: bool,
    content: Content,
    /// Those that never come back, as the operator has said at this epoch.
    given_up: Replicas<R>,
    next_beacon_at: Duration,
}

impl<R: ReplicaId> Member<R> {
    /// A replica that is in the group of `membership` for the first time, of a new group or admitted; it stores it first.
    ///
    /// The caller had noted on the same disk that it will be in this group, before a manager put it there: without that note the disk is
    /// another than the one that was admitted, see [`Member::replaced`].
    pub fn join<C: From<Command<R>>>(
        id: R,
        terms: LeaseTerms,
        membership: Membership<R>,
        now: Duration,
        out: &mut Vec<C>,
    ) -> Member<R> {
        let stored = Stored { membership, content: Content::Whole };
        out.push(Command::Store(stored.clone()).into());
        let mut member = Member::recover(id, terms, stored, now);
        member.standing = Standing::Storing;
        member
    }

    /// A replica that is in the group by name, with an empty disk in the place of the one that it had.
    pub fn replaced(id: R, terms: LeaseTerms, membership: Membership<R>, now: Duration) -> Member<R> {
        Member::recover(id, terms, Stored { membership, content: Content::Missing }, now)
    }

    /// A replica that stopped after it had stored `stored`. `terms` must be safe.
    ///
    /// When the disk may have lost what the replica had reported (`async` durability, and the power was cut), the caller makes the content
    /// [`Content::Short`] and stores that before this call.
    pub fn recover(id: R, terms: LeaseTerms, stored: Stored<R>, now: Duration) -> Member<R> {
        let Stored { membership, content } = stored;
        // Who is alone was heard by nobody, and goes on with what is left; but not with nothing.
        let is_left = membership.is_alone(id) && content != Content::Missing;
        let has_forgotten = membership.is_member(id) && !is_left;
        let mut member = Member {
            id,
            terms,
            membership,
            standing: if has_forgotten { Standing::Restarted } else { Standing::Active },
            peers: SmallVec::new(),
            awaited: SmallVec::new(),
            promoting: SmallVec::new(),
            is_leaving: false,
            is_out: false,
            content: if has_forgotten { content } else { Content::Whole },
            given_up: SmallVec::new(),
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
        let is_last = newer.in_sync.len() == 1 && newer.is_in_sync(self.id);
        // Out of sync it is compared anew at this epoch. The last in sync goes on with what is left.
        if !newer.is_in_sync(self.id) || (is_last && self.content == Content::Short) {
            self.content = Content::Whole;
        }
        self.enter_epoch(now);
        out.push(Command::Store(self.to_store()).into());
    }

    /// The membership of `epoch` is durable. Tells whether the replica takes part from now on.
    pub fn stored(&mut self, epoch: Epoch) -> bool {
        if self.standing != Standing::Storing || epoch != self.membership.epoch {
            return false;
        }
        let is_whole = self.content == Content::Whole;
        self.standing = if is_whole { Standing::Active } else { Standing::Restarted };
        self.is_active()
    }

    /// What its disk has of what it had reported. Whole once it is known who gives it the rest, or that nobody does.
    pub fn content(&self) -> Content {
        self.content
    }

    /// What it wants to be on disk.
    pub fn to_store(&self) -> Stored<R> {
        Stored { membership: self.membership.clone(), content: self.content }
    }

    /// Time has passed: beacons that are due, removals of peers whose grace is over, and requests nobody has answered.
    pub fn tick<C: From<Command<R>>>(&mut self, now: Duration, out: &mut Vec<C>) {
        // One that is catching up only asks for an epoch in which it takes part.
        let is_restarted = self.standing == Standing::Restarted;
        let has_to_speak = is_restarted || self.membership.is_in_sync(self.id);
        if !has_to_speak || self.standing == Standing::Storing || now < self.next_beacon_at {
            return;
        }
        // Who was held up has heard nobody for so long, and nobody is to blame.
        let late = now - self.next_beacon_at;
        if late > self.terms.heartbeat {
            self.peers.iter_mut().for_each(|peer| peer.answered_at += late);
        }
        self.next_beacon_at = now + self.terms.heartbeat;
        if is_restarted {
            self.ask_to_take_part(now, out);
            return;
        }
        for i in 0..self.peers.len() {
            let peer = &mut self.peers[i];
            peer.is_refused |= !self.is_out && now >= peer.answered_at + self.terms.grace;
            let (to, is_refused, has_returned) = (peer.id, peer.is_refused, peer.has_returned);
            if is_refused && (has_returned || !self.is_out) {
                // What was asked for before is void at a new epoch, whichever comes first.
                self.propose(if has_returned { Change::Renew } else { Change::Remove(to) }, out);
            }
            out.push(Command::Beacon { to, epoch: self.membership.epoch, sent_at: now }.into());
        }
        for i in 0..self.promoting.len() {
            self.propose(Change::Promote(self.promoting[i]), out);
        }
        // Not while somebody else is to be removed: who is left must be there.
        if self.is_leaving && self.peers.iter().all(|peer| !peer.is_refused) {
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
        if epoch == IS_ANYBODY_THERE {
            if self.has_something() {
                out.push(Command::Grant { to: from, epoch, sent_at }.into());
            }
            return;
        }
        if !self.admits(epoch, out) {
            return;
        }
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == from) else { return };
        if peer.is_refused {
            peer.has_returned = true;
            return;
        }
        peer.answered_at = peer.answered_at.max(now);
        out.push(Command::Grant { to: from, epoch, sent_at }.into());
    }

    /// A peer grants the lease that was asked for at `sent_at`.
    pub fn granted<C: From<Command<R>>>(
        &mut self,
        from: R,
        epoch: Epoch,
        sent_at: Duration,
        out: &mut Vec<C>,
    ) {
        // It has asked for nothing but that.
        if self.standing == Standing::Restarted {
            let heard = self.peers.iter_mut().filter(|peer| peer.id == from);
            heard.for_each(|peer| peer.heard_at = peer.heard_at.max(Some(sent_at)));
            return;
        }
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

    /// `replica`, which is catching up, lacks little: from here on [`Member::required`] has it, so that it gets there while others go on writing.
    pub fn await_copy(&mut self, replica: R) {
        if self.is_primary()
            && self.membership.catching_up.contains(&replica)
            && !self.awaited.contains(&replica)
        {
            self.awaited.push(replica);
        }
    }

    /// `replica`, which is catching up, holds everything: ask for its promotion, again and again. Whoever passes that on may wait until it is durable there. [`Member::required`] has it until the epoch ends, because
    /// nobody can know when the change takes effect.
    pub fn promote<C: From<Command<R>>>(&mut self, replica: R, out: &mut Vec<C>) {
        self.await_copy(replica);
        if self.awaited.contains(&replica) && !self.promoting.contains(&replica) {
            self.promoting.push(replica);
            self.propose(Change::Promote(replica), out);
        }
    }

    /// As [`Member::promote`], of a chain, where the last in sync has what the next one gets.
    pub fn promote_behind<C: From<Command<R>>>(&mut self, replica: R, out: &mut Vec<C>) {
        let is_last = self.is_active() && self.membership.in_sync.last() == Some(&self.id);
        if is_last && self.membership.catching_up.contains(&replica) && !self.promoting.contains(&replica) {
            self.promoting.push(replica);
            self.propose(Change::Promote(replica), out);
        }
    }

    /// Its disk does not work, or does again. While it does not it has nobody removed: whoever would be left has less than those who are gone.
    pub fn set_out(&mut self, is_out: bool) {
        self.is_out = is_out;
    }

    /// The operator says, at this epoch, that `replica` never comes back: one that lacks something does not wait for it, and has it removed, whoever else it waits for.
    pub fn give_up(&mut self, replica: R) {
        if !self.given_up.contains(&replica) {
            self.given_up.push(replica);
        }
    }

    /// Whom it waits for before it takes part: it lacks something that each of these may have, and hears none of them.
    pub fn waits_for(&self, now: Duration) -> impl Iterator<Item = R> + '_ {
        let is_short = self.standing == Standing::Restarted
            && self.content == Content::Short
            && self.membership.is_in_sync(self.id);
        let others = self.peers.iter().filter(|peer| self.membership.is_in_sync(peer.id));
        let is_there = move |peer: &Peer<R>| {
            let is_heard = peer.heard_at.is_some_and(|at| now < at + HEARD_BEATS * self.terms.heartbeat);
            is_heard && !self.given_up.contains(&peer.id)
        };
        let is_heard = others.clone().any(is_there);
        others.filter(move |_| is_short && !is_heard).map(|peer| peer.id)
    }

    /// Whether somebody who lacks something may leave in favour of this one.
    fn has_something(&self) -> bool {
        self.membership.is_member(self.id) && self.content != Content::Missing && !self.is_out
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

    /// Whether `peer` is heard: it has granted a lease that lasts still.
    pub fn is_granted_by(&self, peer: R, now: Duration) -> bool {
        let known = self.peers.iter().find(|known| known.id == peer);
        known.and_then(|known| known.granted_until).is_some_and(|until| now < until)
    }

    /// Whether it goes by itself.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
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

    /// Whether it waits for a membership to be stored.
    pub fn is_storing(&self) -> bool {
        self.standing == Standing::Storing
    }

    /// Whether it takes part, as the primary.
    pub fn is_primary(&self) -> bool {
        self.is_active() && self.membership.primary() == self.id
    }

    /// Those whose copy a change must have before it is committed, besides the primary's own: the others in sync, and those
    /// that are about to be or may be already.
    pub fn required(&self) -> impl Iterator<Item = R> + '_ {
        self.membership.in_sync.iter().filter(|id| **id != self.id).chain(&self.awaited).copied()
    }

    /// Whether the promotion of `replica` was asked for: it may be in sync by now.
    pub fn may_be_promoted(&self, replica: R) -> bool {
        self.promoting.contains(&replica)
    }

    fn enter_epoch(&mut self, now: Duration) {
        self.awaited.clear();
        self.promoting.clear();
        self.is_leaving = false;
        self.next_beacon_at = now;
        self.peers.clear();
        self.given_up.clear();
        if self.membership.is_member(self.id) {
            let others = self.membership.members().filter(|id| *id != self.id);
            self.peers.extend(others.map(|id| Peer {
                id,
                granted_until: None,
                answered_at: now,
                is_refused: false,
                has_returned: false,
                heard_at: None,
            }));
        }
    }

    /// Asks for an epoch in which it takes part again.
    fn ask_to_take_part<C: From<Command<R>>>(&self, now: Duration, out: &mut Vec<C>) {
        let is_in_sync = self.membership.is_in_sync(self.id);
        match self.content {
            Content::Short if is_in_sync && self.membership.in_sync.len() > 1 => {
                self.leave_to_others(now, out);
            }
            // Others have what it has not.
            Content::Missing if is_in_sync && self.membership.in_sync.len() > 1 => {
                self.propose(Change::Remove(self.id), out);
            }
            // The only copy is gone. Whether to go on without is not for a machine to decide.
            Content::Missing if is_in_sync => {}
            _ => self.propose(Change::Renew, out),
        }
    }

    /// Others in sync have what it lacks, if one of them comes back. Otherwise what it has is all there is, so it stays until one is heard.
    fn leave_to_others<C: From<Command<R>>>(&self, now: Duration, out: &mut Vec<C>) {
        let others = self.peers.iter().filter(|peer| self.membership.is_in_sync(peer.id));
        for peer in others {
            out.push(Command::Beacon { to: peer.id, epoch: IS_ANYBODY_THERE, sent_at: now }.into());
        }
        let mut waits_for = self.waits_for(now).peekable();
        if waits_for.peek().is_none() {
            return self.propose(Change::Remove(self.id), out);
        }
        // Whoever would be left by one whose disk does not work has less than those who are gone.
        for id in waits_for.filter(|id| self.given_up.contains(id) && !self.is_out) {
            // What it granted before it stopped is over by then.
            let is_over = |peer: &Peer<R>| peer.id == id && now >= peer.answered_at + self.terms.grace;
            if self.peers.iter().any(is_over) {
                self.propose(Change::Remove(id), out);
            }
        }
    }

    fn propose<C: From<Command<R>>>(&self, change: Change<R>, out: &mut Vec<C>) {
        out.push(Command::Propose { expected: self.membership.epoch, change }.into());
    }
}
