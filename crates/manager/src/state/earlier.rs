//! The state as earlier versions stored it.

use super::{ClusterState, MetadataRecord, TokenRecord};
use crate::map_change::first_node;
use ashlar_types::codec::{self, CodecError};
use ashlar_types::map::{Chain, Pool, Shard, Target};
use ashlar_types::node::Listening;
use ashlar_types::{ClusterId, ClusterMap, Epoch, Node, NodeId, NodePolicy, Roles, TargetId};
use serde::Deserialize;

/// What format 2 began with: nodes had no policy.
pub(super) const MAGIC_2: &[u8; 8] = b"ASHLSTA2";

#[derive(Deserialize)]
struct Node2 {
    id: NodeId,
    name: String,
    roles: Roles,
    listening: Vec<Listening>,
}

#[derive(Deserialize)]
struct Map2 {
    cluster: ClusterId,
    epoch: Epoch,
    pools: Vec<Pool>,
    targets: Vec<Target>,
    chains: Vec<Chain>,
    shards: Vec<Shard>,
    nodes: Vec<Node2>,
}

#[derive(Deserialize)]
struct Token2 {
    public_key: [u8; 32],
    roles: Roles,
    expires_s: u64,
    used_by: Option<(NodeId, Vec<u8>)>,
}

#[derive(Deserialize)]
struct State2 {
    map: Map2,
    tokens: Vec<Token2>,
    last_node: NodeId,
    metadata: Option<MetadataRecord>,
    promised: Vec<(TargetId, [u8; 16], String, NodeId)>,
}

/// The map as it was stored before there were nodes.
#[derive(Deserialize)]
struct Map1 {
    cluster: ClusterId,
    epoch: Epoch,
    pools: Vec<Pool>,
    targets: Vec<Target>,
    chains: Vec<Chain>,
    shards: Vec<Shard>,
}

/// Format 2, behind its magic. Nodes and tokens have the policy that they would be given today.
pub(super) fn decode_2(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let State2 { map, tokens, last_node, metadata, promised } = codec::decode(bytes, "cluster state")?;
    let Map2 { cluster, epoch, pools, targets, chains, shards, nodes } = map;
    let node = |node: Node2| {
        let Node2 { id, name, roles, listening } = node;
        Node { id, name, roles, listening, policy: NodePolicy::of_new_node(roles) }
    };
    let nodes = nodes.into_iter().map(node).collect();
    let token = |token: Token2| {
        let Token2 { public_key, roles, expires_s, used_by } = token;
        TokenRecord { public_key, roles, expires_s, used_by, policy: NodePolicy::of_new_node(roles) }
    };
    Ok(ClusterState {
        map: ClusterMap { cluster, epoch, pools, targets, chains, shards, nodes },
        tokens: tokens.into_iter().map(token).collect(),
        last_node,
        metadata: metadata.into_iter().collect(),
        promised,
    })
}

/// Format 1, which had no magic: a map without nodes.
pub(super) fn decode_1(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let Map1 { cluster, epoch, pools, targets, chains, shards } = codec::decode(bytes, "cluster map")?;
    let nodes = vec![first_node(NodeId(1))];
    Ok(ClusterState::new(ClusterMap { cluster, epoch, pools, targets, chains, shards, nodes }))
}
