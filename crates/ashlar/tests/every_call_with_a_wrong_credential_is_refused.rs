//! Goal: no call reaches a service with a credential that does not allow it. Method: every call there is, to real servers, with the certificate of every role, in a role
//! that the certificate does not have, with certificates of a node that was removed, of another file system, and expired, in every role each, and with tokens. What is allowed is in one
//! table; all the rest has to be refused, and to leave the state as it is. What a node may not change that may only read is told by the list of requests, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../coord/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod etcd;
mod support;

use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, Token, public_key_of};
use ashlar_rpc::net::{Answer, Call, Caller, Epochs, Link, NetError, Service, TlsIdentity, Wanted};
use ashlar_rpc::wire::{
    Attend, BackupStep, CapabilityWanted, MetaAnswer, MetaCall, ProcessCall, StorageCall, TargetPlace, Under,
};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{LossMark, ManagerReply, ManagerRequest, MetaRequest, StorageRequest};
use ashlar_types::testing::schema::samples as every;
use ashlar_types::{
    ChainId, ChunkId, Credentials, DescriptionId, Epoch, Errno, EventKind, FilesetId, Happening, Holding,
    InodeId, NodeId, NodePolicy, OfChains, OpId, PeerId, Role, SessionId, ShardId, ShardSet, Start,
    StartPlace, TargetId, Timespec,
};
use etcd::members::Etcd;
use parking_lot::{Mutex, RwLock};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::cluster::Lab;

/// One call, and who may make it.
struct Sample {
    service: Service,
    /// Which server is asked: that of the service, and of what every server tells of itself each.
    server: usize,
    what: String,
    head: Vec<u8>,
    allowed: &'static [Role],
}

/// Calls that are made at a time.
const CALLERS: usize = 16;

const NODES: &[Role] = &[Role::Manager, Role::Meta, Role::Storage, Role::Client, Role::Admin, Role::Console];

/// Every variant is named, so that a new one is thought about.
fn allowed_of_manager(request: &ManagerRequest) -> &'static [Role] {
    match request {
        ManagerRequest::Join { .. } => &[Role::Joiner],
        ManagerRequest::Renew { .. } | ManagerRequest::Map { .. } => NODES,
        ManagerRequest::Listen { .. }
        | ManagerRequest::ListenApart { .. }
        | ManagerRequest::Present { .. } => &[Role::Manager, Role::Meta, Role::Storage],
        ManagerRequest::NewTarget { .. }
        | ManagerRequest::Serve { .. }
        | ManagerRequest::EndMove { .. }
        | ManagerRequest::ReportTargets { .. }
        | ManagerRequest::ChangeChains { .. }
        | ManagerRequest::ShareDisks { .. }
        | ManagerRequest::UseDisk { .. } => &[Role::Storage],
        ManagerRequest::MetaIdentity { .. }
        | ManagerRequest::TransferShards { .. }
        | ManagerRequest::RestoreMetadata { .. }
        | ManagerRequest::HostCopies { .. }
        | ManagerRequest::FoundCopies { .. }
        | ManagerRequest::ChangeCopies { .. }
        | ManagerRequest::BeginService { .. }
        | ManagerRequest::ServeCopy { .. }
        | ManagerRequest::CertifyServer { .. } => &[Role::Meta],
        ManagerRequest::NewToken { .. }
        | ManagerRequest::RemoveNode { .. }
        | ManagerRequest::SetPolicy { .. }
        | ManagerRequest::SetDraining { .. }
        | ManagerRequest::RemoveTarget { .. }
        | ManagerRequest::NewPool { .. }
        | ManagerRequest::RemovePool { .. }
        | ManagerRequest::SetMoves { .. }
        | ManagerRequest::RotateKeys
        | ManagerRequest::NewFileset { .. }
        | ManagerRequest::EncloseFileset { .. }
        | ManagerRequest::SetDomain { .. }
        | ManagerRequest::SetCopies { .. }
        | ManagerRequest::CopyPool { .. }
        | ManagerRequest::MoveDisk { .. }
        | ManagerRequest::ConfirmFenced { .. }
        | ManagerRequest::SetShardMoves { .. } => &[Role::Admin],
        ManagerRequest::Presence
        | ManagerRequest::Events { .. }
        | ManagerRequest::SharedDisks
        | ManagerRequest::CopyWorks
        | ManagerRequest::MoveWorks => &[Role::Admin, Role::Console],
        ManagerRequest::ShardMoves | ManagerRequest::Copies => &[Role::Meta, Role::Admin, Role::Console],
        ManagerRequest::Report { .. }
        | ManagerRequest::ClaimStart { .. }
        | ManagerRequest::HoldStarts { .. } => &[Role::Meta, Role::Storage],
        ManagerRequest::SealingKeys | ManagerRequest::OpenKey => &[Role::Meta],
        ManagerRequest::CheckingKeys => &[Role::Storage],
    }
}

