//! A whole file system in this process over one simulated disk: metadata, one target, and clients.
#![allow(dead_code)] // each test file uses its own part
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_client::{
    Client, ClientConfig, Dropping, Handle, KernelCache, OpenFlags, ResolveCredentials, Who, WriteFlags,
};
use ashlar_env::sim::{SimClock, SimDisk};
use ashlar_env::{Disk, Env, OpenMode};
use ashlar_kv::{Lane, LaneConfig, MemoryEngine};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, SessionGrant, StorageCalls};
use ashlar_storage::StorageService;
use ashlar_types::map::{Chain, ChainCopies, Pool, Shard, Target, TargetState};
use ashlar_types::message::{
    LockKind, LockRange, LockRequest, MetaReply, MetaRequest, SessionEvent, StorageReply, StorageRequest,
};
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Credentials, DescriptionId, Epoch, Errno, FileLayout, InodeId,
    LayoutPolicy, LockOwner, Name, NodeId, OfChains, OpId, PoolId, SessionId, ShardId, TargetId, Timespec,
};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub mod heard;
pub mod missing;

pub const KIB64: usize = 64 << 10;
const TARGET: TargetId = TargetId(1);
const CLUSTER: ClusterId = ClusterId(*b"cluster-of-tests");

struct Nobody;

impl ResolveCredentials for Nobody {
    fn resolve(&self, _: u32, _: &Credentials) -> Option<Credentials> {
        None
    }
}

/// A kernel's pages of one mount, under one lock: held while a page is read or written, and needed to drop any.
#[derive(Default)]
pub struct LockedPages(pub Mutex<()>);

impl KernelCache for LockedPages {
    fn drop_attributes(&self, _: InodeId) {}
    fn drop_content(&self, _: InodeId) {
        drop(self.0.lock());
    }
    fn drop_range(&self, inode: InodeId, _: u64, _: u64) {
        self.drop_content(inode);
    }
    fn begin_to_drop(&self, inode: InodeId, _: u64, _: u64) -> Arc<dyn Dropping> {
        self.drop_content(inode);
        Arc::new(Dropped)
    }
    fn drop_entries(&self, _: InodeId) {}
}

/// A page that was dropped at once.
#[derive(Debug)]
pub struct Dropped;

impl Dropping for Dropped {
    fn wait(&self, _: Duration) -> bool {
        true
    }
    fn is_blocked(&self) -> bool {
        false
    }
}

/// Metadata behind a gate that can be shut for some calls: they wait there, not carried out yet.
pub struct Gate {
    service: Arc<dyn MetaCalls>,
    is_for: fn(&MetaRequest<'_>) -> bool,
    is_shut: AtomicBool,
    has_waiter: AtomicBool,
    answered: AtomicU64,
}

impl Gate {
    /// A gate for the calls that `is_for` names; it is open.
    pub fn new(world: &World, is_for: fn(&MetaRequest<'_>) -> bool) -> Arc<Gate> {
        let (service, is_shut) = (world.meta.clone(), AtomicBool::new(false));
        Arc::new(Gate {
            service,
            is_for,
            is_shut,
            has_waiter: AtomicBool::new(false),
            answered: AtomicU64::new(0),
        })
    }

    pub fn shut(&self) {
        self.is_shut.store(true, SeqCst);
    }

    pub fn open(&self) {
        self.is_shut.store(false, SeqCst);
    }

    /// Waits until a call waits.
    #[track_caller]
    pub fn await_waiter(&self) {
        eventually(|| self.has_waiter.load(SeqCst));
    }

    /// Calls that were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(SeqCst)
    }
}

impl MetaCalls for Gate {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.service.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.service.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if (self.is_for)(&request) {
            while self.is_shut.load(SeqCst) {
                self.has_waiter.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let reply = self.service.call(caller, request);
        self.answered.fetch_add(1, SeqCst);
        reply
    }
}

pub struct World {
    pub disk: SimDisk,
    pub meta: Arc<MetaService>,
    pub storage: Arc<StorageService>,
    /// Stands still unless a test moves it.
    pub clock: Arc<SimClock>,
    env: Env,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    under: Under,
}

/// What metadata is served from.
struct Under {
    lane: Arc<Lane>,
    env: Env,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    /// Targets, as metadata calls them.
    storage: Arc<dyn StorageCalls>,
}

impl Under {
    fn start(&self, has_lost: bool) -> Arc<MetaService> {
        let meta = MetaConfig {
            has_lost,
            keeps_sessions: false,
            lane: self.lane.clone(),
            env: self.env.clone(),
            name_hash_key: [7; 16],
            map: self.map.clone(),
            storage: self.storage.clone(),
            peers: None,
        };
        let policy = LayoutPolicy { chunk_bytes: Some(KIB64 as u32), ..LayoutPolicy::root_default() };
        MetaService::start(meta, RootSettings { policy, ..RootSettings::default() }).unwrap().0
    }
}

/// With targets from 1 to `targets`, each with a chain.
fn map(targets: u16) -> ClusterMap {
    let (pool, node) = (PoolId(0), NodeId(1));
    let target = |number: u16| Target {
        id: TargetId(u32::from(number)),
        uuid: [number as u8; 16],
        node,
        pool,
        state: TargetState::Online,
        path: format!("/t{number}"),
        is_draining: false,
    };
    let chain = |number: u16| Chain {
        id: ChainId(u32::from(number) - 1),
        pool,
        targets: [TargetId(u32::from(number))].into_iter().collect(),
        moving: None,
        copies: None,
    };
    ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch(1),
        pools: vec![Pool { id: pool, name: "default".into() }],
        targets: (1..=targets).map(target).collect(),
        chains: (1..=targets).map(chain).collect(),
        shards: (0..4).map(|id| Shard { id: ShardId(id), primary: node }).collect(),
        nodes: Vec::new(),
        moves: Default::default(),
        filesets: Vec::new(),
    }
}

impl World {
    /// A new file system on a disk of `capacity` bytes that metadata and target share. Nobody collects garbage by itself.
    pub fn new(capacity: u64) -> World {
        World::with_more_targets(capacity, &[])
    }

