//! The sender's side: a shard is copied while it is served, then nobody is served for a moment while the rest is sent and the map is changed.

use super::super::message::{Answer, Moving, Say};
use super::queue::{Outgoing, Queued, SILENT_AFTER};
use crate::MetaService;
use ashlar_kv::{Key, Snapshot};
use ashlar_namespace::key;
use ashlar_replication::hand_over::shard::{Deciding, Step, Told};
use ashlar_rpc::LastingSessions;
use ashlar_rpc::wire::{MoveInfo, MoveState, Withdrawal};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Epoch, Errno, NodeId, Role, SessionId, ShardId};
use bytes::Bytes;
use rustc_hash::FxHashSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Bytes of keys and values that one message carries, and pairs.
// LIMIT: of a message, and of what is held of the lane for one.
const PAGE_BYTES: usize = 256 << 10;
const PAGE_PAIRS: usize = 2048;
/// Things of memory that one message carries.
const PAGE_HOLDS: usize = 8192;
/// Sessions that one message carries.
const PAGE_SESSIONS: usize = 4096;
/// With so few keys left to be sent the gate is closed.
const FEW: usize = 256;
/// How often what has changed meanwhile is sent before the gate is closed all the same.
const ROUNDS: usize = 64;
/// For how long who is inside the gate is waited for, each time. It is a part of what clients see of a move.
const DRAIN_MAX: Duration = Duration::from_millis(300);
/// Tries to find nobody inside, and the pause between two.
const DRAINS: u32 = 200;
const DRAIN_PAUSE: Duration = Duration::from_millis(250);
/// For how long the receiver may take for one message, while the shard is served and while it is not.
const TELL_MAX: Duration = Duration::from_secs(60);
const TELL_FROZEN_MAX: Duration = Duration::from_secs(2);
/// For how long it may take for one of the tries to say something: whether the move is to go on is looked at between two.
const TRY_MAX: Duration = Duration::from_secs(5);
/// Time between two tries to say something.
const TELL_PAUSE: Duration = Duration::from_millis(20);
/// Questions to the manager that may be refused because the map has changed.
const TRANSFERS: u32 = 50;
/// Time between two questions to a manager that does not answer.
const TRANSFER_PAUSE: Duration = Duration::from_millis(100);
/// For how long a newer map is waited for that a manager has told of.
const NEWER_MAP_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at the map.
const MAP_PAUSE: Duration = Duration::from_millis(2);
/// Tries to send a shard, and the pause between two.
const TRIES: u32 = 5;
const TRY_PAUSE: Duration = Duration::from_secs(1);
/// For how long it is told that a move was withdrawn.
const WITHDRAWN_TOLD: Duration = Duration::from_secs(10);
/// Time between two looks whether there is something to be sent.
const IDLE: Duration = Duration::from_millis(50);

/// What has become of a question for a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transferred {
    /// The map says so.
    Done,
    /// It does not, and will not by this question; a manager has proven that.
    Refused(String),
    /// No manager has got the question, and none will.
    NotAsked,
    /// Nobody knows.
    Unknown,
}

impl Transferred {
    fn told(&self) -> Told {
        match self {
            Transferred::Done => Told::Done,
            Transferred::Refused(_) => Told::Refused,
            Transferred::NotAsked => Told::NotAsked,
            Transferred::Unknown => Told::Unknown,
        }
    }
}

/// Asks the manager: shards of `.1` are to be `.2`'s, if the map is still of epoch `.3`.
pub type Transfer<'a> = dyn Fn(&[ShardId], NodeId, NodeId, Epoch) -> Transferred + 'a;

