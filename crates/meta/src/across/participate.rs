//! The participant's side: parts are locked, and carried out or dropped; and what a coordinator is told and asked afterwards.

use super::coordinate::DECIDED;
use super::message::{Answer, PreparedRecord, Refusal, Say};
use super::{MetaService, parts_of};
use crate::call::verb as number;
use crate::execute::itself;
use ashlar_kv::{Key, LaneWriter, Snapshot, Urgency};
use ashlar_namespace::key::{self, shard_of};
use ashlar_namespace::{Inode, NsError, OpContext, ShardChange, Txn, TxnOutcome};
use ashlar_replication::transaction::{Command, Message, Part, Record, TransactionId};
use ashlar_rpc::{Caller, LastingSessions, SessionHosts};
use ashlar_types::codec::{decode, encode};
use ashlar_types::{Errno, InodeId, OpId, SessionId, ShardId};
use smallvec::SmallVec;

/// The kind of a prepared part's key.
pub(super) const PREPARED: u8 = 0;

type Commands = Vec<Command<Key, ShardChange>>;
type Saying = Message<Key, ShardChange>;

impl MetaService {
    /// Answers what another metadata server says.
    pub(crate) fn hear_peer(&self, message: &[u8], hosts: &dyn SessionHosts) -> Vec<u8> {
        let answer = match decode::<Say>(message, "message of a metadata server") {
            // Nothing was done.
            Ok(say) => match self.hear(say, hosts) {
                Err(Errno::EHOSTDOWN) => Answer::Later,
                heard => heard.unwrap_or_else(Answer::Failed),
            },
            Err(_) => Answer::Failed(Errno::EPROTO),
        };
        encode(&answer)
    }

    fn hear(&self, say: Say, hosts: &dyn SessionHosts) -> Result<Answer, Errno> {
        let is_about_prepared = |message: &Saying| !matches!(message, Message::Prepare { .. });
        let needs_leases = !matches!(&say, Say::Transaction { message, .. } if is_about_prepared(message));
        // Nobody knows yet who has cached what.
        if needs_leases && self.is_awaiting() {
            return Ok(Answer::Later);
        }
        match say {
            Say::Read { session, keys, prefixes } => {
                let first = keys.first().map(|(key, _)| key).or(prefixes.first());
                let shard =
                    first.filter(|key| key.len() >= 3).map(|key| shard_of(key)).ok_or(Errno::EPROTO)?;
                let _inside = self.enter(shard)?;
                self.tell(session, shard, &keys, &prefixes)
            }
            // The id behind the last one is somebody else's.
            Say::Reserve { count: 0, .. } => Err(Errno::EPROTO),
            // LIMIT: ids given away at once.
            Say::Reserve { shard, count } => self.reserve(shard, count.min(1 << 16)).map(Answer::Reserved),
            Say::Give { to, count } => self.give(to, count),
            Say::Move { shard, attempt, what } => self.hear_moving(shard, attempt, what, hosts),
            Say::IsSending { shard, attempt } => Ok(match self.is_sending(shard, attempt) {
                true => Answer::Done,
                false => Answer::NoSuchMove(self.map.read().epoch),
            }),
            Say::IsOpen { session, inode } => {
                let _inside = self.enter(inode.home())?;
                let is_open = self.opens.lock().sessions(inode).contains(&session);
                Ok(if is_open { Answer::Done } else { Answer::Failed(Errno::EBADF) })
            }
            Say::Transaction { shard, from, message, .. }
                if !self.is_between_its_shards(shard, from, &message) =>
            {
                Err(Errno::EPROTO)
            }
            Say::Transaction { session, shard, message: Message::Prepare { id, part }, .. } => {
                let _inside = self.enter(shard)?;
                self.prepare(session, shard, id, part)
            }
            Say::Transaction { shard, from, message, .. } => {
                let _inside = self.enter(shard)?;
                self.hear_transaction(shard, from, message).map(Answer::Messages)
            }
        }
    }

    /// Whether a message goes from the coordinator to a participant, or back. What a shard that there is not has asked for would be held for ever: nobody says what was
    /// decided.
    fn is_between_its_shards(&self, to: ShardId, from: ShardId, message: &Saying) -> bool {
        let coordinator = match message {
            Message::Prepare { id, .. } | Message::Commit { id, .. } | Message::Abort { id, .. } => {
                (id.coordinator, from)
            }
            Message::Vote { id, .. } | Message::Finished { id, .. } | Message::Ask { id, .. } => {
                (id.coordinator, to)
            }
        };
        from != to && coordinator.0 == coordinator.1 && self.map.read().primary(from).is_some()
    }

