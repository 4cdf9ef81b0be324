//! Goal: a mount that was silent after a metadata server was started anew, and had not told yet what it has, is told that its session has ended there, however it comes back. Method: the production service and what
//! serves it, over a simulated disk and with a clock that is set; a session with a file without a name is there, the service is started anew, and nothing is heard of the mount for 25 s.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{SimClock, SimDisk};
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_manager::{Authority, Secrets, draw_key};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::SessionHosts;
use ashlar_rpc::net::{Caller, Peer, TlsIdentity};
use ashlar_rpc::remote::{Granter, Routes};
use ashlar_rpc::serve::{MetaEndpoint, Proofs};
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_storage::StorageService;
use ashlar_types::map::Shard;
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::node::{Roles, SessionOwner};
use ashlar_types::{
    ClusterId, ClusterMap, Credentials, DescriptionId, Epoch, Errno, InodeId, KeySet, Node, NodeId,
    NodePolicy, OpId, PeerId, Role, SecretKey, SessionId, ShardId, Timespec,
};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([3; 16]);
const SERVER: NodeId = NodeId(1);
const MOUNT: NodeId = NodeId(2);

fn peer(node: NodeId, role: Role) -> Peer {
    let id = PeerId { cluster: CLUSTER, node, roles: Roles::default().with(role) };
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

fn map() -> ClusterMap {
    let node = |id: NodeId, role: Role| Node {
        id,
        name: format!("n{}", id.0),
        roles: Roles::default().with(role),
        policy: NodePolicy::trusting(),
        domain: String::new(),
        listening: Vec::new(),
    };
    ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch(1),
        pools: Vec::new(),
        targets: Vec::new(),
        chains: Vec::new(),
        shards: (0..4).map(|id| Shard { id: ShardId(id), primary: SERVER }).collect(),
        nodes: vec![node(SERVER, Role::Meta), node(MOUNT, Role::Client)],
        moves: Default::default(),
        filesets: Vec::new(),
    }
}

/// What outlives a service.
struct Machine {
    disk: SimDisk,
    engine: MemoryEngine,
    env: Env,
    clock: Arc<SimClock>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
}

impl Machine {
    fn new() -> Machine {
        let (env, clock) = Env::simulated(1, Timespec::new(1_700_000_000, 0));
        let map = Arc::new(RwLock::new(Arc::new(map())));
        Machine { disk: SimDisk::new(), engine: MemoryEngine::new(), env, clock, map }
    }

    fn start(&self) -> (Arc<MetaService>, MetaEndpoint) {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let config = LaneConfig { reserve_bytes: 0, segment_bytes: 256 << 10, ..LaneConfig::default() };
        let engine = Box::new(self.engine.clone());
        let config = MetaConfig {
            lane: Lane::open(disk, "lane", engine, &self.env, CLUSTER, config).unwrap(),
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
        let granter = Granter::start(routes, self.env.clone(), (CLUSTER, SERVER), keys).unwrap();
        let proofs = Arc::new(Proofs::new(CLUSTER, &SecretKey([6; 32])));
        let clock = self.env.clock.clone();
        let endpoint = MetaEndpoint::new(meta.clone(), self.map.clone(), clock, granter, proofs);
        (meta, endpoint)
    }
}

fn ask(endpoint: &MetaEndpoint, call: MetaCall<'_>) -> MetaAnswer {
    endpoint.answer(&peer(MOUNT, Role::Client), call).unwrap()
}

/// A mount has a file without a name open, and the service is started anew.
fn started_anew() -> (Machine, SessionId, Arc<MetaService>, MetaEndpoint) {
    let machine = Machine::new();
    let (meta, endpoint) = machine.start();
    let MetaAnswer::Session(session, _) = ask(&endpoint, MetaCall::Open(None)) else { panic!("no session") };
    let (parent, handle) = (InodeId::ROOT, DescriptionId(1));
    let request = MetaRequest::Tmpfile { parent, mode: 0o644, umask: 0, handle };
    let op = OpId { session, sequence: 2 };
    let call = MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
    let opened = ask(&endpoint, call);
    assert!(matches!(opened, MetaAnswer::Opened(MetaReply::Opened { .. }, ..)), "{opened:?}");
    meta.prepare_stop();
    meta.stop().unwrap();
    drop((meta, endpoint));
    let (meta, endpoint) = machine.start();
    assert_eq!(endpoint.sessions(), 1, "it is waited for");
    (machine, session, meta, endpoint)
}

#[test]
fn a_mount_that_was_silent_after_a_start_is_told_that_its_session_has_ended() {
    let (machine, session, _meta, endpoint) = started_anew();
    machine.clock.advance(Duration::from_secs(25));
    endpoint.tidy();
    assert_eq!(endpoint.sessions(), 0, "nothing was heard of it");
    // Its file is gone. Who would go on with the session would never hear of that.
    let again = ask(&endpoint, MetaCall::Open(Some(session)));
    assert!(matches!(again, MetaAnswer::Failed(Errno::ENOTCONN)), "{again:?}");
    let owner = SessionOwner { node: MOUNT, instance: [MOUNT.0 as u8; 16] };
    assert!(endpoint.host(session, owner).is_none(), "nor does it come with a shard from another server");
}

#[test]
fn a_mount_that_comes_in_time_goes_on_with_its_session() {
    let (machine, session, _meta, endpoint) = started_anew();
    machine.clock.advance(Duration::from_secs(15));
    endpoint.tidy();
    let again = ask(&endpoint, MetaCall::Open(Some(session)));
    assert!(matches!(again, MetaAnswer::MustReclaim(_)), "{again:?}");
}
