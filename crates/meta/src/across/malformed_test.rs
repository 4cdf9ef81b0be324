//! Goal: nothing that another metadata server says, however malformed or senseless, makes one panic or hang, is answered at length, damages what it has, or keeps its next
//! start from coming up. Method: two servers that have half of the shards each; everything that one can say to the other, encoded with some of its fields changed, or
//! with counts and names that nobody has, is heard by one of them; in between parts are let go, shards that come are given up, and calls that both have a part in must
//! be done. In the end the stores of both are one sound name space, also after another start.

use super::message::{Answer, Hold, Moving, Refusal, Say};
use crate::{MetaConfig, MetaService};
use ashlar_env::sim::{SimDisk, SimEntropy};
use ashlar_env::{Disk, Env};
use ashlar_kv::{Key, KvError, Lane, LaneConfig, LaneReader, MemoryEngine, Snapshot, Visit};
use ashlar_namespace::bootstrap::RootSettings;
use ashlar_namespace::check::{self, CheckArgs};
use ashlar_namespace::lock::{LockHeld, LockWaiting};
use ashlar_namespace::record::{Account, KeptReply};
use ashlar_namespace::{Charge, Intent, ShardChange, key};
use ashlar_replication::transaction::{Message, Part, Ticket, TransactionId};
use ashlar_rpc::{Caller, Hosted, LastingSessions, MetaCalls, MetaPeers, SessionEvents, SessionHosts};
use ashlar_types::codec::{decode, encode};
use ashlar_types::map::Pool;
use ashlar_types::message::{
    Addressee, LeaseSet, LockKind, LockRange, LockRequest, MetaReply, MetaRequest, RenameFlags, SessionEvent,
};
use ashlar_types::node::SessionOwner;
use ashlar_types::testing::{map_of_shards, mutated};
use ashlar_types::{
    ClusterId, ClusterMap, Credentials, DescriptionId, Epoch, Errno, FilesetId, InodeId, LockOwner, Name,
    NameHash, NodeId, OpId, PoolId, SessionId, ShardId, Timespec,
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const CLUSTER: ClusterId = ClusterId([3; 16]);
const HASH_KEY: [u8; 16] = [7; 16];
const SHARDS: u16 = 8;
const SESSION: SessionId = SessionId(77);
const ROUNDS: usize = 10_000;
/// Messages after which all is brought to its end, and calls must be done.
const ROUNDS_PER_BATCH: usize = 250;
/// No answer is longer, whatever was asked.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// For how long what is under way may take to end.
const END_MAX: Duration = Duration::from_secs(30);
/// The mode of a file that everybody may read.
const REGULAR: u32 = 0o100_644;

/// Gives back what it is asked for.
struct Hears(Weak<Site>, usize);

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

struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _: SessionEvent) {}
}

impl SessionHosts for Deaf {
    fn host(&self, _: SessionId, _: SessionOwner) -> Hosted {
        Hosted::At(Arc::new(Deaf))
    }
}

struct Nowhere;

impl ashlar_rpc::StorageCalls for Nowhere {
    fn call(
        &self,
        _: &ashlar_types::message::StorageRequest,
        _: ashlar_rpc::Payload<'_>,
    ) -> Result<ashlar_types::message::StorageReply, Errno> {
        Err(Errno::ENODEV)
    }
}

/// What one server has of the other.
struct Wire(Weak<Site>);

impl MetaPeers for Wire {
    fn ask(&self, server: NodeId, message: &[u8], _: bool, _: Duration) -> Result<Vec<u8>, Errno> {
        let site = self.0.upgrade().ok_or(Errno::EHOSTDOWN)?;
        let other = site.running[server.0 as usize - 1].lock().clone().ok_or(Errno::EHOSTDOWN)?;
        let answer = other.hear(message, &Deaf)?;
        Ok(if site.garbles.load(SeqCst) { site.garbled(answer) } else { answer })
    }
}