fn allowed_of_meta(call: &MetaCall<'_>) -> &'static [Role] {
    match call {
        MetaCall::Call { request: MetaRequest::SetFileset { .. }, .. }
        | MetaCall::CallYielding { request: MetaRequest::SetFileset { .. }, .. }
        | MetaCall::CallInDirectory { request: MetaRequest::SetFileset { .. }, .. } => &[Role::Admin],
        MetaCall::Open(_)
        | MetaCall::OpenSync(_)
        | MetaCall::Close(_)
        | MetaCall::Call { .. }
        | MetaCall::CallYielding { .. }
        | MetaCall::CallInDirectory { .. }
        | MetaCall::Events { .. }
        | MetaCall::Renew { .. }
        | MetaCall::Capability(_) => &[Role::Client, Role::Admin],
        MetaCall::Sessions | MetaCall::Moves => &[Role::Admin, Role::Console],
        MetaCall::EndSession(_)
        | MetaCall::MoveShards { .. }
        | MetaCall::WithdrawMoves { .. }
        | MetaCall::Backup { .. } => &[Role::Admin],
        MetaCall::Peer(_) => &[Role::Meta],
    }
}

fn allowed_of_storage(request: &StorageRequest) -> &'static [Role] {
    match request {
        // A storage server is asked for a chain that moves, and refused later, for there is none.
        StorageRequest::Write { .. } | StorageRequest::Punch { .. } | StorageRequest::Allocate { .. } => {
            &[Role::Client, Role::Storage]
        }
        StorageRequest::Read { .. } | StorageRequest::Seek { .. } | StorageRequest::NextChunk { .. } => {
            &[Role::Client]
        }
        StorageRequest::Truncate { .. } | StorageRequest::DeleteGeneration { .. } => {
            &[Role::Meta, Role::Storage]
        }
        StorageRequest::MoveBegin { .. }
        | StorageRequest::MoveSeal { .. }
        | StorageRequest::CopyBeacon { .. }
        | StorageRequest::CopyCompare { .. }
        | StorageRequest::CopyEmpty { .. }
        | StorageRequest::CopySettled { .. }
        | StorageRequest::CopyBlocks { .. }
        | StorageRequest::CopyAgain { .. }
        | StorageRequest::CopyLost { .. }
        | StorageRequest::CopyDigests { .. }
        | StorageRequest::TakeLossMark { .. } => &[Role::Storage],
        StorageRequest::Moves { .. } | StorageRequest::MoveRate { .. } => &[Role::Admin, Role::Console],
        StorageRequest::Scrub { .. } | StorageRequest::GoOnWithout { .. } => &[Role::Admin],
        StorageRequest::Extent { .. } => &[Role::Client, Role::Meta],
        StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Files { .. }
        | StorageRequest::Confirm { .. } => &[Role::Meta],
        StorageRequest::Space { .. } => &[Role::Meta, Role::Admin],
        StorageRequest::Sync { .. } => &[Role::Client, Role::Meta],
    }
}

fn allowed_of_storage_call(call: &StorageCall) -> &'static [Role] {
    match call {
        StorageCall::Call { request, .. } => allowed_of_storage(request),
        StorageCall::Attend(_) | StorageCall::AttendAs { .. } => &[Role::Meta],
        StorageCall::TakeTarget(_) => &[Role::Admin],
    }
}

fn allowed_of_process(call: &ProcessCall) -> &'static [Role] {
    match call {
        ProcessCall::Metrics => &[Role::Admin, Role::Console],
    }
}

