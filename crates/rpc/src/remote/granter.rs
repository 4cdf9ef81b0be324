//! Storage servers, as a metadata server sees them: it seals capabilities for them, says that it is there, and has them fence sessions that it ends.
//! Why it is so: `docs/adr/0015-capabilities-and-fencing.md`.
//!
//! | of a session that is to end | at a storage server |
//! |---|---|
//! | has said that nothing of it is under way any more | nothing of it arrives |
//! | has drawn a new standing | nothing that was given before counts |
//! | has not been told for [`crate::wire::HEED_TERM`] and a little that this server is there | it heeds nothing that this server gave |
//! | else | it is asked again, and whoever wants what the session has waits |

mod server;

use super::Routes;
use crate::capability::{ready, seal, server_key};
use ashlar_env::Env;
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    Capability, ClusterId, FileLayout, GrantedCapability, InodeId, KeySet, NodeId, Rights, Role, Seal,
    SessionId,
};
use parking_lot::{Mutex, RwLock};
use ring::hmac;
use rustc_hash::FxHashMap;
use server::{Heard, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// For how long a storage server is waited for that answers, but in which something of the session is under way: it waits for a disk, which holds up whoever
/// comes after it in the same place, too.
const UNDER_WAY_MAX: Duration = Duration::from_secs(60);
/// Time between two looks whether a session is fenced.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Time between two looks at the map.
const MAP_EVERY: Duration = Duration::from_millis(200);

/// What a session may do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granting {
    /// The session.
    pub session: SessionId,
    /// Whose it is.
    pub owner: SessionOwner,
    /// The file.
    pub inode: InodeId,
    /// The generation of its chunks.
    pub generation: u32,
    /// What may be done with them.
    pub rights: Rights,
}

/// A start of a metadata server, as storage servers are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceStart {
    /// Its number, larger than those of all starts before, wherever they were.
    pub number: u64,
    /// Whether other machines can serve the metadata server, too. A storage server that does not know of starts yet, because it is of an earlier version, must not be used by such a one: it would
    /// carry out what a start before asks for late. With one that no other machine can serve, it does without as it always has.
    pub is_shared: bool,
}

/// A session that is to be fenced.
struct Fence {
    since: Duration,
    /// Storage servers that may do something for it yet.
    waits_for: Vec<Arc<Server>>,
}

/// See the module. It ends with [`Granter::stop`].
pub struct Granter {
    routes: Arc<Routes>,
    env: Env,
    cluster: ClusterId,
    node: NodeId,
    started: Duration,
    start: Option<ServiceStart>,
    keys: RwLock<KeySet>,
    // LIMIT: one per storage server and good epoch.
    ready: RwLock<FxHashMap<(u64, NodeId), hmac::Key>>,
    // LIMIT: one per storage server.
    servers: RwLock<FxHashMap<NodeId, Arc<Server>>>,
    // LIMIT: as sessions.
    fences: Mutex<FxHashMap<SessionId, Fence>>,
    /// A storage server has newer ones.
    wants_keys: AtomicBool,
    is_stopping: AtomicBool,
}

