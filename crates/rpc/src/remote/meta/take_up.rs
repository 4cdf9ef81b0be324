//! Going on with the session of a process that has ended: it leaves which session it had and where, and stops to hear what servers say unasked.

use super::presence::Shared;
use super::session::{Session, open_at};
use super::{LATER_PAUSE, RENEW_MAX, RemoteMeta, exchange, wait_longer};
use crate::remote::errno_of;
use crate::wire::{LEASE_TERM, MetaAnswer, MetaCall};
use crate::{SessionEvents, SessionGrant};
use ashlar_types::{Errno, NodeId, Role, SessionId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// For how long servers that know the session are waited for.
const TAKE_UP_MAX: Duration = Duration::from_secs(10);

/// A session as a process leaves it to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftSession {
    /// Its id.
    pub session: SessionId,
    /// Metadata servers that know of it.
    pub servers: Vec<NodeId>,
}

impl RemoteMeta {
    /// From now on nothing that servers say unasked is passed on, or is again. What was not passed on they say once more, also to a process that goes on with the session.
    pub fn set_deaf(&self, is_deaf: bool) {
        if let Some(session) = &*self.session.lock() {
            session.shared.set_deaf(is_deaf);
        }
    }

    /// The session, for the next process; nothing if there is none.
    pub fn left_session(&self) -> Option<LeftSession> {
        let session = self.session.lock().clone().filter(|session| !session.shared.is_ended.load(SeqCst))?;
        let servers = session.presences().iter().map(|presence| presence.server).collect();
        Some(LeftSession { session: session.shared.id, servers })
    }

    /// Goes on with `left`, which every server must know: one that does not would have it without what it had.
    pub(super) fn take_up(
        &self,
        left: &LeftSession,
        events: Arc<dyn SessionEvents>,
        home: NodeId,
        deadline: Instant,
    ) -> Result<SessionGrant, Errno> {
        let (id, map) = (left.session, self.routes.map());
        // Nobody who uses the mount is served meanwhile, and no server is answered.
        let deadline = deadline.min(Instant::now() + TAKE_UP_MAX);
        // One that is none any more has given all that it had to others.
        let servers =
            left.servers.iter().copied().filter(|server| self.routes.has_address(*server, Role::Meta));
        let servers: Vec<NodeId> = servers.collect();
        servers.iter().try_for_each(|server| self.require_known(id, *server, deadline))?;
        let session =
            Arc::new(Session::new(Arc::new(Shared::new(id, events)), self.routes.clone(), self.env.clone()));
        let attended = (|| {
            for server in servers {
                let opened = open_at(&self.routes, server, Some(id), deadline)?;
                session.attend(server, opened, &map)?;
            }
            session.presence(home, deadline)
        })();
        match attended {
            Ok(presence) => {
                *self.session.lock() = Some(session);
                let (server, incarnation) = (home, presence.incarnation());
                Ok(SessionGrant { session: id, lease_term: LEASE_TERM, server, incarnation })
            }
            Err(errno) => {
                session.shared.end_quietly();
                Err(errno)
            }
        }
    }

    /// Renews the session at a server that knows it.
    fn require_known(&self, id: SessionId, server: NodeId, deadline: Instant) -> Result<(), Errno> {
        let mut pause = LATER_PAUSE;
        loop {
            let call = MetaCall::Renew { session: id, busy: Vec::new() };
            let bound = deadline.min(Instant::now() + RENEW_MAX);
            match exchange(&self.routes, server, &call, (false, true), bound) {
                Ok(MetaAnswer::Renewed(_) | MetaAnswer::MustReclaim(_)) => return Ok(()),
                Ok(MetaAnswer::Later) if Instant::now() < deadline => wait_longer(&mut pause),
                Ok(MetaAnswer::Failed(errno)) => return Err(errno),
                Ok(_) => return Err(Errno::EPROTO),
                Err(error) if Instant::now() >= deadline => {
                    return Err(errno_of(&error, "going on with a session"));
                }
                Err(_) => wait_longer(&mut pause),
            }
        }
    }
}
