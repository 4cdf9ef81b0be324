//! Goal: an operation that two metadata servers have a part in happens in both or in neither, whatever of what they say to each other is lost, late or
//! said twice, and whichever of them loses its power when; also while shards go from one to the other. Method: threads that rename, link, make and remove across
//! two services over simulated disks, each with a map that may be late, and a manager whose answers are lost and which carries out questions long after
//! they were asked; in some runs directories are split, before anybody is in them and while others are. In the end the stores of both together must be a sound name space, with nothing under way, and each shard in one of them alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{FaultOp, SimDisk, SimEntropy};
use ashlar_env::{Disk, Env};
use ashlar_kv::{
    Frame, Key, KvError, Lane, LaneConfig, LaneReader, MemoryEngine, Snapshot, Urgency, Visit, WriteSet,
};
use ashlar_meta::{MetaConfig, MetaService, Transferred, Unfinished};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_namespace::check::{self, CheckArgs};
use ashlar_namespace::{Bucket, OpContext, Placement, Txn, key};
use ashlar_rpc::wire::{BackupStep, BackupTold, CLOSED_MAX, MoveState};
use ashlar_rpc::{Caller, Hosted, LastingSessions, MetaCalls, MetaPeers, SessionEvents, SessionHosts};
use ashlar_storage::StorageService;
use ashlar_types::map::Pool;
use ashlar_types::message::{
    Addressee, LeaseSet, MetaReply, MetaRequest, Reclaim, RenameFlags, SessionEvent, SetAttr, SplitDirectory,
    SyncScope,
};
use ashlar_types::node::SessionOwner;
use ashlar_types::testing::map_of_shards;
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Credentials, DescriptionId, Epoch, Errno, InodeId, LayoutPolicy, Name,
    NameHash, NodeId, OpId, PoolId, SessionId, ShardId, Timespec, codec,
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([3; 16]);
const HASH_KEY: [u8; 16] = [7; 16];
const SHARDS: u16 = 8;
const SESSION: SessionId = SessionId(77);
const DIRECTORIES: usize = 6;
/// Runs in which directories are split go on until more steps than that were made.
const STEPS_MIN: u64 = 5;

/// Hears nothing: nobody else has a session.
struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _event: SessionEvent) {}
}

/// Gives back what it is asked for.
struct Hears(std::sync::Weak<Site>, usize);

impl SessionEvents for Hears {
    fn deliver(&self, event: SessionEvent) {
        let (SessionEvent::Recall(recall), Some(site)) = (event, self.0.upgrade()) else { return };
        let at = self.1;
        std::thread::spawn(move || {
            let Some(server) = site.running[at].lock().clone() else { return };
            let op = OpId { session: SESSION, sequence: 0 };
            let done = MetaRequest::RecallDone { inode: recall.inode, id: recall.id };
            let _ = server.call(Caller::new(op, &Credentials::root()), done);
        });
    }
}

impl SessionHosts for Deaf {
    fn host(&self, _: SessionId, _: SessionOwner) -> Hosted {
        Hosted::At(Arc::new(Deaf))
    }
}

/// A question to the manager: shards, from whom, to whom, and by the map of which epoch.
type Question = (Vec<ShardId>, NodeId, NodeId, Epoch);

/// Two servers, and what is between them.
struct Site {
    env: Env,
    /// What the manager has.
    truth: Mutex<ClusterMap>,
    /// Questions that the manager has not heard yet.
    late: Mutex<Vec<Question>>,
    /// Of each server, in its life: what is left of one that has lost its power hears of no newer map.
    maps: [Mutex<Arc<RwLock<Arc<ClusterMap>>>>; 2],
    disks: [(SimDisk, MemoryEngine); 2],
    running: [Mutex<Option<Arc<MetaService>>>; 2],
    dice: SimEntropy,
    /// Whether what servers say to each other gets lost, or is heard twice.
    is_troubled: AtomicBool,
    /// Whether directories are split, and those of which that is known.
    splits: AtomicBool,
    split: Mutex<BTreeMap<InodeId, SplitDirectory>>,
    /// Entries that went to slices in steps, and splits that have ended so.
    moved: AtomicU64,
    ended: AtomicU64,
    sequence: AtomicU64,
    /// As servers are started from now on: directories with more entries are split by themselves; and whether sessions are waited for.
    split_at: AtomicU64,
    keeps_sessions: AtomicBool,
    /// What happens before a server hears the next question but so many. Whoever asks holds nothing then.
    interlude: Mutex<Option<(u32, usize, Interlude)>>,
}

type Interlude = Box<dyn FnOnce(&Site) + Send>;

