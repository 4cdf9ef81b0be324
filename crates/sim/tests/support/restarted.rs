//! A metadata service with what serves its calls, over a simulated disk and with a clock that is set, that is started anew.

use ashlar_env::sim::{SimClock, SimDisk};
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_manager::{Authority, Secrets, draw_key};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::net::{Caller, Peer, TlsIdentity};
use ashlar_rpc::remote::{Granter, Routes};
use ashlar_rpc::serve::{MetaEndpoint, Proofs};
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_storage::StorageService;
use ashlar_types::map::{Chain, Pool, Shard, Target, TargetState};
use ashlar_types::node::Roles;
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Epoch, KeySet, Node, NodeId, NodePolicy, PeerId, PoolId, Role, SecretKey,
    ShardId, TargetId, Timespec,
};
use parking_lot::RwLock;
use std::sync::Arc;

const CLUSTER: ClusterId = ClusterId([3; 16]);
pub const SERVER: NodeId = NodeId(1);
/// Mounts.
pub const MOUNT: NodeId = NodeId(2);
pub const OTHER: NodeId = NodeId(3);

fn peer(node: NodeId, role: Role) -> Peer {
    let id = PeerId { cluster: CLUSTER, node, roles: Roles::default().with(role), host: None };
    Peer { id, role, instance: [node.0 as u8; 16], token: None }
}

fn identity() -> TlsIdentity {
    let (key, public) = draw_key().unwrap();
    let (ca_certificate_pem, ca_key_pem) = (String::new(), key.clone());
    let secrets = Secrets { cluster: CLUSTER, name_hash_key: [7; 16], ca_certificate_pem, ca_key_pem };
    let authority = Authority::new(&secrets).unwrap();
    let own = peer(SERVER, Role::Meta).id;
    let certificate = authority.issue(own, &public, Timespec::new(1_700_000_000, 0)).unwrap();
    TlsIdentity::from_pem(&certificate, &key, &certificate).unwrap()
}

/// Three machines; a target that never answers.
fn map() -> ClusterMap {
    let node = |id: NodeId, role: Role| Node {
        id,
        name: format!("n{}", id.0),
        roles: Roles::default().with(role),
        policy: NodePolicy::trusting(),
        domain: String::new(),
        listening: Vec::new(),
    };
    let target = Target {
        id: TargetId(1),
        uuid: [1; 16],
        node: SERVER,
        pool: PoolId(0),
        state: TargetState::Online,
        path: String::new(),
        is_draining: false,
    };
    ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch(1),
        pools: vec![Pool { id: PoolId(0), name: "default".into() }],
        targets: vec![target],
        chains: vec![Chain {
            id: ChainId(1),
            pool: PoolId(0),
            targets: [TargetId(1)].into_iter().collect(),
            moving: None,
            copies: None,
        }],
        shards: (0..4).map(|id| Shard { id: ShardId(id), primary: SERVER }).collect(),
        nodes: vec![node(SERVER, Role::Meta), node(MOUNT, Role::Client), node(OTHER, Role::Client)],
        moves: Default::default(),
        filesets: Vec::new(),
    }
}

/// What outlives a service.
pub struct Machine {
    disk: SimDisk,
    engine: MemoryEngine,
    env: Env,
    pub clock: Arc<SimClock>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
}

impl Machine {
    pub fn new() -> Machine {
        let (env, clock) = Env::simulated(1, Timespec::new(1_700_000_000, 0));
        let map = Arc::new(RwLock::new(Arc::new(map())));
        Machine { disk: SimDisk::new(), engine: MemoryEngine::new(), env, clock, map }
    }

    pub fn start(&self) -> (Arc<MetaService>, MetaEndpoint) {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let config = LaneConfig { reserve_bytes: 0, segment_bytes: 256 << 10, ..LaneConfig::default() };
        let engine = Box::new(self.engine.clone());
        let config = MetaConfig {
            has_lost: false,
            lane: Arc::new(Lane::open(disk, "lane", engine, &self.env, CLUSTER, config).unwrap()),
            env: self.env.clone(),
            name_hash_key: [7; 16],
            map: self.map.clone(),
            keeps_sessions: true,
            storage: Arc::new(StorageService::new()),
            peers: None,
        };
        let (meta, _) = MetaService::start(config, RootSettings::default()).unwrap();
        let identity = Arc::new(RwLock::new(Arc::new(identity())));
        let caller = Arc::new(Caller::new(identity, Role::Meta, [1; 16], Arc::default()));
        let routes = Arc::new(Routes::new(caller, self.map.clone()));
        let keys = KeySet(vec![(1, SecretKey([5; 32]))]);
        let granter = Granter::start(routes, self.env.clone(), (CLUSTER, SERVER), keys, None).unwrap();
        let proofs = Arc::new(Proofs::new(CLUSTER, &SecretKey([6; 32])));
        let clock = self.env.clock.clone();
        let endpoint = MetaEndpoint::new(meta.clone(), self.map.clone(), clock, granter, proofs);
        (meta, endpoint)
    }
}

/// What the mount on `node` is answered.
pub fn ask_as(node: NodeId, endpoint: &MetaEndpoint, call: MetaCall<'_>) -> MetaAnswer {
    endpoint.answer(&peer(node, Role::Client), call).unwrap()
}
