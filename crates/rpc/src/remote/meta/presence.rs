//! A session at one metadata server: what that says unasked is heard, the session is renewed there, and told anew when the server was started anew.

use super::session::Session;
use super::{PARKED_MAX, RENEW_MAX, exchange};
use crate::SessionEvents;
use crate::net::NetError;
use crate::remote::Routes;
use crate::wire::{COUNT_BITS, LEASE_TERM, MetaAnswer, MetaCall};
use ashlar_types::message::SessionEvent;
use ashlar_types::{ClusterMap, Epoch, Errno, InodeId, NodeId, SessionId, ShardId};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Time between two renewals of a session.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// A server that has answered no renewal for so long cannot be reached.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Time between two looks whether servers are to be heard again.
const DEAF_PAUSE: Duration = Duration::from_millis(5);
/// Time between two looks at the map.
const MAP_PAUSE: Duration = Duration::from_millis(5);

/// What a session's presences have in common.
pub(super) struct Shared {
    pub id: SessionId,
    pub events: Arc<dyn SessionEvents>,
    pub is_ended: AtomicBool,
    /// Held while anything is told: nothing that a server says comes after the end of the session.
    telling: Mutex<()>,
    /// Whether nothing is heard of servers for now; held while something is passed on that was.
    is_deaf: Mutex<bool>,
}

impl Shared {
    pub fn new(id: SessionId, events: Arc<dyn SessionEvents>) -> Shared {
        let (is_ended, telling, is_deaf) = (AtomicBool::new(false), Mutex::new(()), Mutex::new(false));
        Shared { id, events, is_ended, telling, is_deaf }
    }

    /// From now on nothing that servers say unasked is passed on, or is again. They say it once more then, to whoever listens.
    pub fn set_deaf(&self, is_deaf: bool) {
        *self.is_deaf.lock() = is_deaf;
    }

    /// A server does not know the session any more: it is over everywhere.
    pub fn lost(&self) {
        let _telling = self.telling.lock();
        if !self.is_ended.swap(true, SeqCst) {
            self.events.deliver(SessionEvent::Evicted { session: self.id });
        }
    }

    /// It is over, and nobody is to hear of it, nor of anything else.
    pub fn end_quietly(&self) {
        let _telling = self.telling.lock();
        self.is_ended.store(true, SeqCst);
    }

    /// Tells of something that a server has said, unless the session has ended: another one may have begun.
    fn tell(&self, event: SessionEvent) {
        // ORDER: no call begins in a session of which the end is told.
        if let SessionEvent::Evicted { .. } = event {
            return self.lost();
        }
        let _telling = self.telling.lock();
        if !self.is_ended.load(SeqCst) {
            self.events.deliver(event);
        }
    }
}

/// See the module.
pub(super) struct Presence {
    pub server: NodeId,
    shared: Arc<Shared>,
    /// Recalls that were not answered yet.
    // LIMIT: one per lease this session holds.
    recalls: Mutex<Vec<(u64, InodeId)>>,
    reclaiming: Mutex<Reclaiming>,
    reclaimed: Condvar,
    followed: Mutex<Followed>,
    /// When the server answered last that it was asked to renew the session, or was told of it.
    heard: Mutex<Instant>,
    /// The server is none any more.
    pub is_retired: AtomicBool,
}

/// By which map the session is wherever shards of the server have gone.
struct Followed {
    epoch: Epoch,
    /// Those that it had then.
    // LIMIT: as shards.
    had: Vec<ShardId>,
}

impl Followed {
    fn of(server: NodeId, map: &ClusterMap) -> Followed {
        let had = map.shards.iter().filter(|shard| shard.primary == server).map(|shard| shard.id).collect();
        Followed { epoch: map.epoch, had }
    }
}

/// What is known of starts of the server during a session, by their numbers.
struct Reclaiming {
    /// The newest that the session was told of.
    told: u64,
    /// The newest that knows what the session has.
    done: u64,
}

impl Presence {
    /// At a server that has just opened the session, in its start `incarnation`, after `map` was looked at.
    pub fn new(server: NodeId, shared: Arc<Shared>, incarnation: u64, map: &ClusterMap) -> Presence {
        let reclaiming = Mutex::new(Reclaiming { told: incarnation, done: incarnation });
        Presence {
            server,
            shared,
            recalls: Mutex::default(),
            reclaiming,
            reclaimed: Condvar::new(),
            followed: Mutex::new(Followed::of(server, map)),
            heard: Mutex::new(Instant::now()),
            is_retired: AtomicBool::new(false),
        }
    }

