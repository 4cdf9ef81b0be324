//! Goal: a client that tells a metadata server what it has open is believed with the proof of a server that let it open that, and with nothing else; and who
//! has the proof goes on after a start of the server, in another session, in another process of the machine, and at another server. Method: programs with certificates of clients, which claim whatever
//! they like, at real servers, beside a mount.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::{Call, Link, Service, Wanted};
use ashlar_rpc::wire::{CapabilityWanted, MetaAnswer, MetaCall};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{
    LeaseSet, LockKind, LockRange, LockRequest, MetaReply, MetaRequest, Reclaim, Reclaimed, ReclaimedFile,
};
use ashlar_types::{
    Credentials, DescriptionId, Errno, InodeId, LockOwner, NodeId, OpId, OpenProof, Role, SessionId,
};
use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

/// A program with a session.
struct Program {
    meta: Link,
    session: SessionId,
    /// The start of the server that it knows.
    incarnation: Cell<u64>,
    sequence: Cell<u64>,
}

impl Program {
    /// With the identity `name`, at the metadata server at `address`; in `session`, if it has one.
    fn at(lab: &Lab, name: &str, address: SocketAddr) -> Program {
        let addresses = Box::new(move || (vec![address], Vec::new()));
        let meta = Link::new(lab.client_program(name), Wanted { role: Role::Meta, node: None }, addresses, 1);
        let mut program =
            Program { meta, session: SessionId(0), incarnation: Cell::new(0), sequence: Cell::new(0) };
        let MetaAnswer::Session(session, incarnation) = program.ask(&MetaCall::Open(None)) else {
            panic!("no session")
        };
        program.session = session;
        program.incarnation.set(incarnation);
        program
    }

    fn new(lab: &Lab, name: &str) -> Program {
        Program::at(lab, name, lab.address(1))
    }

