//! One target of a chain: what it keeps in memory, and its place among the members.

use super::link::{Link, Way};
use crate::membership::{self, Content, LeaseTerms, Member, ReplicaId, Stored};
use ashlar_types::membership::{MEMBERS_MAX, Membership};
use ashlar_types::{ChunkId, Epoch};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

/// What a replica wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<R> {
    /// For the membership.
    Member(membership::Command<R>),
    /// `replica` is not in sync any more. It may lack these chunks, and all that are changed from now on.
    // ORDER: noted before anything is changed at the epoch that has begun.
    Lacks {
        /// Who.
        replica: R,
        /// It lacks nothing else if it was in sync at an epoch from here on,
        from: Epoch,
        /// up to here.
        to: Epoch,
        /// The chunks.
        chunks: Vec<ChunkId>,
    },
}

impl<R> From<membership::Command<R>> for Command<R> {
    fn from(command: membership::Command<R>) -> Command<R> {
        Command::Member(command)
    }
}

/// Why something is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not for this replica at this epoch, or not yet: the map says whose it is.
    NotNow,
    /// The chunk must be sent to the target behind first.
    Unsettled,
}

/// The target in front, as its calls name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InFront<R> {
    /// Who.
    pub id: R,
    /// Its epoch.
    pub epoch: Epoch,
    /// As it was told with what it began.
    pub turn: u64,
}

/// A change that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Begun<R> {
    /// The epoch.
    pub epoch: Epoch,
    /// For the call to whom it goes on.
    pub turn: u64,
    /// To whom it goes on, once it is made here: as a change also if it is a piece here.
    pub on: Option<R>,
}

/// Something that is sent whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Whole<R> {
    /// To whom.
    pub to: R,
    /// At which epoch.
    pub epoch: Epoch,
    /// For all calls of it.
    pub turn: u64,
}

/// Who brings back a chunk that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mender<R> {
    /// The target in front sends it whole, when it is told.
    InFront(R),
    /// Whoever is head next.
    WhoIsNext,
}

/// How a change has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was made here, and where it went on to.
    Made,
    /// It was made here; whether it was made behind is not known.
    NotBehind,
    /// How much of it was made here is not known, and it did not go on.
    Failed,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainReplica<R> {
    member: Member<R>,
    /// The membership at which it takes part, or took part last.
    entered: Option<Membership<R>>,
    /// Since when others are in sync as far as is known here, all of the time.
    in_sync_since: SmallVec<[(R, Epoch); MEMBERS_MAX]>,
    /// Chunks that are being changed, one change at a time: who begins has the chunk locked.
    // LIMIT: calls that are carried out.
    under_way: BTreeSet<ChunkId>,
    /// Chunks whose content here counts for nothing before it has come from in front.
    // LIMIT: as were under way when the process died, or are being sent here.
    doubtful: BTreeSet<ChunkId>,
    /// Chunks that cannot be read here, and that are to come from somebody else. Nobody lacks them because of that.
    // LIMIT: as the host remembers.
    spoiled: BTreeSet<ChunkId>,
    /// The newest turn of what has come from in front at this epoch: what is of an earlier one was given up.
    newest_turn: u64,
    link: Option<Link<R>>,
}