/// Changes names of a directory, with what takes one away.
type Change = fn(&Site, InodeId, &dyn Fn(&Site, &'static str));

/// What one server has of the other.
struct Wire(std::sync::Weak<Site>);

fn number_of(node: NodeId) -> usize {
    node.0 as usize - 1
}

impl MetaPeers for Wire {
    fn ask(&self, server: NodeId, message: &[u8], is_once: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        let site = self.0.upgrade().ok_or(Errno::EHOSTDOWN)?;
        let other = site.running[number_of(server)].lock().clone().ok_or(Errno::EHOSTDOWN)?;
        if let Some(interlude) = (!is_once).then(|| site.take_interlude(number_of(server))).flatten() {
            interlude(&site);
        }
        let trouble = if site.is_troubled.load(SeqCst) { site.dice.below(12) } else { 99 };
        match trouble {
            0 => return Err(Errno::EHOSTDOWN),
            1 => drop(other.hear(message, &Deaf)),
            2 => std::thread::sleep(Duration::from_millis(site.dice.below(20))),
            _ => {}
        }
        let answer = other.hear(message, &Deaf)?;
        if trouble == 3 { Err(Errno::EHOSTDOWN) } else { Ok(answer) }
    }
}

impl Site {
    fn new(seed: u64) -> Arc<Site> {
        let map = ClusterMap {
            cluster: CLUSTER,
            pools: vec![Pool { id: PoolId(0), name: "default".into() }],
            ..map_of_shards(&[1, 2].repeat(usize::from(SHARDS) / 2), &[1, 2])
        };
        let site = Arc::new(Site {
            env: Env::os(),
            maps: [(); 2].map(|()| Mutex::new(Arc::new(RwLock::new(Arc::new(map.clone()))))),
            truth: Mutex::new(map),
            late: Mutex::default(),
            disks: [0, 1].map(|_| (SimDisk::new(), MemoryEngine::new())),
            running: Default::default(),
            dice: SimEntropy::new(seed),
            is_troubled: AtomicBool::new(false),
            splits: AtomicBool::new(false),
            split: Mutex::default(),
            moved: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            sequence: AtomicU64::new(1),
            split_at: AtomicU64::new(0),
            keeps_sessions: AtomicBool::new(false),
            interlude: Mutex::default(),
        });
        (0..2).for_each(|at| site.start(at));
        site
    }

    fn lane(&self, at: usize) -> Lane {
        let (disk, engine) = &self.disks[at];
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let open = || {
            let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
            Lane::open(disk.clone(), "lane", Box::new(engine.clone()), &self.env, CLUSTER, config)
        };
        // What splits directories may be about to end in the service before.
        let until = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            match open() {
                Err(KvError::Io { .. }) if std::time::Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                lane => return lane.unwrap(),
            }
        }
    }

    fn start(self: &Arc<Site>, at: usize) {
        // As a server's start is told to the manager: what was asked by an older map is not carried out any more.
        {
            let mut truth = self.truth.lock();
            truth.epoch = Epoch(truth.epoch.0 + 1);
            *self.maps[at].lock() = Arc::new(RwLock::new(Arc::new(truth.clone())));
        }
        let peers: Arc<dyn MetaPeers> = Arc::new(Wire(Arc::downgrade(self)));
        let config = MetaConfig {
            has_lost: false,
            lane: Arc::new(self.lane(at)),
            env: self.env.clone(),
            name_hash_key: HASH_KEY,
            map: self.maps[at].lock().clone(),
            keeps_sessions: self.keeps_sessions.load(SeqCst),
            storage: Arc::new(StorageService::new()),
            peers: Some((peers, NodeId(1 + at as u32))),
        };
        let (meta, _) = MetaService::start(config, RootSettings::default()).unwrap();
        meta.split_in_steps(0, 1);
        meta.start_splitter(self.split_at.load(SeqCst)).unwrap();
        let owner = SessionOwner { node: NodeId(9), instance: [1; 16] };
        if !LastingSessions::is_awaiting(&*meta) {
            let hears = Arc::new(Hears(Arc::downgrade(self), at));
            meta.open_lasting(Some(SESSION), owner, hears).unwrap();
        }
        *self.running[at].lock() = Some(meta);
    }

    /// Cuts a server's power, and has it start again.
    fn cut_power(self: &Arc<Site>, at: usize) {
        let before = self.running[at].lock().take().unwrap();
        self.note_splits(&before);
        self.disks[at].0.crash(self.dice.below(u64::MAX));
        // Only for whoever is waiting in it: nothing of it reaches the disk any more.
        let _ = before.stop();
        drop(before);
        self.start(at);
    }

    /// Ends both servers in good order.
    fn stop(&self) {
        let servers = [0, 1].map(|at| self.running[at].lock().take());
        for server in servers.into_iter().flatten() {
            self.note_splits(&server);
            server.stop().unwrap();
        }
    }

    /// A directory at a server, with so many files.
    fn directory_at(&self, server: usize, files: usize) -> InodeId {
        let directory = (0..)
            .find_map(|at| {
                let name = format!("of server {server}: {at} {}", self.sequence.load(SeqCst));
                let name = Name::new(name.as_bytes()).unwrap();
                let made =
                    self.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
                let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
                Some(attr.inode).filter(|inode| self.server_of(inode.home()) == server)
            })
            .unwrap();
        (0..files).for_each(|at| self.create(directory, &format!("f{at}")).unwrap());
        directory
    }

    /// What is to happen before the server hears what it is told now.
    fn take_interlude(&self, server: usize) -> Option<Interlude> {
        let mut interlude = self.interlude.lock();
        let (left, ..) = interlude.as_mut().filter(|(_, whose, _)| *whose == server)?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        interlude.take().map(|(.., interlude)| interlude)
    }

    fn slices(&self, directory: InodeId) -> Result<SplitDirectory, Errno> {
        match self.call_directly(MetaRequest::Slices { directory })? {
            MetaReply::Slices(split) => Ok(split),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until all names of a directory are in slices.
    #[track_caller]
    fn await_split(&self, directory: InodeId) {
        let until = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let split = self.slices(directory).unwrap();
            if !split.slices.is_empty() && split.is_whole() {
                return;
            }
            assert!(std::time::Instant::now() < until, "it is not split: {split:?}");
            self.tick();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Begins to split a directory with many names, and stops the servers in the middle of that.
    fn stop_in_the_middle_of_a_split(&self, directory: InodeId) -> SplitDirectory {
        self.call(MetaRequest::Split { directory, slices: 2, of_new: false }).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(30);
        let split = loop {
            let split = self.slices(directory).unwrap();
            if split.border > 0 {
                break split;
            }
            assert!(std::time::Instant::now() < until, "it does not begin");
        };
        self.stop();
        split
    }

    fn note_splits(&self, server: &MetaService) {
        let splits = server.measures().splits;
        self.moved.fetch_add(splits.entries_moved, SeqCst);
        self.ended.fetch_add(splits.ended, SeqCst);
    }

    /// Waits until entries have gone to slices in steps, and a split has ended so: on a busy machine little happens between cuts.
    fn await_steps(&self) {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let running = |count: fn(&MetaService) -> u64| {
            let servers = self.running.iter().filter_map(|server| server.lock().clone());
            servers.map(|server| count(&server)).sum::<u64>()
        };
        while self.moved.load(SeqCst) + running(|server| server.measures().splits.entries_moved) <= STEPS_MIN
            || self.ended.load(SeqCst) + running(|server| server.measures().splits.ended) == 0
        {
            assert!(std::time::Instant::now() < until, "nothing is split");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn server_of(&self, shard: ShardId) -> usize {
        number_of(self.truth.lock().primary(shard).unwrap())
    }

    /// The manager hears a question.
    fn carry_out(&self, (shards, from, to, seen): &Question) -> Transferred {
        let mut truth = self.truth.lock();
        if shards.iter().all(|shard| truth.primary(*shard) == Some(*to)) {
            return Transferred::Done;
        }
        if truth.epoch != *seen || !shards.iter().all(|shard| truth.primary(*shard) == Some(*from)) {
            return Transferred::Refused(format!("the map is of {}", truth.epoch));
        }
        for shard in shards {
            truth.shards[usize::from(shard.0)].primary = *to;
        }
        truth.epoch = Epoch(truth.epoch.0 + 1);
        Transferred::Done
    }

    fn ask_manager(&self, question: Question) -> Transferred {
        let trouble = if self.is_troubled.load(SeqCst) { self.dice.below(8) } else { 99 };
        match trouble {
            0 => return Transferred::Unknown,
            3 => return Transferred::NotAsked,
            1 => {
                self.late.lock().push(question);
                return Transferred::Unknown;
            }
            _ => {}
        }
        let answer = self.carry_out(&question);
        if trouble == 2 { Transferred::Unknown } else { answer }
    }

    /// The manager hears some of what is late, and servers hear of new maps, or not yet.
    fn spread_maps(&self) {
        let late: Vec<Question> = {
            let mut late = self.late.lock();
            let count = late.len() as u64;
            if count > 0 && self.dice.below(4) == 0 { late.drain(..).collect() } else { Vec::new() }
        };
        late.iter().for_each(|question| drop(self.carry_out(question)));
        for map in &self.maps {
            if !self.is_troubled.load(SeqCst) || self.dice.below(4) == 0 {
                let newest = Arc::new(self.truth.lock().clone());
                let map = map.lock().clone();
                let mut map = map.write();
                if newest.epoch > map.epoch {
                    *map = newest;
                }
            }
        }
    }

    /// Has one of both send and receive, once.
    fn move_shards(&self, at: usize) {
        let Some(server) = self.running[at].lock().clone() else { return };
        let transfer =
            |shards: &[ShardId], from, to, seen| self.ask_manager((shards.to_vec(), from, to, seen));
        server.carry_out_moves(&transfer);
        server.tend_shards().unwrap_or_default();
    }

    /// Waits until something has changed hands since the map of `epoch`.
    fn await_map_after(&self, epoch: Epoch) {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while self.truth.lock().epoch <= epoch {
            assert!(std::time::Instant::now() < until, "nothing moves");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether anything is still to be moved, but what could not be.
    fn is_moving(&self, at: usize) -> bool {
        let server = self.running[at].lock().clone().unwrap();
        server.moves().iter().any(|info| !matches!(info.state, MoveState::Failed(_)))
    }

    /// Whether a directory is still being split.
    fn is_splitting(&self, at: usize) -> bool {
        self.running[at].lock().clone().unwrap().measures().splits.under_way > 0
    }

    /// Wants a shard to be with the other server.
    fn want_a_move(&self) {
        let shard = ShardId(self.dice.below(u64::from(SHARDS)) as u16);
        let from = self.server_of(shard);
        let server = self.running[from].lock().clone();
        // If it has gone meanwhile, it is wanted in vain.
        let (to, asker) = (NodeId(2 - from as u32), SessionOwner { node: NodeId(9), instance: [1; 16] });
        let _ = server.map(|server| LastingSessions::move_shards(&*server, &[shard], to, asker));
    }

    fn tick(&self) {
        self.spread_maps();
        for server in &self.running {
            let server = server.lock().clone();
            if let Some(server) = server {
                server.resume_across();
            }
        }
    }

    /// What callers have heard of is noted as ended a moment later.
    fn end_what_is_decided(&self) {
        for _ in 0..10 {
            self.tick();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A call to where its names are, as a client makes it (`crates/client/src/split.rs`).
    fn call(&self, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let mut has_forgotten = false;
        for _ in 0..6 {
            let (mut routed, mut parents) = (request.clone(), Vec::new());
            for (parent, name) in routed.places().into_iter().flatten() {
                let slice =
                    self.split.lock().get(parent).map(|known| known.slice_of(NameHash::of(name, &HASH_KEY)));
                if let Some(Some(slice)) = slice {
                    parents.push(*parent);
                    *parent = slice;
                }
            }
            match self.call_directly(routed) {
                Err(Errno::EREMOTE) => {
                    for (parent, _) in request.clone().places().into_iter().flatten() {
                        let asked = self.call_directly(MetaRequest::Slices { directory: *parent });
                        if let Ok(MetaReply::Slices(known)) = asked
                            && !known.slices.is_empty()
                        {
                            self.split.lock().insert(*parent, known);
                        }
                    }
                }
                Err(Errno::ESTALE) if !parents.is_empty() && !has_forgotten => {
                    has_forgotten = true;
                    self.split.lock().retain(|directory, _| !parents.contains(directory));
                }
                other => return other,
            }
        }
        Err(Errno::ESTALE)
    }

    fn call_directly(&self, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let Addressee::Home(inode) = request.addressee() else { panic!("{request:?}") };
        let op = OpId { session: SESSION, sequence: self.sequence.fetch_add(1, SeqCst) };
        let mut answer = Err(Errno::EHOSTDOWN);
        // As a client does that is told to come again; not for ever, as a server may be down.
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while std::time::Instant::now() < until {
            let server = self.running[self.server_of(inode.home())].lock().clone();
            let Some(server) = server else { break };
            answer = server.call(Caller::new(op, &Credentials::root()), request.clone());
            if answer != Err(Errno::EHOSTDOWN) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        answer
    }

    fn find(&self, parent: InodeId, name: &str) -> Result<InodeId, Errno> {
        let name = Name::new(name.as_bytes()).unwrap();
        match self.call(MetaRequest::Lookup { parent, name })? {
            MetaReply::Attr { attr, .. } => Ok(attr.inode),
            MetaReply::Elsewhere { inode, .. } => Ok(inode),
            _ => Err(Errno::ENOENT),
        }
    }

    /// One operation on names that others use, too. Whether it is done or refused is all the same here.
    fn act(&self, directories: &[InodeId], dice: &SimEntropy) -> Result<(), Errno> {
        // Where directories are split there are enough names for many steps.
        let names = if self.splits.load(SeqCst) { 6 } else { 3 };
        let name = |kind: &str| format!("{kind}{}", dice.below(names));
        let directory = || directories[dice.below(directories.len() as u64) as usize];
        let (one, other) = (directory(), directory());
        let (file, to, tree, into) = (name("f"), name("f"), name("t"), name("t"));
        let named = |text| Name::new(str::as_bytes(text)).unwrap();
        let rename = |from_parent, from_name, to_parent, to_name| {
            let flags = if dice.below(4) == 0 { RenameFlags::Exchange } else { RenameFlags::Replace };
            MetaRequest::Rename { from_parent, from_name, to_parent, to_name, flags }
        };
        let mkdir = |parent, name| MetaRequest::Mkdir { parent, name, mode: 0o755, umask: 0 };
        if self.splits.load(SeqCst) && dice.below(8) == 0 {
            let (directory, of_new) = (self.find(one, &tree).unwrap_or(one), dice.below(2) == 0);
            return self.call(MetaRequest::Split { directory, slices: 3, of_new }).map(drop);
        }
        match dice.below(9) {
            0 => self.call(mkdir(one, named(&tree))),
            1 => self.call(MetaRequest::Rmdir { parent: one, name: named(&tree) }),
            2 => return self.create(one, &file),
            3 => self.call(MetaRequest::Unlink { parent: one, name: named(&file) }),
            4 | 5 => self.call(rename(one, named(&file), other, named(&to))),
            6 => self.call(rename(one, named(&tree), other, named(&into))),
            7 => {
                let inode = self.find(one, &file)?;
                self.call(MetaRequest::Link { inode, parent: other, name: named(&to) })
            }
            // Into a directory that may be moved itself, perhaps into this one.
            _ => {
                let below = self.find(one, &tree)?;
                self.call(rename(other, named(&into), below, named(&tree)))
            }
        }
        .map(drop)
    }

    fn create(&self, parent: InodeId, name: &str) -> Result<(), Errno> {
        let handle = DescriptionId(self.sequence.fetch_add(1, SeqCst));
        let made = self.call(MetaRequest::Create {
            parent,
            name: Name::new(name.as_bytes()).unwrap(),
            mode: 0o644,
            umask: 0,
            exclusive: false,
            read: true,
            write: true,
            truncate: false,
            handle,
        })?;
        if let MetaReply::Opened { open, .. } = made {
            self.call(MetaRequest::Release { inode: open.attr.inode, handle })?;
        }
        Ok(())
    }
}

/// The stores of both servers, each for its shards.
struct Both<'a>([LaneReader<'a>; 2], &'a Site);

impl Both<'_> {
    fn of(&self, key: &[u8]) -> &LaneReader<'_> {
        &self.0[self.1.server_of(ashlar_namespace::key::shard_of(key))]
    }
}

impl Snapshot for Both<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.of(key).get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.of(from).scan(from, to, visit)
    }
}

#[track_caller]
fn require_sound(site: &Site, seed: u64) -> u64 {
    let lanes = [0, 1].map(|at| site.lane(at));
    let both = Both([lanes[0].read(), lanes[1].read()], site);
    for shard in (0..SHARDS).map(ShardId) {
        let other = &both.0[1 - site.server_of(shard)];
        let prefix = ashlar_namespace::key::shard_prefix(shard);
        let mut visit = |key: &[u8], _: &[u8]| {
            let is_own = ashlar_namespace::key::is_of_server(key);
            assert!(is_own, "seed {seed}: {shard} is at two servers: {}", key.escape_ascii());
            ControlFlow::Continue(())
        };
        other.scan(&prefix, &ashlar_namespace::key::after_prefix(&prefix), &mut visit).unwrap();
    }
    for shard in 0..SHARDS {
        let (from, to) = ashlar_namespace::key::table_range(ShardId(shard), b'T');
        both.scan(&from, &to, &mut |key, _| panic!("seed {seed}: still under way: {key:?}")).unwrap();
        let (from, to) = ashlar_namespace::key::table_range(ShardId(shard), b'H');
        both.scan(&from, &to, &mut |key, _| panic!("seed {seed}: still being split: {key:?}")).unwrap();
    }
    let mut found = Vec::new();
    let mut tell = |finding: check::Finding| {
        found.push(format!("{finding:?}"));
        ControlFlow::Continue(())
    };
    let report = check::check(&both, &CheckArgs::new(SHARDS, &HASH_KEY), &mut tell).unwrap();
    assert!(found.is_empty(), "seed {seed}: {}", found.join("; "));
    report.inodes
}

/// Slices of directories, at both.
fn count_slices(site: &Site) -> usize {
    let lanes = [0, 1].map(|at| site.lane(at));
    let mut slices = 0;
    for (shard, lane) in (0..SHARDS).flat_map(|shard| lanes.iter().map(move |lane| (shard, lane))) {
        let (from, to) = ashlar_namespace::key::table_range(ShardId(shard), b'I');
        let mut visit = |_: &[u8], value: &[u8]| {
            let inode: ashlar_namespace::Inode = ashlar_types::codec::decode(value, "inode").unwrap();
            slices += usize::from(inode.kind.is_slice());
            ControlFlow::Continue(())
        };
        lane.read().scan(&from, &to, &mut visit).unwrap();
    }
    slices
}

/// Waits until all that is under way has come to its end.
fn settle(site: &Arc<Site>, moves: bool) {
    let is_quiet = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_quiet.load(SeqCst) {
                site.tick();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // What is half on its way is given up: its receiver asks after a while.
        let until = std::time::Instant::now() + Duration::from_millis(if moves { 8000 } else { 1000 });
        let unfinished = until + Duration::from_secs(60);
        while std::time::Instant::now() < until
            || (0..2).any(|at| site.is_moving(at))
            || (0..2).any(|at| site.is_splitting(at)) && std::time::Instant::now() < unfinished
        {
            (0..2).filter(|_| moves).for_each(|at| site.move_shards(at));
            std::thread::sleep(Duration::from_millis(5));
        }
        // And what was left behind goes.
        for _ in 0..100 {
            (0..2).filter(|_| moves).for_each(|at| site.move_shards(at));
            std::thread::sleep(Duration::from_millis(5));
        }
        is_quiet.store(true, SeqCst);
    });
}

/// Lets `threads` act until `cuts` cuts of power are over, with shards on the move or not; tells how many operations were done, and how many maps there were.
fn run(seed: u64, threads: u64, cuts: usize, (moves, splits): (bool, bool)) -> (u64, u64) {
    let site = Site::new(seed);
    site.splits.store(splits, SeqCst);
    let made: Vec<InodeId> = (0..DIRECTORIES)
        .map(|at| {
            let name = format!("d{at}");
            let name = Name::new(name.as_bytes()).unwrap();
            let made = site.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
            let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
            attr.inode
        })
        .collect();
    let homes: std::collections::BTreeSet<usize> = made.iter().map(|id| site.server_of(id.home())).collect();
    assert_eq!(homes.len(), 2, "directories are on both");
    site.is_troubled.store(true, SeqCst);
    let (is_over, done, at_work) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(threads));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (site, made, is_over, done, at_work) = (&site, &made, &is_over, &done, &at_work);
            scope.spawn(move || {
                let dice = SimEntropy::new(seed * 1000 + thread);
                while !is_over.load(SeqCst) {
                    done.fetch_add(u64::from(site.act(made, &dice).is_ok()), SeqCst);
                }
                at_work.fetch_sub(1, SeqCst);
            });
        }
        // What was not answered is said again for as long as anybody waits.
        scope.spawn(|| {
            while at_work.load(SeqCst) > 0 {
                site.tick();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        for at in (0..2).filter(|_| moves) {
            let (site, is_over, at_work) = (&site, &is_over, &at_work);
            at_work.fetch_add(1, SeqCst);
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    site.want_a_move();
                    site.move_shards(at);
                    std::thread::sleep(Duration::from_millis(5));
                }
                at_work.fetch_sub(1, SeqCst);
            });
        }
        // Also when something does not come that is waited for: else the others would go on for ever.
        let _ended = OverAtEnd(&is_over);
        for cut in 0..cuts {
            let pause = if moves { 600 } else { 150 };
            let before = site.truth.lock().epoch;
            std::thread::sleep(Duration::from_millis(pause + site.dice.below(pause)));
            if moves {
                site.await_map_after(before);
            }
            site.cut_power((cut + seed as usize) % 2);
        }
        if splits {
            site.await_steps();
        }
        is_over.store(true, SeqCst);
    });
    site.is_troubled.store(false, SeqCst);
    settle(&site, moves);
    for server in &site.running {
        let server = server.lock().take().unwrap();
        site.note_splits(&server);
        server.close_session(SESSION);
        server.stop().unwrap();
    }
    require_sound(&site, seed);
    let (moved, ended) = (site.moved.load(SeqCst), site.ended.load(SeqCst));
    assert_eq!(
        splits,
        moved > STEPS_MIN && ended > 0,
        "seed {seed}: {moved} entries in steps, {ended} splits to the end"
    );
    assert_eq!(splits, count_slices(&site) > 0, "seed {seed}: directories were split, or not");
    (done.load(SeqCst), site.truth.lock().epoch.0)
}

#[test]
fn with_messages_lost_and_power_cut_the_name_space_stays_sound() {
    for seed in 1..=2 {
        let (done, _) = run(seed, 4, 6, (false, false));
        assert!(done > 50, "seed {seed}: only {done} operations were done");
    }
}

#[test]
fn with_shards_on_the_move_besides_nothing_is_lost_or_twice() {
    for seed in 11..=12 {
        let (done, maps) = run(seed, 4, 6, (true, false));
        assert!(done > 50, "seed {seed}: only {done} operations were done");
        // One for each of 8 starts, the rest are moves.
        assert!(maps > 14, "seed {seed}: only {maps} maps");
    }
}

#[test]
fn with_directories_that_are_split_while_they_are_used_each_stays_whole() {
    // `ASHLAR_SEEDS` says how many more, of which every other has shards on the move.
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, more) = (number("ASHLAR_SEED").unwrap_or(1000), number("ASHLAR_SEEDS").unwrap_or(0));
    let more = (first..first + more).map(|seed| (seed, seed % 2 == 0));
    // In the run of 8 almost nothing was split before it was over.
    for (seed, moves) in [(8, true), (21, false), (22, false), (23, true)].into_iter().chain(more) {
        let (done, _) = run(seed, 4, 6, (moves, true));
        assert!(done > 50, "seed {seed}: only {done} operations were done");
    }
}

