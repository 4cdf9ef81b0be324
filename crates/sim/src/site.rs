//! Several metadata servers under one seed: the production services and what serves them to clients, a manager that is asked late or in vain, and mounts
//! that tell what they have to servers which were started anew, or tell it late, or never.
//!
//! Servers are killed or lose their power, also in the middle of a write and while they start; shards go from one to the other, moves are withdrawn, and
//! directories are split, all while mounts work on names of their own and on locks that all of them want. What a mount was answered it expects to find;
//! what it has open it expects to keep; and in the end each server has what the map says it has, and nothing else.
//!
//! From [`CHAIN_SEEDS`] on there are storage servers besides, whose targets give each other chains while mounts write and read what is in them. From [`FEW_SEEDS`] on, with or without them, mounts go to a
//! metadata server only with a call, or after a shard, as real ones do; before that they are at all of them from the beginning.

mod chains;
mod check;
mod content;
mod disk;
mod fill;
mod mount;
mod server;
mod storage;
pub(crate) mod sweep;
mod work;

use crate::run::{CHAIN_SEEDS, FEW_SEEDS, Report};
use crate::scheduler::{ProcessTasks, Scheduler};
use ashlar_env::sim::{SimClock, SimEntropy};
use ashlar_env::{Clock, Env};
use ashlar_manager::{Authority, ManagerService, Secrets, draw_key};
use ashlar_meta::Transferred;
use ashlar_replication::hand_over::shard::transfer;
use ashlar_rpc::net::TlsIdentity;
use ashlar_storage::moves::End;
use ashlar_types::map::{Pool, Shard};
use ashlar_types::message::LockRequest;
use ashlar_types::node::{Listening, Roles};
use ashlar_types::{
    ClusterId, ClusterMap, Epoch, Node, NodeId, NodePolicy, PeerId, PoolId, Role, ShardId, Timespec,
};
use content::Content;
use mount::Mount;
use parking_lot::{Mutex, RwLock};
use server::Server;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use storage::Storage;

const CLUSTER: ClusterId = ClusterId([3; 16]);
const HASH_KEY: [u8; 16] = [7; 16];
const SHARDS: u16 = 8;
/// Storage servers are on nodes from here on, with so many targets each, which chains are on.
const FIRST_STORAGE: u32 = 11;
const TARGETS_EACH: usize = 2;
const CHAINS: u64 = 6;
/// Mounts are on nodes above that.
const FIRST_MOUNT: u32 = 20;
/// Directories that all mounts work in, and files that all of them lock.
const DIRECTORIES: usize = 6;
const LOCK_FILES: usize = 2;
/// Turns, and simulated time, after which a run counts as hung.
const STEPS_MAX: u64 = 6_000_000;
const TIME_MAX: Duration = Duration::from_secs(1800);
/// Within that time after nothing goes wrong any more, everything under way comes to its end.
const QUIET_MAX: Duration = Duration::from_secs(400);
/// For so long after it was silent a mount may find that its session was ended.
const FORGIVEN: Duration = Duration::from_secs(25);

/// What goes wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// A server ends, at once or after so many changes of its disk, and is away for so many milliseconds.
    Stop { server: usize, after: Option<u64>, away_ms: u64 },
    /// A mount does nothing for so many milliseconds.
    Freeze { mount: usize, for_ms: u64 },
    /// A mount tells servers what it has so many milliseconds after it was asked, as long as this is the newest of its kind.
    TellLate { mount: usize, by_ms: u64 },
    /// A mount is never heard of again.
    Die { mount: usize },
    /// A storage server ends, as a server does.
    StopStorage { server: usize, after: Option<u64>, away_ms: u64 },
    /// A storage server cannot keep a newer map for so many milliseconds.
    KeepNothing { server: usize, for_ms: u64 },
}