    fn ask(&self, call: &MetaCall<'_>) -> MetaAnswer {
        let head = encode(call);
        let (service, payload) = (Service::Meta, &[]);
        let call = Call { service, head: &head, payload, is_once: false, may_repeat: true, is_urgent: false };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.meta.call(&call, deadline).unwrap();
            match decode(answer.head(), "answer").unwrap() {
                MetaAnswer::Later => {
                    assert!(Instant::now() < deadline, "others are waited for");
                    std::thread::sleep(Duration::from_millis(20));
                }
                answer => return answer,
            }
        }
    }

    fn call(&self, request: MetaRequest<'_>) -> Result<(MetaReply, Option<OpenProof>), Errno> {
        self.sequence.set(self.sequence.get() + 1);
        let op = OpId { session: self.session, sequence: self.sequence.get() };
        match self.ask(&MetaCall::Call { op, creds: Credentials::root(), slot: None, request }) {
            MetaAnswer::Reply(reply) | MetaAnswer::Granted(reply, _) => Ok((reply, None)),
            MetaAnswer::Opened(reply, proof, _) => Ok((reply, Some(proof))),
            MetaAnswer::Failed(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    fn open(&self, inode: InodeId, write: bool) -> Result<OpenProof, Errno> {
        let handle = DescriptionId(inode.0 * 2 + u64::from(write));
        let request = MetaRequest::Open { inode, read: true, write, truncate: false, handle };
        self.call(request).map(|(_, proof)| proof.expect("an open is proven"))
    }

    fn tell(&self, part: Reclaim) -> MetaReply {
        let incarnation = self.incarnation.get();
        self.call(MetaRequest::Reclaim { server: NodeId(0), incarnation, part }).unwrap().0
    }

    /// Claims to have files open, each through one description for writing or not, and every lease on their content.
    fn claim(&self, files: &[(InodeId, bool, Option<OpenProof>)]) -> Vec<Result<Reclaimed, Errno>> {
        let file = |&(inode, write, proof): &(InodeId, bool, Option<OpenProof>)| ReclaimedFile {
            inode,
            handles: vec![(DescriptionId(77), write)],
            leases: LeaseSet::CONTENT,
            proof,
        };
        match self.tell(Reclaim::Files(files.iter().map(file).collect())) {
            MetaReply::Reclaimed { files } => files,
            other => panic!("{other:?}"),
        }
    }

    /// Claims to have locked the first bytes of files.
    fn claim_locks(&self, inodes: &[InodeId]) {
        let lock = |inode: &InodeId| {
            let (owner, range) = (LockOwner(1), LockRange { start: 0, end: 9 });
            let kind = LockKind::Write;
            let request = LockRequest { inode: *inode, owner, pid: 1, kind, range, is_flock: false };
            (request, DescriptionId(77))
        };
        assert_eq!(self.tell(Reclaim::Locks(inodes.iter().map(lock).collect())), MetaReply::Done);
    }

    /// Whether it is given what storage servers want to see for the content of a file.
    fn gets_chunks(&self, inode: InodeId) -> bool {
        let (session, generation, server) = (self.session, 1, NodeId(2));
        let wanted = CapabilityWanted { session, inode, generation, server, refused: None };
        match self.ask(&MetaCall::Capability(wanted)) {
            MetaAnswer::Capability(_) => true,
            MetaAnswer::Failed(Errno::EBADF) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Learns that the server was started anew.
    fn meet_again(&self) {
        match self.ask(&MetaCall::Renew { session: self.session, busy: Vec::new() }) {
            MetaAnswer::MustReclaim(incarnation) => self.incarnation.set(incarnation),
            other => panic!("{other:?}"),
        }
    }

    fn close(self) {
        assert_eq!(self.ask(&MetaCall::Close(self.session)), MetaAnswer::Done);
    }
}

fn inode(path: &Path) -> InodeId {
    InodeId(fs::metadata(path).unwrap().ino())
}

/// The node of the storage server is the second that joins; its chunks are asked for.
fn lab() -> Lab {
    let lab = Lab::start(1, 1);
    let listed = lab.ashlar("node list --json --identity @first").expect(0).stdout;
    let nodes: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let is_storage = |node: &&serde_json::Value| node["name"] == "oss0";
    assert_eq!(nodes.as_array().unwrap().iter().find(is_storage).unwrap()["id"], 2, "{listed}");
    for (name, policy) in [("friend", "--squash none"), ("liar", "")] {
        let token = lab.ashlar(&format!("token --role client {policy} --identity @first")).expect(0).stdout;
        lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
    }
    let path = |name: &str| lab.path("m0").join(name);
    for (name, mode) in [("secret", 0o600), ("public", 0o644), ("other", 0o644)] {
        fs::write(path(name), vec![b'x'; 3 << 20]).unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    lab
}

fn refused_claims(address: &str) -> u64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ashlar\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with("ashlar_claims_refused_total ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn who_was_never_let_in_claims_to_have_a_file_open_in_vain() {
    if !can_mount("claims of open files") {
        return;
    }
    let mut lab = lab();
    lab.meta.stop();
    let shown = Lab::free_address();
    let line = format!("meta --meta @meta --listen {} --identity @mds --metrics {shown}", lab.address(1));
    lab.meta = lab.run("mds", &line, "serves");
    let path = |name: &str| lab.path("m0").join(name);
    let [secret, public, other] = ["secret", "public", "other"].map(|name| inode(&path(name)));
    let (friend, liar) = (Program::new(&lab, "friend"), Program::new(&lab, "liar"));
    assert_eq!(liar.open(secret, false), Err(Errno::EACCES));
    let (read, write, truncate, handle) = (false, false, false, DescriptionId(1));
    let for_nothing = liar.call(MetaRequest::Open { inode: secret, read, write, truncate, handle });
    assert_eq!(for_nothing, Err(Errno::EACCES), "who opens it for nothing could read it");
    let of_friend = friend.open(secret, true).unwrap();
    let reading = liar.open(public, false).unwrap();
    assert!(of_friend.write && !reading.write);
    // What it has is closed, so nothing but a claim can open it again.
    let handle = DescriptionId(public.0 * 2);
    liar.call(MetaRequest::Release { inode: public, handle }).unwrap();
    let nothing = OpenProof { write: true, mac: [0; 32] };
    let mut claims = vec![
        ("no proof", secret, false, None),
        ("an empty proof", secret, true, Some(nothing)),
        ("another machine's proof", secret, true, Some(of_friend)),
        ("another machine's proof, for less", secret, false, Some(OpenProof { write: false, ..of_friend })),
        ("another file's proof", secret, false, Some(reading)),
        ("another file's proof, of one that it could open", other, false, Some(reading)),
        ("a reader's proof for writing", public, true, Some(reading)),
        (
            "a reader's proof that says it is a writer's",
            public,
            true,
            Some(OpenProof { write: true, ..reading }),
        ),
    ];
    for at in 0..32 {
        let mut forged = reading;
        forged.mac[at] ^= 1 << (at % 8);
        claims.push(("a proof with one bit changed", public, false, Some(forged)));
    }
    for (what, inode, write, proof) in &claims {
        assert_eq!(liar.claim(&[(*inode, *write, *proof)]), [Err(Errno::ESTALE)], "{what}");
        assert!(!liar.gets_chunks(*inode), "{what}");
    }
    assert_eq!(refused_claims(&shown), claims.len() as u64);
    let content = liar.call(MetaRequest::AcquireData { inode: secret, write: false, is_writeback: false });
    assert_eq!(content.unwrap_err(), Errno::EBADF);
    // What is refused harms nothing that is told beside it.
    let answers = liar.claim(&[(secret, true, None), (public, false, Some(reading)), (other, true, None)]);
    assert!(answers[0].is_err() && answers[1].is_ok() && answers[2].is_err(), "{answers:?}");
    assert!(liar.gets_chunks(public) && !liar.gets_chunks(secret) && !liar.gets_chunks(other));
    assert_eq!(refused_claims(&shown), claims.len() as u64 + 2);
    // Who has a proof goes on with it in another session, of another process.
    friend.close();
    let friend = Program::new(&lab, "friend");
    assert!(!friend.gets_chunks(secret));
    assert!(friend.claim(&[(secret, true, Some(of_friend))])[0].is_ok());
    assert!(friend.gets_chunks(secret));
    friend.close();
    liar.close();
    let told = lab.meta.text();
    assert!(told.contains("is not proven to be open"), "{told}");
    let hex: String = of_friend.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!told.contains(&hex) && !told.contains(&format!("{:?}", of_friend.mac)), "a proof is in a log");
    lab.stop();
}

/// Whether the mount can lock the first bytes of a file.
fn can_lock(path: &Path) -> bool {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (kind, whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    let request = libc::flock { l_type: kind, l_whence: whence, l_start: 0, l_len: 5, l_pid: 0 };
    // SAFETY: the descriptor is open and the request lives until the call returns.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &request) == 0 }
}

#[test]
fn after_a_start_of_the_server_what_is_proven_goes_on_and_nothing_else() {
    if !can_mount("claims after a start of the metadata server") {
        return;
    }
    let mut lab = lab();
    lab.keep_meta();
    let paths = ["secret", "public", "other"].map(|name| lab.path("m0").join(name));
    let [secret, public, other] = [&paths[0], &paths[1], &paths[2]].map(|path| inode(path));
    let (friend, liar) = (Program::new(&lab, "friend"), Program::new(&lab, "liar"));
    let writing = friend.open(secret, true).unwrap();
    let reading = liar.open(public, false).unwrap();
    lab.restart_kept_meta();
    liar.meet_again();
    friend.meet_again();
    let answers =
        liar.claim(&[(secret, true, None), (public, false, Some(reading)), (other, true, Some(reading))]);
    assert_eq!((answers[0], answers[2]), (Err(Errno::ESTALE), Err(Errno::ESTALE)));
    // As much as is proven: a lease for writing is not.
    assert_eq!(answers[1].unwrap().leases, LeaseSet::READ);
    liar.claim_locks(&[other, public]);
    assert!(friend.claim(&[(secret, true, Some(writing))])[0].is_ok());
    friend.claim_locks(&[secret]);
    for program in [&liar, &friend] {
        assert_eq!(program.tell(Reclaim::Done), MetaReply::Done);
    }
    assert!(!liar.gets_chunks(secret) && !liar.gets_chunks(other) && liar.gets_chunks(public));
    assert!(friend.gets_chunks(secret));
    // What was claimed and not proven is in nobody's way, and what was proven is.
    assert_eq!([&paths[0], &paths[1], &paths[2]].map(|path| can_lock(path)), [false, false, true]);
    friend.close();
    liar.close();
    assert!(can_lock(&paths[0]) && can_lock(&paths[1]));
    lab.stop_kept();
}

#[test]
fn a_proof_of_one_server_is_good_at_the_server_that_has_the_shard_then() {
    if !can_mount("proofs and shards that move") {
        return;
    }
    let mut lab = lab();
    let secret = inode(&lab.path("m0").join("secret"));
    let friend = Program::new(&lab, "friend");
    let proof = friend.open(secret, true).unwrap();
    friend.close();
    lab.join_meta("mds2");
    let address = Lab::free_address();
    let line = format!("meta --meta @meta2 --listen {address} --identity @mds2");
    let mut second = lab.run("mds2", &line, "serves");
    lab.ashlar(&format!("shard move {} --to mds2 --identity @first", secret.home().0)).expect(0);
    let friend = Program::at(&lab, "friend", address.parse().unwrap());
    assert_eq!(friend.claim(&[(secret, true, None)]), [Err(Errno::ESTALE)]);
    assert!(!friend.gets_chunks(secret));
    assert!(friend.claim(&[(secret, true, Some(proof))])[0].is_ok());
    assert!(friend.gets_chunks(secret));
    friend.close();
    lab.mounts.iter_mut().for_each(support::cluster::Role::stop);
    second.stop();
    lab.stop();
}
