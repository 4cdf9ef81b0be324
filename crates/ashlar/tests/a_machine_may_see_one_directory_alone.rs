//! Goal: a machine whose policy names a directory sees that directory as the root of what it mounts, and reaches nothing outside of it: neither by names, nor by
//! a program of its own that calls servers with the numbers of inodes outside. Method: real servers, two of them for metadata; real mounts, one of which sees everything and looks; and
//! a program that makes every call there is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_coord::local_file::LocalFile;
use ashlar_env::Disk;
use ashlar_env::os::OsDisk;
use ashlar_manager::{Manager, Secrets};
use ashlar_rpc::capability::{open_key, prove, ready, root_key};
use ashlar_rpc::net::{Answer, Call, Link, NetError, Service, Wanted};
use ashlar_rpc::wire::{CapabilityWanted, MetaAnswer, MetaCall, StorageCall, Under};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{
    LeaseSet, LockKind, LockRange, LockRequest, MetaReply, MetaRequest, Reclaim, ReclaimedFile, RenameFlags,
    SetAttr, StorageReply, StorageRequest, SyncScope, ToldClose,
};
use ashlar_types::{
    Attr, ChainId, ChunkId, Credentials, DescriptionId, Errno, FileLayout, FilesetId, InodeId, LayoutPolicy,
    LockOwner, Name, NodeId, OpId, OpenProof, ProvenOpen, Role, SessionId, TargetId, Timespec,
};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role as Process};
use support::{Ended, can_mount, finish};

/// Within which a change of policy has to hold.
const CHANGE_MAX: Duration = Duration::from_secs(30);

#[track_caller]
fn soon(what: &str, is_so: impl FnMut() -> bool) {
    support::soon(CHANGE_MAX, what, is_so);
}

#[track_caller]
fn sh(dir: &Path, script: &str) -> Ended {
    finish(Command::new("sh").args(["-c", script]).env("LC_ALL", "C").current_dir(dir))
}

fn inode(path: &Path) -> InodeId {
    InodeId(fs::symlink_metadata(path).unwrap().ino())
}

/// A lab whose first mount sees everything, with a tree in it of which tenants see parts: `tenants/a` and `tenants/b` with files in them, and `secret`.
fn lab(mounts: usize) -> Lab {
    let lab = Lab::start(1, mounts);
    let all = lab.path("m0");
    for directory in ["tenants/a/deep/deeper", "tenants/b", "secret/dir"] {
        fs::create_dir_all(all.join(directory)).unwrap();
    }
    for directory in ["tenants/a", "tenants/a/deep", "tenants/b", "secret", "."] {
        fs::write(all.join(directory).join("small"), directory).unwrap();
        fs::write(all.join(directory).join("large"), vec![b'x'; 1 << 20]).unwrap();
    }
    symlink("deep/small", all.join("tenants/a/link")).unwrap();
    fs::hard_link(all.join("tenants/a/small"), all.join("tenants/a/deep/again")).unwrap();
    lab
}

#[track_caller]
fn join(lab: &Lab, name: &str, policy: &str) -> Ended {
    let token =
        lab.ashlar(&format!("token --role client --squash none {policy} --identity @first")).expect(0);
    lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.stdout.trim())).expect(0);
    token
}

#[track_caller]
fn mount(lab: &Lab, name: &str, more: &str) -> (Process, PathBuf) {
    let at = lab.path(&format!("{name}.mnt"));
    fs::create_dir_all(&at).unwrap();
    let process = lab.run(name, &format!("mount @{name}.mnt --identity @{name} {more}"), "mounted");
    (process, at)
}

/// The names in a directory, with `.` and `..`, and their inodes.
fn list(directory: &Path) -> BTreeMap<String, u64> {
    let listed = sh(Path::new("/"), &format!("ls -ai '{}' 2> /dev/null", directory.display())).stdout;
    let line = |line: &str| {
        let (inode, name) = line.trim().split_once(' ')?;
        Some((name.to_owned(), inode.parse().ok()?))
    };
    listed.lines().filter_map(line).collect()
}

fn names(directory: &Path) -> Vec<String> {
    list(directory).into_keys().collect()
}