/// Why a shard was not sent.
enum NotSent {
    /// Somebody is always inside its gate, or the manager is away: it is good as it is, and can be tried again.
    NotNow(&'static str),
    /// The receiver does not have it, or not all of it.
    Lost(String),
    /// An administrator wants it to stay.
    Withdrawn,
    /// Its receiver is silent, and others go first meanwhile.
    Aside,
    /// An administrator wants nothing to be moved for now.
    Paused,
}

/// One attempt to send a shard.
struct Attempt<'a> {
    service: &'a MetaService,
    shard: ShardId,
    to: NodeId,
    attempt: u64,
    /// Of the next pairs.
    number: u64,
    /// Sessions that the receiver was told of.
    told: FxHashSet<SessionId>,
    tell_max: Duration,
    /// How far it is decided whose the shard is.
    deciding: Deciding,
}

impl MetaService {
    /// Has shards be sent to another server, after those that are to be sent already, as the process `asker` wants.
    ///
    /// # Errors
    /// `ENODEV` when there is no such metadata server, `EHOSTDOWN` when one is not here.
    pub(crate) fn send_shards(
        &self,
        shards: &[ShardId],
        to: NodeId,
        asker: Option<SessionOwner>,
    ) -> Result<(), Errno> {
        let map = self.map.read().clone();
        if !map.listening(Role::Meta).any(|node| node.id == to) || to == self.across.node {
            return Err(Errno::ENODEV);
        }
        if !shards.iter().all(|shard| self.is_here(*shard)) {
            return Err(Errno::EHOSTDOWN);
        }
        let now = self.env.clock.monotonic();
        let mut sending = self.across.sending.lock();
        shards.iter().for_each(|shard| sending.enqueue(*shard, to, asker, now));
        Ok(())
    }

    /// Whether an administrator wants something to stay that was to go there.
    pub(super) fn has_withdrawn_from(&self, to: NodeId) -> bool {
        self.across.sending.lock().withdrawn.iter().any(|known| known.to == to)
    }

    pub(crate) fn is_to_be_sent(&self, shard: ShardId) -> bool {
        let sending = self.across.sending.lock();
        sending.current.is_some_and(|current| current.shard == shard)
            || sending.queue.iter().any(|queued| queued.shard == shard)
    }

    /// Whether chunks of removed files in `shard` are left to whoever has it next.
    pub(crate) fn is_being_sent(&self, shard: ShardId) -> bool {
        self.across.sending.lock().current.is_some_and(|current| current.shard == shard)
    }

    /// Whether this attempt is under way.
    pub(in crate::across) fn is_sending(&self, shard: ShardId, attempt: u64) -> bool {
        let current = self.across.sending.lock().current;
        current.is_some_and(|current| (current.shard, current.attempt) == (shard, attempt))
    }

    /// Shards that are being sent, are to be, or could not be.
    pub(crate) fn moves_shown(&self) -> Vec<MoveInfo> {
        let sending = self.across.sending.lock();
        let shown = |shard, to, state, sent, total| MoveInfo { shard, to, state, sent, total };
        let now = self.env.clock.monotonic();
        let state = |current: &Outgoing| match sending.silence(now).filter(|silent| *silent >= SILENT_AFTER) {
            _ if current.is_deciding => MoveState::Deciding,
            Some(silent) => MoveState::Stalled(format!("it has not answered for {} s", silent.as_secs())),
            None => MoveState::Copying,
        };
        let current = sending.current.iter();
        let current = current.map(|now| shown(now.shard, now.to, state(now), now.sent, now.total));
        let waiting = sending.queue.iter().map(|next| shown(next.shard, next.to, MoveState::Waiting, 0, 0));
        let failed = sending.failed.iter();
        let failed = failed.map(|(shard, to, why)| shown(*shard, *to, MoveState::Failed(why.clone()), 0, 0));
        let is_new = |at: Duration| now.saturating_sub(at) < WITHDRAWN_TOLD;
        let withdrawn = sending.withdrawn.iter().filter(|known| is_new(known.since));
        let withdrawn = withdrawn
            .map(|known| shown(known.shard, known.to, MoveState::Failed("it was withdrawn".into()), 0, 0));
        current.chain(waiting).chain(failed).chain(withdrawn).collect()
    }

