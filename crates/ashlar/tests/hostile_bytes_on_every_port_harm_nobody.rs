//! Goal: whatever comes to a port, the process behind it stays up, takes no more memory than it should, and serves whoever is honest next. Method: real processes; strangers
//! who speak no TLS, half of it or none at all, and a node with a good certificate whose frames and calls are changed at random. And a newer software is told that it is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::Entropy;
use ashlar_env::sim::SimEntropy;
use ashlar_rpc::net::frame::{HEADER_BYTES, Header, Kind, PROTOCOL};
use ashlar_rpc::net::hello::Hello;
use ashlar_rpc::net::{Service, TlsIdentity, Wanted};
use ashlar_rpc::wire::{MetaCall, ProcessCall};
use ashlar_types::codec::encode;
use ashlar_types::message::{ManagerRequest, MetaRequest, StorageRequest};
use ashlar_types::{
    ChainId, ChunkId, ClusterId, Credentials, Epoch, InodeId, OpId, Role, SessionId, TargetId,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::{can_mount, cluster};

/// Bytes that a process may take more than before, whatever it was sent: as many connections as there may be take about 100 MiB with their buffers, up to 150
/// beside other work; a single length that is believed takes more.
const MORE_BYTES_MAX: u64 = 256 << 20;
/// Rounds of each kind.
const ROUNDS: u64 = 60;

/// Memory that a process has in use.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it runs");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn below(entropy: &SimEntropy, bound: usize) -> usize {
    (entropy.next_u64() % bound.max(1) as u64) as usize
}

/// Changes some bytes, lengths among them, or cuts the end off.
fn mutate(bytes: &mut Vec<u8>, entropy: &SimEntropy) {
    for _ in 0..=below(entropy, 3) {
        if bytes.is_empty() {
            return;
        }
        let at = below(entropy, bytes.len());
        match below(entropy, 5) {
            0 => bytes[at] = entropy.next_u64() as u8,
            1 => bytes[at] ^= 1 << below(entropy, 8),
            // The longest number there is, where a length or a variant may be.
            2 => drop(bytes.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])),
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][below(entropy, 5)],
            _ => bytes.truncate(at),
        }
    }
}

/// A connection of a node, behind TLS.
struct Raw(StreamOwned<ClientConnection, TcpStream>);

impl Raw {
    fn new(identity: &TlsIdentity, (address, role): (SocketAddr, Role)) -> Raw {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let config = identity.calling(Wanted { role, node: None }).unwrap();
        let tls = ClientConnection::new(config, ServerName::try_from("node.ashlar").unwrap()).unwrap();
        Raw(StreamOwned::new(tls, socket))
    }

    /// Sends as much as the server takes.
    fn send(&mut self, bytes: &[u8]) {
        // It may have ended the connection, as it should.
        let _ = self.0.write_all(bytes).and_then(|()| self.0.flush());
    }

    /// What comes until nothing does.
    fn answer(&mut self) -> Vec<u8> {
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(got @ 1..) = self.0.read(&mut part) {
            all.extend_from_slice(&part[..got]);
        }
        all
    }
}

fn frame(kind: Kind, service: Service, id: u64, head: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        service,
        is_once: id.is_multiple_of(2),
        is_urgent: id.is_multiple_of(3),
        head_bytes: head.len() as u32,
        payload_bytes: payload.len() as u32,
        id,
        epoch: Epoch(1),
        lowest: 1,
    };
    [&header.encode(head)[..], head, payload].concat()
}

fn hello(cluster: ClusterId, instance: u64, (oldest, newest): (u16, u16)) -> Vec<u8> {
    let mut own = [0; 16];
    own[..8].copy_from_slice(&instance.to_le_bytes());
    let hello = Hello {
        protocol_min: oldest,
        protocol_max: newest,
        cluster,
        role: Role::Client,
        instance: own,
        channel: 0,
        attempt: 1,
    };
    frame(Kind::Hello, Service::Manager, 0, &encode(&hello), &[])
}