#[test]
fn the_directory_is_the_root_and_everything_works_in_it() {
    if !can_mount("a machine that sees one directory") {
        return;
    }
    let mut lab = lab(1);
    let all = lab.path("m0");
    let told = join(&lab, "tenant", "--subtree /tenants/a/");
    assert!(told.stderr.contains("1 files in /tenants/a have several names"), "{}", told.all());
    let (mut tenant, mine) = mount(&lab, "tenant", "");
    let theirs = all.join("tenants/a");
    let listed = list(&mine);
    let expected = [".", "..", "deep", "large", "link", "small"];
    assert_eq!(listed.keys().collect::<Vec<_>>(), expected);
    // The kernel shows what is above the mount point for `..`; what it was told is read without it.
    let above = fs::read_dir(&mine).unwrap().map(|entry| entry.unwrap().ino()).collect::<Vec<_>>();
    assert!(!above.contains(&inode(&all.join("tenants")).0));
    assert_eq!(fs::read_to_string(mine.join("small")).unwrap(), "tenants/a");
    assert_eq!(fs::read_to_string(mine.join("link")).unwrap(), "tenants/a/deep");
    assert_eq!(fs::read(mine.join("large")).unwrap().len(), 1 << 20);
    for outside in ["tenants", "secret", "b", "../b", "tenants/b/small"] {
        assert!(fs::symlink_metadata(mine.join(outside)).is_err() || outside.starts_with(".."), "{outside}");
    }
    // What is made on either side is there on the other.
    sh(
        &mine,
        "echo new > new && mkdir -p x/y && echo deep > x/y/z && ln new x/linked && mv x/y moved && mkfifo p",
    )
    .expect(0);
    assert_eq!(fs::read_to_string(theirs.join("moved/z")).unwrap(), "deep\n");
    assert_eq!(fs::metadata(theirs.join("x/linked")).unwrap().nlink(), 2);
    fs::write(theirs.join("deep/from-outside"), vec![b'y'; 2 << 20]).unwrap();
    assert_eq!(fs::read(mine.join("deep/from-outside")).unwrap(), vec![b'y'; 2 << 20]);
    fs::set_permissions(&mine, fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(fs::metadata(&theirs).unwrap().mode() & 0o7777, 0o1777, "the root is that directory");
    sh(&mine, "df . && df -i . && find . && du -s . && setfattr -n user.a -v b . && getfattr -n user.a .")
        .expect(0);
    // Names of others change, and this one sees it.
    fs::remove_file(theirs.join("new")).unwrap();
    assert!(!names(&mine).contains(&"new".to_owned()));
    // Across the border nothing is moved or linked, by anybody, so that nothing gets out by its number; `mv` copies.
    let crosses = |outcome: std::io::Result<()>| outcome.unwrap_err().raw_os_error() == Some(libc::EXDEV);
    assert!(crosses(fs::rename(theirs.join("small"), all.join("out"))));
    assert!(crosses(fs::rename(all.join("small"), theirs.join("in"))));
    assert!(crosses(fs::rename(theirs.join("deep"), all.join("out"))));
    assert!(crosses(fs::hard_link(all.join("small"), theirs.join("in"))));
    assert!(crosses(fs::hard_link(theirs.join("small"), all.join("out"))));
    sh(&all, "mv secret/small tenants/a/came && mv tenants/a/deep/large gone").expect(0);
    assert_eq!(fs::read_to_string(mine.join("came")).unwrap(), "secret");
    assert!(!mine.join("deep/large").exists());
    // The directory itself is moved, and stays what the machine sees.
    fs::rename(&theirs, all.join("tenants/renamed")).unwrap();
    assert_eq!(fs::read_to_string(mine.join("came")).unwrap(), "secret");
    sh(&mine, "echo later > later").expect(0);
    assert_eq!(fs::read_to_string(all.join("tenants/renamed/later")).unwrap(), "later\n");
    tenant.stop();
    // Servers that are started anew hold the machine to it.
    lab.meta.kill();
    lab.start_meta();
    let (mut tenant, mine) = mount(&lab, "tenant", "");
    assert!(names(&mine).contains(&"later".to_owned()));
    tenant.stop();
    lab.stop();
}

/// Calls to servers as a program would make them that is not ours.
struct Stranger {
    /// By node.
    meta: BTreeMap<u64, Link>,
    /// The node of each shard.
    shards: Vec<u64>,
    storage: Link,
    /// The first server opens the session, others are told of it.
    session: Option<SessionId>,
    sequence: u64,
}

impl Stranger {
    fn new(lab: &Lab, name: &str) -> Stranger {
        let caller = lab.client_program(name);
        let link = |address: SocketAddr, role| {
            let addresses = Box::new(move || (vec![address], Vec::new()));
            Link::new(caller.clone(), Wanted { role, node: None }, addresses, 1)
        };
        let json = |line: &str| -> serde_json::Value {
            serde_json::from_str(&lab.ashlar(line).expect(0).stdout).unwrap()
        };
        let nodes = json("node list --json --identity @first");
        let meta = nodes.as_array().unwrap().iter().filter_map(|node| {
            let address = node["listening"]["meta"][0].as_str()?.parse().unwrap();
            Some((node["id"].as_u64().unwrap(), link(address, Role::Meta)))
        });
        let shards = json("shard list --json --identity @first");
        let shards = shards.as_array().unwrap().iter().map(|shard| shard["node"]["id"].as_u64().unwrap());
        Stranger {
            meta: meta.collect(),
            shards: shards.collect(),
            storage: link(lab.address(2), Role::Storage),
            session: None,
            sequence: 0,
        }
    }

    fn server_of(&self, inode: InodeId) -> u64 {
        self.shards[(inode.0 >> 48) as usize]
    }

    fn ask(&self, server: u64, call: &MetaCall<'_>) -> Result<MetaAnswer, NetError> {
        let answer = send(&self.meta[&server], Service::Meta, &encode(call), &[])?;
        Ok(decode(answer.head(), "answer").unwrap())
    }

    /// A session at all metadata servers.
    fn open(&mut self) -> SessionId {
        for &server in self.meta.keys() {
            match self.ask(server, &MetaCall::Open(self.session)).unwrap() {
                MetaAnswer::Session(session, _) => self.session = Some(session),
                other => panic!("no session: {other:?}"),
            }
        }
        self.session.unwrap()
    }

    /// Says that it is there.
    fn renew(&self) {
        for &server in self.meta.keys() {
            let call = MetaCall::Renew { session: self.session.unwrap(), busy: Vec::new() };
            assert!(matches!(self.ask(server, &call), Ok(MetaAnswer::Renewed(_))));
        }
    }

    fn close(&self) {
        for &server in self.meta.keys() {
            assert_eq!(self.ask(server, &MetaCall::Close(self.session.unwrap())).unwrap(), MetaAnswer::Done);
        }
    }

    fn call(&mut self, about: InodeId, request: MetaRequest<'_>) -> Result<Result<MetaReply, Errno>, String> {
        self.sequence += 1;
        let op = OpId { session: self.session.unwrap(), sequence: self.sequence };
        let call = MetaCall::Call { op, creds: Credentials::root(), slot: None, request };
        loop {
            return match self.ask(self.server_of(about), &call) {
                Ok(MetaAnswer::Opened(mut reply, proof, _)) => {
                    if let MetaReply::Opened { open, .. } = &mut reply {
                        open.proof = Some(proof);
                    }
                    Ok(Ok(reply))
                }
                Ok(MetaAnswer::Reply(reply) | MetaAnswer::Granted(reply, _)) => Ok(Ok(reply)),
                Ok(MetaAnswer::Failed(errno)) => Ok(Err(errno)),
                Ok(MetaAnswer::Later) => {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Err(NetError::Refused(text)) => Err(text),
                other => panic!("{other:?}"),
            };
        }
    }

    fn storage(&self, under: Under, request: &StorageRequest) -> Result<StorageReply, Errno> {
        let call = StorageCall::Call { under, request: request.clone() };
        decode(send(&self.storage, Service::Storage, &encode(&call), &[]).unwrap().head(), "answer").unwrap()
    }
}

fn send(link: &Link, service: Service, head: &[u8], payload: &[u8]) -> Result<Answer, NetError> {
    let call = Call { service, head, payload, is_once: false, may_repeat: false, is_urgent: false };
    link.call(&call, Instant::now() + Duration::from_secs(20))
}

/// What a call about an inode outside must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// As for an inode that is not there.
    NotThere,
    /// It gives back what the session has, which is nothing.
    Nothing,
    /// Not for clients at all.
    Refused,
    /// It names no inode, or is looked at by itself below.
    Apart,
}

/// Every request is named, so that a new one is thought about.
fn outcome(request: &MetaRequest<'_>) -> Outcome {
    match request {
        MetaRequest::Lookup { .. }
        | MetaRequest::Getattr { .. }
        | MetaRequest::Setattr { .. }
        | MetaRequest::Create { .. }
        | MetaRequest::Mkdir { .. }
        | MetaRequest::Mknod { .. }
        | MetaRequest::Symlink { .. }
        | MetaRequest::Link { .. }
        | MetaRequest::Unlink { .. }
        | MetaRequest::Rmdir { .. }
        | MetaRequest::Rename { .. }
        | MetaRequest::Tmpfile { .. }
        | MetaRequest::Open { .. }
        | MetaRequest::Readlink { .. }
        | MetaRequest::Readdir { .. }
        | MetaRequest::Access { .. }
        | MetaRequest::Getxattr { .. }
        | MetaRequest::Listxattr { .. }
        | MetaRequest::Setxattr { .. }
        | MetaRequest::Removexattr { .. }
        | MetaRequest::ReadInline { .. }
        | MetaRequest::WriteInline { .. }
        | MetaRequest::AllocateInline { .. }
        | MetaRequest::ProposeLayout { .. }
        | MetaRequest::SetLayout { .. }
        | MetaRequest::AcquireData { .. }
        | MetaRequest::AcquireShared { .. }
        | MetaRequest::CommitWrite { .. }
        | MetaRequest::Sync(_)
        | MetaRequest::Lock { .. }
        | MetaRequest::LockWait { .. }
        | MetaRequest::LockTest(_)
        | MetaRequest::LayoutShow { .. }
        | MetaRequest::LayoutSet { .. }
        | MetaRequest::Slices { .. }
        | MetaRequest::Split { .. } => Outcome::NotThere,
        MetaRequest::Release { .. }
        | MetaRequest::Closes { .. }
        | MetaRequest::LockCancel { .. }
        | MetaRequest::LockRelease { .. }
        | MetaRequest::RecallDone { .. }
        | MetaRequest::WithdrawLayout { .. } => Outcome::Nothing,
        MetaRequest::SetFileset { .. } => Outcome::Refused,
        MetaRequest::Statfs
        | MetaRequest::MakeRoom
        | MetaRequest::SetattrRemoved { .. }
        | MetaRequest::Reclaim { .. } => Outcome::Apart,
    }
}

/// Every call that names an inode, with `x` for it and `inside` for another one where there are two.
fn calls_about(x: InodeId, inside: InodeId) -> Vec<MetaRequest<'static>> {
    let calls = [calls_with_names(x, inside), calls_without_names(x)].concat();
    let is_there = |name: &str| {
        let begins = |call: &MetaRequest<'_>| {
            format!("{call:?}").strip_prefix(name).is_some_and(|rest| !rest.starts_with(char::is_alphabetic))
        };
        calls.iter().any(begins)
    };
    // The list of all calls there are, which another test compares with the code.
    let list = include_str!("../../../docs/formats/messages.txt");
    let list = list.split_once("enum MetaRequest\n").unwrap().1;
    let named = list.lines().take_while(|line| line.starts_with("    "));
    let all: Vec<&str> = named.map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert!(all.len() > 40, "{all:?}");
    for name in all.into_iter().filter(|name| !["Reclaim", "SetattrRemoved"].contains(name)) {
        assert!(is_there(name), "no call is tried of {name}");
    }
    calls
}