    /// Has shards stay that are to be sent, all of them if none is named; tells what has become of each, and where it was to go.
    pub(crate) fn withdraw(&self, shards: &[ShardId]) -> Vec<(ShardId, Option<NodeId>, Withdrawal)> {
        self.across.sending.lock().withdraw(shards, self.env.clock.monotonic())
    }

    /// Has nothing sent for now, or has what is to be sent go on. A shard that is just being copied is let go of, and is the first one when it goes on: what was copied of it would
    /// have to be kept up to date for nobody knows how long.
    pub fn pause_moves(&self, are_paused: bool) {
        if self.across.are_moves_paused.swap(are_paused, SeqCst) != are_paused {
            tracing::info!(are_paused, "moves of shards were paused, or go on");
        }
    }

    /// Whether shards are being sent, or are to be.
    pub fn has_moves(&self) -> bool {
        let sending = self.across.sending.lock();
        sending.current.is_some() || !sending.queue.is_empty()
    }

    pub(super) fn are_moves_paused(&self) -> bool {
        self.across.are_moves_paused.load(SeqCst)
    }

    /// Sends the next shard, if there is one to be sent and all sessions have told what they have. To be called again after the time that it tells.
    pub fn carry_out_moves(&self, transfer: &Transfer<'_>) -> Duration {
        // ORDER: not before all sessions have told, after a start, what they have. It goes along, and nobody tells the next server of it: that would give it to others.
        if self.is_awaiting() || self.are_moves_paused() {
            return IDLE;
        }
        let now = self.env.clock.monotonic();
        let pause = self.across.sending.lock().pause_for_renewals(now);
        if let Some(pause) = pause {
            return pause;
        }
        let next = self.across.sending.lock().begin_next(now);
        let Some(Queued { shard, to, tries }) = next else { return IDLE };
        // Another one has it by now: who asked for the move asks there.
        let sent = if self.is_here(shard) { self.send_shard(shard, to, tries, transfer) } else { Ok(()) };
        let mut sending = self.across.sending.lock();
        let is_withdrawn = sending.current.take().is_some_and(|current| current.is_withdrawn);
        if is_withdrawn {
            tracing::info!(%shard, %to, "the move of a shard was withdrawn; it stays where it is");
        } else if let Err(why) = sent {
            tracing::warn!(%shard, %to, why, "a shard could not be moved; it stays where it is");
            sending.failed.retain(|(failed, ..)| *failed != shard);
            sending.failed.push((shard, to, why));
        }
        Duration::ZERO
    }

    fn send_shard(
        &self,
        shard: ShardId,
        to: NodeId,
        tried: u32,
        transfer: &Transfer<'_>,
    ) -> Result<(), String> {
        let mut last = format!("{to} has been silent again and again");
        for tries in tried..TRIES {
            if tries > tried {
                self.env.tasks.pause(TRY_PAUSE);
            }
            if self.is_ending() {
                return Err("the server is about to stop".into());
            }
            if self.is_withdrawn() {
                return Err("it was withdrawn".into());
            }
            if !self.is_here(shard) {
                return Err("the shard is not here".into());
            }
            self.across.tracker.begin(shard);
            let mut attempt = Attempt {
                service: self,
                shard,
                to,
                attempt: self.env.entropy.next_u64(),
                number: 0,
                told: FxHashSet::default(),
                tell_max: TELL_MAX,
                deciding: Deciding::default(),
            };
            let begun = self.env.clock.monotonic();
            self.note_progress(|now| {
                (now.attempt, now.sent, now.total) = (attempt.attempt, 0, 0);
                (now.tries, now.begun) = (tries, begun);
            });
            let sent = attempt.send(transfer);
            self.across.tracker.end();
            match sent {
                Ok(()) => return Ok(()),
                Err(NotSent::Withdrawn) => {
                    attempt.give_up();
                    return Err("it was withdrawn".into());
                }
                Err(NotSent::Aside) => {
                    attempt.give_up();
                    self.across.sending.lock().put_aside();
                    tracing::info!(%shard, %to, "the receiver of a shard does not answer; others go first");
                    return Ok(());
                }
                Err(NotSent::Paused) => {
                    attempt.give_up();
                    self.across.sending.lock().put_back();
                    return Ok(());
                }
                Err(NotSent::NotNow(why)) => last = why.to_owned(),
                Err(NotSent::Lost(why)) => last = why,
            }
            if !attempt.deciding.may_keep() {
                // ORDER: the receiver keeps what it has: the question may be carried out before the next start makes it void.
                return Err(last);
            }
            // ORDER: only now. Until here it may be the receiver's, and whoever wants it to stay is told that it is too late.
            self.note_progress(|now| now.is_deciding = false);
            attempt.give_up();
            tracing::info!(%shard, %to, why = last, "a shard is not moved for now");
            if self.across.sending.lock().is_given_up(self.env.clock.monotonic()) {
                return Err(last);
            }
        }
        Err(last)
    }