fn manager_samples() -> Vec<ManagerRequest> {
    let (uuid, path) = ([7; 16], "/somewhere".to_owned());
    let key = public_key_of(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    vec![
        ManagerRequest::Join { name: "somebody".into(), public_key: key.clone() },
        ManagerRequest::Renew { public_key: key },
        ManagerRequest::Map { have: Epoch(0) },
        ManagerRequest::Map { have: Epoch(1) },
        ManagerRequest::Listen { role: Role::Meta, addresses: vec!["127.0.0.1:9".parse().unwrap()] },
        ManagerRequest::ListenApart {
            role: Role::Meta,
            addresses: vec!["127.0.0.1:9".parse().unwrap()],
            management: vec!["127.0.0.2:9".parse().unwrap()],
            targets: Vec::new(),
        },
        ManagerRequest::NewTarget { uuid, path: path.clone(), pool: String::new() },
        ManagerRequest::Serve { targets: vec![(TargetId(1), uuid, path.clone())] },
        ManagerRequest::MetaIdentity { uuid, path: path.clone() },
        ManagerRequest::ClaimStart {
            role: Role::Meta,
            found: Holding { uuid, start: Start::default(), path, place: StartPlace::default() },
            tag: 1,
            is_older_accepted: true,
            is_taking_over: true,
        },
        ManagerRequest::HoldStarts { role: Role::Storage, held: Vec::new(), is_ending: false },
        ManagerRequest::RestoreMetadata { set: uuid, uuid, seen: Epoch(0), instead_of: None },
        ManagerRequest::TransferShards {
            shards: vec![ShardId(1)],
            from: NodeId(1),
            to: NodeId(2),
            seen: Epoch(1),
        },
        ManagerRequest::NewToken {
            roles: [Role::Admin].into_iter().collect(),
            valid_s: 60,
            policy: NodePolicy::trusting(),
        },
        ManagerRequest::RemoveNode { node: NodeId(2), is_own_meant: true },
        ManagerRequest::SetPolicy {
            node: NodeId(4),
            seen: NodePolicy::default(),
            policy: NodePolicy::trusting(),
        },
        ManagerRequest::SetDraining { targets: vec![TargetId(1)], is_draining: true },
        ManagerRequest::SetShardMoves { is_paused: true },
        ManagerRequest::ShardMoves,
        ManagerRequest::MoveWorks,
        ManagerRequest::CopyWorks,
        ManagerRequest::RemoveTarget { target: TargetId(1) },
        ManagerRequest::NewPool { name: "flash".into() },
        ManagerRequest::RemovePool { name: "flash".into() },
        ManagerRequest::SetMoves { is_paused: Some(true), rate_mib_s: Some(1), rebalancing: None },
        ManagerRequest::EndMove { chain: ChainId(0), from: TargetId(1), since: Epoch(1), is_given_up: false },
        ManagerRequest::ReportTargets { targets: Vec::new() },
        ManagerRequest::ChangeChains { by: TargetId(1), changes: Vec::new() },
        ManagerRequest::CopyPool { pool: "default".into(), copies: 2 },
        ManagerRequest::ShareDisks { words: Vec::new() },
        ManagerRequest::UseDisk { disk: [1; 16] },
        ManagerRequest::SharedDisks,
        ManagerRequest::MoveDisk { disk: [1; 16], to: NodeId(2) },
        ManagerRequest::ConfirmFenced { node: NodeId(2) },
        ManagerRequest::SealingKeys,
        ManagerRequest::OpenKey,
        ManagerRequest::CheckingKeys,
        ManagerRequest::RotateKeys,
        ManagerRequest::Report {
            what: vec![Happening::new(Timespec::default(), EventKind::DamageFound, "target-1", "untrue")],
        },
        ManagerRequest::Events { after: 0 },
        ManagerRequest::NewFileset { root: InodeId(9), parent: FilesetId(0) },
        ManagerRequest::EncloseFileset { fileset: FilesetId(1), parent: FilesetId(2) },
        ManagerRequest::SetDomain { node: NodeId(2), domain: "rack1".into() },
        ManagerRequest::Present { role: Role::Meta },
        ManagerRequest::Presence,
    ]
}

fn meta_samples() -> Vec<MetaCall<'static>> {
    let session = SessionId(7);
    let op = OpId { session, sequence: 1 };
    let call = |request| MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
    vec![
        MetaCall::Open(None),
        MetaCall::Open(Some(session)),
        MetaCall::OpenSync(session),
        MetaCall::Close(session),
        call(MetaRequest::Getattr { inode: InodeId::ROOT }),
        call(MetaRequest::MakeRoom),
        call(MetaRequest::SetFileset {
            inode: InodeId(9),
            from: FilesetId(0),
            fileset: FilesetId(1),
            slices: 0,
        }),
        MetaCall::Events { session, seen: 0 },
        MetaCall::Renew { session, busy: Vec::new() },
        MetaCall::Capability(CapabilityWanted {
            session,
            inode: InodeId(9),
            generation: 1,
            server: NodeId(2),
            refused: None,
        }),
        MetaCall::Sessions,
        MetaCall::EndSession(session),
        MetaCall::Peer(b"anything"),
        MetaCall::MoveShards { shards: vec![ShardId(1)], to: NodeId(2) },
        MetaCall::Moves,
        MetaCall::WithdrawMoves { shards: vec![ShardId(1)] },
        MetaCall::Backup { backup: 1, step: BackupStep::Prepare },
        MetaCall::Backup { backup: 1, step: BackupStep::End },
    ]
}

