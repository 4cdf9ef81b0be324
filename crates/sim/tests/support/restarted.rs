//! Metadata services with what serves their calls, over simulated disks and with a clock that is set, that are started anew.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{SimClock, SimDisk};
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_manager::{Authority, Secrets, draw_key};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::MetaPeers;
use ashlar_rpc::net::{Caller, Peer, TlsIdentity};
use ashlar_rpc::remote::{Granter, Routes};
use ashlar_rpc::serve::{MetaEndpoint, Proofs};
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_storage::StorageService;
use ashlar_types::map::{Chain, Pool, Shard, Target, TargetState};
use ashlar_types::node::{Listening, Roles};
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Epoch, Errno, KeySet, Node, NodeId, NodePolicy, PeerId, PoolId, Role,
    SecretKey, ShardId, TargetId, Timespec,
};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([3; 16]);
pub const SERVER: NodeId = NodeId(1);
/// Mounts.
pub const MOUNT: NodeId = NodeId(2);
pub const OTHER: NodeId = NodeId(3);
/// The second server, where there are two.
pub const SECOND: NodeId = NodeId(4);

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

/// Four machines; a target that never answers.
fn map() -> ClusterMap {
    let node = |id: NodeId, role: Role| Node {
        id,
        name: format!("n{}", id.0),
        roles: Roles::default().with(role),
        policy: NodePolicy::trusting(),
        domain: String::new(),
        // Metadata servers find each other by it; nobody calls there.
        listening: match role {
            Role::Meta => vec![Listening { role, addresses: vec![([127, 0, 0, 1], 1).into()] }],
            _ => Vec::new(),
        },
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
        nodes: vec![
            node(SERVER, Role::Meta),
            node(MOUNT, Role::Client),
            node(OTHER, Role::Client),
            node(SECOND, Role::Meta),
        ],
        moves: Default::default(),
        filesets: Vec::new(),
    }
}

/// Who serves at each node.
type Serving = Arc<Mutex<BTreeMap<NodeId, Arc<MetaEndpoint>>>>;

/// What servers have of each other.
struct Wire {
    from: NodeId,
    serving: Serving,
}

impl MetaPeers for Wire {
    fn ask(&self, server: NodeId, message: &[u8], _: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        let other = self.serving.lock().get(&server).cloned().ok_or(Errno::EHOSTDOWN)?;
        match other.answer(&peer(self.from, Role::Meta), MetaCall::Peer(message)) {
            Ok(MetaAnswer::Peer(answer)) => Ok(answer),
            Ok(MetaAnswer::Failed(errno)) => Err(errno),
            other => panic!("{other:?}"),
        }
    }
}

/// What outlives a service.
pub struct Machine {
    node: NodeId,
    /// Of servers that know each other.
    serving: Option<Serving>,
    disk: SimDisk,
    engine: MemoryEngine,
    env: Env,
    pub clock: Arc<SimClock>,
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
}

impl Machine {
    pub fn new() -> Machine {
        let (env, clock) = Env::simulated(1, Timespec::new(1_700_000_000, 0));
        let map = Arc::new(RwLock::new(Arc::new(map())));
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        Machine { node: SERVER, serving: None, disk, engine, env, clock, map }
    }

    /// Two, of which the first one has all shards.
    pub fn pair() -> [Machine; 2] {
        let serving = Serving::default();
        let first = Machine { serving: Some(serving.clone()), ..Machine::new() };
        let (disk, engine) = (SimDisk::new(), MemoryEngine::new());
        let (env, clock, map) = (first.env.clone(), first.clock.clone(), first.map.clone());
        let second = Machine { node: SECOND, serving: Some(serving), disk, engine, env, clock, map };
        [first, second]
    }

    /// Starts one of two.
    pub fn start_among(&self) -> (Arc<MetaService>, Arc<MetaEndpoint>) {
        let (meta, endpoint) = self.start();
        let endpoint = Arc::new(endpoint);
        self.serving.as_ref().unwrap().lock().insert(self.node, endpoint.clone());
        (meta, endpoint)
    }

    /// Has the others hear nothing of it any more.
    pub fn part(&self) {
        self.serving.as_ref().unwrap().lock().remove(&self.node);
    }

    pub fn start(&self) -> (Arc<MetaService>, MetaEndpoint) {
        let wire = |serving: &Serving| Wire { from: self.node, serving: serving.clone() };
        let peers =
            self.serving.as_ref().map(|serving| (Arc::new(wire(serving)) as Arc<dyn MetaPeers>, self.node));
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
            peers,
        };
        let (meta, _) = MetaService::start(config, RootSettings::default()).unwrap();
        let identity = Arc::new(RwLock::new(Arc::new(identity())));
        let caller = Arc::new(Caller::new(identity, Role::Meta, [1; 16], Arc::default()));
        let routes = Arc::new(Routes::new(caller, self.map.clone()));
        let keys = KeySet(vec![(1, SecretKey([5; 32]))]);
        let granter = Granter::start(routes, self.env.clone(), (CLUSTER, self.node), keys, None).unwrap();
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
