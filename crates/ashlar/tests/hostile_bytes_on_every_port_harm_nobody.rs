//! Goal: whatever comes to a port, the process behind it stays up, takes no more memory than it should, and serves whoever is honest next. Method: real processes; strangers
//! who speak no TLS, half of it or none at all, and nodes with good certificates, one of each role, whose frames and calls, of every kind that there is, are changed at random.
//! `ASHLAR_ROUNDS` says how many rounds of each, `ASHLAR_SEED` begins elsewhere. And a newer software is told that it is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::Entropy;
use ashlar_env::sim::SimEntropy;
use ashlar_rpc::net::frame::{HEADER_BYTES, Header, Kind, PROTOCOL};
use ashlar_rpc::net::hello::Hello;
use ashlar_rpc::net::{Service, TlsIdentity, Wanted};
use ashlar_rpc::wire::{MetaCall, ProcessCall, StorageCall, Under};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{ManagerRequest, MetaRequest, StorageRequest};
use ashlar_types::testing::schema::samples as every;
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
/// beside other work; and the C library keeps a buffer of the largest call that there may be, 17 MiB, in each of its arenas, of which it makes 8 per processor (with
/// `MALLOC_ARENA_MAX=1` all of this test takes 30 MiB). A length that is believed takes more.
fn more_bytes_max() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    (256 << 20) + processors * 8 * (17 << 20)
}

/// Rounds of each node at each port, unless told; strangers have twice as many.
const ROUNDS: u64 = 24;
const SEED: u64 = 20_261_124;
/// Calls of a round.
const CALLS: usize = 12;
/// Roles of nodes that say what nobody would say.
const ROLES: [Role; 4] = [Role::Client, Role::Meta, Role::Storage, Role::Admin];

/// A number that somebody has set.
fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn rounds() -> u64 {
    told("ASHLAR_ROUNDS").unwrap_or(ROUNDS)
}

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

fn hello(cluster: ClusterId, role: Role, instance: u64, (oldest, newest): (u16, u16)) -> Vec<u8> {
    let mut own = [0; 16];
    own[..8].copy_from_slice(&instance.to_le_bytes());
    let hello = Hello {
        protocol_min: oldest,
        protocol_max: newest,
        cluster,
        role,
        instance: own,
        channel: 0,
        attempt: 1,
    };
    frame(Kind::Hello, Service::Manager, 0, &encode(&hello), &[])
}

/// Calls of every kind, by service, some of them such as make sense. None of them names a file that is there.
fn calls(service: Service) -> Vec<Vec<u8>> {
    let session = SessionId(7);
    let chunk = ChunkId { inode: InodeId(1 << 40), generation: 1, index: 0 };
    let (target, chain, chunk_bytes) = (TargetId(1), ChainId(0), 65_536);
    match service {
        Service::Manager => {
            let map = ManagerRequest::Map { have: Epoch(1) };
            every::<ManagerRequest>().into_iter().chain([map]).map(|request| encode(&request)).collect()
        }
        Service::Meta => {
            let op = OpId { session, sequence: 1 };
            let call = |request| MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
            let root = MetaRequest::Getattr { inode: InodeId::ROOT };
            let requests = every::<MetaRequest<'_>>().into_iter().chain([root]).map(call);
            let renew = MetaCall::Renew { session, busy: vec![InodeId::ROOT; 3] };
            let others = [MetaCall::Open(None), MetaCall::Close(session), renew];
            let all = every::<MetaCall<'_>>().into_iter().chain(requests).chain(others);
            all.map(|call| encode(&call)).collect()
        }
        Service::Process => vec![encode(&ProcessCall::Metrics)],
        // Bytes here; what they are says the copy.
        Service::Copies => vec![vec![1, 0, 0, 0, 7]],
        Service::Storage => {
            let sensible = [
                StorageRequest::Read {
                    target,
                    chunk,
                    chain,
                    chunk_bytes,
                    offset: 0,
                    len: 4096,
                    want_sums: true,
                },
                StorageRequest::Write { target, chunk, chain, chunk_bytes, offset: 0, sums: vec![1; 3] },
                StorageRequest::Seek { target, chunk, chain, chunk_bytes, offset: 9, data: true },
                StorageRequest::Sync { target, chains: ashlar_types::OfChains::All },
            ];
            let requests = every::<StorageRequest>().into_iter().chain(sensible);
            let under = [Under::Role, Under::Session(session), Under::Move(1)];
            let calls = requests.flat_map(|request| {
                let call = |under| StorageCall::Call { under, request: request.clone() };
                under.clone().map(|under| encode(&call(under)))
            });
            calls.chain(every::<StorageCall>().iter().map(encode)).collect()
        }
    }
}

