//! Goal: administrators can read what happened to a file system, whoever saw it: managers, metadata and storage servers. It is there after
//! restarts, several managers write one log, and no service waits for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../coord/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod etcd;
mod support;

use etcd::members::Etcd;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::{Lab, Role};

/// The events that `args` of `ashlar event list` select.
#[track_caller]
fn events(lab: &Lab, who: &str, args: &str) -> Vec<Value> {
    let told = lab.ashlar(&format!("event list --json --identity @{who} {args}")).expect(0);
    serde_json::from_str::<Vec<Value>>(&told.stdout).unwrap()
}

fn text<'v>(event: &'v Value, field: &str) -> &'v str {
    event[field].as_str().unwrap()
}

/// Until there is an event of this kind about `subject`, a minute at the most.
#[track_caller]
fn eventually(lab: &Lab, who: &str, kind: &str, subject: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let all = events(lab, who, &format!("--kind {kind}"));
        if let Some(found) = all.into_iter().rev().find(|event| text(event, "subject") == subject) {
            return found;
        }
        assert!(Instant::now() < deadline, "no {kind} of {subject}: {:#?}", events(lab, who, ""));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Changes one byte of each 4 KiB of what the slab files of a target have.
fn damage(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            damage(&entry.path());
        } else if entry.file_name().to_string_lossy().contains("slab") {
            let file = fs::File::options().read(true).write(true).open(entry.path()).unwrap();
            let mut bytes = vec![0; file.metadata().unwrap().len().min(64 << 20) as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let pattern = [0xa7; 16];
            for at in (0..bytes.len()).step_by(4096) {
                if bytes[at..].starts_with(&pattern) {
                    file.write_all_at(b"!", at as u64).unwrap();
                }
            }
        }
    }
}

