//! The receiver's side: what comes is written down as it comes, and served when the map says so.

use super::super::message::{Answer, Hold, Moving, Say};
use super::super::resume::is_readable;
use super::Coming;
use super::unmet::holders;
use crate::MetaService;
use crate::call::verb as number;
use ashlar_kv::{Key, KvError, Position, Snapshot, Urgency, WriteSet};
use ashlar_namespace::key::{self, shard_of};
use ashlar_namespace::record::{Arriving, KeptReply};
use ashlar_namespace::verb::{self, INCARNATION_MAX};
use ashlar_namespace::{NsError, Txn};
use ashlar_replication::hand_over::shard::does_not_come;
use ashlar_rpc::wire::COUNT_BITS;
use ashlar_rpc::{Hosted, SessionHosts};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Epoch, Errno, NodeId, OpId, SessionId, ShardId, codec};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// For how long one message may remove what there was of the shard; then its sender says it again.
const CLEAR_MAX: Duration = Duration::from_secs(1);
/// After how long without a word the sender is asked whether it still sends.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// For how long it may take to answer.
const ASK_MAX: Duration = Duration::from_secs(2);

/// A shard on its way here.
pub(in crate::across) struct Incoming {
    from: NodeId,
    attempt: u64,
    stage: Stage,
    /// What was here of it is removed up to this key.
    clear_from: Key,
    /// Of the next pairs, and of the next part of what the sender has in memory.
    numbers: (u64, u64),
    // LIMIT: as what the sender has of one shard.
    holds: Vec<Hold>,
    life: u64,
    recall_mark: u64,
    heard: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What was here of it goes.
    Clearing,
    /// It comes.
    Taking,
    /// All of it is here, durably.
    Whole,
    /// It does not come.
    Over,
}

type Pairs = Vec<(Key, Option<Bytes>)>;

impl MetaService {
    /// Answers what the sender of a shard says.
    pub(in crate::across) fn hear_moving(
        &self,
        shard: ShardId,
        attempt: u64,
        what: Moving,
        hosts: &dyn SessionHosts,
    ) -> Result<Answer, Errno> {
        let begun = match &what {
            // INVARIANT: nobody sends himself a shard. What there is of it would be removed to make room for what comes.
            Moving::Begin { from, .. } if *from == self.across.node => return Err(Errno::EPROTO),
            Moving::Begin { from, epoch } => match self.begin_arriving(shard, attempt, *from, *epoch) {
                Some(incoming) => incoming,
                None => return Ok(Answer::Later),
            },
            _ => match self.incoming(shard) {
                Some(incoming) => incoming,
                None => return Ok(self.no_such_move()),
            },
        };
        let mut incoming = begun.lock();
        if incoming.attempt != attempt || incoming.stage == Stage::Over {
            return Ok(self.no_such_move());
        }
        incoming.heard = self.env.clock.monotonic();
        match (what, incoming.stage) {
            (Moving::Begin { .. }, Stage::Clearing) => self.clear_arriving(shard, &mut incoming),
            (Moving::Begin { .. }, _) => Ok(Answer::Done),
            (Moving::Sessions(sessions), _) => self.host_sessions(&sessions, hosts),
            (Moving::Pairs { number, pairs }, Stage::Taking) => {
                self.take_pairs(shard, &mut incoming, number, pairs)
            }
            (Moving::Holds { number, holds }, Stage::Taking) => {
                if number == incoming.numbers.1 {
                    incoming.numbers.1 += 1;
                    incoming.holds.extend(holds);
                }
                Ok(if number < incoming.numbers.1 { Answer::Done } else { self.no_such_move() })
            }
            (Moving::Whole { life, recall_mark, starts }, Stage::Taking) => {
                // The next numbers here are counted from these.
                if life.max(starts).max(recall_mark >> COUNT_BITS) > INCARNATION_MAX {
                    return Err(Errno::EPROTO);
                }
                self.note_whole(shard, &mut incoming, (life, starts))?;
                incoming.recall_mark = recall_mark;
                Ok(Answer::Done)
            }
            // Said once more, or asked.
            (Moving::Whole { .. } | Moving::IsWhole, Stage::Whole) => Ok(Answer::Done),
            (Moving::GiveUp, _) => {
                self.drop_arriving(shard, &mut incoming)?;
                Ok(Answer::Done)
            }
            _ => Ok(self.no_such_move()),
        }
    }

