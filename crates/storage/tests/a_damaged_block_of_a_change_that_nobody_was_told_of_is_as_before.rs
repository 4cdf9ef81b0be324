//! Goal: a bit that flips at the head of a chain, in a block of a change that the target behind has not got and nobody was told of, takes nothing away: what was acknowledged before is read, and the caller who
//! asks for the change again gets it. What was acknowledged is never an older block instead. Method: two services, a network that loses writes between them, and disks on which bits flip.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_env::Env;
use ashlar_env::sim::SimDisk;
use ashlar_kv::MemoryEngine;
use ashlar_replication::membership::{Proposer, plan};
use ashlar_rpc::wire::CopyUnder;
use ashlar_rpc::{OtherTargets, Payload, StorageCalls, StoragePeers};
use ashlar_storage::moves::Told;
use ashlar_storage::{Moves, Outside, StorageService};
use ashlar_types::map::{Chain, ChainCopies, Pool, Shard, Target, TargetState};
use ashlar_types::membership::Change;
use ashlar_types::message::{ChainChange, StorageReply, StorageRequest};
use ashlar_types::node::Listening;
use ashlar_types::{
    ChainId, ChunkId, ClusterId, ClusterMap, Epoch, Errno, InodeId, LayoutPolicy, Node, NodeId, PoolId, Role,
    ShardId, TargetId,
};
use parking_lot::{Mutex, RwLock};
use smallvec::smallvec;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const CHAIN: ChainId = ChainId(0);
const CHUNK: ChunkId = ChunkId { inode: InodeId(7), generation: 1, index: 0 };
const CHUNK_BYTES: u32 = LayoutPolicy::CHUNK_BYTES_MIN;
const BLOCK: u32 = 4096;
/// Where the block is that everything is about.
const AT: u32 = 5 * BLOCK;
const WAIT_MAX: Duration = Duration::from_secs(60);

struct Server {
    disk: SimDisk,
    store: Arc<ChunkStore>,
    service: Arc<StorageService>,
    moves: Arc<Moves>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
}

/// Two servers with a target each, what is between them, and a manager.
struct Site {
    servers: Mutex<Vec<Arc<Server>>>,
    map: Mutex<Arc<ClusterMap>>,
    loses_writes: AtomicBool,
    is_over: AtomicBool,
}

struct Wire(Weak<Site>, NodeId);

impl OtherTargets for Wire {
    fn call_in_attempt(
        &self,
        _: u64,
        _: &StorageRequest,
        _: Payload<'_>,
        _: Duration,
    ) -> Result<StorageReply, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn call_of_copy(
        &self,
        under: CopyUnder,
        request: &StorageRequest,
        payload: Payload<'_>,
        _: Duration,
    ) -> Result<StorageReply, Errno> {
        let site = self.0.upgrade().ok_or(Errno::ETIMEDOUT)?;
        if matches!(request, StorageRequest::Write { .. }) && site.loses_writes.load(SeqCst) {
            return Err(Errno::ETIMEDOUT);
        }
        site.server(request.target()).service.call_of_copy(self.1, under, request, payload)
    }
}

fn first_map() -> ClusterMap {
    let node = |at: u32| Node {
        id: NodeId(at),
        name: format!("n{at}"),
        roles: Default::default(),
        policy: Default::default(),
        domain: String::new(),
        listening: vec![Listening { role: Role::Meta, addresses: vec![([127, 0, 0, 1], 1).into()] }],
    };
    let target = |at: u32| Target {
        id: TargetId(at),
        uuid: [at as u8; 16],
        node: NodeId(at),
        pool: PoolId(0),
        state: TargetState::Online,
        path: String::new(),
        is_draining: false,
    };
    let copies = ChainCopies { wanted: 2, changed: Epoch(1), catching_up: smallvec![], former: smallvec![] };
    let targets = smallvec![TargetId(0), TargetId(1)];
    let map = ClusterMap {
        cluster: ClusterId([1; 16]),
        epoch: Epoch(1),
        pools: vec![Pool { id: PoolId(0), name: "main".to_owned() }],
        targets: (0..2).map(target).collect(),
        chains: vec![Chain { id: CHAIN, pool: PoolId(0), targets, moving: None, copies: Some(copies) }],
        shards: vec![Shard { id: ShardId(0), primary: NodeId(0) }],
        nodes: (0..2).map(node).collect(),
        moves: Default::default(),
        filesets: Vec::new(),
    };
    map.check().unwrap();
    map
}