/// What a seed stands for.
#[derive(Clone, Debug)]
struct SitePlan {
    servers: usize,
    mounts: usize,
    operations: usize,
    pause_ms: u64,
    /// Stops are power cuts, and directories are synchronous.
    is_power: bool,
    /// Milliseconds between two wishes that a shard be elsewhere; 0: none.
    move_every_ms: u64,
    splits: bool,
    /// And how many milliseconds after the one before.
    troubles: Vec<(u64, Trouble)>,
    /// Storage servers.
    storage: usize,
    /// Changes of content that a mount makes at least, and the longest pause between two.
    changes: usize,
    change_pause_ms: u64,
    /// Milliseconds between two wishes that a chain be elsewhere.
    chain_every_ms: u64,
    /// Mounts are at metadata servers only where they have to be.
    is_at_few: bool,
    /// Storage servers keep one of so many maps.
    keep_one_in: u64,
}

impl SitePlan {
    fn of(seed: u64) -> SitePlan {
        let random = SimEntropy::new(seed ^ 0x0051_7E00_4ED0_0000);
        let pick = |list: &[u64]| list[random.below(list.len() as u64) as usize];
        let servers = 2 + random.below(2) as usize;
        let mounts = 2 + random.below(2) as usize;
        let may_die = random.below(4) == 0;
        let troubles = (0..1 + random.below(6)).map(|_| {
            let mount = random.below(mounts as u64) as usize;
            let trouble = match random.below(12) {
                0 => Trouble::Freeze { mount, for_ms: pick(&[800, 4000, 12_000, 30_000, 90_000]) },
                1 | 2 => Trouble::TellLate { mount, by_ms: pick(&[300, 3000, 15_000, 90_000]) },
                3 if may_die => Trouble::Die { mount: mounts - 1 },
                _ => Trouble::Stop {
                    server: random.below(servers as u64) as usize,
                    after: (random.below(2) == 0).then(|| random.below(40)),
                    away_ms: pick(&[10, 300, 3000, 9000]),
                },
            };
            (pick(&[0, 200, 1500, 6000]) + random.below(500), trouble)
        });
        let troubles = troubles.collect();
        let plan = SitePlan {
            servers,
            mounts,
            operations: pick(&[30, 80, 160]) as usize,
            pause_ms: pick(&[5, 60, 300]),
            is_power: random.below(2) == 0,
            move_every_ms: pick(&[0, 50, 400, 2000]),
            splits: random.below(2) == 0,
            troubles,
            storage: 0,
            changes: 0,
            change_pause_ms: 0,
            chain_every_ms: 0,
            is_at_few: false,
            keep_one_in: 1,
        };
        match seed {
            FEW_SEEDS.. if seed.is_multiple_of(2) => plan.at_few(seed).with_chains(seed),
            FEW_SEEDS.. => plan.at_few(seed),
            CHAIN_SEEDS.. => plan.with_chains(seed),
            _ => plan,
        }
    }

    /// Long enough for a server to take somebody for silent, and with moves.
    fn at_few(mut self, seed: u64) -> SitePlan {
        let random = SimEntropy::new(seed ^ 0x0000_FE30_0000_0000);
        let pick = |list: &[u64]| list[random.below(list.len() as u64) as usize];
        (self.is_at_few, self.pause_ms) = (true, pick(&[5, 60, 300, 1000]));
        self.move_every_ms = pick(&[50, 400, 2000, 10_000]);
        self
    }
}

/// A question to the manager: shards, from whom, to whom, and by the map of which epoch.
type Question = (Vec<ShardId>, NodeId, NodeId, Epoch);

/// A lock that a mount holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    mount: usize,
    request: LockRequest,
}

/// See the module.
struct Site {
    scheduler: Arc<Scheduler>,
    clock: Arc<SimClock>,
    /// Of services and clients.
    entropy: Arc<SimEntropy>,
    dice: SimEntropy,
    plan: SitePlan,
    /// What the manager has.
    truth: Mutex<ClusterMap>,
    /// Questions that the manager has not heard yet.
    late: Mutex<Vec<Question>>,
    servers: Vec<Server>,
    /// What goes wrong at one point, if that is all that does.
    sweep: Option<sweep::Across>,
    /// The manager, where there is more to it than its map; `truth` is a copy of what it has.
    manager: Option<ManagerService>,
    storage: Vec<Storage>,
    content: Content,
    /// Ends of moves of which the manager has not heard yet, and the storage servers that asked.
    late_ends: Mutex<Vec<(usize, End)>>,
    chains_moved: AtomicU64,
    /// Something is to go wrong yet.
    has_more_troubles: AtomicBool,
    held: Mutex<Vec<Held>>,
    /// Until when the session of a mount may be found to have been ended.
    forgiven: Mutex<BTreeMap<usize, Duration>>,
    failures: Mutex<Vec<String>>,
    /// Whether messages between servers and to the manager are lost and late.
    is_troubled: AtomicBool,
    /// Answers that were checked.
    checked: AtomicU64,
    identity: Arc<RwLock<Arc<TlsIdentity>>>,
    me: Weak<Site>,
}

