//! A server: takes connections, and has calls carried out by threads that wait for all connections together.
//!
//! Every thread waits on one epoll set. Whoever is woken reads the calls that have come, lets others wait for what comes next, and carries
//! one of them out itself: a call costs no hand-over between threads. If all threads are at work one more is started, up to a bound;
//! behind it calls wait, but those that others may be waiting for.

mod anonymous;
mod answers;
mod channels;
mod connection;
mod outgoing;
mod pool;

use super::error::NetError;
use super::frame::Frame;
use super::tls::TlsIdentity;
pub use answers::Answers;
use ashlar_env::Tasks;
use ashlar_types::{Epoch, PeerId, Role};
pub use connection::Replier;
use parking_lot::RwLock;
use pool::Pool;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A caller, as its certificate and first message say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who its certificate says it is.
    pub id: PeerId,
    /// What it acts as.
    pub role: Role,
    /// Which of its processes.
    pub instance: [u8; 16],
    /// The token it came with, if it is [`Role::Joiner`].
    pub token: Option<[u8; 32]>,
}

/// A state machine behind the network.
pub trait Endpoint: Send + Sync {
    /// One call of `peer`; the answer may be given later and by another thread. Must not wait for anything but what the call waits for.
    fn serve(&self, peer: &Peer, request: Frame, replier: Replier);

    /// A process of a peer has not been connected for a while and is not expected back.
    fn forgotten(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// The newest map that this process has, and the newest one it has heard of.
#[derive(Debug, Default)]
pub struct Epochs {
    known: AtomicU64,
    heard: AtomicU64,
}

impl Epochs {
    /// This process has the map of `epoch`.
    pub fn note_known(&self, epoch: Epoch) {
        self.known.fetch_max(epoch.0, Relaxed);
    }

    /// Somebody else has it.
    pub fn note_heard(&self, epoch: Epoch) {
        self.heard.fetch_max(epoch.0, Relaxed);
    }

    /// The newest one that this process has.
    pub fn known(&self) -> Epoch {
        Epoch(self.known.load(Relaxed))
    }

    /// The newest one that this process has heard of.
    pub fn heard(&self) -> Epoch {
        Epoch(self.heard.load(Relaxed))
    }

    /// Whether there is one that this process has not got.
    pub fn is_behind(&self) -> bool {
        self.heard.load(Relaxed) > self.known.load(Relaxed)
    }
}

/// Says who may connect; the error is a text for the caller.
pub type Admit = dyn Fn(&Peer) -> Result<(), String> + Send + Sync;

/// What a server is made of.
pub struct ServerConfig {
    /// Its certificate; a new one is used from the next connection on.
    pub identity: Arc<RwLock<Arc<TlsIdentity>>>,
    /// Who may connect, beyond having a good certificate.
    pub admit: Box<Admit>,
    /// Tokens whose holders may connect, as [`Role::Joiner`]; the identity must know them, too.
    pub tokens: Option<Arc<super::tls::KnowsToken>>,
    /// What is served: for each service number its state machine.
    pub endpoints: Vec<(super::Service, Arc<dyn Endpoint>)>,
    /// The maps.
    pub epochs: Arc<Epochs>,
    /// Starts threads.
    pub tasks: Arc<dyn Tasks>,
}

/// A socket that listens.
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`, with the address.
    pub fn bind(address: SocketAddr) -> Result<Listener, NetError> {
        let with_address = |error: std::io::Error| {
            NetError::Io(std::io::Error::new(error.kind(), format!("cannot listen at {address}: {error}")))
        };
        let socket = TcpListener::bind(address).map_err(with_address)?;
        socket.set_nonblocking(true).map_err(with_address)?;
        Ok(Listener { socket })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn address(&self) -> Result<SocketAddr, NetError> {
        self.socket.local_addr().map_err(NetError::Io)
    }
}

/// A running server; it stops when this is dropped.
pub struct Server {
    pool: Arc<Pool>,
}

impl Server {
    /// Serves `listeners`.
    ///
    /// # Errors
    /// When the operating system gives no thread or descriptor.
    pub fn start(config: ServerConfig, listeners: Vec<Listener>) -> Result<Server, NetError> {
        let sockets = listeners.into_iter().map(|listener| listener.socket).collect();
        Ok(Server { pool: Pool::start(config, sockets)? })
    }

    /// Threads that serve at this moment.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Takes no more calls, and waits a bounded time for those under way.
    pub fn stop(&self) {
        self.pool.stop();
    }

    /// Ends connections whose certificates are not valid any more. This is done every ten minutes anyway.
    pub fn end_expired(&self) {
        self.pool.end_expired();
    }

    /// Ends the connections of whoever may not be connected any more.
    pub fn review(&self) {
        self.pool.review();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
