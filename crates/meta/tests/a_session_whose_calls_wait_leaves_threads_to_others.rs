//! Goal: the calls of one session that wait, for leases of somebody who is silent or for the vote of a server that hangs, do not take all threads of a server, and come to their end.
//! Method: a service that has as many threads as a server, a session that is deaf and has a lease, one that makes more calls than there are threads which need it back, and one that
//! asks for something else; and the same with a second service that hangs when it is to vote.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::SimDisk;
use ashlar_env::{Disk, Env};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::{
    Caller, LastingSessions, MetaCalls, MetaPeers, Payload, SessionEvents, SessionHosts, StorageCalls,
};
use ashlar_types::map::{Pool, Shard};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SessionEvent, StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    ClusterId, ClusterMap, Credentials, Epoch, Errno, InodeId, Name, NodeId, OpId, PoolId, SessionId, ShardId,
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([3; 16]);
/// As `rpc` has for calls.
const THREADS: usize = 256;
const CALLS: usize = THREADS + 44;
/// Far less than a recall is waited for.
const SOON: Duration = Duration::from_secs(2);

struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _event: SessionEvent) {}
}

impl SessionHosts for Deaf {
    fn host(&self, _: SessionId, _: SessionOwner) -> Option<Arc<dyn SessionEvents>> {
        Some(Arc::new(Deaf))
    }
}

struct Nowhere;

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

/// The way to another server, which hangs when it is to vote.
#[derive(Default)]
struct Hanging {
    other: Mutex<Option<Arc<MetaService>>>,
    hangs: AtomicBool,
    voting: AtomicUsize,
}

/// A question for inode numbers is shorter, a part of a transaction longer.
const PART_BYTES_MIN: usize = 64;

impl MetaPeers for Hanging {
    fn ask(&self, _: NodeId, message: &[u8], _: bool, wait: Duration) -> Result<Vec<u8>, Errno> {
        if self.hangs.load(SeqCst) && message.len() >= PART_BYTES_MIN {
            self.voting.fetch_add(1, SeqCst);
            std::thread::sleep(wait);
            return Err(Errno::EHOSTDOWN);
        }
        let other = self.other.lock().clone().ok_or(Errno::EHOSTDOWN)?;
        other.hear(message, &Deaf)
    }
}

/// Less than a session may have waiting, and more than are there by chance.
const VOTES_MIN: usize = 32;

/// A service behind threads.
struct Server {
    meta: Arc<MetaService>,
    idle: Mutex<usize>,
    freed: Condvar,
    sequence: AtomicU64,
}

impl Server {
    fn start() -> Server {
        Server::start_as(NodeId(1), &[NodeId(1)], Arc::new(Nowhere))
    }