fn storage_samples() -> Vec<StorageRequest> {
    let (target, inode, generation) = (TargetId(1), InodeId(9), 1);
    let (chunk, chain) = (ChunkId { inode, generation, index: 0 }, ChainId(0));
    let (chunk_bytes, offset, len, from_index) = (65_536, 0, 4096, 0);
    vec![
        StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums: Vec::new() },
        StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums: false },
        StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len },
        StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset, len },
        StorageRequest::Allocate { target, chunk, chain, chunk_bytes, offset, len },
        StorageRequest::DeleteGeneration { target, inode, generation, chains: OfChains::All, from_index },
        StorageRequest::Seek { target, chunk, chain, chunk_bytes, offset, data: true },
        StorageRequest::Extent { target, inode, generation, chains: OfChains::All },
        StorageRequest::Sync { target, chains: OfChains::All },
        StorageRequest::Space { target },
        StorageRequest::GiveBack { target },
        StorageRequest::Suspects { target, after: None, limit: 10, shards: ShardSet::below(64) },
        StorageRequest::Files { target, after: None, limit: 10, shards: ShardSet::below(64) },
        StorageRequest::Confirm { target, mark: u64::MAX, shards: ShardSet::below(64) },
        StorageRequest::NextChunk { target, inode, generation, chains: OfChains::All, from_index },
        StorageRequest::MoveBegin { target, chain, epoch: Epoch(1), from: None },
        StorageRequest::MoveSeal { target, chain },
        StorageRequest::CopyBeacon { target, from: target, chains: vec![(chain, Epoch(1))] },
        StorageRequest::GoOnWithout { target, lost: target },
        StorageRequest::CopyCompare { target, chain, after: None },
        StorageRequest::CopyEmpty { target, chain, from: None },
        StorageRequest::CopySettled { target, chain, chunk },
        StorageRequest::CopyBlocks { target, chain, chunk, blocks: vec![(0, 1)] },
        StorageRequest::CopyAgain { target, from: target, chain, chunk },
        StorageRequest::CopyLost {
            target,
            chunk,
            chain,
            chunk_bytes,
            len: chunk_bytes,
            blocks: vec![(0, 1)],
        },
        StorageRequest::CopyDigests { target, chain, from: None, to: None },
        StorageRequest::TakeLossMark { target, chain, mark: LossMark(1) },
        StorageRequest::Moves { target },
        StorageRequest::MoveRate { target },
        StorageRequest::Scrub { target, from: Vec::new() },
    ]
}

fn samples() -> Vec<Sample> {
    let name = |what: String| what.split([' ', '{', '(']).next().unwrap_or_default().to_owned();
    // What a server would do, were it not for who asks; and every variant that there is, of which some make no sense otherwise.
    let of_manager = manager_samples().into_iter().chain(every::<ManagerRequest>()).map(|request| Sample {
        service: Service::Manager,
        server: 0,
        what: name(format!("{request:?}")),
        head: encode(&request),
        allowed: allowed_of_manager(&request),
    });
    let (op, slot) = (OpId { session: SessionId(7), sequence: 1 }, Some(0));
    let requests = every::<MetaRequest>().into_iter().flat_map(|request| {
        let creds = Credentials::root();
        let plain = MetaCall::Call { op, creds: creds.clone(), slot, request: request.clone() };
        let yielding = MetaCall::CallYielding { op, creds: creds.clone(), slot, request: request.clone() };
        [plain, yielding, MetaCall::CallInDirectory { op, creds, slot, request }]
    });
    let of_meta =
        meta_samples().into_iter().chain(every::<MetaCall<'_>>()).chain(requests).map(|call| Sample {
            service: Service::Meta,
            server: 1,
            what: name(format!("{call:?}")),
            head: encode(&call),
            allowed: allowed_of_meta(&call),
        });
    let of_storage = storage_samples().into_iter().chain(every::<StorageRequest>()).map(|request| Sample {
        service: Service::Storage,
        server: 2,
        what: name(format!("{request:?}")),
        allowed: allowed_of_storage(&request),
        head: encode(&StorageCall::Call { under: Under::Role, request }),
    });
    let sensible = [
        StorageCall::Attend(Attend { echo: None, fences: vec![SessionId(7)] }),
        StorageCall::TakeTarget(TargetPlace::default()),
    ];
    let of_storage_server = sensible.into_iter().chain(every::<StorageCall>()).map(|call| Sample {
        service: Service::Storage,
        server: 2,
        what: name(format!("{call:?}")),
        allowed: allowed_of_storage_call(&call),
        head: encode(&call),
    });
    let of_process = (0..3).map(|server| Sample {
        service: Service::Process,
        server,
        what: format!("Metrics of server {server}"),
        allowed: allowed_of_process(&ProcessCall::Metrics),
        head: encode(&ProcessCall::Metrics),
    });
    of_manager.chain(of_meta).chain(of_storage).chain(of_storage_server).chain(of_process).collect()
}