    fn incoming(&self, shard: ShardId) -> Option<Arc<Mutex<Incoming>>> {
        self.across.hands.lock().arriving.get(&shard).map(|coming| coming.incoming.clone())
    }

    fn no_such_move(&self) -> Answer {
        Answer::NoSuchMove(self.map.read().epoch)
    }

    /// Notes that a shard is about to come; `None` while this server's map does not say that the sender has it, or this server is not through with giving it to him.
    fn begin_arriving(
        &self,
        shard: ShardId,
        attempt: u64,
        from: NodeId,
        epoch: Epoch,
    ) -> Option<Arc<Mutex<Incoming>>> {
        let map = self.map.read().clone();
        if map.epoch < epoch || map.primary(shard) != Some(from) {
            return None;
        }
        // ORDER: it does not come back before its sender here has heard that it has gone, and has forgotten it.
        if self.across.hands.lock().frozen.contains(&shard) {
            return None;
        }
        let known = self.incoming(shard);
        if let Some(known) = known {
            let mut incoming = known.lock();
            if incoming.attempt == attempt {
                drop(incoming);
                return Some(known);
            }
            // ORDER: its sender has given it up, or it would not begin anew; whoever is late with something of it finds that it is over.
            incoming.stage = Stage::Over;
        }
        let incoming = Arc::new(Mutex::new(Incoming {
            from,
            attempt,
            stage: Stage::Clearing,
            clear_from: key::shard_prefix(shard),
            numbers: (0, 0),
            holds: Vec::new(),
            life: 0,
            recall_mark: 0,
            heard: self.env.clock.monotonic(),
        }));
        let coming = Coming { since: self.env.clock.monotonic(), incoming: incoming.clone() };
        self.across.hands.lock().arriving.insert(shard, coming);
        self.across.arrival.notify_all();
        Some(incoming)
    }

    fn clear_arriving(&self, shard: ShardId, incoming: &mut Incoming) -> Result<Answer, Errno> {
        let deadline = self.env.clock.monotonic() + CLEAR_MAX;
        while !self.clear_step(shard, &mut incoming.clear_from, || true)? {
            if self.env.clock.monotonic() > deadline {
                return Ok(Answer::Later);
            }
        }
        let note = Arriving { from: incoming.from, attempt: incoming.attempt, is_whole: false };
        // Not flushed: what comes is behind it in the log.
        self.note_soon(|txn| {
            txn.put_record(key::arriving(shard), &note);
            Ok(())
        })?;
        incoming.stage = Stage::Taking;
        Ok(Answer::Done)
    }

    /// When the first one began of the shards that are on their way here.
    pub(crate) fn arriving_since(&self) -> Option<Duration> {
        self.across.hands.lock().arriving.values().map(|coming| coming.since).min()
    }

    /// Has sessions that another server knows be known here.
    fn host_sessions(
        &self,
        sessions: &[(SessionId, SessionOwner)],
        hosts: &dyn SessionHosts,
    ) -> Result<Answer, Errno> {
        let (mut new, mut answer) = (Vec::new(), Answer::Done);
        for &(session, owner) in sessions {
            let events = match hosts.host(session, owner) {
                Hosted::At(events) => events,
                Hosted::Ended => continue,
                Hosted::Later => {
                    answer = Answer::Later;
                    continue;
                }
            };
            // Another server may tell of it at the same time.
            if !self.sessions.has(session) && self.session_open(Some(session), Some(owner), events).is_err() {
                continue;
            }
            // Also if it could not be noted the first time.
            new.extend(self.unmet.is_to_be_noted(session).then_some((session, owner)));
        }
        self.awaited.note_lasting(&new);
        match self.note_unmet(&new) {
            Ok(()) => Ok(answer),
            // The log is behind, or has no room for now.
            Err(_) => Ok(Answer::Later),
        }
    }

