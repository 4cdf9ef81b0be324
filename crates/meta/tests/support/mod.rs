//! A metadata service behind threads, with sessions that hear nothing, and the way to a second one, which can hang.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::{
    Caller, Hosted, LastingSessions, MetaCalls, MetaPeers, Payload, SessionEvents, SessionHosts, StorageCalls,
};
use ashlar_types::map::Pool;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SessionEvent, StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::testing::map_of_shards;
use ashlar_types::{
    ClusterId, ClusterMap, Credentials, Errno, InodeId, Name, NodeId, OpId, PoolId, SessionId,
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([3; 16]);
/// As `rpc` has for calls.
pub const THREADS: usize = 256;

pub struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _event: SessionEvent) {}
}

impl SessionHosts for Deaf {
    fn host(&self, _: SessionId, _: SessionOwner) -> Hosted {
        Hosted::At(Arc::new(Deaf))
    }
}

pub struct Nowhere;

impl StorageCalls for Nowhere {
    fn call(&self, _: &StorageRequest, _: Payload<'_>) -> Result<StorageReply, Errno> {
        Err(Errno::ENODEV)
    }
}

impl MetaPeers for Nowhere {
    fn ask(&self, _: NodeId, _: &[u8], _: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        Err(Errno::EHOSTDOWN)
    }
}

/// The way to another server, which can hang.
#[derive(Default)]
pub struct Hanging {
    pub other: Mutex<Option<Arc<MetaService>>>,
    pub hangs: AtomicBool,
    /// For messages of so many bytes and more.
    pub hangs_from: AtomicUsize,
    /// How often it was waited for: who looks once more when his time is over does not wait.
    pub waited: AtomicUsize,
}

/// A question for inode numbers is shorter, a part of a transaction longer.
pub const PART_BYTES_MIN: usize = 64;

impl MetaPeers for Hanging {
    fn ask(&self, _: NodeId, message: &[u8], _: bool, wait: Duration) -> Result<Vec<u8>, Errno> {
        if self.hangs.load(SeqCst) && message.len() >= self.hangs_from.load(SeqCst) {
            self.waited.fetch_add(usize::from(wait >= Duration::from_secs(1)), SeqCst);
            std::thread::sleep(wait);
            return Err(Errno::EHOSTDOWN);
        }
        let other = self.other.lock().clone().ok_or(Errno::EHOSTDOWN)?;
        other.hear(message, &Deaf)
    }
}

/// A service behind threads.
pub struct Server {
    pub meta: Arc<MetaService>,
    pub idle: Mutex<usize>,
    freed: Condvar,
    sequence: AtomicU64,
}

impl Server {
    pub fn start() -> Server {
        Server::start_as(NodeId(1), &[NodeId(1)], Arc::new(Nowhere))
    }

    /// Starts the server `node`; those of `servers` have shards in turn.
    pub fn start_as(node: NodeId, servers: &[NodeId], peers: Arc<dyn MetaPeers>) -> Server {
        Server::start_in(Env::os(), node, servers, peers)
    }

    /// The same with a clock, or threads, of a test's own.
    pub fn start_in(env: Env, node: NodeId, servers: &[NodeId], peers: Arc<dyn MetaPeers>) -> Server {
        let primaries: Vec<u32> = servers.iter().map(|server| server.0).cycle().take(4).collect();
        Server::start_with(env, node, &map_of_shards(&primaries, &[]), peers)
    }

    /// The same with a map of a test's own.
    pub fn start_with(env: Env, node: NodeId, map: &ClusterMap, peers: Arc<dyn MetaPeers>) -> Server {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
        let lane = Lane::open(disk, "lane", Box::new(MemoryEngine::new()), &env, CLUSTER, config).unwrap();
        let pools = vec![Pool { id: PoolId(0), name: "default".into() }];
        let map = ClusterMap { cluster: CLUSTER, pools, ..map.clone() };
        let config = MetaConfig {
            has_lost: false,
            lane: Arc::new(lane),
            env,
            name_hash_key: [7; 16],
            map: Arc::new(RwLock::new(Arc::new(map))),
            keeps_sessions: false,
            storage: Arc::new(Nowhere),
            peers: Some((peers, node)),
        };
        let (meta, _) = MetaService::start(config, RootSettings::default()).unwrap();
        Server { meta, idle: Mutex::new(THREADS), freed: Condvar::new(), sequence: AtomicU64::new(1) }
    }

    pub fn open(&self, number: u64) -> SessionId {
        let owner = SessionOwner { node: NodeId(number as u32), instance: [1; 16] };
        self.meta.open_lasting(Some(SessionId(number)), owner, Arc::new(Deaf)).unwrap();
        SessionId(number)
    }

    /// One call by a thread of the server, once there is one.
    pub fn serve<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut idle = self.idle.lock();
        self.freed.wait_while(&mut idle, |idle| *idle == 0);
        *idle -= 1;
        drop(idle);
        let done = work();
        *self.idle.lock() += 1;
        self.freed.notify_one();
        done
    }

    /// A call of a client, which comes again when it is told to.
    pub fn call(&self, session: SessionId, request: &MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let creds = Credentials::root();
        let op = OpId { session, sequence: self.sequence.fetch_add(1, SeqCst) };
        let mut pause = Duration::from_millis(20);
        loop {
            match self.serve(|| self.meta.call(Caller::new(op, &creds), request.clone())) {
                Err(Errno::EHOSTDOWN) => std::thread::sleep(pause),
                answer => return answer,
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    pub fn mkdir(&self, session: SessionId, name: &str) -> Result<InodeId, Errno> {
        self.mkdir_in(session, InodeId::ROOT, name)
    }

    pub fn mkdir_in(&self, session: SessionId, parent: InodeId, name: &str) -> Result<InodeId, Errno> {
        let name = Name::new(name.as_bytes()).unwrap();
        let request = MetaRequest::Mkdir { parent, name, mode: 0o755, umask: 0 };
        match self.call(session, &request)? {
            MetaReply::Attr { attr, .. } => Ok(attr.inode),
            other => panic!("{other:?}"),
        }
    }

    /// Has a session cache the attributes of the root.
    pub fn cache_root(&self, session: SessionId) {
        let cached = self.call(session, &MetaRequest::Getattr { inode: InodeId::ROOT });
        assert!(
            matches!(&cached, Ok(MetaReply::Attr { leases, .. }) if leases.has(LeaseSet::ATTR)),
            "{cached:?}"
        );
    }
}

/// A server goes on when this ends.
pub struct Goes<'a>(pub &'a Hanging);

impl Drop for Goes<'_> {
    fn drop(&mut self) {
        self.0.hangs.store(false, SeqCst);
    }
}

/// Waits until something is so, for a minute at the most.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
