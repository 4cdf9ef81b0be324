//! A certificate authority and an echo service for tests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "a test fails by panicking; not every test uses everything"
)]

pub mod two_servers;

use ashlar_env::Env;
use ashlar_rpc::net::frame::Frame;
use ashlar_rpc::net::{
    Admit, Caller, Endpoint, Epochs, Link, Listener, Peer, Replier, Server, ServerConfig, Service,
    TlsIdentity, Wanted,
};
use ashlar_types::{ClusterId, NodeId, PeerId, Role, Roles};
use parking_lot::{Mutex, RwLock};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub struct Authority {
    pub cluster: ClusterId,
    pub certificate: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub fn new(cluster: u8) -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { cluster: ClusterId([cluster; 16]), certificate, issuer: rcgen::Issuer::new(params, key) }
    }

    pub fn issue_with(&self, names: &[String], year: (i32, i32)) -> TlsIdentity {
        let [begin, end] =
            [year.0, year.1].map(|year| rcgen::date_time_ymd(year, 1, 1) - rcgen::date_time_ymd(1970, 1, 1));
        self.issue_between(names, (begin.unsigned_abs(), end.unsigned_abs()))
    }

    /// A certificate that is valid between these times since 1970.
    pub fn issue_between(&self, names: &[String], valid: (Duration, Duration)) -> TlsIdentity {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        let uri = |name: &String| rcgen::SanType::URI(name.as_str().try_into().unwrap());
        params.subject_alt_names = names.iter().map(uri).collect();
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + valid.0;
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + valid.1;
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TlsIdentity::from_pem(&certificate.pem(), &key.serialize_pem(), &self.certificate).unwrap()
    }

    pub fn issue(&self, node: u32, roles: &[Role]) -> TlsIdentity {
        self.issue_to(None, node, roles)
    }

    /// One that the machine `host` has in the place of the node.
    pub fn issue_to(&self, host: Option<NodeId>, node: u32, roles: &[Role]) -> TlsIdentity {
        let roles: Roles = roles.iter().copied().collect();
        let peer = PeerId { cluster: self.cluster, node: NodeId(node), roles, host };
        self.issue_with(&[peer.to_string()], (2020, 2120))
    }
}

pub fn caller(identity: TlsIdentity, role: Role) -> Arc<Caller> {
    Arc::new(new_caller(identity, role))
}

pub fn new_caller(identity: TlsIdentity, role: Role) -> Caller {
    let mut instance = [0; 16];
    Env::os().entropy.fill(&mut instance);
    let identity = Arc::new(RwLock::new(Arc::new(identity)));
    Caller::new(identity, role, instance, Arc::new(Epochs::default()))
}

/// Answers with what it was sent; counts; parks what begins with `park` until something begins with `free`.
#[derive(Default)]
pub struct Echo {
    pub served: AtomicU64,
    pub parked: Mutex<Vec<Replier>>,
}

impl Endpoint for Echo {
    fn serve(&self, _: &Peer, request: Frame, replier: Replier) {
        let served = self.served.fetch_add(1, SeqCst) + 1;
        match request.head() {
            b"park" => return self.parked.lock().push(replier),
            b"free" => self.parked.lock().drain(..).for_each(|parked| parked.reply(b"freed", &[])),
            b"panic" => panic!("as the test wants"),
            b"sleep" => std::thread::sleep(Duration::from_millis(300)),
            b"count" => return replier.reply(&served.to_le_bytes(), &[]),
            _ => {}
        }
        replier.reply(request.head(), request.payload());
    }
}

pub fn serve(
    identity: TlsIdentity,
    endpoint: Arc<dyn Endpoint>,
    address: SocketAddr,
) -> (Server, SocketAddr) {
    let admit = |peer: &Peer| match peer.id.node {
        NodeId(99) => Err("node-99 was removed from the file system".into()),
        _ => Ok(()),
    };
    serve_those(identity, endpoint, address, Box::new(admit))
}

/// As [`serve`], those whom `admit` lets in.
pub fn serve_those(
    identity: TlsIdentity,
    endpoint: Arc<dyn Endpoint>,
    address: SocketAddr,
    admit: Box<Admit>,
) -> (Server, SocketAddr) {
    serve_as(identity, (Service::Storage, endpoint), address, admit)
}

/// As [`serve_those`], another service.
pub fn serve_as(
    identity: TlsIdentity,
    served: (Service, Arc<dyn Endpoint>),
    address: SocketAddr,
    admit: Box<Admit>,
) -> (Server, SocketAddr) {
    let listener = Listener::bind(address).unwrap();
    let address = listener.address().unwrap();
    let config = ServerConfig {
        identity: Arc::new(RwLock::new(Arc::new(identity))),
        admit,
        tokens: None,
        endpoints: vec![served],
        epochs: Arc::new(Epochs::default()),
        tasks: Env::os().tasks.clone(),
    };
    (Server::start(config, vec![listener]).unwrap(), address)
}

pub fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn link(caller: &Arc<Caller>, address: SocketAddr) -> Link {
    link_to(caller, Arc::new(RwLock::new(vec![address])), 2)
}

/// A link of so many channels to whoever is at `addresses` at the time.
pub fn link_to(caller: &Arc<Caller>, addresses: Arc<RwLock<Vec<SocketAddr>>>, channels: u32) -> Link {
    let wanted = Wanted { role: Role::Storage, node: Some(NodeId(1)) };
    let told = move || (addresses.read().clone(), Vec::new());
    Link::new(caller.clone(), wanted, Box::new(told), channels)
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Passes bytes on until it is told to cut every connection.
pub struct Proxy {
    pub address: SocketAddr,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    pub is_refusing: Arc<AtomicBool>,
    /// Connections that there were.
    pub accepted: Arc<AtomicU64>,
    /// Nothing is taken from the server: its caller hangs.
    pub is_hanging: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let is_refusing = Arc::new(AtomicBool::new(false));
        let is_hanging = Arc::new(AtomicBool::new(false));
        let accepted = Arc::<AtomicU64>::default();
        let count = accepted.clone();
        let (kept, refusing, hanging) = (connections.clone(), is_refusing.clone(), is_hanging.clone());
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(to)) else { continue };
                if refusing.load(SeqCst) {
                    continue;
                }
                count.fetch_add(1, SeqCst);
                from.set_nodelay(true).unwrap();
                to.set_nodelay(true).unwrap();
                kept.lock().extend([from.try_clone().unwrap(), to.try_clone().unwrap()]);
                let (mut a, mut b) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut a, &mut b);
                    let _ = b.shutdown(std::net::Shutdown::Both);
                });
                let hanging = hanging.clone();
                std::thread::spawn(move || pass_back(to, &from, &hanging));
            }
        });
        Proxy { address, connections, is_refusing, accepted, is_hanging }
    }

    /// Cuts what there is.
    pub fn cut(&self) {
        for connection in self.connections.lock().drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Passes on what a server sends, but while its caller hangs.
fn pass_back(mut server: TcpStream, mut caller: &TcpStream, is_hanging: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        while is_hanging.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        match server.read(&mut bytes) {
            Ok(len) if len > 0 && caller.write_all(&bytes[..len]).is_ok() => {}
            _ => break,
        }
    }
    let _ = caller.shutdown(std::net::Shutdown::Both);
}