    fn take_pairs(
        &self,
        shard: ShardId,
        incoming: &mut Incoming,
        number: u64,
        pairs: Pairs,
    ) -> Result<Answer, Errno> {
        if number != incoming.numbers.0 {
            let is_said_again = number < incoming.numbers.0;
            return Ok(if is_said_again { Answer::Done } else { self.no_such_move() });
        }
        let mut writer = self.lane.write();
        let mut writes: BTreeMap<Key, Option<Bytes>> = BTreeMap::new();
        for (found, value) in pairs {
            let is_of_shard = found.len() >= 3 && shard_of(&found) == shard && !key::is_of_server(&found);
            let is_good = match key::reply_of(&found) {
                Some(session) => {
                    self.sessions.has(session) && self.is_newer_reply(&writer, &found, value.as_deref())?
                }
                // The machine of the shard begins with its records, and this server does not start with one that it cannot read.
                None if is_of_shard && is_readable(&found, value.as_deref()) => true,
                None => return Err(Errno::EPROTO),
            };
            if is_good {
                writes.insert(found, value);
            }
        }
        let mut by_shard: BTreeMap<ShardId, WriteSet> = BTreeMap::new();
        for write in writes {
            by_shard.entry(shard_of(&write.0)).or_insert_with(|| WriteSet(Vec::new())).0.push(write);
        }
        let frames = by_shard.into_iter().collect();
        let appended =
            self.append_raw(&mut writer, OpId::default(), number::TAKE_SHARDS, frames, Urgency::Normal);
        match appended {
            Ok(_) => incoming.numbers.0 += 1,
            // The log is behind; the sender says it again.
            Err(KvError::Stalled { .. }) => return Ok(Answer::Later),
            Err(error) => return Err(self.answer(&error.into())),
        }
        Ok(Answer::Done)
    }

    /// Whether a kept answer is to a later call than the one that is kept here. One that is gone there is none.
    fn is_newer_reply(&self, here: &dyn Snapshot, found: &[u8], value: Option<&[u8]>) -> Result<bool, Errno> {
        let Some(value) = value else { return Ok(false) };
        let sequence =
            |bytes: &[u8]| codec::decode::<KeptReply>(bytes, "kept answer").map(|kept| kept.sequence);
        let told = sequence(value).map_err(|_| Errno::EPROTO)?;
        let known = here.get(found).map_err(|error| self.answer(&error.into()))?;
        // One that is damaged answers nobody.
        Ok(known.and_then(|known| sequence(&known).ok()).is_none_or(|known| known < told))
    }

    /// Notes, durably, that all of it is here.
    fn note_whole(
        &self,
        shard: ShardId,
        incoming: &mut Incoming,
        (life, starts): (u64, u64),
    ) -> Result<(), Errno> {
        let life = life.max(self.incarnation);
        let note = Arriving { from: incoming.from, attempt: incoming.attempt, is_whole: true };
        let holders = holders(&incoming.holds);
        // ORDER: the next start counts above everything that this shard has had, so that its transactions and recalls have new numbers.
        self.note(|txn| {
            let own: u64 = txn.get_record(&key::incarnation(), "number of starts")?.unwrap_or(0);
            verb::count_starts(txn, own.max(life).max(starts));
            txn.put_record(key::arriving(shard), &note);
            self.note_holders(txn, shard, &holders)
        })?;
        (incoming.life, incoming.stage) = (life, Stage::Whole);
        Ok(())
    }

    /// It does not come: what has come of it goes.
    fn drop_arriving(&self, shard: ShardId, incoming: &mut Incoming) -> Result<(), Errno> {
        // ORDER: it is tried again if that fails.
        self.note_arriving(shard, None)?;
        incoming.stage = Stage::Over;
        let mut hands = self.across.hands.lock();
        hands.arriving.remove(&shard);
        hands.left_behind.insert(shard, key::shard_prefix(shard));
        Ok(())
    }

