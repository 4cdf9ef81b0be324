//! Links to the servers of the map, made as they are needed.

use crate::net::{Caller, Link, Wanted};
use ashlar_types::{ClusterMap, Epoch, NodeId, Role, TargetId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Connections per server and role, without that for late answers.
const CHANNELS: u32 = 4;

/// A server, and the target of it that has addresses of its own.
type Place = (NodeId, Role, Option<TargetId>);

/// See the module.
pub struct Routes {
    caller: Arc<Caller>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    links: RwLock<FxHashMap<Place, Arc<Link>>>,
}

impl Routes {
    /// Routes of `caller` by `map`, which its owner keeps current.
    pub fn new(caller: Arc<Caller>, map: Arc<RwLock<Arc<ClusterMap>>>) -> Routes {
        Routes { caller, map, links: RwLock::default() }
    }

    /// The current map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.read().clone()
    }

    /// The map's handle.
    pub fn map_handle(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.map.clone()
    }

    /// The epoch of the newest map that some server has told of.
    pub fn newest_epoch(&self) -> Epoch {
        self.caller.epochs.heard().max(self.map.read().epoch)
    }

    /// Whether the map says where `node` is `role`.
    pub fn has_address(&self, node: NodeId, role: Role) -> bool {
        self.map().node(node).is_some_and(|node| !node.addresses(role).is_empty())
    }

    /// The link to `node` as `role`; it goes where the map says at the time.
    pub fn link(&self, node: NodeId, role: Role) -> Arc<Link> {
        self.link_at((node, role, None))
    }

    /// The link to `target`, which is on `node`: to the addresses at which it is reached best, or one for all targets that are reached alike.
    pub fn link_to_target(&self, node: NodeId, target: TargetId) -> Arc<Link> {
        let has_own = self.map().node(node).is_some_and(|node| !node.addresses_of_target(target).is_empty());
        self.link_at((node, Role::Storage, has_own.then_some(target)))
    }

    fn link_at(&self, place: Place) -> Arc<Link> {
        if let Some(link) = self.links.read().get(&place) {
            return link.clone();
        }
        let (node, role, target) = place;
        let (map, caller) = (self.map.clone(), self.caller.role);
        let addresses = move || {
            let map = map.read().clone();
            let Some(node) = map.node(node) else { return Default::default() };
            let (first, then) = node.reached_by(caller, role);
            match target.map(|target| node.addresses_of_target(target)) {
                Some(own) if !own.is_empty() && !caller.is_of_management() => {
                    let others = first.into_iter().filter(|address| !own.contains(address)).chain(then);
                    (own.to_vec(), others.collect())
                }
                _ => (first, then),
            }
        };
        let wanted = Wanted { role, node: Some(node) };
        let make = || Arc::new(Link::new(self.caller.clone(), wanted, Box::new(addresses), CHANNELS));
        self.links.write().entry(place).or_insert_with(make).clone()
    }
}
