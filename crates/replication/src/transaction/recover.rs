//! A shard's machine from its log, and the end of what was under way when its primary failed.

use super::machine::{Decided, Prepared};
use super::{Command, Message, Record, Transactions};
use ashlar_types::ShardId;
use std::collections::BTreeMap;

impl<K: Ord + Clone, W: Clone> Transactions<K, W> {
    /// The machine after `records`, the shard's log so far, all of it committed: a new primary is told of a transaction when
    /// [`crate::log::LogReplica::is_serving`] says so. `era` is larger than in any earlier life.
    pub fn recover<'a>(
        shard: ShardId,
        era: u64,
        records: impl IntoIterator<Item = &'a Record<K, W>>,
    ) -> Transactions<K, W>
    where
        K: 'a,
        W: 'a,
    {
        let mut machine = Transactions {
            shard,
            era,
            next_number: 0,
            collecting: BTreeMap::new(),
            decided: BTreeMap::new(),
            prepared: BTreeMap::new(),
            locks: BTreeMap::new(),
        };
        for record in records {
            machine.replay(record);
        }
        machine
    }

    /// Goes on with what is under way: asks coordinators, tells participants. After a start, and again when no answer came for a while.
    pub fn resume(&self, out: &mut Vec<Command<K, W>>) {
        for (&id, prepared) in &self.prepared {
            if prepared.is_logged && !prepared.is_finishing {
                out.push(Command::Send {
                    to: id.coordinator,
                    message: Message::Ask { id, ticket: prepared.ticket },
                });
            }
        }
        for (&id, _) in self.decided.iter().filter(|(_, decided)| decided.is_logged) {
            self.tell_decision(id, out);
        }
    }

    fn replay(&mut self, record: &Record<K, W>) {
        match record {
            Record::Prepared { id, ticket, part } => {
                self.locks.extend(part.keys.iter().map(|key| (key.clone(), *id)));
                let (ticket, part) = (*ticket, part.clone());
                self.prepared.insert(*id, Prepared { ticket, part, is_logged: true, is_finishing: false });
            }
            Record::Decided { id, participants, .. } => {
                self.decided.insert(*id, Decided { waiting: participants.clone(), is_logged: true });
            }
            Record::Finished { id, .. } => {
                self.prepared.remove(id);
                self.locks.retain(|_, holder| holder != id);
            }
            Record::Forgotten { id } => {
                self.decided.remove(id);
            }
        }
    }
}
