//! Asking other servers for what a decision needs, and answering them.

use super::known::{Known, Question, directory_of, inode_record};
use super::message::{Answer, Say};
use crate::MetaService;
use crate::call::verb as number;
use crate::execute::{DECIDE_MAX, itself};
use crate::waiting::Waiter;
use ashlar_kv::Key;
use ashlar_namespace::key::{self, shard_of};
use ashlar_namespace::{Intent, NsError};
use ashlar_rpc::Caller;
use ashlar_types::codec::{decode, encode};
use ashlar_types::{Errno, InodeId, NodeId, OpId, SessionId, ShardId};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

/// Inode ids that are asked for at once.
// LIMIT: ids that are lost when this server ends, of 2^48 in a shard.
const RESERVED: u64 = 256;
/// For how long another server is asked one thing.
const ASK_MAX: Duration = Duration::from_secs(5);
/// Time before a server that was not ready is asked again.
const LATER_PAUSE: Duration = Duration::from_millis(50);
/// Keys that one question may have.
// LIMIT: of a question.
pub(super) const KEYS_MAX: usize = 1 << 12;

impl MetaService {
    /// What calls know at first: nothing when there is no other server.
    pub(crate) fn known(&self) -> Option<Known> {
        self.across.peers.as_ref()?;
        let (here, has_others) = self.shards_here();
        has_others.then(|| Known::new(here))
    }

    /// Says something to the server of `shard`, and hears its answer.
    ///
    /// # Errors
    /// `EHOSTDOWN` when it does not answer in time.
    pub(super) fn say(&self, shard: ShardId, message: &Say, wait: Duration) -> Result<Answer, Errno> {
        let server = self.map.read().primary(shard).ok_or(Errno::EHOSTDOWN)?;
        self.say_to(server, message, wait)
    }

    /// Says something to another metadata server, and hears its answer.
    ///
    /// # Errors
    /// `EHOSTDOWN` when it does not answer in time, or is this one: it is being decided where a shard is.
    pub(super) fn say_to(&self, server: NodeId, message: &Say, wait: Duration) -> Result<Answer, Errno> {
        let peers = self.across.peers.as_ref().ok_or(Errno::EHOSTDOWN)?;
        if server == self.across.node {
            return Err(Errno::EHOSTDOWN);
        }
        let answer = peers.ask(
            server,
            &encode(message),
            !matches!(message, Say::Read { .. } | Say::IsOpen { .. }),
            wait,
        )?;
        decode(&answer, "answer of a metadata server").map_err(|_| Errno::EPROTO)
    }

