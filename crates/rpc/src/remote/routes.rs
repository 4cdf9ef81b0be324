//! Links to the servers of the map, made as they are needed.

use crate::net::{Caller, Link, Wanted};
use ashlar_types::{ClusterMap, NodeId, Role};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Connections per server and role, without that for late answers.
const CHANNELS: u32 = 4;

/// See the module.
pub struct Routes {
    caller: Arc<Caller>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    links: RwLock<FxHashMap<(NodeId, Role), Arc<Link>>>,
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

    /// Whether the map says where `node` is `role`.
    pub fn has_address(&self, node: NodeId, role: Role) -> bool {
        self.map().node(node).is_some_and(|node| !node.addresses(role).is_empty())
    }

    /// The link to `node` as `role`; it goes where the map says at the time.
    pub fn link(&self, node: NodeId, role: Role) -> Arc<Link> {
        if let Some(link) = self.links.read().get(&(node, role)) {
            return link.clone();
        }
        let map = self.map.clone();
        let addresses = move || {
            let map = map.read().clone();
            map.node(node).map(|node| node.addresses(role).to_vec()).unwrap_or_default()
        };
        let wanted = Wanted { role, node: Some(node) };
        let mut links = self.links.write();
        let make = || Arc::new(Link::new(self.caller.clone(), wanted, Box::new(addresses), CHANNELS));
        links.entry((node, role)).or_insert_with(make).clone()
    }
}
