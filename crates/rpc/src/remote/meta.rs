//! Metadata of another machine.

use super::slots::Slots;
use super::{Patience, Routes, errno_of};
use crate::net::{Call, NetError, Service};
use crate::wire::{COUNT_BITS, LEASE_TERM, MetaAnswer, MetaCall, Repetition, frees_others, repetition};
use crate::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_env::Env;
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{MetaReply, MetaRequest, Reclaim, SessionEvent};
use ashlar_types::{Errno, InodeId, NodeId, Role, SessionId, ShardId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// For how long the service holds a question for events back, and a little more.
const PARKED_MAX: Duration = Duration::from_secs(30);
/// Time between looks at a map that names no metadata server.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);
/// Time between two renewals of a session.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// For how long a renewal is waited for: a third of the term, so that three are tried in one.
const RENEW_MAX: Duration = Duration::from_secs(5);

/// Between two looks whether the service has heard of all sessions.
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

/// The session that was opened, and who hears its events.
struct Session {
    id: SessionId,
    events: Arc<dyn SessionEvents>,
    is_ended: AtomicBool,
    /// Recalls that were not answered yet.
    // LIMIT: one per lease this session holds.
    recalls: Mutex<Vec<(u64, InodeId)>>,
    reclaiming: Mutex<Reclaiming>,
    reclaimed: Condvar,
}

/// What is known of starts of the service during a session, by their numbers.
struct Reclaiming {
    /// The newest that the session was told of.
    told: u64,
    /// The newest that knows what the session has.
    done: u64,
}

impl RemoteMeta {
    /// Metadata as the map of `routes` says; a server that does not answer is waited for with `patience`.
    pub fn new(routes: Arc<Routes>, env: Env, patience: Patience) -> RemoteMeta {
        RemoteMeta { routes, env, patience, session: Mutex::default(), slots: Slots::default() }
    }
}

/// One exchange with the server that answers for `shard`.
fn exchange(
    routes: &Routes,
    shard: ShardId,
    call: &MetaCall<'_>,
    (is_once, is_urgent): (bool, bool),
    deadline: Instant,
) -> Result<MetaAnswer, NetError> {
    let link = routes.link(primary(routes, shard, deadline)?, Role::Meta);
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
        let map = routes.map();
        let node = map.shards.get(usize::from(shard.0)).ok_or(NetError::NoAddress)?.primary;
        if routes.has_address(node, Role::Meta) {
            return Ok(node);
        }
        if Instant::now() >= deadline {
            return Err(NetError::NoAddress);
        }
        std::thread::sleep(UNKNOWN_PAUSE);
    }
}

impl Session {
    /// Asks for events on and on.
    fn listen(&self, routes: &Routes) {
        let mut seen = 0;
        while !self.is_ended.load(SeqCst) {
            let call = MetaCall::Events { session: self.id, seen };
            match exchange(routes, ShardId(0), &call, (false, false), Instant::now() + PARKED_MAX) {
                Ok(MetaAnswer::Events(events)) => {
                    for (number, event) in events {
                        if number > seen {
                            seen = number;
                            self.deliver(number, event);
                        }
                    }
                }
                Ok(MetaAnswer::Failed(Errno::ENOTCONN)) => return self.lost(),
                Ok(MetaAnswer::MustReclaim(incarnation)) => {
                    self.reclaim(incarnation, Instant::now() + PARKED_MAX)
                }
                Ok(other) => tracing::error!(?other, "metadata gave an answer of the wrong kind"),
                Err(NetError::Stuck) => {}
                Err(error) => {
                    tracing::debug!(%error, "no events of the session can be heard");
                    std::thread::sleep(RENEW_EVERY);
                }
            }
        }
    }

    /// Passes an event on, unless it is of a service that has ended.
    fn deliver(&self, number: u64, event: SessionEvent) {
        let reclaiming = self.reclaiming.lock();
        if number >> COUNT_BITS < reclaiming.told {
            return;
        }
        if let SessionEvent::Recall(recall) = &event {
            self.recalls.lock().push((recall.id, recall.inode));
        }
        self.events.deliver(event);
    }

    /// Tells the session, once, that the service has been started anew.
    fn tell(&self, incarnation: u64) {
        // ORDER: delivered under the lock, so that nothing of the service before comes after it.
        let mut reclaiming = self.reclaiming.lock();
        if reclaiming.told < incarnation {
            reclaiming.told = incarnation;
            tracing::info!(session = %self.id, "the metadata server was started anew; telling it what this session has");
            self.recalls.lock().clear();
            self.events.deliver(SessionEvent::Reclaim { incarnation });
        }
    }