fn calls_with_names(x: InodeId, inside: InodeId) -> Vec<MetaRequest<'static>> {
    let name = Name::new(b"small").unwrap();
    let fresh = Name::new(b"fresh").unwrap();
    let (handle, umask, mode) = (DescriptionId(1), 0, 0o777);
    let changes = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let rename = |(from_parent, from_name), (to_parent, to_name), flags| MetaRequest::Rename {
        from_parent,
        from_name,
        to_parent,
        to_name,
        flags,
    };
    let create = |name, exclusive| MetaRequest::Create {
        parent: x,
        name,
        mode,
        umask,
        exclusive,
        read: true,
        write: true,
        truncate: true,
        handle,
    };
    let open = |write, truncate| MetaRequest::Open { inode: x, read: true, write, truncate, handle };
    vec![
        MetaRequest::Lookup { parent: x, name },
        MetaRequest::Lookup { parent: x, name: fresh },
        MetaRequest::Getattr { inode: x },
        MetaRequest::Setattr { inode: x, changes },
        MetaRequest::Setattr {
            inode: x,
            changes: SetAttr { size: Some(0), has_handle: true, ..SetAttr::default() },
        },
        create(name, false),
        create(fresh, true),
        MetaRequest::Mkdir { parent: x, name: fresh, mode, umask },
        MetaRequest::Mknod { parent: x, name: fresh, mode: 0o010_777, umask, rdev: 0 },
        MetaRequest::Symlink { parent: x, name: fresh, target: b"/" },
        MetaRequest::Link { inode: x, parent: inside, name: fresh },
        MetaRequest::Link { inode: inside, parent: x, name: fresh },
        MetaRequest::Unlink { parent: x, name },
        MetaRequest::Rmdir { parent: x, name },
        rename((x, name), (inside, fresh), RenameFlags::Replace),
        rename((inside, name), (x, fresh), RenameFlags::Replace),
        rename((inside, name), (x, name), RenameFlags::NoReplace),
        rename((inside, name), (x, name), RenameFlags::Exchange),
        MetaRequest::Tmpfile { parent: x, mode, umask, handle },
        open(false, false),
        open(true, true),
        MetaRequest::Release { inode: x, handle },
        MetaRequest::Closes { of: vec![ToldClose { inode: x, handle, atime: Some(Timespec::default()) }] },
    ]
}

