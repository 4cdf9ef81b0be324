//! Goal: the users of a client are at the servers who the policy of its node says, whatever its kernel lets them, and a node that may only read changes
//! nothing; a change of policy reaches mounts without a remount. Method: real servers and mounts, one of which is root everywhere and looks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_rpc::net::{Call, Link, Service, Wanted};
use ashlar_rpc::wire::{MetaAnswer, MetaCall, StorageCall, Under};
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{MetaReply, MetaRequest, SetAttr, StorageReply, StorageRequest};
use ashlar_types::{
    ChainId, ChunkId, Credentials, DescriptionId, Errno, InodeId, OpId, Role, SessionId, TargetId,
};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::cluster::{Lab, Role as Process};
use support::{Ended, can_mount, finish};

/// Within which a change of policy has to hold.
const CHANGE_MAX: Duration = Duration::from_secs(20);

/// A lab whose first mount is root everywhere, with a directory for all, and in it what another user has: a file with its inode and one in chunks.
fn lab(mounts: usize) -> Lab {
    let lab = Lab::start(1, mounts);
    fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let shared = lab.path("m0/shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    for (name, bytes) in [("small", 10), ("large", 1 << 20)] {
        let path = shared.join(name);
        fs::write(&path, vec![b'x'; bytes]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    }
    lab
}

/// Joins and mounts a node at `@NAME.mnt`, with these arguments of `ashlar token` besides.
#[track_caller]
fn mount(lab: &Lab, name: &str, policy: &str) -> (Process, PathBuf) {
    let token = lab.ashlar(&format!("token --role client {policy} --identity @first")).expect(0).stdout;
    lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
    let at = lab.path(&format!("{name}.mnt"));
    fs::create_dir(&at).unwrap();
    let process = lab.run(name, &format!("mount @{name}.mnt --identity @{name}"), "mounted");
    (process, at)
}

/// Runs `script` as a user of this machine, in `dir`.
#[track_caller]
fn sh(user: (u32, u32), groups: &str, dir: &Path, script: &str) -> Ended {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={}", user.0), format!("--regid={}", user.1)]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={groups}")),
    };
    finish(command.args(["env", "LC_ALL=C", "sh", "-c", script]).current_dir(dir))
}

const ROOT: (u32, u32) = (0, 0);
const USER: (u32, u32) = (1000, 1000);

/// Runs `script` as root of this machine; it must fail with `error`.
#[track_caller]
fn root_fails(dir: &Path, script: &str, error: &str) {
    let ended = sh(ROOT, "", dir, script);
    assert!(ended.code != Some(0) && ended.stderr.contains(error), "{script}: {}", ended.all());
}

/// User and group of a file.
fn owner(path: &Path) -> (u32, u32) {
    let attr = fs::symlink_metadata(path).unwrap();
    (attr.uid(), attr.gid())
}

#[track_caller]
fn soon(what: &str, is_so: impl FnMut() -> bool) {
    support::soon(CHANGE_MAX, what, is_so);
}

const ANONYMOUS: (u32, u32) = (65534, 65534);

