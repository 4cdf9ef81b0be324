//! Metadata of other machines: each call goes to the server that has the shard, and what several have is put together here.

mod capability;
mod presence;
mod room;
mod session;
mod several;
mod take_up;

pub use take_up::LeftSession;

use super::slots::Slots;
use super::wallet::Wallet;
use super::{Patience, Routes, errno_of};
use crate::net::{Call, NetError, Service, Watch};
use crate::wire::{LEASE_TERM, MetaAnswer, MetaCall, Repetition, frees_others, repetition};
use crate::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_env::Env;
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{Addressee, MetaReply, MetaRequest, Reclaim, ToldClose};
use ashlar_types::{Coherence, Durability, Errno, InodeId, NodeId, Role, SessionId, ShardId};
use parking_lot::Mutex;
use presence::{Presence, Shared};
use session::{Session, open_at};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// For how long the service holds a question for events back, and a little more.
const PARKED_MAX: Duration = Duration::from_secs(30);
/// Time between looks at a map that names no metadata server.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);
/// For how long a renewal is waited for: a third of the term, so that three are tried in one.
const RENEW_MAX: Duration = Duration::from_secs(5);

/// For how long after a server did not know a call none is asked with such calls.
const OLD_FOR: Duration = Duration::from_secs(60);

/// Between two looks whether a service has heard of all sessions, or has the shard by now.
const LATER_PAUSE: Duration = Duration::from_millis(20);
const LATER_PAUSE_MAX: Duration = Duration::from_millis(200);

/// See the module.
pub struct RemoteMeta {
    routes: Arc<Routes>,
    env: Env,
    patience: Patience,
    coherence: Coherence,
    durability: Durability,
    session: Mutex<Option<Arc<Session>>>,
    slots: Slots,
    wallet: Wallet,
    room: room::Room,
    old: OldServers,
    /// What a process before has left, until it is taken up.
    left: Mutex<Option<LeftSession>>,
}

/// Whether there are servers of a version that does not know all that is said here: while a file system is upgraded.
#[derive(Default)]
struct OldServers(Mutex<Option<Instant>>);

impl OldServers {
    /// One has just refused what it does not know.
    fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Whether one has lately. Then nobody is asked for that: a call that is refused first takes twice the time.
    fn is_any(&self) -> bool {
        self.0.lock().is_some_and(|noted| noted.elapsed() < OLD_FOR)
    }
}

impl RemoteMeta {
    /// Metadata as the map of `routes` says; a server that does not answer is waited for with `patience`.
    pub fn new(routes: Arc<Routes>, env: Env, patience: Patience) -> RemoteMeta {
        let (session, slots, wallet) = (Mutex::default(), Slots::default(), Wallet::default());
        let (coherence, durability) = (Coherence::Strict, Durability::Async);
        let room = room::Room::default();
        RemoteMeta {
            routes,
            env,
            patience,
            coherence,
            durability,
            session,
            slots,
            wallet,
            room,
            old: OldServers::default(),
            left: Mutex::default(),
        }
    }

    /// The same, whose first session is the one that a process before has left, if that is still there. It has to be the same instance for servers.
    #[must_use]
    pub fn after(self, left: Option<LeftSession>) -> RemoteMeta {
        RemoteMeta { left: Mutex::new(left), ..self }
    }

    /// The same, with sessions that are as coherent as `coherence` says.
    pub fn with_coherence(self, coherence: Coherence) -> RemoteMeta {
        RemoteMeta { coherence, ..self }
    }

    /// The same, with sessions whose changes are as durable as `durability` says, and the directories.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> RemoteMeta {
        RemoteMeta { durability, ..self }
    }

    /// The number of a new session, where it is not for the server to draw.
    fn draw_session(&self) -> Option<SessionId> {
        let draw = || SessionId::drawn(self.coherence, self.durability, self.env.entropy.next_u64());
        match (self.coherence, self.durability) {
            (Coherence::Strict, Durability::Async) => None,
            _ => Some(draw()),
        }
    }

    /// What a process before has left, if it is as durable as this one is to be.
    fn take_left(&self) -> Option<LeftSession> {
        let left = self.left.lock().take()?;
        if left.session.durability() == self.durability {
            return Some(left);
        }
        tracing::warn!(session = %left.session, durability = %self.durability, "the session of the process before was of another durability; another one takes its place");
        None
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
    exchange_watched(routes, server, call, (is_once, is_urgent), deadline, &Watch::default())
}

/// The same about a shard: a server that does not answer is waited for while the newest map says that it has the shard. What it did before that went is known where it is: answers that are
/// kept go along.
fn exchange_in(
    routes: &Routes,
    (server, shard): (NodeId, ShardId),
    call: &MetaCall<'_>,
    flags: (bool, bool),
    deadline: Instant,
) -> Result<MetaAnswer, NetError> {
    let is_there = || routes.map().primary(shard) == Some(server);
    match exchange_watched(routes, server, call, flags, deadline, &Watch::while_there(&is_there)) {
        Err(NetError::Elsewhere) => Ok(MetaAnswer::NotHere),
        other => other,
    }
}

