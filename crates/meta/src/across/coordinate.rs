//! The coordinator's side: votes are asked for, and the decision is one group of the log.

use super::message::{Answer, Say};
use super::{MetaService, parts_of};
use ashlar_kv::{Key, LaneWriter, Snapshot};
use ashlar_namespace::{OpContext, ShardChange, Txn, TxnOutcome, key};
use ashlar_replication::transaction::{Command, Message, Part, Participants, Record, TransactionId};
use ashlar_types::{Errno, OpId, ShardId};
use std::time::Duration;

/// For how long a vote is waited for.
const VOTE_MAX: Duration = Duration::from_secs(5);

/// The kind of a decision's key.
pub(super) const DECIDED: u8 = 1;

/// What came of asking for votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voted {
    /// All parts are locked; and whether the session has leases on names in all directories of theirs.
    Yes {
        /// Names stay cached.
        keeps_entries: bool,
    },
    /// One is not; what was known of others is old.
    No,
    /// A server did not answer.
    Silence,
}

impl MetaService {
    /// Holds what was read and is to be written here. `None` when somebody else holds some of it. To be called under the lane's lock.
    pub(crate) fn begin_across(&self, outcome: &TxnOutcome) -> Option<TransactionId> {
        let (coordinator, _) = outcome.writes.first()?;
        let written = outcome.writes.iter().flat_map(|(_, writes)| writes.0.iter().map(|(key, _)| key));
        let keys: Vec<Key> = outcome.reads.iter().chain(written).cloned().collect();
        debug_assert!(
            !keys.iter().any(|key| matches!(key.get(2), Some(b'A' | b'C'))),
            "a counter must not be held"
        );
        self.across.with(|machines| {
            if keys.iter().any(|key| machines.is_held(key)) {
                return None;
            }
            machines.of(*coordinator).begin(&keys).ok()
        })
    }

    /// Asks for the votes of all parts.
    ///
    /// # Errors
    /// What a participant answers for good: `ENOSPC`, `EIO`. `EHOSTDOWN` when too many calls wait already.
    pub(crate) fn collect_votes(
        &self,
        id: TransactionId,
        op: OpId,
        parts: &[(ShardId, ShardChange)],
    ) -> Result<Voted, Errno> {
        let _turn = self.waiting.begin(self.waiter(op)).inspect_err(|_| self.abort_across(id))?;
        let session = op.session;
        let mut keeps_all = true;
        for (shard, part) in parts {
            let mut asked = Vec::new();
            let part = Part { keys: part.locks(), writes: part.clone() };
            self.across
                .with(|machines| machines.of(id.coordinator).add_part(id, *shard, part.clone(), &mut asked));
            let message = Message::Prepare { id, part };
            let say = Say::Transaction { session, shard: *shard, from: id.coordinator, message };
            let asked_at = self.env.clock.monotonic();
            let voted = match self.say(*shard, &say, VOTE_MAX) {
                Ok(Answer::Prepared { messages, keeps_entries }) => {
                    let is_for = |message: &Message<Key, ShardChange>| matches!(message, Message::Vote { id: of, ticket: Some(_) } if *of == id);
                    match messages.into_iter().find(is_for) {
                        Some(vote) => {
                            // That all have voted is asked when it is decided.
                            let mut out = Vec::new();
                            self.across
                                .with(|machines| machines.of(id.coordinator).receive(*shard, vote, &mut out));
                            keeps_all &= keeps_entries;
                            continue;
                        }
                        None => Voted::No,
                    }
                }
                Ok(Answer::No(why)) => {
                    tracing::debug!(?id, %shard, ?why, "a part was not locked");
                    Voted::No
                }
                Ok(Answer::Failed(errno)) => {
                    self.abort_across(id);
                    return Err(errno);
                }
                Ok(Answer::Later) => Voted::Silence,
                Err(errno) => {
                    if errno == Errno::EHOSTDOWN {
                        self.note_silent(*shard, asked_at);
                    }
                    Voted::Silence
                }
                Ok(_) => Voted::No,
            };
            self.abort_across(id);
            return Ok(voted);
        }
        Ok(Voted::Yes { keeps_entries: keeps_all })
    }

    /// It does not happen.
    pub(crate) fn abort_across(&self, id: TransactionId) {
        let mut out = Vec::new();
        self.across.with(|machines| machines.of(id.coordinator).abort(id, &mut out));
        self.send_later(id.coordinator, out, None);
    }

    /// Makes of `outcome` what is committed here: its changes, what accounts gain and lose, and the decision. All votes must be there.
    ///
    /// # Errors
    /// `EIO` when the store cannot answer: nothing is decided then.
    pub(crate) fn write_decision(
        &self,
        writer: &LaneWriter<'_>,
        context: &OpContext<'_>,
        id: TransactionId,
        outcome: &mut TxnOutcome,
    ) -> Result<Decision, Errno> {
        let writes =
            std::mem::take(&mut outcome.writes).into_iter().flat_map(|(_, writes)| writes.0).collect();
        let charges = std::mem::take(&mut outcome.charges);
        let own = ShardChange { writes, charges, now: context.now, ..ShardChange::default() };
        let mut appended = Vec::new();
        let snapshot: &dyn Snapshot = writer;
        let mut txn = Txn::new(snapshot);
        own.apply(&mut txn, context).map_err(|error| self.answer(&error))?;
        let is_whole = self
            .across
            .with(|machines| machines.of(id.coordinator).commit(id, ShardChange::default(), &mut appended));
        let Some(Command::Append(Record::Decided { participants, .. })) = appended.pop().filter(|_| is_whole)
        else {
            tracing::error!(?id, "a transaction without all votes was to be committed");
            return Err(Errno::EIO);
        };
        txn.put_record(key::transaction(id.coordinator, DECIDED, parts_of(id)), &participants);
        let finished = txn.finish().map_err(|error| self.answer(&error))?;
        outcome.writes = finished.writes;
        // The reserve was looked at before anybody was asked: now there is no way back.
        outcome.frees_space = true;
        Ok(Decision { id, participants })
    }

    /// The decision is in the log, up to `position`: keys are let go, and participants are told when it is durable.
    pub(crate) fn tell_decision(&self, decision: Decision, position: ashlar_kv::Position) {
        let Decision { id, participants } = decision;
        let record = Record::Decided { id, participants, writes: ShardChange::default() };
        let mut out = Vec::new();
        self.across.with(|machines| machines.of(id.coordinator).logged(&record, &mut out));
        self.send_later(id.coordinator, out, Some(position));
    }
}

/// A transaction that happens, and who has to be told.
pub(crate) struct Decision {
    id: TransactionId,
    participants: Participants,
}
