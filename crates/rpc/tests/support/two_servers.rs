//! Two storage servers, one of which may answer nothing, and the map that leads to them.

use super::Authority;
use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{Endpoint, Peer, Replier};
use ashlar_types::map::{Chain, Pool, Target, TargetState};
use ashlar_types::node::Listening;
use ashlar_types::{ChainId, ClusterMap, Epoch, Node, NodeId, PoolId, Role, TargetId};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::net::SocketAddr;

/// Takes calls and answers none.
#[derive(Default)]
pub struct Hung(pub Mutex<Vec<Replier>>);

impl Endpoint for Hung {
    fn serve(&self, _: &Peer, _: Frame, replier: Replier) {
        self.0.lock().push(replier);
    }
}

/// Two servers with a target each, and a chain at the first.
pub fn map(authority: &Authority, addresses: [SocketAddr; 2]) -> ClusterMap {
    let node = |(id, address): (u32, SocketAddr)| Node {
        id: NodeId(id),
        name: format!("oss{id}"),
        roles: [Role::Storage].into_iter().collect(),
        policy: Default::default(),
        listening: vec![Listening { role: Role::Storage, addresses: vec![address] }],
        domain: String::new(),
    };
    let target = |id: u32| Target {
        id: TargetId(id),
        uuid: [id as u8; 16],
        node: NodeId(id),
        pool: PoolId(0),
        state: TargetState::Online,
        path: String::new(),
        is_draining: false,
    };
    let chain = Chain {
        id: ChainId(0),
        pool: PoolId(0),
        targets: smallvec![TargetId(1)],
        moving: None,
        copies: None,
    };
    ClusterMap {
        cluster: authority.cluster,
        epoch: Epoch(1),
        pools: vec![Pool { id: PoolId(0), name: "default".into() }],
        targets: vec![target(1), target(2)],
        chains: vec![chain],
        shards: Vec::new(),
        nodes: [(1, addresses[0]), (2, addresses[1])].map(node).into(),
        moves: Default::default(),
        filesets: Vec::new(),
    }
}
