//! Goal: no call reaches a service with a credential that does not allow it. Method: every call there is, to real servers, with the certificate of every role, in a role
//! that the certificate does not have, with certificates of a node that was removed, of another file system, and expired, and with a token. What is allowed is in one table; all the
//! rest has to be refused, and to leave the state as it is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_coord::local_file::LocalFile;
use ashlar_env::os::OsDisk;
use ashlar_env::{Disk, Env};
use ashlar_manager::{Manager, Token, public_key_of};
use ashlar_rpc::net::{Call, Caller, Epochs, Link, NetError, Service, TlsIdentity, Wanted};
use ashlar_rpc::wire::{MetaAnswer, MetaCall};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{ManagerReply, ManagerRequest, MetaRequest, StorageRequest};
use ashlar_types::{
    ChunkId, Credentials, Epoch, InodeId, NodeId, NodePolicy, OpId, PeerId, Role, SessionId, ShardId,
    ShardSet, TargetId, Timespec,
};
use parking_lot::RwLock;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::cluster::Lab;

/// One call, and who may make it.
struct Sample {
    service: Service,
    what: String,
    head: Vec<u8>,
    allowed: &'static [Role],
}

const NODES: &[Role] = &[Role::Manager, Role::Meta, Role::Storage, Role::Client, Role::Admin];

/// Every variant is named, so that a new one is thought about.
fn allowed_of_manager(request: &ManagerRequest) -> &'static [Role] {
    match request {
        ManagerRequest::Join { .. } => &[Role::Joiner],
        ManagerRequest::Renew { .. } | ManagerRequest::Map { .. } => NODES,
        ManagerRequest::Listen { .. } => &[Role::Manager, Role::Meta, Role::Storage],
        ManagerRequest::NewTarget { .. } | ManagerRequest::Serve { .. } => &[Role::Storage],
        ManagerRequest::MetaIdentity { .. } | ManagerRequest::TransferShards { .. } => &[Role::Meta],
        ManagerRequest::NewToken { .. }
        | ManagerRequest::RemoveNode { .. }
        | ManagerRequest::SetPolicy { .. } => &[Role::Admin],
    }
}

fn allowed_of_meta(call: &MetaCall<'_>) -> &'static [Role] {
    match call {
        MetaCall::Open(_)
        | MetaCall::Close(_)
        | MetaCall::Call { .. }
        | MetaCall::Events { .. }
        | MetaCall::Renew { .. } => &[Role::Client, Role::Admin],
        MetaCall::Sessions | MetaCall::EndSession(_) => &[Role::Admin],
        MetaCall::Peer(_) => &[Role::Meta],
    }
}

fn allowed_of_storage(request: &StorageRequest) -> &'static [Role] {
    match request {
        StorageRequest::Write { .. }
        | StorageRequest::Read { .. }
        | StorageRequest::Punch { .. }
        | StorageRequest::Allocate { .. }
        | StorageRequest::Seek { .. }
        | StorageRequest::NextChunk { .. } => &[Role::Client],
        StorageRequest::Truncate { .. }
        | StorageRequest::DeleteGeneration { .. }
        | StorageRequest::Extent { .. }
        | StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Confirm { .. } => &[Role::Meta],
        StorageRequest::Space { .. } => &[Role::Meta, Role::Admin],
        StorageRequest::Sync { .. } => &[Role::Client, Role::Meta],
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
        ManagerRequest::NewTarget { uuid, path: path.clone() },
        ManagerRequest::Serve { targets: vec![(TargetId(1), uuid, path.clone())] },
        ManagerRequest::MetaIdentity { uuid, path },
        ManagerRequest::TransferShards { shards: vec![ShardId(1)], from: NodeId(1), to: NodeId(2) },
        ManagerRequest::NewToken {
            roles: [Role::Admin].into_iter().collect(),
            valid_s: 60,
            policy: NodePolicy::trusting(),
        },
        ManagerRequest::RemoveNode { node: NodeId(2) },
        ManagerRequest::SetPolicy {
            node: NodeId(4),
            seen: NodePolicy::default(),
            policy: NodePolicy::trusting(),
        },
    ]
}

fn meta_samples() -> Vec<MetaCall<'static>> {
    let session = SessionId(7);
    let op = OpId { session, sequence: 1 };
    let call = |request| MetaCall::Call { op, creds: Credentials::root(), slot: Some(0), request };
    vec![
        MetaCall::Open(None),
        MetaCall::Open(Some(session)),
        MetaCall::Close(session),
        call(MetaRequest::Getattr { inode: InodeId::ROOT }),
        call(MetaRequest::MakeRoom),
        MetaCall::Events { session, seen: 0 },
        MetaCall::Renew { session, busy: Vec::new() },
        MetaCall::Sessions,
        MetaCall::EndSession(session),
        MetaCall::Peer(b"anything"),
    ]
}

