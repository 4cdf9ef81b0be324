//! Metadata of other machines: each call goes to the server that has the shard, and what several have is put together here.

mod presence;
mod several;

use super::slots::Slots;
use super::{Patience, Routes, errno_of};
use crate::net::{Call, NetError, Service};
use crate::wire::{LEASE_TERM, MetaAnswer, MetaCall, Repetition, frees_others, repetition};
use crate::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_env::Env;
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{Addressee, MetaReply, MetaRequest, Reclaim};
use ashlar_types::{Errno, InodeId, NodeId, Role, SessionId, ShardId};
use parking_lot::Mutex;
use presence::{Presence, Shared};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// For how long the service holds a question for events back, and a little more.
const PARKED_MAX: Duration = Duration::from_secs(30);
/// Time between looks at a map that names no metadata server.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);
/// For how long a renewal is waited for: a third of the term, so that three are tried in one.
const RENEW_MAX: Duration = Duration::from_secs(5);

/// Between two looks whether a service has heard of all sessions, or has the shard by now.
const LATER_PAUSE: Duration = Duration::from_millis(20);
const LATER_PAUSE_MAX: Duration = Duration::from_millis(200);

/// See the module.
pub struct RemoteMeta {
    routes: Arc<Routes>,
    env: Env,
    patience: Patience,
    session: Mutex<Option<Arc<Session>>>,
    slots: Slots,
}

/// The session that was opened, and the servers that know of it: each from the first call to it on.
struct Session {
    shared: Arc<Shared>,
    // LIMIT: one per metadata server.
    presences: Mutex<FxHashMap<NodeId, Arc<Presence>>>,
    /// Held by whoever opens the session at one more server.
    opening: Mutex<()>,
}

impl RemoteMeta {
    /// Metadata as the map of `routes` says; a server that does not answer is waited for with `patience`.
    pub fn new(routes: Arc<Routes>, env: Env, patience: Patience) -> RemoteMeta {
        RemoteMeta { routes, env, patience, session: Mutex::default(), slots: Slots::default() }
    }
}

/// One exchange with a server.
fn exchange(
    routes: &Routes,
    server: NodeId,
    call: &MetaCall<'_>,
    (is_once, is_urgent): (bool, bool),
    deadline: Instant,
) -> Result<MetaAnswer, NetError> {
    let link = routes.link(server, Role::Meta);
    // Services that are started anew find the answers of calls that must not be carried out twice (`MetaCall::Call::slot`).
    let head = encode(call);
    let call_out =
        Call { service: Service::Meta, head: &head, payload: &[], is_once, may_repeat: true, is_urgent };
    let answer = match call {
        MetaCall::Events { .. } => link.park(&call_out, deadline)?,
        _ => link.call(&call_out, deadline)?,
    };
    let decoded = decode(answer.head(), "answer of metadata")
        .map_err(|_| NetError::Malformed("an answer that is none"))?;
    match decoded {
        // Whether it was carried out before the session ended nobody knows any more.
        MetaAnswer::Failed(Errno::ENOTCONN) if answer.was_repeated() && is_once => Err(NetError::Restarted),
        other => Ok(other),
    }
}

/// The server that answers for `shard`; before there is any metadata it is waited for.
fn primary(routes: &Routes, shard: ShardId, deadline: Instant) -> Result<NodeId, NetError> {
    loop {
        let node = routes.map().primary(shard).ok_or(NetError::NoAddress)?;
        if routes.has_address(node, Role::Meta) {
            return Ok(node);
        }
        if Instant::now() >= deadline {
            return Err(NetError::NoAddress);
        }
        std::thread::sleep(UNKNOWN_PAUSE);
    }
}