/// Answers of every kind. What they say of a transaction is nothing: a server believes what the one says that has a part of it.
fn answers() -> Vec<Answer> {
    vec![
        Answer::Values { values: vec![None; 3], pairs: Vec::new(), open: vec![InodeId::ROOT] },
        Answer::Values { values: Vec::new(), pairs: vec![Vec::new(); 3], open: Vec::new() },
        Answer::Given(u64::MAX),
        Answer::NoSuchMove(Epoch(u64::MAX)),
        Answer::Messages(Vec::new()),
        Answer::No(Refusal::Held),
        Answer::No(Refusal::Changed),
        Answer::No(Refusal::Leases),
        Answer::Failed(Errno::EIO),
        Answer::Failed(Errno::ENOSPC),
        Answer::Later,
        Answer::Prepared { messages: Vec::new(), keeps_entries: true },
    ]
}

/// Two servers: the first has the even shards.
struct Site {
    map: ClusterMap,
    disks: [(SimDisk, MemoryEngine); 2],
    running: [Mutex<Option<Arc<MetaService>>>; 2],
    sequence: AtomicU64,
    /// Whether answers are other ones than were given.
    garbles: AtomicBool,
    dice: SimEntropy,
}

fn server_of(shard: ShardId) -> usize {
    usize::from(shard.0 % 2)
}

impl Site {
    fn new() -> Arc<Site> {
        let map = ClusterMap {
            cluster: CLUSTER,
            epoch: Epoch(5),
            pools: vec![Pool { id: PoolId(0), name: "default".into() }],
            ..map_of_shards(&[1, 2].repeat(usize::from(SHARDS) / 2), &[1, 2])
        };
        let disks = [0, 1].map(|_| (SimDisk::new(), MemoryEngine::new()));
        let site = Arc::new(Site {
            map,
            disks,
            running: Default::default(),
            sequence: AtomicU64::new(1),
            garbles: AtomicBool::new(false),
            dice: SimEntropy::new(7),
        });
        (0..2).for_each(|at| site.start(at));
        site
    }

