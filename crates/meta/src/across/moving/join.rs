//! A server that joins takes its share of the shards in which there is nothing, once. Those with content it is given by an administrator: moving them costs
//! time on both servers, and he knows when.

use super::super::message::{Answer, Say};
use crate::MetaService;
use ashlar_kv::Snapshot;
use ashlar_namespace::{Txn, key};
use ashlar_types::{ClusterMap, Errno, NodeId, Role, ShardId};
use bytes::Bytes;
use std::ops::ControlFlow;
use std::time::Duration;

/// For how long a server is asked.
const ASK_MAX: Duration = Duration::from_secs(5);
/// For how long shards that were promised are waited for.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// What has come of it so far.
#[derive(Default)]
pub(in crate::across) struct Share {
    /// Whether it is known that this server has taken it.
    pub(super) is_taken: bool,
    /// Servers that have nothing to give.
    // LIMIT: as metadata servers.
    dry: Vec<NodeId>,
    /// So many shards are to be here, or it is this late, before anybody is asked again.
    awaited: Option<(usize, Duration)>,
}

impl MetaService {
    /// Goes on with it.
    pub(super) fn take_share(&self) -> Result<(), Errno> {
        let map = self.map.read().clone();
        let node = self.across.node;
        let is_listening = map.listening(Role::Meta).any(|server| server.id == node);
        {
            let mut hands = self.across.hands.lock();
            let count = count_of(&map, node);
            let is_late =
                |(awaited, until): (usize, Duration)| count >= awaited || self.env.clock.monotonic() > until;
            if !is_listening
                || hands.share.is_taken
                || hands.share.awaited.is_some_and(|awaited| !is_late(awaited))
            {
                return Ok(());
            }
            hands.share.awaited = None;
        }
        if self.has_joined()? {
            return self.end_share();
        }
        let dry = self.across.hands.lock().share.dry.clone();
        let Some((donor, count)) = wanted(&map, node, &dry) else {
            return self.end_share();
        };
        let say = Say::Give { to: node, count: count as u64 };
        match self.say_to(donor, &say, ASK_MAX) {
            Ok(Answer::Given(0)) => self.across.hands.lock().share.dry.push(donor),
            Ok(Answer::Given(given)) => {
                let until = self.env.clock.monotonic() + ARRIVAL_MAX;
                let awaited = count_of(&map, node) + given as usize;
                self.across.hands.lock().share.awaited = Some((awaited, until));
            }
            // Not now.
            _ => {}
        }
        Ok(())
    }

    /// Takes nothing more by itself, also after a start.
    pub(crate) fn end_share(&self) -> Result<(), Errno> {
        if self.across.hands.lock().share.is_taken {
            return Ok(());
        }
        if !self.has_joined()? {
            self.note(|txn| {
                txn.put(key::joined(), Bytes::new());
                Ok(())
            })?;
        }
        self.across.hands.lock().share.is_taken = true;
        Ok(())
    }

    fn has_joined(&self) -> Result<bool, Errno> {
        let found = self.lane.read().get(&key::joined()).map_err(|error| self.answer(&error.into()))?;
        Ok(found.is_some())
    }

    /// Sends up to `count` shards that are empty to `to`; tells how many.
    pub(in crate::across) fn give(&self, to: NodeId, count: u64) -> Result<Answer, Errno> {
        let map = self.map.read().clone();
        let is_known = map.listening(Role::Meta).any(|server| server.id == to);
        if !is_known || to == self.across.node || self.are_moves_paused() {
            return Ok(Answer::Later);
        }
        // An administrator wants what was withdrawn to stay, and no others to go in its place.
        if self.has_withdrawn_from(to) {
            return Ok(Answer::Given(0));
        }
        let mut candidates: Vec<ShardId> = self.shards_here().0.iter().collect();
        candidates.retain(|shard| !self.is_to_be_sent(*shard));
        // Others may have asked, too: what is on its way to them is theirs.
        let fair = map.shards.len() / map.listening(Role::Meta).count().max(1);
        let most = count.min(candidates.len().saturating_sub(fair.max(1)) as u64);
        // The last ones first: directories go round from the first on.
        candidates.reverse();
        let mut given = Vec::new();
        for shard in candidates {
            if given.len() as u64 >= most {
                break;
            }
            if self.is_empty(shard)? {
                given.push(shard);
            }
        }
        self.send_shards(&given, to, None)?;
        Ok(Answer::Given(given.len() as u64))
    }

    /// Whether there is nothing in `shard` but its counter.
    fn is_empty(&self, shard: ShardId) -> Result<bool, Errno> {
        let (prefix, counter) = (key::shard_prefix(shard), key::counter(shard));
        let mut is_empty = true;
        let reader = self.lane.read();
        reader
            .scan(&prefix, &key::after_prefix(&prefix), &mut |found, _| {
                is_empty = counter.as_slice() == found || key::is_of_server(found);
                if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .map_err(|error| self.answer(&error.into()))?;
        Ok(is_empty)
    }

    /// Changes what is kept here beside what is served, durably.
    pub(super) fn note(
        &self,
        change: impl FnOnce(&mut Txn<'_>) -> Result<(), ashlar_namespace::NsError>,
    ) -> Result<(), Errno> {
        let position = self.note_soon(change)?;
        self.lane.flush(position).map_err(|error| self.answer(&error.into()))
    }
}

fn count_of(map: &ClusterMap, server: NodeId) -> usize {
    map.shards.iter().filter(|shard| shard.primary == server).count()
}

/// From whom `node` is to take shards, and how many, for all servers to have as many as each other; of those in `dry` there is nothing to be had.
fn wanted(map: &ClusterMap, node: NodeId, dry: &[NodeId]) -> Option<(NodeId, usize)> {
    let servers: Vec<NodeId> = map.listening(Role::Meta).map(|node| node.id).collect();
    let fair = map.shards.len().checked_div(servers.len())?;
    let lacking = fair.saturating_sub(count_of(map, node));
    let others = servers.into_iter().filter(|server| *server != node && !dry.contains(server));
    let donor = others.max_by_key(|server| count_of(map, *server))?;
    let spare = count_of(map, donor).saturating_sub(fair);
    (lacking > 0 && spare > 0).then_some((donor, lacking.min(spare)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::testing::map_of_shards as map;

    #[test]
    fn a_server_that_joins_takes_its_share_from_whoever_has_most() {
        let all = [1; 64];
        assert_eq!(wanted(&map(&all, &[1, 2]), NodeId(2), &[]), Some((NodeId(1), 32)));
        assert_eq!(wanted(&map(&all, &[1, 2]), NodeId(2), &[NodeId(1)]), None, "there was nothing");
        assert_eq!(wanted(&map(&all, &[1, 2]), NodeId(1), &[]), None, "who has all wants nothing");
        let halves: Vec<u32> = (0..64).map(|at| 1 + at % 2).collect();
        assert_eq!(wanted(&map(&halves, &[1, 2, 3]), NodeId(3), &[]).map(|(_, count)| count), Some(11));
        assert_eq!(wanted(&map(&halves, &[1, 2]), NodeId(2), &[]), None);
    }
}
