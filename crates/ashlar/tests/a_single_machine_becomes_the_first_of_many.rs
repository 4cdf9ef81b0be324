//! Goal: `ashlar promote` makes the file system of one machine one of many servers: every file is there, nothing was copied, `ashlar up` says what to do
//! instead, other machines join, and an attempt that was interrupted is begun anew.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../coord/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod etcd;
mod support;

use etcd::certificates::Authority;
use etcd::members::Etcd;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};
use support::cluster::{Role, run};
use support::{PATIENCE, ashlar, can_mount};

/// Starts a role in `dir` and waits until it says `ready`.
#[track_caller]
fn start(dir: &Path, name: &str, line: &str, ready: &str) -> Role {
    run(dir, name, &line.split(' ').collect::<Vec<_>>(), ready)
}

fn fill(mnt: &Path) {
    fs::create_dir_all(mnt.join("a/b")).unwrap();
    for at in 0..40 {
        fs::write(mnt.join(format!("a/small{at}")), format!("content {at}")).unwrap();
    }
    let large = File::create(mnt.join("a/b/large")).unwrap();
    for at in 0..5u64 {
        large.write_all_at(&vec![at as u8 + 1; 1 << 20], at << 20).unwrap();
    }
    fs::hard_link(mnt.join("a/small0"), mnt.join("link")).unwrap();
    std::os::unix::fs::symlink("a/b/large", mnt.join("symlink")).unwrap();
}

fn check(mnt: &Path) {
    for at in 0..40 {
        assert_eq!(fs::read_to_string(mnt.join(format!("a/small{at}"))).unwrap(), format!("content {at}"));
    }
    let large = fs::read(mnt.join("symlink")).unwrap();
    assert_eq!(large.len(), 5 << 20);
    assert!(
        large.chunks(1 << 20).enumerate().all(|(at, part)| part.iter().all(|byte| *byte == at as u8 + 1))
    );
    assert_eq!(fs::metadata(mnt.join("link")).unwrap().nlink(), 2);
}

/// A directory with those of two targets and two mounts.
fn place() -> tempfile::TempDir {
    let tmp = tempfile::tempdir().unwrap();
    for name in ["d1", "d2", "mnt", "mnt2"] {
        fs::create_dir(tmp.path().join(name)).unwrap();
    }
    tmp
}

