//! A session, and the servers that know of it: each from the first call to it on, or from when it was given a shard that another one had.

use super::presence::{Presence, Shared};
use super::{LATER_PAUSE, Routes, exchange, wait_longer};
use crate::net::NetError;
use crate::remote::errno_of;
use crate::wire::{MetaAnswer, MetaCall};
use ashlar_env::Env;
use ashlar_types::{ClusterMap, Durability, Errno, NodeId, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// For how long a server is asked at a time that has been given a shard.
const FOLLOW_MAX: Duration = Duration::from_secs(2);

/// What a metadata server says to a call that it does not know. Its words do not change any more; others refuse for other reasons.
const UNKNOWN_CALL: &str = "that is no call to metadata";

/// See the module.
pub(super) struct Session {
    pub shared: Arc<Shared>,
    routes: Arc<Routes>,
    env: Env,
    // LIMIT: one per metadata server.
    presences: Mutex<FxHashMap<NodeId, Arc<Presence>>>,
    /// Each held by whoever opens the session at that server. One that is away is in the way of no other.
    // LIMIT: one per metadata server.
    opening: Mutex<FxHashMap<NodeId, Arc<Mutex<()>>>>,
}

/// A session that was opened at a server.
pub(super) struct Opened {
    pub session: SessionId,
    /// The start of the server that knows what the session has.
    pub incarnation: u64,
}

/// Opens a session at `server`: `known`, or a new one.
pub(super) fn open_at(
    routes: &Routes,
    server: NodeId,
    known: Option<SessionId>,
    deadline: Instant,
) -> Result<Opened, Errno> {
    let mut pause = LATER_PAUSE;
    loop {
        let of_sync = known.filter(|session| session.durability() == Durability::Sync);
        let call = of_sync.map_or(MetaCall::Open(known), MetaCall::OpenSync);
        let answer = match exchange(routes, server, &call, (true, false), deadline) {
            // It would keep what the session changes as the directory says.
            Err(NetError::Refused(why)) if of_sync.is_some() && why == UNKNOWN_CALL => {
                let name = routes.map().node(server).map(|node| node.name.clone()).unwrap_or_default();
                tracing::error!(%server, %name, "a metadata server takes no sessions with durability=sync: it is of an earlier version");
                return Err(Errno::EOPNOTSUPP);
            }
            answer => answer.map_err(|error| errno_of(&error, "opening a session"))?,
        };
        match (answer, known) {
            (MetaAnswer::Session(session, incarnation), _) => return Ok(Opened { session, incarnation }),
            // It came with a shard to a server that was started anew since: that is told with the first call.
            (MetaAnswer::MustReclaim(incarnation), Some(session)) => {
                return Ok(Opened { session, incarnation: incarnation.saturating_sub(1) });
            }
            (MetaAnswer::Failed(errno), _) => return Err(errno),
            (MetaAnswer::Later, _) if Instant::now() + pause < deadline => wait_longer(&mut pause),
            (MetaAnswer::Later, _) => return Err(Errno::ETIMEDOUT),
            _ => return Err(Errno::EPROTO),
        }
    }
}

impl Session {
    pub fn new(shared: Arc<Shared>, routes: Arc<Routes>, env: Env) -> Session {
        Session { shared, routes, env, presences: Mutex::default(), opening: Mutex::default() }
    }

    /// Where it is.
    pub fn presences(&self) -> Vec<Arc<Presence>> {
        self.presences.lock().values().cloned().collect()
    }

    /// Where it is at `server`, if that knows it.
    pub fn known(&self, server: NodeId) -> Option<Arc<Presence>> {
        self.presences.lock().get(&server).cloned()
    }

    /// Has threads listen and renew at one more server, where it was opened after `map` was looked at.
    pub fn attend(
        self: &Arc<Session>,
        server: NodeId,
        opened: Opened,
        map: &ClusterMap,
    ) -> Result<Arc<Presence>, Errno> {
        let presence = Arc::new(Presence::new(server, self.shared.clone(), opened.incarnation, map));
        // Neither is waited for at the end: they may be in a call that the service holds back.
        let (kept, routes) = (presence.clone(), self.routes.clone());
        let listening = self.env.tasks.spawn("ashlar-events", Box::new(move || kept.listen(&routes)));
        let (kept, routes, session) = (presence.clone(), self.routes.clone(), self.clone());
        let renewing = self.env.tasks.spawn("ashlar-renew", Box::new(move || kept.renew(&routes, &session)));
        listening.and(renewing).map_err(|_| Errno::EAGAIN)?;
        self.presences.lock().insert(server, presence.clone());
        Ok(presence)
    }

    /// The session at `server`, which is told of it if it does not know it yet.
    pub fn presence(self: &Arc<Session>, server: NodeId, deadline: Instant) -> Result<Arc<Presence>, Errno> {
        if let Some(presence) = self.known(server) {
            return Ok(presence);
        }
        let turn = self.opening.lock().entry(server).or_default().clone();
        let _turn = turn.try_lock_until(deadline).ok_or(Errno::ETIMEDOUT)?;
        if let Some(presence) = self.known(server) {
            return Ok(presence);
        }
        let map = self.routes.map();
        match open_at(&self.routes, server, Some(self.shared.id), deadline) {
            Ok(opened) => self.attend(server, opened, &map),
            // It had come with a shard, and was ended there.
            Err(Errno::ENOTCONN) => {
                self.shared.lost();
                Err(Errno::ENOTCONN)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Is at all servers that have been given shards which the server of `presence` had: what the session has in them went along, and is renewed there. Waits for `most` at the most.
    pub fn follow(self: &Arc<Session>, presence: &Presence, most: Duration) {
        let map = self.routes.map();
        let Some(given) = presence.given_away(&map) else { return };
        let servers: BTreeSet<NodeId> = given.iter().filter_map(|shard| map.primary(*shard)).collect();
        let deadline = Instant::now() + most.min(FOLLOW_MAX);
        for server in servers {
            if let Err(errno) = self.presence(server, deadline) {
                tracing::debug!(%errno, %server, "a server that was given a shard cannot be told of the session; trying again");
                return;
            }
        }
        presence.note_followed(&map);
    }

    /// Forgets a server that is none any more, and has no shard.
    pub fn retire(&self, presence: &Presence) {
        presence.is_retired.store(true, SeqCst);
        self.presences.lock().remove(&presence.server);
    }
}