/// Whether this is a sound call by which a server or an administrator takes something away, as he may: a node, shards, chunks.
fn takes_away(service: Service, head: &[u8]) -> bool {
    match service {
        Service::Manager => decode::<ManagerRequest>(head, "call").is_ok_and(|request| {
            !matches!(
                request,
                ManagerRequest::Join { .. }
                    | ManagerRequest::Renew { .. }
                    | ManagerRequest::Map { .. }
                    | ManagerRequest::Presence
                    | ManagerRequest::Events { .. }
                    | ManagerRequest::SealingKeys
                    | ManagerRequest::OpenKey
                    | ManagerRequest::CheckingKeys
                    | ManagerRequest::ShardMoves
                    | ManagerRequest::MoveWorks
            )
        }),
        Service::Meta => decode::<MetaCall<'_>>(head, "call").is_ok_and(|call| {
            matches!(
                call,
                MetaCall::EndSession(_)
                    | MetaCall::MoveShards { .. }
                    | MetaCall::Backup { .. }
                    | MetaCall::Peer(_)
            )
        }),
        Service::Storage => decode::<StorageCall>(head, "call").is_ok_and(|call| match call {
            StorageCall::Attend(_) | StorageCall::AttendAs { .. } | StorageCall::TakeTarget(_) => true,
            StorageCall::Call { request, .. } => !matches!(
                request,
                StorageRequest::Read { .. }
                    | StorageRequest::Seek { .. }
                    | StorageRequest::NextChunk { .. }
                    | StorageRequest::Extent { .. }
                    | StorageRequest::Space { .. }
                    | StorageRequest::Sync { .. }
                    | StorageRequest::Suspects { .. }
                    | StorageRequest::Files { .. }
                    | StorageRequest::Moves { .. }
                    | StorageRequest::MoveRate { .. }
            ),
        }),
        Service::Process | Service::Copies => false,
    }
}

/// Who knows no certificate at all.
fn strangers(address: SocketAddr, identity: &TlsIdentity, entropy: &SimEntropy) {
    // The beginning of TLS as an honest one would say it.
    let config = identity.calling(Wanted { role: Role::Meta, node: None }).unwrap();
    let mut tls = ClientConnection::new(config, ServerName::try_from("node.ashlar").unwrap()).unwrap();
    let mut greeting = Vec::new();
    tls.write_tls(&mut greeting).unwrap();
    for round in 0..2 * rounds() {
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

/// A node with a good certificate for `own` that says what nobody would say.
fn node(
    (address, role, service): (SocketAddr, Role, Service),
    (own, identity): (Role, &TlsIdentity),
    entropy: &SimEntropy,
) {
    let cluster = identity.peer().cluster;
    let all = calls(service);
    for round in 0..rounds() {
        let mut raw = Raw::new(identity, (address, role));
        let mut greeting = hello(cluster, own, entropy.next_u64(), (1, PROTOCOL));
        let some = || (0..CALLS).map(|_| all[below(entropy, all.len())].clone()).zip(1..);
        let is_fair = |head: &[u8]| own == Role::Client || !takes_away(service, head);
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
                let mut frames: Vec<u8> = some()
                    .filter(|(head, _)| is_fair(head))
                    .flat_map(|(head, id)| frame(Kind::Request, service, id, &head, &[id as u8; 512]))
                    .collect();
                mutate(&mut frames, entropy);
                greeting.extend(frames);
            }
            // Good frames around calls that are none, or say what cannot be.
            _ => {
                for (mut head, id) in some() {
                    mutate(&mut head, entropy);
                    if is_fair(&head) {
                        greeting.extend(frame(Kind::Request, service, id, &head, &[7; 512]));
                    }
                }
            }
        }
        raw.send(&greeting);
        if round % 8 < 4 {
            raw.answer();
        }
    }
}

/// The identity of node `name`.
fn identity(lab: &Lab, name: &str) -> TlsIdentity {
    let read = |file: &str| fs::read_to_string(lab.path(name).join(file)).unwrap();
    TlsIdentity::from_pem(&read("certificate.pem"), &read("key.pem"), &read("authority.pem")).unwrap()
}

/// Joins a node that is nothing but `role`.
#[track_caller]
fn join(lab: &Lab, role: Role) -> TlsIdentity {
    let token = lab.ashlar(&format!("token --role {role} --identity @first")).expect(0).stdout;
    lab.ashlar(&format!("join {} --name x{role} --identity @x{role}", token.trim())).expect(0);
    identity(lab, &format!("x{role}"))
}