fn storage_samples() -> Vec<StorageRequest> {
    let (target, inode, generation) = (TargetId(1), InodeId(9), 1);
    let chunk = ChunkId { inode, generation, index: 0 };
    let (chunk_bytes, offset, len, from_index) = (65_536, 0, 4096, 0);
    vec![
        StorageRequest::Write { target, chunk, chunk_bytes, offset, sums: Vec::new() },
        StorageRequest::Read { target, chunk, chunk_bytes, offset, len, want_sums: false },
        StorageRequest::Truncate { target, chunk, chunk_bytes, len },
        StorageRequest::Punch { target, chunk, chunk_bytes, offset, len },
        StorageRequest::Allocate { target, chunk, chunk_bytes, offset, len },
        StorageRequest::DeleteGeneration { target, inode, generation, from_index },
        StorageRequest::Seek { target, chunk, chunk_bytes, offset, data: true },
        StorageRequest::Extent { target, inode, generation },
        StorageRequest::Sync { target },
        StorageRequest::Space { target },
        StorageRequest::GiveBack { target },
        StorageRequest::Suspects { target, after: None, limit: 10, shards: ShardSet::below(64) },
        StorageRequest::Confirm { target, mark: u64::MAX, shards: ShardSet::below(64) },
        StorageRequest::NextChunk { target, inode, generation, from_index },
    ]
}

fn samples() -> Vec<Sample> {
    let name = |what: String| what.split([' ', '{', '(']).next().unwrap_or_default().to_owned();
    let of_manager = manager_samples().into_iter().map(|request| Sample {
        service: Service::Manager,
        what: name(format!("{request:?}")),
        head: encode(&request),
        allowed: allowed_of_manager(&request),
    });
    let of_meta = meta_samples().into_iter().map(|call| Sample {
        service: Service::Meta,
        what: name(format!("{call:?}")),
        head: encode(&call),
        allowed: allowed_of_meta(&call),
    });
    let of_storage = storage_samples().into_iter().map(|request| Sample {
        service: Service::Storage,
        what: name(format!("{request:?}")),
        head: encode(&request),
        allowed: allowed_of_storage(&request),
    });
    of_manager.chain(of_meta).chain(of_storage).collect()
}

/// Somebody who calls all servers.
struct Somebody {
    links: [Link; 3],
}

impl Somebody {
    fn new(lab: &Lab, identity: TlsIdentity, role: Role) -> Somebody {
        let mut instance = [0; 16];
        Env::os().entropy.fill(&mut instance);
        let identity = Arc::new(RwLock::new(Arc::new(identity)));
        let caller = Arc::new(Caller { identity, role, instance, epochs: Arc::new(Epochs::default()) });
        let link = |at, role| {
            let address: SocketAddr = lab.address(at);
            Link::new(caller.clone(), Wanted { role, node: None }, Box::new(move || vec![address]), 1)
        };
        Somebody { links: [link(0, Role::Manager), link(1, Role::Meta), link(2, Role::Storage)] }
    }

    /// How `sample` is refused, or what it was answered.
    fn refusal(&self, sample: &Sample) -> Result<String, String> {
        let link = match sample.service {
            Service::Manager => &self.links[0],
            Service::Meta => &self.links[1],
            Service::Storage => &self.links[2],
        };
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

    /// All calls but those that `role` may make; none may be answered.
    #[track_caller]
    fn is_refused_all_but(&self, who: &str, role: Option<Role>) {
        let (mut count, mut faults) = (0, Vec::new());
        for sample in samples() {
            if role.is_some_and(|role| sample.allowed.contains(&role)) {
                continue;
            }
            count += 1;
            if let Err(answer) = self.refusal(&sample) {
                faults.push(format!("{who}: {:?} {}: {answer}", sample.service, sample.what));
            }
        }
        assert!(faults.is_empty() && count > 5, "{count} calls:\n{}", faults.join("\n"));
    }
}

/// The identity in directory `name` of the lab, with another certificate if one is given.
fn identity(lab: &Lab, name: &str, certificate: Option<String>) -> TlsIdentity {
    let read = |file: &str| fs::read_to_string(lab.path(name).join(file)).unwrap();
    let certificate = certificate.unwrap_or_else(|| read("certificate.pem"));
    TlsIdentity::from_pem(&certificate, &read("key.pem"), &read("authority.pem")).unwrap()
}

#[test]
fn nothing_is_done_for_who_may_not_ask_for_it() {
    let mut lab = Lab::start(1, 0);
    let token = lab.ashlar("token --role client,admin --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name gone --identity @gone", token.trim())).expect(0);
    lab.ashlar("node remove gone --identity @first").expect(0);
    let roles = [Role::Meta, Role::Storage, Role::Client, Role::Admin];
    for role in roles {
        let token = lab.ashlar(&format!("token --role {role} --identity @first")).expect(0).stdout;
        lab.ashlar(&format!("join {} --name x{role} --identity @x{role}", token.trim())).expect(0);
    }
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout;
    let before = fs::read(lab.path("state/cluster-state")).unwrap();