/// What a call says of the names of two servers that change while it asks for them, is so at one moment. Whatever changes here, the call can do what it is to.
#[test]
fn a_call_is_not_refused_for_what_was_there_at_no_one_moment() {
    let named = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    for (seed, asker) in [(61, 0), (62, 1)] {
        let site = Site::new(seed);
        let (from, to) = (site.directory_at(asker, 0), site.directory_at(1 - asker, 0));
        let unlink =
            move |site: &Site, name| drop(site.call(MetaRequest::Unlink { parent: to, name: named(name) }));
        let changes: [(&str, Change); 3] = [
            ("the target goes", |site, _, unlink| unlink(site, "b")),
            ("the target is another one", |site, to, unlink| {
                unlink(site, "b");
                site.create(to, "b").unwrap();
            }),
            ("a target comes", |site, to, _| site.create(to, "c").unwrap()),
        ];
        let mut happened = 0;
        for ((what, change), name) in changes.into_iter().zip(["b", "b", "c"]) {
            for (questions, asked) in (0..8).map(|turn| (turn / 2, turn as usize % 2)) {
                site.create(from, "a").unwrap();
                site.create(to, "b").unwrap();
                unlink(&site, "c");
                let happen = move |site: &Site| change(site, to, &unlink);
                *site.interlude.lock() = Some((questions, asked, Box::new(happen)));
                let (from_name, to_name, flags) = (named("a"), named(name), RenameFlags::Replace);
                let request =
                    MetaRequest::Rename { from_parent: from, from_name, to_parent: to, to_name, flags };
                let told = site.call(request);
                happened += u32::from(site.interlude.lock().take().is_none());
                assert!(
                    told.is_ok(),
                    "seed {seed}, {what} before {asked} has heard question {questions}: {told:?}"
                );
            }
        }
        assert!(happened >= 3, "{happened}");
        // What is refused for good reason is refused.
        let (from_name, to_name, flags) = (named("a"), named("b"), RenameFlags::Replace);
        let request = MetaRequest::Rename { from_parent: from, from_name, to_parent: to, to_name, flags };
        assert_eq!(site.call(request), Err(Errno::ENOENT));
        settle(&site, false);
        site.stop();
        require_sound(&site, seed);
    }
}

