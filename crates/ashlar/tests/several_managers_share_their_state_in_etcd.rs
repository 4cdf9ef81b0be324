//! Goal: with the state in a real etcd there can be several managers, of which any may be away; with too few members of etcd nothing can be changed, and
//! everything else goes on. A file system that began with one manager moves its state there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../coord/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod etcd;
mod support;

use etcd::certificates::Authority;
use etcd::members::Etcd;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::{Lab, Role};

/// Joins a second manager and starts it.
#[track_caller]
fn second_manager(lab: &Lab, listen: &str) -> Role {
    let token = lab.ashlar("token --role manager,admin --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name second --identity @second --state @state2", token.trim())).expect(0);
    lab.run("second", &format!("manager --listen {listen} --identity @second --state @state2"), "serves")
}

/// Until `done` says so, 15 s at the most.
#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[track_caller]
fn join_client(lab: &Lab, name: &str, through: &str) {
    let token = lab.ashlar(&format!("token --role client --identity @{through}")).expect(0).stdout;
    lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
}

fn write(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).unwrap();
}

#[test]
fn any_of_two_managers_may_be_away() {
    if !can_mount("a file system with two managers") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let mut etcd = Etcd::start_with(3, Some(&authority));
    let identity = authority.issue(&["managers"]);
    let file = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let init: Vec<String> = [
        ("--etcd", etcd.endpoints().join(",")),
        ("--etcd-ca", file("ca", &authority.pem)),
        ("--etcd-certificate", file("certificate", &identity.certificate_pem)),
        ("--etcd-key", file("key", &identity.key_pem)),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    let mut lab = Lab::start_with(&init, 1, 1);
    let mount = lab.path("m0");
    write(&mount, "file", "one");
    let mut second = second_manager(&lab, &Lab::free_address());
    // What one changes the other knows, at once where somebody asks for it.
    for turn in 0..5 {
        join_client(&lab, &format!("c1{turn}"), "first");
        let listed = lab.ashlar("node list --identity @second").expect(0).stdout;
        assert!(listed.contains(&format!("c1{turn}")), "{listed}");
    }
    // A member of etcd less, then the first manager.
    etcd.members[0].kill();
    join_client(&lab, "c2", "first");
    lab.manager.kill();
    join_client(&lab, "c3", "second");
    lab.storage[0].stop();
    lab.start_storage(0);
    write(&mount, "file", "two");
    // A mount that was made while both were there, and servers, find the other one.
    lab.mounts[0].stop();
    lab.start_mount(0);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"two");
    // Without most members nothing can be changed, it is said soon, and everything else goes on.
    etcd.members[1].kill();
    let since = Instant::now();
    lab.ashlar("token --role client --identity @second").refused(&["etcd"]);
    assert!(since.elapsed() < Duration::from_secs(40), "it was said after {:?}", since.elapsed());
    write(&mount, "file", "three");
    assert!(lab.ashlar("node list --identity @second").expect(0).stdout.contains("c3"));
    // Storage servers that are started again go on, and mounts.
    lab.storage[0].kill();
    lab.start_storage(0);
    lab.mounts[0].stop();
    lab.start_mount(0);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"three");
    write(&mount, "file", "four");
    // Of metadata a start is an epoch of its own, which nobody can agree on. It is said, and a start later works.
    lab.meta.kill();
    let meta = format!("meta --meta @meta --listen {} --identity @mds", lab.address(1));
    lab.ashlar(&meta).refused(&["may be served", "etcd"]);
    etcd.members[1].start();
    eventually("it does not go on when etcd is back", || {
        lab.ashlar("token --role client --identity @second").code == Some(0)
    });
    lab.start_meta();
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"four");
    // The first one comes back, and the second goes.
    lab.start_manager();
    second.stop();
    join_client(&lab, "c4", "first");
    assert!(lab.ashlar("node list --identity @c4").stderr.contains("admin"));
    lab.stop();
}