/// Calls that the node may make, by service. None of them names a file that is there.
fn calls(service: Service) -> Vec<Vec<u8>> {
    let session = SessionId(7);
    let chunk = ChunkId { inode: InodeId(1 << 40), generation: 1, index: 0 };
    let target = TargetId(1);
    match service {
        Service::Manager => {
            vec![
                encode(&ManagerRequest::Map { have: Epoch(0) }),
                encode(&ManagerRequest::Map { have: Epoch(1) }),
            ]
        }
        Service::Meta => {
            let op = OpId { session, sequence: 1 };
            let request = MetaRequest::Getattr { inode: InodeId::ROOT };
            let call = MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
            let renew = MetaCall::Renew { session, busy: vec![InodeId::ROOT; 3] };
            [
                MetaCall::Open(None),
                MetaCall::Close(session),
                call,
                MetaCall::Events { session, seen: 0 },
                renew,
            ]
            .iter()
            .map(encode)
            .collect()
        }
        Service::Process => vec![encode(&ProcessCall::Metrics)],
        Service::Storage => [
            StorageRequest::Read {
                target,
                chunk,
                chain: ChainId(0),
                chunk_bytes: 65_536,
                offset: 0,
                len: 4096,
                want_sums: true,
            },
            StorageRequest::Write {
                target,
                chunk,
                chain: ChainId(0),
                chunk_bytes: 65_536,
                offset: 0,
                sums: vec![1; 3],
            },
            StorageRequest::Seek {
                target,
                chunk,
                chain: ChainId(0),
                chunk_bytes: 65_536,
                offset: 9,
                data: true,
            },
            StorageRequest::Sync { target, chains: ashlar_types::OfChains::All },
        ]
        .iter()
        .map(encode)
        .collect(),
    }
}

/// Who knows no certificate at all.
fn strangers(address: SocketAddr, identity: &TlsIdentity, entropy: &SimEntropy) {
    // The beginning of TLS as an honest one would say it.
    let config = identity.calling(Wanted { role: Role::Meta, node: None }).unwrap();
    let mut tls = ClientConnection::new(config, ServerName::try_from("node.ashlar").unwrap()).unwrap();
    let mut greeting = Vec::new();
    tls.write_tls(&mut greeting).unwrap();
    for round in 0..ROUNDS {
        let mut bytes = match round % 3 {
            0 => (0..1 + below(entropy, 5000)).map(|_| entropy.next_u64() as u8).collect(),
            1 => format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(below(entropy, 20_000))).into_bytes(),
            _ => greeting.clone(),
        };
        if round % 3 == 2 {
            mutate(&mut bytes, entropy);
        }
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        // It may have been cut off already.
        let _ = socket.write_all(&bytes);
        let _ = socket.read(&mut [0; 100]);
    }
}

/// A node with a good certificate that says what nobody would say.
fn node((address, role, service): (SocketAddr, Role, Service), identity: &TlsIdentity, entropy: &SimEntropy) {
    let cluster = identity.peer().cluster;
    for round in 0..ROUNDS {
        let mut raw = Raw::new(identity, (address, role));
        let mut greeting = hello(cluster, entropy.next_u64(), (1, PROTOCOL));
        match round % 4 {
            // The greeting itself.
            0 => mutate(&mut greeting, entropy),
            // A good header that promises as much as it may, and nothing behind it.
            1 => {
                let mut header = frame(Kind::Request, service, 1, &vec![0; 1 << 20], &vec![0; 16 << 20]);
                header.truncate(HEADER_BYTES + below(entropy, 4000));
                greeting.extend(header);
            }
            // Frames with something changed behind their checksums.
            2 => {
                let mut frames: Vec<u8> = calls(service)
                    .iter()
                    .zip(1..)
                    .flat_map(|(head, id)| frame(Kind::Request, service, id, head, &[id as u8; 512]))
                    .collect();
                mutate(&mut frames, entropy);
                greeting.extend(frames);
            }
            // Good frames around calls that are none, or say what cannot be.
            _ => {
                for (mut head, id) in calls(service).into_iter().zip(1..) {
                    mutate(&mut head, entropy);
                    greeting.extend(frame(Kind::Request, service, id, &head, &[7; 512]));
                }
            }
        }
        raw.send(&greeting);
        if round % 8 < 4 {
            raw.answer();
        }
    }
}

/// The first mount does what it does, with new connections to all.
#[track_caller]
fn is_served(lab: &mut Lab, turn: usize) {
    lab.mounts[0].stop();
    lab.start_mount(0);
    let content = vec![turn as u8; 1 << 20];
    fs::write(lab.path("m0/file"), &content).unwrap();
    assert!(fs::read(lab.path("m0/file")).unwrap() == content);
    lab.ashlar("node list --identity @first").expect(0);
}