fn calls_without_names(x: InodeId) -> Vec<MetaRequest<'static>> {
    let range = LockRange { start: 0, end: 9 };
    let lock = |kind| LockRequest { inode: x, owner: LockOwner(1), pid: 1, kind, range, is_flock: false };
    let (through, offset) = (DescriptionId(1), 0);
    let layout = FileLayout { generation: 1, chunk_bytes: 65_536, chains: smallvec::smallvec![ChainId(0)] };
    vec![
        MetaRequest::Readlink { inode: x },
        MetaRequest::Readdir { directory: x, after: 0, bytes_max: 4096, with_attributes: true },
        MetaRequest::Access { inode: x, mask: 4 },
        MetaRequest::Getxattr { inode: x, name: b"user.a" },
        MetaRequest::Listxattr { inode: x },
        MetaRequest::Setxattr {
            inode: x,
            name: b"user.a",
            value: b"b",
            create: false,
            replace: false,
            kill_setgid: false,
        },
        MetaRequest::Removexattr { inode: x, name: b"user.a" },
        MetaRequest::ReadInline { inode: x, offset, len: 10 },
        MetaRequest::WriteInline {
            inode: x,
            offset,
            data: b"overwritten",
            append: false,
            kill_set_id: false,
            is_writeback: false,
        },
        MetaRequest::AllocateInline { inode: x, mode: 0, offset, len: 10 },
        MetaRequest::ProposeLayout { inode: x },
        MetaRequest::SetLayout { inode: x, layout, blocks: 0, is_synced: true },
        MetaRequest::AcquireData { inode: x, write: false, is_writeback: false },
        MetaRequest::AcquireData { inode: x, write: true, is_writeback: false },
        MetaRequest::AcquireShared { inode: x },
        MetaRequest::Slices { directory: x },
        MetaRequest::Split { directory: x, slices: 2, of_new: false },
        MetaRequest::Split { directory: x, slices: 2, of_new: true },
        MetaRequest::CommitWrite {
            inode: x,
            generation: None,
            size_at_least: 1 << 30,
            blocks_delta: 0,
            mtime: Some(Timespec::default()),
            atime: None,
            kill_set_id: true,
            keeps_capability: false,
            done: false,
        },
        MetaRequest::Sync(SyncScope::File { inode: x, generation: None }),
        MetaRequest::Lock { request: lock(LockKind::Write), through },
        MetaRequest::LockWait { request: lock(LockKind::Write), through, ticket: 5 },
        MetaRequest::LockCancel { inode: x, ticket: 5 },
        MetaRequest::LockTest(lock(LockKind::Write)),
        MetaRequest::LockRelease { inode: x, owner: LockOwner(1), through: None, is_flock: false },
        MetaRequest::LayoutShow { inode: x },
        MetaRequest::LayoutSet { inode: x, policy: LayoutPolicy::root_default() },
        MetaRequest::RecallDone { inode: x, id: 1 },
        MetaRequest::WithdrawLayout { inode: x, generation: 1 },
        MetaRequest::SetFileset { inode: x, from: FilesetId(0), fileset: FilesetId(1), slices: 0 },
        MetaRequest::Statfs,
        MetaRequest::MakeRoom,
    ]
}