    /// As [`World::new`], and besides it targets on disks of their own, of `more` bytes.
    pub fn with_more_targets(capacity: u64, more: &[u64]) -> World {
        World::whose_metadata_calls(capacity, more, |storage| storage)
    }

    /// As [`World::with_more_targets`], with metadata that calls what `wrap` makes of the targets.
    pub fn whose_metadata_calls(
        capacity: u64,
        more: &[u64],
        wrap: impl FnOnce(Arc<dyn StorageCalls>) -> Arc<dyn StorageCalls>,
    ) -> World {
        let (env, clock) = Env::simulated(1, Timespec::new(1_700_000_000, 0));
        let disk = SimDisk::new();
        disk.set_capacity(capacity);
        let identity =
            TargetIdentity { cluster: CLUSTER, target: TARGET, uuid: TargetUuid(*b"target-of-tests!") };
        ChunkStore::format(&disk, &identity).unwrap();
        // Metadata runs short below 1 MiB of free space, the target refuses new data below 3 MiB.
        let lane_config = LaneConfig {
            segment_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            flush_interval: Duration::from_millis(10),
            ..LaneConfig::default()
        };
        let config = Config { reserve_for_others_bytes: 2 << 20, ..Config::small() };
        let engine = || Ok(Box::new(MemoryEngine::new()) as Box<dyn ashlar_kv::Engine>);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let (store, _) = ChunkStore::open(shared.clone(), engine, &env, &identity, config).unwrap();
        let lane = Lane::open(shared, "meta", engine().unwrap(), &env, CLUSTER, lane_config).unwrap();
        let storage = Arc::new(StorageService::new());
        storage.add_target(TARGET, Arc::new(store));
        for (target, capacity) in (2..).map(TargetId).zip(more) {
            let disk = SimDisk::new();
            disk.set_capacity(*capacity);
            let uuid = TargetUuid([target.0 as u8; 16]);
            let identity = TargetIdentity { cluster: CLUSTER, target, uuid };
            ChunkStore::format(&disk, &identity).unwrap();
            let (store, _) =
                ChunkStore::open(Arc::new(disk), engine, &env, &identity, Config::small()).unwrap();
            storage.add_target(target, Arc::new(store));
        }
        let map = Arc::new(RwLock::new(Arc::new(map(1 + more.len() as u16))));
        let under = Under {
            lane: Arc::new(lane),
            env: env.clone(),
            map: map.clone(),
            storage: wrap(storage.clone()),
        };
        World { disk, meta: under.start(false), storage, clock, env, map, under }
    }