/// Somebody who calls all servers.
struct Somebody {
    links: [Link; 3],
}

impl Somebody {
    fn new(lab: &Lab, identity: TlsIdentity, role: Role) -> Somebody {
        Somebody::at([0, 1, 2].map(|at| lab.address(at)), identity, role)
    }

    /// Who calls manager, metadata server and storage server at these addresses.
    fn at(addresses: [SocketAddr; 3], identity: TlsIdentity, role: Role) -> Somebody {
        let mut instance = [0; 16];
        Env::os().entropy.fill(&mut instance);
        let identity = Arc::new(RwLock::new(Arc::new(identity)));
        let caller = Arc::new(Caller::new(identity, role, instance, Arc::new(Epochs::default())));
        let link = |at: usize, role| {
            let address = addresses[at];
            Link::new(
                caller.clone(),
                Wanted { role, node: None },
                Box::new(move || (vec![address], Vec::new())),
                CALLERS as u32,
            )
        };
        Somebody { links: [link(0, Role::Manager), link(1, Role::Meta), link(2, Role::Storage)] }
    }

    /// How `sample` is refused, or what it was answered.
    fn refusal(&self, sample: &Sample) -> Result<String, String> {
        let link = &self.links[sample.server];
        let (service, head) = (sample.service, &sample.head[..]);
        let call = Call { service, head, payload: &[], is_once: false, may_repeat: false, is_urgent: false };
        let answer = match link.call(&call, Instant::now() + Duration::from_secs(3)) {
            Ok(answer) => answer,
            // A connection that is cut without a word would be one, too, but nobody would know what to do.
            Err(error @ (NetError::Refused(_) | NetError::Tls(_) | NetError::Credentials(_))) => {
                return Ok(error.to_string());
            }
            Err(other) => return Err(format!("{other:?}")),
        };
        match decode::<ManagerReply>(answer.head(), "reply") {
            Ok(ManagerReply::Refused(text)) if service == Service::Manager => Ok(text),
            _ => Err(format!("an answer of {} bytes", answer.head().len())),
        }
    }

    /// What the metadata server answers.
    #[track_caller]
    fn meta(&self, call: &MetaCall<'_>) -> MetaAnswer {
        decode(self.answer(1, Service::Meta, &encode(call)).head(), "answer").unwrap()
    }

    /// A token of a client that is valid for so many seconds.
    #[track_caller]
    fn token(&self, valid_s: u32) -> String {
        let roles = [Role::Client].into_iter().collect();
        let request = ManagerRequest::NewToken { roles, valid_s, policy: NodePolicy::default() };
        match decode(self.answer(0, Service::Manager, &encode(&request)).head(), "answer").unwrap() {
            ManagerReply::Token(text) => text,
            other => panic!("no token: {other:?}"),
        }
    }

    #[track_caller]
    fn answer(&self, server: usize, service: Service, head: &[u8]) -> Answer {
        let call = Call { service, head, payload: &[], is_once: false, may_repeat: false, is_urgent: false };
        self.links[server].call(&call, Instant::now() + Duration::from_secs(5)).unwrap()
    }