    /// Asks what `known` has to know for the call `op`. May wait for recalls, so nothing may be held.
    ///
    /// # Errors
    /// `EHOSTDOWN` when a server does not answer until `deadline`, or too many calls wait already, and what it answers.
    pub(crate) fn ask(&self, known: &mut Known, op: OpId, deadline: Duration) -> Result<(), Errno> {
        let _turn = self.waiting.begin(self.waiter(op))?;
        let session = op.session;
        let mut reads: BTreeMap<ShardId, Reads> = BTreeMap::new();
        for question in known.take_missing() {
            match question {
                Question::Value(key, intent) => {
                    let keys = &mut reads.entry(shard_of(&key)).or_default().0;
                    // Once more, so that both are of one moment: if its entries go to slices, a name that is not there now says nothing without it.
                    let directory = directory_of(&key).map(key::inode);
                    keys.extend(directory.map(|directory| (directory, Intent::Change)));
                    keys.push((key, intent));
                }
                Question::Pairs(prefix) => reads.entry(shard_of(&prefix)).or_default().1.push(prefix),
                Question::NewId(shard) => {
                    let id = self.take_reserved(shard, deadline)?;
                    known.ids.insert(shard, id);
                }
            }
        }
        for (shard, (keys, prefixes)) in reads {
            let say = Say::Read { session, keys: keys.clone(), prefixes: prefixes.clone() };
            match self.say_until(shard, &say, deadline)? {
                Answer::Values { values, pairs, open }
                    if values.len() == keys.len() && pairs.len() == prefixes.len() =>
                {
                    known.values.extend(keys.into_iter().map(|(key, _)| key).zip(values));
                    known.pairs.extend(prefixes.into_iter().zip(pairs));
                    known.open.extend(open);
                }
                Answer::Failed(errno) => return Err(errno),
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
    }

    /// As [`MetaService::say`], again and again while the server is not ready or not there.
    fn say_until(&self, shard: ShardId, say: &Say, deadline: Duration) -> Result<Answer, Errno> {
        loop {
            self.come_again_if_closing(true)?;
            let left = deadline.saturating_sub(self.env.clock.monotonic());
            match self.say(shard, say, left.min(ASK_MAX)) {
                Ok(Answer::Later) | Err(Errno::EHOSTDOWN) if left > LATER_PAUSE && !self.is_ending() => {
                    self.env.tasks.pause(LATER_PAUSE);
                }
                Ok(Answer::Later) => return Err(Errno::EHOSTDOWN),
                other => return other,
            }
        }
    }

    /// Whether the session of the call `op` has `inode` open, at whichever server has it.
    ///
    /// # Errors
    /// `EHOSTDOWN` when that server does not answer, or too many calls wait already.
    pub(crate) fn has_opened(&self, op: OpId, inode: InodeId) -> Result<bool, Errno> {
        let session = op.session;
        if self.is_here(inode.home()) {
            return Ok(self.opens.lock().sessions(inode).contains(&session));
        }
        let _turn = self.waiting.begin(self.waiter(op))?;
        let deadline = self.env.clock.monotonic() + DECIDE_MAX;
        match self.say_until(inode.home(), &Say::IsOpen { session, inode }, deadline)? {
            Answer::Done => Ok(true),
            Answer::Failed(Errno::EBADF) => Ok(false),
            Answer::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    /// An inode id of `shard` that nobody else has.
    fn take_reserved(&self, shard: ShardId, deadline: Duration) -> Result<InodeId, Errno> {
        if self.is_here(shard) {
            return self.reserve(shard, 1);
        }
        {
            let mut reserved = self.across.reserved.lock();
            if let Some((next, left)) = reserved.get_mut(&shard).filter(|(_, left)| *left > 0) {
                let id = *next;
                (*next, *left) = (InodeId(id.0 + 1), *left - 1);
                return Ok(id);
            }
        }
        // Not for longer than for a vote: a directory can be made elsewhere.
        let asked_at = self.env.clock.monotonic();
        let deadline = deadline.min(asked_at + ASK_MAX);
        let answer = self.say_until(shard, &Say::Reserve { shard, count: RESERVED }, deadline);
        if answer == Err(Errno::EHOSTDOWN) {
            self.note_silent(shard, asked_at);
        }
        match answer? {
            Answer::Reserved(first) if first.home() == shard => {
                self.across.reserved.lock().insert(shard, (InodeId(first.0 + 1), RESERVED - 1));
                Ok(first)
            }
            Answer::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Gives `count` inode ids of `shard` away: the first one.
    pub(super) fn reserve(&self, shard: ShardId, count: u64) -> Result<InodeId, Errno> {
        let _inside = self.enter(shard)?;
        let creds = itself();
        let first = self.mutate(
            Caller::new(OpId::default(), &creds),
            number::RESERVE_INODE_IDS,
            |txn, _| {
                let counter_key = key::counter(shard);
                let last: u64 = txn.get_record(&counter_key, "inode counter")?.unwrap_or(1);
                let end = last.checked_add(count).ok_or(Errno::ENOSPC)?;
                InodeId::new(shard, end).ok_or(Errno::ENOSPC)?;
                txn.put_record(counter_key, &end);
                InodeId::new(shard, last + 1).ok_or(NsError::Errno(Errno::ENOSPC))
            },
            |first, _| first,
        )?;
        // ORDER: durable before anybody else uses them. After a power cut the counter is raised by as much as a lost log may have given out;
        // but only as far as calls here could have.
        self.lane.flush(self.lane.appended()).map_err(|error| self.answer(&error.into()))?;
        Ok(first)
    }

    /// Answers [`Say::Read`] about `shard`: recalls what others than `session` have cached of what it is going to change, and whatever a writer has not
    /// reported of the rest.
    pub(super) fn tell(
        &self,
        session: SessionId,
        shard: ShardId,
        keys: &[(Key, Intent)],
        prefixes: &[Key],
    ) -> Result<Answer, Errno> {
        let is_good = |key: &Key| key.len() >= 3 && shard_of(key) == shard && !key::is_of_server(key);
        // Of nothing else all is asked for: what is under a shorter prefix may be the whole shard.
        let is_of_orphan =
            |prefix: &Key| key::inode_of(prefix).is_some_and(|inode| *prefix == key::orphan_prefix(inode));
        if keys.len() + prefixes.len() > KEYS_MAX
            || !keys.iter().map(|(key, _)| key).chain(prefixes).all(is_good)
            || !prefixes.iter().all(is_of_orphan)
        {
            return Err(Errno::EPROTO);
        }
        let creds = itself();
        self.inspect_for(
            Waiter::Question(session),
            Caller::new(OpId { session, sequence: 1 }, &creds),
            |txn, _| {
                let mut values = Vec::with_capacity(keys.len());
                for (key, intent) in keys {
                    values.push(txn.get(key)?);
                    match (inode_record(key), directory_of(key)) {
                        (Some(inode), _) if *intent == Intent::Change => {
                            txn.touch(inode);
                            txn.reveal(inode);
                        }
                        (Some(_), _) => {}
                        (_, Some(directory)) => txn.touch_entries(directory),
                        _ => {}
                    }
                }
                let mut all = Vec::with_capacity(prefixes.len());
                for prefix in prefixes {
                    let mut pairs: Vec<(Bytes, Bytes)> = Vec::new();
                    // LIMIT: orphan records of one inode, one per session that has it open.
                    txn.scan(prefix, &key::after_prefix(prefix), &mut |key, value| {
                        pairs.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                        ControlFlow::Continue(())
                    })?;
                    all.push(pairs);
                }
                Ok((values, all))
            },
            |(values, pairs), _| {
                let opens = self.opens.lock();
                let inodes = keys.iter().filter_map(|(key, _)| inode_record(key));
                let open = inodes.filter(|&inode| !opens.sessions(inode).is_empty()).collect();
                Answer::Values { values, pairs, open }
            },
        )
    }
}

/// Keys and prefixes to be asked for.
type Reads = (Vec<(Key, Intent)>, Vec<Key>);
