//! The caller's side: links to servers, made of lanes, and calls on them.
//!
//! A thread that calls sends its request itself, and whoever waits first reads the answers for all who wait on the lane: a call costs no
//! hand-over between threads.

mod connect;
mod lane;

use super::error::NetError;
use super::frame::{Frame, Service};
use super::server::Epochs;
use super::tls::{TlsIdentity, Wanted};
use ashlar_types::Role;
use lane::Lane;
use parking_lot::RwLock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who calls: one per process and role.
pub struct Caller {
    /// Its certificate; a new one is used from the next connection on.
    pub identity: Arc<RwLock<Arc<TlsIdentity>>>,
    /// What it acts as.
    pub role: Role,
    /// Which process it is: drawn at random.
    pub instance: [u8; 16],
    /// The maps.
    pub epochs: Arc<Epochs>,
}

/// A call.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// For whom.
    pub service: Service,
    /// The message.
    pub head: &'a [u8],
    /// Bulk data.
    pub payload: &'a [u8],
    /// It must not be carried out twice.
    pub is_once: bool,
    /// Others may be waiting for it.
    pub is_urgent: bool,
}

/// The answer to a call.
pub struct Answer(Frame);

impl Answer {
    /// The message.
    pub fn head(&self) -> &[u8] {
        self.0.head()
    }

    /// Bulk data.
    pub fn payload(&self) -> &[u8] {
        self.0.payload()
    }
}

/// Everything that goes to one server.
pub struct Link {
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    /// For calls that are answered late.
    parking: Lane,
}

struct Shared {
    caller: Arc<Caller>,
    wanted: Wanted,
    addresses: Box<Addresses>,
}

/// Tells where a server is at this moment.
pub type Addresses = dyn Fn() -> Vec<SocketAddr> + Send + Sync;

/// Shortest and longest time between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Link {
    /// A link of `lanes` lanes to whoever is `wanted` at one of `addresses`, which are asked for before every attempt to connect. Nothing is
    /// connected before the first call.
    pub fn new(caller: Arc<Caller>, wanted: Wanted, addresses: Box<Addresses>, lanes: u32) -> Link {
        let shared = Arc::new(Shared { caller, wanted, addresses });
        let lanes = lanes.max(1);
        Link { shared, lanes: (0..lanes).map(Lane::new).collect(), parking: Lane::new(lanes) }
    }

    /// Carries out `call` on the lane that has least to do.
    ///
    /// # Errors
    /// [`NetError`]; what the network does is tried again until `deadline`.
    pub fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        let mut best = (usize::MAX, &self.parking);
        for lane in &self.lanes {
            let load = lane.load();
            if load < best.0 {
                best = (load, lane);
            }
            if load == 0 {
                break;
            }
        }
        self.call_on(best.1, call, deadline)
    }

    /// Carries out a call whose answer the server holds back until there is something to tell. Such calls have a lane of their own.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub fn park(&self, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        self.call_on(&self.parking, call, deadline)
    }

    /// Ends every connection; whoever waits for an answer connects anew.
    pub fn reconnect(&self) {
        self.lanes.iter().chain([&self.parking]).for_each(Lane::reconnect);
    }

    fn call_on(&self, lane: &Lane, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        let id = lane.begin(deadline)?;
        let outcome = self.exchange(lane, id, call, deadline);
        lane.end(id);
        outcome
    }

    fn exchange(&self, lane: &Lane, id: u64, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        let mut first_sent = None;
        let mut pause = PAUSE_MIN;
        loop {
            let connection = match lane.connection(&self.shared, deadline) {
                Ok(connection) => connection,
                Err(error @ (NetError::Io(_) | NetError::Closed | NetError::Stuck | NetError::NoAddress)) => {
                    if Instant::now() + pause >= deadline {
                        return Err(error);
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
                Err(other) => return Err(other),
            };
            if call.is_once && first_sent.is_some_and(|attempt| !lane.is_remembered_since(attempt)) {
                return Err(NetError::Restarted);
            }
            first_sent.get_or_insert(connection.attempt);
            if let Err(error) = connection.send(&self.shared, id, lane.lowest(), call, deadline) {
                lane.broke(&connection, &error);
                if Instant::now() >= deadline {
                    return Err(error);
                }
                continue;
            }
            match lane.await_answer(id, &connection, &self.shared, deadline)? {
                Some(frame) => return lane::unwrap(frame).map(Answer),
                None if Instant::now() >= deadline => return Err(NetError::Stuck),
                None => {}
            }
        }
    }
}
