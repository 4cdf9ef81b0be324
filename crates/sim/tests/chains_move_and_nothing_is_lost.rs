//! Goal: what was written to a chain is there wherever the chain is, while chains go from target to target and come back, whichever storage server is killed or loses its power when, whatever of
//! what servers say to each other and to managers is lost or late, and whether or not a server can keep its maps. Method: threads that write, cut, reserve, delete and read their own files over
//! the storage services of several servers on simulated disks, each with a map that may be late, and the production manager, which is asked late, twice or in vain; after each call the
//! content is known, and in the end it is compared once more and nothing may be left where it does not belong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_chunkstore::{ChunkStore, Config, TargetIdentity, TargetUuid};
use ashlar_coord::local_file::LocalFile;
use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Entropy, Env};
use ashlar_kv::MemoryEngine;
use ashlar_manager::{Manager, ManagerService};
use ashlar_rpc::{MoveAttempt, OtherTargets, Payload, StorageCalls, StoragePeers};
use ashlar_storage::StorageService;
use ashlar_storage::moves::{End, Moves, Outside, Told};
use ashlar_types::map::Move;
use ashlar_types::message::{ManagerReply, ManagerRequest, StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    ChainId, ChunkId, ClusterId, ClusterMap, Epoch, Errno, InodeId, LayoutPolicy, NodeId, OfChains, PeerId,
    Role, TargetId,
};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Storage servers, on nodes 11 and on, with one target each.
const SERVERS: usize = 3;
const FIRST_NODE: u32 = 11;
const CHUNK_BYTES: u32 = LayoutPolicy::CHUNK_BYTES_MIN;
/// Many of a chunk.
const PIECE_BYTES: u32 = 2 * ashlar_types::block_sum::BLOCK_BYTES as u32;
/// Chains that files are on: of the first target's at the beginning.
const CHAINS: u32 = 6;
const CHUNKS: u64 = 3;
/// What is asked in vain for so long is a failure.
const CALL_MAX: Duration = Duration::from_secs(60);

/// One life of a server.
struct Life {
    number: u64,
    is_over: AtomicBool,
    service: Arc<StorageService>,
    moves: Arc<Moves>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    stores: Vec<Arc<ChunkStore>>,
}

struct Server {
    disk: SimDisk,
    engine: MemoryEngine,
    identity: TargetIdentity,
    /// The map that its next start has.
    kept: Arc<Mutex<Arc<ClusterMap>>>,
    life: Mutex<Option<Arc<Life>>>,
}

/// Something that was sent, and has not arrived yet.
type Late = Box<dyn FnOnce() + Send>;

/// All of them, and what is between them.
struct Site {
    env: Env,
    manager: ManagerService,
    cluster: ClusterId,
    servers: Vec<Server>,
    late: Mutex<Vec<Late>>,
    dice: SimEntropy,
    is_troubled: AtomicBool,
    lives: AtomicU64,
}