    /// Has the metadata served by a new service, as after a kill of the last one; all sessions have ended. `has_lost`: as after a power cut.
    pub fn start_metadata_again(&mut self, has_lost: bool) {
        self.meta = self.under.start(has_lost);
    }

    /// Has the pool keep one more chain, with these targets.
    pub fn add_chain_of(&self, targets: &[u32]) -> ChainId {
        let mut map = ClusterMap::clone(&self.map.read());
        let id = ChainId(map.chains.len() as u32);
        let (changed, catching_up, former) = Default::default();
        let copies = Some(ChainCopies { wanted: targets.len() as u8, changed, catching_up, former });
        let targets = targets.iter().copied().map(TargetId).collect();
        map.chains.push(Chain { id, pool: PoolId(0), targets, moving: None, copies });
        *self.map.write() = Arc::new(map);
        id
    }

    /// Makes a pool `name` of the chain of `target`, which leaves the one it was in.
    pub fn make_pool(&self, name: &str, target: TargetId) {
        let mut map = ClusterMap::clone(&self.map.read());
        let id = PoolId(map.pools.len() as u16);
        map.pools.push(Pool { id, name: name.into() });
        map.targets.iter_mut().filter(|found| found.id == target).for_each(|found| found.pool = id);
        let is_of_it = |chain: &&mut Chain| chain.targets.as_slice() == [target];
        map.chains.iter_mut().filter(is_of_it).for_each(|chain| chain.pool = id);
        *self.map.write() = Arc::new(map);
    }

    pub fn client(&self) -> Arc<Client> {
        self.client_over(self.meta.clone())
    }

    /// A client whose calls to metadata go through `meta`.
    pub fn client_over(&self, meta: Arc<dyn MetaCalls>) -> Arc<Client> {
        self.client_through(meta, self.storage.clone())
    }

    /// A client whose calls go through `meta` and `storage`.
    pub fn client_through(&self, meta: Arc<dyn MetaCalls>, storage: Arc<dyn StorageCalls>) -> Arc<Client> {
        self.connect(meta, storage, (false, ashlar_client::WAIT_MIN))
    }

    /// As [`World::client_over`]; calls of one file wait for each other for `wait_max`.
    pub fn client_that_waits(&self, meta: Arc<dyn MetaCalls>, wait_max: Duration) -> Arc<Client> {
        self.connect(meta, self.storage.clone(), (false, wait_max))
    }

    /// As [`World::client_through`]; it goes on in another session when its own has ended.
    pub fn client_that_comes_back(
        &self,
        meta: Arc<dyn MetaCalls>,
        storage: Arc<dyn StorageCalls>,
    ) -> Arc<Client> {
        self.connect(meta, storage, (true, ashlar_client::WAIT_MIN))
    }

    fn connect(
        &self,
        meta: Arc<dyn MetaCalls>,
        storage: Arc<dyn StorageCalls>,
        (comes_back, wait_max): (bool, Duration),
    ) -> Arc<Client> {
        Client::connect(ClientConfig {
            meta,
            storage,
            map: self.map.clone(),
            env: self.env.clone(),
            credentials: Arc::new(Nobody),
            checks_payload: true,
            comes_back,
            wait_max,
        })
        .unwrap()
    }

    /// Leaves `left` bytes free by a file of others.
    pub fn crowd(&self, left: u64) {
        let file = self.disk.open("others", OpenMode::CreateOrOpen).unwrap();
        let free = self.disk.space().unwrap().bytes_free;
        file.allocate(0, file.len().unwrap() + free.saturating_sub(left)).unwrap();
    }

    /// Takes the file of others away.
    pub fn disk_has_room(&self) {
        self.disk.remove("others").unwrap();
    }

    /// Whether the target has chunks of a generation of a file.
    pub fn has_chunks(&self, inode: InodeId, generation: u32) -> bool {
        let request = StorageRequest::Extent { target: TARGET, inode, generation, chains: OfChains::All };
        match self.storage.call(&request, Payload::None).unwrap() {
            StorageReply::Extent(extent) => extent.is_some(),
            other => panic!("{other:?}"),
        }
    }

