//! Goal: a file system gets an etcd of its own from the etcd that is installed, with one member and then three while it serves; any of them may go and
//! come back, and nobody but managers can speak with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_coord::Coord;
use ashlar_coord::etcd::{EtcdCoord, EtcdIdentity, EtcdSettings, EtcdTls};
use ashlar_env::Env;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::{Lab, Role};

/// The argument that names the etcd to test with, where it is not the installed one.
fn program() -> String {
    std::env::var("ASHLAR_ETCD").map(|path| format!("--program {path}")).unwrap_or_default()
}

/// Until `done` says so, a minute at the most.
#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Names and standings of members.
#[track_caller]
fn members(lab: &Lab, state: &str) -> Vec<(String, String)> {
    let told = lab.ashlar(&format!("etcd list --json --state @{state}")).expect(0).stdout;
    let field = |member: &Value, name: &str| member[name].as_str().unwrap().to_owned();
    let all: Vec<Value> = serde_json::from_str(&told).unwrap();
    all.iter().map(|member| (field(member, "name"), field(member, "standing"))).collect()
}

#[track_caller]
fn join_client(lab: &Lab, name: &str, through: &str) {
    let token = lab.ashlar(&format!("token --role client --identity @{through}")).expect(0).stdout;
    lab.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
}

/// Runs the member of `state`; etcd says so when it serves clients.
#[track_caller]
fn run_member(lab: &Lab, state: &str) -> Role {
    lab.run(&format!("etcd-{state}"), &format!("etcd run {} --state @{state}", program()), "serving client")
}

/// A further manager with a member of etcd beside it.
#[track_caller]
fn further(lab: &Lab, name: &str) -> (Role, Role) {
    let token = lab.ashlar("token --role manager,admin --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name {name} --identity @{name} --state @s{name}", token.trim())).expect(0);
    let manager = lab.run(
        name,
        &format!("manager --listen {} --identity @{name} --state @s{name}", Lab::free_address()),
        "serves",
    );
    let own = format!("etcd join --listen {} --identity @{name} --state @s{name}", Lab::free_pair());
    lab.ashlar(&own).expect(0);
    // Once more is no more.
    lab.ashlar(&own).refused(&["already"]);
    let member = run_member(lab, &format!("s{name}"));
    eventually("it does not count", || {
        members(lab, "state").contains(&(name.to_owned(), "counts".to_owned()))
    });
    (manager, member)
}

#[test]
fn one_member_becomes_three_while_it_serves_and_any_of_them_may_go() {
    if !can_mount("an etcd of its own") {
        return;
    }
    let mut lab = Lab::start(1, 1);
    let mount = lab.path("m0");
    fs::write(mount.join("file"), "one").unwrap();
    let init =
        format!("etcd init --listen {} {} --state @state --identity @first", Lab::free_pair(), program());
    lab.ashlar(&init).refused(&["stop the manager first"]);
    lab.ashlar("etcd join --listen 127.0.0.1 --state @state --identity @first").refused(&["etcd init"]);
    lab.manager.stop();
    lab.ashlar(&init).expect(0);
    lab.ashlar(&init).refused(&["in an etcd already"]);
    let mut first = run_member(&lab, "state");
    lab.start_manager();
    // What was in the file is there: state and events.
    assert!(lab.ashlar("node list --identity @first").expect(0).stdout.contains("oss0"));
    assert!(lab.ashlar("event list --identity @first").expect(0).stdout.contains("target-added"));
    let (mut second_manager, mut second) = further(&lab, "second");
    let (mut third_manager, mut third) = further(&lab, "third");
    let mut names = members(&lab, "ssecond");
    names.sort();
    let counts = |name: &str| (name.to_owned(), "counts".to_owned());
    assert_eq!(names, [counts("first"), counts("second"), counts("third")]);
    fs::write(mount.join("file"), "two").unwrap();
    // The first member goes, and the managers go on with the others; also one that is started anew, from what it has noted.
    eventually("the first manager does not note where the members are", || {
        fs::read_to_string(lab.path("state/store.json")).unwrap().matches("https://").count() == 3
    });
    first.kill();
    join_client(&lab, "c1", "first");
    join_client(&lab, "c2", "third");
    lab.manager.stop();
    lab.start_manager();
    join_client(&lab, "c3", "first");
    // With one of three nothing can be changed, and files are served.
    second.kill();
    lab.ashlar("token --role client --identity @first").refused(&["etcd"]);
    fs::write(mount.join("file"), "three").unwrap();
    second = run_member(&lab, "ssecond");
    join_client(&lab, "c4", "second");
    // A machine that is lost is taken out, and another one takes its place.
    let words = ["first is a member of etcd", "`ashlar etcd remove first`"];
    lab.ashlar("node remove first --identity @second").refused(&words);
    lab.ashlar("etcd remove nobody --state @ssecond").refused(&["no member"]);
    lab.ashlar("etcd remove first --state @ssecond").expect(0);
    let rejoin = format!("etcd join --listen {} --state @state --identity @first", Lab::free_pair());
    lab.ashlar(&rejoin).refused(&["a member already"]);
    fs::remove_file(lab.path("state/etcd/etcd.conf.yml")).unwrap();
    lab.ashlar(&rejoin).refused(&["data", "remove"]);
    fs::remove_dir_all(lab.path("state/etcd")).unwrap();
    lab.ashlar(&rejoin).expect(0);
    first = run_member(&lab, "state");
    eventually("it does not count again", || members(&lab, "sthird").contains(&counts("first")));
    third.kill();
    join_client(&lab, "c5", "first");
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "three");
    second_manager.stop();
    third_manager.stop();
    lab.stop();
    first.stop();
    second.stop();
}

