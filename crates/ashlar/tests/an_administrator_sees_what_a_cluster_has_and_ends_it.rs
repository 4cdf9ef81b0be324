//! Goal: an administrator sees machines, targets, shards, sessions and mounts, as text and as JSON with the documented names; a server that is away delays
//! that by a bounded time and is told as unknown; a session or mount that hangs can be ended, and what it had goes to others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::{PATIENCE, can_mount, is_mounted};

/// What a command prints as JSON.
#[track_caller]
fn json(lab: &Lab, line: &str) -> Value {
    let printed = lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout;
    serde_json::from_str(&printed).unwrap()
}

/// The names of the fields of an object, in the order of the alphabet.
fn fields(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn targets_nodes_and_shards_are_told_also_when_a_storage_server_is_away() {
    if !can_mount("administration of targets") {
        return;
    }
    let mut lab = Lab::start(2, 0);
    let targets = json(&lab, "target list");
    assert_eq!(targets.as_array().unwrap().len(), 2);
    for (at, target) in targets.as_array().unwrap().iter().enumerate() {
        let names = [
            "away_s",
            "bytes_free",
            "bytes_total",
            "bytes_used",
            "chains",
            "chains_coming",
            "chains_leaving",
            "domain",
            "drain",
            "id",
            "is_draining",
            "node",
            "path",
            "pool",
            "state",
        ];
        assert_eq!(fields(target), names);
        assert_eq!(target["state"], "online");
        assert_eq!(target["node"]["name"], format!("oss{at}"));
        assert_eq!(target["path"].as_str().unwrap(), lab.path(&format!("d{at}/target")).to_str().unwrap());
        assert_eq!(target["chains"], 100);
        let number = |name: &str| target[name].as_u64().unwrap();
        assert!(number("bytes_free") > 0);
        assert_eq!(number("bytes_used") + number("bytes_free"), number("bytes_total"));
    }
    assert_eq!(fields(&json(&lab, "target show 2"))[0], "away_s");
    lab.ashlar("target show 9 --identity @first").refused(&["no target 9", "ashlar target list"]);
    let printed = lab.ashlar("target list --identity @first").expect(0).stdout;
    assert_eq!(printed.matches("GiB free").count(), 2, "{printed}");
    lab.storage[1].kill();
    let begun = Instant::now();
    let targets = json(&lab, "target list");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(targets[0]["bytes_free"].is_u64(), "{targets}");
    assert!(targets[1]["bytes_free"].is_null() && targets[1]["bytes_total"].is_null(), "{targets}");
    let printed = lab.ashlar("target show 2 --identity @first").expect(0).stdout;
    assert!(printed.contains("space unknown"), "{printed}");
    let node = json(&lab, "node show mds");
    assert_eq!(
        fields(&node),
        ["away_s", "domain", "id", "listening", "management", "name", "policy", "roles", "shards", "targets"]
    );
    assert_eq!(node["targets"], Value::Array(Vec::new()));
    assert_eq!(node["shards"].as_array().unwrap().len(), json(&lab, "shard list").as_array().unwrap().len());
    assert_eq!(node["listening"]["meta"][0], lab.addresses()[1]);
    let printed = lab.ashlar("node show oss0 --identity @first").expect(0).stdout;
    assert!(printed.contains("target-1"), "{printed}");
    lab.ashlar("node show nobody --identity @first").refused(&["no node `nobody`", "ashlar node list"]);
    let shards = json(&lab, "shard list");
    assert!(!shards.as_array().unwrap().is_empty());
    let is_served = |shard: &Value| shard["node"]["name"] == "mds" && shard["id"].is_u64();
    assert!(shards.as_array().unwrap().iter().all(is_served), "{shards}");
    lab.stop();
}

fn flock(file: &fs::File, how: i32) -> i32 {
    // SAFETY: the descriptor is open for as long as the call takes.
    unsafe { libc::flock(file.as_raw_fd(), how) }
}

fn session_of(lab: &Lab, node: &str) -> Option<Value> {
    let sessions = json(lab, "session list");
    assert_eq!(sessions["unanswered"], Value::Array(Vec::new()));
    sessions["sessions"].as_array().unwrap().iter().find(|session| session["node"]["name"] == node).cloned()
}

#[test]
fn a_session_that_is_ended_gives_its_locks_to_others_and_its_mount_comes_back() {
    if !can_mount("administration of sessions") {
        return;
    }
    let mut lab = Lab::start(1, 2);
    fs::write(lab.path("m0/file"), "content").unwrap();
    let held = fs::File::open(lab.path("m0/file")).unwrap();
    assert_eq!(flock(&held, libc::LOCK_EX), 0);
    let session = session_of(&lab, "c0").unwrap();
    let names = [
        "heard_ms",
        "id",
        "id_text",
        "is_ending",
        "leases",
        "locks",
        "node",
        "opens",
        "server",
        "servers",
        "since",
    ];
    assert_eq!(fields(&session), names);
    assert_eq!(session["server"]["name"], "mds");
    assert_eq!((session["locks"].as_u64(), session["is_ending"].as_bool()), (Some(1), Some(false)));
    assert!(session["opens"].as_u64() >= Some(1) && session["leases"].as_u64() >= Some(1), "{session}");
    assert!(session["heard_ms"].as_u64() < Some(10_000), "{session}");
    assert_eq!(session_of(&lab, "c1").unwrap()["locks"].as_u64(), Some(0));
    let other = fs::File::open(lab.path("m1/file")).unwrap();
    assert_eq!(flock(&other, libc::LOCK_EX | libc::LOCK_NB), -1, "the first one has it");
    // A client may neither see nor end sessions.
    lab.ashlar("session list --identity @c1").refused(&["not for admin"]);
    lab.ashlar("session remove 999999 --identity @first").refused(&["no session-999999"]);
    let id = session["id"].as_u64().unwrap();
    let ended = lab.ashlar(&format!("session remove {id} --identity @first")).expect(0);
    assert_eq!(ended.stdout.trim(), format!("ended session-{id}"));
    assert_eq!(flock(&other, libc::LOCK_EX | libc::LOCK_NB), 0, "the session that had it has ended");
    // Its mount goes on with another session.
    let deadline = Instant::now() + PATIENCE;
    while fs::write(lab.path("m0/new"), "new").is_err() {
        assert!(Instant::now() < deadline, "the mount does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fs::read_to_string(lab.path("m1/new")).unwrap(), "new");
    let id = session_of(&lab, "c0").unwrap()["id"].as_u64().filter(|newer| *newer != id).unwrap();
    drop((held, other));
    // A server that may have it and does not answer: it may go on there.
    lab.join_meta("mds2");
    let line = format!("meta --meta @mds2.meta --listen {} --identity @mds2", Lab::free_address());
    let mut mds2 = lab.run("mds2", &line, "serves");
    mds2.pause();
    let half = lab.ashlar(&format!("session remove {id} --identity @first"));
    mds2.resume();
    half.refused(&["has ended at all servers that answer", "mds2 does not answer"]);
    lab.stop();
    mds2.stop();
}

/// Longest time for a mount to be taken away: `detach` promises a few seconds, and the machine may have much else to do.
const DETACH_MAX: Duration = Duration::from_secs(25);

#[track_caller]
fn detach(lab: &Lab, name: &str) {
    let begun = Instant::now();
    lab.ashlar(&format!("mount detach @{name}")).expect(0);
    assert!(begun.elapsed() < DETACH_MAX, "{:?}", begun.elapsed());
    assert!(!is_mounted(&lab.path(name)));
}

#[test]
fn a_mount_is_taken_away_whether_its_process_hangs_or_its_servers_are_away_or_all_is_well() {
    if !can_mount("detaching mounts") {
        return;
    }
    let mut lab = Lab::start(1, 3);
    let mounts = json(&lab, "mount list");
    let of = |name: &str| {
        let path = lab.path(name).canonicalize().unwrap();
        mounts.as_array().unwrap().iter().find(|one| one["mountpoint"] == *path.to_str().unwrap()).cloned()
    };
    let found = of("m0").unwrap();
    assert_eq!(fields(&found), ["mountpoint", "read_only", "source", "user"]);
    assert_eq!((&found["source"], &found["read_only"]), (&"ashlar".into(), &false.into()));
    assert!(of("m1").is_some() && of("d0").is_none());
    let printed = lab.ashlar("mount list").expect(0).stdout;
    assert!(printed.contains(&format!("{}  read-write", lab.path("m2").display())), "{printed}");
    lab.ashlar("mount detach @d0").refused(&["nothing is mounted"]);
    // All is well.
    fs::write(lab.path("m0/file"), "content").unwrap();
    detach(&lab, "m0");
    assert_eq!(fs::read_to_string(lab.path("m1/file")).unwrap(), "content");
    // Its process hangs, and a program has a file of it open.
    // Not this process: what it starts would close the file on the way, which waits for the mount.
    let holding = "exec 3> \"$0\"; while :; do echo x >&3 || exit 7; sleep 0.05; done";
    let mut holder = Command::new("sh")
        .args(["-c", holding])
        .arg(lab.path("m1/open"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !lab.path("m2/open").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    lab.mounts[1].pause();
    detach(&lab, "m1");
    let deadline = Instant::now() + PATIENCE;
    while holder.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "who has a file open is not told that the mount is gone");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!holder.wait().unwrap().success());
    lab.mounts[1].kill();
    // Its servers are away, and a program waits for them.
    lab.meta.kill();
    lab.storage[0].kill();
    let path = lab.path("m2/waits");
    let waiting = std::thread::spawn(move || fs::write(path, "x"));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "it waits for the servers");
    detach(&lab, "m2");
    let deadline = Instant::now() + PATIENCE;
    while !waiting.is_finished() {
        assert!(Instant::now() < deadline, "whoever waited for the mount still waits");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(waiting.join().unwrap().is_err());
}