/// Servers and mounts that had not heard of the second manager knew nobody once the first one was gone, and could not be started again.
#[test]
fn a_manager_that_has_just_joined_is_known_to_everybody_should_the_first_one_die() {
    if !can_mount("a file system whose first manager dies") {
        return;
    }
    let etcd = Etcd::start(1);
    let init = ["--etcd".to_owned(), etcd.endpoints().join(",")];
    let mut lab = Lab::start_with(&init, 1, 1);
    let token = lab.ashlar("token --role admin --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name late --identity @late", token.trim())).expect(0);
    let listen = Lab::free_address();
    let mut second = second_manager(&lab, &listen);
    lab.manager.kill();
    // A storage server that goes on tells the one that is left.
    lab.storage[0].stop();
    eventually("the end of the storage server is heard of", || {
        let told = lab.ashlar("event list --kind server-stopped --identity @second").expect(0).stdout;
        told.contains("oss0")
    });
    lab.start_storage(0);
    // Each start of metadata is given out by a manager.
    lab.meta.kill();
    lab.start_meta();
    // A machine that could not hear of it is told by hand.
    let file = lab.path("late/node.json");
    let mut late: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    late["managers"] = [listen].into();
    fs::write(&file, late.to_string()).unwrap();
    assert!(lab.ashlar("node list --identity @late").expect(0).stdout.contains("second"));
    write(&lab.path("m0"), "file", "two");
    lab.start_manager();
    second.stop();
    lab.stop();
}

#[test]
fn a_file_system_with_one_manager_moves_its_state_to_etcd() {
    if !can_mount("a file system that moves its state") {
        return;
    }
    let etcd = Etcd::start(1);
    let mut lab = Lab::start(1, 1);
    let mount = lab.path("m0");
    write(&mount, "file", "one");
    lab.ashlar("token --role manager --identity @first").refused(&["only manager", "--move-to-etcd"]);
    lab.manager.stop();
    let url = &etcd.members[0].endpoint;
    lab.ashlar(&format!("manager --state @state --identity @first --etcd {url}"))
        .refused(&["--move-to-etcd"]);
    let moving = format!("manager --state @state --identity @first --etcd {url} --move-to-etcd");
    lab.manager = lab.run("manager", &moving, "serves");
    assert!(!lab.path("state/cluster-state").exists());
    // What happened before is there.
    let told = lab.ashlar("event list --kind target-added --identity @first").expect(0).stdout;
    assert!(told.contains("target-1"), "{told}");
    let mut second = second_manager(&lab, &Lab::free_address());
    // Once more is no more.
    lab.manager.stop();
    lab.manager = lab.run("manager", &moving, "serves");
    lab.manager.stop();
    join_client(&lab, "c9", "second");
    lab.mounts[0].stop();
    lab.start_mount(0);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"one");
    lab.start_manager();
    second.stop();
    lab.stop();
}

#[test]
fn an_etcd_that_cannot_be_used_is_told_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (state, own) = (dir.path().join("state"), dir.path().join("own"));
    let listen = Lab::free_address();
    let init = |etcd: &[&str]| {
        let (state, own) = (state.display().to_string(), own.display().to_string());
        let mut args =
            vec!["init", "--listen", &listen, "--name", "first", "--state", &state, "--identity", &own];
        args.extend(etcd);
        support::ashlar(&args)
    };
    let nobody = format!("http://{}", Lab::free_address());
    init(&["--etcd", &nobody]).refused(&["etcd", &nobody]);
    init(&["--etcd", "somewhere"]).refused(&["somewhere"]);
    init(&["--etcd", "https://localhost:1", "--etcd-ca", "/nowhere/ca"]).refused(&["/nowhere/ca"]);
    init(&["--etcd", "https://localhost:1", "--etcd-ca", "relative"]).refused(&["absolute"]);
    init(&["--etcd-ca", "/nowhere/ca"]).refused(&["--etcd"]);
    assert!(!own.exists(), "a machine belongs to a file system that is none");
    let etcd = Etcd::start(1);
    init(&["--etcd", &etcd.members[0].endpoint]).expect(0);
    init(&["--etcd", &etcd.members[0].endpoint]).refused(&["belongs to"]);
}