    /// Serves what has come, and asks about what does not come any more. Whether something is whole and awaited.
    pub(super) fn tend_arriving(&self) -> Result<bool, Errno> {
        let arriving: Vec<(ShardId, Arc<Mutex<Incoming>>)> = self
            .across
            .hands
            .lock()
            .arriving
            .iter()
            .map(|(shard, coming)| (*shard, coming.incoming.clone()))
            .collect();
        let mut is_awaited = false;
        for (shard, known) in arriving {
            let Some(mut incoming) = known.try_lock() else { continue };
            let is_mine = self.map.read().primary(shard) == Some(self.across.node);
            if incoming.stage == Stage::Whole && is_mine {
                self.serve_arrived(shard, &mut incoming)?;
                continue;
            }
            is_awaited |= incoming.stage == Stage::Whole;
            let silent = self.env.clock.monotonic().saturating_sub(incoming.heard);
            if silent < SILENCE_MAX || incoming.stage == Stage::Over {
                continue;
            }
            incoming.heard = self.env.clock.monotonic();
            let say = Say::IsSending { shard, attempt: incoming.attempt };
            let (from, attempt) = (incoming.from, incoming.attempt);
            // Not while it is locked: the sender may be saying something.
            drop(incoming);
            if let Ok(Answer::NoSuchMove(epoch)) = self.say_to(from, &say, ASK_MAX) {
                let mut incoming = known.lock();
                // ORDER: by a map as new as the answer. It may have been given to this server just before the sender forgot it.
                let map = self.map.read().clone();
                let is_mine = map.primary(shard) == Some(self.across.node);
                let is_over = does_not_come(map.epoch, epoch, is_mine);
                if is_over && incoming.attempt == attempt && incoming.stage != Stage::Over {
                    tracing::info!(%shard, %from, "a shard that was coming does not come");
                    self.drop_arriving(shard, &mut incoming)?;
                }
            }
        }
        Ok(is_awaited)
    }

    fn serve_arrived(&self, shard: ShardId, incoming: &mut Incoming) -> Result<(), Errno> {
        // ORDER: the note goes first, durably: until then a start finds it and does the same. With it whoever has something of it is one that a start waits for.
        let held_by = holders(&incoming.holds);
        self.meet(&held_by, |txn| txn.delete(key::arriving(shard)))?;
        // ORDER: while the shard counts as on its way. Whoever looks for sessions to forget sees one or the other.
        self.sessions.tell_met(&held_by);
        self.take_machine(shard, incoming.life)?;
        self.take_holds(shard, &std::mem::take(&mut incoming.holds), incoming.recall_mark)?;
        incoming.stage = Stage::Over;
        // ORDER: nobody is let in before what dead sessions have left is cleaned up.
        self.across.gates.close(shard);
        self.across.hands.lock().arriving.remove(&shard);
        self.across.look_again();
        self.serve_again(shard);
        tracing::info!(%shard, from = %incoming.from, "serves a shard from now on");
        Ok(())
    }

    /// What was noted of a shard that is coming.
    pub(super) fn noted_arriving(&self, shard: ShardId) -> Result<Option<Arriving>, Errno> {
        let reader = self.lane.read();
        let note = Txn::new(&reader as &dyn Snapshot).get_record(&key::arriving(shard), "note of a shard");
        note.map_err(|error| self.answer(&error))
    }

    pub(super) fn note_arriving(&self, shard: ShardId, note: Option<Arriving>) -> Result<(), Errno> {
        self.note(|txn| {
            match &note {
                Some(note) => txn.put_record(key::arriving(shard), note),
                None => txn.delete(key::arriving(shard)),
            }
            Ok(())
        })
    }

    /// Changes what is kept here beside what is served; durable up to the position that it tells.
    pub(super) fn note_soon(
        &self,
        change: impl FnOnce(&mut Txn<'_>) -> Result<(), NsError>,
    ) -> Result<Position, Errno> {
        let mut writer = self.lane.write();
        let mut txn = Txn::new(&writer as &dyn Snapshot);
        let outcome = change(&mut txn).and_then(|()| txn.finish()).map_err(|error| self.answer(&error))?;
        self.append(&mut writer, OpId::default(), number::TAKE_SHARDS, outcome.writes, Urgency::FreesSpace)
    }
}
