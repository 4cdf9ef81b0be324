//! The manager, and a map that is kept current.

use super::Routes;
use crate::net::{Call, Caller, Epochs, Link, NetError, Service, Wanted, Watch};
use ashlar_env::{Task, Tasks};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Epoch, Role};
use parking_lot::RwLock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// For how long the manager holds a question for a newer map back, and a little more.
const PARKED_MAX: Duration = Duration::from_secs(30);
/// Time between attempts to keep a map.
const KEEP_AGAIN: Duration = Duration::from_secs(1);
/// Time between attempts to reach a manager.
const PAUSE: Duration = Duration::from_millis(500);

/// Calls to whichever manager answers.
pub struct ManagerCalls {
    link: Link,
    role: Role,
    addresses: Arc<RwLock<(Vec<SocketAddr>, Vec<SocketAddr>)>>,
    /// Which address is tried first: another one after a manager that does not answer.
    first: Arc<AtomicUsize>,
    epochs: Arc<Epochs>,
}

impl ManagerCalls {
    /// The managers at `addresses`.
    pub fn new(caller: Arc<Caller>, addresses: Vec<SocketAddr>) -> ManagerCalls {
        let (epochs, role) = (caller.epochs.clone(), caller.role);
        let addresses = Arc::new(RwLock::new((addresses, Vec::new())));
        let (kept, wanted) = (addresses.clone(), Wanted { role: Role::Manager, node: None });
        let first = Arc::new(AtomicUsize::new(0));
        let turn = first.clone();
        let in_turn = move || {
            let (mut first, then) = kept.read().clone();
            let begin = turn.load(Relaxed) % first.len().max(1);
            first.rotate_left(begin);
            (first, then)
        };
        ManagerCalls { link: Link::new(caller, wanted, Box::new(in_turn), 1), role, addresses, first, epochs }
    }

    /// Managers are where `map` says now.
    pub fn follow(&self, map: &ClusterMap) {
        let addresses = map.managers_of(self.role);
        if !addresses.0.is_empty() {
            *self.addresses.write() = addresses;
        }
    }

    /// One call.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] with the manager's words when it cannot be done.
    pub fn call(&self, request: &ManagerRequest, deadline: Instant) -> Result<ManagerReply, NetError> {
        self.call_watched(request, deadline, &Watch::default())
    }

    /// A question of which it matters whether it may be carried out although nobody has answered: `None`: no manager has got it. A manager that takes calls and does not answer is not the
    /// first one to be asked the next time.
    ///
    /// # Errors
    /// As [`ManagerCalls::call`].
    pub fn ask_once(
        &self,
        request: &ManagerRequest,
        deadline: Instant,
    ) -> Option<Result<ManagerReply, NetError>> {
        let watch = Watch::default();
        let outcome = self.call_watched(request, deadline, &watch);
        if matches!(outcome, Err(NetError::Stuck)) {
            self.first.fetch_add(1, Relaxed);
            self.link.reconnect();
        }
        (outcome.is_ok() || watch.was_sent()).then_some(outcome)
    }

    fn call_watched(
        &self,
        request: &ManagerRequest,
        deadline: Instant,
        watch: &Watch<'_>,
    ) -> Result<ManagerReply, NetError> {
        let is_parked = matches!(request, ManagerRequest::Map { have } if have.0 > 0);
        let call = Call {
            service: Service::Manager,
            head: &encode(request),
            payload: &[],
            // Every change says what is to be, and may be said twice; but a token would be drawn again, keys be changed twice, and what happened told
            // again.
            is_once: matches!(
                request,
                ManagerRequest::NewToken { .. } | ManagerRequest::RotateKeys | ManagerRequest::Report { .. }
            ),
            may_repeat: false,
            is_urgent: false,
        };
        let answer = match is_parked {
            true => self.link.park(&call, deadline)?,
            false => self.link.call_watched(&call, deadline, watch)?,
        };
        match decode(answer.head(), "reply of the manager") {
            Ok(ManagerReply::Refused(text)) => Err(NetError::Refused(text)),
            Ok(reply) => Ok(reply),
            Err(_) => Err(NetError::Malformed("a reply that is none")),
        }
    }