    fn note_progress(&self, change: impl FnOnce(&mut Outgoing)) {
        if let Some(current) = &mut self.across.sending.lock().current {
            change(current);
        }
    }

    fn is_withdrawn(&self) -> bool {
        self.across.sending.lock().current.is_some_and(|current| current.is_withdrawn)
    }

    /// Sessions, with their owners.
    fn sessions_to_tell(&self) -> Result<Vec<(SessionId, SessionOwner)>, Errno> {
        let lasting = self.find_lasting()?;
        // Of one that is unmet here it is not known whether it is there; it has nothing here, and does not follow the shard.
        let is_there = |session: SessionId| self.sessions.has(session) && !self.unmet.has(session);
        Ok(lasting.into_iter().filter(|(session, _)| is_there(*session)).collect())
    }
}

/// Pairs on their way.
type Pairs = Vec<(Key, Option<Bytes>)>;

impl Attempt<'_> {
    fn send(&mut self, transfer: &Transfer<'_>) -> Result<(), NotSent> {
        let epoch = self.service.map.read().epoch;
        self.tell(Moving::Begin { from: self.service.across.node, epoch })?;
        self.tell_sessions()?;
        let total = self.count()?;
        self.service.note_progress(|now| now.total = total);
        let prefix = key::shard_prefix(self.shard);
        self.copy(&prefix, &key::after_prefix(&prefix), |found| !key::is_of_server(found))?;
        let (from, to) = key::table_range(ShardId(0), b'R');
        let told = self.told.clone();
        self.copy(&from, &to, |found| key::reply_of(found).is_some_and(|session| told.contains(&session)))?;
        for _ in 0..DRAINS {
            self.catch_up()?;
            if self.service.is_ending() {
                return Err(NotSent::NotNow("the server is about to stop"));
            }
            self.require_wanted()?;
            // Nobody is to wait for a manager that is away.
            let seen = self.service.map.read().epoch;
            if transfer(&[], self.service.across.node, self.to, seen) != Transferred::Done {
                self.service.env.tasks.pause(DRAIN_PAUSE);
                continue;
            }
            if self.service.close_gates(&[self.shard], DRAIN_MAX) {
                return self.hand_over(transfer);
            }
            self.service.env.tasks.pause(DRAIN_PAUSE);
        }
        Err(NotSent::NotNow("there is always a call in it that waits for others, or no manager answers"))
    }

    fn failed(&self, errno: Errno) -> NotSent {
        NotSent::Lost(format!("this server could not read it: {errno}"))
    }

    /// Says something to the receiver until it is done.
    fn tell(&self, what: Moving) -> Result<(), NotSent> {
        let service = self.service;
        let say = Say::Move { shard: self.shard, attempt: self.attempt, what };
        let deadline = service.env.clock.monotonic().saturating_add(self.tell_max);
        loop {
            self.require_wanted()?;
            let begun = service.env.clock.monotonic();
            let left = deadline.saturating_sub(begun);
            let answer = service.say_to(self.to, &say, left.min(TRY_MAX));
            let is_silent = answer == Err(Errno::EHOSTDOWN);
            let now = service.env.clock.monotonic();
            let (is_in_the_way, is_given_up) = {
                let mut sending = service.across.sending.lock();
                sending.note_answer(self.to, is_silent, begun, now);
                (sending.is_in_the_way(now), sending.is_given_up(now))
            };
            match answer {
                Ok(Answer::Done) => return Ok(()),
                Ok(Answer::Later) | Err(Errno::EHOSTDOWN)
                    if left > TELL_PAUSE && !is_given_up && !service.is_ending() =>
                {
                    if is_in_the_way {
                        return Err(NotSent::Aside);
                    }
                    service.env.tasks.pause(TELL_PAUSE);
                }
                Ok(Answer::Later) | Err(Errno::EHOSTDOWN) => {
                    return Err(NotSent::Lost(format!("{} does not answer, or is not ready", self.to)));
                }
                Ok(Answer::NoSuchMove(_)) => {
                    return Err(NotSent::Lost(format!("{} was started anew", self.to)));
                }
                Ok(Answer::Failed(errno)) | Err(errno) => {
                    return Err(NotSent::Lost(format!("{} cannot take it: {errno}", self.to)));
                }
                Ok(_) => return Err(NotSent::Lost(format!("{} gives an answer of the wrong kind", self.to))),
            }
        }
    }

    /// Whether the move is to go on: it may have been withdrawn, or all be paused. Once it is being handed over it is too late for either.
    fn require_wanted(&self) -> Result<(), NotSent> {
        let is_deciding = self.service.across.sending.lock().current.is_some_and(|now| now.is_deciding);
        match self.service.is_withdrawn() {
            true => Err(NotSent::Withdrawn),
            false if !is_deciding && self.service.are_moves_paused() => Err(NotSent::Paused),
            false => Ok(()),
        }
    }

    /// Tells of all sessions that there are now, and that they are there.
    fn tell_sessions(&mut self) -> Result<(), NotSent> {
        let sessions = self.service.sessions_to_tell().map_err(|errno| self.failed(errno))?;
        for some in sessions.chunks(PAGE_SESSIONS) {
            self.tell(Moving::Sessions(some.to_vec()))?;
        }
        self.told = sessions.into_iter().map(|(session, _)| session).collect();
        Ok(())
    }

    fn tell_pairs(&mut self, pairs: Pairs) -> Result<(), NotSent> {
        let count = pairs.len() as u64;
        let number = self.number;
        self.tell(Moving::Pairs { number, pairs })?;
        self.number += 1;
        self.service.note_progress(|now| now.sent += count);
        Ok(())
    }

    /// How many keys there are, for whoever looks how far it is.
    fn count(&self) -> Result<u64, NotSent> {
        let prefix = key::shard_prefix(self.shard);
        let (mut from, to) = (prefix.clone(), key::after_prefix(&prefix));
        let mut total = 0;
        loop {
            let mut left = PAGE_PAIRS;
            let mut last = None;
            let mut visit = |found: &[u8], _: &[u8]| {
                left -= 1;
                last = Some(Key::from_slice(found));
                if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let scanned = self.service.lane.read().scan(&from, &to, &mut visit);
            scanned.map_err(|error| self.failed(self.service.answer(&error.into())))?;
            total += (PAGE_PAIRS - left) as u64;
            match last.filter(|_| left == 0) {
                Some(last) => from = behind(last),
                None => return Ok(total),
            }
        }
    }

    /// Sends all pairs in a range whose keys are `wanted`.
    fn copy(&mut self, from: &[u8], to: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Result<(), NotSent> {
        let mut from = Key::from_slice(from);
        loop {
            let (mut page, mut bytes, mut last): (Pairs, usize, Option<Key>) = (Vec::new(), 0, None);
            let mut visit = |found: &[u8], value: &[u8]| {
                if wanted(found) {
                    bytes += found.len() + value.len();
                    page.push((Key::from_slice(found), Some(Bytes::copy_from_slice(value))));
                }
                if page.len() < PAGE_PAIRS && bytes < PAGE_BYTES {
                    return ControlFlow::Continue(());
                }
                last = Some(Key::from_slice(found));
                ControlFlow::Break(())
            };
            let scanned = self.service.lane.read().scan(&from, to, &mut visit);
            scanned.map_err(|error| self.failed(self.service.answer(&error.into())))?;
            if self.service.is_ending() {
                return Err(NotSent::NotNow("the server is about to stop"));
            }
            if !page.is_empty() {
                self.tell_pairs(page)?;
            }
            match last {
                Some(last) => from = behind(last),
                None => return Ok(()),
            }
        }
    }

    /// Sends what has changed, until little is left.
    fn catch_up(&mut self) -> Result<(), NotSent> {
        for _ in 0..ROUNDS {
            // ORDER: first the sessions. Answers that are kept for one that the receiver does not know would be forgotten there.
            self.tell_sessions()?;
            let is_little = self.service.across.tracker.len() <= FEW;
            self.send_changed()?;
            if is_little {
                break;
            }
        }
        Ok(())
    }

    /// Sends what has changed until now. What changes meanwhile may be among it, and is not waited for.
    fn send_changed(&mut self) -> Result<(), NotSent> {
        let service = self.service;
        let mut from = key::shard_prefix(ShardId(0));
        loop {
            let keys = service.across.tracker.take(&from, PAGE_PAIRS / 4, |found| {
                key::reply_of(found).is_none_or(|session| self.told.contains(&session))
            });
            let Some(last) = keys.last() else { return Ok(()) };
            from = behind(last.clone());
            let (mut page, mut bytes): (Pairs, usize) = (Vec::new(), 0);
            for changed in keys {
                let value = service.lane.read().get(&changed);
                let value = value.map_err(|error| self.failed(service.answer(&error.into())))?;
                bytes += changed.len() + value.as_ref().map_or(0, Bytes::len);
                page.push((changed, value));
                if bytes >= PAGE_BYTES {
                    bytes = 0;
                    self.tell_pairs(std::mem::take(&mut page))?;
                }
            }
            if !page.is_empty() {
                self.tell_pairs(page)?;
            }
        }
    }

    /// Sends the rest, while nobody is served, and has the map changed.
    fn hand_over(&mut self, transfer: &Transfer<'_>) -> Result<(), NotSent> {
        let (service, shard) = (self.service, self.shard);
        let begun = service.env.clock.monotonic();
        // ORDER: from here on it is too late to withdraw the move.
        service.note_progress(|now| now.is_deciding = !now.is_withdrawn);
        if let Err(withdrawn) = self.require_wanted() {
            service.serve_again(shard);
            return Err(withdrawn);
        }
        service.across.hands.lock().frozen.insert(shard);
        service.across.look_again();
        // ORDER: whoever was deciding something has committed it now; whoever decides later knows that the shard is not here.
        drop(service.lane.write());
        self.tell_max = TELL_FROZEN_MAX;
        let decided = self.send_rest().and_then(|()| self.decide(transfer));
        self.tell_max = TELL_MAX;
        match decided {
            Ok(()) => {
                service.forget_given(shard, self.to);
                let took = service.env.clock.monotonic().saturating_sub(begun);
                tracing::info!(%shard, to = %self.to, ?took, "a shard has another server");
                Ok(())
            }
            // Whether it was given away says the map of the next start.
            Err(why) if service.is_ending() || !self.deciding.may_keep() => Err(why),
            Err(why) => {
                service.across.hands.lock().frozen.remove(&shard);
                service.across.look_again();
                service.serve_again(shard);
                Err(why)
            }
        }
    }

    fn send_rest(&mut self) -> Result<(), NotSent> {
        let service = self.service;
        // ORDER: from here on nobody's leases are renewed here, so the receiver may count from now on.
        self.tell_sessions()?;
        self.send_changed()?;
        // ORDER: what changed here together with this shard, in others that stay, is durable before it is made durable elsewhere; or a power cut would take back
        // the half of an operation.
        service.lane.flush_all().map_err(|error| self.failed(service.answer(&error.into())))?;
        let holds = service.holds_of(self.shard);
        for (number, some) in (0..).zip(holds.chunks(PAGE_HOLDS)) {
            self.tell(Moving::Holds { number, holds: some.to_vec() })?;
        }
        let recall_mark = service.leases.lock().recall_mark();
        let starts = service.noted_starts().map_err(|errno| self.failed(errno))?;
        self.tell(Moving::Whole { life: service.life_of(self.shard) + 1, recall_mark, starts })
    }

    /// Has the map say that the shard is the receiver's. An error: it is not, and will not be by this attempt if [`Deciding::may_keep`] says so.
    fn decide(&mut self, transfer: &Transfer<'_>) -> Result<(), NotSent> {
        let (service, from) = (self.service, self.service.across.node);
        let (mut refused, mut why) = (0, String::new());
        loop {
            if service.map.read().primary(self.shard) == Some(self.to) {
                self.deciding.given();
                return Ok(());
            }
            match self.deciding.step() {
                Step::Look => {
                    // ORDER: see the module.
                    let seen = service.map.read().epoch;
                    self.tell(Moving::IsWhole)?;
                    self.deciding.whole(seen);
                }
                Step::Ask(seen) => {
                    self.deciding.asking();
                    let transferred = transfer(&[self.shard], from, self.to, seen);
                    self.deciding.told(transferred.told());
                    match transferred {
                        Transferred::Done => {}
                        Transferred::Refused(text) => (refused, why) = (refused + 1, text),
                        _ if self.deciding.may_keep() => {
                            return Err(NotSent::NotNow("no manager could be asked"));
                        }
                        _ if service.is_ending() => {
                            return Err(NotSent::NotNow("the server is about to stop"));
                        }
                        // It may be carried out yet: until that is known, nobody has the shard.
                        _ => service.env.tasks.pause(TRANSFER_PAUSE),
                    }
                }
                Step::AwaitNewer(seen) => {
                    let is_newer = self.wait_for_map(|map| map.epoch > seen, Some(NEWER_MAP_MAX)).is_ok();
                    if !is_newer || refused >= TRANSFERS {
                        return Err(NotSent::Lost(format!("the manager refuses it: {why}")));
                    }
                    self.deciding.newer();
                }
                Step::AwaitMap => return self.wait_for_map(|map| map.primary != Some(from), None),
            }
        }
    }

    /// Waits until this server's map is as wanted.
    fn wait_for_map(
        &self,
        is_wanted: impl Fn(&MapSeen) -> bool,
        wait: Option<Duration>,
    ) -> Result<(), NotSent> {
        let service = self.service;
        let deadline = wait.map(|wait| service.env.clock.monotonic().saturating_add(wait));
        loop {
            let seen = {
                let map = service.map.read();
                MapSeen { epoch: map.epoch, primary: map.primary(self.shard) }
            };
            if is_wanted(&seen) {
                return Ok(());
            }
            if service.is_ending()
                || deadline.is_some_and(|deadline| service.env.clock.monotonic() > deadline)
            {
                return Err(NotSent::NotNow("the map does not change"));
            }
            service.env.tasks.pause(MAP_PAUSE);
        }
    }

    /// Tells the receiver to forget it. If it does not hear that, it asks.
    fn give_up(&self) {
        let say = Say::Move { shard: self.shard, attempt: self.attempt, what: Moving::GiveUp };
        if let Err(errno) = self.service.say_to(self.to, &say, TELL_FROZEN_MAX) {
            tracing::debug!(%errno, to = %self.to, "a server could not be told that a shard does not come");
        }
    }
}

/// What a map says of the shard.
struct MapSeen {
    epoch: Epoch,
    primary: Option<NodeId>,
}

/// The smallest key above `key`.
pub(super) fn behind(mut key: Key) -> Key {
    key.push(0);
    key
}