    /// Units of 512 bytes that the target holds for a generation of a file.
    pub fn blocks(&self, inode: InodeId, generation: u32) -> u64 {
        let request = StorageRequest::Extent { target: TARGET, inode, generation, chains: OfChains::All };
        match self.storage.call(&request, Payload::None).unwrap() {
            StorageReply::Extent(extent) => extent.map_or(0, |(_, _, blocks)| blocks),
            other => panic!("{other:?}"),
        }
    }

    /// Writes until the target has no more space; the files, which hold [`content`] of their number.
    pub fn fill(&self, client: &Client) -> Vec<Arc<Handle>> {
        let mut files = Vec::new();
        loop {
            let file = make(client, &format!("f{}", files.len())).unwrap();
            match write(client, &file, 0, &content(files.len(), 16 * KIB64)) {
                Ok(()) => files.push(file),
                Err(Errno::ENOSPC) => {
                    remove(client, &format!("f{}", files.len())).unwrap();
                    client.release(&file);
                    return files;
                }
                Err(errno) => panic!("{errno}"),
            }
            assert!(files.len() < 1000);
        }
    }
}

pub fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + seed * 31) as u8).collect()
}

pub fn make(client: &Client, name: &str) -> Result<Arc<Handle>, Errno> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let place = (InodeId::ROOT, Name::new(name.as_bytes()).unwrap());
    client.create(&Who::system(), place, (0o644, 0), true, flags).map(|opened| opened.handle)
}

pub fn remove(client: &Client, name: &str) -> Result<(), Errno> {
    client.unlink(&Who::system(), InodeId::ROOT, Name::new(name.as_bytes()).unwrap()).map(|_| ())
}

/// Writes all of `data`, going on where a write was cut short.
pub fn write(client: &Client, file: &Handle, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        done += client.write(file, offset + done as u64, &data[done..], WriteFlags::default())?;
    }
    Ok(())
}

pub fn read(client: &Client, file: &Handle, len: usize) -> Vec<u8> {
    let mut out = vec![0xee; len];
    let got = client.read(file, 0, &mut out).unwrap();
    out.truncate(got);
    out
}

/// Waits until `what` holds, also on a machine that has much else to do.
#[track_caller]
pub fn eventually(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A session that hears nothing and does nothing by itself: for tests that make the calls of a client one by one.
pub struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _: SessionEvent) {}
}

pub fn deaf_session(world: &World) -> SessionId {
    world.meta.open_session(Arc::new(Deaf)).unwrap().session
}

/// One call of a session.
pub fn call(world: &World, session: SessionId, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
    let creds = Credentials::root();
    world.meta.call(Caller::new(OpId { session, sequence: 1 }, &creds), request)
}

/// An inline file that `session` has made, has WRITE on, and was proposed a layout for.
pub fn propose_layout(world: &World, session: SessionId, name: &[u8]) -> (InodeId, FileLayout) {
    let create = MetaRequest::Create {
        parent: InodeId::ROOT,
        name: Name::new(name).unwrap(),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        read: true,
        write: true,
        truncate: false,
        handle: DescriptionId(1),
    };
    let MetaReply::Opened { open, .. } = call(world, session, create).unwrap() else { panic!() };
    let inode = open.attr.inode;
    call(world, session, MetaRequest::AcquireData { inode, write: true, is_writeback: false }).unwrap();
    let (append, kill_set_id, is_writeback) = (false, false, false);
    let write =
        MetaRequest::WriteInline { inode, offset: 0, data: b"before", append, kill_set_id, is_writeback };
    call(world, session, write).unwrap();
    let proposed = call(world, session, MetaRequest::ProposeLayout { inode }).unwrap();
    let MetaReply::Layout { layout, is_bound: false } = proposed else { panic!() };
    (inode, layout)
}

/// Asks for a lock of the whole file without waiting.
pub fn lock(client: &Client, handle: &Handle, owner: u64, is_flock: bool) -> Result<(), Errno> {
    client.lock(handle, lock_request(handle, owner, is_flock))
}

/// The request for an exclusive lock of the whole file.
pub fn lock_request(handle: &Handle, owner: u64, is_flock: bool) -> LockRequest {
    LockRequest {
        inode: handle.file.inode,
        owner: LockOwner(owner),
        pid: 1,
        kind: LockKind::Write,
        range: LockRange { start: 0, end: i64::MAX as u64 },
        is_flock,
    }
}