    fn lane(&self, at: usize) -> Lane {
        let (disk, engine) = &self.disks[at];
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let until = Instant::now() + END_MAX;
        loop {
            let config = LaneConfig { reserve_bytes: 0, ..LaneConfig::default() };
            match Lane::open(disk.clone(), "lane", Box::new(engine.clone()), &Env::os(), CLUSTER, config) {
                // A thread of the service before is about to end.
                Err(KvError::Io { .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                lane => return lane.unwrap(),
            }
        }
    }

    fn start(self: &Arc<Site>, at: usize) {
        let peers: Arc<dyn MetaPeers> = Arc::new(Wire(Arc::downgrade(self)));
        let config = MetaConfig {
            has_lost: false,
            lane: Arc::new(self.lane(at)),
            env: Env::os(),
            name_hash_key: HASH_KEY,
            map: Arc::new(RwLock::new(Arc::new(self.map.clone()))),
            keeps_sessions: false,
            storage: Arc::new(Nowhere),
            peers: Some((peers, NodeId(1 + at as u32))),
        };
        let (meta, _) = MetaService::start(config, RootSettings::default()).unwrap();
        let owner = SessionOwner { node: NodeId(9), instance: [1; 16] };
        meta.open_lasting(Some(SESSION), owner, Arc::new(Hears(Arc::downgrade(self), at))).unwrap();
        *self.running[at].lock() = Some(meta);
    }

    /// What is heard instead of an answer, or the answer itself.
    fn garbled(&self, mut answer: Vec<u8>) -> Vec<u8> {
        let answers = answers();
        match self.dice.below(5) {
            0 => answer.truncate(self.dice.below(answer.len() as u64) as usize),
            1 => answer = (0..self.dice.below(200)).map(|_| self.dice.below(256) as u8 | 0x80).collect(),
            2 => answer.push(0),
            3 => answer = encode(&answers[self.dice.below(answers.len() as u64) as usize]),
            _ => {}
        }
        answer
    }

    fn stop(&self) {
        let servers = [0, 1].map(|at| self.running[at].lock().take());
        servers.into_iter().flatten().for_each(|server| server.stop().unwrap());
    }

    fn server(&self, at: usize) -> Arc<MetaService> {
        self.running[at].lock().clone().unwrap()
    }

    fn call(&self, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let Addressee::Home(inode) = request.addressee() else { panic!("{request:?}") };
        let op = OpId { session: SESSION, sequence: self.sequence.fetch_add(1, SeqCst) };
        let until = Instant::now() + END_MAX;
        loop {
            let server = self.server(server_of(inode.home()));
            match server.call(Caller::new(op, &Credentials::root()), request.clone()) {
                Err(Errno::EHOSTDOWN) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                answer => return answer,
            }
        }
    }

    /// A directory below the root, at this server.
    fn directory_at(&self, at: usize) -> InodeId {
        loop {
            let text = format!("d{}", self.sequence.load(SeqCst));
            let name = Name::new(text.as_bytes()).unwrap();
            let made = self.call(MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 });
            let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
            if server_of(attr.inode.home()) == at {
                return attr.inode;
            }
        }
    }

    fn file_in(&self, parent: InodeId, text: &str) -> InodeId {
        let made = self.call(MetaRequest::Mknod {
            parent,
            name: Name::new(text.as_bytes()).unwrap(),
            mode: REGULAR,
            umask: 0,
            rdev: 0,
        });
        let Ok(MetaReply::Attr { attr, .. }) = made else { panic!("{made:?}") };
        attr.inode
    }

    /// Calls that both servers have a part in.
    fn require_calls_to_be_done(&self) {
        let [here, there] = [0, 1].map(|at| self.directory_at(at));
        let file = self.file_in(here, "f");
        let (from_name, to_name) = (Name::new(b"f").unwrap(), Name::new(b"g").unwrap());
        let moved = self.call(MetaRequest::Rename {
            from_parent: here,
            from_name,
            to_parent: there,
            to_name,
            flags: RenameFlags::Replace,
        });
        assert!(moved.is_ok(), "{moved:?}");
        let found = self.call(MetaRequest::Getattr { inode: file });
        assert!(found.is_ok(), "{found:?}");
        let removed = self.call(MetaRequest::Unlink { parent: there, name: to_name });
        assert!(removed.is_ok(), "{removed:?}");
    }

    /// Waits until nothing is under way between the servers, and nothing is left of shards that did not come.
    fn settle(&self) {
        let until = Instant::now() + END_MAX;
        loop {
            let mut is_quiet = true;
            for at in 0..2 {
                let server = self.server(at);
                server.tend_shards().unwrap();
                server.resume_across();
                let hands = server.across.hands.lock();
                is_quiet &= server.across.machines.lock().is_idle();
                is_quiet &= hands.arriving.is_empty() && hands.left_behind.is_empty();
            }
            if is_quiet {
                return;
            }
            assert!(Instant::now() < until, "something is still under way");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn require_sound(&self) {
        let lanes = [0, 1].map(|at| self.lane(at));
        let both = Both([lanes[0].read(), lanes[1].read()]);
        for shard in (0..SHARDS).map(ShardId) {
            let prefix = key::shard_prefix(shard);
            let mut visit = |found: &[u8], _: &[u8]| {
                assert!(key::is_of_server(found), "{shard} is at two servers: {}", found.escape_ascii());
                ControlFlow::Continue(())
            };
            both.0[1 - server_of(shard)].scan(&prefix, &key::after_prefix(&prefix), &mut visit).unwrap();
            let (from, to) = key::table_range(shard, b'T');
            both.scan(&from, &to, &mut |found, _| panic!("still under way: {}", found.escape_ascii()))
                .unwrap();
        }
        let mut found = Vec::new();
        let mut tell = |finding: check::Finding| {
            found.push(format!("{finding:?}"));
            ControlFlow::Continue(())
        };
        check::check(&both, &CheckArgs::new(SHARDS, &HASH_KEY), &mut tell).unwrap();
        assert!(found.is_empty(), "{}", found.join("; "));
    }
}

struct Both<'a>([LaneReader<'a>; 2]);

impl Snapshot for Both<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.0[server_of(key::shard_of(key))].get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError> {
        self.0[server_of(key::shard_of(from))].scan(from, to, visit)
    }
}