impl<R: ReplicaId> ChainReplica<R> {
    /// A replica that is in its chain for the first time, as [`Member::join`].
    pub fn join(
        id: R,
        terms: LeaseTerms,
        membership: Membership<R>,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> ChainReplica<R> {
        ChainReplica::outside(Member::join(id, terms, membership, now, out))
    }

    /// A replica that starts again with what is on its disk: what it stored of its membership, as [`Member::recover`], and the chunks that were noted.
    pub fn recover(
        id: R,
        terms: LeaseTerms,
        stored: Stored<R>,
        noted: impl IntoIterator<Item = ChunkId>,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> ChainReplica<R> {
        let before = stored.membership.clone();
        let is_whole = stored.content == Content::Whole;
        let mut replica = ChainReplica::outside(Member::recover(id, terms, stored, now));
        replica.doubtful.extend(noted);
        if replica.member.is_active() {
            replica.enter_epoch(out);
        } else if is_whole {
            replica.keep_count(&before);
            replica.entered = Some(before);
        }
        // Who has lost something cannot tell what others lack.
        replica
    }

    fn outside(member: Member<R>) -> ChainReplica<R> {
        ChainReplica {
            member,
            entered: None,
            in_sync_since: SmallVec::new(),
            under_way: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            newest_turn: 0,
            link: None,
        }
    }

    /// A membership was read or announced. What is under way goes on, and counts as unsettled at the new epoch.
    pub fn learn(&mut self, newer: &Membership<R>, now: Duration, out: &mut Vec<Command<R>>) {
        self.member.learn(newer, now, out);
    }

    /// The membership of `epoch` is durable.
    pub fn membership_stored(&mut self, epoch: Epoch, out: &mut Vec<Command<R>>) {
        if self.member.stored(epoch) {
            self.enter_epoch(out);
        }
    }

    /// Begins a change of `chunk`, which is locked: of a caller, or one that came from the target in front at its epoch. The caller notes the chunk, makes the change, has it
    /// made behind, and then calls [`ChainReplica::end`].
    ///
    /// # Errors
    /// [`Refused`].
    pub fn begin(
        &mut self,
        chunk: ChunkId,
        from: Option<InFront<R>>,
        out: &mut Vec<Command<R>>,
    ) -> Result<Begun<R>, Refused> {
        self.admit(from, out)?;
        let on = match self.link.as_mut().map(|link| (link.id, link.way_of(chunk))) {
            None | Some((_, Way::Stays)) => None,
            Some((id, Way::On)) => Some(id),
            Some((_, Way::NotCompared)) => return Err(Refused::NotNow),
            Some((_, Way::Unsettled)) => return Err(Refused::Unsettled),
        };
        Ok(self.begin_here(chunk, on))
    }

    fn begin_here(&mut self, chunk: ChunkId, on: Option<R>) -> Begun<R> {
        // INVARIANT: two changes of a chunk at a time could be made in different orders.
        assert!(self.under_way.insert(chunk), "{chunk} is being changed already");
        let turn = self.link.as_ref().map_or(0, |link| link.turn);
        Begun { epoch: self.member.epoch(), turn, on }
    }

    /// A change has ended. Tells whether it may be answered: everybody behind has it who must.
    pub fn end(&mut self, chunk: ChunkId, begun: Begun<R>, outcome: Outcome) -> bool {
        // INVARIANT: each is ended once.
        assert!(self.under_way.remove(&chunk), "{chunk} is not being changed");
        // At a new epoch the chunk is unsettled where somebody is behind; the caller asks once more.
        let is_current = self.member.is_active() && self.member.epoch() == begun.epoch;
        if outcome == Outcome::Made {
            return is_current;
        }
        let Some(link) = &mut self.link else { return false };
        if is_current && begun.on == Some(link.id) {
            link.give_up(begun.turn);
        }
        // ORDER: also while a new epoch is being stored, which begins with what is known here.
        link.unsettled.insert(chunk);
        if outcome == Outcome::NotBehind {
            link.unheard.insert(chunk);
        }
        let is_waited_for = !is_current || link.is_required || begun.on != Some(link.id);
        outcome == Outcome::NotBehind && !is_waited_for
    }

    /// Begins a deletion, of a caller or from the target in front, and tells to whom it goes on once it is made here. Deletions are asked for again until they are
    /// answered, so nothing is kept of them.
    ///
    /// # Errors
    /// [`Refused::NotNow`].
    pub fn begin_deletion(
        &mut self,
        from: Option<InFront<R>>,
        out: &mut Vec<Command<R>>,
    ) -> Result<Begun<R>, Refused> {
        self.admit(from, out)?;
        let on = match &self.link {
            Some(link) if link.is_required && !link.is_compared => return Err(Refused::NotNow),
            link => link.as_ref().map(|link| link.id),
        };
        let turn = self.link.as_ref().map_or(0, |link| link.turn);
        Ok(Begun { epoch: self.member.epoch(), turn, on })
    }

    /// A deletion has ended. Tells whether it may be answered. Who is being caught up with and has not made it is compared anew.
    pub fn end_deletion(&mut self, begun: Begun<R>, outcome: Outcome) -> bool {
        let is_current = self.member.is_active() && self.member.epoch() == begun.epoch;
        match (outcome, &mut self.link) {
            (Outcome::Made, _) => is_current,
            (Outcome::NotBehind, Some(link)) if is_current && begun.on == Some(link.id) => {
                link.is_compared &= link.is_required;
                // What is changed from now on is not deleted by it, should it arrive yet.
                link.give_up(begun.turn);
                !link.is_required
            }
            _ => false,
        }
    }

    /// Whether something is for this replica, of a caller, or from the target in front: not what that has given up, and sent something after it.
    fn admit(&mut self, from: Option<InFront<R>>, out: &mut Vec<Command<R>>) -> Result<(), Refused> {
        let Some(from) = from else {
            let is_for_here = self.member.is_primary() && !self.member.is_leaving();
            return if is_for_here { Ok(()) } else { Err(Refused::NotNow) };
        };
        let is_in_front = self.member.admits(from.epoch, out) && self.predecessor() == Some(from.id);
        if !is_in_front || from.turn < self.newest_turn {
            return Err(Refused::NotNow);
        }
        self.newest_turn = from.turn;
        Ok(())
    }

    /// Whether `chunk`, which nobody has locked for a change, may be read here. To be asked before it is read, and once more after that.
    pub fn may_read(&self, chunk: ChunkId, now: Duration) -> bool {
        let is_held_back = self.link.as_ref().is_some_and(|link| link.holds_back(chunk));
        self.member.may_serve(now)
            && !is_held_back
            && !self.is_doubtful(chunk)
            && !self.under_way.contains(&chunk)
    }

    /// Whether what there is of whole files may be told here: by the head alone.
    pub fn may_tell(&self, now: Duration) -> bool {
        self.member.may_acknowledge(now)
    }

    /// Who is to be asked what he has, at this epoch, and whether he is in sync.
    pub fn to_compare(&self) -> Option<(R, bool)> {
        let link = self.link.as_ref().filter(|link| !link.is_compared && self.member.is_active())?;
        Some((link.id, self.member.membership().is_in_sync(link.id)))
    }

    /// The target behind may lack `chunks` from before this epoch, and no others but those that were changed since it began.
    pub fn compared(&mut self, epoch: Epoch, chunks: impl IntoIterator<Item = ChunkId>) {
        if let Some(link) = self.link.as_mut().filter(|_| self.member.epoch() == epoch) {
            link.unsettled.extend(chunks);
            link.is_compared = true;
        }
    }

    /// The next chunk behind `after` that is to be sent whole.
    pub fn next_unsettled(&self, after: Option<ChunkId>) -> Option<ChunkId> {
        let link = self.link.as_ref().filter(|link| link.is_compared)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        link.unsettled.range((from, Bound::Unbounded)).next().copied()
    }

    /// How many chunks are to be sent whole.
    pub fn unsettled_count(&self) -> usize {
        self.link.as_ref().map_or(0, |link| link.unsettled.len())
    }

    /// To whom `chunk`, which is locked, is to be sent whole, if it is: that begins now. Not while what is here is doubtful.
    pub fn settles(&mut self, chunk: ChunkId) -> Option<Whole<R>> {
        let is_active = self.member.is_active() && !self.is_doubtful(chunk);
        let epoch = self.member.epoch();
        let link = self.link.as_mut().filter(|link| is_active && link.is_compared)?;
        link.unsettled.contains(&chunk).then_some(Whole { to: link.id, epoch, turn: link.turn })
    }

    /// At which turn the target behind is to delete all that it has, because what it lacks is not known.
    pub fn empties(&mut self) -> Option<Whole<R>> {
        let (is_active, epoch) = (self.member.is_active(), self.member.epoch());
        let link = self.link.as_mut().filter(|link| is_active && !link.is_compared)?;
        Some(Whole { to: link.id, epoch, turn: link.turn })
    }

    /// Whether all that is here is to be deleted for the target in front. The caller deletes it with no change under way.
    pub fn empties_here(&mut self, from: InFront<R>, out: &mut Vec<Command<R>>) -> bool {
        let is_in_sync = self.member.membership().is_in_sync(self.member.id());
        self.admit(Some(from), out).is_ok() && !is_in_sync
    }

    /// What was to be sent whole, or deleted, was not, or nobody knows.
    pub fn gave_up(&mut self, whole: Whole<R>) {
        let is_current = self.member.is_active() && self.member.epoch() == whole.epoch;
        if let Some(link) = self.link.as_mut().filter(|link| is_current && link.id == whole.to) {
            link.give_up(whole.turn);
        }
    }

    /// `chunk` was sent whole at `epoch`. It was locked since [`ChainReplica::settles`].
    pub fn settled(&mut self, chunk: ChunkId, epoch: Epoch) {
        if let Some(link) = self.link.as_mut().filter(|_| self.member.epoch() == epoch) {
            link.unsettled.remove(&chunk);
            link.unheard.remove(&chunk);
        }
    }

    /// Begins a change that is a piece of `chunk`, which the target in front sends whole; as [`ChainReplica::begin`]. A piece takes nothing away that is there in
    /// front: of one in sync this may be the only copy before the next one comes.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn begin_piece(
        &mut self,
        chunk: ChunkId,
        from: InFront<R>,
        out: &mut Vec<Command<R>>,
    ) -> Result<Begun<R>, Refused> {
        self.admit(Some(from), out)?;
        let on = match self.link.as_mut().map(|link| (link.id, link.way_of(chunk))) {
            Some((id, Way::On)) => Some(id),
            Some((_, Way::NotCompared)) => return Err(Refused::NotNow),
            // What is doubtful is not sent on: it must come first.
            None | Some((_, Way::Stays | Way::Unsettled)) => None,
        };
        self.doubtful.insert(chunk);
        Ok(self.begin_here(chunk, on))
    }

    /// All of `chunk` has come from the target in front. Tells whether that is so at this epoch, and everybody behind has it who must; if not,
    /// it is sent on first, and asked for again.
    pub fn settled_in_front(&mut self, chunk: ChunkId, from: InFront<R>, out: &mut Vec<Command<R>>) -> bool {
        if self.admit(Some(from), out).is_err() {
            return false;
        }
        self.doubtful.remove(&chunk);
        self.spoiled.remove(&chunk);
        !self.link.as_ref().is_some_and(|link| link.holds_back(chunk))
    }

    /// What is here of `chunk` cannot be read, and not be brought back from behind. Tells who is to do something about it; nobody where no other copy counts.
    ///
    /// It counts for nothing from here on: the caller notes the chunk. A head leaves, once all others are heard, and gets it with what it lacks when it comes back.
    ///
    /// # Errors
    /// [`Refused::NotNow`] before this one takes part, and while it does not know whether the one behind was promoted, as it has asked for.
    pub fn damaged(
        &mut self,
        chunk: ChunkId,
        now: Duration,
        out: &mut Vec<Command<R>>,
    ) -> Result<Option<Mender<R>>, Refused> {
        if !self.member.is_active() {
            return Err(Refused::NotNow);
        }
        let membership = self.member.membership();
        if !membership.in_sync.iter().any(|other| *other != self.member.id()) {
            return if self.is_behind_required() { Err(Refused::NotNow) } else { Ok(None) };
        }
        let mender = self.predecessor().map(Mender::InFront);
        if mender.is_some() || self.member.may_serve(now) {
            self.spoiled.insert(chunk);
        }
        if mender.is_none() && self.member.may_serve(now) {
            self.member.leave(out);
        }
        Ok(Some(mender.unwrap_or(Mender::WhoIsNext)))
    }

    /// The target behind has found that what it has of `chunk` cannot be read. Tells whether it is sent whole, once the caller gets to it.
    pub fn wanted_again(&mut self, chunk: ChunkId, by: R, epoch: Epoch) -> bool {
        let is_current = self.member.is_active() && self.member.epoch() == epoch;
        let link = self.link.as_mut().filter(|link| is_current && link.is_compared && link.id == by);
        // What is there of it is not to be gone by.
        link.map(|link| (link.unheard.remove(&chunk), link.unsettled.insert(chunk))).is_some()
    }

    /// Who has all of `chunk`, which is locked, that anybody was told of, while here there may be more: a change was made here, has not come there, and was neither answered
    /// nor read. If what is here cannot be read, it may be taken back, as it would be if this replica died. Nobody: what is here counts.
    ///
    /// # Errors
    /// [`Refused::NotNow`]: that will be known.
    pub fn may_fall_back(&self, chunk: ChunkId) -> Result<Option<R>, Refused> {
        let Some(link) = self.link.as_ref().filter(|link| link.is_required) else { return Ok(None) };
        if !link.is_compared || !self.member.is_active() {
            return Err(Refused::NotNow);
        }
        if !link.unheard.contains(&chunk) {
            return Ok(None);
        }
        // One whose promotion was asked for cannot be head before it is there.
        let is_in_sync = self.member.membership().is_in_sync(link.id);
        if is_in_sync { Ok(Some(link.id)) } else { Err(Refused::NotNow) }
    }

    /// Whether what is here of `chunk` counts for nothing before the target in front has sent it.
    pub fn is_doubtful(&self, chunk: ChunkId) -> bool {
        self.doubtful.contains(&chunk) || self.spoiled.contains(&chunk)
    }

    /// Whether the target behind may lack something of `chunk`, which is locked.
    pub fn is_unsettled(&self, chunk: ChunkId) -> bool {
        self.link.as_ref().is_none_or(|link| !link.is_compared || link.unsettled.contains(&chunk))
    }

    /// Chunks that the target in front is to send, ascending: of what is here nobody else may know.
    pub fn uncertain(&self) -> BTreeSet<ChunkId> {
        let mut all: BTreeSet<ChunkId> = self.doubtful.union(&self.under_way).copied().collect();
        all.extend(&self.spoiled);
        if let Some(link) = self.link.as_ref().filter(|link| link.is_required) {
            all.extend(&link.unsettled);
        }
        all
    }

    /// Whether `chunk` is to be noted: were the process to die now, nobody else would know of it.
    pub fn is_noted(&self, chunk: ChunkId) -> bool {
        let is_held_back = self.link.as_ref().is_some_and(|link| link.holds_back(chunk));
        is_held_back || self.under_way.contains(&chunk) || self.is_doubtful(chunk)
    }

    /// The target behind, if it lacks nothing, and its promotion was not asked for yet.
    pub fn has_caught_up(&self) -> Option<R> {
        let link = self.link.as_ref().filter(|_| self.member.is_active())?;
        let is_asked = self.member.membership().is_in_sync(link.id) || self.member.may_be_promoted(link.id);
        let is_there = !is_asked && link.is_compared && link.unsettled.is_empty();
        is_there.then_some(link.id)
    }

    /// Who has caught up is required from here on, unless it lacks something by now: what is changed or synced, is so there as well. What was before is to be made durable there after this, and
    /// before [`ChainReplica::promote`].
    pub fn require(&mut self, replica: R) {
        if self.has_caught_up() == Some(replica)
            && let Some(link) = &mut self.link
        {
            link.is_required = true;
        }
    }

    /// Everything is durable at `replica`, which was required before that at the epoch `epoch`: has it promoted, unless it lacks something by now.
    pub fn promote(&mut self, replica: R, epoch: Epoch, out: &mut Vec<Command<R>>) {
        let is_required = self.is_behind_required() && self.member.epoch() == epoch;
        if is_required && self.has_caught_up() == Some(replica) {
            self.member.promote_behind(replica, out);
        }
    }

    /// The membership's part: beacons, grants, time.
    pub fn member(&self) -> &Member<R> {
        &self.member
    }

    /// As [`ChainReplica::member`], to tell it of time and beacons.
    pub fn member_mut(&mut self) -> &mut Member<R> {
        &mut self.member
    }

    /// Who is in front at this epoch.
    pub fn predecessor(&self) -> Option<R> {
        let own = self.places().position(|member| member == self.member.id())?;
        self.places().nth(own.checked_sub(1)?)
    }

    /// Its place in the chain, from 0.
    pub fn place(&self) -> u8 {
        let own = self.places().position(|member| member == self.member.id());
        own.and_then(|own| u8::try_from(own).ok()).unwrap_or(0)
    }

    /// Whether changes are answered only once the target behind has made them.
    pub fn is_behind_required(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_required)
    }