#[test]
fn root_of_a_new_client_is_nobody_unless_an_administrator_says_otherwise() {
    if !can_mount("root of a client") {
        return;
    }
    let mut lab = lab(1);
    let (mut tenant, at) = mount(&lab, "tenant", "");
    let shown = lab.ashlar("node show tenant --json --identity @first").expect(0).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        shown["policy"],
        serde_json::json!({
            "squash": "root", "anonymous": { "uid": 65534, "gid": 65534 }, "map_uid": [], "map_gid": [],
            "outside": "refuse", "read_only": false, "subtree": null,
        })
    );
    let (all, mine) = (lab.path("m0/shared"), at.join("shared"));
    // Content that its owner has read is in this kernel's pages, and its names and attributes, too.
    sh(USER, "", &mine, "cat small large > /dev/null && echo more >> small").expect(0);
    for file in ["small", "large"] {
        for script in ["cat F", "echo x >> F", ": > F", "truncate -s 1 F", "touch -d @1 F"] {
            root_fails(&mine, &script.replace('F', file), "Permission denied");
        }
        let refused = "Operation not permitted";
        for script in [
            "rm F",
            "mv F G",
            "chown 0 F",
            "chgrp 0 F",
            "chmod 666 F",
            "setfattr -n trusted.a -v b F",
            "setfattr -n security.a -v b F",
            "setcap cap_chown+ep F",
        ] {
            root_fails(&mine, &script.replace('F', file), refused);
        }
        assert_eq!(owner(&all.join(file)), USER);
    }
    assert_eq!(fs::read(all.join("small")).unwrap(), b"xxxxxxxxxxmore\n");
    root_fails(&at, "mkdir d", "Permission denied");
    root_fails(&at, "ln shared/small l", "Permission denied");
    root_fails(&at, "chmod 777 .", "Operation not permitted");
    root_fails(&at, "setfattr -n ashlar.layout -v inline_bytes=0 .", "Operation not permitted");
    root_fails(&mine, "mknod null c 1 3", "Operation not permitted");
    // What it makes is the anonymous user's, and cannot be given away.
    sh(ROOT, "", &mine, "echo a > own && mkdir dir && mkfifo pipe && ln -s x link && cat own").expect(0);
    for name in ["own", "dir", "pipe", "link"] {
        assert_eq!(owner(&all.join(name)), ANONYMOUS, "{name}");
        assert_eq!(owner(&mine.join(name)), ANONYMOUS, "{name}");
    }
    root_fails(&mine, "chown 1000 own", "Operation not permitted");
    root_fails(&mine, "chgrp 0 own", "Operation not permitted");
    // Group 0 is nobody's, not even of others.
    for name in ["of-group-0", "of-group-5"] {
        fs::write(all.join(name), "x").unwrap();
        fs::set_permissions(all.join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    std::os::unix::fs::chown(all.join("of-group-5"), Some(0), Some(5)).unwrap();
    sh(USER, "0,5", &mine, "cat of-group-5").expect(0);
    assert_ne!(sh(USER, "0,5", &mine, "cat of-group-0").code, Some(0));
    assert_ne!(sh((1000, 0), "", &mine, "cat of-group-0").code, Some(0));
    // Writes of root take set-id bits away, as those of everybody without the capability.
    for (name, bytes) in [("set-id-small", 10), ("set-id-large", 1 << 20)] {
        fs::write(all.join(name), vec![b'x'; bytes]).unwrap();
        fs::set_permissions(all.join(name), fs::Permissions::from_mode(0o6777)).unwrap();
        sh(ROOT, "", &mine, &format!("echo y | dd of={name} conv=notrunc status=none")).expect(0);
        assert_eq!(fs::metadata(all.join(name)).unwrap().mode() & 0o7777, 0o777, "{name}");
    }
    tenant.stop();
    lab.stop();
}

/// Calls to servers as a program would make them that is not ours.
struct Stranger {
    meta: Link,
    storage: Link,
}

impl Stranger {
    fn new(lab: &Lab, name: &str) -> Stranger {
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
        Stranger { meta: link(1, Role::Meta), storage: link(2, Role::Storage) }
    }

    fn meta(&self, call: &MetaCall<'_>) -> MetaAnswer {
        let head = encode(call);
        decode(send(&self.meta, Service::Meta, &head, &[]).head(), "answer").unwrap()
    }

    fn open(&self) -> SessionId {
        match self.meta(&MetaCall::Open(None)) {
            MetaAnswer::Session(session, _) => session,
            other => panic!("no session: {other:?}"),
        }
    }

    fn call(&self, op: OpId, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        match self.meta(&MetaCall::Call { op, creds: Credentials::root(), slot: None, request }) {
            MetaAnswer::Reply(reply) | MetaAnswer::Opened(reply, _, _) => Ok(reply),
            MetaAnswer::Failed(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    fn storage(&self, request: &StorageRequest, payload: &[u8]) -> Result<StorageReply, Errno> {
        let call = StorageCall::Call { under: Under::Role, request: request.clone() };
        decode(send(&self.storage, Service::Storage, &encode(&call), payload).head(), "answer").unwrap()
    }
}

fn send(link: &Link, service: Service, head: &[u8], payload: &[u8]) -> ashlar_rpc::net::Answer {
    let call = Call { service, head, payload, is_once: false, may_repeat: false, is_urgent: false };
    link.call(&call, Instant::now() + Duration::from_secs(20)).unwrap()
}

#[test]
fn a_program_that_is_not_ours_gets_no_content_of_files_it_may_not_open() {
    if !can_mount("a program with the certificate of a client") {
        return;
    }
    let mut lab = lab(1);
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name tenant --identity @tenant", token.trim())).expect(0);
    let stranger = Stranger::new(&lab, "tenant");
    let session = stranger.open();
    let inode = InodeId(fs::metadata(lab.path("m0/shared/small")).unwrap().ino());
    let mut sequence = 0;
    let mut call = |request| {
        sequence += 1;
        stranger.call(OpId { session, sequence }, request)
    };
    let (handle, offset) = (DescriptionId(1), 0);
    let open = |write| MetaRequest::Open { inode, read: true, write, truncate: false, handle };
    assert_eq!(call(open(false)), Err(Errno::EACCES));
    assert_eq!(call(open(true)), Err(Errno::EACCES));
    let write = |inode| MetaRequest::WriteInline {
        inode,
        offset,
        data: b"y",
        append: false,
        kill_set_id: false,
        is_writeback: false,
    };
    assert_eq!(call(MetaRequest::ReadInline { inode, offset, len: 10 }), Err(Errno::EBADF));
    assert_eq!(call(write(inode)), Err(Errno::EBADF));
    for write in [false, true] {
        let request = MetaRequest::AcquireData { inode, write, is_writeback: false };
        assert_eq!(call(request), Err(Errno::EBADF));
    }
    let changes = SetAttr { size: Some(0), has_handle: true, ..SetAttr::default() };
    assert_eq!(call(MetaRequest::Setattr { inode, changes }), Err(Errno::EACCES));
    // What it may open it may read, and may not write if it has opened it for reading.
    fs::set_permissions(lab.path("m0/shared/small"), fs::Permissions::from_mode(0o666)).unwrap();
    call(open(false)).unwrap();
    let read = call(MetaRequest::ReadInline { inode, offset, len: 10 });
    assert!(matches!(read, Ok(MetaReply::Bytes(bytes)) if &bytes[..] == b"xxxxxxxxxx"));
    assert_eq!(call(write(inode)), Err(Errno::EBADF));
    assert_eq!(stranger.meta(&MetaCall::Close(session)), MetaAnswer::Done);
    assert_eq!(fs::read(lab.path("m0/shared/small")).unwrap(), b"xxxxxxxxxx");
    lab.stop();
}

#[test]
fn users_and_groups_are_mapped_there_and_back() {
    if !can_mount("users of a client that are others at the servers") {
        return;
    }
    let mut lab = lab(1);
    let maps = "--map-uid 1000-1999=5000,2500 --map-gid 1000-1999=6000";
    let (mut tenant, at) = mount(&lab, "tenant", maps);
    let (all, mine) = (lab.path("m0/shared"), at.join("shared"));
    sh(
        USER,
        "1001",
        &mine,
        "echo a > own && mkdir -m 700 dir && echo b > dir/in && cat own dir/in && chmod 640 own",
    )
    .expect(0);
    assert_eq!(owner(&all.join("own")), (5000, 6000));
    assert_eq!(sh(USER, "", &mine, "ls -ln own | awk '{print $3, $4}'").expect(0).stdout, "1000 1000\n");
    // By the groups he has there.
    sh(USER, "1001", &mine, "chgrp 1001 own").expect(0);
    assert_eq!(owner(&all.join("own")), (5000, 6001));
    assert_eq!(owner(&mine.join("own")), (1000, 1001));
    sh((1001, 1001), "", &mine, "cat own").expect(0);
    assert_ne!(sh((1001, 1002), "", &mine, "cat own").code, Some(0));
    // What belongs to nobody here is shown as the anonymous user's: also that of user 1000 of the servers.
    assert_eq!(owner(&mine.join("small")), ANONYMOUS);
    assert_ne!(sh(USER, "", &mine, "cat small").code, Some(0));
    std::os::unix::fs::chown(all.join("small"), Some(5001), Some(6001)).unwrap();
    soon("another owner", || owner(&mine.join("small")) == (1001, 1001));
    sh((1001, 1001), "", &mine, "cat small").expect(0);
    // Access lists.
    sh(USER, "", &mine, "setfacl -m u:1001:rw,g:1002:r own").expect(0);
    let list = |dir: &Path| sh(ROOT, "", dir, "getfacl -n own").expect(0).stdout;
    let there = list(&all);
    assert!(there.contains("user:5001:rw-") && there.contains("group:6002:r--"), "{there}");
    sh(ROOT, "", &all, "setfacl -m u:5002:r,u:42:r own").expect(0);
    soon("another list", || list(&mine).contains("user:1002:r--"));
    let here = list(&mine);
    assert!(here.contains("user:1001:rw-") && here.contains("user:65534:r--"), "{here}");
    let refused = sh(USER, "", &mine, "setfacl -b -m u:42:rw own");
    assert!(refused.stderr.contains("Invalid argument"), "{}", refused.all());
    sh((1001, 1001), "", &mine, "echo c >> own").expect(0);
    root_fails(&mine, "chown 42 own", "Invalid argument");
    // Outside of the ranges.
    for user in [(999, 1000), (2000, 1000), (5000, 1000), (1000, 999)] {
        let ended = sh(user, "", &mine, "echo a > outside");
        assert!(ended.stderr.contains("Permission denied"), "{user:?}: {}", ended.all());
    }
    sh((2500, 1000), "", &mine, "echo a > same").expect(0);
    assert_eq!(owner(&all.join("same")), (2500, 6000));
    sh(ROOT, "", &mine, "echo a > of-root").expect(0);
    assert_eq!(owner(&all.join("of-root")), ANONYMOUS);
    // While it is mounted.
    lab.ashlar("node policy tenant --outside squash --anonymous 77:88 --identity @first").expect(0);
    soon("outside", || sh((999, 1000), "", &mine, "echo a > outside").code == Some(0));
    assert_eq!(owner(&all.join("outside")), (77, 88));
    lab.ashlar("node policy tenant --map-uid 1000-1999=7000 --identity @first").expect(0);
    let attr = || owner(&mine.join("small")).0;
    soon("other ids of what is cached", || attr() == 77);
    std::os::unix::fs::chown(all.join("small"), Some(7003), None).unwrap();
    soon("another owner", || attr() == 1003);
    tenant.stop();
    lab.stop();
}

#[test]
fn a_node_that_may_only_read_changes_nothing() {
    if !can_mount("a node that may only read") {
        return;
    }
    let mut lab = lab(2);
    let (all, mine) = (lab.path("m0/shared"), lab.path("m1/shared"));
    let mut small = OpenOptions::new().read(true).append(true).open(mine.join("small")).unwrap();
    let mut large = OpenOptions::new().read(true).write(true).open(mine.join("large")).unwrap();
    small.write_all(b"before").unwrap();
    large.seek(SeekFrom::End(0)).unwrap();
    large.write_all(&vec![b'y'; 100_000]).unwrap();
    lab.ashlar("node policy c1 --read-only --identity @first").expect(0);
    soon("read-only", || {
        fs::create_dir(mine.join("d")).is_err_and(is_read_only) || fs::remove_dir(mine.join("d")).is_err()
    });
    for script in [
        "mkdir d2",
        "echo a > new",
        "echo a >> small",
        ": > large",
        "rm small",
        "mv small other",
        "ln small other",
        "ln -s a b",
        "mkfifo p",
        "chmod 777 small",
        "chown 5 small",
        "touch small",
        "truncate -s 5 large",
        "setfattr -n user.a -v b small",
        "setfacl -m u:5:r small",
    ] {
        let ended = sh(ROOT, "", &mine, script);
        assert!(ended.stderr.contains("Read-only file system"), "{script}: {}", ended.all());
    }
    // Through descriptors from before.
    assert!(small.write_all(b"after").is_err_and(is_read_only));
    assert!(large.write_all(b"after").is_err_and(is_read_only));
    assert!(large.set_len(3).is_err_and(is_read_only));
    // What was acknowledged before is there.
    soon("what was written", || fs::metadata(all.join("large")).unwrap().len() == (1 << 20) + 100_000);
    assert!(fs::read(all.join("large")).unwrap().ends_with(b"yyyy"));
    assert_eq!(fs::read(all.join("small")).unwrap(), b"xxxxxxxxxxbefore");
    // It reads, closes what it has read, and locks.
    let read = sh(ROOT, "", &mine, "cat small && cmp large large && flock small true && ls").expect(0).stdout;
    assert!(read.starts_with("xxxxxxxxxxbefore") && !read.contains("d2"), "{read}");
    let mut content = Vec::new();
    large.seek(SeekFrom::Start(0)).unwrap();
    large.read_to_end(&mut content).unwrap();
    assert_eq!(content.len(), (1 << 20) + 100_000);
    // Storage servers go by it themselves.
    let stranger = Stranger::new(&lab, "c1");
    let chunk =
        ChunkId { inode: InodeId(fs::metadata(all.join("large")).unwrap().ino()), generation: 1, index: 0 };
    let (target, chain, chunk_bytes, offset, len) = (TargetId(1), ChainId(0), 1 << 20, 0, 4096);
    let payload = vec![b'z'; 4096];
    for request in [
        StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums: Vec::new() },
        StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset, len },
        StorageRequest::Allocate { target, chunk, chain, chunk_bytes, offset, len },
    ] {
        let payload = if matches!(request, StorageRequest::Write { .. }) { &payload[..] } else { &[] };
        assert_eq!(stranger.storage(&request, payload), Err(Errno::EROFS), "{request:?}");
    }
    drop((small, large));
    lab.ashlar("node policy c1 --read-only=false --identity @first").expect(0);
    soon("writable", || fs::write(mine.join("again"), "x").is_ok());
    assert_eq!(fs::read(all.join("again")).unwrap(), b"x");
    lab.stop();
}

fn is_read_only(error: std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EROFS)
}

#[test]
fn a_policy_that_is_changed_reaches_mounts_which_keep_their_locks_and_open_files() {
    if !can_mount("a change of policy") {
        return;
    }
    let mut lab = lab(2);
    let mine = lab.path("m1/shared");
    let mut held = File::open(mine.join("small")).unwrap();
    let locked = File::open(mine.join("large")).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(locked.as_raw_fd(), libc::LOCK_EX) }, 0);
    sh(ROOT, "", &mine, "cat small large > /dev/null").expect(0);
    let said =
        lab.ashlar("node policy c1 --squash root --anonymous 70:80 --identity @first").expect(0).stdout;
    assert_eq!(said, "c1: root becomes 70:80\n");
    soon("root squashed", || File::open(mine.join("small")).is_err());
    root_fails(&mine, "cat large", "Permission denied");
    sh(ROOT, "", &mine, "echo a > own").expect(0);
    assert_eq!(owner(&lab.path("m0/shared/own")), (70, 80));
    // As after a chmod: what is open stays open, and what is locked stays locked.
    let mut content = String::new();
    held.read_to_string(&mut content).unwrap();
    assert_eq!(content, "xxxxxxxxxx");
    let other = File::open(lab.path("m0/shared/large")).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(other.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, -1);
    drop(locked);
    soon("unlocked", || {
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(other.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
    });
    drop((other, held));
    // A metadata server that is started anew goes by it from the beginning.
    lab.meta.kill();
    lab.ashlar("node policy c1 --squash all --identity @first").expect(0);
    lab.start_meta();
    sh(USER, "", &mine, "echo a > of-a-user").expect(0);
    assert_eq!(owner(&lab.path("m0/shared/of-a-user")), (70, 80));
    lab.ashlar("node policy c1 --squash none --identity @first").expect(0);
    soon("root is root", || fs::read(mine.join("small")).is_ok());
    let shown = lab.ashlar("node policy c1 --identity @first").expect(0).stdout;
    assert_eq!(shown, "root is root\n");
    // Who may not, and what contradicts itself.
    lab.ashlar("node policy c0 --squash none --identity @c1").refused(&["admin"]);
    lab.ashlar("node policy c1 --map-uid 1-5,5-9 --identity @first").refused(&["two ranges"]);
    lab.ashlar("node policy nobody --squash none --identity @first").refused(&["no node `nobody`"]);
    lab.ashlar("token --role client --map-gid 1-5,7=3 --identity @first").refused(&["two ranges"]);
    lab.ashlar("node policy c1 --map-uid 0-5 --identity @first").expect(2);
    lab.stop();
}
