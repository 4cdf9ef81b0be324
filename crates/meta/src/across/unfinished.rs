//! Operations across servers that were under way when all of them stopped, for whoever has the metadata of all at hand: they are finished as starts would.

use super::coordinate::DECIDED;
use super::message::PreparedRecord;
use super::participate::PREPARED;
use ashlar_kv::{Key, KvError, Snapshot};
use ashlar_namespace::{NsError, OpContext, ShardChange, Txn, key};
use ashlar_replication::transaction::Participants;
use ashlar_types::ShardId;
use ashlar_types::codec::decode;
use std::ops::ControlFlow;

/// A record of such an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    key: Key,
    /// Of a part that happens.
    change: Option<ShardChange>,
    /// Of a part, not of a decision.
    is_part: bool,
}

impl Unfinished {
    /// Those in `shards`, which are all there are, of `snapshot`: parts first, then decisions, which are not needed any more once those are finished.
    ///
    /// # Errors
    /// [`KvError`]; [`KvError::Corrupt`] for a record that does not decode.
    pub fn find(snapshot: &dyn Snapshot, shards: &[ShardId]) -> Result<Vec<Unfinished>, KvError> {
        let (mut parts, mut decisions) = (Vec::new(), Vec::new());
        for &shard in shards {
            let (from, to) = key::table_range(shard, b'T');
            let (mut found, mut damaged) = (Vec::new(), None);
            snapshot.scan(&from, &to, &mut |record_key, value| {
                match key::transaction_of(record_key) {
                    Some((PREPARED, id)) => match decode::<PreparedRecord>(value, "prepared part") {
                        Ok(record) => found.push((Key::from_slice(record_key), id, record)),
                        Err(_) => damaged = Some(Key::from_slice(record_key)),
                    },
                    Some((DECIDED, _)) => decisions.push(Unfinished {
                        key: Key::from_slice(record_key),
                        change: None,
                        is_part: false,
                    }),
                    _ => damaged = Some(Key::from_slice(record_key)),
                }
                ControlFlow::Continue(())
            })?;
            if let Some(key) = damaged {
                let what = format!("the record {key:02x?} of an operation across servers");
                return Err(KvError::Corrupt { what });
            }
            for (record_key, id, PreparedRecord { ticket, part }) in found {
                let decision = snapshot.get(&key::transaction(id.0, DECIDED, id))?;
                let voted = match decision {
                    Some(bytes) => {
                        decode::<Participants>(&bytes, "decision").map_err(|_| KvError::Corrupt {
                            what: format!("the decision of an operation across servers in {}", id.0),
                        })?
                    }
                    None => Participants::new(),
                };
                // One that was locked once more afterwards happens no second time.
                let is_meant = voted.contains(&(shard, ticket));
                parts.push(Unfinished { key: record_key, change: is_meant.then_some(part), is_part: true });
            }
        }
        parts.extend(decisions);
        Ok(parts)
    }

    /// Whether it is a part that happens, or one that does not; `None` for a decision.
    pub fn happens(&self) -> Option<bool> {
        self.is_part.then_some(self.change.is_some())
    }

    /// Finishes it.
    ///
    /// # Errors
    /// As [`ShardChange::apply`].
    pub fn finish(&self, txn: &mut Txn<'_>, context: &OpContext<'_>) -> Result<(), NsError> {
        if let Some(change) = &self.change {
            change.apply(txn, context)?;
        }
        txn.delete(self.key.clone());
        Ok(())
    }
}