    /// Starts the server `node`; those of `servers` have shards in turn.
    fn start_as(node: NodeId, servers: &[NodeId], peers: Arc<dyn MetaPeers>) -> Server {
        let env = Env::os();
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
        let lane = Lane::open(disk, "lane", Box::new(MemoryEngine::new()), &env, CLUSTER, config).unwrap();
        let primary = |id: u16| servers[usize::from(id) % servers.len()];
        let shards = (0..4).map(|id| Shard { id: ShardId(id), primary: primary(id) }).collect();
        let map = ClusterMap {
            cluster: CLUSTER,
            epoch: Epoch(1),
            pools: vec![Pool { id: PoolId(0), name: "default".into() }],
            targets: Vec::new(),
            chains: Vec::new(),
            shards,
            nodes: Vec::new(),
            moves: Default::default(),
            filesets: Vec::new(),
        };
        let config = MetaConfig {
            lane,
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

    fn open(&self, number: u64) -> SessionId {
        let owner = SessionOwner { node: NodeId(number as u32), instance: [1; 16] };
        self.meta.open_lasting(Some(SessionId(number)), owner, Arc::new(Deaf)).unwrap();
        SessionId(number)
    }

    /// One call by a thread of the server, once there is one.
    fn serve<T>(&self, work: impl FnOnce() -> T) -> T {
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
    fn call(&self, session: SessionId, request: &MetaRequest<'_>) -> Result<MetaReply, Errno> {
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

    fn mkdir(&self, session: SessionId, name: &str) -> Result<InodeId, Errno> {
        self.mkdir_in(session, InodeId::ROOT, name)
    }

    fn mkdir_in(&self, session: SessionId, parent: InodeId, name: &str) -> Result<InodeId, Errno> {
        let name = Name::new(name.as_bytes()).unwrap();
        let request = MetaRequest::Mkdir { parent, name, mode: 0o755, umask: 0 };
        match self.call(session, &request)? {
            MetaReply::Attr { attr, .. } => Ok(attr.inode),
            other => panic!("{other:?}"),
        }
    }

    /// Has a session cache the attributes of the root.
    fn cache_root(&self, session: SessionId) {
        let cached = self.call(session, &MetaRequest::Getattr { inode: InodeId::ROOT });
        assert!(
            matches!(&cached, Ok(MetaReply::Attr { leases, .. }) if leases.has(LeaseSet::ATTR)),
            "{cached:?}"
        );
    }
}

#[test]
fn a_session_with_more_calls_that_wait_than_a_server_has_threads_holds_up_nobody_else() {
    let server = Server::start();
    let (silent, many, other) = (server.open(1), server.open(2), server.open(3));
    let elsewhere = server.mkdir(other, "elsewhere").unwrap();
    server.cache_root(silent);
    let made = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..CALLS {
            let (server, made) = (&server, &made);
            scope.spawn(move || {
                server.mkdir(many, &format!("d{number}")).unwrap();
                made.fetch_add(1, SeqCst);
            });
        }
        // Until they all wait, for the answer or for a thread.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(made.load(SeqCst), 0, "the lease is not given back");
        let asked = Instant::now();
        server.call(other, &MetaRequest::Getattr { inode: elsewhere }).unwrap();
        let took = asked.elapsed();
        assert!(took < SOON, "a call that waits for nobody took {took:?}");
        assert!(*server.idle.lock() >= THREADS / 4, "{} threads are idle", *server.idle.lock());
    });
    // Who is silent was ended, and nobody has waited for the end of another's patience.
    assert_eq!(made.load(SeqCst), CALLS);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_session_that_waits_for_votes_of_a_server_that_hangs_holds_up_nobody_else() {
    let (way, servers) = (Arc::new(Hanging::default()), [NodeId(1), NodeId(2)]);
    let server = Server::start_as(NodeId(1), &servers, way.clone());
    let second = Server::start_as(NodeId(2), &servers, Arc::new(Nowhere));
    *way.other.lock() = Some(second.meta.clone());
    let (many, other) = (server.open(2), server.open(3));
    // Each call in a directory of its own: one that waits for a vote holds its parent. Nobody else has leases on them. Half of the calls wait, more than there are threads.
    let made: Vec<InodeId> =
        (0..5 * CALLS).map(|number| server.mkdir(many, &format!("p{number}")).unwrap()).collect();
    let here: Vec<InodeId> =
        made.into_iter().filter(|inode| inode.home().0 % 2 == 0).take(2 * CALLS).collect();
    assert_eq!(here.len(), 2 * CALLS, "both servers get directories");
    way.hangs.store(true, SeqCst);
    std::thread::scope(|scope| {
        let server = &server;
        // Also when a check fails, so that the threads come to their end.
        let goes = Goes(&way);
        let threads: Vec<_> =
            here[1..].iter().map(|&parent| scope.spawn(move || server.mkdir_in(many, parent, "d"))).collect();
        // Until as many wait for a vote as may.
        let until = Instant::now() + Duration::from_secs(60);
        while way.voting.load(SeqCst) < VOTES_MIN {
            assert!(Instant::now() < until, "{} wait for a vote", way.voting.load(SeqCst));
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(500));
        let asked = Instant::now();
        server.call(other, &MetaRequest::Getattr { inode: here[0] }).unwrap();
        let took = asked.elapsed();
        assert!(took < SOON, "a call that waits for nobody took {took:?}");
        assert!(*server.idle.lock() >= THREADS / 4, "{} threads are idle", *server.idle.lock());
        drop(goes);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
}

/// A server goes on when this ends.
struct Goes<'a>(&'a Hanging);

impl Drop for Goes<'_> {
    fn drop(&mut self) {
        self.0.hangs.store(false, SeqCst);
    }
}