#[test]
fn every_file_is_there_and_nothing_was_copied() {
    if !can_mount("a machine that is promoted") {
        return;
    }
    let tmp = place();
    let dir = tmp.path();
    let path = |name: &str| dir.join(name).display().to_string();
    let (d1, d2, mnt) = (path("d1"), path("d2"), path("mnt"));
    let single = format!("up --data {d1} --data {d2} {mnt}");
    let mut up = start(dir, "up", &single, "mounted");
    fill(&dir.join("mnt"));
    let port = support::cluster::Lab::free_address();
    let promote = |identity: &str| {
        let (identity, state) = (path(identity), path("state"));
        let line = format!(
            "promote --data {d1} --data {d2} --listen {port} --name first --identity {identity} --state {state}"
        );
        ashlar(&line.split(' ').collect::<Vec<_>>())
    };
    promote("own").refused(&["in use"]);
    up.stop();
    // Interrupted at its last step: a file is where the identity is to be.
    fs::write(dir.join("file"), "").unwrap();
    promote("file/own").refused(&["file/own"]);
    let inodes = |name: &str| fs::metadata(dir.join(name)).unwrap().ino();
    let before = (inodes("d1/target"), inodes("d1/meta"));
    promote("own").expect(0);
    promote("own").refused(&["belongs to"]);
    assert_eq!((inodes("d1/target"), inodes("d1/meta")), before);
    ashlar(&single.split(' ').collect::<Vec<_>>()).refused(&["ashlar promote", "ashlar meta"]);
    let checked = ashlar(&["fsck", "--data", &d1, "--data", &d2]).expect(8);
    assert!(checked.stderr.contains("ashlar promote"), "{}", checked.stderr);

    let (own, state) = (path("own"), path("state"));
    let mut manager = start(dir, "manager", &format!("manager --identity {own} --state {state}"), "serves");
    let address = support::cluster::Lab::free_address;
    let copied = std::process::Command::new("cp").args(["-a", &d2, &path("copy")]).status().unwrap();
    assert!(copied.success());
    let line = format!("storage --data {d1} --data {d2} --identity {own} --listen {}", address());
    let mut storage = start(dir, "storage", &line, "serves");
    // Starts go on being counted where the one machine was.
    let copy = format!("storage --data {d1} --data {} --identity {own} --listen {}", path("copy"), address());
    storage.stop();
    ashlar(&copy.split(' ').collect::<Vec<_>>()).refused(&["target-2", "copy/target is an older copy"]);
    let mut storage = start(dir, "storage", &line, "serves");
    let line = format!("meta --meta {} --identity {own} --listen {}", path("d1/meta"), address());
    let mut meta = start(dir, "meta", &line, "serves");
    let mut first = start(dir, "mount", &format!("mount {mnt} --identity {own}"), "mounted");
    check(&dir.join("mnt"));
    // Another machine.
    let token = ashlar(&["token", "--role", "client,storage", "--squash", "none", "--identity", &own])
        .expect(0)
        .stdout;
    ashlar(&["join", token.trim(), "--name", "second", "--identity", &path("own2")]).expect(0);
    let mut second =
        start(dir, "mount2", &format!("mount {} --identity {}", path("mnt2"), path("own2")), "mounted");
    check(&dir.join("mnt2"));
    fs::write(dir.join("mnt2/a/small0"), "content 0").unwrap();
    fs::write(dir.join("mnt2/new"), vec![9; 300_000]).unwrap();
    check(&dir.join("mnt"));
    assert_eq!(fs::read(dir.join("mnt/new")).unwrap(), vec![9; 300_000]);
    [&mut first, &mut second, &mut meta, &mut storage, &mut manager].into_iter().for_each(Role::stop);
}

/// Processes that a command has started and said so; they end with it.
struct Started(Vec<(String, i32)>);