    /// Tells, and waits until the service knows what the session has, or until `deadline`.
    fn reclaim(&self, incarnation: u64, deadline: Instant) {
        self.tell(incarnation);
        let mut reclaiming = self.reclaiming.lock();
        while reclaiming.done < incarnation && !self.is_ended.load(SeqCst) {
            if self
                .reclaimed
                .wait_until(&mut reclaiming, deadline.min(Instant::now() + RENEW_EVERY))
                .timed_out()
                && Instant::now() >= deadline
            {
                return;
            }
        }
    }

    /// The service knows what the session has.
    fn note_reclaimed(&self, incarnation: u64) {
        let mut reclaiming = self.reclaiming.lock();
        reclaiming.done = reclaiming.done.max(incarnation);
        self.reclaimed.notify_all();
    }

    /// It does not; whoever told it may be told to begin anew.
    fn forget_told(&self, incarnation: u64) {
        let mut reclaiming = self.reclaiming.lock();
        if reclaiming.told == incarnation && reclaiming.done < incarnation {
            reclaiming.told = reclaiming.done;
        }
    }

    /// The service does not know the session any more.
    fn lost(&self) {
        if !self.is_ended.swap(true, SeqCst) {
            self.reclaimed.notify_all();
            self.events.deliver(SessionEvent::Evicted { session: self.id });
        }
    }

    /// Says on and on that the session is there.
    fn renew(&self, routes: &Routes) {
        let mut term = Term { renewed: since_boot(), has_expired: false };
        while !self.is_ended.load(SeqCst) {
            std::thread::sleep(RENEW_EVERY.min(term.left()));
            let recalled: Vec<InodeId> = self.recalls.lock().iter().map(|(_, inode)| *inode).collect();
            let busy: Vec<InodeId> =
                recalled.into_iter().filter(|inode| self.events.is_busy(*inode)).collect();
            let call = MetaCall::Renew { session: self.id, busy };
            let asked = since_boot();
            // A term that has ended is told of at once, and not when the server has been waited for.
            let wait = if term.has_expired { RENEW_MAX } else { RENEW_MAX.min(term.left()) };
            match exchange(routes, ShardId(0), &call, (false, true), Instant::now() + wait) {
                Ok(MetaAnswer::Failed(Errno::ENOTCONN)) => return self.lost(),
                Ok(MetaAnswer::MustReclaim(incarnation)) => self.tell(incarnation),
                Ok(_) => term = Term { renewed: asked, has_expired: false },
                Err(error) => tracing::debug!(%error, "the session could not be renewed"),
            }
            if !term.has_expired && term.left().is_zero() {
                term.has_expired = true;
                tracing::warn!(session = %self.id, "the metadata server has not been reached for {LEASE_TERM:?}: nothing is cached any more");
                self.events.deliver(SessionEvent::Expired);
            }
        }
    }
}

fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// For how long leases are still good.
struct Term {
    /// Time since the machine was started, also while it was suspended: the service went on meanwhile.
    renewed: Duration,
    /// Whether its end was told.
    has_expired: bool,
}

impl Term {
    fn left(&self) -> Duration {
        LEASE_TERM.saturating_sub(since_boot().saturating_sub(self.renewed))
    }
}