/// What a port for metrics tells an honest one.
#[track_caller]
fn metrics(address: SocketAddr) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
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
    let at = |at| lab.address(at);
    let line = format!("manager --state @state --identity @first --metrics {}", shown[0]);
    let manager = lab.run("manager", &line, "serves");
    let line = format!("storage --data @d0 --listen {} --identity @oss0 --metrics {}", at(2), shown[2]);
    let storage = lab.run("oss0", &line, "serves");
    let line = format!("meta --meta @meta --listen {} --identity @mds --metrics {}", at(1), shown[1]);
    let meta = lab.run("mds", &line, "serves");
    (lab.manager, lab.storage[0], lab.meta) = (manager, storage, meta);
    lab.start_mount(0);
    let nodes = ROLES.map(|role| (role, join(&lab, role)));
    is_served(&mut lab, 0);
    let processes = [&lab.manager, &lab.meta, &lab.storage[0]].map(cluster::Lab::process);
    let before = processes.map(memory);
    let seed = told("ASHLAR_SEED").unwrap_or(SEED);
    println!("ASHLAR_SEED={seed} ASHLAR_ROUNDS={}", rounds());
    let entropy = SimEntropy::new(seed);
    let ports = [
        (lab.address(0), Role::Manager, Service::Manager),
        (lab.address(1), Role::Meta, Service::Meta),
        (lab.address(2), Role::Storage, Service::Storage),
    ];
    for (turn, port) in ports.into_iter().enumerate() {
        strangers(port.0, &nodes[0].1, &entropy);
        for (role, identity) in &nodes {
            node(port, (*role, identity), &entropy);
            node((port.0, port.1, Service::Process), (*role, identity), &entropy);
        }
        strangers(shown[turn], &nodes[0].1, &entropy);
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
        let text = metrics(*address);
        assert!(text.contains("ashlar_map_epoch"), "{text}");
    }
    drop(silent);
    assert_eq!(processes, [&lab.manager, &lab.meta, &lab.storage[0]].map(cluster::Lab::process));
    for (name, (process, before)) in
        ["manager", "meta", "storage"].iter().zip(processes.into_iter().zip(before))
    {
        let now = memory(process);
        assert!(now < before + more_bytes_max(), "{name} has {now} bytes, and had {before}");
    }
    for role in [&lab.manager, &lab.meta, &lab.storage[0]] {
        assert!(!role.text().contains("panicked"), "{}", role.text());
    }
    lab.stop();
}

#[test]
fn a_mount_and_a_console_stay_up_whatever_comes_to_their_ports() {
    if !can_mount("hostile bytes to a mount") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    lab.mounts[0].stop();
    let [of_mount, of_console, listen] = [(); 3].map(|()| Lab::free_address());
    lab.mounts[0] = lab.run("c0", &format!("mount @m0 --identity @c0 --metrics {of_mount}"), "mounted");
    let stranger = join(&lab, Role::Console);
    let line = format!("console --listen {listen} --identity @xconsole --metrics {of_console}");
    let mut console = lab.run("xconsole", &line, "serves");
    let processes = [&lab.mounts[0], &console].map(cluster::Lab::process);
    let before = processes.map(memory);
    let seed = told("ASHLAR_SEED").unwrap_or(SEED);
    println!("ASHLAR_SEED={seed} ASHLAR_ROUNDS={}", rounds());
    let entropy = SimEntropy::new(seed);
    for address in [&of_mount, &of_console, &listen] {
        strangers(address.parse().unwrap(), &stranger, &entropy);
    }
    fs::write(lab.path("m0/file"), b"after").unwrap();
    assert_eq!(fs::read(lab.path("m0/file")).unwrap(), b"after");
    for address in [of_mount, of_console] {
        let text = metrics(address.parse().unwrap());
        assert!(text.contains("ashlar_"), "{text}");
    }
    for ((name, role), (process, before)) in
        [("mount", &lab.mounts[0]), ("console", &console)].into_iter().zip(processes.into_iter().zip(before))
    {
        let now = memory(process);
        assert!(now < before + more_bytes_max(), "{name} has {now} bytes, and had {before}");
        assert!(!role.text().contains("panicked"), "{}", role.text());
    }
    assert!(!console.has_ended() && !lab.mounts[0].has_ended());
    console.stop();
    lab.stop();
}

#[test]
fn a_newer_software_and_one_of_another_file_system_are_told() {
    let mut lab = Lab::start(1, 0);
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name c0 --identity @c0", token.trim())).expect(0);
    let identity = identity(&lab, "c0");
    let cluster = identity.peer().cluster;
    for (at, role) in [(0, Role::Manager), (1, Role::Meta), (2, Role::Storage)] {
        let told = |greeting: Vec<u8>| {
            let mut raw = Raw::new(&identity, (lab.address(at), role));
            raw.send(&greeting);
            String::from_utf8_lossy(&raw.answer()).into_owned()
        };
        let newer = told(hello(cluster, Role::Client, 1, (PROTOCOL + 1, PROTOCOL + 3)));
        assert!(newer.contains("bring the older of the two up to date"), "{role}: {newer}");
        let older = told(hello(cluster, Role::Client, 2, (0, 0)));
        assert!(older.contains("bring the older of the two up to date"), "{role}: {older}");
        let foreign = told(hello(ClusterId([7; 16]), Role::Client, 3, (1, PROTOCOL)));
        assert!(foreign.contains("this is file system"), "{role}: {foreign}");
        // One that speaks more than this software does gets what both speak.
        let both = told(hello(cluster, Role::Client, 4, (1, PROTOCOL + 5)));
        assert!(!both.is_empty() && !both.contains("protocol"), "{role}: {both}");
    }
    lab.stop();
}