/// While one shard after the other went for longer than a lease is good, sessions dropped all that they had cached of the server that gave them away.
#[test]
fn leases_are_renewed_between_shards_that_go_one_after_the_other_for_long() {
    let site = Site::new(57);
    let server = site.running[0].lock().clone().unwrap();
    let shards: Vec<ShardId> = (0..SHARDS).map(ShardId).filter(|shard| site.server_of(*shard) == 0).collect();
    let asker = SessionOwner { node: NodeId(9), instance: [1; 16] };
    LastingSessions::move_shards(&*server, &shards[..2], NodeId(2), asker).unwrap();
    let transfer = |asked: &[ShardId], from, to, seen| {
        if !asked.is_empty() {
            assert_eq!(server.map_to_renew_by(), None, "it is being decided whose the shard is");
        }
        if asked == [shards[0]] {
            // A manager that takes its time.
            std::thread::sleep(Duration::from_secs(5));
        }
        site.ask_manager((asked.to_vec(), from, to, seen))
    };
    let are_here = || [0, 1].map(|at| site.server_of(shards[at]) == 0);
    let until = Instant::now() + Duration::from_secs(60);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) && Instant::now() < until {
                site.tick();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        while are_here()[0] {
            assert!(Instant::now() < until, "the first one does not go");
            server.carry_out_moves(&transfer);
        }
        let pause = server.carry_out_moves(&transfer);
        assert_eq!(are_here(), [false, true], "the second one waits");
        assert!(server.map_to_renew_by().is_some() && pause > Duration::from_secs(1), "{pause:?}");
        while are_here()[1] {
            assert!(Instant::now() < until, "the second one does not go");
            server.carry_out_moves(&transfer);
        }
        is_over.store(true, SeqCst);
    });
    drop(server);
    site.stop();
}