/// One to whom something is said, and what there is at both.
struct Talk<'s> {
    site: &'s Site,
    /// A directory and a file in it, by server.
    inodes: [(InodeId, InodeId); 2],
    /// Parts that were locked: server, shard and transaction.
    locked: BTreeSet<(usize, ShardId, TransactionId)>,
    /// Shards that are coming: server, shard and attempt.
    coming: BTreeSet<(usize, ShardId, u64)>,
}

impl<'s> Talk<'s> {
    fn new(site: &'s Site) -> Talk<'s> {
        let inodes = [0, 1].map(|at| {
            let directory = site.directory_at(at);
            (directory, site.file_in(directory, "file"))
        });
        Talk { site, inodes, locked: BTreeSet::new(), coming: BTreeSet::new() }
    }

    /// Of the server `at`: keys with what is under them.
    fn pairs_of(&self, at: usize) -> Vec<(Key, Option<Bytes>)> {
        let (directory, file) = self.inodes[at];
        let bucket = key::bucket(directory, NameHash::of(Name::new(b"file").unwrap(), &HASH_KEY));
        let server = self.site.server(at);
        let reader = server.lane.read();
        let keys = [key::inode(directory), key::inode(file), bucket];
        keys.into_iter().map(|key| (key.clone(), reader.get(&key).unwrap())).collect()
    }

    /// Of a transaction, to the server `at`.
    fn about_transactions(&self, at: usize) -> Vec<Say> {
        let (directory, file) = self.inodes[at];
        let (shard, from) = (directory.home(), self.inodes[1 - at].0.home());
        let id = TransactionId { coordinator: from, era: 1, number: 1 };
        let ticket = Ticket { era: 1, number: 1 };
        let pairs = self.pairs_of(at);
        let account = key::account(shard, FilesetId(0), 5, 6, 7);
        let amount = Account { inodes: 1, bytes: 2, blocks: 3 };
        let change = ShardChange {
            reads: pairs.clone(),
            writes: pairs.clone(),
            charges: vec![Charge { key: account, amount, is_added: true }],
            drops: vec![file],
            changed: vec![directory],
            entries: vec![(directory, b"file".to_vec())],
            now: Timespec::new(5, 6),
        };
        let small = ShardChange { writes: pairs, ..ShardChange::default() };
        let own = TransactionId { coordinator: shard, ..id };
        let messages = [
            Message::Prepare { id, part: Part { keys: change.locks(), writes: change } },
            Message::Prepare { id, part: Part { keys: Vec::new(), writes: small.clone() } },
            Message::Prepare { id: own, part: Part { keys: Vec::new(), writes: small } },
            Message::Vote { id: own, ticket: Some(ticket) },
            Message::Commit { id, ticket },
            Message::Abort { id, ticket: Some(ticket) },
            Message::Finished { id: own, ticket },
            Message::Ask { id: own, ticket },
        ];
        let say = |message| Say::Transaction { session: SESSION, shard, from, message };
        messages.into_iter().map(say).collect()
    }

    /// Of a shard that comes to the server `at` from `from`.
    fn about_moves(&self, at: usize, from: usize) -> Vec<Say> {
        let (directory, file) = self.inodes[from];
        let shard = directory.home();
        let owner = SessionOwner { node: NodeId(4), instance: [4; 16] };
        let mut pairs = self.pairs_of(from);
        let kept = KeptReply { sequence: 3, reply: MetaReply::Bytes(Bytes::from_static(b"reply")) };
        pairs.push((key::reply(SESSION, 1), Some(encode(&kept).into())));
        let range = LockRange { start: 5, end: 99 };
        let request = LockRequest {
            inode: file,
            owner: LockOwner(1),
            pid: 1,
            kind: LockKind::Write,
            range,
            is_flock: false,
        };
        let held = LockHeld { session: SESSION, through: DescriptionId(1), request };
        let holds = vec![
            Hold::Open(SESSION, file, DescriptionId(1), true),
            Hold::Lease(file, SESSION, LeaseSet::CONTENT),
            Hold::Lock(held),
            Hold::LockWait(LockWaiting { wanted: held, ticket: 1, is_ofd: false }),
            Hold::Proposal(SESSION, file, 1),
            Hold::Unsettled(file, 1, Errno::EIO),
        ];
        let what = [
            Moving::Begin { from: NodeId(1 + from as u32), epoch: Epoch(5) },
            Moving::Begin { from: NodeId(1 + at as u32), epoch: Epoch(5) },
            Moving::Sessions(vec![(SessionId(4), owner)]),
            Moving::Pairs { number: 0, pairs },
            Moving::Holds { number: 0, holds },
            Moving::Whole { life: 1, recall_mark: 1, starts: 1 },
            Moving::IsWhole,
            Moving::GiveUp,
        ];
        what.into_iter().map(|what| Say::Move { shard, attempt: 1, what }).collect()
    }

    /// All that may be said to the server `at`.
    fn all(&self, at: usize) -> Vec<Say> {
        let (directory, file) = self.inodes[at];
        let shard = directory.home();
        let keys = self.pairs_of(at).into_iter().map(|(key, _)| (key, Intent::Change)).collect();
        let mut all = vec![
            Say::Read { session: SESSION, keys, prefixes: vec![key::orphan_prefix(file)] },
            Say::Reserve { shard, count: 5 },
            Say::Give { to: NodeId(77), count: 5 },
            Say::IsSending { shard, attempt: 1 },
            Say::IsOpen { session: SESSION, inode: file },
        ];
        all.extend(self.about_transactions(at));
        all.extend(self.about_moves(at, 1 - at));
        all.extend(self.about_moves(at, at));
        all
    }

    /// What nobody would say, without any change.
    fn senseless(&self, at: usize) -> Vec<Say> {
        let (directory, file) = self.inodes[at];
        let (shard, from) = (directory.home(), self.inodes[1 - at].0.home());
        let long = |table: u8, bytes: usize| {
            let mut long = key::shard_prefix(shard);
            long.push(table);
            long.extend(std::iter::repeat_n(b'x', bytes));
            long
        };
        let id = |number| TransactionId { coordinator: from, era: 1, number };
        let prepare_of = |id, writes| {
            let message = Message::Prepare { id, part: Part { keys: Vec::new(), writes } };
            Say::Transaction { session: SESSION, shard, from, message }
        };
        let prepare = |number, writes| prepare_of(id(number), writes);
        let write = |key: Key, value: Vec<u8>| ShardChange {
            writes: vec![(key, Some(value.into()))],
            ..ShardChange::default()
        };
        let gone = InodeId::new(shard, 0xFF_FFFF).unwrap();
        let of_nobody = TransactionId { coordinator: ShardId(4000), ..id(8) };
        let read = |keys, prefixes| Say::Read { session: SESSION, keys, prefixes };
        let pairs = |pairs| Say::Move { shard: from, attempt: 1, what: Moving::Pairs { number: 0, pairs } };
        let whole = |life, recall_mark, starts| Say::Move {
            shard: from,
            attempt: 1,
            what: Moving::Whole { life, recall_mark, starts },
        };
        vec![
            prepare(1, write(long(b'X', 5000), b"v".to_vec())),
            prepare(2, write(key::xattr(file, b"user.a"), vec![1; 3 << 20])),
            prepare(3, write(long(b'T', 4), b"v".to_vec())),
            prepare(4, write(key::arriving(shard), b"v".to_vec())),
            prepare(5, write(key::counter(shard), b"v".to_vec())),
            prepare(6, ShardChange { drops: vec![gone], ..ShardChange::default() }),
            prepare(7, ShardChange { entries: vec![(directory, vec![b'n'; 1 << 20])], ..Default::default() }),
            prepare_of(of_nobody, write(key::xattr(file, b"user.a"), b"v".to_vec())),
            read(Vec::new(), vec![key::shard_prefix(shard)]),
            read(Vec::new(), vec![long(b'I', 0)]),
            read(vec![(key::inode(file), Intent::Look); 5000], Vec::new()),
            Say::Reserve { shard, count: 0 },
            Say::Reserve { shard, count: u64::MAX },
            Say::Reserve { shard: ShardId(9), count: 1 },
            Say::Give { to: NodeId(1 + at as u32), count: u64::MAX },
            pairs(vec![(key::transaction(from, 7, (from, 1, 1)), Some(Bytes::from_static(b"v")))]),
            pairs(vec![(key::incarnation(), Some(Bytes::from_static(b"v")))]),
            pairs(vec![(key::inode(file), Some(Bytes::from_static(b"v")))]),
            whole(u64::MAX, 1, 1),
            whole(1, u64::MAX, 1),
            whole(1, 1, u64::MAX),
        ]
    }

    /// Has the server `at` hear bytes; whether they were a message, and whether it did more than refuse it.
    fn say(&mut self, at: usize, bytes: &[u8]) -> (bool, bool) {
        let server = self.site.server(at);
        let Ok(say) = decode::<Say>(bytes, "message") else {
            let answer = server.hear(bytes, &Deaf).unwrap();
            assert_eq!(decode::<Answer>(&answer, "answer"), Ok(Answer::Failed(Errno::EPROTO)));
            return (false, false);
        };
        match &say {
            // Does what it says.
            Say::Transaction { message: Message::Commit { id, .. }, .. }
                if self.locked.iter().any(|(.., locked)| locked == id) =>
            {
                return (true, false);
            }
            Say::Give { to, .. } if *to == NodeId(2 - at as u32) => return (true, false),
            // These wait for keys.
            Say::Read { .. } | Say::Reserve { .. } => self.let_go(),
            _ => {}
        }
        let begun = Instant::now();
        let answer = server.hear(bytes, &Deaf).unwrap();
        assert!(begun.elapsed() < END_MAX, "it took {:?}", begun.elapsed());
        assert!(answer.len() < ANSWER_BYTES_MAX, "it was answered with {} bytes", answer.len());
        let answer = decode::<Answer>(&answer, "answer").unwrap();
        match (&say, &answer) {
            (
                Say::Transaction { shard, message: Message::Prepare { id, .. }, .. },
                Answer::Prepared { .. },
            ) => drop(self.locked.insert((at, *shard, *id))),
            (Say::Move { shard, attempt, what: Moving::Begin { .. } }, Answer::Done | Answer::Later) => {
                self.coming.insert((at, *shard, *attempt));
            }
            _ => {}
        }
        let is_refused = matches!(
            answer,
            Answer::Failed(_) | Answer::No(_) | Answer::Later | Answer::NoSuchMove(_) | Answer::Given(0)
        );
        (true, !is_refused)
    }

    /// Ends all parts that are locked, as their coordinator would.
    fn let_go(&mut self) {
        for (at, shard, id) in std::mem::take(&mut self.locked) {
            let message = Message::Abort { id, ticket: None };
            let say = Say::Transaction { session: SESSION, shard, from: id.coordinator, message };
            let answer = self.site.server(at).hear(&encode(&say), &Deaf).unwrap();
            let answer = decode::<Answer>(&answer, "answer").unwrap();
            assert!(matches!(answer, Answer::Messages(_)), "{answer:?} to {say:?}");
        }
    }

    /// Brings all that was begun to its end.
    fn end(&mut self) {
        self.let_go();
        for (at, shard, attempt) in std::mem::take(&mut self.coming) {
            let say = Say::Move { shard, attempt, what: Moving::GiveUp };
            self.site.server(at).hear(&encode(&say), &Deaf).unwrap();
        }
        self.site.settle();
        self.site.require_calls_to_be_done();
        self.site.settle();
    }
}

#[track_caller]
fn require_sound_and_start_again(site: &Arc<Site>) {
    site.stop();
    site.require_sound();
    (0..2).for_each(|at| site.start(at));
    site.require_calls_to_be_done();
    site.settle();
    site.stop();
    site.require_sound();
}

#[test]
fn ten_thousand_malformed_messages_leave_metadata_servers_whole() {
    let (site, random) = (Site::new(), SimEntropy::new(20_261_126));
    let mut talk = Talk::new(&site);
    site.settle();
    let (mut decoded, mut done) = (0, 0);
    for round in 0..ROUNDS {
        if round % ROUNDS_PER_BATCH == 0 && round > 0 {
            talk.end();
            talk = Talk::new(&site);
            site.settle();
        }
        let at = round % 2;
        let all = talk.all(at);
        let say = &all[random.below(all.len() as u64) as usize];
        let bytes = match random.below(20) {
            0 => (0..random.below(300)).map(|_| random.below(256) as u8).collect(),
            // What goes before others is not changed, so that those mean something.
            1..4 => encode(say),
            _ => mutated(say, |bound| random.below(bound)),
        };
        let (was_message, was_done) = talk.say(at, &bytes);
        decoded += usize::from(was_message);
        done += usize::from(was_done);
    }
    talk.end();
    require_sound_and_start_again(&site);
    assert!(decoded > ROUNDS / 3 && done > ROUNDS / 50, "{decoded} could be decoded, {done} were done");
}

#[test]
fn what_no_metadata_server_says_is_refused() {
    let site = Site::new();
    let mut talk = Talk::new(&site);
    site.settle();
    for at in 0..2 {
        for (number, say) in talk.senseless(at).into_iter().enumerate() {
            // A shard is on its way, for what is about it to be heard.
            let begin = talk.about_moves(at, 1 - at).remove(0);
            talk.say(at, &encode(&begin));
            let (_, is_done) = talk.say(at, &encode(&say));
            assert!(
                !is_done || matches!(say, Say::Reserve { count: 1.., .. }),
                "number {number} was not refused"
            );
            talk.end();
        }
    }
    require_sound_and_start_again(&site);
}

#[test]
fn servers_that_are_answered_with_nonsense_refuse_calls_and_go_on() {
    let site = Site::new();
    let directories = [0, 1].map(|at| site.directory_at(at));
    let files = directories.map(|directory| site.file_in(directory, "file"));
    let (mut done, mut refused) = (0, 0);
    site.garbles.store(true, SeqCst);
    for round in 0..200 {
        let (from, to) = (round % 2, 1 - round % 2);
        let text = format!("n{round}");
        let name = Name::new(text.as_bytes()).unwrap();
        let request = match site.dice.below(4) {
            0 => MetaRequest::Mkdir { parent: InodeId::ROOT, name, mode: 0o755, umask: 0 },
            1 => MetaRequest::Link { inode: files[from], parent: directories[to], name },
            2 => MetaRequest::Rename {
                from_parent: directories[from],
                from_name: Name::new(b"file").unwrap(),
                to_parent: directories[to],
                to_name: Name::new(b"moved").unwrap(),
                flags: RenameFlags::Replace,
            },
            _ => MetaRequest::Rename {
                from_parent: directories[to],
                from_name: Name::new(b"moved").unwrap(),
                to_parent: directories[from],
                to_name: Name::new(b"file").unwrap(),
                flags: RenameFlags::Replace,
            },
        };
        match site.call(request) {
            Ok(_) => done += 1,
            Err(_) => refused += 1,
        }
    }
    site.garbles.store(false, SeqCst);
    site.settle();
    site.require_calls_to_be_done();
    site.settle();
    require_sound_and_start_again(&site);
    assert!(done > 5 && refused > 20, "{done} were done, {refused} refused");
}