    for role in roles {
        let name = format!("x{role}");
        Somebody::new(&lab, identity(&lab, &name, None), role).is_refused_all_but(&name, Some(role));
        for other in roles.into_iter().filter(|other| *other != role) {
            let who = format!("{name} as {other}");
            Somebody::new(&lab, identity(&lab, &name, None), other).is_refused_all_but(&who, None);
        }
    }
    Somebody::new(&lab, identity(&lab, "gone", None), Role::Admin).is_refused_all_but("gone", None);
    // Of another file system, with the same node ids.
    let other = Lab::start(1, 0);
    Somebody::new(&lab, identity(&other, "first", None), Role::Admin).is_refused_all_but("foreign", None);
    drop(other);
    // Expired, and not valid yet.
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(lab.path("state")));
    let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let key = public_key_of(&fs::read_to_string(lab.path("first/key.pem")).unwrap()).unwrap();
    for days in [-100, 100] {
        let now = Env::os().clock.now();
        let then = Timespec { secs: now.secs + days * 24 * 60 * 60, ..now };
        let roles = Role::ALL.into_iter().collect();
        let peer = PeerId { cluster: manager.identity().cluster, node: NodeId(1), roles };
        let certificate = manager.authority().unwrap().issue(peer, &key, then).unwrap();
        let expired = identity(&lab, "first", Some(certificate));
        Somebody::new(&lab, expired, Role::Admin).is_refused_all_but("expired", None);
    }
    assert!(fs::read(lab.path("state/cluster-state")).unwrap() == before, "something was changed");
    // Tokens: one that nobody has given out, and a good one for anything but joining.
    let good = Token::parse(&token).unwrap();
    let stranger = Token::new([9; 16], b"something", good.managers.clone());
    let fingerprint = good.fingerprint;
    for (who, token, role) in [("token", good, Some(Role::Joiner)), ("stranger", stranger, None)] {
        let (certificate, key) = token.certificate().unwrap();
        let identity = TlsIdentity::from_token(certificate, key, fingerprint).unwrap();
        Somebody::new(&lab, identity, Role::Joiner).is_refused_all_but(who, role);
    }
    assert!(fs::read(lab.path("state/cluster-state")).unwrap() == before, "something was changed");
    assert!(lab.ashlar("node list --identity @first").expect(0).stdout.contains("xclient"));
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
    let call = |somebody: &Somebody, call: &MetaCall<'_>| -> MetaAnswer {
        let head = encode(call);
        let call = Call {
            service: Service::Meta,
            head: &head,
            payload: &[],
            is_once: false,
            may_repeat: false,
            is_urgent: false,
        };
        let answer = somebody.links[1].call(&call, Instant::now() + Duration::from_secs(5)).unwrap();
        decode(answer.head(), "answer").unwrap()
    };
    let owner = Somebody::new(&lab, identity(&lab, "c1", None), Role::Client);
    let MetaAnswer::Session(session, _) = call(&owner, &MetaCall::Open(None)) else { panic!("no session") };
    let op = OpId { session, sequence: 1 };
    let getattr = MetaCall::Call {
        op,
        creds: Credentials::root(),
        slot: None,
        request: MetaRequest::Getattr { inode: InodeId::ROOT },
    };
    assert!(matches!(call(&owner, &getattr), MetaAnswer::Reply(_)));
    // Another node, and another process of the same one.
    for name in ["c2", "c1"] {
        let other = Somebody::new(&lab, identity(&lab, name, None), Role::Client);
        for attempt in [
            getattr.clone(),
            MetaCall::Close(session),
            MetaCall::Events { session, seen: 0 },
            MetaCall::Renew { session, busy: Vec::new() },
        ] {
            let answer = call(&other, &attempt);
            assert_eq!(answer, MetaAnswer::Failed(ashlar_types::Errno::ENOTCONN), "{attempt:?}");
        }
    }
    assert!(matches!(call(&owner, &getattr), MetaAnswer::Reply(_)), "nobody else has ended it");
    lab.stop();
}
