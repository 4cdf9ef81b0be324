//! Metadata behind the network: sessions of callers that may fall silent, and what is told them unasked.

mod admin;
mod capability;
mod policy;
mod proof;
mod silence;
mod subtree;

pub use proof::Proofs;

use super::ClientCounts;
use crate::net::frame::Frame;
use crate::net::{Endpoint, Peer, Replier};
use crate::remote::Granter;
use crate::wire::{COUNT_BITS, LEASE_TERM, MetaAnswer, MetaCall};
use crate::{Caller, HoldsBack, Hosted, LastingSessions, Reports, SessionEvents, SessionHosts};
use ashlar_env::Clock;
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{Addressee, LeaseSet, MetaRequest, SessionEvent};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Attr, ClusterMap, Errno, EventKind, InodeId, NodeId, NodePolicy, Role, SessionId};
use parking_lot::{Mutex, RwLock};
use proof::{for_something, opens_for_writing};
use rustc_hash::{FxHashMap, FxHashSet};
use silence::Ended;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// For how much longer than its term a lease is respected: clocks run at different speeds, and a thread that is to drop a lease may have to wait
/// for a processor.
const DRIFT_MAX: Duration = Duration::from_secs(1);
/// For how long a session is believed that it waits for a disk.
const BUSY_MAX: Duration = Duration::from_secs(3);
/// Sessions of one node: each of its mounts has one.
// LIMIT: of a node; all nodes together have `SESSIONS_MAX` of the metadata service.
const SESSIONS_OF_NODE_MAX: usize = 1024;
/// Events that one answer carries.
// LIMIT: of an answer.
const EVENTS_MAX: usize = 1024;

/// See the module.
pub struct MetaEndpoint {
    meta: Arc<dyn LastingSessions>,
    clock: Arc<dyn Clock>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    sessions: RwLock<FxHashMap<SessionId, Arc<RemoteSession>>>,
    /// Those that are just being forgotten without their holders hearing of it.
    // LIMIT: as sessions. Its lock is a leaf, as that of `ended`.
    leaving: Mutex<FxHashSet<SessionId>>,
    /// Sessions that were ended here without their holders having said so. One that had come with a shard may not know this server yet, and is
    /// not to go on here as if it still had what it had.
    ended: Mutex<Ended>,
    started: Duration,
    granter: Arc<Granter>,
    proofs: Arc<Proofs>,
    reports: Arc<OnceLock<Arc<dyn Reports>>>,
    clients: Arc<ClientCounts>,
    /// Where the log has copies on other machines.
    copies: Copies,
}

/// The far end of a session.
struct RemoteSession {
    id: OnceLock<SessionId>,
    granter: Arc<Granter>,
    owner: SessionOwner,
    /// When this start of the service first knew it, seconds since 1970.
    since_s: u64,
    clock: Arc<dyn Clock>,
    /// That of its node, as it was last told to the session.
    policy: RwLock<Arc<NodePolicy>>,
    /// Of the map by which that was last looked at.
    policy_epoch: AtomicU64,
    state: Mutex<SessionState>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    reports: Arc<OnceLock<Arc<dyn Reports>>>,
    copies: Copies,
}

/// What the endpoint and all of its sessions have in common.
type Copies = Arc<OnceLock<Arc<dyn HoldsBack>>>;

/// Answers, once that may be told where there are copies. Who is told to come later asks the one that answers then.
fn tell(copies: Option<&Arc<dyn HoldsBack>>, replier: Replier, answer: Vec<u8>) {
    match copies {
        None => replier.reply(&answer, &[]),
        Some(copies) => copies.hold(Box::new(move |is_told, answers| match is_told {
            true => replier.reply_with(answers, &answer),
            // Who says it once more is answered what is kept of it, here or elsewhere, or it was not done.
            false => replier.reply_with(answers, &encode(&MetaAnswer::Later)),
        })),
    }
}

impl RemoteSession {
    /// Tells administrators why it ends; `text` is about session `id`.
    fn report(&self, kind: EventKind, id: SessionId, text: &str) {
        let Some(reports) = self.reports.get() else { return };
        let node = self.owner.node;
        let name = self.map.read().node(node).map_or_else(|| node.to_string(), |known| known.name.clone());
        reports.report(kind, &name, &format!("{id}: {text}"));
    }
}