#[test]
fn a_decision_that_a_power_cut_can_take_back_is_told_to_nobody_who_asks() {
    let site = Site::new(41);
    let make = |at: usize| {
        let name = format!("d{at}");
        let name = Name::new(name.as_bytes()).unwrap();
        let made = site.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
        let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
        attr.inode
    };
    let made: Vec<InodeId> = (0..DIRECTORIES).map(make).collect();
    let at_server = |server: usize| *made.iter().find(|id| site.server_of(id.home()) == server).unwrap();
    let (one, other) = (at_server(0), at_server(1));
    site.create(one, "f").unwrap();
    let tick_for = |turns: usize| {
        for _ in 0..turns {
            site.tick();
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Nothing is to be said about these any more.
    tick_for(50);
    let server = site.running[0].lock().clone().unwrap();
    let op = OpId { session: SESSION, sequence: site.sequence.fetch_add(1, SeqCst) };
    server.call(Caller::new(op, &Credentials::root()), MetaRequest::Sync(SyncScope::All)).unwrap();
    drop(server);
    // What it decides from now on is in its log, and never durable.
    site.disks[0].0.fail_nth(FaultOp::Sync, 1, libc::EIO);
    let name = Name::new(b"f").unwrap();
    let flags = RenameFlags::Replace;
    site.call(MetaRequest::Rename {
        from_parent: one,
        from_name: name,
        to_parent: other,
        to_name: name,
        flags,
    })
    .unwrap();
    tick_for(30);
    site.cut_power(0);
    tick_for(100);
    assert!(site.find(one, "f").is_ok(), "it was taken back");
    assert_eq!(site.find(other, "f"), Err(Errno::ENOENT), "everywhere");
    for server in &site.running {
        let server = server.lock().take().unwrap();
        server.close_session(SESSION);
        server.stop().unwrap();
    }
    require_sound(&site, 41);
}

#[test]
fn a_directory_that_cannot_be_split_to_its_end_holds_up_no_other() {
    let site = Site::new(51);
    let (damaged, second) = (site.directory_at(0, 200), site.directory_at(0, 20));
    let split = site.stop_in_the_middle_of_a_split(damaged);
    let slice = split.slices[1];
    let mut changed = [0, 1].map(|at| (at, site.lane(at)));
    let (_, lane) = changed.iter_mut().find(|(at, _)| *at == site.server_of(slice.home())).unwrap();
    let writes = WriteSet(vec![(key::inode(slice), None)]);
    let frame = Frame {
        shard: slice.home(),
        epoch: Epoch(1),
        op: OpId::default(),
        verb: 0,
        writes,
        reply: Bytes::new(),
    };
    lane.write().commit(vec![frame], Urgency::Normal).unwrap();
    changed.into_iter().for_each(|(_, lane)| lane.close().unwrap());
    site.split_at.store(30, SeqCst);
    (0..2).for_each(|at| site.start(at));
    // One that is asked for, and one that grows large.
    site.call(MetaRequest::Split { directory: second, slices: 3, of_new: false }).unwrap();
    site.await_split(second);
    site.await_split(site.directory_at(0, 31));
    assert!(!site.slices(damaged).unwrap().is_whole(), "that one has to wait");
    // It is tried again and again, and not at each moment.
    let begun = Instant::now();
    while !site.is_splitting(0) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not tried again");
        std::thread::sleep(Duration::from_millis(1));
    }
    site.stop();
}

#[test]
fn a_directory_that_another_server_makes_grow_is_split_where_it_is() {
    let site = Site::new(52);
    site.stop();
    site.split_at.store(20, SeqCst);
    (0..2).for_each(|at| site.start(at));
    let (from, to) = ([site.directory_at(0, 15), site.directory_at(0, 15)], site.directory_at(1, 0));
    for (turn, from_parent) in from.into_iter().enumerate() {
        for at in 0..15 {
            let (old, new) = (format!("f{at}"), format!("moved {turn} {at}"));
            let (from_name, to_name) =
                (Name::new(old.as_bytes()).unwrap(), Name::new(new.as_bytes()).unwrap());
            let flags = RenameFlags::Replace;
            site.call(MetaRequest::Rename { from_parent, from_name, to_parent: to, to_name, flags }).unwrap();
        }
    }
    site.await_split(to);
    assert_eq!(site.slices(to).unwrap().slices.len(), 2);
    site.stop();
    require_sound(&site, 52);
}

#[test]
fn a_split_goes_on_after_a_start_once_all_sessions_have_come_back() {
    let site = Site::new(53);
    let directory = site.directory_at(0, 200);
    let split = site.stop_in_the_middle_of_a_split(directory);
    assert!(!split.is_whole());
    site.keeps_sessions.store(true, SeqCst);
    (0..2).for_each(|at| site.start(at));
    let servers = [0, 1].map(|at| site.running[at].lock().clone().unwrap());
    std::thread::sleep(Duration::from_secs(1));
    for server in &servers {
        assert!(LastingSessions::is_awaiting(&**server));
        assert_eq!(server.measures().splits.entries_moved, 0, "nobody knows yet who has cached what");
    }
    for (at, server) in servers.iter().enumerate() {
        LastingSessions::adopt(&**server, SESSION, Arc::new(Hears(Arc::downgrade(&site), at)));
        let op = OpId { session: SESSION, sequence: site.sequence.fetch_add(1, SeqCst) };
        let incarnation = LastingSessions::incarnation(&**server);
        let done = MetaRequest::Reclaim { server: NodeId(0), incarnation, part: Reclaim::Done };
        server.call(Caller::new(op, &Credentials::root()), done).unwrap();
        assert!(!LastingSessions::is_awaiting(&**server));
    }
    site.await_split(directory);
    drop(servers);
    site.stop();
}

#[test]
fn a_name_is_exchanged_with_one_that_goes_to_a_slice_after_its_directory_was_looked_at() {
    let site = Site::new(56);
    for at_once in [0, 1024] {
        let (here, there) = (site.directory_at(0, 1), site.directory_at(1, 5));
        let splits = move |site: &Site| {
            let server = site.running[1].lock().clone().unwrap();
            server.split_in_steps(at_once, 1);
            let split = MetaRequest::Split { directory: there, slices: 2, of_new: false };
            site.call_directly(split).unwrap();
            site.await_split(there);
        };
        // The first message asks for the directory, the second one for the name in it.
        *site.interlude.lock() = Some((1, 1, Box::new(splits)));
        let (from_name, to_name) = (Name::new(b"f0").unwrap(), Name::new(b"f3").unwrap());
        let (from, to) = (site.find(here, "f0").unwrap(), site.find(there, "f3").unwrap());
        let flags = RenameFlags::Exchange;
        let request = MetaRequest::Rename { from_parent: here, from_name, to_parent: there, to_name, flags };
        let told = site.call(request);
        assert!(matches!(told, Ok(MetaReply::Removed { .. })), "both are there all the time: {told:?}");
        assert!(site.interlude.lock().is_none() && site.slices(there).unwrap().is_whole());
        assert_eq!((site.find(here, "f0"), site.find(there, "f3")), (Ok(to), Ok(from)));
    }
    site.end_what_is_decided();
    site.stop();
    require_sound(&site, 56);
}

#[test]
fn names_are_exchanged_with_those_of_another_server_that_go_to_slices_at_that_moment() {
    let site = Site::new(55);
    let (here, there) = (site.directory_at(0, 1), site.directory_at(1, 150));
    let hash_of = |at: usize| NameHash::of(Name::new(format!("f{at}").as_bytes()).unwrap(), &HASH_KEY);
    let mut names: Vec<usize> = (0..150).collect();
    names.sort_by_key(|at| hash_of(*at));
    site.call(MetaRequest::Split { directory: there, slices: 2, of_new: false }).unwrap();
    let from_name = Name::new(b"f0").unwrap();
    let mut exchanged = 0;
    loop {
        let split = site.slices(there).unwrap();
        // Those that are next.
        let next = names.iter().filter(|at| hash_of(**at).0 >= split.border).take(3);
        let to: Vec<String> = next.map(|at| format!("f{at}")).collect();
        for to in &to {
            let to_name = Name::new(to.as_bytes()).unwrap();
            let flags = RenameFlags::Exchange;
            let request =
                MetaRequest::Rename { from_parent: here, from_name, to_parent: there, to_name, flags };
            let told = site.call(request);
            assert!(told.is_ok(), "{to} is there all the time: {told:?} after {exchanged}");
            exchanged += 1;
        }
        if to.is_empty() {
            break;
        }
    }
    assert!(exchanged > 20, "{exchanged}");
    let to_name = Name::new(b"nothing").unwrap();
    let flags = RenameFlags::Exchange;
    let request = MetaRequest::Rename { from_parent: here, from_name, to_parent: there, to_name, flags };
    assert_eq!(site.call(request), Err(Errno::ENOENT));
    site.await_split(there);
    site.end_what_is_decided();
    site.stop();
    require_sound(&site, 55);
}

/// Looks up a name that is not there.
fn take_lease(site: &Site, parent: InodeId, name: &str) {
    let name = Name::new(name.as_bytes()).unwrap();
    let told = site.call(MetaRequest::Lookup { parent, name });
    assert!(matches!(told, Ok(MetaReply::NoEntry { leases }) if leases.has(LeaseSet::ENTRIES)), "{told:?}");
}

#[test]
fn a_rename_to_another_server_tells_whether_there_is_a_lease_on_the_name() {
    let site = Site::new(54);
    let (from, to) = (site.directory_at(0, 4), site.directory_at(1, 0));
    let rename = |old: &str, new: &str, flags| {
        let (from_name, to_name) = (Name::new(old.as_bytes()).unwrap(), Name::new(new.as_bytes()).unwrap());
        match site.call(MetaRequest::Rename { from_parent: from, from_name, to_parent: to, to_name, flags }) {
            Ok(MetaReply::Removed { leases, .. }) => leases.has(LeaseSet::ENTRIES),
            other => panic!("{other:?}"),
        }
    };
    assert!(!rename("f0", "a", RenameFlags::Replace), "there is none");
    take_lease(&site, to, "b");
    assert!(rename("f1", "b", RenameFlags::Replace));
    assert!(rename("f2", "b", RenameFlags::Exchange), "there is one on both since names were made");
    site.stop();
}

#[test]
fn who_has_a_directory_open_lists_its_slices_whatever_becomes_of_its_mode() {
    let site = Site::new(31);
    let name = Name::new(b"d").unwrap();
    let made = site.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
    let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
    let directory = attr.inode;
    site.call(MetaRequest::Split { directory, slices: 4, of_new: false }).unwrap();
    for at in 0..20 {
        site.create(directory, &format!("f{at}")).unwrap();
    }
    let asked = site.call(MetaRequest::Slices { directory });
    let Ok(MetaReply::Slices(split)) = asked else { panic!("{asked:?}") };
    let servers: std::collections::BTreeSet<usize> =
        split.slices.iter().map(|slice| site.server_of(slice.home())).collect();
    assert_eq!(servers.len(), 2, "slices are on both");
    let user = Credentials { complete: true, ..Credentials::user(500, 500) };
    let call = |request: MetaRequest<'_>| {
        let Addressee::Home(inode) = request.addressee() else { panic!() };
        let op = OpId { session: SESSION, sequence: site.sequence.fetch_add(1, SeqCst) };
        let server = site.running[site.server_of(inode.home())].lock().clone().unwrap();
        server.call(Caller::new(op, &user), request)
    };
    let list = |slice: &InodeId| {
        let request =
            MetaRequest::Readdir { directory: *slice, after: 2, bytes_max: 1 << 16, with_attributes: true };
        match call(request)? {
            MetaReply::Entries { entries, .. } => Ok(entries.len()),
            other => panic!("{other:?}"),
        }
    };
    let handle = DescriptionId(site.sequence.fetch_add(1, SeqCst));
    call(MetaRequest::Open { inode: directory, read: true, write: false, truncate: false, handle }).unwrap();
    let changes = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    site.call(MetaRequest::Setattr { inode: directory, changes }).unwrap();
    let listed: usize = split.slices.iter().map(|slice| list(slice).unwrap()).sum();
    assert_eq!(listed, 20);
    call(MetaRequest::Release { inode: directory, handle }).unwrap();
    assert!(split.slices.iter().all(|slice| list(slice) == Err(Errno::EACCES)), "now it is closed");
}