#[test]
fn what_every_role_sees_is_told_and_stays() {
    if !can_mount("the event log of a cluster") {
        return;
    }
    let mut lab = Lab::start(1, 3);
    // The beginning.
    let all = events(&lab, "first", "");
    let has = |kind: &str, subject: &str| {
        all.iter().any(|event| text(event, "kind") == kind && text(event, "subject") == subject)
    };
    for (kind, subject) in [
        ("server-started", "first"),
        ("token-made", "storage"),
        ("token-used", "oss0"),
        ("node-joined", "oss0"),
        ("node-listens", "oss0"),
        ("target-added", "target-1"),
        ("server-started", "oss0"),
        ("shards-moved", "mds"),
        ("server-started", "mds"),
    ] {
        assert!(has(kind, subject) || kind == "server-started", "no {kind} of {subject}: {all:#?}");
    }
    for subject in ["first", "oss0", "mds"] {
        eventually(&lab, "first", "server-started", subject);
    }
    let numbers: Vec<u64> = all.iter().map(|event| event["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    let fields: Vec<&String> = all[0].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["kind", "node", "number", "subject", "text", "time"]);
    // Whose doing it was.
    lab.ashlar("node policy c1 --squash all --identity @first").expect(0);
    let changed = eventually(&lab, "first", "policy-changed", "c1");
    assert_eq!(changed["node"]["name"], "first");
    lab.ashlar("node policy c1 --squash none --identity @first").expect(0);
    // What the storage server finds, once, however often it is read.
    fs::write(lab.path("m0/file"), vec![0xa7; 2 << 20]).unwrap();
    fs::File::open(lab.path("m0/file")).unwrap().sync_all().unwrap();
    damage(&lab.path("d0"));
    for _ in 0..3 {
        assert!(fs::read(lab.path("m1/file")).is_err(), "it is damaged");
    }
    let found = eventually(&lab, "first", "damage-found", "target-1");
    assert_eq!(found["node"]["name"], "oss0");
    assert!(text(&found, "text").contains("checksum"), "{found}");
    // What the metadata server finds: a mount that dies.
    lab.mounts[1].kill();
    let silent = eventually(&lab, "first", "session-silent", "c1");
    assert_eq!(silent["node"]["name"], "mds");
    // One that hangs with something that others need.
    fs::write(lab.path("m2/cached"), "cached").unwrap();
    assert_eq!(fs::read_to_string(lab.path("m2/cached")).unwrap(), "cached");
    lab.mounts[2].pause();
    fs::write(lab.path("m0/cached"), "changed").unwrap();
    eventually(&lab, "first", "session-evicted", "c2");
    lab.mounts[2].kill();
    // A server that stops while no manager answers does not wait for one; what it could not tell, its next start does not know.
    lab.manager.stop();
    let since = Instant::now();
    lab.storage[0].stop();
    assert!(since.elapsed() < Duration::from_secs(20), "it took {:?}", since.elapsed());
    lab.start_manager();
    lab.start_storage(0);
    assert_eq!(events(&lab, "first", "")[..all.len()], all, "what was there is there");
    lab.storage[0].stop();
    assert_eq!(eventually(&lab, "first", "server-stopped", "oss0")["node"]["name"], "oss0");
    lab.start_storage(0);
    // What is asked for.
    let recent = events(&lab, "first", "--since 1h --kind node-joined --kind node-removed");
    assert!(recent.len() >= 5 && recent.iter().all(|event| text(event, "kind") == "node-joined"));
    assert_eq!(events(&lab, "first", "--since 2999-01-01"), Vec::<Value>::new());
    let printed = lab.ashlar("event list --kind damage-found --identity @first").expect(0).stdout;
    assert!(printed.contains("Z  damage-found") && printed.contains("target-1"), "{printed}");
    lab.ashlar("event list --kind nothing --identity @first").expect(2);
    lab.ashlar("event list --identity @c0").refused(&["admin"]);
    lab.stop();
}

#[test]
fn who_follows_sees_what_happens() {
    let mut lab = Lab::start(1, 0);
    let mut follower = lab.run("follow", "event list --follow --json --identity @first", "node-joined");
    let token = lab.ashlar("token --role client --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name late --identity @late", token.trim())).expect(0);
    let deadline = Instant::now() + Duration::from_secs(30);
    let seen = |follower: &Role| {
        let lines: Vec<Value> =
            follower.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().any(|event| text(event, "kind") == "node-joined" && text(event, "subject") == "late")
    };
    while !seen(&follower) {
        assert!(Instant::now() < deadline, "{}", follower.text());
        std::thread::sleep(Duration::from_millis(100));
    }
    let numbers: Vec<u64> = follower
        .text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once: {numbers:?}");
    follower.kill();
    lab.stop();
}

#[test]
fn two_managers_write_one_log_and_what_happens_without_etcd_is_told_later() {
    let mut etcd = Etcd::start(3);
    let init = ["--etcd".to_owned(), etcd.endpoints().join(",")];
    let mut lab = Lab::start_with(&init, 1, 0);
    let token = lab.ashlar("token --role manager,admin --identity @first").expect(0).stdout;
    lab.ashlar(&format!("join {} --name second --identity @second --state @state2", token.trim())).expect(0);
    let listen = Lab::free_address();
    let mut second =
        lab.run("second", &format!("manager --listen {listen} --identity @second --state @state2"), "serves");
    for turn in 0..6 {
        let through = if turn % 2 == 0 { "first" } else { "second" };
        let token = lab.ashlar(&format!("token --role client --identity @{through}")).expect(0).stdout;
        lab.ashlar(&format!("join {} --name n{turn} --identity @n{turn}", token.trim())).expect(0);
    }
    let joined = |who: &str| -> Vec<String> {
        let all = events(&lab, who, "--kind node-joined");
        all.iter()
            .map(|event| text(event, "subject").to_owned())
            .filter(|name| name.starts_with('n'))
            .collect()
    };
    let expected = ["n0", "n1", "n2", "n3", "n4", "n5"];
    assert_eq!(
        (joined("first"), joined("second")),
        (expected.map(String::from).into(), expected.map(String::from).into())
    );
    // Without etcd what there was can be read, with a word, and what happens is told when it is back.
    etcd.members[0].kill();
    etcd.members[1].kill();
    let told = lab.ashlar("event list --kind node-joined --identity @first").expect(0);
    assert!(told.stdout.contains("n5"), "{}", told.all());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !lab.manager.text().contains("cannot be reached") {
        assert!(Instant::now() < deadline, "{}", lab.manager.text());
        std::thread::sleep(Duration::from_millis(100));
    }
    let told = lab.ashlar("event list --kind node-joined --identity @first").expect(0);
    assert!(told.stdout.contains("n5") && told.stderr.contains("may be missing"), "{}", told.all());
    etcd.members[0].start();
    etcd.members[1].start();
    eventually(&lab, "second", "state-unreachable", "first");
    eventually(&lab, "second", "state-reachable", "first");
    second.stop();
    lab.stop();
}
