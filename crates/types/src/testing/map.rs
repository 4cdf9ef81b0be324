//! Maps of clusters.

use crate::map::{Shard, Target, TargetState};
use crate::node::Listening;
use crate::{ClusterId, ClusterMap, Epoch, Node, NodeId, PoolId, Role, ShardId, TargetId};

/// A map with nothing but shards, from the first on, each with its primary, and nodes that listen for calls of metadata.
#[must_use]
#[allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "the address is one")]
pub fn map_of_shards(primaries: &[u32], servers: &[u32]) -> ClusterMap {
    let node = |id: u32| Node {
        id: NodeId(id),
        name: format!("n{id}"),
        roles: Default::default(),
        policy: Default::default(),
        domain: String::new(),
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
        moves: Default::default(),
        filesets: Vec::new(),
        nodes: servers.iter().map(|id| node(*id)).collect(),
    }
}

/// A map with a target `i` on node `nodes[i]`, which is in the failure domain `domains[node]`.
#[must_use]
pub fn map_in_domains(nodes: &[u32], domains: &[&str]) -> ClusterMap {
    let servers: Vec<u32> = (0..domains.len() as u32).collect();
    let mut map = map_of_shards(&[0], &servers);
    for (node, domain) in map.nodes.iter_mut().zip(domains) {
        node.domain = (*domain).to_owned();
    }
    let target = |(id, node): (u32, &u32)| Target {
        id: TargetId(id),
        uuid: [id as u8; 16],
        node: NodeId(*node),
        pool: PoolId(0),
        state: TargetState::Online,
        path: String::new(),
        is_draining: false,
    };
    map.targets = (0..).zip(nodes).map(target).collect();
    map
}