/// A certificate that nobody ever shows: what makes capabilities wants a caller of storage servers, and there are none here.
fn identity() -> Arc<RwLock<Arc<TlsIdentity>>> {
    static IDENTITY: OnceLock<Arc<RwLock<Arc<TlsIdentity>>>> = OnceLock::new();
    let draw = || {
        let (key, public) = draw_key().expect("a key can be drawn");
        let secrets = Secrets {
            cluster: CLUSTER,
            name_hash_key: HASH_KEY,
            ca_certificate_pem: String::new(),
            ca_key_pem: key.clone(),
        };
        let authority = Authority::new(&secrets).expect("the key is good");
        let peer = PeerId {
            cluster: CLUSTER,
            node: NodeId(1),
            roles: Roles::default().with(Role::Meta),
            host: None,
        };
        let now = Timespec::new(1_700_000_000, 0);
        let certificate = authority.issue(peer, &public, now).expect("a certificate can be made");
        let identity = TlsIdentity::from_pem(&certificate, &key, &certificate).expect("it is good");
        Arc::new(RwLock::new(Arc::new(identity)))
    };
    IDENTITY.get_or_init(draw).clone()
}

fn first_map(plan: &SitePlan) -> ClusterMap {
    let node = |id: u32, role: Role| Node {
        id: NodeId(id),
        name: format!("n{id}"),
        roles: Roles::default().with(role),
        policy: NodePolicy::trusting(),
        domain: String::new(),
        listening: match role {
            Role::Meta => vec![Listening { role, addresses: vec![([127, 0, 0, 1], 1).into()] }],
            _ => Vec::new(),
        },
    };
    let servers = (1..=plan.servers as u32).map(|id| node(id, Role::Meta));
    let storage = (0..plan.storage as u32).map(|number| node(FIRST_STORAGE + number, Role::Storage));
    let mounts = (0..plan.mounts as u32).map(|number| node(FIRST_MOUNT + number, Role::Client));
    let of_server = |id: u16| NodeId(1 + u32::from(id) % plan.servers as u32);
    ClusterMap {
        cluster: CLUSTER,
        epoch: Epoch(1),
        pools: vec![Pool { id: PoolId(0), name: "default".into() }],
        targets: chains::first_targets(plan),
        chains: chains::first_chains(plan),
        shards: (0..SHARDS).map(|id| Shard { id: ShardId(id), primary: of_server(id) }).collect(),
        nodes: servers.chain(storage).chain(mounts).collect(),
        moves: Default::default(),
        filesets: Vec::new(),
    }
}