impl Site {
    fn new(seed: u64) -> Arc<Site> {
        let env = Env::os();
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let draft = Manager::draft(&disk, "", &env).unwrap();
        let cluster = draft.identity.cluster;
        let manager = Manager::create(draft, Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
        let manager = ManagerService::new(manager, env.clone(), String::new()).unwrap();
        let first = Arc::new(manager.map().read().as_ref().clone());
        let servers = (0..SERVERS)
            .map(|at| Server {
                disk: SimDisk::new(),
                engine: MemoryEngine::new(),
                identity: TargetIdentity {
                    cluster,
                    target: TargetId(0),
                    uuid: TargetUuid([at as u8 + 1; 16]),
                },
                kept: Arc::new(Mutex::new(first.clone())),
                life: Mutex::default(),
            })
            .collect();
        let mut site = Site {
            env,
            manager,
            cluster,
            servers,
            late: Mutex::default(),
            dice: SimEntropy::new(seed),
            is_troubled: AtomicBool::new(false),
            lives: AtomicU64::new(0),
        };
        for at in 0..SERVERS {
            let uuid = site.servers[at].identity.uuid.0;
            let (path, pool) = (format!("/{at}"), String::new());
            let reply = site.ask(at, ManagerRequest::NewTarget { uuid, path: path.clone(), pool });
            let ManagerReply::Target(target) = reply else { panic!("{reply:?}") };
            site.servers[at].identity.target = target;
            let targets = vec![(target, uuid, path)];
            let reply = site.ask(at, ManagerRequest::Serve { targets });
            assert!(matches!(reply, ManagerReply::Done), "{reply:?}");
            let Server { disk, identity, .. } = &site.servers[at];
            ChunkStore::format(disk, identity).unwrap();
        }
        let newest = site.newest();
        site.servers.iter().for_each(|server| *server.kept.lock() = newest.clone());
        let site = Arc::new(site);
        (0..SERVERS).for_each(|at| site.start(at));
        site
    }

    fn newest(&self) -> Arc<ClusterMap> {
        self.manager.map().read().clone()
    }

    fn peer(&self, at: usize) -> PeerId {
        let roles = Role::ALL.into_iter().collect();
        PeerId { cluster: self.cluster, node: NodeId(FIRST_NODE + at as u32), roles, host: None }
    }

    fn ask(&self, at: usize, request: ManagerRequest) -> ManagerReply {
        self.manager.call(self.peer(at), None, request)
    }

    fn trouble(&self, of: u64) -> u64 {
        if self.is_troubled.load(SeqCst) { self.dice.below(of) } else { u64::MAX }
    }

    fn start(self: &Arc<Site>, at: usize) {
        let server = &self.servers[at];
        let disk: Arc<dyn Disk> = Arc::new(server.disk.clone());
        let engine = || Ok(Box::new(server.engine.clone()) as Box<dyn ashlar_kv::Engine>);
        let (store, _) =
            ChunkStore::open(disk, engine, &self.env, &server.identity, Config::small()).unwrap();
        let store = Arc::new(store);
        // No manager has answered: the map is the last one that was kept.
        let map = Arc::new(RwLock::new(server.kept.lock().clone()));
        let number = self.lives.fetch_add(1, SeqCst);
        let kept = server.kept.clone();
        let moves = Arc::new_cyclic(|_: &Weak<Moves>| {
            Moves::new(Outside {
                map: map.clone(),
                is_kept: Box::new(move |epoch| kept.lock().epoch >= epoch),
                peers: Arc::new(Wire { site: Arc::downgrade(self), at, life: number }),
                end_move: end_move(Arc::downgrade(self), at, number),
                change_chains: Box::new(|_, _| {}),
                env: self.env.clone(),
                piece_bytes: PIECE_BYTES,
            })
        });
        let service = Arc::new(StorageService::with_moves(moves.clone()));
        moves.take_target(server.identity.target, &store).unwrap();
        service.add_target(server.identity.target, store.clone());
        let life = Life { number, is_over: AtomicBool::new(false), service, moves, map, stores: vec![store] };
        *server.life.lock() = Some(Arc::new(life));
    }

    fn life(&self, at: usize) -> Option<Arc<Life>> {
        self.servers[at].life.lock().clone()
    }

    /// A server's process is killed, or its power cut; it starts again after a while.
    fn kill(self: &Arc<Site>, at: usize, is_power_cut: bool) {
        let life = self.servers[at].life.lock().take().unwrap();
        life.is_over.store(true, SeqCst);
        match is_power_cut {
            true => self.servers[at].disk.crash(self.dice.next_u64()),
            false => self.servers[at].disk.kill_process(),
        }
        // What is left of it reaches neither disks nor others; its threads end.
        std::thread::spawn(move || life.moves.stop());
        std::thread::sleep(Duration::from_millis(self.dice.below(60)));
        self.start(at);
    }

    /// What is late arrives, or some of it; servers get maps, and keep them, or not yet; and what they do by themselves is done.
    fn tick(self: &Arc<Site>) {
        let late: Vec<Late> = {
            let mut late = self.late.lock();
            let count = late.len() as u64;
            if count > 0 && self.trouble(6) % 6 >= 4 { late.drain(..).collect() } else { Vec::new() }
        };
        late.into_iter().for_each(|arrive| arrive());
        let newest = self.newest();
        for (at, server) in self.servers.iter().enumerate() {
            let Some(life) = self.life(at) else { continue };
            let (gets, keeps) = (self.trouble(3) != 0, self.trouble(3) != 0);
            if gets && newest.epoch > life.map.read().epoch {
                if keeps {
                    *server.kept.lock() = newest.clone();
                }
                *life.map.write() = newest.clone();
            } else if keeps {
                let known = life.map.read().clone();
                let mut kept = server.kept.lock();
                if known.epoch > kept.epoch {
                    *kept = known;
                }
            }
            life.moves.turn(&life.service);
            for store in &life.stores {
                // One that has stopped says so to whoever calls it.
                let _ = store.background_tick(64);
            }
        }
        // A manager that is away for a moment begins nothing.
        let _ = self.manager.plan_moves();
    }

    /// An administrator, or a plan, wants a chain to be elsewhere, or where it is after all.
    fn want_a_move(&self) {
        let (chain, to) = (self.dice.below(u64::from(CHAINS)), 1 + self.dice.below(SERVERS as u64) as u32);
        let give_up = self.dice.below(5) == 0;
        let changed = self.manager.manager().change(|state| {
            let since = Epoch(state.map.epoch.0 + 1);
            let chain = &mut state.map.chains[chain as usize];
            if chain.moving.is_some() {
                chain.moving = chain.moving.filter(|_| !give_up);
            } else if chain.targets[0] != TargetId(to) {
                chain.moving = Some(Move { to: TargetId(to), since });
            }
            Ok(())
        });
        changed.unwrap();
    }

    fn report(&self) {
        for at in 0..SERVERS {
            let Some(life) = self.life(at) else { continue };
            let targets: Vec<_> =
                life.moves.count(&life.service, self.servers[at].identity.target).into_iter().collect();
            let reply = self.ask(at, ManagerRequest::ReportTargets { targets });
            assert!(matches!(reply, ManagerReply::Done), "{reply:?}");
        }
    }

    fn server_of(&self, target: TargetId) -> usize {
        self.servers.iter().position(|server| server.identity.target == target).unwrap()
    }

    /// What there is of a chain, for whoever looks for the reason of a failure.
    fn shown(&self, chain: ChainId) -> String {
        let newest = self.newest();
        let servers = (0..SERVERS).map(|at| {
            let own = self.servers[at].identity.target;
            let kept = self.servers[at].kept.lock().epoch;
            self.life(at).map_or_else(
                || format!("{own} is away"),
                |life| {
                    let (map, moves) = (life.map.read().epoch, life.moves.progress(own));
                    let stopped = life.stores[0].stopped();
                    format!(
                        "{own}: life {}, map {map} ({kept} kept), {moves:?}, stopped {stopped:?}",
                        life.number
                    )
                },
            )
        });
        let servers: Vec<_> = servers.collect();
        format!("map {}: {:?}; {}", newest.epoch, newest.chain(chain), servers.join("; "))
    }

    /// A call about a chain as a client makes it: where the chain is by its map, and again until it is answered.
    fn call(&self, chain: ChainId, request: &StorageRequest, mut payload: Payload<'_>) -> StorageReply {
        let until = Instant::now() + CALL_MAX;
        loop {
            let head = self.newest().head(chain).unwrap();
            let life = self.life(self.server_of(head));
            let request = request.clone().at(head);
            let outcome = life.map_or(Err(Errno::EREMCHG), |life| {
                let again = match &mut payload {
                    Payload::None => Payload::None,
                    Payload::Write(data) => Payload::Write(data),
                    Payload::Read(out) => Payload::Read(out),
                };
                let outcome = life.service.call(&request, again);
                // What a process did that was killed meanwhile its caller does not hear.
                if life.is_over.load(SeqCst) { Err(Errno::EREMCHG) } else { outcome }
            });
            let errno = match outcome {
                Ok(reply) => return reply,
                Err(errno @ (Errno::EREMCHG | Errno::EIO | Errno::ENODEV | Errno::ETIMEDOUT)) => errno,
                Err(errno) => panic!("{request:?}: {errno:?}"),
            };
            if Instant::now() > until {
                panic!("{request:?} is answered by nobody: {errno:?}; {}", self.shown(chain));
            }
            std::thread::sleep(Duration::from_millis(1 + self.dice.below(4)));
        }
    }
}

/// A manager, as one life of a server sees it.
fn end_move(site: Weak<Site>, at: usize, life: u64) -> Box<dyn Fn(End) -> Told + Send + Sync> {
    Box::new(move |End { chain, from, since, is_given_up }| {
        let Some(site) = site.upgrade() else { return Told::Unknown };
        if site.life(at).is_none_or(|known| known.number != life) {
            return Told::Unknown;
        }
        let request = ManagerRequest::EndMove { chain, from, since, is_given_up };
        let trouble = site.trouble(10);
        match trouble {
            0 => return Told::NotAsked,
            1 => return Told::Unknown,
            2 => {
                let later = site.clone();
                site.late.lock().push(Box::new(move || drop(later.ask(at, request))));
                return Told::Unknown;
            }
            _ => {}
        }
        match site.ask(at, request) {
            ManagerReply::MoveEnded { .. } if trouble == 3 => Told::Unknown,
            ManagerReply::MoveEnded { is_finished } => Told::Ended { is_finished },
            other => panic!("{other:?}"),
        }
    })
}

/// What one life of a server has of the others.
struct Wire {
    site: Weak<Site>,
    at: usize,
    life: u64,
}

impl OtherTargets for Wire {
    fn call_in_attempt(
        &self,
        number: u64,
        request: &StorageRequest,
        payload: Payload<'_>,
        _: Duration,
    ) -> Result<StorageReply, Errno> {
        let site = self.site.upgrade().ok_or(Errno::ETIMEDOUT)?;
        let is_over = || site.life(self.at).is_none_or(|known| known.number != self.life);
        let mut instance = [0; 16];
        instance[..8].copy_from_slice(&self.life.to_le_bytes());
        let node = NodeId(FIRST_NODE + self.at as u32);
        let from = MoveAttempt { owner: SessionOwner { node, instance }, number };
        let other = site.life(site.server_of(request.target())).ok_or(Errno::ETIMEDOUT)?;
        if is_over() {
            return Err(Errno::ETIMEDOUT);
        }
        let trouble = site.trouble(250);
        if trouble == 0 {
            return Err(Errno::ETIMEDOUT);
        }
        if trouble == 1 {
            // It arrives when nobody waits for it any more, at the process that it was sent to.
            let (request, data) = (
                request.clone(),
                if let Payload::Write(data) = payload { data.to_vec() } else { Vec::new() },
            );
            site.late.lock().push(Box::new(move || {
                let is_write = matches!(request, StorageRequest::Write { .. });
                let payload = if is_write { Payload::Write(&data) } else { Payload::None };
                if !other.is_over.load(SeqCst) {
                    drop(other.service.call_of_peer(from, &request, payload));
                }
            }));
            return Err(Errno::ETIMEDOUT);
        }
        let outcome = other.service.call_of_peer(from, request, payload);
        let is_lost = trouble == 2 || other.is_over.load(SeqCst) || is_over();
        if is_lost { Err(Errno::ETIMEDOUT) } else { outcome }
    }
}

/// A file of one writer, on one chain: what must be in its chunks.
struct File {
    inode: InodeId,
    generation: u32,
    chain: ChainId,
    chunks: Vec<Vec<u8>>,
}

impl File {
    fn new(number: u32) -> File {
        let chain = ChainId(number % CHAINS);
        let chunks = vec![Vec::new(); CHUNKS as usize];
        File { inode: InodeId(1000 + u64::from(number)), generation: 1, chain, chunks }
    }