fn exchange_watched(
    routes: &Routes,
    server: NodeId,
    call: &MetaCall<'_>,
    (is_once, is_urgent): (bool, bool),
    deadline: Instant,
    watch: &Watch<'_>,
) -> Result<MetaAnswer, NetError> {
    let link = routes.link(server, Role::Meta);
    // Services that are started anew find the answers of calls that must not be carried out twice (`MetaCall::Call::slot`).
    let head = encode(call);
    let call_out =
        Call { service: Service::Meta, head: &head, payload: &[], is_once, may_repeat: true, is_urgent };
    let answer = match call {
        MetaCall::Events { .. } => link.park(&call_out, deadline)?,
        _ => link.call_watched(&call_out, deadline, watch)?,
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
    fn start_of(&self, session: SessionId, server: NodeId) -> u64 {
        let live = self.live_session(session).ok();
        live.and_then(|live| live.known(server)).map_or(0, |presence| presence.answering())
    }

    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        let deadline = self.patience.deadline();
        let server = primary(&self.routes, InodeId::ROOT.home(), deadline)
            .map_err(|error| errno_of(&error, "opening a session"))?;
        if let Some(left) = self.take_left() {
            match self.take_up(&left, events.clone(), server, deadline) {
                Ok(grant) => return Ok(grant),
                Err(errno) => {
                    tracing::warn!(%errno, session = %left.session, "the session of the process before has ended; another one takes its place");
                }
            }
        }
        let map = self.routes.map();
        let opened = open_at(&self.routes, server, self.draw_session(), deadline)?;
        let (id, incarnation) = (opened.session, opened.incarnation);
        let shared = Arc::new(Shared::new(id, events));
        let session = Arc::new(Session::new(shared, self.routes.clone(), self.env.clone()));
        session.attend(server, opened, &map)?;
        *self.session.lock() = Some(session);
        Ok(SessionGrant { session: id, lease_term: LEASE_TERM, server, incarnation })
    }

    fn close_session(&self, id: SessionId) {
        let session = self.session.lock().take_if(|session| session.shared.id == id);
        let Some(session) = session else { return };
        // What it has in a shard that has gone is to end where it is.
        session.presences().iter().for_each(|presence| session.follow(presence, RENEW_MAX));
        // ORDER: before the services end it, or its end would be taken for an eviction.
        session.shared.end_quietly();
        let deadline = self.patience.deadline().min(Instant::now() + RENEW_MAX);
        let presences = session.presences();
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
            Addressee::Home(inode) => match request {
                MetaRequest::Closes { of } => self.close_all(caller, of, inode.home(), deadline),
                request => self.call_and_follow(caller, request, inode.home(), deadline),
            },
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
    /// The session `id`, unless it has ended.
    fn live_session(&self, id: SessionId) -> Result<Arc<Session>, Errno> {
        let session = self.session.lock().clone();
        session
            .filter(|session| session.shared.id == id && !session.shared.is_ended.load(SeqCst))
            .ok_or(Errno::ENOTCONN)
    }

    /// The session `id` at `server`, which is told of it if it does not know it yet.
    fn presence(&self, id: SessionId, server: NodeId, deadline: Instant) -> Result<Arc<Presence>, Errno> {
        self.live_session(id)?.presence(server, deadline)
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
        let recall =
            if let MetaRequest::RecallDone { inode, id } = &request { Some((*id, *inode)) } else { None };
        let is_cancel = matches!(&request, MetaRequest::LockCancel { .. });
        let number = slot.as_ref().map(|slot| slot.number);
        let (op, creds, slot) = (caller.op, caller.creds.clone(), number);
        let mut call = match (caller.yields, caller.directory) {
            (true, _) => MetaCall::CallYielding { op, creds, slot, request },
            (false, Some(_)) if !self.old.is_any() => MetaCall::CallInDirectory { op, creds, slot, request },
            (false, _) => MetaCall::Call { op, creds, slot, request },
        };
        let mut pause = LATER_PAUSE;
        loop {
            let server =
                primary(&self.routes, shard, deadline).map_err(|error| errno_of(&error, "metadata"))?;
            let presence = self.presence(caller.op.session, server, deadline)?;
            let answer = exchange_in(&self.routes, (server, shard), &call, flags, deadline);
            let answer = self.keep_capability(answer, caller.directory);
            match &answer {
                // It is of a version that knows of no such calls.
                Err(NetError::Refused(_))
                    if let MetaCall::CallYielding { op, creds, slot, request } = call =>
                {
                    call = MetaCall::Call { op, creds, slot, request };
                    continue;
                }
                Err(NetError::Refused(_))
                    if let MetaCall::CallInDirectory { op, creds, slot, request } = call =>
                {
                    self.old.note();
                    call = MetaCall::Call { op, creds, slot, request };
                    continue;
                }
                Err(NetError::Refused(_))
                    if matches!(&call, MetaCall::Call { request: MetaRequest::Closes { .. }, .. }) =>
                {
                    self.old.note();
                }
                // A recall of a service that has ended is answered to nobody.
                Ok(MetaAnswer::MustReclaim(_)) if recall.is_some() => return Ok(MetaReply::Done),
                // Nor does anybody wait for a lock there.
                Ok(MetaAnswer::MustReclaim(_)) if is_cancel => return Err(Errno::ENOENT),
                _ if Instant::now() >= deadline => {}
                Ok(MetaAnswer::MustReclaim(incarnation)) => {
                    self.live_session(caller.op.session)?;
                    presence.reclaim(&self.routes, *incarnation, deadline);
                    continue;
                }
                Ok(MetaAnswer::Later | MetaAnswer::NotHere) => {
                    wait_longer(&mut pause);
                    continue;
                }
                _ => {}
            }
            if let Some((recall, inode)) = recall {
                // Which server it came from is not known: the shard may have gone since.
                let session = self.live_session(caller.op.session)?;
                session.presences().iter().for_each(|presence| presence.note_answered(recall, inode));
            }
            return reply_of(answer);
        }
    }

    /// Closes, together where the server knows that.
    fn close_all(
        &self,
        caller: Caller<'_>,
        of: Vec<ToldClose>,
        shard: ShardId,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        if !self.old.is_any() {
            match self.call_home(caller, MetaRequest::Closes { of: of.clone() }, shard, deadline) {
                // It has refused them.
                Err(_) if self.old.is_any() => {}
                other => return other,
            }
        }
        let mut gone = Vec::new();
        for ToldClose { inode, handle, .. } in of {
            let request = MetaRequest::Release { inode, handle };
            match self.call_home(caller, request, shard, deadline) {
                Ok(MetaReply::Removed { last, .. }) => gone.extend(last),
                Ok(_) => return Err(Errno::EPROTO),
                // It keeps none of the others open.
                Err(errno) => tracing::warn!(%errno, %inode, "could not report a close"),
            }
        }
        Ok(MetaReply::Closed { gone })
    }

    /// A part of what the session has, told to `server`. `EAGAIN`: it was started once more, and the session is told to begin anew; or it knows everything already. `EHOSTDOWN`: some of it is
    /// to be told to another server, by a newer map.
    fn reclaim(
        &self,
        caller: Caller<'_>,
        request: MetaRequest<'_>,
        server: NodeId,
        deadline: Instant,
    ) -> Result<MetaReply, Errno> {
        let presence = self.presence(caller.op.session, server, deadline)?;
        let map = self.routes.map();
        let MetaRequest::Reclaim { incarnation, part, .. } = request else { return Err(Errno::EPROTO) };
        // Who tells of some files in whichever start it is does not tell everything: that may be under way, and is neither begun anew for that nor over.
        let (is_all, is_of_newest) = (matches!(part, Reclaim::Done), incarnation == 0);
        let is_question = matches!(part, Reclaim::Losses);
        if !is_of_newest && presence.is_reclaimed(incarnation) {
            return Err(Errno::EAGAIN);
        }
        let incarnation = if is_of_newest { presence.incarnation() } else { incarnation };
        let forget_told = || {
            if !is_of_newest {
                presence.forget_told(incarnation);
            }
        };
        let request = MetaRequest::Reclaim { server, incarnation, part };
        let call = MetaCall::Call { op: caller.op, creds: caller.creds.clone(), slot: None, request };
        let mut pause = LATER_PAUSE;
        loop {
            match exchange(&self.routes, server, &call, (false, true), deadline) {
                // It is of a version that does not tell.
                Err(NetError::Refused(_)) if is_question => return Ok(MetaReply::LostSince(0)),
                Ok(MetaAnswer::Reply(reply)) => {
                    if is_all {
                        presence.note_reclaimed(incarnation);
                    }
                    return Ok(reply);
                }
                Ok(MetaAnswer::MustReclaim(newer)) => {
                    presence.tell(&self.routes, newer);
                    return Err(Errno::EAGAIN);
                }
                // A shard of it is on its way.
                Ok(MetaAnswer::Later) if Instant::now() < deadline => {
                    if self.routes.map().epoch > map.epoch {
                        forget_told();
                        return Err(Errno::EHOSTDOWN);
                    }
                    wait_longer(&mut pause);
                }
                other => {
                    forget_told();
                    return reply_of(other);
                }
            }
        }
    }
}