impl Site {
    fn env(&self, prefix: &str) -> Env {
        let tasks = ProcessTasks { scheduler: self.scheduler.clone(), prefix: prefix.to_owned() };
        Env { clock: self.clock.clone(), entropy: self.entropy.clone(), tasks: Arc::new(tasks) }
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    fn sleep_ms(&self, ms: u64) {
        self.scheduler.sleep(Duration::from_millis(ms));
    }

    fn fail(&self, what: String) {
        self.scheduler.note(&|| format!("FAILURE: {what}"));
        self.failures.lock().push(what);
    }

    fn has_failed(&self) -> bool {
        !self.failures.lock().is_empty() || !self.scheduler.panics().is_empty()
    }

    /// One of `of`, while messages are in trouble; else a number that is none of them.
    fn trouble(&self, of: u64) -> u64 {
        if self.is_troubled.load(SeqCst) { self.dice.below(of) } else { u64::MAX }
    }

    /// The manager hears a question.
    fn carry_out(&self, (shards, from, to, seen): &Question) -> Transferred {
        let truth = self.truth.lock();
        let primary = |shard: &ShardId| truth.primary(*shard).unwrap_or_default();
        let decide = |shard: &ShardId| transfer(truth.epoch, &primary(shard), from, *seen);
        let decided: Vec<Option<bool>> = shards.iter().map(decide).collect();
        if decided.iter().all(|is_due| *is_due == Some(false)) {
            return Transferred::Done;
        }
        if decided.iter().any(|is_due| *is_due != Some(true)) {
            return Transferred::Refused(format!("the map is of {}", truth.epoch));
        }
        drop(truth);
        self.change_map(|map| {
            shards.iter().for_each(|shard| map.shards[usize::from(shard.0)].primary = *to);
            map.epoch = Epoch(map.epoch.0 + 1);
        });
        self.scheduler.note(&|| format!("{shards:?} are {to}'s"));
        Transferred::Done
    }

    fn ask_manager(&self, question: Question) -> Transferred {
        let trouble = self.trouble(8);
        match trouble {
            0 => return Transferred::Unknown,
            3 => return Transferred::NotAsked,
            1 => {
                self.late.lock().push(question);
                return Transferred::Unknown;
            }
            _ => {}
        }
        self.sleep_ms(self.dice.below(8));
        let answer = self.carry_out(&question);
        if trouble == 2 { Transferred::Unknown } else { answer }
    }

    /// The manager hears some of what is late, and others hear of new maps, or not yet.
    fn spread_maps(&self, mounts: &[Arc<Mount>]) {
        let is_heard = self.trouble(4) == 0 || !self.is_troubled.load(SeqCst);
        let late = if is_heard { std::mem::take(&mut *self.late.lock()) } else { Vec::new() };
        late.iter().for_each(|question| drop(self.carry_out(question)));
        let newest = Arc::new(self.truth.lock().clone());
        let of_servers = self.servers.iter().map(|server| server.map.lock().clone());
        for map in of_servers.chain(mounts.iter().map(|mount| mount.map.clone())) {
            let is_told = self.trouble(4) == 0 || !self.is_troubled.load(SeqCst);
            let mut map = map.write();
            if is_told && newest.epoch > map.epoch {
                *map = newest.clone();
            }
        }
        self.spread_chains(&newest);
    }

    /// A lock was given to a mount while another one has one that it does not go with.
    fn lock_held_twice(&self, first: Held, second: Held) {
        if !self.is_forgiven(first.mount) {
            self.fail(format!("a lock is held by two: {first:?} and {second:?}"));
        }
    }

    fn is_forgiven(&self, mount: usize) -> bool {
        self.forgiven.lock().get(&mount).is_some_and(|until| self.now() <= *until)
    }

    /// Mount `mount` may find until then that its session was ended.
    fn forgive_until(&self, mount: usize, until: Duration) {
        let mut forgiven = self.forgiven.lock();
        let known = forgiven.entry(mount).or_default();
        *known = until.max(*known);
    }

    /// Somebody wants a shard elsewhere, or not any more.
    fn want_a_move(&self) {
        let shard = ShardId(self.dice.below(u64::from(SHARDS)) as u16);
        let from = self.truth.lock().primary(shard).unwrap_or_default();
        let others: Vec<u32> = (1..=self.plan.servers as u32).filter(|id| NodeId(*id) != from).collect();
        let to = NodeId(others[self.dice.below(others.len() as u64) as usize]);
        let Some(server) = self.servers.get((from.0 as usize).wrapping_sub(1)) else { return };
        match self.dice.below(5) {
            0 => server.withdraw(self, shard),
            _ => server.send(self, shard, to),
        }
    }
}

/// The manager and the storage servers, if the plan has any.
fn with_chains(
    plan: &SitePlan,
    map: &ClusterMap,
    (scheduler, clock, entropy): (&Arc<Scheduler>, &Arc<SimClock>, &Arc<SimEntropy>),
) -> Result<(Option<ManagerService>, Vec<Storage>), String> {
    if plan.storage == 0 {
        return Ok((None, Vec::new()));
    }
    let tasks = ProcessTasks { scheduler: scheduler.clone(), prefix: "manager:".to_owned() };
    let env = Env { clock: clock.clone(), entropy: entropy.clone(), tasks: Arc::new(tasks) };
    let storage = (0..plan.storage).map(|at| Storage::new(at, map)).collect::<Result<_, _>>()?;
    Ok((Some(chains::manager(env, map)?), storage))
}

/// Runs `seed`; `note` gets the scheduler before it begins.
pub(crate) fn run(seed: u64, is_traced: bool, note: impl FnOnce(&Arc<Scheduler>)) -> Report {
    run_plan(seed, (SitePlan::of(seed), None), is_traced, note)
}

/// Runs a plan with the choices of `seed`, or a case of a sweep.
fn run_plan(
    seed: u64,
    (plan, sweep): (SitePlan, Option<sweep::Across>),
    is_traced: bool,
    note: impl FnOnce(&Arc<Scheduler>),
) -> Report {
    let clock = Arc::new(SimClock::new(Timespec::new(1_700_000_000, 0)));
    let scheduler = Scheduler::new(seed, clock.clone(), is_traced);
    note(&scheduler);
    scheduler.note(&|| format!("{plan:#?}"));
    let map = first_map(&plan);
    let entropy = Arc::new(SimEntropy::new(seed ^ 0x00E4_74A0));
    let (manager, storage) = match with_chains(&plan, &map, (&scheduler, &clock, &entropy)) {
        Ok(both) => both,
        Err(why) => return Report { failures: vec![why], ..Report::default() },
    };
    let site = Arc::new_cyclic(|me| Site {
        scheduler: scheduler.clone(),
        clock,
        entropy,
        dice: SimEntropy::new(seed ^ 0x0000_D1CE),
        servers: (0..plan.servers).map(|at| Server::new(at, &map)).collect(),
        plan,
        sweep,
        truth: Mutex::new(map),
        late: Mutex::default(),
        manager,
        storage,
        content: Content::default(),
        late_ends: Mutex::default(),
        chains_moved: AtomicU64::new(0),
        has_more_troubles: AtomicBool::new(true),
        held: Mutex::default(),
        forgiven: Mutex::default(),
        failures: Mutex::default(),
        is_troubled: AtomicBool::new(false),
        checked: AtomicU64::new(0),
        identity: identity(),
        me: me.clone(),
    });
    let (mounts, down, storage_down) = Default::default();
    let mut course = Course { site: site.clone(), mounts, stops: 0, down, storage_down };
    let outcome = course.whole();
    let mut failures = std::mem::take(&mut *site.failures.lock());
    failures.extend(scheduler.panics());
    failures.extend(outcome.err());
    let stops = course.stops;
    scheduler.kill_all();
    site.servers.iter().for_each(Server::forget);
    site.storage.iter().for_each(Storage::forget);
    drop(course);
    let answers = site.checked.load(SeqCst);
    let (trace_hash, steps, moves) =
        (scheduler.trace_hash(), scheduler.steps(), site.chains_moved.load(SeqCst));
    Report { failures, trace_hash, answers, crashes: stops, steps, moves }
}

/// How a run goes on: outside of all tasks.
struct Course {
    site: Arc<Site>,
    mounts: Vec<Arc<Mount>>,
    stops: u64,
    /// Servers that are away, and until when.
    down: Vec<(usize, Duration)>,
    /// The same of storage servers.
    storage_down: Vec<(usize, Duration)>,
}

impl Course {
    /// Lets tasks run until `is_over`, and has servers stop and start.
    fn run_until(&mut self, what: &str, is_over: &dyn Fn(&Course) -> bool) -> Result<(), String> {
        let (steps, begin) = (self.site.scheduler.steps(), self.site.now());
        while !is_over(self) && !self.site.has_failed() {
            if !self.site.scheduler.step() {
                return Err(format!("{what}: nothing can run any more"));
            }
            let took = self.site.now().saturating_sub(begin);
            if self.site.scheduler.steps() - steps > STEPS_MAX || took > TIME_MAX {
                return Err(format!("{what} does not end (after {took:?})"));
            }
            for at in 0..self.site.servers.len() {
                if self.site.servers[at].is_off() {
                    let away = Duration::from_millis(self.site.servers[at].away_ms.load(SeqCst));
                    self.stop_server(at, away);
                }
            }
            let now = self.site.now();
            while let Some(next) = self.down.iter().position(|(_, until)| *until <= now) {
                let (at, _) = self.down.swap_remove(next);
                self.site.servers[at].start(&self.site);
            }
            self.tend_storage(now);
        }
        Ok(())
    }