struct SessionState {
    /// What was not acknowledged yet.
    // LIMIT: one recall per lease it holds and one event per lock it waits for; both tables are bounded.
    events: VecDeque<(u64, SessionEvent)>,
    newest: u64,
    parked: Option<(Replier, Duration)>,
    renewed: Duration,
    busy: Vec<InodeId>,
    standing: Standing,
    /// It is to be ended, and not renewed any more.
    is_revoked: bool,
    /// An administrator wants it to end: once its leases have run out.
    is_ending: bool,
}

/// Whether a session is known here only because another server has told of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Unmet,
    /// Its holder has called, which is just being noted.
    Noting,
    /// Its holder has called, durably, or has something here by a shard that has come.
    Met,
}

/// While it is noted that the holder of a session has called. Whatever becomes of that, it does not count as being noted for ever.
struct Noting<'s>(&'s RemoteSession);

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        // A shard may have come meanwhile.
        if state.standing == Standing::Noting {
            state.standing = Standing::Unmet;
        }
    }
}

impl SessionState {
    fn next_events(&self) -> MetaAnswer {
        MetaAnswer::Events(self.events.iter().take(EVENTS_MAX).cloned().collect())
    }

    fn forget_seen(&mut self, seen: u64) {
        while self.events.front().is_some_and(|(number, _)| *number <= seen) {
            self.events.pop_front();
        }
    }
}

impl SessionEvents for RemoteSession {
    fn deliver(&self, event: SessionEvent) {
        if let SessionEvent::Evicted { session } = event {
            let text = "it did not give back what others needed; its locks and leases go to them";
            self.report(EventKind::SessionEvicted, session, text);
        }
        let mut state = self.state.lock();
        state.newest += 1;
        let number = state.newest;
        state.events.push_back((number, event));
        if let Some((replier, _)) = state.parked.take() {
            let answer = encode(&state.next_events());
            drop(state);
            tell(self.copies.get(), replier, answer);
        }
    }

    fn is_busy(&self, inode: InodeId) -> bool {
        let state = self.state.lock();
        let age = self.clock.monotonic().saturating_sub(state.renewed);
        age < BUSY_MAX && state.busy.contains(&inode)
    }

    fn revoke(&self) -> Duration {
        let leased = {
            let mut state = self.state.lock();
            state.is_revoked = true;
            // Its holder counts from before the renewal that was seen here.
            let age = self.clock.monotonic().saturating_sub(state.renewed);
            (LEASE_TERM + DRIFT_MAX).saturating_sub(age)
        };
        leased.max(self.fence())
    }

    fn met(&self) {
        let mut state = self.state.lock();
        if !state.is_revoked && state.standing != Standing::Met {
            (state.standing, state.renewed) = (Standing::Met, self.clock.monotonic());
        }
    }
}

impl RemoteSession {
    /// Something was heard of it; tells whether that counts: it does not once it is being ended.
    fn is_heard(&self, now: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_revoked {
            state.renewed = now;
        }
        !state.is_revoked
    }

    /// Has storage servers do nothing more for it, once it is revoked; tells for how long that is to be waited for.
    fn fence(&self) -> Duration {
        let Some(&id) = self.id.get() else { return Duration::ZERO };
        self.granter.begin_fence(id);
        self.granter.fence_left(id)
    }
}

fn owner_of(peer: &Peer) -> SessionOwner {
    SessionOwner { node: peer.id.node, instance: peer.instance }
}

/// Who may call metadata.
const CALLERS: [Role; 4] = [Role::Client, Role::Admin, Role::Meta, Role::Console];
/// What others are told.
const NOT_SERVED: &str = "metadata serves clients, metadata servers, administrators and consoles";

impl MetaEndpoint {
    /// Serves `meta`, to nodes as the policies in `map` say, which somebody keeps current; `granter` gives them capabilities for storage servers,
    /// and `proofs` what they show when what they have open is not known any more.
    pub fn new(
        meta: Arc<dyn LastingSessions>,
        map: Arc<RwLock<Arc<ClusterMap>>>,
        clock: Arc<dyn Clock>,
        granter: Arc<Granter>,
        proofs: Arc<Proofs>,
    ) -> MetaEndpoint {
        let started = clock.monotonic();
        let (sessions, ended, leaving, reports, clients) = Default::default();
        let endpoint = MetaEndpoint {
            meta,
            clock,
            map,
            sessions,
            ended,
            leaving,
            started,
            granter,
            proofs,
            reports,
            clients,
            copies: Copies::default(),
        };
        let awaited = endpoint.meta.awaited().into_iter().map(|known| (known, Standing::Met));
        let unmet = endpoint.meta.unmet().into_iter().map(|known| (known, Standing::Unmet));
        for ((id, owner), standing) in awaited.chain(unmet) {
            let session = endpoint.session_of(owner, standing);
            session.id.get_or_init(|| id);
            endpoint.meta.adopt(id, session.clone());
            endpoint.sessions.write().insert(id, session);
        }
        endpoint
    }