/// The inode whose server is asked.
fn asked_at(request: &MetaRequest<'_>, x: InodeId) -> InodeId {
    match request.addressee() {
        ashlar_types::message::Addressee::Home(inode) => inode,
        _ => x,
    }
}

/// What there is outside, as whoever sees everything sees it.
fn picture(all: &Path) -> String {
    let script = "cd \"$1\" && find . -path ./tenants/a -prune -o -printf '%p %i %m %n %s %U %G %T@ %C@\\n' | sort; \
                  find . -path ./tenants/a -prune -o -type f -print0 | sort -z | xargs -0 md5sum; getfattr -R -d -m - secret";
    finish(Command::new("sh").args(["-c", script, "sh"]).arg(all)).expect(0).stdout
}

#[test]
fn a_program_that_makes_every_call_reaches_nothing_outside() {
    if !can_mount("a program with the certificate of a machine that sees one directory") {
        return;
    }
    let mut lab = lab(1);
    let all = lab.path("m0");
    lab.join_meta("mds2");
    let address = Lab::free_address();
    let mut second =
        lab.run("mds2", &format!("meta --meta @meta2 --listen {address} --identity @mds2"), "serves");
    soon("two metadata servers", || {
        let text = lab.ashlar("shard list --json --identity @first").expect(0).stdout;
        let shards: serde_json::Value = serde_json::from_str(&text).unwrap();
        let nodes: std::collections::BTreeSet<u64> =
            shards.as_array().unwrap().iter().map(|shard| shard["node"]["id"].as_u64().unwrap()).collect();
        nodes.len() == 2
    });
    // On both of them, in and outside.
    for at in 0..64 {
        for above in ["tenants/a", "secret"] {
            let directory = all.join(above).join(format!("d{at}"));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("small"), "content").unwrap();
        }
    }
    join(&lab, "tenant", "--subtree /tenants/a");
    let mut stranger = Stranger::new(&lab, "tenant");
    stranger.open();
    let mut at_server: BTreeMap<u64, [Vec<InodeId>; 2]> = BTreeMap::new();
    for (side, above) in ["tenants/a", "secret"].into_iter().enumerate() {
        for at in 0..64 {
            let directory = all.join(above).join(format!("d{at}"));
            let found = &mut at_server.entry(stranger.server_of(inode(&directory))).or_default()[side];
            found.extend([inode(&directory), inode(&directory.join("small"))]);
        }
    }
    assert_eq!(at_server.len(), 2, "on both servers");
    let before = picture(&all);
    let inside: Vec<InodeId> = at_server.values().map(|[inside, _]| inside[0]).collect();
    let mut outside: Vec<InodeId> =
        at_server.values().flat_map(|[_, outside]| outside[..2].to_vec()).collect();
    let named =
        ["", "tenants", "tenants/b", "tenants/b/small", "tenants/b/large", "secret", "secret/large", "small"];
    outside.extend(named.map(|name| inode(&all.join(name))));
    // Files that others have open and locked, too.
    let held = OpenOptions::new().read(true).write(true).open(all.join("secret/large")).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX) }, 0);
    // Who may see everything is told of them.
    join(&lab, "free", "");
    let mut free = Stranger::new(&lab, "free");
    free.open();
    for &x in &outside {
        assert!(matches!(free.call(x, MetaRequest::Getattr { inode: x }), Ok(Ok(MetaReply::Attr { .. }))));
    }
    free.close();
    let (mut faults, mut count) = (Vec::new(), 0);
    for &x in &outside {
        stranger.renew();
        for &inside in &inside {
            for request in calls_about(x, inside) {
                count += 1;
                let expected = outcome(&request);
                let answer = stranger.call(asked_at(&request, x), request.clone());
                let is_good = match expected {
                    Outcome::NotThere => answer == Ok(Err(Errno::ESTALE)),
                    Outcome::Nothing if answer == Ok(Ok(MetaReply::Closed { gone: Vec::new() })) => true,
                    Outcome::Nothing => {
                        matches!(
                            answer,
                            Ok(Ok(MetaReply::Done | MetaReply::Removed { last: None, .. }) | Err(_))
                        )
                    }
                    Outcome::Refused => answer.as_ref().is_err_and(|text| text.contains("administrator")),
                    Outcome::Apart => answer.is_ok(),
                };
                if !is_good {
                    faults.push(format!("{request:?}: {answer:?}"));
                }
            }
        }
    }
    assert!(faults.is_empty() && count > 500, "{count} calls\n{}", faults.join("\n"));
    is_told_of_nothing_else(&mut stranger, &lab, (&inside, &outside));
    drop(held);
    assert_eq!(picture(&all), before, "nothing outside has changed");
    second.stop();
    lab.stop();
}

