//! Metadata behind the network: sessions of callers that may fall silent, and what is told them unasked.

mod admin;
mod policy;

use crate::net::frame::Frame;
use crate::net::{Endpoint, Peer, Replier};
use crate::wire::{COUNT_BITS, LEASE_TERM, MetaAnswer, MetaCall, SILENCE_MAX};
use crate::{Caller, LastingSessions, SessionEvents};
use ashlar_env::Clock;
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{Addressee, MetaRequest, SessionEvent};
use ashlar_types::node::SessionOwner;
use ashlar_types::{ClusterMap, Errno, InodeId, NodeId, NodePolicy, Role, SessionId};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// For how much longer than its term a lease is respected: clocks run at different speeds, and a thread that is to drop a lease may have to wait
/// for a processor.
const DRIFT_MAX: Duration = Duration::from_secs(1);
/// For how long a question for events is held back.
const PARKED_MAX: Duration = Duration::from_secs(20);
/// For how long a session is believed that it waits for a disk.
const BUSY_MAX: Duration = Duration::from_secs(3);
/// Events that one answer carries.
// LIMIT: of an answer.
const EVENTS_MAX: usize = 1024;

/// See the module.
pub struct MetaEndpoint {
    meta: Arc<dyn LastingSessions>,
    clock: Arc<dyn Clock>,
    map: Arc<RwLock<Arc<ClusterMap>>>,
    sessions: RwLock<FxHashMap<SessionId, Arc<RemoteSession>>>,
    started: Duration,
}

/// The far end of a session.
struct RemoteSession {
    owner: SessionOwner,
    /// When this start of the service first knew it, seconds since 1970.
    since_s: u64,
    clock: Arc<dyn Clock>,
    /// That of its node, as it was last told to the session.
    policy: RwLock<Arc<NodePolicy>>,
    state: Mutex<SessionState>,
}

struct SessionState {
    /// What was not acknowledged yet.
    // LIMIT: one recall per lease it holds and one event per lock it waits for; both tables are bounded.
    events: VecDeque<(u64, SessionEvent)>,
    newest: u64,
    parked: Option<(Replier, Duration)>,
    renewed: Duration,
    busy: Vec<InodeId>,
    /// It is to be ended, and not renewed any more.
    is_revoked: bool,
    /// An administrator wants it to end: once its leases have run out.
    is_ending: bool,
}

impl SessionState {
    fn next_events(&self) -> Vec<u8> {
        encode(&MetaAnswer::Events(self.events.iter().take(EVENTS_MAX).cloned().collect()))
    }
}

impl SessionEvents for RemoteSession {
    fn deliver(&self, event: SessionEvent) {
        let mut state = self.state.lock();
        state.newest += 1;
        let number = state.newest;
        state.events.push_back((number, event));
        if let Some((replier, _)) = state.parked.take() {
            let answer = state.next_events();
            drop(state);
            replier.reply(&answer, &[]);
        }
    }

    fn is_busy(&self, inode: InodeId) -> bool {
        let state = self.state.lock();
        let age = self.clock.monotonic().saturating_sub(state.renewed);
        age < BUSY_MAX && state.busy.contains(&inode)
    }

    fn revoke(&self) -> Duration {
        let mut state = self.state.lock();
        state.is_revoked = true;
        // Its holder counts from before the renewal that was seen here.
        let age = self.clock.monotonic().saturating_sub(state.renewed);
        (LEASE_TERM + DRIFT_MAX).saturating_sub(age)
    }
}

/// For how long after a start sessions are waited for that are there and do not tell what they have.
const RECLAIM_MAX: Duration = Duration::from_secs(60);

fn owner_of(peer: &Peer) -> SessionOwner {
    SessionOwner { node: peer.id.node, instance: peer.instance }
}

/// Who may call metadata.
const CALLERS: [Role; 3] = [Role::Client, Role::Admin, Role::Meta];

impl MetaEndpoint {
    /// Serves `meta`, to nodes as the policies in `map` say, which somebody keeps current.
    pub fn new(
        meta: Arc<dyn LastingSessions>,
        map: Arc<RwLock<Arc<ClusterMap>>>,
        clock: Arc<dyn Clock>,
    ) -> MetaEndpoint {
        let started = clock.monotonic();
        let endpoint = MetaEndpoint { meta, clock, map, sessions: RwLock::default(), started };
        for (id, owner) in endpoint.meta.awaited() {
            let session = endpoint.session_of(owner);
            endpoint.meta.adopt(id, session.clone());
            endpoint.sessions.write().insert(id, session);
        }
        endpoint
    }

