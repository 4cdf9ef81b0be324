//! The part of one shard's primary in transactions, as coordinator and as participant.

use super::message::Participants;
use super::{Command, Message, Part, Record, Ticket, TransactionId};
use ashlar_types::ShardId;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A key is locked by another transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is locked by another transaction")]
pub struct Busy;

/// A transaction of this coordinator that is not decided. It is lost with the machine, which aborts it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Collecting {
    /// Participants, and the votes for it.
    pub votes: SmallVec<[(ShardId, Option<Ticket>); 2]>,
}

/// A transaction of this coordinator that is committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Decided {
    /// Participants that have not confirmed.
    pub waiting: Participants,
    pub is_logged: bool,
}

/// A transaction of another coordinator whose part is locked here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Prepared<K, W> {
    pub ticket: Ticket,
    pub part: Part<K, W>,
    pub is_logged: bool,
    /// The end was appended to the log.
    pub is_finishing: bool,
}

/// See the module. `K` is a key, `W` a write set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transactions<K, W> {
    pub(super) shard: ShardId,
    pub(super) era: u64,
    pub(super) next_number: u64,
    // LIMIT: each of these has at most one entry per call that the service works on.
    pub(super) collecting: BTreeMap<TransactionId, Collecting>,
    pub(super) decided: BTreeMap<TransactionId, Decided>,
    pub(super) prepared: BTreeMap<TransactionId, Prepared<K, W>>,
    pub(super) locks: BTreeMap<K, TransactionId>,
}

type Commands<K, W> = Vec<Command<K, W>>;

impl<K: Ord + Clone, W: Clone> Transactions<K, W> {
    /// Begins a transaction and locks keys of this shard for it.
    ///
    /// # Errors
    /// [`Busy`]: try again later.
    pub fn begin(&mut self, own_keys: &[K]) -> Result<TransactionId, Busy> {
        if own_keys.iter().any(|key| self.locks.contains_key(key)) {
            return Err(Busy);
        }
        let id = TransactionId { coordinator: self.shard, era: self.era, number: self.next_number };
        self.next_number += 1;
        self.locks.extend(own_keys.iter().map(|key| (key.clone(), id)));
        self.collecting.insert(id, Collecting { votes: SmallVec::new() });
        Ok(id)
    }

    /// Asks another shard for a part; one part per shard. [`Command::Ready`] follows when all
    /// that were asked have voted for it.
    pub fn add_part(
        &mut self,
        id: TransactionId,
        shard: ShardId,
        part: Part<K, W>,
        out: &mut Commands<K, W>,
    ) {
        if let Some(collecting) = self.collecting.get_mut(&id) {
            collecting.votes.push((shard, None));
            out.push(Command::Send { to: shard, message: Message::Prepare { id, part } });
        }
    }

    /// It happens, with `writes` in this shard. All votes must be there; tells whether that is so.
    pub fn commit(&mut self, id: TransactionId, writes: W, out: &mut Commands<K, W>) -> bool {
        let Some(collecting) = self.collecting.get(&id) else { return false };
        let voted = collecting.votes.iter().map(|(shard, ticket)| ticket.map(|ticket| (*shard, ticket)));
        let Some(participants) = voted.collect::<Option<Participants>>() else { return false };
        self.collecting.remove(&id);
        self.decided.insert(id, Decided { waiting: participants.clone(), is_logged: false });
        out.push(Command::Append(Record::Decided { id, participants, writes }));
        true
    }

    /// It does not happen. Too late after [`Transactions::commit`].
    pub fn abort(&mut self, id: TransactionId, out: &mut Commands<K, W>) {
        let Some(collecting) = self.collecting.remove(&id) else { return };
        self.unlock(id);
        for (to, _) in collecting.votes {
            out.push(Command::Send { to, message: Message::Abort { id, ticket: None } });
        }
        out.push(Command::Aborted(id));
    }