/// Proofs that a node has files open for writing, as metadata servers make them.
fn proofs(lab: &Lab, node: &str) -> impl Fn(InodeId, Timespec) -> OpenProof {
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new(lab.path("state")));
    let manager = Manager::open(&disk, "", Box::new(LocalFile::new(disk.clone(), ""))).unwrap();
    let secrets: Secrets = decode(&manager.secrets(), "secrets").unwrap();
    let cluster = secrets.cluster;
    let key = ready(&open_key(&root_key(secrets.ca_key_pem.as_bytes(), cluster)));
    let text = fs::read_to_string(lab.path(node).join("node.json")).unwrap();
    let known: serde_json::Value = serde_json::from_str(&text).unwrap();
    let node = NodeId(known["node"].as_u64().unwrap() as u32);
    move |inode, born| prove(&key, &ProvenOpen { cluster, node, inode, born, write: true })
}

/// What is told to servers that were started anew, capabilities, and what is listed at the border.
fn is_told_of_nothing_else(stranger: &mut Stranger, lab: &Lab, (inside, outside): (&[InodeId], &[InodeId])) {
    let all = lab.path("m0");
    let large = inode(&all.join("secret/large"));
    let mine = inode(&all.join("tenants/a/large"));
    let session = stranger.session.unwrap();
    let handles = || vec![(DescriptionId(7), true)];
    let (proof, mut free) = (proofs(lab, "tenant"), Stranger::new(lab, "free"));
    free.open();
    let mut born = |inode: &InodeId| match free.call(*inode, MetaRequest::Getattr { inode: *inode }) {
        Ok(Ok(MetaReply::Attr { attr, .. })) => (*inode, attr.btime),
        other => panic!("{other:?}"),
    };
    let born: BTreeMap<InodeId, Timespec> = inside.iter().chain(outside).map(&mut born).collect();
    free.close();
    for (number, &server) in stranger.meta.keys().cloned().collect::<Vec<_>>().iter().enumerate() {
        let own: Vec<InodeId> = outside
            .iter()
            .chain(inside)
            .copied()
            .filter(|inode| stranger.server_of(*inode) == server)
            .collect();
        // As if it had had all of it open before the policy came.
        let file = |inode: &InodeId| ReclaimedFile {
            inode: *inode,
            handles: handles(),
            leases: LeaseSet::CONTENT,
            proof: Some(proof(*inode, born[inode])),
        };
        let part = Reclaim::Files(own.iter().map(file).collect());
        let incarnation = match stranger.ask(server, &MetaCall::Open(Some(session))).unwrap() {
            MetaAnswer::Session(_, incarnation) => incarnation,
            other => panic!("{other:?}"),
        };
        let request = MetaRequest::Reclaim { server: NodeId(server as u32), incarnation, part };
        let Ok(Ok(MetaReply::Reclaimed { files })) = stranger.call(own[0], request) else {
            panic!("server {number} does not take what is told")
        };
        assert_eq!(files.len(), own.len());
        for (inode, answer) in own.iter().zip(files) {
            assert_eq!(answer.is_ok(), inside.contains(inode), "{inode}: {answer:?}");
        }
        let range = LockRange { start: 0, end: 9 };
        let lock = |inode| LockRequest {
            inode,
            owner: LockOwner(1),
            pid: 1,
            kind: LockKind::Write,
            range,
            is_flock: false,
        };
        let part = Reclaim::Locks(own.iter().map(|inode| (lock(*inode), DescriptionId(7))).collect());
        let request = MetaRequest::Reclaim { server: NodeId(server as u32), incarnation, part };
        assert!(stranger.call(own[0], request).unwrap().is_ok());
    }
    let wanted = |inode| CapabilityWanted { session, inode, generation: 1, server: NodeId(2), refused: None };
    let of_large = stranger.ask(stranger.server_of(large), &MetaCall::Capability(wanted(large))).unwrap();
    assert_eq!(of_large, MetaAnswer::Failed(Errno::EBADF));
    let read = |inode| StorageRequest::Read {
        target: TargetId(1),
        chunk: ChunkId { inode, generation: 1, index: 0 },
        chain: ChainId(0),
        chunk_bytes: 1 << 20,
        offset: 0,
        len: 4096,
        want_sums: false,
    };
    for under in [Under::Role, Under::Session(session)] {
        assert_eq!(stranger.storage(under, &read(large)).unwrap_err(), Errno::EACCES);
    }
    // The same calls about what is inside are carried out.
    let open = MetaRequest::Open {
        inode: mine,
        read: true,
        write: false,
        truncate: false,
        handle: DescriptionId(9),
    };
    assert!(matches!(stranger.call(mine, open), Ok(Ok(MetaReply::Opened { .. }))));
    let root = inode(&all.join("tenants/a"));
    let listing = MetaRequest::Readdir { directory: root, after: 0, bytes_max: 4096, with_attributes: true };
    let Ok(Ok(MetaReply::Entries { entries, .. })) = stranger.call(root, listing) else {
        panic!("no listing")
    };
    let above = entries.iter().find(|entry| &entry.name[..] == b"..").unwrap();
    assert_eq!((above.inode, &above.attr), (root, &None::<Attr>), "nothing is above");
}