    /// Locks a part, if what it was decided on is still so and nobody has cached what is to change.
    fn prepare(
        &self,
        session: SessionId,
        shard: ShardId,
        id: TransactionId,
        part: Part<Key, ShardChange>,
    ) -> Result<Answer, Errno> {
        // Which keys are locked follows from what is done.
        let change = part.writes;
        let part = Part { keys: change.locks(), writes: change.clone() };
        if !change.is_of(shard) {
            return Ok(Answer::Failed(Errno::EPROTO));
        }
        let mut writer = self.lane.write();
        let mut out = Vec::new();
        let keeps_entries = {
            let leases = self.leases.lock();
            change.entries.iter().all(|(directory, _)| leases.keeps_entries(session, *directory))
        };
        let prepared = |out| Answer::Prepared { messages: said_to(id.coordinator, out), keeps_entries };
        // Asked for once more: the machine knows.
        let is_known = self.across.with(|machines| machines.of(shard).has_prepared(id));
        if !is_known {
            if self.across.holds(part.keys.iter()) {
                return Ok(Answer::No(Refusal::Held));
            }
            for (key, value) in &change.reads {
                if writer.get(key).map_err(|error| self.answer(&error.into()))? != *value {
                    return Ok(Answer::No(Refusal::Changed));
                }
            }
            if !self.can_be_applied(&writer, &change)? {
                return Ok(Answer::No(Refusal::Changed));
            }
            let outcome = TxnOutcome {
                changed: change.changed.iter().copied().collect(),
                entries: change
                    .entries
                    .iter()
                    .map(|(inode, name)| (*inode, SmallVec::from_slice(name)))
                    .collect(),
                ..TxnOutcome::default()
            };
            let leases = self.leases.lock();
            if leases.is_settling(&outcome) || !leases.conflicts(session, &outcome, &[]).is_empty() {
                return Ok(Answer::No(Refusal::Leases));
            }
        }
        self.across.with(|machines| {
            machines.of(shard).receive(id.coordinator, Message::Prepare { id, part }, &mut out)
        });
        let Some(Command::Append(record)) = out.first().cloned() else {
            drop(writer);
            return Ok(prepared(out));
        };
        let Record::Prepared { ticket, part, .. } = &record else { return Err(Errno::EIO) };
        let kept = PreparedRecord { ticket: *ticket, part: part.writes.clone() };
        let mut txn = Txn::new(&writer as &dyn Snapshot);
        txn.put_record(key::transaction(shard, PREPARED, parts_of(id)), &kept);
        let committed = txn.finish().map_err(|error| self.answer(&error)).and_then(|outcome| {
            self.append(&mut writer, OpId::default(), number::PREPARE, outcome.writes, Urgency::Normal)
        });
        drop(writer);
        let flushed = committed
            .and_then(|position| self.lane.flush(position).map_err(|error| self.answer(&error.into())));
        let mut out = Vec::new();
        if let Err(errno) = flushed {
            // Nobody was told; the part is let go.
            self.across.with(|machines| machines.of(shard).forget_prepared(id));
            return Err(errno);
        }
        self.across.with(|machines| machines.of(shard).logged(&record, &mut out));
        Ok(prepared(out))
    }

    /// Whether a part can be carried out. It is locked then, so that it still can when it is decided; one that cannot would be held for ever.
    fn can_be_applied(&self, writer: &LaneWriter<'_>, change: &ShardChange) -> Result<bool, Errno> {
        if change.drops.is_empty() && change.charges.is_empty() {
            return Ok(true);
        }
        let creds = itself();
        let open_in = |inode| self.opens.lock().sessions(inode);
        let caller = Caller::new(OpId::default(), &creds);
        let context: OpContext<'_> = self.context(caller, change.now, self, &open_in);
        match change.apply(&mut Txn::new(writer as &dyn Snapshot), &context) {
            Err(NsError::Errno(Errno::ESTALE)) => Ok(false),
            applied => applied.map(|()| true).map_err(|error| self.answer(&error)),
        }
    }