impl MetaCalls for RemoteMeta {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        let deadline = self.patience.deadline();
        let mut pause = LATER_PAUSE;
        let (id, incarnation) = loop {
            let answer = exchange(&self.routes, ShardId(0), &MetaCall::Open, (true, false), deadline)
                .map_err(|error| errno_of(&error, "opening a session"))?;
            match answer {
                MetaAnswer::Session(id, incarnation) => break (id, incarnation),
                MetaAnswer::Failed(errno) => return Err(errno),
                MetaAnswer::Later if Instant::now() + pause < deadline => wait_longer(&mut pause),
                MetaAnswer::Later => return Err(Errno::ETIMEDOUT),
                _ => return Err(Errno::EPROTO),
            }
        };
        let session = Arc::new(Session {
            id,
            events,
            is_ended: AtomicBool::new(false),
            recalls: Mutex::default(),
            reclaiming: Mutex::new(Reclaiming { told: incarnation, done: incarnation }),
            reclaimed: Condvar::new(),
        });
        *self.session.lock() = Some(session.clone());
        // Neither is waited for at the end: they may be in a call that the service holds back.
        let (kept, routes) = (session.clone(), self.routes.clone());
        let listening = self.env.tasks.spawn("ashlar-events", Box::new(move || kept.listen(&routes)));
        let routes = self.routes.clone();
        let renewing = self.env.tasks.spawn("ashlar-renew", Box::new(move || session.renew(&routes)));
        listening.and(renewing).map_err(|_| Errno::EAGAIN)?;
        Ok(SessionGrant { session: id, lease_term: LEASE_TERM, incarnation })
    }

    fn close_session(&self, id: SessionId) {
        let session = self.session.lock().take_if(|session| session.id == id);
        let Some(session) = session else { return };
        // ORDER: before the service ends it, or its end would be taken for an eviction.
        session.is_ended.store(true, SeqCst);
        let deadline = self.patience.deadline().min(Instant::now() + RENEW_MAX);
        if let Err(error) = exchange(&self.routes, ShardId(0), &MetaCall::Close(id), (false, true), deadline)
        {
            tracing::warn!(%error, session = %id, "the session could not be ended; the service does it when it has been silent for long enough");
        }
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let deadline = self.patience.deadline();
        if let MetaRequest::Reclaim { incarnation, .. } = &request {
            let incarnation = *incarnation;
            return self.reclaim(caller, request, incarnation, deadline);
        }
        let repetition = repetition(&request);
        let flags = (repetition != Repetition::Harmless, frees_others(&request));
        let slot = (repetition == Repetition::Other).then(|| self.slots.take(deadline)).transpose()?;
        let recall = if let MetaRequest::RecallDone { id } = &request { Some(*id) } else { None };
        let number = slot.as_ref().map(|slot| slot.number);
        let call = MetaCall::Call { op: caller.op, creds: caller.creds.clone(), slot: number, request };
        let mut pause = LATER_PAUSE;
        let answer = loop {
            let answer = exchange(&self.routes, ShardId(0), &call, flags, deadline);
            match &answer {
                // A recall of a service that has ended is answered to nobody.
                Ok(MetaAnswer::MustReclaim(_)) if recall.is_some() => return Ok(MetaReply::Done),
                _ if Instant::now() >= deadline => break answer,
                Ok(MetaAnswer::MustReclaim(incarnation)) => {
                    self.live_session(caller.op.session)?.reclaim(*incarnation, deadline);
                }
                Ok(MetaAnswer::Later) => wait_longer(&mut pause),
                _ => break answer,
            }
        };
        if let (Some(recall), Some(session)) = (recall, &*self.session.lock()) {
            session.recalls.lock().retain(|(id, _)| *id != recall);
        }
        reply_of(answer)
    }
}

/// The answer to a call, as its caller is told.
fn reply_of(answer: Result<MetaAnswer, NetError>) -> Result<MetaReply, Errno> {
    match answer {
        Ok(MetaAnswer::Reply(reply)) => Ok(reply),
        Ok(MetaAnswer::Failed(errno)) => Err(errno),
        Ok(MetaAnswer::MustReclaim(_) | MetaAnswer::Later) => {
            tracing::error!("metadata: other sessions are waited for, and not back in time");
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
    /// The session `id`, unless it has ended.
    fn live_session(&self, id: SessionId) -> Result<Arc<Session>, Errno> {
        let session = self.session.lock().clone();
        session.filter(|session| session.id == id && !session.is_ended.load(SeqCst)).ok_or(Errno::ENOTCONN)
    }

    /// A part of what the session has. `EAGAIN`: the service was started once more, and the session is told to begin anew.
    fn reclaim(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        incarnation: u64,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        let is_all = matches!(request, MetaRequest::Reclaim { part: Reclaim::Done, .. });
        let session = self.live_session(caller.op.session)?;
        let call = MetaCall::Call { op: caller.op, creds: caller.creds.clone(), slot: None, request };
        match exchange(&self.routes, ShardId(0), &call, (false, true), deadline) {
            Ok(MetaAnswer::Reply(reply)) => {
                if is_all {
                    session.note_reclaimed(incarnation);
                }
                Ok(reply)
            }
            Ok(MetaAnswer::MustReclaim(newer)) => {
                session.tell(newer);
                Err(Errno::EAGAIN)
            }
            other => {
                session.forget_told(incarnation);
                reply_of(other)
            }
        }
    }
}