    /// Has storage servers stop and start.
    fn tend_storage(&mut self, now: Duration) {
        for at in 0..self.site.storage.len() {
            if self.site.storage[at].is_off() {
                let away = Duration::from_millis(self.site.storage[at].away_ms.load(SeqCst));
                self.stop_storage(at, away);
            }
        }
        while let Some(next) = self.storage_down.iter().position(|(_, until)| *until <= now) {
            let (at, _) = self.storage_down.swap_remove(next);
            self.site.storage[at].start(&self.site);
        }
    }

    fn stop_storage(&mut self, at: usize, away: Duration) {
        self.site.scheduler.note(&|| format!("storage server {at} stops, for {away:?}"));
        self.site.storage[at].stop(&self.site);
        self.stops += 1;
        self.storage_down.push((at, self.site.now() + away));
    }

    fn stop_server(&mut self, at: usize, away: Duration) {
        self.site.scheduler.note(&|| format!("server {at} stops, for {away:?}"));
        self.site.servers[at].stop(&self.site);
        self.stops += 1;
        self.down.push((at, self.site.now() + away));
    }

    fn sleep(&mut self, ms: u64) -> Result<(), String> {
        let until = self.site.now() + Duration::from_millis(ms);
        self.run_until("a pause", &|course| course.site.now() >= until)
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.site.scheduler.note(&|| format!("{trouble:?}"));
        match trouble {
            Trouble::Stop { server, .. } if self.down.iter().any(|(at, _)| *at == server) => {}
            Trouble::Stop { server, after: Some(after), away_ms } => {
                self.site.servers[server].stop_after(after, away_ms);
            }
            Trouble::Stop { server, after: None, away_ms } => {
                self.stop_server(server, Duration::from_millis(away_ms));
            }
            Trouble::Freeze { mount, for_ms } => {
                let until = self.site.now() + Duration::from_millis(for_ms);
                self.site.forgive_until(mount, until + FORGIVEN);
                self.site.scheduler.freeze(&format!("m{mount}:"), until);
            }
            Trouble::TellLate { mount, by_ms } => {
                // It is ended when it has told nothing for a minute.
                if by_ms > 10_000 {
                    self.site.forgive_until(mount, Duration::MAX);
                }
                self.mounts[mount].tells_late_ms.store(by_ms, SeqCst);
            }
            Trouble::Die { mount } => {
                self.site.forgive_until(mount, Duration::MAX);
                self.mounts[mount].is_dead.store(true, SeqCst);
                self.site.scheduler.kill(&format!("m{mount}:"));
            }
            Trouble::StopStorage { server, .. } if self.storage_down.iter().any(|(at, _)| *at == server) => {}
            Trouble::StopStorage { server, after: Some(after), away_ms } => {
                self.site.storage[server].stop_after(after, away_ms);
            }
            Trouble::StopStorage { server, after: None, away_ms } => {
                self.stop_storage(server, Duration::from_millis(away_ms));
            }
            Trouble::KeepNothing { server, for_ms } => chains::keep_nothing(&self.site, server, for_ms),
        }
    }