impl MetaCalls for RemoteMeta {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        let deadline = self.patience.deadline();
        let server = primary(&self.routes, InodeId::ROOT.home(), deadline)
            .map_err(|error| errno_of(&error, "opening a session"))?;
        let (id, incarnation) = self.open_at(server, None, deadline)?;
        let shared = Arc::new(Shared { id, events, is_ended: AtomicBool::new(false) });
        let session =
            Session { shared: shared.clone(), presences: Mutex::default(), opening: Mutex::default() };
        self.attend(&session, Presence::new(server, shared, incarnation))?;
        *self.session.lock() = Some(Arc::new(session));
        Ok(SessionGrant { session: id, lease_term: LEASE_TERM, server, incarnation })
    }

    fn close_session(&self, id: SessionId) {
        let session = self.session.lock().take_if(|session| session.shared.id == id);
        let Some(session) = session else { return };
        // ORDER: before the services end it, or its end would be taken for an eviction.
        session.shared.is_ended.store(true, SeqCst);
        let presences: Vec<Arc<Presence>> = session.presences.lock().values().cloned().collect();
        let deadline = self.patience.deadline().min(Instant::now() + RENEW_MAX);
        for presence in presences {
            let ended =
                exchange(&self.routes, presence.server, &MetaCall::Close(id), (false, true), deadline);
            if let Err(error) = ended {
                tracing::warn!(%error, session = %id, server = %presence.server, "the session could not be ended; the service does it when it has been silent for long enough");
            }
        }
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let deadline = self.patience.deadline();
        match request.addressee() {
            Addressee::Server(server) => self.reclaim(caller, request, server, deadline),
            Addressee::All => self.call_all(caller, &request, deadline),
            Addressee::Any => self.call_home(caller, request, InodeId::ROOT.home(), deadline),
            Addressee::Home(inode) => self.call_and_follow(caller, request, inode.home(), deadline),
        }
    }
}

/// The answer to a call, as its caller is told.
fn reply_of(answer: Result<MetaAnswer, NetError>) -> Result<MetaReply, Errno> {
    match answer {
        Ok(MetaAnswer::Reply(reply)) => Ok(reply),
        Ok(MetaAnswer::Failed(errno)) => Err(errno),
        Ok(MetaAnswer::MustReclaim(_) | MetaAnswer::Later) => {
            tracing::error!("metadata: others are waited for, and not back in time");
            Err(Errno::ETIMEDOUT)
        }
        Ok(MetaAnswer::NotHere) => {
            tracing::error!("metadata: no server has the shard");
            Err(Errno::ETIMEDOUT)
        }
        Ok(_) => Err(Errno::EPROTO),
        Err(error) => Err(errno_of(&error, "metadata")),
    }
}

fn wait_longer(pause: &mut Duration) {
    std::thread::sleep(*pause);
    *pause = (*pause * 2).min(LATER_PAUSE_MAX);
}

impl RemoteMeta {
    /// Opens a session at `server`: `known`, or a new one.
    fn open_at(
        &self,
        server: NodeId,
        known: Option<SessionId>,
        deadline: Instant,
    ) -> Result<(SessionId, u64), Errno> {
        let mut pause = LATER_PAUSE;
        loop {
            let answer = exchange(&self.routes, server, &MetaCall::Open(known), (true, false), deadline)
                .map_err(|error| errno_of(&error, "opening a session"))?;
            match answer {
                MetaAnswer::Session(id, incarnation) => return Ok((id, incarnation)),
                MetaAnswer::Failed(errno) => return Err(errno),
                MetaAnswer::Later if Instant::now() + pause < deadline => wait_longer(&mut pause),
                MetaAnswer::Later => return Err(Errno::ETIMEDOUT),
                _ => return Err(Errno::EPROTO),
            }
        }
    }

    /// Has threads listen and renew at one more server.
    fn attend(&self, session: &Session, presence: Presence) -> Result<Arc<Presence>, Errno> {
        let presence = Arc::new(presence);
        // Neither is waited for at the end: they may be in a call that the service holds back.
        let (kept, routes) = (presence.clone(), self.routes.clone());
        let listening = self.env.tasks.spawn("ashlar-events", Box::new(move || kept.listen(&routes)));
        let (kept, routes) = (presence.clone(), self.routes.clone());
        let renewing = self.env.tasks.spawn("ashlar-renew", Box::new(move || kept.renew(&routes)));
        listening.and(renewing).map_err(|_| Errno::EAGAIN)?;
        session.presences.lock().insert(presence.server, presence.clone());
        Ok(presence)
    }