    /// Has `reports` told why sessions end. Only the first one that is given counts.
    #[must_use]
    pub fn reporting_to(self, reports: Arc<dyn Reports>) -> MetaEndpoint {
        let _ = self.reports.set(reports);
        self
    }

    /// Has answers held back until copies have what they tell of.
    #[must_use]
    pub fn with_copies(self, copies: Arc<dyn HoldsBack>) -> MetaEndpoint {
        // Those that were there before have it as well.
        let _ = self.copies.set(copies);
        self
    }

    /// What clients have asked for.
    pub fn clients(&self) -> Arc<ClientCounts> {
        self.clients.clone()
    }

    fn session_of(&self, owner: SessionOwner, standing: Standing) -> Arc<RemoteSession> {
        let state = SessionState {
            events: VecDeque::new(),
            // Above all that were numbered before the service was started.
            newest: self.meta.incarnation() << COUNT_BITS,
            parked: None,
            renewed: self.clock.monotonic(),
            busy: Vec::new(),
            standing,
            is_revoked: false,
            is_ending: false,
        };
        let since_s = self.clock.now().secs.max(0) as u64;
        let policy = RwLock::new(Arc::new(self.policy_of(owner.node)));
        Arc::new(RemoteSession {
            id: OnceLock::new(),
            granter: self.granter.clone(),
            owner,
            since_s,
            clock: self.clock.clone(),
            policy,
            policy_epoch: AtomicU64::new(0),
            state: Mutex::new(state),
            map: self.map.clone(),
            reports: self.reports.clone(),
            copies: self.copies.clone(),
        })
    }

    /// What `node` may do; one that is not in the map (any more) as little as a new one.
    fn policy_of(&self, node: NodeId) -> NodePolicy {
        self.map.read().node(node).map(|known| known.policy.clone()).unwrap_or_default()
    }

    /// Has calls of the session go by the policy that its node has now. What it has cached by another one it is told to drop. A node that may not
    /// change anything any more, or sees something else, has its session ended: what it was writing is then asked of the targets, and nothing is lost that they have.
    fn follow_policy(&self, id: SessionId, session: &RemoteSession) {
        let epoch = self.map.read().epoch.0;
        if session.policy_epoch.load(Relaxed) == epoch {
            return;
        }
        let now = self.policy_of(session.owner.node);
        let before = {
            let mut kept = session.policy.write();
            // ORDER: under the lock. Who finds this epoch finds the policy, too.
            session.policy_epoch.store(epoch, Relaxed);
            if **kept == now {
                return;
            }
            // ORDER: calls go by it before the session is told. So what it asks for after it was told is as it should be.
            std::mem::replace(&mut *kept, Arc::new(now.clone()))
        };
        tracing::info!(session = %id, node = %session.owner.node, policy = %now, "the policy of a node has changed");
        // What is open, cached and locked outside of what the node sees from now on goes with the session.
        match now.read_only && !before.read_only || now.subtree != before.subtree {
            true => drop(self.begin_end(id)),
            false => session.deliver(SessionEvent::Expired),
        }
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.sessions.read().len()
    }

    fn end(&self, id: SessionId) {
        let session = self.sessions.write().remove(&id);
        // What it was given is worth nothing from now on, also if it ends by its own wish.
        self.granter.begin_fence(id);
        self.meta.close_session(id);
        self.granter.forget_fence(id);
        let parked = session.and_then(|session| session.state.lock().parked.take());
        if let Some((replier, _)) = parked {
            self.tell(replier, &MetaAnswer::Failed(Errno::ENOTCONN));
        }
    }

    fn tell(&self, replier: Replier, answer: &MetaAnswer) {
        tell(self.copies.get(), replier, encode(answer));
    }