    /// A record that this machine appended is committed in the shard's log.
    pub fn logged(&mut self, record: &Record<K, W>, out: &mut Commands<K, W>) {
        match record {
            Record::Prepared { id, ticket, .. } => {
                if let Some(prepared) = self.prepared.get_mut(id) {
                    prepared.is_logged = true;
                    let message = Message::Vote { id: *id, ticket: Some(*ticket) };
                    out.push(Command::Send { to: id.coordinator, message });
                }
            }
            Record::Decided { id, .. } => {
                self.unlock(*id);
                if let Some(decided) = self.decided.get_mut(id) {
                    decided.is_logged = true;
                }
                self.tell_decision(*id, out);
            }
            Record::Finished { id, ticket, .. } => {
                self.prepared.remove(id);
                self.unlock(*id);
                let message = Message::Finished { id: *id, ticket: *ticket };
                out.push(Command::Send { to: id.coordinator, message });
            }
            Record::Forgotten { .. } => {}
        }
    }

    /// A message of another shard's primary, current or not, arrived.
    pub fn receive(&mut self, from: ShardId, message: Message<K, W>, out: &mut Commands<K, W>) {
        match message {
            Message::Prepare { id, part } => self.prepare(id, part, out),
            Message::Vote { id, ticket } => self.vote(id, from, ticket, out),
            Message::Commit { id, ticket } => self.finish_commit(id, ticket, out),
            Message::Abort { id, ticket } => self.finish_abort(id, ticket, out),
            Message::Finished { id, ticket } => self.confirm(id, from, ticket, out),
            Message::Ask { id, ticket } => self.answer(id, from, ticket, out),
        }
    }

    /// Whether a part of transaction `id` is locked here, or about to be.
    pub fn has_prepared(&self, id: TransactionId) -> bool {
        self.prepared.contains_key(&id)
    }

    /// Lets go of a part that could not be logged, so that nobody was told of it.
    pub fn forget_prepared(&mut self, id: TransactionId) {
        if self.prepared.get(&id).is_some_and(|prepared| !prepared.is_logged) {
            self.prepared.remove(&id);
            self.unlock(id);
        }
    }

    /// Goes back to where a part was before its end was to be logged, which could not be done: what was decided may be said once more.
    pub fn forget_end(&mut self, id: TransactionId) {
        if let Some(prepared) = self.prepared.get_mut(&id) {
            prepared.is_finishing = false;
        }
    }

    /// Whether a read of `key` has to wait: a transaction that may have happened writes it. It ends when a record with the
    /// transaction's end is logged.
    pub fn is_read_blocked(&self, key: &K) -> bool {
        self.locks.get(key).is_some_and(|id| self.prepared.contains_key(id))
    }

    /// Whether nobody else may write `key` now.
    pub fn is_locked(&self, key: &K) -> bool {
        self.locks.contains_key(key)
    }

    /// Whether anything is under way.
    pub fn is_idle(&self) -> bool {
        self.collecting.is_empty()
            && self.decided.is_empty()
            && self.prepared.is_empty()
            && self.locks.is_empty()
    }

    fn prepare(&mut self, id: TransactionId, part: Part<K, W>, out: &mut Commands<K, W>) {
        let vote = match self.prepared.get(&id) {
            Some(prepared) if prepared.is_logged && !prepared.is_finishing => Some(prepared.ticket),
            Some(_) => return,
            None if part.keys.iter().any(|key| self.locks.contains_key(key)) => None,
            None => {
                let ticket = Ticket { era: self.era, number: self.next_number };
                self.next_number += 1;
                self.locks.extend(part.keys.iter().map(|key| (key.clone(), id)));
                out.push(Command::Append(Record::Prepared { id, ticket, part: part.clone() }));
                self.prepared.insert(id, Prepared { ticket, part, is_logged: false, is_finishing: false });
                return;
            }
        };
        out.push(Command::Send { to: id.coordinator, message: Message::Vote { id, ticket: vote } });
    }

    fn vote(&mut self, id: TransactionId, from: ShardId, ticket: Option<Ticket>, out: &mut Commands<K, W>) {
        let Some(collecting) = self.collecting.get_mut(&id) else { return };
        // A shard that has voted for it keeps its word. What differs comes from a `Prepare` that arrived twice, or of a primary
        // that was replaced.
        let Some((_, vote)) =
            collecting.votes.iter_mut().find(|(shard, vote)| *shard == from && vote.is_none())
        else {
            return;
        };
        *vote = ticket;
        if ticket.is_none() {
            self.abort(id, out);
        } else if collecting.votes.iter().all(|(_, vote)| vote.is_some()) {
            out.push(Command::Ready(id));
        }
    }

