//! Goal: an operation that two metadata servers have a part in happens in both or in neither, whatever of what they say to each other is lost, late or
//! said twice, and whichever of them loses its power when. Method: threads that rename, link, make and remove across two services over simulated disks;
//! in the end the stores of both together must be a sound name space, with nothing under way.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Env};
use ashlar_kv::{KvError, Lane, LaneConfig, LaneReader, MemoryEngine, Snapshot, Visit};
use ashlar_meta::{MetaConfig, MetaService};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_namespace::check::{self, CheckArgs};
use ashlar_rpc::{Caller, LastingSessions, MetaCalls, MetaPeers, SessionEvents};
use ashlar_storage::StorageService;
use ashlar_types::map::{Pool, Shard};
use ashlar_types::message::{Addressee, MetaReply, MetaRequest, RenameFlags, SessionEvent};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    ClusterId, ClusterMap, Credentials, DescriptionId, Epoch, Errno, InodeId, Name, NodeId, OpId, PoolId,
    SessionId, ShardId,
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId([3; 16]);
const HASH_KEY: [u8; 16] = [7; 16];
const SHARDS: u16 = 8;
const SESSION: SessionId = SessionId(77);
const DIRECTORIES: usize = 6;

/// Hears nothing: nobody else has a session.
struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _event: SessionEvent) {}
}

/// Two servers, and what is between them.
struct Site {
    env: Env,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    disks: [(SimDisk, MemoryEngine); 2],
    running: [Mutex<Option<Arc<MetaService>>>; 2],
    dice: SimEntropy,
    /// Whether what servers say to each other gets lost, or is heard twice.
    is_troubled: AtomicBool,
    sequence: AtomicU64,
}

/// What one server has of the other.
struct Wire(std::sync::Weak<Site>);

fn server_of(shard: ShardId) -> usize {
    usize::from(shard.0 % 2)
}

impl MetaPeers for Wire {
    fn ask(&self, shard: ShardId, message: &[u8], _: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        let site = self.0.upgrade().ok_or(Errno::EHOSTDOWN)?;
        let other = site.running[server_of(shard)].lock().clone().ok_or(Errno::EHOSTDOWN)?;
        let trouble = if site.is_troubled.load(SeqCst) { site.dice.below(12) } else { 99 };
        match trouble {
            0 => return Err(Errno::EHOSTDOWN),
            1 => drop(other.hear(message)),
            2 => std::thread::sleep(Duration::from_millis(site.dice.below(20))),
            _ => {}
        }
        let answer = other.hear(message)?;
        if trouble == 3 { Err(Errno::EHOSTDOWN) } else { Ok(answer) }
    }
}

impl Site {
    fn new(seed: u64) -> Arc<Site> {
        let shard = |id: u16| Shard { id: ShardId(id), primary: NodeId(1 + server_of(ShardId(id)) as u32) };
        let map = ClusterMap {
            cluster: CLUSTER,
            epoch: Epoch(1),
            pools: vec![Pool { id: PoolId(0), name: "default".into() }],
            targets: Vec::new(),
            chains: Vec::new(),
            shards: (0..SHARDS).map(shard).collect(),
            nodes: Vec::new(),
        };
        let site = Arc::new(Site {
            env: Env::os(),
            map: Arc::new(RwLock::new(Arc::new(map))),
            disks: [0, 1].map(|_| (SimDisk::new(), MemoryEngine::new())),
            running: Default::default(),
            dice: SimEntropy::new(seed),
            is_troubled: AtomicBool::new(false),
            sequence: AtomicU64::new(1),
        });
        (0..2).for_each(|at| site.start(at));
        site
    }

    fn lane(&self, at: usize) -> Lane {
        let (disk, engine) = &self.disks[at];
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
        Lane::open(disk, "lane", Box::new(engine.clone()), &self.env, CLUSTER, config).unwrap()
    }