    fn open(&self, peer: &Peer, wanted: Option<SessionId>) -> MetaAnswer {
        // Asked for once more, as the answer was lost; or it has come with a shard.
        if let Some(known) = wanted {
            // ORDER: looked at first. Whoever is being forgotten is not found before, or after, for one that has ended.
            if self.leaving.lock().contains(&known) {
                return MetaAnswer::Later;
            }
            let found = self.sessions.read().get(&known).cloned();
            match found {
                Some(session) => return self.open_again(peer, (known, &session)),
                None if self.leaving.lock().contains(&known) => return MetaAnswer::Later,
                None if self.ended.lock().has(known) => return MetaAnswer::Failed(Errno::ENOTCONN),
                None => {}
            }
        }
        if self.meta.is_awaiting() {
            return MetaAnswer::Later;
        }
        let node = peer.id.node;
        let of_node = self.sessions.read().values().filter(|session| session.owner.node == node).count();
        if of_node >= SESSIONS_OF_NODE_MAX {
            tracing::warn!(%node, of_node, "a node has as many sessions as one may have");
            return MetaAnswer::Failed(Errno::EAGAIN);
        }
        let session = self.session_of(owner_of(peer), Standing::Met);
        match self.meta.open_lasting(wanted, owner_of(peer), session.clone()) {
            Ok(grant) => {
                session.id.get_or_init(|| grant.session);
                self.sessions.write().insert(grant.session, session);
                MetaAnswer::Session(grant.session, grant.incarnation)
            }
            // It has just come along with a shard.
            Err(Errno::EEXIST) => MetaAnswer::Later,
            Err(errno) => MetaAnswer::Failed(errno),
        }
    }

    /// Opens a session that is here: the answer was lost, or it has come along with a shard.
    fn open_again(&self, peer: &Peer, (id, session): (SessionId, &Arc<RemoteSession>)) -> MetaAnswer {
        let is_own = session.owner == owner_of(peer);
        if is_own && session.is_heard(self.clock.monotonic()) {
            match self.meet(id, session) {
                Ok(()) if self.must_reclaim(id) => return MetaAnswer::MustReclaim(self.meta.incarnation()),
                Ok(()) => return MetaAnswer::Session(id, self.meta.incarnation()),
                // It has just been given up, or is just being forgotten.
                Err(Errno::ENOTCONN) => {}
                Err(errno) => return refused(errno),
            }
        }
        // ORDER: in the order in which it goes, being forgotten.
        let is_leaving = self.leaving.lock().contains(&id);
        let is_gone = !self.sessions.read().contains_key(&id);
        let is_forgotten = is_leaving || is_gone && !self.ended.lock().has(id);
        if is_forgotten { MetaAnswer::Later } else { MetaAnswer::Failed(Errno::ENOTCONN) }
    }

    /// The session, if it is the caller's.
    ///
    /// # Errors
    /// `ENOTCONN` when it is not, or is being ended; `EHOSTDOWN` as [`MetaEndpoint::meet`].
    fn own(&self, peer: &Peer, id: SessionId) -> Result<Arc<RemoteSession>, Errno> {
        let session = self.sessions.read().get(&id).cloned();
        let session = session.filter(|session| session.owner == owner_of(peer)).ok_or(Errno::ENOTCONN)?;
        self.meet(id, &session)?;
        Ok(session)
    }

    /// The holder of `session` has called.
    ///
    /// # Errors
    /// `EHOSTDOWN` when that cannot be noted now; `ENOTCONN` when it is being ended or forgotten.
    fn meet(&self, id: SessionId, session: &RemoteSession) -> Result<(), Errno> {
        {
            let mut state = session.state.lock();
            match state.standing {
                _ if state.is_revoked => return Err(Errno::ENOTCONN),
                Standing::Met => return Ok(()),
                // Nobody goes on before it is noted. Not waited for: the log may be behind.
                Standing::Noting => return Err(Errno::EHOSTDOWN),
                // ORDER: it is not forgotten from here on.
                Standing::Unmet => {
                    (state.standing, state.renewed) = (Standing::Noting, self.clock.monotonic())
                }
            }
        }
        let noting = Noting(session);
        let noted = self.meta.meet(id);
        if noted.is_ok() {
            session.state.lock().standing = Standing::Met;
        }
        drop(noting);
        noted.map_err(|errno| {
            tracing::warn!(session = %id, %errno, "that the holder of a session has come cannot be noted; it is to ask again");
            Errno::EHOSTDOWN
        })
    }