#[test]
fn every_process_stays_up_and_serves_who_is_honest() {
    if !can_mount("hostile bytes") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    // The same servers, showing metrics.
    lab.mounts[0].stop();
    lab.meta.stop();
    lab.storage[0].stop();
    lab.manager.stop();
    let shown: Vec<SocketAddr> = (0..3).map(|_| Lab::free_address().parse().unwrap()).collect();
    let (at, metrics) = (|at| lab.address(at), |at: usize| shown[at]);
    let line = format!("manager --state @state --identity @first --metrics {}", metrics(0));
    let manager = lab.run("manager", &line, "serves");
    let line = format!("storage --data @d0 --listen {} --identity @oss0 --metrics {}", at(2), metrics(2));
    let storage = lab.run("oss0", &line, "serves");
    let line = format!("meta --meta @meta --listen {} --identity @mds --metrics {}", at(1), metrics(1));
    let meta = lab.run("mds", &line, "serves");
    (lab.manager, lab.storage[0], lab.meta) = (manager, storage, meta);
    lab.start_mount(0);
    let read = |file: &str| fs::read_to_string(lab.path("c0").join(file)).unwrap();
    let identity =
        TlsIdentity::from_pem(&read("certificate.pem"), &read("key.pem"), &read("authority.pem")).unwrap();
    is_served(&mut lab, 0);
    let processes = [&lab.manager, &lab.meta, &lab.storage[0]].map(cluster::Lab::process);
    let before = processes.map(memory);
    let entropy = SimEntropy::new(20_261_124);
    let ports = [
        (lab.address(0), Role::Manager, Service::Manager),
        (lab.address(1), Role::Meta, Service::Meta),
        (lab.address(2), Role::Storage, Service::Storage),
    ];
    for (turn, port) in ports.into_iter().enumerate() {
        strangers(port.0, &identity, &entropy);
        node(port, &identity, &entropy);
        node((port.0, port.1, Service::Process), &identity, &entropy);
        strangers(shown[turn], &identity, &entropy);
        is_served(&mut lab, 1 + turn);
    }
    // As many who say nothing as there may be, and more. Whoever is honest waits until they are cut off.
    let silent: Vec<TcpStream> = ports
        .iter()
        .map(|port| (port.0, 300))
        .chain(shown.iter().map(|address| (*address, 100)))
        .flat_map(|(address, count)| (0..count).filter_map(move |_| TcpStream::connect(address).ok()))
        .collect();
    let since = Instant::now();
    is_served(&mut lab, 9);
    assert!(since.elapsed() < Duration::from_secs(60), "it took {:?}", since.elapsed());
    for address in &shown {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        assert!(text.contains("ashlar_map_epoch"), "{text}");
    }
    drop(silent);
    assert_eq!(processes, [&lab.manager, &lab.meta, &lab.storage[0]].map(cluster::Lab::process));
    for (name, (process, before)) in
        ["manager", "meta", "storage"].iter().zip(processes.into_iter().zip(before))
    {
        let now = memory(process);
        assert!(now < before + MORE_BYTES_MAX, "{name} has {now} bytes, and had {before}");
    }
    for role in [&lab.manager, &lab.meta, &lab.storage[0]] {
        assert!(!role.text().contains("panicked"), "{}", role.text());
    }
    lab.stop();
}

#[test]
fn a_newer_software_and_one_of_another_file_system_are_told() {
    let mut lab = Lab::start(1, 0);
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name c0 --identity @c0", token.trim())).expect(0);
    let read = |file: &str| fs::read_to_string(lab.path("c0").join(file)).unwrap();
    let identity =
        TlsIdentity::from_pem(&read("certificate.pem"), &read("key.pem"), &read("authority.pem")).unwrap();
    let cluster = identity.peer().cluster;
    for (at, role) in [(0, Role::Manager), (1, Role::Meta), (2, Role::Storage)] {
        let told = |greeting: Vec<u8>| {
            let mut raw = Raw::new(&identity, (lab.address(at), role));
            raw.send(&greeting);
            String::from_utf8_lossy(&raw.answer()).into_owned()
        };
        let newer = told(hello(cluster, 1, (PROTOCOL + 1, PROTOCOL + 3)));
        assert!(newer.contains("bring the older of the two up to date"), "{role}: {newer}");
        let older = told(hello(cluster, 2, (0, 0)));
        assert!(older.contains("bring the older of the two up to date"), "{role}: {older}");
        let foreign = told(hello(ClusterId([7; 16]), 3, (1, PROTOCOL)));
        assert!(foreign.contains("this is file system"), "{role}: {foreign}");
        // One that speaks more than this software does gets what both speak.
        let both = told(hello(cluster, 4, (1, PROTOCOL + 5)));
        assert!(!both.is_empty() && !both.contains("protocol"), "{role}: {both}");
    }
    lab.stop();
}