    fn chunk(&self, index: u64) -> ChunkId {
        ChunkId { inode: self.inode, generation: self.generation, index }
    }

    /// Everything that is done is done durably before it counts: so a power cut takes nothing of it back.
    fn sync(&self, site: &Site) {
        let chains = OfChains::Only([self.chain].into_iter().collect());
        site.call(self.chain, &StorageRequest::Sync { target: TargetId(0), chains }, Payload::None);
    }

    fn act(&mut self, site: &Site, dice: &SimEntropy) {
        let index = dice.below(CHUNKS);
        let (target, chain, chunk_bytes, chunk) = (TargetId(0), self.chain, CHUNK_BYTES, self.chunk(index));
        let at = index as usize;
        match dice.below(10) {
            0..=4 => {
                let (offset, len) = (dice.below(u64::from(CHUNK_BYTES) - 1), 1 + dice.below(9000));
                let len = len.min(u64::from(CHUNK_BYTES) - offset) as usize;
                let fill = dice.next_u64().to_le_bytes();
                let data: Vec<u8> = (0..len).map(|byte| fill[byte % 7] ^ byte as u8).collect();
                let (offset, sums) = (offset as u32, Vec::new());
                let request = StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums };
                // Until it is durable it may have to be made once more.
                self.durably(site, |site| drop(site.call(chain, &request, Payload::Write(&data))));
                let content = &mut self.chunks[at];
                content.resize(content.len().max(offset as usize + len), 0);
                content[offset as usize..offset as usize + len].copy_from_slice(&data);
            }
            5 => {
                let len = dice.below(u64::from(CHUNK_BYTES)).min(self.chunks[at].len() as u64) as u32;
                let request = StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len };
                self.durably(site, |site| drop(site.call(chain, &request, Payload::None)));
                self.chunks[at].truncate(len as usize);
            }
            6 => {
                let (offset, len) =
                    (dice.below(u64::from(CHUNK_BYTES) - 1) as u32, 1 + dice.below(20_000) as u32);
                let len = len.min(CHUNK_BYTES - offset);
                let request = StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset, len };
                self.durably(site, |site| drop(site.call(chain, &request, Payload::None)));
                let (begin, end) = (offset as usize, (offset + len) as usize);
                let content = &mut self.chunks[at];
                let end = end.min(content.len());
                content.get_mut(begin..end).into_iter().for_each(|hole| hole.fill(0));
            }
            7 if dice.below(6) == 0 => {
                // Emptied: its chunks are deleted, and what comes next is of another generation.
                let chains = OfChains::Only([chain].into_iter().collect());
                let (inode, generation, from_index) = (self.inode, self.generation, 0);
                let request =
                    StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
                while matches!(
                    site.call(chain, &request, Payload::None),
                    StorageReply::Deleted { is_done: false, .. }
                ) {}
                self.sync(site);
                self.generation += 1;
                self.chunks.iter_mut().for_each(Vec::clear);
            }
            7 if dice.below(3) == 0 => {
                // Cut to some whole chunks: the others are deleted, and may be written anew.
                let chains = OfChains::Only([chain].into_iter().collect());
                let (inode, generation, from_index) = (self.inode, self.generation, index);
                let request =
                    StorageRequest::DeleteGeneration { target, inode, generation, chains, from_index };
                self.durably(site, |site| {
                    while matches!(
                        site.call(chain, &request, Payload::None),
                        StorageReply::Deleted { is_done: false, .. }
                    ) {}
                });
                self.chunks[at..].iter_mut().for_each(Vec::clear);
            }
            _ => self.check(site, index),
        }
    }

    /// Does `work`, and has it synced; once more if its server was started anew in between.
    fn durably(&self, site: &Site, work: impl Fn(&Site)) {
        loop {
            let lives = || -> Vec<Option<u64>> {
                (0..SERVERS).map(|at| site.life(at).map(|life| life.number)).collect()
            };
            let before = lives();
            work(site);
            self.sync(site);
            if lives() == before {
                return;
            }
        }
    }

    #[track_caller]
    fn check(&self, site: &Site, index: u64) {
        let (target, chain, chunk_bytes, chunk) = (TargetId(0), self.chain, CHUNK_BYTES, self.chunk(index));
        let mut found = vec![0xEE; CHUNK_BYTES as usize];
        let (offset, len, want_sums) = (0, CHUNK_BYTES, false);
        let request = StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums };
        site.call(chain, &request, Payload::Read(&mut found));
        let mut expected = self.chunks[index as usize].clone();
        expected.resize(CHUNK_BYTES as usize, 0);
        if found != expected {
            let at = (0..expected.len()).find(|at| found[*at] != expected[*at]).unwrap();
            panic!("{chunk} on {chain}: byte {at} is {} and was {}", found[at], expected[at]);
        }
    }
}