    /// The map, if there is a newer one than that of `have`.
    ///
    /// # Errors
    /// As [`ManagerCalls::call`].
    pub fn map(&self, have: Epoch, deadline: Instant) -> Result<ClusterMap, NetError> {
        match self.call(&ManagerRequest::Map { have }, deadline)? {
            ManagerReply::Map(map) => match map.check() {
                Ok(()) => Ok(*map),
                Err(_) => Err(NetError::Malformed("a map that contradicts itself")),
            },
            _ => Err(NetError::Malformed("something else than a map")),
        }
    }
}

/// Tells every manager of the map something that each of them keeps for itself. One that does not answer within `wait` has not been told.
pub fn tell_managers(routes: &Routes, request: &ManagerRequest, wait: Duration) {
    ask_managers(routes, request, wait);
}

/// As [`tell_managers`]; the answers of those that answer.
pub fn ask_managers(routes: &Routes, request: &ManagerRequest, wait: Duration) -> Vec<ManagerReply> {
    let head = encode(request);
    let call = Call {
        service: Service::Manager,
        head: &head,
        payload: &[],
        is_once: false,
        may_repeat: true,
        is_urgent: false,
    };
    let mut answers = Vec::new();
    for node in routes.map().listening(Role::Manager) {
        match routes.link(node.id, Role::Manager).call(&call, Instant::now() + wait) {
            // One that says what this software does not know has said nothing.
            Ok(answer) => answers.extend(decode(answer.head(), "reply of the manager")),
            Err(error) => tracing::debug!(%error, node = %node.id, "a manager was not told"),
        }
    }
    answers
}

/// Keeps a map for the next start; tells whether it could.
pub type KeepMap = dyn Fn(&ClusterMap) -> bool + Send;

/// Keeps a map current, until it is dropped.
pub struct MapWatcher {
    map: Arc<RwLock<Arc<ClusterMap>>>,
    kept: Arc<AtomicU64>,
    is_stopping: Arc<AtomicBool>,
    _task: Task,
}

impl MapWatcher {
    /// Begins with `map`, which is kept; every newer one is kept with `keep` before it can be seen. One that cannot be is gone by all the same: who serves what, and who may call, says the
    /// newest map alone. Keeping is tried again every second, and [`MapWatcher::is_kept`] tells whoever does what cannot be undone.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        calls: Arc<ManagerCalls>,
        map: ClusterMap,
        tasks: &dyn Tasks,
        keep: Box<KeepMap>,
    ) -> std::io::Result<MapWatcher> {
        calls.epochs.note_known(map.epoch);
        let map = Arc::new(RwLock::new(Arc::new(map)));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let kept = Arc::new(AtomicU64::new(map.read().epoch.0));
        let (current, stopping, kept_epoch) = (map.clone(), is_stopping.clone(), kept.clone());
        let keep = move |map: &ClusterMap| {
            if kept_epoch.load(SeqCst) < map.epoch.0 && keep(map) {
                kept_epoch.store(map.epoch.0, SeqCst);
            }
            kept_epoch.load(SeqCst) >= map.epoch.0
        };
        let run = Box::new(move || {
            while !stopping.load(SeqCst) {
                let known = current.read().clone();
                let have = known.epoch;
                let wait = if keep(&known) { PARKED_MAX } else { KEEP_AGAIN };
                match calls.map(have, Instant::now() + wait) {
                    Ok(newer) if newer.epoch > have => {
                        calls.follow(&newer);
                        let newer = Arc::new(newer);
                        // ORDER: kept before anything is done by it: what a storage server throws away by a map it does not show again by an older one.
                        keep(&newer);
                        *current.write() = newer.clone();
                        calls.epochs.note_known(newer.epoch);
                    }
                    // ORDER: an older map is never taken: it comes from a manager that is behind.
                    Ok(_) => {}
                    Err(NetError::Stuck) => {}
                    Err(error) => {
                        tracing::debug!(%error, "no manager answers; the map stays as it is");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        });
        let task = tasks.spawn("ashlar-map", run)?;
        Ok(MapWatcher { map, kept, is_stopping, _task: task })
    }

    /// The map's handle.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.map.clone()
    }

    /// Tells whether the map of an epoch, or a newer one, is kept for the next start.
    pub fn is_kept(&self) -> impl Fn(Epoch) -> bool + Send + Sync + use<> {
        let kept = self.kept.clone();
        move |epoch| kept.load(SeqCst) >= epoch.0
    }
}

impl Drop for MapWatcher {
    fn drop(&mut self) {
        // Not waited for: it may be in a question that is held back.
        self.is_stopping.store(true, SeqCst);
    }
}