    /// All calls but those that `role` may make; none may be answered.
    #[track_caller]
    fn is_refused_all_but(&self, who: &str, role: Option<Role>) {
        let is_forbidden = |sample: &Sample| role.is_none_or(|role| !sample.allowed.contains(&role));
        let samples: Vec<Sample> = samples().into_iter().filter(is_forbidden).collect();
        assert!(samples.len() > 5, "{} calls", samples.len());
        let faults = Mutex::new(Vec::new());
        // A server that does not know a node waits a second for a newer map before it says so.
        std::thread::scope(|scope| {
            for part in samples.chunks(samples.len().div_ceil(CALLERS)) {
                let faults = &faults;
                scope.spawn(move || {
                    for sample in part {
                        if let Err(answer) = self.refusal(sample) {
                            let fault = format!("{who}: {:?} {}: {answer}", sample.service, sample.what);
                            faults.lock().push(fault);
                        }
                    }
                });
            }
        });
        let faults = faults.into_inner();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    /// One call of each service on each server: none may be answered.
    #[track_caller]
    fn is_refused_everywhere(&self, who: &str) {
        let mut seen = Vec::new();
        for sample in samples() {
            let port = (sample.service as u8, sample.server);
            if !seen.contains(&port) {
                seen.push(port);
                let refused = self.refusal(&sample);
                assert!(refused.is_ok(), "{who}: {}: {refused:?}", sample.what);
            }
        }
        assert_eq!(seen.len(), 6);
    }
}

/// The identity in directory `name` of the lab, with another certificate if one is given.
fn identity(lab: &Lab, name: &str, certificate: Option<String>) -> TlsIdentity {
    let read = |file: &str| fs::read_to_string(lab.path(name).join(file)).unwrap();
    let certificate = certificate.unwrap_or_else(|| read("certificate.pem"));
    TlsIdentity::from_pem(&certificate, &read("key.pem"), &read("authority.pem")).unwrap()
}

/// What the managers keep on the machine of the first one.
fn state(lab: &Lab) -> Vec<u8> {
    fs::read(lab.path("state/cluster-state")).unwrap()
}

/// Node `first` with a certificate for all roles that the authority of the file system has given out so many days from now.
fn issued(lab: &Lab, days: i64) -> TlsIdentity {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(lab.path("state")));
    let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let key = public_key_of(&fs::read_to_string(lab.path("first/key.pem")).unwrap()).unwrap();
    let now = Env::os().clock.now();
    let then = Timespec { secs: now.secs + days * 24 * 60 * 60, ..now };
    let roles = NODES.iter().copied().collect();
    let peer = PeerId { cluster: manager.identity().cluster, node: NodeId(1), roles, host: None };
    let certificate = manager.authority().unwrap().issue(peer, &key, then).unwrap();
    identity(lab, "first", Some(certificate))
}

/// A node that is nothing but `role`: of what it may not ask for, nothing is done, nor anything in a role that it does not have.
#[track_caller]
fn is_refused_what_others_may(lab: &Lab, role: Role) {
    let own = || identity(lab, &format!("x{role}"), None);
    Somebody::new(lab, own(), role).is_refused_all_but(&role.to_string(), Some(role));
    for other in NODES.iter().filter(|other| **other != role) {
        Somebody::new(lab, own(), *other).is_refused_all_but(&format!("{role} as {other}"), None);
    }
}

#[track_caller]
fn join(lab: &Lab, role: Role) {
    let token = lab.ashlar(&format!("token --role {role} --identity @first")).expect(0).stdout;
    let state = if role == Role::Manager { "--state @xstate" } else { "" };
    lab.ashlar(&format!("join {} --name x{role} --identity @x{role} {state}", token.trim())).expect(0);
}

#[test]
fn nothing_is_done_for_who_may_not_ask_for_it() {
    let mut lab = Lab::start(1, 0);
    // Another manager wants an etcd: below.
    let roles = || NODES.iter().copied().filter(|role| *role != Role::Manager);
    roles().for_each(|role| join(&lab, role));
    let before = state(&lab);
    roles().for_each(|role| is_refused_what_others_may(&lab, role));
    assert!(state(&lab) == before, "something was changed");
    assert!(lab.ashlar("node list --identity @first").expect(0).stdout.contains("xclient"));
    lab.stop();
}

#[test]
fn nothing_that_others_may_ask_for_is_done_for_a_manager() {
    let etcd = Etcd::start(1);
    let mut lab = Lab::start_with(&["--etcd".to_owned(), etcd.endpoints().join(",")], 1, 0);
    join(&lab, Role::Manager);
    let nodes = || lab.ashlar("node list --json --identity @first").expect(0).stdout;
    let before = nodes();
    is_refused_what_others_may(&lab, Role::Manager);
    assert_eq!(nodes(), before);
    lab.stop();
}