    fn session_of(&self, owner: SessionOwner) -> Arc<RemoteSession> {
        let state = SessionState {
            events: VecDeque::new(),
            // Above all that were numbered before the service was started.
            newest: self.meta.incarnation() << COUNT_BITS,
            parked: None,
            renewed: self.clock.monotonic(),
            busy: Vec::new(),
            is_revoked: false,
            is_ending: false,
        };
        let since_s = self.clock.now().secs.max(0) as u64;
        let policy = RwLock::new(Arc::new(self.policy_of(owner.node)));
        Arc::new(RemoteSession {
            owner,
            since_s,
            clock: self.clock.clone(),
            policy,
            state: Mutex::new(state),
        })
    }

    /// What `node` may do; one that is not in the map (any more) as little as a new one.
    fn policy_of(&self, node: NodeId) -> NodePolicy {
        self.map.read().node(node).map(|known| known.policy.clone()).unwrap_or_default()
    }

    /// Has calls of the session go by the policy that its node has now. What it has cached by another one it is told to drop. A node that may not
    /// change anything any more has its session ended: what it was writing is then asked of the targets, and nothing is lost that they have.
    fn follow_policy(&self, id: SessionId, session: &RemoteSession) {
        let now = self.policy_of(session.owner.node);
        let before = {
            let mut kept = session.policy.write();
            if **kept == now {
                return;
            }
            // ORDER: calls go by it before the session is told. So what it asks for after it was told is as it should be.
            std::mem::replace(&mut *kept, Arc::new(now.clone()))
        };
        tracing::info!(session = %id, node = %session.owner.node, policy = %now, "the policy of a node has changed");
        match now.read_only && !before.read_only {
            true => drop(self.begin_end(id)),
            false => session.deliver(SessionEvent::Expired),
        }
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.sessions.read().len()
    }

    /// Ends sessions that have fallen silent, answers questions that have waited long, and has sessions follow the policies of their nodes. To be
    /// called every second or so.
    pub fn tidy(&self) {
        let now = self.clock.monotonic();
        let all: Vec<(SessionId, Arc<RemoteSession>)> =
            self.sessions.read().iter().map(|(id, session)| (*id, session.clone())).collect();
        for (id, session) in all {
            self.follow_policy(id, &session);
            let must_reclaim = self.must_reclaim(id);
            let (is_silent, waited) = {
                let mut state = session.state.lock();
                let is_late = must_reclaim && now.saturating_sub(self.started) > RECLAIM_MAX;
                let age = now.saturating_sub(state.renewed);
                let is_over = state.is_ending && age > LEASE_TERM + DRIFT_MAX;
                let is_silent = is_late || is_over || age > SILENCE_MAX;
                let is_long =
                    state.parked.as_ref().is_some_and(|(_, since)| now.saturating_sub(*since) > PARKED_MAX);
                (is_silent, if is_long { state.parked.take() } else { None })
            };
            if let Some((replier, _)) = waited {
                replier.reply(&encode(&MetaAnswer::Events(Vec::new())), &[]);
            }
            if is_silent {
                tracing::warn!(session = %id, node = %session.owner.node, "a session has fallen silent and is ended");
                self.end(id);
            }
        }
    }

    fn end(&self, id: SessionId) {
        let session = self.sessions.write().remove(&id);
        self.meta.close_session(id);
        let parked = session.and_then(|session| session.state.lock().parked.take());
        if let Some((replier, _)) = parked {
            replier.reply(&encode(&MetaAnswer::Failed(Errno::ENOTCONN)), &[]);
        }
    }

    fn open(&self, peer: &Peer, wanted: Option<SessionId>) -> MetaAnswer {
        if self.meta.is_awaiting() {
            return MetaAnswer::Later;
        }
        // Asked for once more: the answer was lost.
        if let Some(known) = wanted.filter(|wanted| self.own(peer, *wanted).is_ok()) {
            return MetaAnswer::Session(known, self.meta.incarnation());
        }
        let session = self.session_of(owner_of(peer));
        match self.meta.open_lasting(wanted, owner_of(peer), session.clone()) {
            Ok(grant) => {
                self.sessions.write().insert(grant.session, session);
                MetaAnswer::Session(grant.session, grant.incarnation)
            }
            Err(errno) => MetaAnswer::Failed(errno),
        }
    }

    /// The session, if it is the caller's.
    fn own(&self, peer: &Peer, id: SessionId) -> Result<Arc<RemoteSession>, Errno> {
        let session = self.sessions.read().get(&id).cloned();
        let is_good = |session: &Arc<RemoteSession>| {
            session.owner == owner_of(peer) && !session.state.lock().is_revoked
        };
        session.filter(is_good).ok_or(Errno::ENOTCONN)
    }