/// What both servers have kept for a backup, which are closed one after the other; nothing if one was not closed until both were.
fn back_up(site: &Site) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let servers = [0, 1].map(|at| site.running[at].lock().clone().unwrap());
    let backup = site.dice.below(u64::MAX);
    let step = |at: usize, step: BackupStep| LastingSessions::backup(&*servers[at], backup, step).unwrap();
    (0..2).for_each(|at| assert_eq!(step(at, BackupStep::Prepare), BackupTold::Done));
    let first = site.dice.below(2) as usize;
    let closed = [first, 1 - first].map(|at| {
        let told = step(at, BackupStep::Close);
        std::thread::sleep(Duration::from_millis(site.dice.below(40)));
        matches!(told, BackupTold::Closed { .. })
    });
    let is_good =
        closed == [true; 2] && (0..2).all(|at| step(at, BackupStep::Open) == BackupTold::Opened(true));
    let mut all = Vec::new();
    for at in (0..2).filter(|_| is_good) {
        let mut from = Vec::new();
        loop {
            let BackupTold::Pairs(page, is_last) = step(at, BackupStep::Pairs(from)) else {
                panic!("no pairs")
            };
            from = page.last().map(|(key, _)| [key.as_slice(), &[0]].concat()).unwrap_or_default();
            all.extend(page);
            if is_last {
                break;
            }
        }
    }
    (0..2).for_each(|at| assert_eq!(step(at, BackupStep::End), BackupTold::Done));
    is_good.then_some(all)
}