    fn is_ended(&self) -> bool {
        self.shared.is_ended.load(SeqCst) || self.is_retired.load(SeqCst)
    }

    /// Shards that the server had, and by the newer `map` has not. `None` when it is not newer.
    pub fn given_away(&self, map: &ClusterMap) -> Option<Vec<ShardId>> {
        let followed = self.followed.lock();
        if map.epoch <= followed.epoch {
            return None;
        }
        let is_gone = |shard: &&ShardId| map.primary(**shard) != Some(self.server);
        Some(followed.had.iter().filter(is_gone).copied().collect())
    }

    /// The session is where they are.
    pub fn note_followed(&self, map: &ClusterMap) {
        *self.followed.lock() = Followed::of(self.server, map);
    }

    /// Whether it knows of the map of `epoch`, or a newer one, and is where shards have gone by it.
    fn has_followed(&self, epoch: Epoch) -> bool {
        self.followed.lock().epoch >= epoch
    }

    /// Whether the server does not even answer renewals ([`SILENT_AFTER`]). One that only takes long for a call does.
    pub fn is_silent(&self) -> bool {
        self.heard.lock().elapsed() > SILENT_AFTER
    }

    /// Whether the server has nothing that a session could have something of.
    fn is_idle(&self) -> bool {
        self.followed.lock().had.is_empty()
    }

    /// The newest start of the server that the session was told of.
    pub fn incarnation(&self) -> u64 {
        self.reclaiming.lock().told
    }

    /// The newest start of the server that knows what the session has: an earlier one answers nothing any more.
    pub fn answering(&self) -> u64 {
        self.reclaiming.lock().done
    }

    /// A recall was answered.
    pub fn note_answered(&self, recall: u64, inode: InodeId) {
        self.recalls.lock().retain(|known| *known != (recall, inode));
    }