    fn events(&self, peer: &Peer, (id, seen): (SessionId, u64), replier: Replier) {
        let session = match self.own(peer, id) {
            Ok(session) => session,
            Err(errno) => return replier.reply(&encode(&MetaAnswer::Failed(errno)), &[]),
        };
        if self.must_reclaim(id) {
            return replier.reply(&encode(&MetaAnswer::MustReclaim(self.meta.incarnation())), &[]);
        }
        let mut state = session.state.lock();
        while state.events.front().is_some_and(|(number, _)| *number <= seen) {
            state.events.pop_front();
        }
        if !state.events.is_empty() {
            let answer = state.next_events();
            drop(state);
            return replier.reply(&answer, &[]);
        }
        let before = state.parked.replace((replier, self.clock.monotonic()));
        drop(state);
        // ORDER: whoever removed the session has looked for what is parked before.
        if self.own(peer, id).is_err()
            && let Some((replier, _)) = session.state.lock().parked.take()
        {
            replier.reply(&encode(&MetaAnswer::Failed(Errno::ENOTCONN)), &[]);
        }
        if let Some((replier, _)) = before {
            replier.reply(&encode(&MetaAnswer::Events(Vec::new())), &[]);
        }
    }

    /// Whether a session was opened before the service was started, and has not told yet what it has.
    fn must_reclaim(&self, id: SessionId) -> bool {
        self.meta.is_awaiting() && self.meta.is_awaited(id)
    }

    fn call(&self, session: &RemoteSession, caller: Caller<'_>, request: MetaRequest<'_>) -> MetaAnswer {
        let is_of_this_start = match &request {
            MetaRequest::Reclaim { incarnation, .. } => *incarnation == self.meta.incarnation(),
            _ => !self.must_reclaim(caller.op.session),
        };
        if !is_of_this_start {
            return MetaAnswer::MustReclaim(self.meta.incarnation());
        }
        if self.meta.is_awaiting() && !matches!(request, MetaRequest::Reclaim { .. }) {
            return MetaAnswer::Later;
        }
        if let Addressee::Home(inode) = request.addressee()
            && !self.meta.has_home_of(inode)
        {
            return MetaAnswer::NotHere;
        }
        let policy = session.policy.read().clone();
        match self.call_under(&policy, caller, request) {
            Ok(reply) => MetaAnswer::Reply(reply),
            // Nothing was done; the caller says for how long it is worth trying.
            Err(Errno::EHOSTDOWN) => MetaAnswer::Later,
            Err(errno) => MetaAnswer::Failed(errno),
        }
    }

    fn renew(&self, peer: &Peer, id: SessionId, busy: Vec<InodeId>) -> MetaAnswer {
        match self.own(peer, id) {
            Ok(session) => {
                let mut state = session.state.lock();
                (state.renewed, state.busy) = (self.clock.monotonic(), busy);
                drop(state);
                match self.must_reclaim(id) {
                    true => MetaAnswer::MustReclaim(self.meta.incarnation()),
                    false => MetaAnswer::Done,
                }
            }
            Err(errno) => MetaAnswer::Failed(errno),
        }
    }
}

impl Endpoint for MetaEndpoint {
    fn serve(&self, peer: &Peer, frame: Frame, replier: Replier) {
        if !CALLERS.contains(&peer.role) {
            return replier.refuse("metadata serves clients");
        }
        let Ok(call) = decode::<MetaCall<'_>>(frame.head(), "metadata call") else {
            return replier.refuse("that is no call to metadata");
        };
        let answer = match call {
            MetaCall::Peer(_) if peer.role != Role::Meta => {
                return replier.refuse("only metadata servers may say that");
            }
            MetaCall::Peer(message) => match self.meta.hear(message) {
                Ok(answer) => MetaAnswer::Peer(answer),
                Err(errno) => MetaAnswer::Failed(errno),
            },
            _ if peer.role == Role::Meta => {
                return replier.refuse("metadata serves clients");
            }
            MetaCall::Open(wanted) => self.open(peer, wanted),
            MetaCall::Close(session) => match self.own(peer, session) {
                Ok(_) => {
                    self.end(session);
                    MetaAnswer::Done
                }
                Err(errno) => MetaAnswer::Failed(errno),
            },
            MetaCall::Call { op, creds, slot, request } => match self.own(peer, op.session) {
                Ok(session) => self.call(&session, Caller { op, creds: &creds, slot }, request),
                Err(errno) => MetaAnswer::Failed(errno),
            },
            MetaCall::Events { session, seen } => return self.events(peer, (session, seen), replier),
            MetaCall::Renew { session, busy } => self.renew(peer, session, busy),
            MetaCall::Sessions | MetaCall::EndSession(_) if peer.role != Role::Admin => {
                return replier.refuse("only an administrator may see and end sessions");
            }
            MetaCall::Sessions => self.list(),
            MetaCall::EndSession(session) => self.begin_end(session),
        };
        replier.reply(&encode(&answer), &[]);
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
        gone.into_iter().for_each(|id| self.end(id));
    }
}