    fn start_tasks(&self) {
        let (site, mounts) = (self.site.clone(), self.mounts.clone());
        let spread = move || {
            loop {
                site.sleep_ms(3 + site.dice.below(30));
                site.spread_maps(&mounts);
            }
        };
        self.site.scheduler.start("manager", Box::new(spread));
        let every = self.site.plan.move_every_ms;
        let site = self.site.clone();
        let want = move || {
            if every == 0 {
                return;
            }
            loop {
                site.sleep_ms(every / 2 + site.dice.below(every));
                if site.is_troubled.load(SeqCst) {
                    site.want_a_move();
                }
            }
        };
        self.site.scheduler.start("admin", Box::new(want));
        if self.site.storage.is_empty() {
            return;
        }
        let site = self.site.clone();
        let ask = move || {
            loop {
                site.sleep_ms(1 + site.dice.below(20));
                if site.is_troubled.load(SeqCst) {
                    site.ask_by_an_old_map();
                }
            }
        };
        self.site.scheduler.start("asker", Box::new(ask));
        let site = self.site.clone();
        let want = move || {
            loop {
                let every = site.plan.chain_every_ms;
                site.sleep_ms(every / 2 + site.dice.below(every));
                if site.is_troubled.load(SeqCst) {
                    site.want_a_chain_elsewhere();
                }
            }
        };
        self.site.scheduler.start("chains", Box::new(want));
    }

