//! The state as earlier versions stored it.

use super::{ClusterState, KeyEpoch, MetadataRecord, PromisedTarget, TokenRecord};
use crate::map_change::first_node;
use ashlar_types::codec::{self, CodecError};
use ashlar_types::map::{Chain, MovePolicy, Pool, Shard, Target, TargetState};
use ashlar_types::node::Listening;
use ashlar_types::policy::{Anonymous, IdMap, Outside, Squash};
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Epoch, Node, NodeId, NodePolicy, PoolId, Roles, TargetId,
};
use serde::Deserialize;
use smallvec::SmallVec;

/// What format 5 began with: starts of directories were not counted.
const MAGIC_5: &[u8; 8] = b"ASHLSTA5";

/// What format 4 began with: there were neither filesets nor failure domains.
const MAGIC_4: &[u8; 8] = b"ASHLSTA4";

/// What format 3 began with: chains stayed where they were, and there were no keys.
const MAGIC_3: &[u8; 8] = b"ASHLSTA3";

/// What format 2 began with: nodes had no policy.
const MAGIC_2: &[u8; 8] = b"ASHLSTA2";

#[derive(Deserialize)]
struct State5 {
    map: ClusterMap,
    tokens: Vec<TokenRecord>,
    last_node: NodeId,
    metadata: Vec<MetadataRecord>,
    promised: Vec<PromisedTarget>,
    last_target: TargetId,
    keys: KeyEpoch,
}

/// A policy as it was before a node could be shown one directory alone.
#[derive(Deserialize)]
struct Policy4 {
    squash: Squash,
    anonymous: Anonymous,
    uids: IdMap,
    gids: IdMap,
    outside: Outside,
    read_only: bool,
}

impl From<Policy4> for NodePolicy {
    fn from(before: Policy4) -> NodePolicy {
        let Policy4 { squash, anonymous, uids, gids, outside, read_only } = before;
        NodePolicy { squash, anonymous, uids, gids, outside, read_only, subtree: None }
    }
}

#[derive(Deserialize)]
struct Node4 {
    id: NodeId,
    name: String,
    roles: Roles,
    listening: Vec<Listening>,
    policy: Policy4,
}

impl From<Node4> for Node {
    fn from(before: Node4) -> Node {
        let Node4 { id, name, roles, listening, policy } = before;
        Node { id, name, roles, listening, policy: policy.into(), domain: String::new() }
    }
}

#[derive(Deserialize)]
struct Token4 {
    public_key: [u8; 32],
    roles: Roles,
    expires_s: u64,
    used_by: Option<(NodeId, Vec<u8>)>,
    policy: Policy4,
}

impl From<Token4> for TokenRecord {
    fn from(before: Token4) -> TokenRecord {
        let Token4 { public_key, roles, expires_s, used_by, policy } = before;
        TokenRecord { public_key, roles, expires_s, used_by, policy: policy.into() }
    }
}

#[derive(Deserialize)]
struct Map4 {
    cluster: ClusterId,
    epoch: Epoch,
    pools: Vec<Pool>,
    targets: Vec<Target>,
    chains: Vec<Chain>,
    shards: Vec<Shard>,
    nodes: Vec<Node4>,
    moves: MovePolicy,
}

#[derive(Deserialize)]
struct State4 {
    map: Map4,
    tokens: Vec<Token4>,
    last_node: NodeId,
    metadata: Vec<MetadataRecord>,
    promised: Vec<PromisedTarget>,
    last_target: TargetId,
    keys: KeyEpoch,
}

#[derive(Deserialize)]
struct Target3 {
    id: TargetId,
    uuid: [u8; 16],
    node: NodeId,
    pool: PoolId,
    state: TargetState,
    path: String,
}

#[derive(Deserialize)]
struct Chain3 {
    id: ChainId,
    pool: PoolId,
    targets: SmallVec<[TargetId; 3]>,
}

/// Targets and chains as they were before chains moved.
fn placed(targets: Vec<Target3>, chains: Vec<Chain3>) -> (Vec<Target>, Vec<Chain>) {
    let target = |target: Target3| {
        let Target3 { id, uuid, node, pool, state, path } = target;
        Target { id, uuid, node, pool, state, path, is_draining: false }
    };
    let chain = |chain: Chain3| {
        let Chain3 { id, pool, targets } = chain;
        Chain { id, pool, targets, moving: None, copies: None }
    };
    (targets.into_iter().map(target).collect(), chains.into_iter().map(chain).collect())
}

#[derive(Deserialize)]
struct Map3 {
    cluster: ClusterId,
    epoch: Epoch,
    pools: Vec<Pool>,
    targets: Vec<Target3>,
    chains: Vec<Chain3>,
    shards: Vec<Shard>,
    nodes: Vec<Node4>,
}

