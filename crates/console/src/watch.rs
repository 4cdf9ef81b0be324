//! What is known of every server, kept current.
//!
//! A thread per server asks it every two seconds, for a bounded time: one that does not answer holds up nobody else. Two threads follow the event log and
//! which servers managers hear of, and the *steward* starts and ends these threads by the map and writes figures into the histories, all at the same moments.

mod clients;
mod events;
mod history;
mod notes;
mod presence;
mod rates;
mod sample;
mod server;

pub use clients::Client;
pub use history::{COARSE_STEP, FINE_STEP, History, Ring, Span};
pub use notes::Note;
pub use rates::Rates;
pub use sample::{Sample, TargetState, Traffic};
pub use server::{Seen, Server};

use ashlar_env::Env;
use ashlar_rpc::remote::{ManagerCalls, Routes};
use ashlar_types::{ClusterMap, NodeId, Role};
use clients::Clients;
use events::Events;
use notes::Notes;
use parking_lot::{Mutex, RwLock};
use presence::Presence;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: servers that are watched, 28 KiB of histories each; that others are not is a finding.
pub const SERVERS_MAX: usize = 1024;
/// After how long without an answer a server is shown as away.
pub const AWAY_AFTER: Duration = Duration::from_secs(6);
/// What servers do.
const ROLES: [Role; 3] = [Role::Manager, Role::Meta, Role::Storage];
/// Longest sleep of a thread that is to see the end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The file system that is watched, as a process of it knows it.
pub struct Cluster {
    /// The name of the machine that watches.
    pub name: String,
    /// The map, kept current by its owner.
    pub map: Arc<RwLock<Arc<ClusterMap>>>,
    /// Whichever manager answers.
    pub managers: Arc<ManagerCalls>,
    /// The servers.
    pub routes: Arc<Routes>,
    /// Threads and the clock.
    pub env: Env,
}

/// See the module. It ends when [`Watch::stop`] is called.
pub struct Watch {
    cluster: Cluster,
    servers: RwLock<BTreeMap<(NodeId, Role), Arc<Server>>>,
    events: Mutex<Events>,
    clients: Mutex<Clients>,
    notes: Mutex<Notes>,
    presence: Mutex<Presence>,
    total: Mutex<History>,
    is_stopping: AtomicBool,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// When there are no threads.
    pub fn start(cluster: Cluster) -> io::Result<Arc<Watch>> {
        let tasks = cluster.env.tasks.clone();
        let watch = Arc::new(Watch {
            cluster,
            servers: RwLock::default(),
            events: Mutex::default(),
            clients: Mutex::default(),
            notes: Mutex::default(),
            presence: Mutex::default(),
            total: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let (following, hearing, stewarding) = (watch.clone(), watch.clone(), watch.clone());
        tasks.spawn("console-events", Box::new(move || following.follow_events()))?;
        tasks.spawn("console-presence", Box::new(move || hearing.follow_presence()))?;
        tasks.spawn("console-steward", Box::new(move || stewarding.steward()))?;
        Ok(watch)
    }

    /// Has all threads end, soon: one may be in a call that has a few seconds left.
    pub fn stop(&self) {
        self.is_stopping.store(true, Relaxed);
    }

    /// The file system.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The map.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.cluster.map.read().clone()
    }

    /// Every server.
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.servers.read().values().cloned().collect()
    }

    /// The server that `node` is as `role`.
    pub fn server(&self, node: NodeId, role: Role) -> Option<Arc<Server>> {
        self.servers.read().get(&(node, role)).cloned()
    }

    /// Clients, by name.
    pub fn clients(&self) -> Vec<(String, Traffic)> {
        self.clients.lock().now()
    }

    /// The history of a client.
    pub fn client(&self, name: &str) -> Option<Client> {
        self.clients.lock().find(name)
    }

    /// What was noticed here, the oldest first.
    pub fn notes(&self) -> Vec<Note> {
        self.notes.lock().all()
    }

    /// The history of all servers together.
    pub fn total(&self) -> History {
        self.total.lock().clone()
    }

    /// Sleeps, but not beyond the end of the watch; tells whether it goes on.
    fn rest(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.is_stopping.load(Relaxed) || left.is_zero() {
                return !self.is_stopping.load(Relaxed);
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn steward(self: &Arc<Watch>) {
        let mut next = Instant::now();
        loop {
            self.keep_servers();
            self.note_figures();
            self.notes.lock().look(&self.servers(), self.cluster.env.clock.now());
            next += FINE_STEP;
            // After a long sleep of the machine, say: no hurry to make up for it.
            next = next.max(Instant::now());
            if !self.rest(next) {
                return;
            }
        }
    }

    /// Watches the servers of the map, and no others.
    fn keep_servers(self: &Arc<Watch>) {
        let map = self.map();
        let wanted: Vec<(NodeId, Role)> =
            ROLES.into_iter().flat_map(|role| map.listening(role).map(move |node| (node.id, role))).collect();
        self.servers.write().retain(|key, server| {
            let is_wanted = wanted.contains(key);
            if !is_wanted {
                server.leave();
            }
            is_wanted
        });
        for (node, role) in wanted {
            let is_new = !self.servers.read().contains_key(&(node, role));
            if is_new && self.servers.read().len() < SERVERS_MAX {
                self.begin(node, role);
            }
        }
    }

    fn begin(self: &Arc<Watch>, node: NodeId, role: Role) {
        let (server, watch) = (Arc::new(Server::new(node, role)), self.clone());
        let watched = server.clone();
        let run = move || while watched.ask(&watch.cluster) && watch.rest(Instant::now() + FINE_STEP) {};
        match self.cluster.env.tasks.spawn("console-server", Box::new(run)) {
            Ok(_) => drop(self.servers.write().insert((node, role), server)),
            Err(error) => tracing::warn!(%error, %node, %role, "no thread to watch a server; trying again"),
        }
    }

    /// Writes the figures of this moment into the histories.
    fn note_figures(&self) {
        let (mut total, mut clients) = (Rates::default(), BTreeMap::<String, Traffic>::new());
        let (mut took_s, mut is_known) = (0.0, false);
        for server in self.servers() {
            let rates = server.note_figures();
            let Some(rates) = rates else { continue };
            is_known = true;
            // What a manager does is no work of programs.
            if server.role != Role::Manager {
                total.calls += rates.calls;
                took_s += rates.mean_s.unwrap_or_default() * rates.calls;
            }
            total.read += rates.read;
            total.written += rates.written;
            for (name, traffic) in rates.clients {
                let sum = clients.entry(name).or_default();
                sum.calls += traffic.calls;
                sum.read += traffic.read;
                sum.written += traffic.written;
            }
        }
        let mean = (total.calls > 0.0).then(|| took_s / total.calls);
        let mut history = self.total.lock();
        history.calls.push(is_known.then_some(total.calls));
        history.read.push(is_known.then_some(total.read));
        history.written.push(is_known.then_some(total.written));
        history.mean_s.push(mean);
        drop(history);
        self.clients.lock().note(&clients);
    }
}