    /// The session `id`, unless it has ended.
    fn live_session(&self, id: SessionId) -> Result<Arc<Session>, Errno> {
        let session = self.session.lock().clone();
        session
            .filter(|session| session.shared.id == id && !session.shared.is_ended.load(SeqCst))
            .ok_or(Errno::ENOTCONN)
    }

    /// The session `id` at `server`, which is told of it if it does not know it yet.
    fn presence(&self, id: SessionId, server: NodeId, deadline: Instant) -> Result<Arc<Presence>, Errno> {
        let session = self.live_session(id)?;
        let known = |session: &Session| session.presences.lock().get(&server).cloned();
        if let Some(presence) = known(&session) {
            return Ok(presence);
        }
        let _turn = session.opening.try_lock_until(deadline).ok_or(Errno::ETIMEDOUT)?;
        if let Some(presence) = known(&session) {
            return Ok(presence);
        }
        let (_, incarnation) = self.open_at(server, Some(id), deadline)?;
        self.attend(&session, Presence::new(server, session.shared.clone(), incarnation))
    }

    /// A call to the server that has `shard`.
    fn call_home(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        shard: ShardId,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        let repetition = repetition(&request);
        let flags = (repetition != Repetition::Harmless, frees_others(&request));
        let slot = (repetition == Repetition::Other).then(|| self.slots.take(deadline)).transpose()?;
        let recall = if let MetaRequest::RecallDone { id, .. } = &request { Some(*id) } else { None };
        let number = slot.as_ref().map(|slot| slot.number);
        let call = MetaCall::Call { op: caller.op, creds: caller.creds.clone(), slot: number, request };
        let mut pause = LATER_PAUSE;
        loop {
            let server =
                primary(&self.routes, shard, deadline).map_err(|error| errno_of(&error, "metadata"))?;
            let presence = self.presence(caller.op.session, server, deadline)?;
            let answer = exchange(&self.routes, server, &call, flags, deadline);
            match &answer {
                // A recall of a service that has ended is answered to nobody.
                Ok(MetaAnswer::MustReclaim(_)) if recall.is_some() => return Ok(MetaReply::Done),
                _ if Instant::now() >= deadline => {}
                Ok(MetaAnswer::MustReclaim(incarnation)) => {
                    self.live_session(caller.op.session)?;
                    presence.reclaim(*incarnation, deadline);
                    continue;
                }
                Ok(MetaAnswer::Later | MetaAnswer::NotHere) => {
                    wait_longer(&mut pause);
                    continue;
                }
                _ => {}
            }
            if let Some(recall) = recall {
                presence.note_answered(recall);
            }
            return reply_of(answer);
        }
    }

    /// A part of what the session has, told to `server`. `EAGAIN`: it was started once more, and the session is told to begin anew.
    fn reclaim(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        server: NodeId,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        let presence = self.presence(caller.op.session, server, deadline)?;
        let MetaRequest::Reclaim { incarnation, part, .. } = request else { return Err(Errno::EPROTO) };
        let is_all = matches!(part, Reclaim::Done);
        let incarnation = if incarnation == 0 { presence.incarnation() } else { incarnation };
        let request = MetaRequest::Reclaim { server, incarnation, part };
        let call = MetaCall::Call { op: caller.op, creds: caller.creds.clone(), slot: None, request };
        match exchange(&self.routes, server, &call, (false, true), deadline) {
            Ok(MetaAnswer::Reply(reply)) => {
                if is_all {
                    presence.note_reclaimed(incarnation);
                }
                Ok(reply)
            }
            Ok(MetaAnswer::MustReclaim(newer)) => {
                presence.tell(newer);
                Err(Errno::EAGAIN)
            }
            other => {
                presence.forget_told(incarnation);
                reply_of(other)
            }
        }
    }
}