#[test]
fn a_certificate_that_does_not_count_is_refused_in_every_role() {
    let mut lab = Lab::start(1, 0);
    let token =
        lab.ashlar("token --role meta,storage,client,admin,console --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name gone --identity @gone", token.trim())).expect(0);
    lab.ashlar("node remove gone --identity @first").expect(0);
    // Of another file system, with the same node ids.
    let other = Lab::start(1, 0);
    let before = state(&lab);
    let certificates: [(&str, &dyn Fn() -> TlsIdentity); 4] = [
        ("gone", &|| identity(&lab, "gone", None)),
        ("foreign", &|| issued(&other, 0)),
        ("expired", &|| issued(&lab, -100)),
        ("not valid yet", &|| issued(&lab, 100)),
    ];
    for (who, identity) in certificates {
        Somebody::new(&lab, identity(), Role::Admin).is_refused_all_but(who, None);
        // What is refused is the connection, before a call is sent: one of each service on each server is enough to see that it is in the other roles, too.
        for role in NODES {
            Somebody::new(&lab, identity(), *role).is_refused_everywhere(&format!("{who} as {role}"));
        }
    }
    assert!(state(&lab) == before, "something was changed");
    // One that does count, made as those were.
    let good = Somebody::new(&lab, issued(&lab, 0), Role::Admin);
    let list = samples().into_iter().find(|sample| sample.what == "Presence").unwrap();
    good.refusal(&list).unwrap_err();
    lab.stop();
}

#[test]
fn a_token_is_good_for_joining_once_while_it_is_valid() {
    let mut lab = Lab::start(1, 0);
    let first = Somebody::new(&lab, identity(&lab, "first", None), Role::Admin);
    let used = lab_token(&lab);
    lab.ashlar(&format!("join {} --name c1 --identity @c1", used.trim())).expect(0);
    let (good, timed_out) = (lab_token(&lab), first.token(1));
    let before = state(&lab);
    // The second for which it is valid, and that in which it was made.
    std::thread::sleep(Duration::from_secs(2));
    let parse = |text: &str| Token::parse(text.trim()).unwrap();
    let stranger = Token::new([9; 16], b"something", parse(&good).managers);
    let fingerprint = parse(&good).fingerprint;
    for (who, token, role) in [
        // A good one for anything but joining.
        ("token", parse(&good), Some(Role::Joiner)),
        ("a token that nobody has given out", stranger, None),
        ("a used-up token", parse(&used), None),
        ("a token whose time is over", parse(&timed_out), None),
    ] {
        let (certificate, key) = token.certificate().unwrap();
        let as_role = |role| {
            let identity = TlsIdentity::from_token(certificate.clone(), key.clone(), fingerprint).unwrap();
            Somebody::new(&lab, identity, role)
        };
        as_role(Role::Joiner).is_refused_all_but(&format!("{who} as {}", Role::Joiner), role);
        // As above: in the other roles no connection is let in at all.
        for other in NODES {
            as_role(*other).is_refused_everywhere(&format!("{who} as {other}"));
        }
    }
    assert!(state(&lab) == before, "something was changed");
    lab.ashlar(&format!("join {} --name c2 --identity @c2", good.trim())).expect(0);
    lab.stop();
}

/// Every request that changes anything, those among them whose fields say whether they do.
fn changes() -> Vec<MetaRequest<'static>> {
    let (inode, handle) = (InodeId::ROOT, DescriptionId(1));
    let open = |write, truncate| MetaRequest::Open { inode, read: true, write, truncate, handle };
    let commit = |size_at_least, blocks_delta, mtime| MetaRequest::CommitWrite {
        inode,
        generation: None,
        size_at_least,
        blocks_delta,
        mtime,
        atime: None,
        kill_set_id: false,
        keeps_capability: false,
        done: false,
    };
    let by_field = [
        open(true, false),
        open(false, true),
        MetaRequest::AcquireData { inode, write: true, is_writeback: false },
        commit(1, 0, None),
        commit(0, -1, None),
        commit(0, 0, Some(Timespec::default())),
    ];
    every::<MetaRequest<'_>>().into_iter().filter(MetaRequest::is_change).chain(by_field).collect()
}

#[test]
fn a_node_that_may_only_read_is_refused_every_change() {
    let mut lab = Lab::start(1, 0);
    let token =
        lab.ashlar("token --role client --squash none --read-only --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name reader --identity @reader", token.trim())).expect(0);
    let reader = Somebody::new(&lab, identity(&lab, "reader", None), Role::Client);
    let MetaAnswer::Session(session, _) = reader.meta(&MetaCall::Open(None)) else { panic!("no session") };
    let call = |sequence, request: &MetaRequest<'static>| MetaCall::Call {
        op: OpId { session, sequence },
        creds: Credentials::root(),
        slot: None,
        request: request.clone(),
    };
    let mut count = 0;
    for (request, sequence) in changes().iter().zip(1..) {
        let call = call(sequence, request);
        // What only administrators may ask for is refused before anybody looks at the policy.
        if !allowed_of_meta(&call).contains(&Role::Client) {
            continue;
        }
        assert_eq!(reader.meta(&call), MetaAnswer::Failed(Errno::EROFS), "{request:?}");
        count += 1;
    }
    assert!(count > 20, "{count} changes");
    let look = MetaRequest::Getattr { inode: InodeId::ROOT };
    assert!(matches!(reader.meta(&call(1000, &look)), MetaAnswer::Reply(_)), "it may read");
    // The same are answered otherwise when it may write.
    lab.ashlar("node policy reader --read-only=false --identity @first").expect(0);
    let make = || changes().into_iter().find(|request| matches!(request, MetaRequest::Mkdir { .. })).unwrap();
    let mut sequence = 1000;
    support::soon(Duration::from_secs(20), "it may write", || {
        sequence += 1;
        reader.meta(&call(sequence, &make())) != MetaAnswer::Failed(Errno::EROFS)
    });
    lab.stop();
}

