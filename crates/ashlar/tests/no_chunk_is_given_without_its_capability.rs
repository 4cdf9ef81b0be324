//! Goal: a storage server lets a client at the chunks of a file with a capability that metadata has given to that session for that file, and with nothing
//! else. Method: a program with the certificate of a client makes every call there is on chunks, to a real server, with everything but the right capability;
//! then with that.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_coord::local_file::LocalFile;
use ashlar_env::Disk;
use ashlar_env::os::OsDisk;
use ashlar_manager::{Manager, Secrets};
use ashlar_rpc::capability::{open_key, ready, root_key, seal, sealing_keys, server_key};
use ashlar_rpc::net::{Call, Link, NetError, Service, Wanted};
use ashlar_rpc::wire::{CapabilityWanted, MetaAnswer, MetaCall, StorageCall, Under};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{
    DataGrant, MetaReply, MetaRequest, Recall, SessionEvent, StorageReply, StorageRequest,
};
use ashlar_types::{
    Capability, ChunkId, ClusterId, Credentials, DescriptionId, Errno, FileLayout, GrantedCapability,
    InodeId, NodeId, OfChains, OpId, Rights, Role, Seal, SealedCapability, SecretKey, SessionId, TargetId,
};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

const LEN: u32 = 4096;
/// What the files have in them.
const CONTENT: u8 = b'x';

/// A program with a session, which answers recalls.
struct Program {
    meta: Arc<Link>,
    is_over: Arc<AtomicBool>,
    storage: Vec<Link>,
    session: SessionId,
    sequence: Cell<u64>,
}