    fn whole(&mut self) -> Result<(), String> {
        let plan = self.site.plan.clone();
        self.mounts = (0..plan.mounts).map(|number| Mount::new(number, &self.site)).collect();
        for at in 0..plan.servers {
            self.site.servers[at].start(&self.site);
            self.run_until("a first start", &|course| course.site.servers[at].is_serving())?;
        }
        for at in 0..plan.storage {
            self.site.storage[at].start(&self.site);
            self.run_until("a first start", &|course| course.site.storage[at].is_serving())?;
        }
        self.start_tasks();
        let mounts = self.mounts.clone();
        mounts.iter().for_each(|mount| mount.start());
        self.run_until("mounting", &|course| course.mounts.iter().all(|mount| mount.is_ready()))?;
        self.site.is_troubled.store(self.site.sweep.is_none(), SeqCst);
        for (after_ms, trouble) in plan.troubles {
            self.sleep(after_ms)?;
            if self.site.has_failed() {
                return Ok(());
            }
            self.trouble(trouble);
        }
        self.site.has_more_troubles.store(false, SeqCst);
        let is_done = |mount: &Arc<Mount>| mount.is_dead.load(SeqCst) || mount.has_worked();
        self.run_until("the work", &|course| course.mounts.iter().all(is_done))?;
        self.come_to_rest()
    }

    /// Nothing goes wrong any more: everything that is under way ends, and what was answered is there.
    fn come_to_rest(&mut self) -> Result<(), String> {
        self.site.scheduler.note(&|| "nothing goes wrong any more".into());
        self.site.is_troubled.store(false, SeqCst);
        self.site.servers.iter().for_each(Server::stop_never);
        self.site.storage.iter().for_each(Storage::stop_never);
        self.mounts.iter().for_each(|mount| mount.tells_late_ms.store(0, SeqCst));
        self.run_until("a start", &|course| {
            let is_serving = course.site.servers.iter().all(Server::is_serving)
                && course.site.storage.iter().all(Storage::is_serving);
            course.down.is_empty() && course.storage_down.is_empty() && is_serving
        })?;
        if !self.site.storage.is_empty() {
            self.settle_chains()?;
        }
        let until = self.site.now() + QUIET_MAX;
        self.run_until("moves and splits", &|course| {
            course.site.now() > until || course.site.servers.iter().all(Server::is_quiet)
        })?;
        if !self.site.has_failed() && !self.site.servers.iter().all(Server::is_quiet) {
            return Err(format!("still under way after {QUIET_MAX:?}"));
        }
        let mounts = self.mounts.clone();
        let left: Vec<_> = mounts.iter().filter(|mount| !mount.is_dead.load(SeqCst)).collect();
        left.iter().for_each(|mount| mount.end());
        self.run_until("the end of mounts", &|_| left.iter().all(|mount| mount.has_ended()))?;
        // Of a mount that is dead as well, and after that what was removed with it.
        self.run_until("the end of sessions", &|course| {
            course.site.servers.iter().all(|server| server.sessions() == 0)
        })?;
        self.sleep(15_000)?;
        if self.site.has_failed() {
            return Ok(());
        }
        chains::end_and_check(&self.site)?;
        check::stop_and_check(&self.site)
    }
}