impl Started {
    #[track_caller]
    fn of(said: &str) -> Started {
        let one = |line: &str| {
            let (what, rest) = line.strip_prefix("started ashlar ")?.split_once(", process ")?;
            Some((what.split(' ').next()?.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        Started(said.lines().filter_map(one).collect())
    }

    /// Tells them to stop, the last one first, and waits until they have.
    #[track_caller]
    fn stop(self) {
        for (name, process) in self.0.iter().rev() {
            // SAFETY: it was started by the command, and has not ended.
            unsafe { libc::kill(*process, libc::SIGTERM) };
            let deadline = Instant::now() + PATIENCE;
            while is_there(*process) {
                assert!(Instant::now() < deadline, "{name} does not stop");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for (_, process) in self.0.iter().rev().filter(|(_, process)| is_there(*process)) {
            // SAFETY: as above.
            unsafe { libc::kill(*process, libc::SIGKILL) };
        }
    }
}

/// Whether a process runs that is not a child of this one.
fn is_there(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['R', 'S', 'D']))
}

#[test]
fn a_machine_that_runs_is_promoted_by_one_command_and_mounted_again() {
    if !can_mount("a running machine that is promoted") {
        return;
    }
    let tmp = place();
    let dir = tmp.path();
    let path = |name: &str| dir.join(name).display().to_string();
    let (d1, d2, mnt, mnt2) = (path("d1"), path("d2"), path("mnt"), path("mnt2"));
    let (own, state) = (path("own"), path("state"));
    let mut up = start(dir, "up", &format!("up --data {d1} --data {d2} {mnt} {mnt2}"), "mounted");
    fill(&dir.join("mnt"));
    let inodes = |name: &str| fs::metadata(dir.join(name)).unwrap().ino();
    let before = (inodes("d1/target"), inodes("d1/meta"));
    let address = support::cluster::Lab::free_address;
    let promote = |listen: &str, more: &str| {
        let line = format!(
            "promote --data {d1} --data {d2} --listen {listen} --name first --identity {own} --state {state} {more}"
        );
        ashlar(&line.split_whitespace().collect::<Vec<_>>())
    };
    let listen = address();
    let roles = format!("--start --meta-listen {} --storage-listen {}", address(), address());
    // What is refused leaves it running as it was.
    promote(&listen, "").refused(&["in use by ashlar up, process", "--start"]);
    promote("192.0.2.1:7400", &roles).refused(&["nobody can listen at 192.0.2.1:7400"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy =
        format!("--start --meta-listen {} --storage-listen {}", taken.local_addr().unwrap(), address());
    promote(&listen, &busy).refused(&["nobody can listen at", "a port that is free"]);
    let mut user = std::process::Command::new("sleep").arg("1000").current_dir(&mnt).spawn().unwrap();
    let name = format!("process {} (sleep: working directory)", user.id());
    promote(&listen, &roles).refused(&["mnt is in use by", &name, "--cut-off"]);
    user.kill().unwrap();
    user.wait().unwrap();
    let few = format!(
        "promote --data {d1} --listen {listen} --name first --identity {own} --state {state} {roles}"
    );
    let few = ashlar(&few.split_whitespace().collect::<Vec<_>>());
    few.refused(&["target-2 at", "d2/target serves and is not listed", "--data"]);
    // The second one is in use by no program: the first one stays where it is.
    let below = dir.join("mnt2/a/b");
    let below_text = below.to_str().unwrap();
    command(&["mount", "-t", "tmpfs", "none", below_text]);
    for _ in 0..3 {
        promote(&listen, &roles).refused(&["mnt2 is in use", "nothing was unmounted", "--cut-off"]);
    }
    command(&["umount", below_text]);
    for mount in ["mnt", "mnt2"] {
        check(&dir.join(mount));
    }
    assert!(!up.has_ended() && !dir.join("own").exists());

    let begun = Instant::now();
    let said = promote(&listen, &roles).expect(0).stdout;
    let took = begun.elapsed();
    let started = Started::of(&said);
    let names: Vec<&str> = started.0.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["manager", "storage", "meta", "mount", "mount"], "{said}");
    assert!(took < PATIENCE, "it takes {took:?}");
    assert!(up.has_ended(), "{}", up.text());
    assert_eq!((inodes("d1/target"), inodes("d1/meta")), before, "data stays in its place");
    for mount in ["mnt", "mnt2"] {
        check(&dir.join(mount));
    }
    fs::write(dir.join("mnt/new"), "new").unwrap();
    assert_eq!(fs::read_to_string(dir.join("mnt2/new")).unwrap(), "new");
    let targets = ashlar(&["target", "list", "--identity", &own]).expect(0).stdout;
    assert!(targets.contains("target-1") && targets.contains("target-2"), "{targets}");
    started.stop();
}

#[track_caller]
fn command(line: &[&str]) {
    assert!(std::process::Command::new(line[0]).args(&line[1..]).status().unwrap().success(), "{line:?}");
}

#[test]
fn what_did_not_start_is_started_by_the_same_command_and_nothing_twice() {
    if !can_mount("a machine whose promotion is gone on with") {
        return;
    }
    let tmp = place();
    let dir = tmp.path();
    let path = |name: &str| dir.join(name).display().to_string();
    let (d1, d2, mnt, mnt2) = (path("d1"), path("d2"), path("mnt"), path("mnt2"));
    let mut up =
        start(dir, "up", &format!("up --data {d1} --data {d2} --no-devices {mnt} {mnt2}"), "mounted");
    fill(&dir.join("mnt"));
    let address = support::cluster::Lab::free_address;
    let line = format!(
        "promote --data {d1} --data {d2} --listen {} --name first --identity {} --state {} --start --meta-listen {} --storage-listen {}",
        address(),
        path("own"),
        path("state"),
        address(),
        address()
    );
    let promote = || ashlar(&line.split_whitespace().collect::<Vec<_>>());
    let names =
        |started: &Started| -> Vec<String> { started.0.iter().map(|(name, _)| name.clone()).collect() };
    // What metadata and one of the mounts say cannot be written.
    for name in ["meta", "mount1"] {
        fs::create_dir_all(dir.join(format!("state/{name}.log"))).unwrap();
    }
    let failed = promote().refused(&["meta.log", "the same command goes on", "Left: `ashlar meta", "mnt2"]);
    assert!(up.has_ended());
    let roles = Started::of(&failed.stdout);
    assert_eq!(names(&roles), ["manager", "storage"], "{}", failed.stdout);
    fs::remove_dir(dir.join("state/meta.log")).unwrap();
    let failed =
        promote().refused(&["mount1.log", "the same command goes on", "Left: `ashlar mount", "mnt2"]);
    assert!(failed.stdout.contains("manager runs already") && failed.stdout.contains("storage runs already"));
    let more = Started::of(&failed.stdout);
    assert_eq!(names(&more), ["meta", "mount"], "{}", failed.stdout);
    fs::remove_dir(dir.join("state/mount1.log")).unwrap();
    let ended = promote().expect(0).stdout;
    let last = Started::of(&ended);
    assert_eq!(names(&last), ["mount"], "{ended}");
    assert!(ended.contains("mnt is mounted already") && ended.contains("--no-devices"), "{ended}");
    for mount in ["mnt", "mnt2"] {
        check(&dir.join(mount));
    }
    assert!(Started::of(&promote().expect(0).stdout).0.is_empty(), "all runs");
    [last, more, roles].into_iter().for_each(Started::stop);
}

#[test]
fn programs_are_cut_off_when_that_is_wanted() {
    if !can_mount("a machine in use that is promoted") {
        return;
    }
    let tmp = place();
    let dir = tmp.path();
    let path = |name: &str| dir.join(name).display().to_string();
    let (d1, mnt, own, state) = (path("d1"), path("mnt"), path("own"), path("state"));
    let mut up = start(dir, "up", &format!("up --data {d1} --read-only {mnt}"), "mounted");
    let mut user = std::process::Command::new("sleep").arg("1000").current_dir(&mnt).spawn().unwrap();
    let address = support::cluster::Lab::free_address;
    let line = format!(
        "promote --data {d1} --listen {} --name first --identity {own} --state {state} --start --cut-off --meta-listen {} --storage-listen {}",
        address(),
        address(),
        address()
    );
    let said = ashlar(&line.split_whitespace().collect::<Vec<_>>()).expect(0).stdout;
    let started = Started::of(&said);
    assert!(up.has_ended(), "{}", up.text());
    let refused = fs::write(dir.join("mnt/new"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS), "it is mounted as it was: {said}");
    user.kill().unwrap();
    user.wait().unwrap();
    started.stop();
}

#[test]
fn the_state_of_a_machine_that_is_promoted_goes_to_an_etcd() {
    if !can_mount("a machine that is promoted to an etcd") {
        return;
    }
    let tmp = place();
    let dir = tmp.path();
    let path = |name: &str| dir.join(name).display().to_string();
    let (d1, d2, mnt, own, state) = (path("d1"), path("d2"), path("mnt"), path("own"), path("state"));
    let single = format!("up --data {d1} --data {d2} {mnt}");
    let mut up = start(dir, "up", &single, "mounted");
    fill(&dir.join("mnt"));
    up.stop();
    let inodes = |name: &str| fs::metadata(dir.join(name)).unwrap().ino();
    let before = (inodes("d1/target"), inodes("d1/meta"));

    let authority = Authority::new();
    let mut etcd = Etcd::start_with(3, Some(&authority));
    let (identity, stranger) = (authority.issue(&["managers"]), Authority::new().issue(&["managers"]));
    fs::write(dir.join("ca"), &authority.pem).unwrap();
    for (name, identity) in [("etcd", &identity), ("stranger", &stranger)] {
        fs::write(dir.join(format!("{name}.certificate")), &identity.certificate_pem).unwrap();
        fs::write(dir.join(format!("{name}.key")), &identity.key_pem).unwrap();
    }
    let listen = support::cluster::Lab::free_address();
    let promote = |endpoints: &str, who: &str| {
        let (ca, certificate, key) =
            (path("ca"), path(&format!("{who}.certificate")), path(&format!("{who}.key")));
        let line = format!(
            "promote --data {d1} --data {d2} --listen {listen} --name first --identity {own} --state {state} \
             --etcd {endpoints} --etcd-ca {ca} --etcd-certificate {certificate} --etcd-key {key}"
        );
        ashlar(&line.split_whitespace().collect::<Vec<_>>())
    };
    // An etcd that is not there, or does not want this machine: the file system is what it was.
    let nobody = format!("https://{}", support::cluster::Lab::free_address());
    promote(&nobody, "etcd").refused(&["etcd", &nobody]);
    promote(&etcd.endpoints().join(","), "stranger").refused(&["etcd"]);
    let mut up = start(dir, "up", &single, "mounted");
    check(&dir.join("mnt"));
    fs::write(dir.join("mnt/a/small1"), "content 1").unwrap();
    up.stop();
    // Two of three members are enough.
    etcd.members[0].kill();
    promote(&etcd.endpoints().join(","), "etcd").expect(0);
    promote(&etcd.endpoints().join(","), "etcd").refused(&["belongs to"]);
    assert_eq!((inodes("d1/target"), inodes("d1/meta")), before, "data stays in its place");
    assert!(!dir.join("state/cluster-state").exists(), "the state is in etcd alone");
    ashlar(&single.split(' ').collect::<Vec<_>>()).refused(&["ashlar promote", "ashlar meta"]);

    let address = support::cluster::Lab::free_address;
    let mut manager = start(dir, "manager", &format!("manager --identity {own} --state {state}"), "serves");
    let line = format!("storage --data {d1} --data {d2} --identity {own} --listen {}", address());
    let mut storage = start(dir, "storage", &line, "serves");
    let line = format!("meta --meta {} --identity {own} --listen {}", path("d1/meta"), address());
    let mut meta = start(dir, "meta", &line, "serves");
    let mut first = start(dir, "mount", &format!("mount {mnt} --identity {own}"), "mounted");
    check(&dir.join("mnt"));
    // Another manager, through which a client joins, and which goes on without the first one.
    let (own2, state2) = (path("own2"), path("state2"));
    let token = ashlar(&["token", "--role", "manager,admin", "--identity", &own]).expect(0).stdout;
    ashlar(&["join", token.trim(), "--name", "second", "--identity", &own2, "--state", &state2]).expect(0);
    let line = format!("manager --listen {} --identity {own2} --state {state2}", address());
    let mut second = start(dir, "second", &line, "serves");
    let join_client = |name: &str| {
        let args = ["token", "--role", "client", "--squash", "none", "--identity", &own2];
        let token = ashlar(&args).expect(0).stdout;
        ashlar(&["join", token.trim(), "--name", name, "--identity", &path(name)]).expect(0);
    };
    join_client("client");
    let line = format!("mount {} --identity {}", path("mnt2"), path("client"));
    let mut other = start(dir, "mount2", &line, "mounted");
    check(&dir.join("mnt2"));
    manager.kill();
    join_client("another");
    fs::write(dir.join("mnt2/new"), vec![9; 300_000]).unwrap();
    assert_eq!(fs::read(dir.join("mnt/new")).unwrap(), vec![9; 300_000]);
    // What was the machine's own target is one of the cluster's.
    manager = start(dir, "manager", &format!("manager --identity {own} --state {state}"), "serves");
    let targets = ashlar(&["target", "list", "--identity", &own]).expect(0).stdout;
    assert!(targets.contains("target-1") && targets.contains("target-2"), "{targets}");
    [&mut first, &mut other, &mut meta, &mut storage, &mut second, &mut manager]
        .into_iter()
        .for_each(Role::stop);
}