#[test]
fn a_policy_that_comes_or_goes_holds_for_mounts_that_are_there() {
    if !can_mount("a subtree that comes while it is mounted") {
        return;
    }
    let mut lab = lab(2);
    let (all, mine) = (lab.path("m0"), lab.path("m1"));
    let mut outside = OpenOptions::new().read(true).write(true).open(mine.join("secret/large")).unwrap();
    let mut inside = OpenOptions::new().read(true).append(true).open(mine.join("tenants/a/small")).unwrap();
    let locked = File::open(mine.join("secret/small")).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(locked.as_raw_fd(), libc::LOCK_EX) }, 0);
    sh(&mine, "find . > /dev/null; cat secret/small tenants/a/deep/small > /dev/null").expect(0);
    outside.write_all(b"before").unwrap();
    let said = lab.ashlar("node policy c1 --subtree /tenants/a --identity @first").expect(0).stdout;
    assert_eq!(said, "c1: root is root, sees /tenants/a alone\n");
    soon("the directory is the root", || names(&mine) == [".", "..", "deep", "large", "link", "small"]);
    soon("nothing else", || fs::metadata(mine.join("secret")).is_err());
    // What was open outside is shut, and what was locked goes to others.
    let mut content = Vec::new();
    soon("no reading outside", || {
        content.clear();
        outside.seek(SeekFrom::Start(0)).and_then(|_| outside.read_to_end(&mut content)).is_err()
    });
    assert!(outside.seek(SeekFrom::Start(0)).and_then(|_| outside.write_all(b"after")).is_err());
    assert!(
        outside.sync_all().is_err() || fs::read(all.join("secret/large")).unwrap().starts_with(b"before")
    );
    assert!(fs::read(all.join("secret/large")).unwrap().starts_with(b"before"));
    let other = File::open(all.join("secret/small")).unwrap();
    soon("unlocked", || {
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(other.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
    });
    // What is inside goes on.
    inside.write_all(b" and more").unwrap();
    assert_eq!(fs::read_to_string(all.join("tenants/a/small")).unwrap(), "tenants/a and more");
    sh(&mine, "mkdir made && echo x > made/file && cat made/file").expect(0);
    let shown = lab.ashlar("node show c1 --json --identity @first").expect(0).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["policy"]["subtree"]["path"], "/tenants/a");
    assert_eq!(shown["policy"]["subtree"]["inode"], inode(&all.join("tenants/a")).0);
    // Another one, and none.
    lab.ashlar("node policy c1 --subtree /tenants/b --identity @first").expect(0);
    soon("another directory", || names(&mine) == [".", "..", "large", "small"]);
    drop((outside, inside, locked, other));
    lab.ashlar("node policy c1 --subtree none --identity @first").expect(0);
    soon("everything", || names(&mine).contains(&"secret".to_owned()));
    assert_eq!(lab.ashlar("node policy c1 --identity @first").expect(0).stdout, "root is root\n");
    // One that is removed while it is seen: nothing is there any more, and a mount says why.
    fs::create_dir(all.join("short-lived")).unwrap();
    lab.ashlar("node policy c1 --subtree /short-lived --identity @first").expect(0);
    soon("an empty directory", || names(&mine) == [".", ".."]);
    fs::remove_dir(all.join("short-lived")).unwrap();
    soon("nothing", || fs::write(mine.join("x"), "x").is_err() && fs::read_dir(&mine).is_err());
    lab.mounts[1].stop();
    let refused = lab.ashlar("mount @m1 --identity @c1");
    refused.refused(&["/short-lived", "was removed", "--subtree PATH"]);
    lab.stop();
}