/// Makes a store of a backup, finishes in it what was under way, and has it checked. Tells the names that begin with `prefix`.
#[track_caller]
fn require_backup_sound(pairs: Vec<(Vec<u8>, Vec<u8>)>, prefix: &str) -> Vec<String> {
    let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
    let engine = Box::new(MemoryEngine::new());
    let lane = Lane::open(Arc::new(SimDisk::new()), "lane", engine, &Env::os(), CLUSTER, config).unwrap();
    let frame = |shard, writes| Frame {
        shard,
        epoch: Epoch(1),
        op: OpId::default(),
        verb: 0,
        writes,
        reply: Bytes::new(),
    };
    let mut by_shard: BTreeMap<ShardId, Vec<(Key, Option<Bytes>)>> = BTreeMap::new();
    for (record_key, value) in pairs {
        let change = (Key::from_slice(&record_key), Some(Bytes::from(value)));
        by_shard.entry(key::shard_of(&record_key)).or_default().push(change);
    }
    for (shard, mut writes) in by_shard {
        writes.sort();
        lane.write().commit(vec![frame(shard, WriteSet(writes))], Urgency::Normal).unwrap();
    }
    let shards: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
    let (creds, nowhere) = (Credentials::root(), Nowhere);
    for one in Unfinished::find(&*lane.snapshot().unwrap(), &shards).unwrap() {
        let context = OpContext {
            now: Timespec::new(1, 0),
            creds: &creds,
            session: SessionId(0),
            hash_key: &HASH_KEY,
            placement: &nowhere,
            open_in: &|_| Default::default(),
        };
        let mut writer = lane.write();
        let mut txn = Txn::new(&writer);
        one.finish(&mut txn, &context).unwrap();
        let outcome = txn.finish().unwrap();
        let frames = outcome.writes.into_iter().map(|(shard, writes)| frame(shard, writes)).collect();
        writer.commit(frames, Urgency::Normal).unwrap();
    }
    let (mut found, snapshot) = (Vec::new(), lane.snapshot().unwrap());
    let mut tell = |finding: check::Finding| {
        found.push(format!("{finding:?}"));
        ControlFlow::Continue(())
    };
    check::check(&*snapshot, &CheckArgs::new(SHARDS, &HASH_KEY), &mut tell).unwrap();
    assert!(found.is_empty(), "{}", found.join("; "));
    let mut names = Vec::new();
    for shard in shards {
        let (from, to) = key::table_range(shard, b'D');
        let mut visit = |_: &[u8], value: &[u8]| {
            let bucket: Bucket = codec::decode(value, "bucket").unwrap();
            let all = bucket.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
            names.extend(all.filter(|name| name.starts_with(prefix)));
            ControlFlow::Continue(())
        };
        snapshot.scan(&from, &to, &mut visit).unwrap();
    }
    drop(snapshot);
    lane.close().unwrap();
    names
}