/// With a network for management, administrators and consoles are let in there, clients at the other addresses, and nobody at those of the others.
#[test]
fn with_a_network_for_management_each_is_let_in_at_its_own_addresses() {
    let management = [(); 3].map(|()| Lab::free_address());
    let mut lab = Lab::start_with(&["--management".to_owned(), management[0].clone()], 1, 0);
    lab.meta.stop();
    lab.storage[0].stop();
    let (own, at) = (lab.addresses(), &management);
    let storage = format!("storage --data @d0 --listen {} --management {} --identity @oss0", own[2], at[2]);
    let meta = format!("meta --meta @meta --listen {} --management {} --identity @mds", own[1], at[1]);
    lab.storage[0] = lab.run("oss0", &storage, "serves");
    lab.meta = lab.run("mds", &meta, "serves");
    for role in [Role::Client, Role::Console] {
        let token = lab.ashlar(&format!("token --role {role} --identity @first")).expect(0).stdout;
        lab.ashlar(&format!("join {} --name x{role} --identity @x{role}", token.trim())).expect(0);
    }
    let ours = [0, 1, 2].map(|at| lab.address(at));
    let theirs = management.map(|address| address.parse().unwrap());
    let words = [
        ("xclient", Role::Client, ours, theirs, "this address is for management"),
        ("first", Role::Admin, theirs, ours, "--management"),
        ("xconsole", Role::Console, theirs, ours, "--management"),
    ];
    for (name, role, its_own, others, word) in words {
        let at = |addresses| Somebody::at(addresses, identity(&lab, name, None), role);
        let (inside, outside) = (at(its_own), at(others));
        // One that it may make, of each server.
        for server in 0..3 {
            let may = |sample: &Sample| sample.server == server && sample.allowed.contains(&role);
            let all = samples();
            let sample = all.iter().find(|sample| may(sample)).unwrap();
            let refused = outside.refusal(sample).unwrap();
            assert!(refused.contains(word), "{name} at {server}: {refused}");
            let told = inside.refusal(sample).unwrap_or_default();
            assert!(!told.contains("management"), "{name} at {server}: {told}");
        }
    }
    lab.stop();
}

fn lab_token(lab: &Lab) -> String {
    lab.ashlar("token --role client --identity @first").expect(0).stdout
}

#[test]
fn a_session_is_its_owner_s_alone() {
    let mut lab = Lab::start(1, 0);
    for name in ["c1", "c2"] {
        let token = lab_token(&lab);
        lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
    }
    let owner = Somebody::new(&lab, identity(&lab, "c1", None), Role::Client);
    let MetaAnswer::Session(session, _) = owner.meta(&MetaCall::Open(None)) else { panic!("no session") };
    let op = OpId { session, sequence: 1 };
    let getattr = MetaCall::Call {
        op,
        creds: Credentials::root(),
        slot: None,
        request: MetaRequest::Getattr { inode: InodeId::ROOT },
    };
    assert!(matches!(owner.meta(&getattr), MetaAnswer::Reply(_)));
    // Another node, and another process of the same one.
    for name in ["c2", "c1"] {
        let other = Somebody::new(&lab, identity(&lab, name, None), Role::Client);
        for attempt in [
            getattr.clone(),
            MetaCall::Close(session),
            MetaCall::Events { session, seen: 0 },
            MetaCall::Renew { session, busy: Vec::new() },
            MetaCall::Capability(CapabilityWanted {
                session,
                inode: InodeId::ROOT,
                generation: 1,
                server: NodeId(2),
                refused: None,
            }),
        ] {
            let answer = other.meta(&attempt);
            assert_eq!(answer, MetaAnswer::Failed(Errno::ENOTCONN), "{attempt:?}");
        }
    }
    assert!(matches!(owner.meta(&getattr), MetaAnswer::Reply(_)), "nobody else has ended it");
    lab.stop();
}