/// Lets threads work until `kills` servers were killed; tells how many calls were made, and how often chains moved.
fn run(seed: u64, kills: usize) -> (u64, u64) {
    let site = Site::new(seed);
    site.report();
    site.is_troubled.store(true, SeqCst);
    let (is_over, is_quiet, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let threads = 6;
    let at_work = AtomicU64::new(threads);
    let moved = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (site, is_over, done, at_work) = (&site, &is_over, &done, &at_work);
                scope.spawn(move || {
                    /// Also after a panic nobody waits for it.
                    struct AtWork<'a>(&'a AtomicU64);
                    impl Drop for AtWork<'_> {
                        fn drop(&mut self) {
                            self.0.fetch_sub(1, SeqCst);
                        }
                    }
                    let _at_work = AtWork(at_work);
                    let dice = SimEntropy::new(seed * 1000 + thread);
                    let mut file = File::new(thread as u32);
                    while !is_over.load(SeqCst) {
                        file.act(site, &dice);
                        done.fetch_add(1, SeqCst);
                    }
                    file
                })
            })
            .collect();
        scope.spawn(|| {
            let mut heads: Vec<Option<TargetId>> = Vec::new();
            while !is_quiet.load(SeqCst) {
                site.tick();
                let map = site.newest();
                let now: Vec<_> = (0..CHAINS).map(|chain| map.head(ChainId(chain))).collect();
                moved
                    .fetch_add(now.iter().zip(&heads).filter(|(now, was)| now != was).count() as u64, SeqCst);
                heads = now;
                std::thread::sleep(Duration::from_millis(4));
            }
        });
        for kill in 0..kills {
            let wants = 15 + site.dice.below(20);
            let (mut turn, until) = (0, Instant::now() + CALL_MAX);
            // Moves are under way when a server goes: on a slow machine they take their time.
            while turn < wants || moved.load(SeqCst) <= kill as u64 + 1 && Instant::now() < until {
                turn += 1;
                site.want_a_move();
                std::thread::sleep(Duration::from_millis(10 + site.dice.below(20)));
            }
            if at_work.load(SeqCst) < threads {
                // One has failed, and says why when it is waited for.
                break;
            }
            site.kill((kill + seed as usize) % SERVERS, site.dice.below(2) == 0);
            site.report();
        }
        is_over.store(true, SeqCst);
        let files: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_quiet.store(true, SeqCst);
        let files: Vec<File> = files.into_iter().map(|file| file.unwrap()).collect();
        come_to_rest(&site, seed, &files);
    });
    (done.load(SeqCst), moved.load(SeqCst))
}

