//! Which servers are there: each says so every few seconds, to every manager. It is in memory, and the map stays as it is by it, and
//! whoever waits for a server goes on waiting. It is for people, for the event log, and to begin nothing with a server that is away.

use super::{ManagerService, refused};
use crate::ManagerError;
use crate::events::EventLog;
use ashlar_types::message::{ManagerReply, ServerPresence};
use ashlar_types::{ClusterMap, EventKind, Happening, NodeId, PeerId, Role};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After how long without a word a server counts as away: five words, and a little more.
pub(super) const AWAY_AFTER: Duration = Duration::from_secs(10);

/// After how long without a look this manager has missed words itself: it hung, or its machine slept.
const LATE_AFTER: Duration = Duration::from_secs(4);

/// Roles that say that they are there.
const SERVERS: [Role; 3] = [Role::Manager, Role::Meta, Role::Storage];

/// A server: a role of a node.
type Server = (NodeId, Role);

/// What was heard of servers since this manager began.
pub(super) struct Presences {
    began: Instant,
    /// When this manager looked last who is silent, and from when on it can tell: not if it has itself not run for a while.
    looked: Mutex<(Instant, Instant)>,
    // LIMIT: as servers of the map.
    heard: Mutex<BTreeMap<Server, Heard>>,
}

#[derive(Clone, Copy)]
struct Heard {
    /// Nothing: not since this manager began.
    last: Option<Instant>,
    is_away: bool,
    /// This manager has noted that it is: the event may not be in the log yet.
    is_noted: bool,
}

impl Default for Presences {
    fn default() -> Presences {
        let now = Instant::now();
        Presences { began: now, looked: Mutex::new((now, now)), heard: Mutex::default() }
    }
}

impl Presences {
    /// Whether this manager would have heard of everybody who is there: it has run for long enough, without a pause.
    pub(super) fn can_tell(&self) -> bool {
        let ((looked, from), now) = (*self.looked.lock(), Instant::now());
        let is_looking = now.duration_since(looked) <= LATE_AFTER && now >= from;
        is_looking && now.duration_since(self.began) > AWAY_AFTER
    }
}

fn servers(map: &ClusterMap) -> impl Iterator<Item = Server> {
    map.nodes.iter().flat_map(|node| {
        SERVERS.into_iter().filter(|role| !node.addresses(*role).is_empty()).map(|role| (node.id, role))
    })
}

impl ManagerService {
    /// A server says that it is there.
    pub(super) fn note_present(&self, peer: PeerId, role: Role) -> Result<ManagerReply, ManagerError> {
        if !SERVERS.contains(&role) || !peer.roles.has(role) {
            return Err(refused(format!("{} is no {role} server", peer.node)));
        }
        let known = {
            let now = Heard { last: Some(Instant::now()), is_away: false, is_noted: false };
            self.presences.heard.lock().insert((peer.node, role), now)
        };
        if let Some(Heard { last, is_away: true, is_noted }) = known {
            let silence = last.unwrap_or(self.presences.began).elapsed();
            self.note_back((peer.node, role), is_noted, silence);
        }
        Ok(ManagerReply::Done)
    }

    /// Which servers are there, as far as this manager knows.
    pub(super) fn presence(&self) -> Result<ManagerReply, ManagerError> {
        let map = self.map().read().clone();
        let heard = self.presences.heard.lock();
        let of = |(node, role): Server| {
            let known = heard.get(&(node, role));
            let silent_ms = known.and_then(|known| known.last).map(|last| last.elapsed().as_millis() as u64);
            let unheard_ms = self.presences.began.elapsed().as_millis() as u64;
            let is_away = known.is_some_and(|known| known.is_away);
            ServerPresence { node, role, is_away, silent_ms: silent_ms.unwrap_or(unheard_ms) }
        };
        Ok(ManagerReply::Presence(servers(&map).filter(|server| !self.is_this(*server)).map(of).collect()))
    }

    /// Whether a server is there: this manager is it, or has heard of it lately.
    pub(super) fn is_heard_of(&self, node: NodeId, role: Role) -> bool {
        let heard = self.presences.heard.lock().get(&(node, role)).copied();
        self.is_this((node, role)) || heard.is_some_and(|heard| heard.last.is_some() && !heard.is_away)
    }

    /// When a server said last that it is there, if it is.
    pub(super) fn last_word(&self, node: NodeId, role: Role) -> Option<Instant> {
        let heard = self.presences.heard.lock().get(&(node, role)).copied();
        heard.filter(|heard| !heard.is_away)?.last
    }

    /// For how long a server has been silent that is away.
    pub(super) fn away_for(&self, node: NodeId, role: Role) -> Option<Duration> {
        let heard = self.presences.heard.lock().get(&(node, role)).copied();
        let away = heard.filter(|heard| heard.is_away && !self.is_this((node, role)))?;
        Some(away.last.unwrap_or(self.presences.began).elapsed())
    }

