//! Sessions: who is connected and where events go.

use crate::MetaService;
use ashlar_rpc::{SessionEvents, SessionGrant};
use ashlar_types::message::SessionEvent;
use ashlar_types::node::SessionOwner;
use ashlar_types::{Coherence, Durability, Errno, InodeId, SessionId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Most sessions at once.
// LIMIT: one per mount; a cluster of 10,000 nodes with a few mounts each.
const SESSIONS_MAX: usize = 65_536;

/// Term of leases of a session in the same process: it cannot be cut off from the service, and ends with it.
const LEASE_TERM_IN_PROCESS: Duration = Duration::from_secs(24 * 60 * 60);

/// See the module.
#[derive(Default)]
pub(crate) struct SessionTable {
    sessions: RwLock<FxHashMap<SessionId, Arc<dyn SessionEvents>>>,
}

impl SessionTable {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.sessions.read().len()
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions.read().contains_key(&session)
    }

    /// Has events of a session go to `events`.
    pub(crate) fn adopt(&self, session: SessionId, events: Arc<dyn SessionEvents>) {
        self.sessions.write().insert(session, events);
    }

    pub(crate) fn deliver(&self, session: SessionId, event: SessionEvent) {
        let events = self.sessions.read().get(&session).cloned();
        if let Some(events) = events {
            events.deliver(event);
        }
    }

    /// Has leases of a session not be renewed; tells for how long its holder may rely on them.
    fn revoke(&self, session: SessionId) -> Duration {
        let events = self.sessions.read().get(&session).cloned();
        events.map_or(Duration::ZERO, |events| events.revoke())
    }

    /// Tells sessions that were unmet that they are met, because of something that has come.
    pub(crate) fn tell_met<'s>(&self, met: impl IntoIterator<Item = &'s SessionId>) {
        let sessions = self.sessions.read();
        let met: Vec<_> = met.into_iter().filter_map(|session| sessions.get(session).cloned()).collect();
        drop(sessions);
        met.iter().for_each(|events| events.met());
    }

    /// Whether a session says that it is at work on the answer to a recall of `inode`.
    pub(crate) fn is_busy(&self, session: SessionId, inode: InodeId) -> bool {
        let events = self.sessions.read().get(&session).cloned();
        events.is_some_and(|events| events.is_busy(inode))
    }
}

impl MetaService {
    /// Opens a session: the one `wanted`, which another server has drawn, or a new one. `unmet_of`: whose it is, if it has come along with a shard and its holder has not been here.
    ///
    /// # Errors
    /// `EAGAIN` when there are too many; `EEXIST` when it is known here already.
    pub(crate) fn session_open(
        &self,
        wanted: Option<SessionId>,
        unmet_of: Option<SessionOwner>,
        events: Arc<dyn SessionEvents>,
    ) -> Result<SessionGrant, Errno> {
        let mut sessions = self.sessions.sessions.write();
        if sessions.len() >= SESSIONS_MAX {
            return Err(Errno::EAGAIN);
        }
        // Never reused: drawn at random from nearly 2^63, and never 0, which means the service itself.
        if wanted.is_some_and(|wanted| wanted.0 == 0 || sessions.contains_key(&wanted)) {
            return Err(Errno::EEXIST);
        }
        let session = loop {
            let draw = || SessionId::drawn(Coherence::Strict, Durability::Async, self.env.entropy.next_u64());
            let id = wanted.unwrap_or_else(draw);
            if id.0 != 0 && !sessions.contains_key(&id) {
                break id;
            }
        };
        if let Some(owner) = unmet_of {
            // ORDER: before anybody finds it.
            self.unmet.add(session, owner);
        }
        sessions.insert(session, events);
        drop(sessions);
        self.leases.lock().begin_session(session);
        Ok(SessionGrant {
            session,
            lease_term: LEASE_TERM_IN_PROCESS,
            server: self.across.node(),
            incarnation: self.incarnation,
        })
    }

    /// Ends a session: what it held goes to others, what only it knew is asked of the chains, its orphans are removed, and layouts
    /// it was filling are withdrawn.
    pub(crate) fn session_end(&self, session: SessionId) {
        if self.sessions.sessions.write().remove(&session).is_none() {
            return;
        }
        let _inside = self.enter_all();
        self.awaited.give_up(session);
        let was_awaited = self.end_lasting(session);
        // ORDER: files it was writing are settled before anybody else gets a lease on them or is told their size.
        let written = {
            let mut leases = self.leases.lock();
            let written = leases.end_session(session);
            leases.begin_settling(&written);
            written
        };
        self.opens.lock().end_session(session);
        let mut grants = Vec::new();
        self.locks.lock().release_session(session, &mut grants);
        self.announce_locks(grants);
        if let Err(errno) = self.withdraw_layouts_of(session) {
            tracing::error!(%errno, %session, "could not withdraw the layouts proposed to a session; the next start does it");
        }
        if let Err(errno) = self.reap(session, Some(&written).filter(|_| !was_awaited).map(Vec::as_slice)) {
            tracing::error!(%errno, %session, "could not clean up after a session; the next start does it");
        }
        self.leases.lock().end_settling(&written);
        // ORDER: last; until then nobody is told what is not known.
        self.awaited.end(session);
        self.leases_changed.notify_all();
    }

    /// Ends a session that did not answer a recall in time, and tells it. If its holder may still rely on its leases, not yet: tells for how long.
    pub(crate) fn session_evict(&self, session: SessionId) -> Duration {
        let left = self.sessions.revoke(session);
        if !left.is_zero() || !self.sessions.has(session) {
            return left;
        }
        tracing::warn!(%session, "a session did not answer a recall in time and is evicted");
        self.sessions.deliver(session, SessionEvent::Evicted { session });
        self.session_end(session);
        Duration::ZERO
    }
}