/// Has moves that are under way end, and looks at everything.
fn come_to_rest(site: &Arc<Site>, seed: u64, files: &[File]) {
    site.is_troubled.store(false, SeqCst);
    std::mem::take(&mut *site.late.lock()).into_iter().for_each(|arrive| arrive());
    let is_settled = || {
        let map = site.newest();
        let is_moving = map.chains.iter().any(|chain| chain.moving.is_some());
        // Nobody gives maps to servers while the files are read below.
        let has_map = |at| site.life(at).is_some_and(|life| life.map.read().epoch == map.epoch);
        !is_moving && (0..SERVERS).all(|at| has_map(at) && left_over(site, &map, at).is_empty())
    };
    let until = Instant::now() + CALL_MAX;
    while !is_settled() {
        site.tick();
        if Instant::now() > until {
            let left: Vec<_> = (0..SERVERS).map(|at| left_over(site, &site.newest(), at)).collect();
            panic!("seed {seed}: chunks stay where their chains are not: {left:?}");
        }
        // What is there is looked for when it is counted.
        site.report();
        std::thread::sleep(Duration::from_millis(10));
    }
    for file in files {
        (0..CHUNKS).for_each(|index| file.check(site, index));
    }
    for at in 0..SERVERS {
        let life = site.life(at).unwrap();
        life.moves.stop();
    }
}

/// Chains of which server `at` has chunks although they are elsewhere.
fn left_over(site: &Site, map: &ClusterMap, at: usize) -> Vec<Option<ChainId>> {
    let (own, life) = (site.servers[at].identity.target, site.life(at).unwrap());
    let bytes = life.stores[0].bytes_by_chain().unwrap();
    bytes.into_keys().filter(|chain| chain.is_none_or(|chain| map.head(chain) != Some(own))).collect()
}

#[test]
fn with_servers_killed_and_messages_lost_every_chain_has_what_was_written_to_it() {
    for seed in 1..=3 {
        let (done, moved) = run(seed, 10);
        assert!(done > 300, "seed {seed}: only {done} calls");
        eprintln!("seed {seed}: {done} calls, chains moved {moved} times");
        assert!(moved > 10, "seed {seed}: chains moved {moved} times only");
    }
}
