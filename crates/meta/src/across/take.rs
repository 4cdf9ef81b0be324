//! Shards that change hands before there is anything in them: a metadata server that joins takes its share of those.
//!
//! ```text
//!  server that joins          server that has them          manager
//!     │ Give(count)                │                            │
//!     ├───────────────────────────▶│ names empty shards, makes  │
//!     │                     shards │ nothing in them for a while│
//!     │◀───────────────────────────┤                            │
//!     │ notes them, durably        │                            │
//!     │ TransferShards             │                            │
//!     ├────────────────────────────┼───────────────────────────▶│ compare-and-set: the map says so
//!     │ HandOver(epoch)            │                            │
//!     ├───────────────────────────▶│ has this map, so serves    │
//!     │             inode counters │ them no more; still empty  │
//!     │◀───────────────────────────┤                            │
//!     │ counters and no note, durably: serves them              │
//! ```
//!
//! Until the note is gone the shards are not served ([`MetaService::shards_here`]); a start goes on where it was. Should something have been made in one
//! after all, it is given back.

use super::MetaService;
use super::message::{Answer, Say};
use crate::call::verb as number;
use ashlar_kv::{Snapshot, Urgency};
use ashlar_namespace::{NsError, Txn, key, verb};
use ashlar_types::{ClusterMap, Epoch, Errno, NodeId, OpId, Role, ShardId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

/// For how long nothing is made in a shard that was offered.
const OFFERED_MAX: Duration = Duration::from_secs(30);
/// For how long a server is asked.
const ASK_MAX: Duration = Duration::from_secs(5);

/// Asks the manager for shards: they are `.1`'s, and are to be `.2`'s.
pub type Transfer<'a> = dyn Fn(&[ShardId], NodeId, NodeId) -> bool + 'a;

/// Shards that change hands.
#[derive(Default)]
pub(super) struct Hands {
    /// Offered to others, until when.
    // LIMIT: as shards.
    pub offered: FxHashMap<ShardId, Duration>,
    /// The map gives them to this server, and it has not got them yet: from whom they come.
    // LIMIT: as shards.
    pub awaited: FxHashMap<ShardId, NodeId>,
}

impl MetaService {
    /// Takes a fair share of what is empty, and goes on with what was begun. To be called every second or so.
    ///
    /// # Errors
    /// `EIO` from the store.
    pub fn balance_shards(&self, transfer: &Transfer<'_>) -> Result<(), Errno> {
        if !self.across.has_peers() {
            return Ok(());
        }
        self.take_over(transfer)?;
        let map = self.map.read().clone();
        if self.across.hands.lock().awaited.is_empty()
            && let Some((donor, count)) = wanted(&map, self.across.node)
        {
            self.ask_for(&map, donor, count, transfer)?;
        }
        Ok(())
    }

    fn ask_for(
        &self,
        map: &ClusterMap,
        donor: NodeId,
        count: usize,
        transfer: &Transfer<'_>,
    ) -> Result<(), Errno> {
        let Some(of_donor) = map.shards.iter().find(|shard| shard.primary == donor) else { return Ok(()) };
        let offered = match self.say(of_donor.id, &Say::Give { count: count as u64 }, ASK_MAX) {
            Ok(Answer::Offered(shards)) if !shards.is_empty() => shards,
            Ok(Answer::Failed(errno)) => {
                tracing::debug!(%errno, %donor, "a metadata server gives no shards");
                return Ok(());
            }
            _ => return Ok(()),
        };
        let is_good = |shard: &ShardId| map.primary(*shard) == Some(donor);
        let offered: Vec<ShardId> = offered.into_iter().filter(is_good).collect();
        // ORDER: noted before the map can say that they are here: without their counters they are not to be served.
        self.note_awaited(&offered, Some(donor))?;
        if !transfer(&offered, donor, self.across.node) {
            tracing::debug!(%donor, "the manager did not transfer shards; looking again");
        }
        Ok(())
    }

    fn note_awaited(&self, shards: &[ShardId], from: Option<NodeId>) -> Result<(), Errno> {
        let mut hands = self.across.hands.lock();
        for &shard in shards {
            match from {
                Some(from) => hands.awaited.insert(shard, from),
                None => hands.awaited.remove(&shard),
            };
        }
        drop(hands);
        self.across.look_again();
        self.store(|txn| {
            for &shard in shards {
                match from {
                    Some(from) => txn.put_record(key::awaited(shard), &from),
                    None => txn.delete(key::awaited(shard)),
                }
            }
            Ok(())
        })
    }

    /// Changes what is kept here of shards that are not served yet, durably.
    fn store(&self, change: impl Fn(&mut Txn<'_>) -> Result<(), NsError>) -> Result<(), Errno> {
        let mut writer = self.lane.write();
        let mut txn = Txn::new(&writer as &dyn Snapshot);
        let outcome = change(&mut txn).and_then(|()| txn.finish()).map_err(|error| self.answer(&error))?;
        let position = self.append(
            &mut writer,
            OpId::default(),
            number::TAKE_SHARDS,
            outcome.writes,
            Urgency::FreesSpace,
        )?;
        drop(writer);
        self.lane.flush(position).map_err(|error| self.answer(&error.into()))
    }

    /// Gets what the map says is here and is not yet.
    fn take_over(&self, transfer: &Transfer<'_>) -> Result<(), Errno> {
        let awaited: BTreeMap<ShardId, NodeId> =
            self.across.hands.lock().awaited.iter().map(|(shard, from)| (*shard, *from)).collect();
        let map = self.map.read().clone();
        for (shard, from) in awaited {
            let primary = map.primary(shard);
            if primary != Some(self.across.node) {
                // It was not transferred, or was given back.
                if primary == Some(from) && !transfer(&[shard], from, self.across.node) {
                    self.note_awaited(&[shard], None)?;
                }
                continue;
            }
            let Some(of_donor) = map.shards.iter().find(|other| other.primary == from) else { continue };
            let say = Say::HandOver { shard, epoch: map.epoch };
            match self.say(of_donor.id, &say, ASK_MAX) {
                Ok(Answer::HandedOver { counter }) => self.begin_shard(shard, counter)?,
                Ok(Answer::NotEmpty) => {
                    tracing::info!(%shard, %from, "something was made in a shard that was to change hands; it is given back");
                    if transfer(&[shard], self.across.node, from) {
                        self.note_awaited(&[shard], None)?;
                    }
                }
                // Not yet, or not now.
                _ => {}
            }
        }
        Ok(())
    }

    /// Serves a shard from now on, with ids above `counter`.
    fn begin_shard(&self, shard: ShardId, counter: u64) -> Result<(), Errno> {
        // ORDER: durable before anybody is given an id.
        self.store(|txn| {
            let own: u64 = txn.get_record(&key::counter(shard), "inode counter")?.unwrap_or(1);
            txn.put_record(key::counter(shard), &own.max(counter));
            verb::skip_inode_ids(txn, shard)?;
            txn.delete(key::awaited(shard));
            Ok(())
        })?;
        self.across.hands.lock().awaited.remove(&shard);
        self.across.look_again();
        tracing::info!(%shard, "serves a shard from now on");
        Ok(())
    }

    /// Finds shards that were to come when the service ended.
    pub(crate) fn find_awaited(&self) -> Result<(), Errno> {
        let shards: Vec<ShardId> = self.map.read().shards.iter().map(|shard| shard.id).collect();
        let reader = self.lane.read();
        let snapshot: &dyn Snapshot = &reader;
        let txn = Txn::new(snapshot);
        for shard in shards {
            let from: Option<NodeId> = txn
                .get_record(&key::awaited(shard), "note of a shard")
                .map_err(|error| self.answer(&error))?;
            if let Some(from) = from {
                self.across.hands.lock().awaited.insert(shard, from);
            }
        }
        self.across.look_again();
        Ok(())
    }

    /// Offers up to `count` shards that are empty.
    pub(super) fn offer(&self, count: u64) -> Result<Answer, Errno> {
        let mut candidates: Vec<ShardId> = self.shards_here().0.iter().collect();
        // The last ones first: directories go round from the first on.
        candidates.reverse();
        // A server never gives its last shard away.
        let most = count.min(candidates.len().saturating_sub(1) as u64);
        let until = self.env.clock.monotonic() + OFFERED_MAX;
        let mut offered = Vec::new();
        for shard in candidates {
            if offered.len() as u64 >= most {
                break;
            }
            // ORDER: nothing is made in it from now on; then it is looked whether there is anything.
            self.across.hands.lock().offered.insert(shard, until);
            if self.is_empty(shard)? {
                offered.push(shard);
            } else {
                self.across.hands.lock().offered.remove(&shard);
            }
        }
        Ok(Answer::Offered(offered))
    }

    /// Whether nothing is to be made in `shard` for now.
    pub(crate) fn is_offered(&self, shard: ShardId) -> bool {
        let mut hands = self.across.hands.lock();
        if hands.offered.is_empty() {
            return false;
        }
        let now = self.env.clock.monotonic();
        hands.offered.retain(|_, until| *until > now);
        let is_offered = hands.offered.contains_key(&shard);
        drop(hands);
        // The map may have given it to its new server already.
        is_offered && self.is_here(shard)
    }

    /// Tells the counter of a shard that the map of `epoch` gives to another server.
    pub(super) fn hand_over(&self, shard: ShardId, epoch: Epoch) -> Result<Answer, Errno> {
        if self.map.read().epoch < epoch || self.is_here(shard) {
            return Ok(Answer::Later);
        }
        // ORDER: whoever was deciding something in it has committed it when the lock is taken; whoever decides later knows the map.
        let writer = self.lane.write();
        let counter: u64 = Txn::new(&writer as &dyn Snapshot)
            .get_record(&key::counter(shard), "inode counter")
            .map_err(|error| self.answer(&error))?
            .unwrap_or(1);
        drop(writer);
        Ok(if self.is_empty(shard)? { Answer::HandedOver { counter } } else { Answer::NotEmpty })
    }

    /// Whether there is nothing in `shard` but its counter, and what the server itself keeps under its number.
    fn is_empty(&self, shard: ShardId) -> Result<bool, Errno> {
        let (all, own) = (shard.0.to_be_bytes(), [key::counter(shard), key::awaited(shard)]);
        let mut is_empty = true;
        let reader = self.lane.read();
        reader
            .scan(&all, &key::after_prefix(&all), &mut |found, _| {
                is_empty = own.iter().any(|own| own.as_slice() == found);
                if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .map_err(|error| self.answer(&error.into()))?;
        Ok(is_empty && !self.across.is_reserved_by_others(shard))
    }
}

/// From whom `node` is to take shards, and how many, for all servers to have as many as each other.
fn wanted(map: &ClusterMap, node: NodeId) -> Option<(NodeId, usize)> {
    let servers: Vec<NodeId> = map.listening(Role::Meta).map(|node| node.id).collect();
    if !servers.contains(&node) {
        return None;
    }
    let count = |server: NodeId| map.shards.iter().filter(|shard| shard.primary == server).count();
    let fair = map.shards.len() / servers.len();
    let lacking = fair.saturating_sub(count(node));
    let donor = servers.into_iter().filter(|server| *server != node).max_by_key(|server| count(*server))?;
    let spare = count(donor).saturating_sub(fair);
    (lacking > 0 && spare > 0).then_some((donor, lacking.min(spare)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::map::Shard;
    use ashlar_types::node::Listening;
    use ashlar_types::{ClusterId, Node};

    fn map(primaries: &[u32], servers: &[u32]) -> ClusterMap {
        let node = |id: u32| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            roles: Default::default(),
            policy: Default::default(),
            listening: vec![Listening { role: Role::Meta, addresses: vec!["127.0.0.1:1".parse().unwrap()] }],
        };
        ClusterMap {
            cluster: ClusterId([1; 16]),
            epoch: Epoch(1),
            pools: Vec::new(),
            targets: Vec::new(),
            chains: Vec::new(),
            shards: (0..)
                .zip(primaries)
                .map(|(id, node)| Shard { id: ShardId(id), primary: NodeId(*node) })
                .collect(),
            nodes: servers.iter().map(|id| node(*id)).collect(),
        }
    }

    #[test]
    fn a_server_that_joins_takes_its_share_from_whoever_has_most() {
        let all = [1; 64];
        assert_eq!(wanted(&map(&all, &[1, 2]), NodeId(2)), Some((NodeId(1), 32)));
        assert_eq!(wanted(&map(&all, &[1, 2]), NodeId(1)), None, "who has all wants nothing");
        let halves: Vec<u32> = (0..64).map(|at| 1 + at % 2).collect();
        assert_eq!(wanted(&map(&halves, &[1, 2, 3]), NodeId(3)).map(|(_, count)| count), Some(11));
        assert_eq!(wanted(&map(&halves, &[1, 2]), NodeId(2)), None);
        assert_eq!(wanted(&map(&all, &[1]), NodeId(2)), None, "who does not listen serves nobody");
    }
}