    /// Gives `message` of the machine of `from` to that of `shard`, and does what it wants done; what it says to that one.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC` from the log.
    pub(super) fn hear_transaction(
        &self,
        shard: ShardId,
        from: ShardId,
        message: Saying,
    ) -> Result<Vec<Saying>, Errno> {
        let mut out = Vec::new();
        self.across.with(|machines| machines.of(shard).receive(from, message, &mut out));
        while let Some(at) = out.iter().position(|command| matches!(command, Command::Append(_))) {
            let Command::Append(record) = out.remove(at) else { break };
            let appended = self.append_end(shard, &record);
            if appended.is_err()
                && let Record::Finished { id, .. } = &record
            {
                // ORDER: only where nothing is in the log, or it would happen twice. Whoever says it once more finds the part as it was.
                self.across.with(|machines| machines.of(shard).forget_end(*id));
            }
            let (position, outcome) = appended?;
            // ORDER: see the module.
            self.lane.flush(position).map_err(|error| self.answer(&error.into()))?;
            self.across.with(|machines| machines.of(shard).logged(&record, &mut out));
            self.let_go(&outcome);
        }
        if out.iter().any(|command| matches!(command, Command::Send { message: Message::Commit { .. }, .. }))
        {
            // ORDER: see the module. A decision that is asked for is in the log, and may be ahead of what is durable.
            self.lane.flush_all().map_err(|error| self.answer(&error.into()))?;
        }
        Ok(said_to(from, out))
    }

    /// Writes the end of a part, or of a decision.
    fn append_end(
        &self,
        shard: ShardId,
        record: &Record<Key, ShardChange>,
    ) -> Result<(ashlar_kv::Position, TxnOutcome), Errno> {
        let creds = itself();
        let caller = Caller::new(OpId::default(), &creds);
        let open_in = |inode| self.opens.lock().sessions(inode);
        let mut writer = self.lane.write();
        let context: OpContext<'_> = self.context(caller, self.env.clock.now(), self, &open_in);
        let mut txn = Txn::new(&writer as &dyn Snapshot);
        let verb = match record {
            Record::Finished { id, writes, .. } => {
                if let Some(part) = writes {
                    // Who has a file open says whether the end of its last name is its own. Whoever brings the decision comes again, and so does `resume`.
                    if !part.drops.is_empty() && self.awaited.may_tell() {
                        return Err(Errno::EHOSTDOWN);
                    }
                    part.apply(&mut txn, &context).map_err(|error| self.answer(&error))?;
                }
                txn.delete(key::transaction(shard, PREPARED, parts_of(*id)));
                number::FINISH
            }
            Record::Forgotten { id } => {
                txn.delete(key::transaction(shard, DECIDED, parts_of(*id)));
                number::FORGET
            }
            Record::Prepared { .. } | Record::Decided { .. } => return Err(Errno::EIO),
        };
        txn.mark_frees_space();
        let grown = match record {
            Record::Finished { writes: Some(part), .. } => self.grown_by(&txn, &part.changed),
            _ => Vec::new(),
        };
        let mut outcome = txn.finish().map_err(|error| self.answer(&error))?;
        let (_, position) = self.commit(&mut writer, caller, verb, &mut outcome)?;
        let mut leases = self.leases.lock();
        self.forget_removed(&outcome, &mut leases);
        leases.note_links_changed(&outcome.changed);
        drop((leases, writer));
        self.note_grown(&grown);
        Ok((position, outcome))
    }

    /// Directories among those that a part has changed that can be split, and how many entries they have now. What cannot be read is left out: what was
    /// decided is carried out whatever this comes to.
    fn grown_by(&self, txn: &Txn<'_>, changed: &[InodeId]) -> Vec<(InodeId, u64)> {
        let grown = |inode: &InodeId| {
            // The record as the part has written it.
            let found: Option<Inode> = txn.get_record(&key::inode(*inode), "inode record").ok().flatten();
            found.filter(Inode::splits_when_large).map(|found| (*inode, found.size))
        };
        changed.iter().filter(|_| self.splits_by_itself()).filter_map(grown).collect()
    }
}

/// What is said to the machine of `to`.
pub(super) fn said_to(to: ShardId, commands: Commands) -> Vec<Saying> {
    let said = |command| match command {
        Command::Send { to: whom, message } if whom == to => Some(message),
        _ => None,
    };
    commands.into_iter().filter_map(said).collect()
}