#[test]
fn subtrees_may_be_inside_of_each_other_and_what_is_none_is_refused() {
    if !can_mount("subtrees inside of each other") {
        return;
    }
    let mut lab = lab(1);
    let all = lab.path("m0");
    let token = |path: &str| lab.ashlar(&format!("token --role client --subtree {path} --identity @first"));
    token("/tenants/nobody").refused(&["/tenants/nobody", "`nobody` is missing"]);
    token("/tenants/a/small").refused(&["`small` is not a directory"]);
    token("/tenants/a/link").refused(&["`link` is a symbolic link"]);
    assert!(token("tenants/a").expect(2).stderr.contains("begin with `/`"));
    assert!(token("/tenants/../secret").expect(2).stderr.contains("`..`"));
    lab.ashlar("node policy nobody --subtree /tenants --identity @first").refused(&["no node `nobody`"]);
    lab.ashlar("node policy c0 --subtree /tenants --identity @c0").refused(&["admin"]);
    // A file of two subtrees is of the first.
    fs::hard_link(all.join("tenants/a/small"), all.join("secret/shared")).unwrap();
    // The inner one first, then the one around it, then one in between.
    join(&lab, "inner", "--subtree /tenants/a/deep");
    join(&lab, "outer", "--subtree /tenants");
    join(&lab, "middle", "--subtree /tenants/a");
    join(&lab, "again", "--subtree /tenants/a/deep");
    let told = join(&lab, "second", "--subtree /secret");
    assert!(told.stderr.contains("1 files in /secret have names in another subtree"), "{}", told.all());
    let (mut second, at_second) = mount(&lab, "second", "");
    assert!(fs::read(at_second.join("shared")).is_err(), "it is of another subtree");
    assert_eq!(fs::read_to_string(at_second.join("small")).unwrap(), "secret");
    second.stop();
    let (mut inner, at_inner) = mount(&lab, "inner", "");
    let (mut outer, at_outer) = mount(&lab, "outer", "");
    let (mut middle, at_middle) = mount(&lab, "middle", "");
    let (mut again, at_again) = mount(&lab, "again", "");
    fs::write(at_inner.join("deeper/seen"), "by all").unwrap();
    for place in
        [at_outer.join("a/deep"), at_middle.join("deep"), at_again.clone(), all.join("tenants/a/deep")]
    {
        assert_eq!(fs::read_to_string(place.join("deeper/seen")).unwrap(), "by all", "{}", place.display());
        fs::write(place.join("deeper/seen"), "by all").unwrap();
    }
    sh(&at_outer, "find . && mkdir b/new && rm -r b/new && mv a/deep/deeper/seen a/deep/moved").expect(0);
    assert_eq!(names(&at_middle), [".", "..", "deep", "large", "link", "small"]);
    assert!(fs::rename(at_outer.join("b/small"), at_outer.join("a/b")).is_err(), "a border inside");
    assert_eq!(fs::read_to_string(at_inner.join("moved")).unwrap(), "by all");
    // A part of what a machine may see is shown without a policy of its own.
    outer.stop();
    let (mut outer, at_outer) = mount(&lab, "outer", "--subdirectory a/deep");
    assert!(names(&at_outer).contains(&"moved".to_owned()) && !names(&at_outer).contains(&"a".to_owned()));
    fs::write(at_outer.join("through"), "x").unwrap();
    assert!(at_inner.join("through").exists());
    outer.stop();
    for (path, word) in [
        ("nowhere", "there is no `nowhere`"),
        ("a/small", "is not a directory"),
        ("../x", "cannot be the name"),
    ] {
        lab.ashlar(&format!("mount @outer.mnt --identity @outer --subdirectory {path}")).refused(&[word]);
    }
    [&mut inner, &mut middle, &mut again].into_iter().for_each(Process::stop);
    // What a machine may see shows in the event log.
    let events = lab.ashlar("event list --identity @first").expect(0).stdout;
    assert!(events.contains("node-joined"), "{events}");
    // The check of the file system finds nothing wrong with borders.
    lab.stop();
    for file in ["cluster-state", "secrets"] {
        fs::copy(lab.path("state").join(file), lab.path("meta").join(file)).unwrap();
    }
    lab.ashlar("fsck --meta @meta --data @d0").expect(0);
}

/// Programs make, rename, link and remove in a tree while it becomes a subtree. They may be told that a border is in between, for a moment, and nothing else.
#[test]
fn a_tree_in_use_becomes_a_subtree_as_a_whole() {
    if !can_mount("a subtree that is made of a tree in use") {
        return;
    }
    let mut lab = lab(2);
    let all = lab.path("m0");
    let top = all.join("tenants/busy");
    for at in 0..40 {
        let directory = top.join(format!("d{at}/e"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..20 {
            fs::write(directory.join(format!("f{file}")), "content").unwrap();
        }
    }
    let is_over = AtomicBool::new(false);
    let work = |mount: &str, number: u64| {
        let top = lab.path(mount).join("tenants/busy");
        let (mut done, mut state) = (0u64, number);
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        while !is_over.load(Relaxed) {
            let place = |at: u64| top.join(format!("d{at}"));
            let (from, to) = (place(draw(40)), place(draw(40)));
            let (own, other) = (format!("own{number}-{}", draw(8)), format!("own{number}-{}", draw(8)));
            let outcome = match draw(6) {
                0 => fs::write(from.join(&own), "x"),
                1 => fs::create_dir(from.join(&own)),
                2 => fs::rename(from.join(&own), to.join(&other)),
                3 => fs::hard_link(from.join(&own), to.join(&other)),
                4 => fs::remove_file(from.join(&own)),
                _ => fs::remove_dir(from.join(&own)),
            };
            let errno = outcome.err().and_then(|error| error.raw_os_error());
            // What such calls may say on any file system, and the border.
            let may_be = [
                libc::ENOENT,
                libc::EEXIST,
                libc::ENOTEMPTY,
                libc::EISDIR,
                libc::ENOTDIR,
                libc::EPERM,
                libc::EXDEV,
            ];
            assert!(errno.is_none_or(|errno| may_be.contains(&errno)), "{errno:?}");
            done += 1;
        }
        done
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..4)
            .map(|number| scope.spawn(move || work(["m0", "m1"][number as usize % 2], number + 1)))
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        let token = lab.ashlar("token --role client --squash none --subtree /tenants/busy --identity @first");
        std::thread::sleep(Duration::from_millis(300));
        is_over.store(true, Relaxed);
        let done: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(done > 100, "{done} calls");
        lab.ashlar(&format!("join {} --name tenant --identity @tenant", token.expect(0).stdout.trim()))
            .expect(0);
    });
    let (mut tenant, mine) = mount(&lab, "tenant", "");
    let tree = |top: &Path| {
        sh(top, "find . -printf '%p %i %n %y\n' | sort | sed 's/^. [0-9]* /. /'").expect(0).stdout
    };
    assert_eq!(tree(&mine), tree(&top), "all of it is inside");
    sh(&mine, "find . -type f -print0 | xargs -0 cat > /dev/null && mv d1/e d2/moved && rm -r d3").expect(0);
    tenant.stop();
    lab.stop();
}