    /// That a server does not answer, for people.
    pub(super) fn silence_text(&self, map: &ClusterMap, node: NodeId, role: Role) -> String {
        let name = map.node(node).map_or_else(|| node.to_string(), |known| known.name.clone());
        match self.away_for(node, role) {
            Some(silence) => format!("nothing was heard of {name} for {} s", silence.as_secs()),
            None => format!("nothing was heard of {name} yet"),
        }
    }

    fn is_this(&self, (node, role): Server) -> bool {
        role == Role::Manager && Some(&node) == self.own.get()
    }

    /// Which node this manager is on.
    pub fn set_own_node(&self, node: NodeId) {
        let _ = self.own.set(node);
    }

    /// Notes which servers have been silent for long. To be called every second or so.
    pub fn look_for_silent_servers(&self) {
        {
            let (mut looked, now) = (self.presences.looked.lock(), Instant::now());
            if now.duration_since(looked.0) > LATE_AFTER {
                looked.1 = now + AWAY_AFTER;
            }
            looked.0 = now;
            if now < looked.1 {
                return;
            }
        }
        let map = self.map().read().clone();
        let silent: Vec<(Server, Duration)> = {
            let mut heard = self.presences.heard.lock();
            heard.retain(|(node, role), _| {
                map.node(*node).is_some_and(|node| !node.addresses(*role).is_empty())
            });
            let not_heard = Heard { last: None, is_away: false, is_noted: false };
            let mut silence_of = |server: Server| {
                let known = heard.entry(server).or_insert(not_heard);
                let silence = known.last.unwrap_or(self.presences.began).elapsed();
                let is_new =
                    silence > AWAY_AFTER && !std::mem::replace(&mut known.is_away, silence > AWAY_AFTER);
                is_new.then_some((server, silence))
            };
            servers(&map).filter(|server| !self.is_this(*server)).filter_map(&mut silence_of).collect()
        };
        for (server, silence) in silent {
            self.note_away(server, silence);
        }
    }

    /// Notes that a server went, if that is for this manager to tell, and nobody has: of one that was stopped, or was away before this manager began, it is known.
    fn note_away(&self, (node, role): Server, silence: Duration) {
        let Some((log, name)) = self.log_for(node) else { return };
        let newest = newest_event(log, &name, role);
        if matches!(newest, Some(EventKind::ServerAway | EventKind::ServerStopped)) {
            return;
        }
        let text = format!("{role}: nothing was heard of it for {} s", silence.as_secs());
        log.note(node, EventKind::ServerAway, &name, &text);
        if let Some(heard) = self.presences.heard.lock().get_mut(&(node, role)) {
            heard.is_noted = heard.is_away;
        }
    }

    /// Notes that a server came back, if it is noted that it went.
    fn note_back(&self, (node, role): Server, is_noted: bool, silence: Duration) {
        let Some((log, name)) = self.log_for(node) else { return };
        if is_noted || newest_event(log, &name, role) == Some(EventKind::ServerAway) {
            let text = format!("{role}: it is there again after {} s", silence.as_secs());
            log.note(node, EventKind::ServerBack, &name, &text);
        }
    }

    /// The event log and the name of a node, if this is the manager that tells of it: the first one that is there.
    fn log_for(&self, node: NodeId) -> Option<(&EventLog, String)> {
        let map = self.map().read().clone();
        let (log, own) = (self.manager.events()?, *self.own.get()?);
        let is_there = |manager: NodeId| {
            let heard = self.presences.heard.lock().get(&(manager, Role::Manager)).copied();
            manager == own || heard.is_some_and(|heard| heard.last.is_some() && !heard.is_away)
        };
        let first = map.listening(Role::Manager).map(|manager| manager.id).find(|manager| is_there(*manager));
        (first == Some(own)).then_some((log, map.node(node)?.name.clone()))
    }
}

/// What the log has last of a server going or coming.
fn newest_event(log: &EventLog, name: &str, role: Role) -> Option<EventKind> {
    let kinds =
        [EventKind::ServerAway, EventKind::ServerBack, EventKind::ServerStarted, EventKind::ServerStopped];
    let is_about_it = |what: &Happening| {
        kinds.contains(&what.kind) && what.subject == name && what.text.starts_with(role.name())
    };
    log.after(0).into_iter().map(|event| event.what).rfind(is_about_it).map(|what| what.kind)
}

#[cfg(test)]
impl ManagerService {
    /// As if nothing had been heard of a server for so long, or it had just said that it is there.
    pub(super) fn suppose_silence(&self, server: Server, silence: Option<Duration>) {
        let last = Instant::now().checked_sub(silence.unwrap_or_default());
        let heard = Heard { last, is_away: silence.is_some(), is_noted: false };
        self.presences.heard.lock().insert(server, heard);
    }

    /// As if this manager had run for long, and would have heard of everybody.
    pub(super) fn suppose_it_can_tell(&mut self) {
        let now = Instant::now();
        self.presences.began = now.checked_sub(2 * AWAY_AFTER).unwrap_or(now);
        *self.presences.looked.lock() = (now + Duration::from_secs(60 * 60), now);
    }
}