/// Nothing is made.
struct Nowhere;

impl Placement for Nowhere {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        parent.home()
    }

    fn chains_for_file(&self, _: &LayoutPolicy) -> smallvec::SmallVec<[ChainId; 4]> {
        Default::default()
    }
}

/// Ends what goes on, however the test ends.
struct OverAtEnd<'a>(&'a AtomicBool);

impl Drop for OverAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn what_servers_keep_for_a_backup_is_of_one_moment() {
    let site = Site::new(21);
    let made: Vec<InodeId> = (0..DIRECTORIES)
        .map(|at| {
            let name = format!("d{at}");
            let name = Name::new(name.as_bytes()).unwrap();
            let made = site.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
            let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
            attr.inode
        })
        .collect();
    site.is_troubled.store(true, SeqCst);
    let (is_over, at_work) = (AtomicBool::new(false), AtomicU64::new(4));
    let good = std::thread::scope(|scope| {
        for thread in 0..4 {
            let (site, made, is_over, at_work) = (&site, &made, &is_over, &at_work);
            scope.spawn(move || {
                let dice = SimEntropy::new(2100 + thread);
                // What is removed only once its successor is there, at the other server: one of both is always there.
                let mut number = 0usize;
                let place = |number: usize| (made[number % 2], format!("n{thread}-{number}"));
                let make = |number: usize| {
                    let (parent, name) = place(number);
                    while site.create(parent, &name).is_err() && !is_over.load(SeqCst) {}
                };
                make(0);
                while !is_over.load(SeqCst) {
                    if thread > 1 {
                        let _ = site.act(made, &dice);
                        continue;
                    }
                    make(number + 1);
                    let (parent, name) = place(number);
                    let name = Name::new(name.as_bytes()).unwrap();
                    let gone = |done: Result<MetaReply, Errno>| done.is_ok() || done == Err(Errno::ENOENT);
                    while !gone(site.call(MetaRequest::Unlink { parent, name })) && !is_over.load(SeqCst) {}
                    number += 1;
                }
                at_work.fetch_sub(1, SeqCst);
            });
        }
        scope.spawn(|| {
            while at_work.load(SeqCst) > 0 {
                site.tick();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        // Also when a backup is found to be none: else the others would go on for ever.
        let _ended = OverAtEnd(&is_over);
        std::thread::sleep(Duration::from_millis(300));
        let mut good = 0;
        for _ in 0..40 {
            let Some(pairs) = back_up(&site) else { continue };
            good += 1;
            let names = require_backup_sound(pairs, "n");
            for thread in 0..4 {
                let of_thread = names.iter().filter(|name| name.starts_with(&format!("n{thread}-"))).count();
                assert!((1..=2).contains(&of_thread), "{thread}: {names:?}");
            }
        }
        good
    });
    assert!(good >= 10, "only {good} of 40 backups were good");
    for server in &site.running {
        server.lock().take().unwrap().stop().unwrap();
    }
}

#[test]
fn a_server_that_is_not_told_to_go_on_does_so_by_itself_and_says_so() {
    let site = Site::new(22);
    let server = site.running[0].lock().clone().unwrap();
    let step = |step: BackupStep| LastingSessions::backup(&*server, 5, step);
    assert!(matches!(step(BackupStep::Close).unwrap(), BackupTold::Closed { .. }));
    assert!(matches!(step(BackupStep::Close).unwrap(), BackupTold::Closed { .. }), "asked for once more");
    let other = LastingSessions::backup(&*server, 6, BackupStep::Close).unwrap();
    assert!(matches!(other, BackupTold::NotNow(_)), "one at a time");
    let look = MetaRequest::Getattr { inode: InodeId::ROOT };
    let ask = || {
        server.call(Caller::new(OpId { session: SESSION, sequence: 9 }, &Credentials::root()), look.clone())
    };
    assert_eq!(ask(), Err(Errno::EHOSTDOWN), "nobody is served");
    let begin = std::time::Instant::now();
    while ask() == Err(Errno::EHOSTDOWN) {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(begin.elapsed() > CLOSED_MAX / 2);
    assert_eq!(step(BackupStep::Open), Ok(BackupTold::Opened(false)));
    assert_eq!(step(BackupStep::Pairs(Vec::new())), Err(Errno::ENOENT), "it is none");
    assert_eq!(step(BackupStep::End), Ok(BackupTold::Done));
    server.stop().unwrap();
}