    fn finish_commit(&mut self, id: TransactionId, ticket: Ticket, out: &mut Commands<K, W>) {
        match self.prepared.get_mut(&id).filter(|prepared| prepared.ticket == ticket) {
            Some(prepared) if !prepared.is_finishing => {
                prepared.is_finishing = true;
                let writes = Some(prepared.part.writes.clone());
                out.push(Command::Append(Record::Finished { id, ticket, writes }));
            }
            Some(_) => {}
            // It was finished before, and the coordinator has not heard; unless another primary gave the ticket later.
            None if ticket.era <= self.era => {
                out.push(Command::Send { to: id.coordinator, message: Message::Finished { id, ticket } });
            }
            None => {}
        }
    }

    fn finish_abort(&mut self, id: TransactionId, only: Option<Ticket>, out: &mut Commands<K, W>) {
        let Some(prepared) = self.prepared.get_mut(&id) else { return };
        let ticket = prepared.ticket;
        if !prepared.is_finishing && only.is_none_or(|only| only == ticket) {
            prepared.is_finishing = true;
            out.push(Command::Append(Record::Finished { id, ticket, writes: None }));
        }
    }

    fn confirm(&mut self, id: TransactionId, from: ShardId, ticket: Ticket, out: &mut Commands<K, W>) {
        let Some(decided) = self.decided.get_mut(&id).filter(|decided| decided.is_logged) else { return };
        decided.waiting.retain(|waiting| *waiting != (from, ticket));
        if decided.waiting.is_empty() {
            self.decided.remove(&id);
            out.push(Command::Append(Record::Forgotten { id }));
        }
    }

    fn answer(&mut self, id: TransactionId, from: ShardId, ticket: Ticket, out: &mut Commands<K, W>) {
        // Another primary began it later: this one was replaced, and does not know.
        let is_of_a_later_life = id.era > self.era;
        let decided = self.decided.get(&id);
        if is_of_a_later_life
            || self.collecting.contains_key(&id)
            || decided.is_some_and(|decided| !decided.is_logged)
        {
            return;
        }
        let counted = decided.is_some_and(|decided| decided.waiting.contains(&(from, ticket)));
        let message = if counted {
            Message::Commit { id, ticket }
        } else {
            Message::Abort { id, ticket: Some(ticket) }
        };
        out.push(Command::Send { to: from, message });
    }

    pub(super) fn tell_decision(&self, id: TransactionId, out: &mut Commands<K, W>) {
        let waiting = self.decided.get(&id).map(|decided| decided.waiting.as_slice()).unwrap_or_default();
        for &(to, ticket) in waiting {
            out.push(Command::Send { to, message: Message::Commit { id, ticket } });
        }
    }

    fn unlock(&mut self, id: TransactionId) {
        self.locks.retain(|_, holder| *holder != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Part;

    #[test]
    fn a_part_whose_end_could_not_be_logged_ends_when_it_is_told_once_more() {
        let coordinator = ShardId(3);
        let id = TransactionId { coordinator, era: 1, number: 1 };
        let mut machine: Transactions<u8, u8> = Transactions::recover(ShardId(5), 1, []);
        let mut out = Vec::new();
        machine.receive(
            coordinator,
            Message::Prepare { id, part: Part { keys: vec![7], writes: 9 } },
            &mut out,
        );
        let Some(Command::Append(prepared @ Record::Prepared { ticket, .. })) = out.pop() else {
            panic!("{out:?}")
        };
        machine.logged(&prepared, &mut out);
        let end = |machine: &mut Transactions<u8, u8>| {
            let mut out = Vec::new();
            machine.receive(coordinator, Message::Commit { id, ticket }, &mut out);
            out.pop()
        };
        let first = end(&mut machine);
        assert!(
            matches!(first, Some(Command::Append(Record::Finished { writes: Some(9), .. }))),
            "{first:?}"
        );
        assert_eq!(end(&mut machine), None, "it is being logged");
        machine.forget_end(id);
        assert!(machine.is_locked(&7));
        let Some(Command::Append(finished)) = end(&mut machine) else { panic!("it is held for ever") };
        machine.logged(&finished, &mut out);
        assert!(machine.is_idle());
    }
}