    /// Of which session events are asked for, unless the answer is another one.
    fn listening(&self, peer: &Peer, id: SessionId) -> Result<Arc<RemoteSession>, Box<MetaAnswer>> {
        let session = self.own(peer, id).map_err(|errno| Box::new(refused(errno)))?;
        match self.must_reclaim(id) {
            true => Err(Box::new(MetaAnswer::MustReclaim(self.meta.incarnation()))),
            false => Ok(session),
        }
    }

    fn events(&self, peer: &Peer, (id, seen): (SessionId, u64), replier: Replier) {
        let session = match self.listening(peer, id) {
            Ok(session) => session,
            Err(answer) => return self.tell(replier, &answer),
        };
        let mut state = session.state.lock();
        state.forget_seen(seen);
        if !state.events.is_empty() {
            let answer = state.next_events();
            drop(state);
            return self.tell(replier, &answer);
        }
        let before = state.parked.replace((replier, self.clock.monotonic()));
        drop(state);
        // ORDER: whoever removed the session has looked for what is parked before.
        if self.own(peer, id).is_err()
            && let Some((replier, _)) = session.state.lock().parked.take()
        {
            self.tell(replier, &MetaAnswer::Failed(Errno::ENOTCONN));
        }
        if let Some((replier, _)) = before {
            self.tell(replier, &MetaAnswer::Events(Vec::new()));
        }
    }

    /// Whether a session was opened before the service was started, and has not told yet what it has.
    fn must_reclaim(&self, id: SessionId) -> bool {
        self.meta.is_awaiting() && self.meta.is_awaited(id)
    }

    fn call(
        &self,
        session: &RemoteSession,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        is_administrator: bool,
    ) -> MetaAnswer {
        let is_of_this_start = match &request {
            MetaRequest::Reclaim { incarnation, .. } => *incarnation == self.meta.incarnation(),
            _ => !self.must_reclaim(caller.op.session),
        };
        if !is_of_this_start {
            return MetaAnswer::MustReclaim(self.meta.incarnation());
        }
        if self.meta.is_awaiting() && !ends_a_wait(&request) {
            return MetaAnswer::Later;
        }
        let home = if let Addressee::Home(inode) = request.addressee() { Some(inode) } else { None };
        if home.is_some_and(|inode| !self.meta.has_home_of(inode)) {
            return MetaAnswer::NotHere;
        }
        if !self.knows_fileset(&request) {
            return MetaAnswer::Later;
        }
        self.follow_policy(caller.op.session, session);
        if session.state.lock().is_revoked {
            return MetaAnswer::Failed(Errno::ENOTCONN);
        }
        // An administrator could give his node any policy.
        let policy = match is_administrator {
            true => Arc::new(NodePolicy::trusting()),
            false => session.policy.read().clone(),
        };
        let asked_about = match request.addressee() {
            Addressee::Home(inode) => Some(inode),
            _ => None,
        };
        let (may_write, request) = (opens_for_writing(&request), for_something(request));
        let call = |request| self.call_under(&policy, caller, request);
        let outcome = match request {
            MetaRequest::Reclaim { server, incarnation, part } => {
                let told = (caller.op.session, session.owner.node);
                self.reclaim_proven(told, part, |part| {
                    call(MetaRequest::Reclaim { server, incarnation, part })
                })
            }
            request => call(request),
        };
        match outcome {
            Ok(reply) => {
                let answer = self.with_capability(session, (caller.op.session, asked_about), reply);
                let answer = self.with_proof(session, may_write, answer);
                match caller.directory.and_then(OnceLock::get).cloned() {
                    Some((mut attr, leases)) => {
                        policy.attr_to_node(&mut attr);
                        in_directory(answer, attr, leases)
                    }
                    None => answer,
                }
            }
            // Nothing was done; the caller says for how long it is worth trying.
            Err(Errno::EHOSTDOWN) => MetaAnswer::Later,
            // Its shard has gone while it was looked at, with all that was known of it.
            Err(_) if home.is_some_and(|inode| !self.meta.has_home_of(inode)) => MetaAnswer::NotHere,
            Err(errno) => MetaAnswer::Failed(errno),
        }
    }