    fn start(self: &Arc<Site>, at: usize) {
        let peers: Arc<dyn MetaPeers> = Arc::new(Wire(Arc::downgrade(self)));
        let config = MetaConfig {
            lane: self.lane(at),
            env: self.env.clone(),
            name_hash_key: HASH_KEY,
            map: self.map.clone(),
            keeps_sessions: false,
            storage: Arc::new(StorageService::new()),
            peers: Some((peers, NodeId(1 + at as u32))),
        };
        let (meta, _) = MetaService::start(config, RootSettings::default()).unwrap();
        let owner = SessionOwner { node: NodeId(9), instance: [1; 16] };
        meta.open_lasting(Some(SESSION), owner, Arc::new(Deaf)).unwrap();
        *self.running[at].lock() = Some(meta);
    }

    /// Cuts a server's power, and has it start again.
    fn cut_power(self: &Arc<Site>, at: usize) {
        let before = self.running[at].lock().take().unwrap();
        self.disks[at].0.crash(self.dice.below(u64::MAX));
        // Only for whoever is waiting in it: nothing of it reaches the disk any more.
        let _ = before.stop();
        drop(before);
        self.start(at);
    }

    fn tick(&self) {
        for server in &self.running {
            let server = server.lock().clone();
            if let Some(server) = server {
                server.resume_across();
            }
        }
    }

    fn call(&self, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let Addressee::Home(inode) = request.addressee() else { panic!("{request:?}") };
        let server = self.running[server_of(inode.home())].lock().clone().ok_or(Errno::EHOSTDOWN)?;
        let op = OpId { session: SESSION, sequence: self.sequence.fetch_add(1, SeqCst) };
        server.call(Caller::new(op, &Credentials::root()), request)
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
        let name = |kind: &str| format!("{kind}{}", dice.below(3));
        let directory = || directories[dice.below(directories.len() as u64) as usize];
        let (one, other) = (directory(), directory());
        let (file, to, tree, into) = (name("f"), name("f"), name("t"), name("t"));
        let named = |text| Name::new(str::as_bytes(text)).unwrap();
        let rename = |from_parent, from_name, to_parent, to_name| {
            let flags = if dice.below(4) == 0 { RenameFlags::Exchange } else { RenameFlags::Replace };
            MetaRequest::Rename { from_parent, from_name, to_parent, to_name, flags }
        };
        let mkdir = |parent, name| MetaRequest::Mkdir { parent, name, mode: 0o755, umask: 0 };
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
struct Both<'a>([LaneReader<'a>; 2]);

impl Both<'_> {
    fn of(&self, key: &[u8]) -> &LaneReader<'_> {
        &self.0[server_of(ashlar_namespace::key::shard_of(key))]
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
    let both = Both([lanes[0].read(), lanes[1].read()]);
    for shard in 0..SHARDS {
        let (from, to) = ashlar_namespace::key::table_range(ShardId(shard), b'T');
        both.scan(&from, &to, &mut |key, _| panic!("seed {seed}: still under way: {key:?}")).unwrap();
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

/// Lets `threads` act until `cuts` cuts of power are over; tells how many operations were done.
fn run(seed: u64, threads: u64, cuts: usize) -> u64 {
    let site = Site::new(seed);
    let made: Vec<InodeId> = (0..DIRECTORIES)
        .map(|at| {
            let name = format!("d{at}");
            let name = Name::new(name.as_bytes()).unwrap();
            let made = site.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
            let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
            attr.inode
        })
        .collect();
    let homes: std::collections::BTreeSet<usize> = made.iter().map(|id| server_of(id.home())).collect();
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
        for cut in 0..cuts {
            std::thread::sleep(Duration::from_millis(150 + site.dice.below(150)));
            site.cut_power((cut + seed as usize) % 2);
        }
        is_over.store(true, SeqCst);
    });
    site.is_troubled.store(false, SeqCst);
    for _ in 0..50 {
        site.tick();
        std::thread::sleep(Duration::from_millis(20));
    }
    for server in &site.running {
        let server = server.lock().take().unwrap();
        server.close_session(SESSION);
        server.stop().unwrap();
    }
    require_sound(&site, seed);
    done.load(SeqCst)
}

#[test]
fn with_messages_lost_and_power_cut_the_name_space_stays_sound() {
    for seed in 1..=2 {
        let done = run(seed, 4, 6);
        assert!(done > 50, "seed {seed}: only {done} operations were done");
    }
}
