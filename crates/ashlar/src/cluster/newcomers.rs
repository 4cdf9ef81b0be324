//! Whether a node may connect. One that has just joined may be known to its manager and not here yet: it is let wait for the map that names it, which is on its way.

use ashlar_rpc::net::Peer;
use ashlar_types::{ClusterMap, Epoch, NodeId};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long a node that is not known is taken for one that has just joined.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at the map.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Default)]
pub(super) struct Newcomers {
    /// Nodes that have waited in vain for a newer map than this one: they were removed, and need not be let wait again as they try on and on.
    // LIMIT: of nodes: they have a certificate, and each has joined once; those of one epoch.
    in_vain: Mutex<(Epoch, BTreeSet<NodeId>)>,
}

impl Newcomers {
    /// Waits for up to a second when `peer` may have just joined.
    ///
    /// # Errors
    /// What `peer` is told: who it is, and what lets it in.
    pub fn admit(&self, map: &RwLock<Arc<ClusterMap>>, peer: &Peer) -> Result<(), String> {
        // One that comes in the place of another one may be the newer one of both.
        let node = peer.id.host.map_or(peer.id.node, |host| host.max(peer.id.node));
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let current = map.read().clone();
            let outcome = ashlar_manager::admit(&current, peer);
            // Numbers of nodes are not used again: one that is lower than others was removed.
            let may_be_new = current.nodes.last().is_none_or(|newest| newest.id < node);
            if outcome.is_ok() || !may_be_new || self.has_waited(current.epoch, node) {
                return outcome;
            }
            if Instant::now() >= deadline {
                self.note(current.epoch, node);
                return outcome;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn has_waited(&self, epoch: Epoch, node: NodeId) -> bool {
        let in_vain = self.in_vain.lock();
        in_vain.0 == epoch && in_vain.1.contains(&node)
    }

    fn note(&self, epoch: Epoch, node: NodeId) {
        let mut in_vain = self.in_vain.lock();
        if in_vain.0 < epoch {
            *in_vain = (epoch, BTreeSet::new());
        }
        if in_vain.0 == epoch {
            in_vain.1.insert(node);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::testing::map_of_shards;
    use ashlar_types::{ClusterId, PeerId, Role};

    fn client(cluster: ClusterId, node: u32) -> Peer {
        let roles = [Role::Client].into_iter().collect();
        let id = PeerId { cluster, node: NodeId(node), roles, host: None };
        Peer { id, role: Role::Client, instance: [0; 16], token: None }
    }

    #[test]
    fn a_node_that_was_removed_is_let_wait_once_for_each_map() {
        let mut map = map_of_shards(&[1], &[1, 2]);
        let (known, newcomers) = (RwLock::new(Arc::new(map.clone())), Newcomers::default());
        let cluster = map.cluster;
        let took = |node| {
            let begun = Instant::now();
            newcomers.admit(&known, &client(cluster, node)).unwrap_err();
            begun.elapsed()
        };
        assert!(took(3) >= WAIT_MAX, "it may have joined a moment ago");
        // Of so many none waits.
        let again: Duration = (0..1000).map(|_| took(3)).sum();
        assert!(again < WAIT_MAX, "{again:?}");
        assert!(took(4) >= WAIT_MAX, "another one may have");
        map.epoch.0 += 1;
        *known.write() = Arc::new(map);
        assert!(took(3) >= WAIT_MAX, "the map after that may lack it only because it is older than it");
    }

    #[test]
    fn a_node_that_has_just_joined_is_let_in_when_the_map_with_it_comes() {
        let map = map_of_shards(&[1], &[1, 2]);
        let (known, newcomers) = (RwLock::new(Arc::new(map.clone())), Newcomers::default());
        std::thread::scope(|scope| {
            let admitted = scope.spawn(|| newcomers.admit(&known, &client(map.cluster, 3)));
            let mut newer = map.clone();
            let mut node = newer.nodes[0].clone();
            node.id = NodeId(3);
            node.roles = [Role::Client].into_iter().collect();
            newer.nodes.push(node);
            newer.epoch.0 += 1;
            *known.write() = Arc::new(newer);
            admitted.join().unwrap().unwrap();
        });
    }
}