impl Program {
    fn new(lab: &Lab, name: &str) -> Program {
        let caller = lab.client_program(name);
        let link = |at, role| {
            let address = lab.address(at);
            Link::new(
                caller.clone(),
                Wanted { role, node: None },
                Box::new(move || (vec![address], Vec::new())),
                1,
            )
        };
        let storage = vec![link(2, Role::Storage), link(3, Role::Storage)];
        let meta = Arc::new(link(1, Role::Meta));
        let MetaAnswer::Session(session, _) = ask(&meta, &MetaCall::Open(None)).unwrap() else {
            panic!("no session")
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let (kept, told) = (meta.clone(), is_over.clone());
        std::thread::spawn(move || answer_recalls(&kept, session, &told));
        Program { meta, is_over, storage, session, sequence: Cell::new(0) }
    }

    fn ask(&self, call: &MetaCall<'_>) -> MetaAnswer {
        ask(&self.meta, call).unwrap()
    }

    fn call(&self, request: MetaRequest<'_>) -> MetaAnswer {
        self.sequence.set(self.sequence.get() + 1);
        let op = OpId { session: self.session, sequence: self.sequence.get() };
        self.ask(&MetaCall::Call { op, creds: Credentials::root(), slot: None, request })
    }

    /// Opens a file; tells where it is and what it was given for that.
    #[track_caller]
    fn open(&self, inode: InodeId, write: bool) -> (FileLayout, GrantedCapability) {
        let handle = DescriptionId(inode.0 * 2 + u64::from(write));
        match self.call(MetaRequest::Open { inode, read: true, write, truncate: false, handle }) {
            MetaAnswer::Opened(MetaReply::Opened { open, .. }, _, Some(granted)) => match open.data {
                DataGrant::Chunks { layout } => (layout, granted),
                DataGrant::Inline { .. } => panic!("it has no chunks"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// A call to the storage server at `at`.
    fn storage(&self, at: usize, under: Under, request: &StorageRequest) -> Result<StorageReply, Errno> {
        let head = encode(&StorageCall::Call { under, request: request.clone() });
        decode(self.send(at, &head, request).unwrap().head(), "answer").unwrap()
    }

    fn send(
        &self,
        at: usize,
        head: &[u8],
        request: &StorageRequest,
    ) -> Result<ashlar_rpc::net::Answer, NetError> {
        let payload = [CONTENT + 1; LEN as usize];
        let is_write = matches!(request, StorageRequest::Write { .. });
        let call = Call {
            service: Service::Storage,
            head,
            payload: if is_write { &payload } else { &[] },
            is_once: false,
            may_repeat: false,
            is_urgent: false,
        };
        self.storage[at].call(&call, Instant::now() + Duration::from_secs(30))
    }
}

fn ask(meta: &Link, call: &MetaCall<'_>) -> Result<MetaAnswer, NetError> {
    let (head, deadline) = (encode(call), Instant::now() + Duration::from_secs(30));
    let out = Call {
        service: Service::Meta,
        head: &head,
        payload: &[],
        is_once: false,
        may_repeat: false,
        is_urgent: true,
    };
    let answer = match call {
        MetaCall::Events { .. } => meta.park(&out, deadline)?,
        _ => meta.call(&out, deadline)?,
    };
    Ok(decode(answer.head(), "answer").unwrap())
}

/// Gives back at once what is recalled, and says that the session is there, for as long as it is.
fn answer_recalls(meta: &Arc<Link>, session: SessionId, is_over: &AtomicBool) {
    let (renewing, is_gone) = (meta.clone(), Arc::new(AtomicBool::new(false)));
    let told = is_gone.clone();
    let renewal = std::thread::spawn(move || {
        while !told.load(Relaxed) {
            let _ = ask(&renewing, &MetaCall::Renew { session, busy: Vec::new() });
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    let mut seen = 0;
    while !is_over.load(Relaxed) {
        let Ok(MetaAnswer::Events(events)) = ask(meta, &MetaCall::Events { session, seen }) else { break };
        for (number, event) in events {
            seen = number;
            if let SessionEvent::Recall(Recall { id, inode, .. }) = event {
                let op = OpId { session, sequence: u64::MAX / 2 + id };
                let request = MetaRequest::RecallDone { inode, id };
                let _ = ask(meta, &MetaCall::Call { op, creds: Credentials::root(), slot: None, request });
            }
        }
    }
    is_gone.store(true, Relaxed);
    renewal.join().unwrap();
}

/// Every call that a client may make on chunks, and whether it changes them.
fn calls(target: TargetId, layout: &FileLayout, chunk: ChunkId) -> Vec<(StorageRequest, bool)> {
    let (chunk_bytes, offset, len) = (layout.chunk_bytes, 0, LEN);
    let ChunkId { inode, generation, index } = chunk;
    let chain = layout.chain(index);
    vec![
        (StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums: Vec::new() }, true),
        (StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset, len }, true),
        (StorageRequest::Allocate { target, chunk, chain, chunk_bytes, offset, len }, true),
        (StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums: false }, false),
        (StorageRequest::Seek { target, chunk, chain, chunk_bytes, offset, data: true }, false),
        (
            StorageRequest::NextChunk { target, inode, generation, chains: OfChains::All, from_index: index },
            false,
        ),
    ]
}

/// The root key, as a manager has it.
fn root(lab: &Lab) -> SecretKey {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(lab.path("state")));
    let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let secrets: Secrets = decode(&manager.secrets(), "secrets").unwrap();
    root_key(secrets.ca_key_pem.as_bytes(), secrets.cluster)
}

/// A program that has a file open for reading, others, and one storage server with chunks of the file.
struct Scene {
    lab: Lab,
    program: Program,
    /// Another process of the same machine, with the same file.
    sibling: Program,
    /// A program of another machine, with another file.
    thief: Program,
    layout: FileLayout,
    granted: GrantedCapability,
    /// A chunk of the file, the storage server that is asked for it, and a target there.
    chunk: ChunkId,
    at: usize,
    target: TargetId,
    server: NodeId,
    other: InodeId,
}

impl Drop for Scene {
    fn drop(&mut self) {
        for program in [&self.program, &self.thief, &self.sibling] {
            program.is_over.store(true, Relaxed);
            let _ = ask(&program.meta, &MetaCall::Close(program.session));
        }
        if !std::thread::panicking() {
            self.lab.stop();
        }
    }
}

/// Makes a file with chunks on all targets.
fn make_file(lab: &Lab, name: &str) -> InodeId {
    let path = lab.path("m0").join(name);
    fs::write(&path, vec![CONTENT; 8 << 20]).unwrap();
    InodeId(fs::metadata(&path).unwrap().ino())
}

impl Scene {
    fn new() -> Scene {
        let lab = Lab::start(2, 1);
        for name in ["p1", "p2"] {
            let token = lab.ashlar("token --role client --squash none --identity @first").expect(0).stdout;
            lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
        }
        let (mine, other) = (make_file(&lab, "mine"), make_file(&lab, "other"));
        let (program, thief) = (Program::new(&lab, "p1"), Program::new(&lab, "p2"));
        let sibling = Program::new(&lab, "p1");
        let (layout, granted) = program.open(mine, false);
        assert_eq!(granted.seals.len(), 2, "one of each storage server");
        assert_eq!((granted.capability.rights, granted.capability.inode), (Rights::READ, mine));
        assert_eq!(granted.capability.generation, layout.generation);
        let node = fs::read_to_string(lab.path("oss0/node.json")).unwrap();
        let server = NodeId(node.lines().find_map(node_number).unwrap());
        let targets = lab.ashlar("target list --json --identity @first").expect(0).stdout;
        let targets: serde_json::Value = serde_json::from_str(&targets).unwrap();
        let is_there = |known: &&serde_json::Value| known["node"]["id"] == server.0;
        let target = targets.as_array().unwrap().iter().find(is_there).unwrap()["id"].as_u64().unwrap();
        let (at, target) = (0, TargetId(target as u32));
        // Targets bring a hundred chains each, in the order in which they come.
        let is_there = |index: &u64| layout.chain(*index).0 / 100 + 1 == target.0;
        let index = (0..8).find(is_there).expect("each has some of it");
        let chunk = ChunkId { inode: mine, generation: layout.generation, index };
        Scene { lab, program, sibling, thief, layout, granted, chunk, at, target, server, other }
    }

    fn calls(&self, chunk: ChunkId) -> Vec<(StorageRequest, bool)> {
        calls(self.target, &self.layout, chunk)
    }

    /// A read of the file.
    fn read(&self) -> StorageRequest {
        self.calls(self.chunk).swap_remove(3).0
    }

    /// What was granted, for this storage server.
    fn here(&self, granted: &GrantedCapability) -> SealedCapability {
        let seal = granted.seals.iter().find(|seal| seal.server == self.server).unwrap();
        SealedCapability { capability: granted.capability, seal: *seal }
    }

    fn good(&self) -> SealedCapability {
        self.here(&self.granted)
    }

    /// As metadata would make it.
    fn make(&self, capability: Capability, unsealed: Seal) -> Under {
        let good = self.good().seal;
        let sealing = sealing_keys(&root(&self.lab), good.key_epoch);
        let key = server_key(sealing.key(good.key_epoch).unwrap(), good.server);
        shown(SealedCapability { capability, seal: seal(&ready(&key), &capability, unsealed) })
    }

    fn is_unchanged(&self) {
        let content = fs::read(self.lab.path("m0/mine")).unwrap();
        assert!(content == vec![CONTENT; 8 << 20], "something was changed");
    }
}

fn shown(sealed: SealedCapability) -> Under {
    Under::Capability(Box::new(sealed))
}

/// Something that is not right: what, as which program, under what, for which chunk.
struct Wrong<'a> {
    what: &'static str,
    program: &'a Program,
    under: Under,
    chunk: ChunkId,
}

/// Everything that is not right.
fn wrong_ones(scene: &Scene) -> Vec<Wrong<'_>> {
    let Scene { program, sibling, thief, granted, chunk, .. } = scene;
    let (good, capability) = (scene.good(), granted.capability);
    let seal = good.seal;
    let elsewhere = *granted.seals.iter().find(|seal| seal.server != scene.server).unwrap();
    let of_other = scene.here(&program.open(scene.other, false).1);
    let of_thief = scene.here(&thief.open(scene.other, false).1);
    let of_sibling = scene.here(&sibling.open(chunk.inode, false).1);
    let term_ms = Capability::TERM.as_millis() as u64;
    assert!(
        seal.since_ms > term_ms,
        "this machine was started a moment ago: what has expired cannot be told"
    );
    let newer = ChunkId { generation: chunk.generation + 1, ..*chunk };
    let wrong = |what, under| Wrong { what, program, under, chunk: *chunk };
    let with = |seal| shown(SealedCapability { seal, ..good });
    let sealed = |what, seal| wrong(what, scene.make(capability, seal));
    let made = |what, capability| wrong(what, scene.make(capability, seal));
    vec![
        wrong("nothing", Under::Role),
        wrong("a session that has shown nothing", Under::Session(program.session)),
        wrong("somebody else's session", Under::Session(thief.session)),
        wrong("another file's", shown(of_other)),
        wrong("another session's of the same machine", shown(of_sibling)),
        wrong("another machine's", shown(of_thief)),
        Wrong { program: thief, ..wrong("a stolen one", shown(good)) },
        Wrong { program: sibling, ..wrong("another process's", shown(good)) },
        wrong("another storage server's", with(elsewhere)),
        wrong(
            "another storage server's, with the name of this one",
            with(Seal { server: scene.server, ..elsewhere }),
        ),
        wrong("without a hash", with(Seal { mac: [0; 32], ..seal })),
        wrong("another file's hash", with(of_other.seal)),
        Wrong { chunk: newer, ..wrong("another generation's", shown(good)) },
        sealed("expired", Seal { since_ms: seal.since_ms - term_ms, ..seal }),
        sealed("of another standing", Seal { standing: seal.standing ^ 1, ..seal }),
        sealed("of keys to come", Seal { key_epoch: seal.key_epoch + 5, ..seal }),
        made("of a term that is over", Capability { term_s: 0, ..capability }),
        made("of another file system", Capability { cluster: ClusterId([7; 16]), ..capability }),
        made("of a metadata server that is not heard of", Capability { granter: NodeId(99), ..capability }),
        made("without a right", Capability { rights: Rights(0), ..capability }),
    ]
}

#[test]
fn nothing_but_the_right_capability_opens_a_chunk() {
    if !can_mount("capabilities") {
        return;
    }
    let scene = Scene::new();
    let table = wrong_ones(&scene);
    for Wrong { what, program, under, chunk } in &table {
        for (request, _) in scene.calls(*chunk) {
            let answer = program.storage(scene.at, under.clone(), &request);
            assert_eq!(answer, Err(Errno::EACCES), "{what}: {request:?}");
        }
    }
    // What the table makes is good if nothing is wrong with it.
    let good = scene.good();
    let made = scene.make(good.capability, good.seal);
    assert_eq!(made, shown(good));
    assert!(scene.program.storage(scene.at, made, &scene.read()).is_ok());
    scene.is_unchanged();
}

#[test]
fn no_byte_of_a_capability_can_be_changed() {
    if !can_mount("forged capabilities") {
        return;
    }
    let scene = Scene::new();
    let read = scene.read();
    let whole = encode(&StorageCall::Call { under: shown(scene.good()), request: read.clone() });
    let tried = whole.len() - encode(&read).len();
    assert!(tried > 80, "{tried} bytes");
    for (byte, bit) in (0..tried).flat_map(|byte| [(byte, 1), (byte, 0x80)]) {
        let mut forged = whole.clone();
        forged[byte] ^= bit;
        match scene.program.send(scene.at, &forged, &read) {
            Err(NetError::Refused(_)) => {}
            Err(error) => panic!("byte {byte}: {error}"),
            Ok(answer) => {
                let answer: Result<StorageReply, Errno> = decode(answer.head(), "answer").unwrap();
                assert_eq!(answer, Err(Errno::EACCES), "byte {byte}");
            }
        }
    }
    assert!(scene.program.send(scene.at, &whole, &read).is_ok());
    assert!(scene.program.storage(scene.at, Under::Session(scene.program.session), &read).is_ok());
}

#[test]
fn what_is_right_is_shown_once_and_allows_what_it_says() {
    if !can_mount("capabilities that are good") {
        return;
    }
    let scene = Scene::new();
    let Scene { program, thief, sibling, at, .. } = &scene;
    for (request, is_change) in scene.calls(scene.chunk) {
        let answer = program.storage(*at, shown(scene.good()), &request);
        match is_change {
            true => assert_eq!(answer, Err(Errno::EACCES), "{request:?}"),
            false => assert!(answer.is_ok(), "{request:?}: {answer:?}"),
        }
        let again = program.storage(*at, Under::Session(program.session), &request);
        assert_eq!(again.is_ok(), !is_change, "{request:?}");
        // Not by others, also of the same machine, nor for other files.
        for someone in [thief, sibling] {
            let answer = someone.storage(*at, Under::Session(program.session), &request);
            assert_eq!(answer, Err(Errno::EACCES), "{request:?}");
        }
    }
    let (of_other, _) = scene.calls(ChunkId { inode: scene.other, ..scene.chunk }).swap_remove(3);
    assert_eq!(program.storage(*at, Under::Session(program.session), &of_other), Err(Errno::EACCES));
    scene.is_unchanged();
    // Opened for writing, it may write.
    let for_writing = scene.here(&program.open(scene.chunk.inode, true).1);
    assert_eq!(for_writing.capability.rights, Rights::of_open(true));
    assert!(program.storage(*at, shown(for_writing), &scene.calls(scene.chunk)[0].0).is_ok());
}

#[test]
fn metadata_gives_by_itself_what_the_session_has_open_and_nothing_else() {
    if !can_mount("capabilities that are asked for") {
        return;
    }
    let scene = Scene::new();
    let wanted = CapabilityWanted {
        session: scene.program.session,
        inode: scene.chunk.inode,
        generation: scene.layout.generation,
        server: scene.server,
        refused: None,
    };
    let asked = |wanted| scene.program.ask(&MetaCall::Capability(wanted));
    let MetaAnswer::Capability(given) = asked(wanted) else { panic!("none is given") };
    assert_eq!(given.capability, scene.granted.capability);
    let failed = MetaAnswer::Failed;
    let newer = wanted.generation + 1;
    assert_eq!(asked(CapabilityWanted { generation: newer, ..wanted }), failed(Errno::ESTALE));
    assert_eq!(asked(CapabilityWanted { inode: scene.other, ..wanted }), failed(Errno::EBADF));
    assert_eq!(asked(CapabilityWanted { session: scene.thief.session, ..wanted }), failed(Errno::ENOTCONN));
    assert_eq!(asked(CapabilityWanted { server: NodeId(99), ..wanted }), MetaAnswer::Later);
    // Not the one once more that was refused, but soon another one.
    let deadline = Instant::now() + Duration::from_secs(30);
    let (mut refused, mut count) = (given.seals[0], 0);
    while count == 0 {
        assert!(Instant::now() < deadline, "the one that was refused is never the newest");
        let sealed = Some((refused.standing, refused.since_ms));
        match asked(CapabilityWanted { refused: sealed, ..wanted }) {
            MetaAnswer::Later => count += 1,
            MetaAnswer::Capability(given) => {
                assert!(given.seals[0].since_ms > refused.since_ms);
                refused = given.seals[0];
            }
            other => panic!("{other:?}"),
        }
    }
    let sealed = Some((refused.standing, refused.since_ms));
    while asked(CapabilityWanted { refused: sealed, ..wanted }) == MetaAnswer::Later {
        assert!(Instant::now() < deadline, "there is never another one");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn it_is_worth_nothing_for_chunks_that_are_gone_a_session_that_has_ended_and_a_machine_that_was_removed() {
    if !can_mount("capabilities that are over") {
        return;
    }
    let scene = Scene::new();
    let Scene { lab, program, thief, sibling, at, .. } = &scene;
    // The file gets other chunks.
    let read = scene.read();
    let for_writing = scene.here(&program.open(scene.chunk.inode, true).1);
    assert!(program.storage(*at, shown(for_writing), &read).is_ok());
    let deadline = Instant::now() + Duration::from_secs(60);
    fs::File::create(lab.path("m0/mine")).unwrap();
    while program.storage(*at, Under::Session(program.session), &read).is_ok() {
        assert!(Instant::now() < deadline, "the chunks are gone, and may be read all the same");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (request, _) in scene.calls(scene.chunk) {
        assert_eq!(program.storage(*at, shown(for_writing), &request), Err(Errno::EACCES), "{request:?}");
    }
    // A session that has ended.
    let third = make_file(lab, "third");
    let of_sibling = scene.here(&sibling.open(third, false).1);
    let chunk = ChunkId { inode: third, generation: of_sibling.capability.generation, index: 0 };
    let read = &scene.calls(chunk)[3].0;
    assert!(sibling.storage(*at, shown(of_sibling), read).is_ok());
    lab.ashlar(&format!("session remove {} --identity @first", sibling.session.0)).expect(0);
    for under in [shown(of_sibling), Under::Session(sibling.session)] {
        assert_eq!(sibling.storage(*at, under, read), Err(Errno::EACCES));
    }
    // A machine that was removed.
    let of_thief = scene.here(&thief.open(third, false).1);
    assert!(thief.storage(*at, shown(of_thief), read).is_ok());
    lab.ashlar("node remove p2 --identity @first").expect(0);
    let deadline = Instant::now() + Duration::from_secs(30);
    let renew = || ask(&thief.meta, &MetaCall::Renew { session: thief.session, busy: Vec::new() });
    let head = encode(&StorageCall::Call { under: Under::Session(thief.session), request: read.clone() });
    // Its connections are ended, and it does not get others.
    while thief.send(*at, &head, read).is_ok() || renew().is_ok() {
        assert!(Instant::now() < deadline, "a machine that was removed is served");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn keys_are_in_no_log_and_files_of_keys_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let mut lab = Lab::start(1, 0);
    let kept = lab.path("oss0/keys");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!lab.path("mds/keys").exists(), "a metadata server keeps the keys of all nowhere");
    let root = root(&lab);
    let keys: Vec<SecretKey> =
        sealing_keys(&root, 2).0.into_iter().map(|(_, key)| key).chain([open_key(&root), root]).collect();
    let node = NodeId(
        fs::read_to_string(lab.path("oss0/node.json")).unwrap().lines().find_map(node_number).unwrap(),
    );
    let own: Vec<SecretKey> = keys[..2].iter().map(|key| server_key(key, node)).collect();
    let has = |bytes: &[u8], key: &SecretKey| {
        let hex: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{:?}", key.0);
        bytes.windows(32).any(|window| window == key.0)
            || [hex, list]
                .iter()
                .any(|text| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    let stored = fs::read(&kept).unwrap();
    assert!(own.iter().any(|key| has(&stored, key)), "the storage server keeps its own");
    assert!(!keys.iter().any(|key| has(&stored, key)), "and no other");
    lab.stop();
    for role in ["manager", "mds", "oss0"] {
        let log = fs::read(lab.path(&format!("{role}.log"))).unwrap();
        assert!(!keys.iter().chain(&own).any(|key| has(&log, key)), "{role}");
    }
}

fn node_number(line: &str) -> Option<u32> {
    line.trim().strip_prefix("\"node\":")?.trim().trim_end_matches(',').parse().ok()
}
