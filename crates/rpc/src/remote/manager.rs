//! The manager, and a map that is kept current.

use crate::net::{Call, Caller, Epochs, Link, NetError, Service, Wanted};
use ashlar_env::{Task, Tasks};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{ManagerReply, ManagerRequest};
use ashlar_types::{ClusterMap, Epoch, Role};
use parking_lot::RwLock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// For how long the manager holds a question for a newer map back, and a little more.
const PARKED_MAX: Duration = Duration::from_secs(30);
/// Time between attempts to reach a manager.
const PAUSE: Duration = Duration::from_millis(500);

/// Calls to whichever manager answers.
pub struct ManagerCalls {
    link: Link,
    addresses: Arc<RwLock<Vec<SocketAddr>>>,
    epochs: Arc<Epochs>,
}

impl ManagerCalls {
    /// The managers at `addresses`.
    pub fn new(caller: Arc<Caller>, addresses: Vec<SocketAddr>) -> ManagerCalls {
        let epochs = caller.epochs.clone();
        let addresses = Arc::new(RwLock::new(addresses));
        let (kept, wanted) = (addresses.clone(), Wanted { role: Role::Manager, node: None });
        ManagerCalls {
            link: Link::new(caller, wanted, Box::new(move || kept.read().clone()), 1),
            addresses,
            epochs,
        }
    }

    /// Managers are at these addresses now.
    pub fn set_addresses(&self, addresses: &[SocketAddr]) {
        if !addresses.is_empty() {
            *self.addresses.write() = addresses.to_vec();
        }
    }

    /// One call.
    ///
    /// # Errors
    /// [`NetError`]; [`NetError::Refused`] with the manager's words when it cannot be done.
    pub fn call(&self, request: &ManagerRequest, deadline: Instant) -> Result<ManagerReply, NetError> {
        let is_parked = matches!(request, ManagerRequest::Map { have } if have.0 > 0);
        let call = Call {
            service: Service::Manager,
            head: &encode(request),
            payload: &[],
            // Every change says what is to be, and may be said twice; but a token would be drawn again.
            is_once: matches!(request, ManagerRequest::NewToken { .. }),
            may_repeat: false,
            is_urgent: false,
        };
        let answer =
            if is_parked { self.link.park(&call, deadline)? } else { self.link.call(&call, deadline)? };
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

/// Keeps a map current, until it is dropped.
pub struct MapWatcher {
    map: Arc<RwLock<Arc<ClusterMap>>>,
    is_stopping: Arc<AtomicBool>,
    _task: Task,
}

impl MapWatcher {
    /// Begins with `map`; `changed` is told of every newer one, after it can be seen.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        calls: Arc<ManagerCalls>,
        map: ClusterMap,
        tasks: &dyn Tasks,
        changed: Box<dyn Fn(&ClusterMap) + Send>,
    ) -> std::io::Result<MapWatcher> {
        calls.epochs.note_known(map.epoch);
        let map = Arc::new(RwLock::new(Arc::new(map)));
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (kept, stopping) = (map.clone(), is_stopping.clone());
        let run = Box::new(move || {
            while !stopping.load(SeqCst) {
                let have = kept.read().epoch;
                match calls.map(have, Instant::now() + PARKED_MAX) {
                    Ok(newer) if newer.epoch > have => {
                        calls.set_addresses(&newer.addresses(Role::Manager));
                        let newer = Arc::new(newer);
                        *kept.write() = newer.clone();
                        calls.epochs.note_known(newer.epoch);
                        changed(&newer);
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
        Ok(MapWatcher { map, is_stopping, _task: task })
    }

    /// The map's handle.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.map.clone()
    }
}

impl Drop for MapWatcher {
    fn drop(&mut self) {
        // Not waited for: it may be in a question that is held back.
        self.is_stopping.store(true, SeqCst);
    }
}