    fn renew(&self, peer: &Peer, id: SessionId, busy: Vec<InodeId>) -> MetaAnswer {
        match self.own(peer, id) {
            Ok(session) => {
                let mut state = session.state.lock();
                (state.renewed, state.busy) = (self.clock.monotonic(), busy);
                drop(state);
                match (self.must_reclaim(id), self.meta.map_to_renew_by()) {
                    (true, _) => MetaAnswer::MustReclaim(self.meta.incarnation()),
                    (false, Some(epoch)) => MetaAnswer::Renewed(epoch),
                    (false, None) => MetaAnswer::Later,
                }
            }
            Err(errno) => refused(errno),
        }
    }
}

impl SessionHosts for MetaEndpoint {
    fn host(&self, session: SessionId, owner: SessionOwner) -> Hosted {
        // ORDER: held until it is heard. Whoever is about to forget it has all of this before, or behind what is looked at next.
        let mut sessions = self.sessions.write();
        if self.leaving.lock().contains(&session) {
            return Hosted::Later;
        }
        if self.ended.lock().has(session) {
            return Hosted::Ended;
        }
        let fresh = || {
            let fresh = self.session_of(owner, Standing::Unmet);
            fresh.id.get_or_init(|| session);
            fresh
        };
        let hosted = sessions.entry(session).or_insert_with(fresh).clone();
        let mut state = hosted.state.lock();
        if state.is_revoked || hosted.owner != owner {
            return Hosted::Ended;
        }
        state.renewed = self.clock.monotonic();
        drop(state);
        Hosted::At(hosted)
    }
}

/// What is answered for a session that nothing can be done for.
fn refused(errno: Errno) -> MetaAnswer {
    if errno == Errno::EHOSTDOWN { MetaAnswer::Later } else { MetaAnswer::Failed(errno) }
}

/// `answer`, with what it has made of the directory.
fn in_directory(answer: MetaAnswer, attr: Attr, leases: LeaseSet) -> MetaAnswer {
    match answer {
        MetaAnswer::Reply(reply) => MetaAnswer::InDirectory(reply, None, None, attr, leases),
        MetaAnswer::Granted(reply, granted) => {
            MetaAnswer::InDirectory(reply, None, Some(granted), attr, leases)
        }
        MetaAnswer::Opened(reply, proof, granted) => {
            MetaAnswer::InDirectory(reply, Some(proof), granted, attr, leases)
        }
        other => other,
    }
}

/// Whether the end of the wait for others may wait for this: one that does not come back is ended, and what it wrote is found out when those who write beside it have told
/// what they have.
fn ends_a_wait(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::Reclaim { .. } | MetaRequest::RecallDone { .. } | MetaRequest::CommitWrite { .. }
    )
}