    /// Whether the target behind, whose answer is required, is not heard: a change would wait for it in vain.
    pub fn is_behind_silent(&self, now: Duration) -> bool {
        let behind = self.link.as_ref().filter(|link| link.is_required);
        behind.is_some_and(|link| !self.member.is_granted_by(link.id, now))
    }

    /// Who is behind at this epoch, and is sent what is changed.
    pub fn successor(&self) -> Option<R> {
        self.link.as_ref().map(|link| link.id)
    }

    /// Those who change chunks: in sync, and the first of those that are caught up with.
    fn places(&self) -> impl Iterator<Item = R> + '_ {
        let membership = self.member.membership();
        membership.in_sync.iter().chain(membership.catching_up.first()).copied()
    }

    /// Takes its place in the chain.
    fn enter_epoch(&mut self, out: &mut Vec<Command<R>>) {
        let membership = self.member.membership().clone();
        let own = self.member.id();
        let mut unheard: BTreeSet<ChunkId> = self.under_way.union(&self.doubtful).copied().collect();
        let mut unsettled = unheard.clone();
        if let Some(link) = self.link.take().filter(|link| link.is_required) {
            unsettled.extend(link.unsettled);
            unheard.extend(link.unheard);
        }
        self.tell_who_lacks(&membership, &unsettled, out);
        self.keep_count(&membership);
        self.newest_turn = 0;
        let is_in_sync = membership.is_in_sync(own);
        if !is_in_sync {
            // What nobody behind is known to have counts for nothing any more.
            self.doubtful.extend(&unsettled);
        }
        let behind = self.places().skip_while(|member| *member != own).nth(1).filter(|_| is_in_sync);
        self.link = behind.map(|id| Link {
            id,
            is_required: membership.is_in_sync(id),
            is_compared: false,
            turn: 0,
            unsettled,
            unheard,
        });
        if self.member.is_primary() {
            // What is in front counts.
            self.doubtful.clear();
            self.spoiled.clear();
        }
        self.entered = Some(membership);
    }

    fn tell_who_lacks(
        &self,
        membership: &Membership<R>,
        unsettled: &BTreeSet<ChunkId>,
        out: &mut Vec<Command<R>>,
    ) {
        let own = self.member.id();
        let Some(before) = self.entered.as_ref().filter(|before| before.is_in_sync(own)) else { return };
        if !membership.is_in_sync(own) {
            return;
        }
        for &replica in before.in_sync.iter().filter(|replica| !membership.is_in_sync(**replica)) {
            let since = self.in_sync_since.iter().find(|(known, _)| *known == replica);
            let from = since.map_or(before.epoch, |(_, since)| *since);
            let chunks = unsettled.iter().copied().collect();
            out.push(Command::Lacks { replica, from, to: before.epoch, chunks });
        }
    }

    fn keep_count(&mut self, membership: &Membership<R>) {
        // Who is not in sync does not see what others lack.
        let is_in_sync = membership.is_in_sync(self.member.id());
        self.in_sync_since.retain(|(replica, _)| is_in_sync && membership.is_in_sync(*replica));
        for &replica in membership.in_sync.iter().filter(|_| is_in_sync) {
            if !self.in_sync_since.iter().any(|(known, _)| *known == replica) {
                self.in_sync_since.push((replica, membership.epoch));
            }
        }
    }
}

#[cfg(test)]
#[path = "replica_test.rs"]
mod tests;