#[derive(Deserialize)]
struct State3 {
    map: Map3,
    tokens: Vec<Token4>,
    last_node: NodeId,
    metadata: Vec<MetadataRecord>,
    promised: Vec<(TargetId, [u8; 16], String, NodeId)>,
}

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
    targets: Vec<Target3>,
    chains: Vec<Chain3>,
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
    targets: Vec<Target3>,
    chains: Vec<Chain3>,
    shards: Vec<Shard>,
}

/// Targets that were promised an id, as they were before pools were chosen: they are to be in the first one.
fn promised(earlier: Vec<(TargetId, [u8; 16], String, NodeId)>) -> Vec<PromisedTarget> {
    let pooled = |(id, uuid, path, node)| PromisedTarget { id, uuid, path, node, pool: PoolId(0) };
    earlier.into_iter().map(pooled).collect()
}

/// Any of them.
pub(super) fn decode(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    if let Some(rest) = bytes.strip_prefix(MAGIC_5) {
        return decode_5(rest);
    }
    if let Some(rest) = bytes.strip_prefix(MAGIC_4) {
        return decode_4(rest);
    }
    if let Some(rest) = bytes.strip_prefix(MAGIC_3) {
        return decode_3(rest);
    }
    match bytes.strip_prefix(MAGIC_2) {
        Some(rest) => decode_2(rest),
        None => decode_1(bytes),
    }
}

/// Format 5, behind its magic.
fn decode_5(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let State5 { map, tokens, last_node, metadata, promised, last_target, keys } =
        codec::decode(bytes, "cluster state")?;
    let (starts, moves, copies, shared_disks) = Default::default();
    Ok(ClusterState {
        map,
        tokens,
        last_node,
        metadata,
        promised,
        last_target,
        keys,
        starts,
        moves,
        copies,
        shared_disks,
    })
}

/// Format 4, behind its magic.
fn decode_4(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let state: State4 = codec::decode(bytes, "cluster state")?;
    let Map4 { cluster, epoch, pools, targets, chains, shards, nodes, moves } = state.map;
    let (nodes, filesets) = (nodes.into_iter().map(Node::from).collect(), Vec::new());
    Ok(ClusterState {
        map: ClusterMap { cluster, epoch, pools, targets, chains, shards, nodes, moves, filesets },
        tokens: state.tokens.into_iter().map(TokenRecord::from).collect(),
        last_node: state.last_node,
        metadata: state.metadata,
        promised: state.promised,
        last_target: state.last_target,
        keys: state.keys,
        starts: Vec::new(),
        moves: Default::default(),
        copies: Default::default(),
        shared_disks: Vec::new(),
    })
}

/// Format 3, behind its magic.
fn decode_3(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let state: State3 = codec::decode(bytes, "cluster state")?;
    let Map3 { cluster, epoch, pools, targets, chains, shards, nodes } = state.map;
    let (targets, chains) = placed(targets, chains);
    let nodes = nodes.into_iter().map(Node::from).collect();
    let (moves, filesets) = Default::default();
    let map = ClusterMap { cluster, epoch, pools, targets, chains, shards, nodes, moves, filesets };
    Ok(ClusterState {
        tokens: state.tokens.into_iter().map(TokenRecord::from).collect(),
        last_node: state.last_node,
        metadata: state.metadata,
        promised: promised(state.promised),
        ..ClusterState::new(map)
    })
}

/// Format 2, behind its magic. Nodes and tokens have the policy that they would be given today.
fn decode_2(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let state: State2 = codec::decode(bytes, "cluster state")?;
    let Map2 { cluster, epoch, pools, targets, chains, shards, nodes } = state.map;
    let (targets, chains) = placed(targets, chains);
    let node = |node: Node2| {
        let Node2 { id, name, roles, listening } = node;
        let policy = NodePolicy::of_new_node(roles);
        Node { id, name, roles, listening, policy, domain: String::new() }
    };
    let nodes = nodes.into_iter().map(node).collect();
    let token = |token: Token2| {
        let Token2 { public_key, roles, expires_s, used_by } = token;
        TokenRecord { public_key, roles, expires_s, used_by, policy: NodePolicy::of_new_node(roles) }
    };
    let (moves, filesets) = Default::default();
    Ok(ClusterState {
        tokens: state.tokens.into_iter().map(token).collect(),
        last_node: state.last_node,
        metadata: state.metadata.into_iter().collect(),
        promised: promised(state.promised),
        ..ClusterState::new(ClusterMap {
            cluster,
            epoch,
            pools,
            targets,
            chains,
            shards,
            nodes,
            moves,
            filesets,
        })
    })
}

/// Format 1, which had no magic: a map without nodes.
fn decode_1(bytes: &[u8]) -> Result<ClusterState, CodecError> {
    let Map1 { cluster, epoch, pools, targets, chains, shards } = codec::decode(bytes, "cluster map")?;
    let (targets, chains) = placed(targets, chains);
    let nodes = vec![first_node(NodeId(1))];
    let (moves, filesets) = Default::default();
    let map = ClusterMap { cluster, epoch, pools, targets, chains, shards, nodes, moves, filesets };
    Ok(ClusterState::new(map))
}