#[test]
fn a_file_system_begins_with_an_etcd_that_only_managers_can_speak_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (listen, etcd) = (Lab::free_address(), Lab::free_pair());
    let init = |program: &str| {
        let (state, own) = (path("state"), path("own"));
        let mut args =
            vec!["init", "--listen", &listen, "--name", "first", "--state", &state, "--identity", &own];
        args.extend(["--with-etcd", &etcd]);
        if !program.is_empty() {
            args.extend(["--etcd-program", program]);
        }
        support::ashlar(&args)
    };
    init("/nowhere/etcd").refused(&["/nowhere/etcd", "--program"]);
    assert!(!dir.path().join("own").exists() && !dir.path().join("state").exists(), "something was made");
    let told = init(&std::env::var("ASHLAR_ETCD").unwrap_or_default()).expect(0).stdout;
    assert!(told.contains("ashlar etcd run"), "{told}");
    assert!(!dir.path().join("state/cluster-state").exists());
    use std::os::unix::fs::PermissionsExt;
    for secret in ["store.json", "etcd/key.pem", "etcd"] {
        let mode = fs::metadata(dir.path().join("state").join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others can look at {secret}");
    }
    let program = program();
    let mut run = vec!["etcd", "run"];
    run.extend(program.split_whitespace());
    let state = path("state");
    run.extend(["--state", &state]);
    let mut member = support::cluster::run(dir.path(), "etcd", &run, "serving client");
    // Everybody has the certificate of a client of the file system at most.
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let store: Value = serde_json::from_str(&read("state/store.json")).unwrap();
    let own = EtcdIdentity { certificate_pem: read("own/certificate.pem"), key_pem: read("own/key.pem") };
    for identity in [None, Some(own)] {
        let settings = EtcdSettings {
            endpoints: vec![format!("https://{etcd}")],
            key: store["key"].as_str().unwrap().to_owned(),
            tls: Some(EtcdTls {
                authority_pem: store["own"]["certificate"].as_str().unwrap().to_owned(),
                identity,
            }),
        };
        let refused = EtcdCoord::new(&settings, Env::os().entropy).unwrap().load().unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
    }
    let mut manager = support::cluster::run(
        dir.path(),
        "manager",
        &["manager", "--state", &state, "--identity", &path("own")],
        "serves",
    );
    let token = support::ashlar(&["token", "--role", "client", "--identity", &path("own")]).expect(0).stdout;
    support::ashlar(&["join", token.trim(), "--name", "c", "--identity", &path("c")]).expect(0);
    support::ashlar(&["etcd", "remove", "first", "--state", &state]).refused(&["only member"]);
    manager.stop();
    member.stop();
}