    /// Asks for events on and on.
    pub fn listen(&self, routes: &Routes) {
        let mut seen = 0;
        while !self.is_ended() {
            if *self.shared.is_deaf.lock() {
                std::thread::sleep(DEAF_PAUSE);
                continue;
            }
            let call = MetaCall::Events { session: self.shared.id, seen };
            let heard = exchange(routes, self.server, &call, (false, false), Instant::now() + PARKED_MAX);
            let is_deaf = self.shared.is_deaf.lock();
            if *is_deaf {
                continue;
            }
            match heard {
                Ok(MetaAnswer::Events(events)) => {
                    for (number, event) in events {
                        if number > seen {
                            seen = number;
                            self.deliver(number, event);
                        }
                    }
                }
                Ok(MetaAnswer::Failed(Errno::ENOTCONN)) => return self.shared.lost(),
                Ok(MetaAnswer::MustReclaim(incarnation)) => {
                    drop(is_deaf);
                    self.reclaim(routes, incarnation, Instant::now() + PARKED_MAX);
                }
                // It may not be who serves any more.
                Ok(MetaAnswer::Later) => {
                    drop(is_deaf);
                    std::thread::sleep(DEAF_PAUSE);
                }
                Ok(other) => tracing::error!(?other, "metadata gave an answer of the wrong kind"),
                Err(NetError::Stuck) => {}
                Err(error) => {
                    drop(is_deaf);
                    tracing::debug!(%error, server = %self.server, "no events of the session can be heard");
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
        self.shared.tell(event);
    }

    /// Tells the session, once, that the server has been started anew; when it has the map of that start. By an older one it would not tell what it has in shards
    /// that have come to the server since.
    pub fn tell(&self, routes: &Routes, incarnation: u64) {
        let (newest, deadline) = (routes.newest_epoch(), Instant::now() + RENEW_EVERY);
        while routes.map().epoch < newest {
            if Instant::now() >= deadline {
                tracing::debug!(epoch = %newest, "no manager gives the newest map out; a metadata server is told later");
                return;
            }
            std::thread::sleep(MAP_PAUSE);
        }
        // ORDER: delivered under the lock, so that nothing of the service before comes after it.
        let mut reclaiming = self.reclaiming.lock();
        if reclaiming.told < incarnation && !self.is_ended() {
            reclaiming.told = incarnation;
            tracing::info!(session = %self.shared.id, server = %self.server, "the metadata server was started anew; telling it what this session has");
            self.recalls.lock().clear();
            self.shared.tell(SessionEvent::Reclaim { server: self.server, incarnation });
        }
    }

    /// Tells, and waits until the server knows what the session has, or until `deadline`.
    pub fn reclaim(&self, routes: &Routes, incarnation: u64, deadline: Instant) {
        self.tell(routes, incarnation);
        let mut reclaiming = self.reclaiming.lock();
        // One that could not be told yet is tried again by whoever called.
        while reclaiming.done < incarnation && reclaiming.told >= incarnation && !self.is_ended() {
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

    /// The server knows what the session has.
    pub fn note_reclaimed(&self, incarnation: u64) {
        let mut reclaiming = self.reclaiming.lock();
        reclaiming.done = reclaiming.done.max(incarnation);
        reclaiming.told = reclaiming.told.max(incarnation);
        self.reclaimed.notify_all();
    }

    /// Whether the server, in that start or a later one, knows what the session has. Told once more it would take what is not held any more for held.
    pub fn is_reclaimed(&self, incarnation: u64) -> bool {
        self.reclaiming.lock().done >= incarnation
    }

    /// It does not; whoever told it may be told to begin anew.
    pub fn forget_told(&self, incarnation: u64) {
        let mut reclaiming = self.reclaiming.lock();
        if reclaiming.told == incarnation && reclaiming.done < incarnation {
            reclaiming.told = reclaiming.done;
        }
    }

    /// Says on and on that the session is there.
    pub fn renew(&self, routes: &Routes, session: &Arc<Session>) {
        let mut term = Term { renewed: since_boot(), has_expired: false };
        while !self.is_ended() {
            let is_idle = self.is_idle();
            let is_in_term = !is_idle && !term.has_expired;
            std::thread::sleep(if is_in_term { RENEW_EVERY.min(term.left()) } else { RENEW_EVERY });
            session.follow(self, if is_in_term { term.left() } else { RENEW_MAX });
            self.tell_if_expired(&mut term, is_idle);
            if is_idle && routes.map().node(self.server).is_none() {
                return session.retire(self);
            }
            let recalled: Vec<InodeId> = self.recalls.lock().iter().map(|(_, inode)| *inode).collect();
            let busy: Vec<InodeId> =
                recalled.into_iter().filter(|inode| self.shared.events.is_busy(*inode)).collect();
            let call = MetaCall::Renew { session: self.shared.id, busy };
            let asked = since_boot();
            // A term that has ended is told of at once, and not when the server has been waited for.
            let wait = if term.has_expired || is_idle { RENEW_MAX } else { RENEW_MAX.min(term.left()) };
            let answer = exchange(routes, self.server, &call, (false, true), Instant::now() + wait);
            if answer.is_ok() {
                *self.heard.lock() = Instant::now();
            }
            match answer {
                Ok(MetaAnswer::Failed(Errno::ENOTCONN)) => return self.shared.lost(),
                Ok(MetaAnswer::MustReclaim(incarnation)) => self.tell(routes, incarnation),
                Ok(MetaAnswer::Renewed(epoch)) if self.has_followed(epoch) => {
                    term = Term { renewed: asked, has_expired: false };
                }
                // What it has in a shard that has another server is not renewed here, and not there yet.
                Ok(MetaAnswer::Renewed(_) | MetaAnswer::Later) => {}
                Ok(other) => tracing::error!(?other, "metadata gave an answer of the wrong kind"),
                Err(error) => tracing::debug!(%error, "the session could not be renewed"),
            }
            self.tell_if_expired(&mut term, is_idle);
        }
    }

    fn tell_if_expired(&self, term: &mut Term, is_idle: bool) {
        if !term.has_expired && term.left().is_zero() && !is_idle {
            term.has_expired = true;
            tracing::warn!(session = %self.shared.id, server = %self.server, "the metadata server has not been reached for {LEASE_TERM:?}: nothing is cached any more");
            self.shared.tell(SessionEvent::Expired);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<SessionEvent>>);

    impl SessionEvents for Told {
        fn deliver(&self, event: SessionEvent) {
            self.0.lock().push(event);
        }
        fn is_busy(&self, _: InodeId) -> bool {
            false
        }
    }

    /// A lock that one server grants while another one has ended the session would be taken for one of the next session.
    #[test]
    fn nothing_is_told_of_a_session_after_its_end_and_no_call_begins_in_it() {
        let (told, id) = (Arc::new(Told::default()), SessionId(7));
        let shared = Shared::new(id, told.clone());
        let lock_done = || SessionEvent::LockDone { ticket: 1, outcome: Ok(()) };
        shared.tell(lock_done());
        shared.tell(SessionEvent::Evicted { session: id });
        assert!(shared.is_ended.load(SeqCst));
        shared.tell(lock_done());
        shared.lost();
        assert_eq!(*told.0.lock(), [lock_done(), SessionEvent::Evicted { session: id }]);
    }
}