/// Why a caller in this role may not say this.
fn refusal(role: Role, call: &MetaCall<'_>) -> Option<&'static str> {
    match call {
        MetaCall::Peer(_) if role == Role::Meta => None,
        MetaCall::Peer(_) => Some("only metadata servers may say that"),
        _ if role == Role::Meta => Some("metadata serves clients"),
        MetaCall::Sessions | MetaCall::Moves if role.is_of_management() => None,
        MetaCall::Sessions | MetaCall::Moves => {
            Some("only an administrator may see sessions, and which shards are moved")
        }
        _ if role == Role::Console => Some("a console may see sessions and moves, and nothing else"),
        _ if role == Role::Admin => None,
        MetaCall::EndSession(_) | MetaCall::MoveShards { .. } | MetaCall::WithdrawMoves { .. } => {
            Some("only an administrator may end sessions and move shards")
        }
        MetaCall::Call { request: MetaRequest::SetFileset { .. }, .. }
        | MetaCall::CallYielding { request: MetaRequest::SetFileset { .. }, .. }
        | MetaCall::CallInDirectory { request: MetaRequest::SetFileset { .. }, .. } => {
            Some("only an administrator may set filesets")
        }
        MetaCall::Backup { .. } => Some("only an administrator may back metadata up"),
        _ => None,
    }
}

impl MetaEndpoint {
    /// What `peer` is answered at this moment. A question for events is not held back here: where there are none, none are told.
    ///
    /// # Errors
    /// Why it may not say that.
    pub fn answer(&self, peer: &Peer, call: MetaCall<'_>) -> Result<MetaAnswer, &'static str> {
        match refusal(peer.role, &call) {
            _ if !CALLERS.contains(&peer.role) => Err(NOT_SERVED),
            Some(why) => Err(why),
            None => Ok(self.carry_out(peer, call)),
        }
    }

    fn call_of(&self, peer: &Peer, caller: Caller<'_>, request: MetaRequest<'_>) -> MetaAnswer {
        match self.own(peer, caller.op.session) {
            Ok(session) => {
                self.clients.note(peer.id.node, 0, 0);
                self.call(&session, caller, request, peer.role == Role::Admin)
            }
            Err(errno) => refused(errno),
        }
    }

    fn carry_out(&self, peer: &Peer, call: MetaCall<'_>) -> MetaAnswer {
        let done =
            |outcome: Result<(), Errno>| outcome.map_or_else(MetaAnswer::Failed, |()| MetaAnswer::Done);
        match call {
            MetaCall::Peer(message) => match self.meta.hear(message, self) {
                Ok(answer) => MetaAnswer::Peer(answer),
                Err(errno) => MetaAnswer::Failed(errno),
            },
            MetaCall::Sessions => self.list(),
            MetaCall::Moves => MetaAnswer::Moves(self.meta.moves()),
            MetaCall::Open(wanted) => self.open(peer, wanted),
            MetaCall::OpenSync(wanted) => self.open(peer, Some(wanted)),
            MetaCall::Close(session) => done(self.own(peer, session).map(|_| self.end(session))),
            MetaCall::Call { op, creds, slot, request } => {
                let caller = Caller { slot, ..Caller::new(op, &creds) };
                self.call_of(peer, caller, request)
            }
            MetaCall::CallYielding { op, creds, slot, request } => {
                let caller = Caller { slot, yields: true, ..Caller::new(op, &creds) };
                self.call_of(peer, caller, request)
            }
            MetaCall::CallInDirectory { op, creds, slot, request } => {
                let directory = OnceLock::new();
                let caller = Caller { slot, directory: Some(&directory), ..Caller::new(op, &creds) };
                self.call_of(peer, caller, request)
            }
            MetaCall::Capability(wanted) => match self.own(peer, wanted.session) {
                Ok(session) => self.capability(&session, wanted),
                Err(errno) => refused(errno),
            },
            MetaCall::Events { session, seen } => match self.listening(peer, session) {
                Ok(session) => {
                    let mut state = session.state.lock();
                    state.forget_seen(seen);
                    state.next_events()
                }
                Err(answer) => *answer,
            },
            MetaCall::Renew { session, busy } => self.renew(peer, session, busy),
            MetaCall::Backup { backup, step } => match self.meta.backup(backup, step) {
                Ok(told) => MetaAnswer::Backup(told),
                Err(errno) => MetaAnswer::Failed(errno),
            },
            MetaCall::MoveShards { shards, to } => match self.meta.move_shards(&shards, to, owner_of(peer)) {
                Err(Errno::EHOSTDOWN) => MetaAnswer::NotHere,
                outcome => done(outcome),
            },
            MetaCall::WithdrawMoves { shards } => MetaAnswer::Withdrawn(self.meta.withdraw_moves(&shards)),
            MetaCall::EndSession(session) => self.begin_end(session),
        }
    }
}

impl Endpoint for MetaEndpoint {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        if !CALLERS.contains(&peer.role) {
            return replier.refuse(NOT_SERVED);
        }
        let Ok(call) = decode::<MetaCall<'_>>(frame.head(), "metadata call") else {
            return replier.refuse("that is no call to metadata");
        };
        match (refusal(peer.role, &call), call) {
            (Some(why), _) => replier.refuse(why),
            (None, MetaCall::Events { session, seen }) => self.events(peer, (session, seen), replier),
            (None, call) => {
                let answer = self.carry_out(peer, call);
                self.tell(replier, &answer);
            }
        }
    }

    fn forgotten(&self, peer: &Peer) {
        let gone: Vec<SessionId> = {
            let sessions = self.sessions.read();
            sessions
                .iter()
                .filter(|(_, session)| session.owner == owner_of(peer))
                .map(|(id, _)| *id)
                .collect()
        };
        // Ended as one that is silent: whoever comes after it must not meet anything of it.
        gone.into_iter().for_each(|id| drop(self.begin_end(id)));
    }
}
