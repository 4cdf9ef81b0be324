//! The caller's side: links to servers, made of channels, and calls on them.
//!
//! A thread that calls sends its request itself, and whoever waits first reads the answers for all who wait on the channel: a call costs no
//! hand-over between threads.

mod channel;
mod connect;

use super::error::NetError;
use super::frame::{Frame, Service};
use super::server::Epochs;
use super::tls::{TlsIdentity, Wanted};
use ashlar_types::Role;
use channel::Channel;
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
    /// It must not be carried out twice: the server keeps the answer until its caller has it.
    pub is_once: bool,
    /// It may be sent again to a server that does not remember whether it has carried it out.
    pub may_repeat: bool,
    /// Others may be waiting for it.
    pub is_urgent: bool,
}

/// The answer to a call.
pub struct Answer {
    frame: Frame,
    was_repeated: bool,
}

impl Answer {
    /// The message.
    pub fn head(&self) -> &[u8] {
        self.frame.head()
    }

    /// Bulk data.
    pub fn payload(&self) -> &[u8] {
        self.frame.payload()
    }

    /// Whether the server may have carried the call out before, and does not remember: it was sent again after the server had forgotten this caller.
    pub fn was_repeated(&self) -> bool {
        self.was_repeated
    }
}

/// Everything that goes to one server.
pub struct Link {
    shared: Arc<Shared>,
    channels: Vec<Channel>,
    /// For calls that are answered late.
    parking: Channel,
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
    /// A link of `channels` channels to whoever is `wanted` at one of `addresses`, which are asked for before every attempt to connect. Nothing is
    /// connected before the first call.
    pub fn new(caller: Arc<Caller>, wanted: Wanted, addresses: Box<Addresses>, channels: u32) -> Link {
        let shared = Arc::new(Shared { caller, wanted, addresses });
        let channels = channels.max(1);
        Link { shared, channels: (0..channels).map(Channel::new).collect(), parking: Channel::new(channels) }
    }

    /// Carries out `call` on the channel that has least to do.
    ///
    /// # Errors
    /// [`NetError`]; what the network does is tried again until `deadline`.
    pub fn call(&self, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        let mut best = (usize::MAX, &self.parking);
        for channel in &self.channels {
            let load = channel.load();
            if load < best.0 {
                best = (load, channel);
            }
            if load == 0 {
                break;
            }
        }
        self.call_on(best.1, call, deadline)
    }

    /// Carries out a call whose answer the server holds back until there is something to tell. Such calls have a channel of their own.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub fn park(&self, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        self.call_on(&self.parking, call, deadline)
    }

    /// Ends every connection; whoever waits for an answer connects anew.
    pub fn reconnect(&self) {
        self.channels.iter().chain([&self.parking]).for_each(Channel::reconnect);
    }

    fn call_on(&self, channel: &Channel, call: &Call<'_>, deadline: Instant) -> Result<Answer, NetError> {
        let id = channel.begin(deadline)?;
        let outcome = self.exchange(channel, id, call, deadline);
        channel.end(id);
        outcome
    }

    fn exchange(
        &self,
        channel: &Channel,
        id: u64,
        call: &Call<'_>,
        deadline: Instant,
    ) -> Result<Answer, NetError> {
        let mut first_sent = None;
        let mut was_repeated = false;
        let mut pause = PAUSE_MIN;
        loop {
            let connection = match channel.connection(&self.shared, deadline) {
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
            was_repeated |= first_sent.is_some_and(|attempt| !channel.is_remembered_since(attempt));
            if was_repeated && call.is_once && !call.may_repeat {
                return Err(NetError::Restarted);
            }
            first_sent.get_or_insert(connection.attempt);
            if let Err(error) = connection.send(&self.shared, id, channel.lowest(), call, deadline) {
                channel.broke(&connection, &error);
                if Instant::now() >= deadline {
                    return Err(error);
                }
                continue;
            }
            match channel.await_answer(id, &connection, &self.shared, deadline)? {
                Some(frame) => {
                    return channel::unwrap(frame).map(|frame| Answer { frame, was_repeated });
                }
                None if Instant::now() >= deadline => return Err(NetError::Stuck),
                None => {}
            }
        }
    }
}