impl Granter {
    /// On metadata server `node` of file system `cluster`, for the storage servers in the map of `routes`. `start`: which one this is; storage servers carry out nothing more for those before once
    /// they have answered. Each start calls as an instance of its own ([`crate::net::Caller::instance`]). Nothing: it is not told apart.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        routes: Arc<Routes>,
        env: Env,
        (cluster, node): (ClusterId, NodeId),
        keys: KeySet,
        start: Option<ServiceStart>,
    ) -> std::io::Result<Arc<Granter>> {
        let started = env.clock.monotonic();
        let tasks = env.tasks.clone();
        let granter = Arc::new(Granter {
            routes,
            env,
            cluster,
            node,
            started,
            start,
            keys: RwLock::new(keys),
            ready: RwLock::default(),
            servers: RwLock::default(),
            fences: Mutex::default(),
            wants_keys: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        });
        let kept = granter.clone();
        tasks.spawn("ashlar-granter", Box::new(move || kept.follow_map()))?;
        Ok(granter)
    }

    /// Keys that a manager has given since.
    pub fn set_keys(&self, keys: KeySet) {
        let is_good = |epoch: &u64| keys.key(*epoch).is_some();
        self.ready.write().retain(|(epoch, _), _| is_good(epoch));
        *self.keys.write() = keys;
    }

    /// Whether a storage server has had newer keys since this was asked last.
    pub fn wants_keys(&self) -> bool {
        self.wants_keys.swap(false, SeqCst)
    }

    /// Attends no storage server any more.
    pub fn stop(&self) {
        // Not waited for: one may be asking a server that does not answer.
        self.is_stopping.store(true, SeqCst);
        self.servers.read().values().for_each(|server| server.wake());
    }

    /// Waits until every storage server of the map has answered this start, at most for `wait`: from its answer on it carries out nothing of earlier ones. Tells which have not. From one that has
    /// not, nothing is given by this start, and what is asked of it waits for that answer.
    pub fn await_heard(&self, wait: Duration) -> Vec<NodeId> {
        let end = self.env.clock.monotonic() + wait;
        loop {
            let map = self.routes.map();
            let silent =
                map.listening(Role::Storage).map(|node| node.id).filter(|node| !self.has_heard(*node));
            let silent: Vec<NodeId> = silent.collect();
            if silent.is_empty() || self.is_stopping.load(SeqCst) || self.env.clock.monotonic() >= end {
                return silent;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Whether a storage server has answered this start.
    pub fn has_heard(&self, server: NodeId) -> bool {
        self.servers.read().get(&server).is_some_and(|server| server.heard().is_some())
    }

    /// Has every storage server in the map attended.
    fn follow_map(self: &Arc<Granter>) {
        while !self.is_stopping.load(SeqCst) {
            let map = self.routes.map();
            for node in map.listening(Role::Storage) {
                self.attend(node.id);
            }
            // Not before nothing counts there any more: it may serve clients that have an older map, too.
            let now = self.env.clock.monotonic();
            self.servers.write().retain(|node, server| {
                let is_gone = !self.routes.has_address(*node, Role::Storage) && server.has_lapsed(now);
                if is_gone {
                    server.give_up();
                }
                !is_gone
            });
            std::thread::sleep(MAP_EVERY);
        }
    }

    fn attend(self: &Arc<Granter>, node: NodeId) {
        if self.servers.read().contains_key(&node) {
            return;
        }
        let server = Arc::new(Server::new(node, self.started, self.start));
        let (kept, attended) = (self.clone(), server.clone());
        let run = move || attended.attend(&kept.routes, &*kept.env.clock, &kept.is_stopping);
        match self.env.tasks.spawn("ashlar-attend", Box::new(run)) {
            Ok(_) => drop(self.servers.write().insert(node, server)),
            Err(error) => {
                tracing::error!(%error, "no thread can be started; a storage server is not attended")
            }
        }
    }

    /// A capability for the chunks of `layout`.
    pub fn grant(&self, granting: Granting, layout: &FileLayout) -> GrantedCapability {
        let map = self.routes.map();
        let node_of = |target| map.target(target).map(|target| target.node);
        let mut nodes: Vec<NodeId> = map.targets_of(layout).into_iter().filter_map(node_of).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let capability = self.capability(granting);
        let seals = nodes.into_iter().filter_map(|node| self.seal(&capability, node)).collect();
        GrantedCapability { capability, seals }
    }

    /// A capability for one storage server, unless it is not heard of, or what it has `refused` is all there is.
    pub fn grant_at(
        &self,
        granting: Granting,
        server: NodeId,
        refused: Option<(u64, u64)>,
    ) -> Option<GrantedCapability> {
        let capability = self.capability(granting);
        let is_other = |seal: &Seal| Some((seal.standing, seal.since_ms)) != refused;
        let seal = self.seal(&capability, server).filter(is_other);
        if seal.is_none()
            && let Some(server) = self.servers.read().get(&server)
        {
            // It was started anew, has newer keys, or has been told of newer chunks: it is to be asked, and its clock to go on.
            server.wake();
        }
        seal.map(|seal| GrantedCapability { capability, seals: vec![seal] })
    }

    fn capability(&self, granting: Granting) -> Capability {
        let Granting { session, owner, inode, generation, rights } = granting;
        let term_s = Capability::TERM.as_secs() as u32;
        let (cluster, granter) = (self.cluster, self.node);
        Capability { cluster, granter, session, owner, inode, generation, rights, term_s }
    }

    fn seal(&self, capability: &Capability, node: NodeId) -> Option<Seal> {
        let heard = self.servers.read().get(&node)?.heard()?;
        let key_epoch = self.common_epoch(&heard)?;
        let unsealed =
            Seal { server: node, standing: heard.standing, since_ms: heard.now_ms, key_epoch, mac: [0; 32] };
        if let Some(key) = self.ready.read().get(&(key_epoch, node)) {
            return Some(seal(key, capability, unsealed));
        }
        let key = ready(&server_key(self.keys.read().key(key_epoch)?, node));
        let sealed = seal(&key, capability, unsealed);
        self.ready.write().insert((key_epoch, node), key);
        Some(sealed)
    }

    /// The newest epoch of keys that both have.
    fn common_epoch(&self, heard: &Heard) -> Option<u64> {
        let (oldest, newest) = self.keys.read().epochs()?;
        if heard.epochs.1 > newest {
            self.wants_keys.store(true, SeqCst);
        }
        let common = newest.min(heard.epochs.1);
        (common >= oldest.max(heard.epochs.0)).then_some(common)
    }

    /// Begins to have `session` fenced: storage servers are told to carry nothing out for it any more. Once more is the same.
    pub fn begin_fence(&self, session: SessionId) {
        let mut fences = self.fences.lock();
        if fences.contains_key(&session) {
            return;
        }
        let waits_for: Vec<Arc<Server>> = self.servers.read().values().cloned().collect();
        waits_for.iter().for_each(|server| server.fence(session));
        fences.insert(session, Fence { since: self.env.clock.monotonic(), waits_for });
    }

    /// For how long `session`, which is being fenced, is at least to be waited for; nothing once no storage server does anything for it any more.
    pub fn fence_left(&self, session: SessionId) -> Duration {
        let now = self.env.clock.monotonic();
        let mut fences = self.fences.lock();
        let Some(fence) = fences.get_mut(&session) else { return Duration::ZERO };
        let age = now.saturating_sub(fence.since);
        fence.waits_for.retain(|server| {
            let may_do_more = server.is_to_fence(session) && !server.has_lapsed(now);
            if may_do_more && age >= UNDER_WAY_MAX {
                tracing::error!(%session, server = %server.node, "something of a session that is over is still under way on a storage server; it is not waited for any longer");
                return false;
            }
            may_do_more
        });
        if fence.waits_for.is_empty() { Duration::ZERO } else { LOOK_PAUSE }
    }

    /// The session has ended. Storage servers that were not reached are told yet.
    pub fn forget_fence(&self, session: SessionId) {
        self.fences.lock().remove(&session);
    }
}