impl Site {
    fn running() -> Running {
        let site = Arc::new(Site {
            servers: Mutex::default(),
            map: Mutex::new(Arc::new(first_map())),
            loses_writes: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let servers = (0..2).map(|at| Arc::new(site.start(at))).collect();
        *site.servers.lock() = servers;
        let turning = site.clone();
        std::thread::spawn(move || {
            while !turning.is_over.load(SeqCst) {
                turning.turn();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Running(site)
    }

    fn start(self: &Arc<Site>, at: u32) -> Server {
        let (disk, env) = (SimDisk::new(), Env::os());
        let identity = TargetIdentity {
            cluster: ClusterId([1; 16]),
            target: TargetId(at),
            uuid: TargetUuid([at as u8; 16]),
        };
        ChunkStore::format(&disk, &identity).unwrap();
        let engine = || Ok(Box::new(MemoryEngine::new()) as Box<dyn ashlar_kv::Engine>);
        let store = ChunkStore::open(Arc::new(disk.clone()), engine, &env, &identity, Config::small());
        let store = Arc::new(store.unwrap().0);
        let map = Arc::new(RwLock::new(self.newest()));
        let manager = Arc::downgrade(self);
        let moves = Arc::new(Moves::new(Outside {
            map: map.clone(),
            is_kept: Box::new(|_| true),
            peers: Arc::new(Wire(Arc::downgrade(self), NodeId(at))),
            end_move: Box::new(|_| Told::NotAsked),
            change_chains: Box::new(move |by, changes| {
                let Some(site) = manager.upgrade() else { return };
                changes.into_iter().for_each(|change| site.change(Proposer::Replica(by), change));
            }),
            env,
            piece_bytes: 2 * BLOCK,
        }));
        let service = Arc::new(StorageService::with_moves(moves.clone()));
        moves.take_target(TargetId(at), &store).unwrap();
        service.add_target(TargetId(at), store.clone());
        Server { disk, store, service, moves, map }
    }

    fn newest(&self) -> Arc<ClusterMap> {
        self.map.lock().clone()
    }

    fn server(&self, target: TargetId) -> Arc<Server> {
        self.servers.lock()[target.0 as usize].clone()
    }

    fn turn(&self) {
        for server in self.servers.lock().clone() {
            *server.map.write() = self.newest();
            server.moves.turn(&server.service);
        }
    }

    /// A manager changes the group.
    fn change(&self, by: Proposer<TargetId>, change: ChainChange) {
        let mut map = self.map.lock();
        let mut next = (**map).clone();
        next.epoch = Epoch(next.epoch.0 + 1);
        let group = next.chains[0].group().unwrap();
        if let Ok(changed) = plan(&group, change.expected, by, change.change, next.epoch) {
            next.chains[0].set_group(&changed);
            *map = Arc::new(next);
        }
    }

    fn in_sync(&self) -> Vec<TargetId> {
        self.newest().chains[0].targets.to_vec()
    }

    /// Has the head carry something out, until that is done or fails.
    fn ask_head(
        &self,
        mut ask: impl FnMut(TargetId) -> Result<StorageReply, Errno>,
    ) -> Result<StorageReply, Errno> {
        let begun = Instant::now();
        loop {
            match ask(self.in_sync()[0]) {
                Err(Errno::EREMCHG) if begun.elapsed() < WAIT_MAX => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                done => return done,
            }
        }
    }

    fn write_once(&self, target: TargetId, offset: u32, data: &[u8]) -> Result<StorageReply, Errno> {
        let request = StorageRequest::Write {
            target,
            chunk: CHUNK,
            chain: CHAIN,
            chunk_bytes: CHUNK_BYTES,
            offset,
            sums: Vec::new(),
        };
        self.server(target).service.call(&request, Payload::Write(data))
    }

    fn write(&self, offset: u32, data: &[u8]) {
        let written = self.ask_head(|head| self.write_once(head, offset, data));
        assert!(written.is_ok(), "{written:?}");
    }

    /// The block, as the head reads it.
    fn read(&self) -> Result<Vec<u8>, Errno> {
        let mut out = vec![0; BLOCK as usize];
        self.ask_head(|head| self.server(head).service.call(&read_request(head), Payload::Read(&mut out)))?;
        Ok(out)
    }

    /// A bit of the block flips on the disk of a target. Its chunk is the first one there.
    fn flip(&self, target: u32) {
        let server = self.server(TargetId(target));
        let bit = u64::from(BLOCK + AT + 100) * 8;
        server.disk.flip_bit(&format!("slabs/{CHUNK_BYTES}/0.slab"), bit).unwrap();
        let mut out = vec![0; BLOCK as usize];
        assert!(server.store.read(CHUNK, CHUNK_BYTES, AT, &mut out).is_err(), "that was another place");
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < WAIT_MAX, "{what}: {:?}", self.newest().chains);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What has left comes back, and has what the other one has.
    fn require_whole(&self, expected: &[u8]) {
        let group = self.newest().chains[0].group().unwrap();
        for target in [TargetId(0), TargetId(1)].into_iter().filter(|target| !group.is_member(*target)) {
            let change = ChainChange { chain: CHAIN, expected: group.epoch, change: Change::Admit(target) };
            self.change(Proposer::Operator, change);
        }
        self.wait_until("both are in sync", || self.in_sync().len() == 2);
        for server in self.servers.lock().iter() {
            let mut out = vec![0; BLOCK as usize];
            server.store.read(CHUNK, CHUNK_BYTES, AT, &mut out).unwrap();
            assert!(out == expected, "one copy has something else");
        }
    }
}

/// Ends what goes on by itself.
struct Running(Arc<Site>);

impl Deref for Running {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
    }
}

fn read_request(target: TargetId) -> StorageRequest {
    StorageRequest::Read {
        target,
        chunk: CHUNK,
        chain: CHAIN,
        chunk_bytes: CHUNK_BYTES,
        offset: AT,
        len: BLOCK,
        want_sums: false,
    }
}

/// The head has a change of a part of the block that was not answered, and the block is damaged there.
fn site_with_an_unheard_change(before: &[u8], change: &[u8]) -> Running {
    let site = Site::running();
    site.write(AT, before);
    site.loses_writes.store(true, SeqCst);
    let head = site.in_sync()[0];
    assert_eq!(site.write_once(head, AT, change), Err(Errno::EREMCHG), "the other one has not made it");
    site.flip(head.0);
    site
}

#[test]
fn what_was_acknowledged_before_is_read_and_the_other_copy_comes_back() {
    let (before, change) = (vec![1; BLOCK as usize], [2; 1000]);
    let site = site_with_an_unheard_change(&before, &change);
    site.loses_writes.store(false, SeqCst);
    assert!(site.read() == Ok(before.clone()), "neither an error nor the change");
    site.require_whole(&before);
}

#[test]
fn whoever_asks_again_for_the_change_gets_it() {
    let (mut after, change) = (vec![1; BLOCK as usize], [2; 1000]);
    let site = site_with_an_unheard_change(&after, &change);
    site.loses_writes.store(false, SeqCst);
    site.write(AT, &change);
    after[..1000].fill(2);
    assert!(site.read() == Ok(after.clone()));
    site.require_whole(&after);
}

#[test]
fn what_was_acknowledged_is_an_error_and_never_what_is_older() {
    let site = Site::running();
    site.write(AT, &[1; BLOCK as usize]);
    site.write(AT, &[2; 1000]);
    // As a disk has it that has lost a write and says nothing.
    site.server(TargetId(1)).store.write(CHUNK, (CHUNK_BYTES, CHAIN), AT, &[1; 1000], None).unwrap();
    site.flip(0);
    for _ in 0..5 {
        // It makes the chunk unsettled; and is before the read, which notes for a while that nobody has it.
        let written = site.write_once(TargetId(0), AT + 1000, &[3; 8]);
        assert!(matches!(written, Err(Errno::EIO | Errno::EREMCHG)), "{written:?}");
        assert_eq!(site.read().map(drop), Err(Errno::EIO));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(site.in_sync(), [TargetId(0), TargetId(1)], "nobody leaves in favour of it");
}
