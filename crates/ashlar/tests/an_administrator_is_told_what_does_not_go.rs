//! Goal: a command that would leave the file system without somebody it needs, or wait for a server that is away, is refused with the reason and the way out; and what
//! was begun with a server that dies can be taken back. Method: real servers, some of them killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::PATIENCE;
use support::cluster::{Lab, Role};

#[track_caller]
fn token(lab: &Lab, roles: &str) -> String {
    lab.ashlar(&format!("token --role {roles} --identity @first")).expect(0).stdout.trim().to_owned()
}

#[track_caller]
fn join(lab: &Lab, roles: &str, name: &str) {
    lab.ashlar(&format!("join {} --name {name} --identity @{name}", token(lab, roles))).expect(0);
}

#[track_caller]
fn add_meta(lab: &Lab, name: &str) -> Role {
    join(lab, "meta", name);
    let line = format!("meta --meta @{name}.meta --listen {} --identity @{name}", Lab::free_address());
    lab.run(name, &line, "serves")
}

#[track_caller]
fn json(lab: &Lab, line: &str) -> Value {
    let printed = lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout;
    serde_json::from_str(&printed).unwrap()
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[track_caller]
fn shards_of(lab: &Lab, name: &str) -> Vec<u64> {
    let shards = json(lab, "shard list");
    let of_node = shards.as_array().unwrap().iter().filter(|shard| shard["node"]["name"] == name);
    of_node.map(|shard| shard["id"].as_u64().unwrap()).collect()
}

#[test]
fn nodes_that_are_needed_are_not_removed_and_machines_that_cannot_join_are_told_why() {
    let mut lab = Lab::start(1, 0);
    let refused = |line: &str, words: &[&str]| lab.ashlar(line).refused(words);
    refused("node remove first --identity @first", &["first is the only manager", "ashlar etcd init"]);
    refused("node remove oss0 --identity @first", &["oss0 has 1 target", "node drain oss0", "target remove"]);
    refused("node remove mds --identity @first", &["mds serves metadata, 64 shards", "shard drain mds"]);
    refused("node remove nobody --identity @first", &["no node `nobody`", "ashlar node list"]);
    join(&lab, "admin", "desk");
    refused("node remove desk --identity @desk", &["desk is this machine", "--yes-this-one"]);
    lab.ashlar("node remove desk --yes-this-one --identity @desk").expect(0);
    refused("node remove oss0 --identity @desk", &["ashlar join"]);

    // Machines that join.
    let used = token(&lab, "client");
    lab.ashlar(&format!("join {used} --name c1 --identity @c1")).expect(0);
    refused(&format!("join {used} --name c2 --identity @c2"), &["used already, by c1", "`ashlar token`"]);
    // One that the manager does not know any more looks like one that it never knew.
    let unknown = format!("ashlar1-{}{}", "00".repeat(16), &used["ashlar1-".len() + 32..]);
    let words = ["no manager knows this token", "too old", "`ashlar token`"];
    refused(&format!("join {unknown} --name c2 --identity @c2"), &words);
    let good = token(&lab, "client");
    refused(
        &format!("join {good} --name c1 --identity @c3"),
        &["a node `c1` already", "ashlar node remove c1"],
    );
    refused(&format!("join {good} --name c4 --identity @c1"), &["c1", "--identity"]);
    refused(&format!("join {good} --name a/b --identity @c3"), &["`a/b` cannot be the name", "--name"]);
    refused("join nonsense --name c3 --identity @c3", &["token"]);
    // None of that has cost the token.
    lab.ashlar(&format!("join {good} --name c3 --identity @c3")).expect(0);

    // What is not there.
    refused("target drain 9 --identity @first", &["no target-9", "ashlar target list"]);
    refused("target remove 9 --identity @first", &["no target-9", "ashlar target list"]);
    refused("target drain 1 --identity @first", &["no other target of the pool default"]);
    refused("target remove 1 --identity @first", &["ashlar target drain 1"]);
    refused("shard move 1 --to c1 --identity @first", &["c1 serves no metadata"]);
    refused("shard move all --to mds --identity @first", &["--cancel", "shard drain"]);
    refused("shard move 99 --to mds --identity @first", &["no shard-99", "ashlar shard list"]);
    refused("shard move --cancel 99 --identity @first", &["no shard-99", "ashlar shard list"]);
    refused("session remove 7 --identity @first", &["no session-7", "ashlar session list"]);
    refused("pool remove fast --identity @first", &["no pool `fast`", "ashlar pool add"]);
    refused("target rebalance --pool fast --identity @first", &["no pool `fast`"]);

    // Lists with nothing in them.
    assert_eq!(json(&lab, "session list"), json!({ "sessions": [], "unanswered": [] }));
    assert_eq!(json(&lab, "shard move --cancel all"), json!([]));
    assert_eq!(json(&lab, "target moves")["moves"], json!([]));
    assert_eq!(json(&lab, "event list --kind server-away"), json!([]));
    let told = lab.ashlar("shard move --cancel all --identity @first").expect(0).stdout;
    assert_eq!(told.trim(), "no shard is to be moved");
    let outcome = json(&lab, "shard move --cancel 1");
    assert_eq!(outcome, json!([{ "id": 1, "to": null, "outcome": "not moving" }]));
    lab.stop();
}

#[test]
fn nothing_is_begun_with_servers_that_are_away_and_what_was_begun_can_be_withdrawn() {
    let mut lab = Lab::start(2, 0);
    let mut mds2 = add_meta(&lab, "mds2");
    let mut mds3 = add_meta(&lab, "mds3");
    wait_until("all have shards", || {
        shards_of(&lab, "mds2").len() > 20 && shards_of(&lab, "mds3").len() > 20
    });
    let (shard, other) = (shards_of(&lab, "mds")[0], shards_of(&lab, "mds")[1]);

    // The receiver dies: a moment later nobody has noticed yet, and the move begins.
    mds3.kill();
    lab.storage[1].kill();
    let mut moving = Command::new(support::binary())
        .args(["shard", "move", &shard.to_string(), "--to", "mds3", "--identity"])
        .arg(lab.path("first"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let how_far = || json(&lab, "shard list")[shard as usize]["moving"].clone();
    wait_until("the move is told as stalled", || how_far()["state"] == "stalled");
    let stalled = how_far();
    assert_eq!(stalled["to"]["name"], "mds3");
    assert!(stalled["reason"].as_str().unwrap().contains("has not answered"), "{stalled}");
    let told = lab.ashlar("shard list --identity @first").expect(0).stdout;
    assert!(told.contains("does not get to mds3: it has not answered for"), "{told}");
    // Others are not kept waiting by it, and it is not forgotten.
    lab.ashlar(&format!("shard move {other} --to mds2 --identity @first")).expect(0);
    wait_until("it is tried again", || how_far()["state"] == "stalled");
    // Not to somebody else meanwhile.
    let cancel = format!("ashlar shard move --cancel {shard}");
    lab.ashlar(&format!("shard move {shard} --to mds2 --identity @first"))
        .refused(&["does not get to mds3", &cancel]);
    assert!(moving.try_wait().unwrap().is_none(), "it waits");
    let told = lab.ashlar(&format!("shard move --cancel {shard} --identity @first")).expect(0).stdout;
    assert_eq!(told.trim(), format!("shard-{shard} stays, and does not go to mds3"));
    // Whoever waited for it learns that, and it goes elsewhere.
    let ended = moving.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && text.contains("it was withdrawn"), "{text}");
    lab.ashlar(&format!("shard move {shard} --to mds2 --identity @first")).expect(0);
    assert!(shards_of(&lab, "mds2").contains(&shard));

    // Once it is known that they are away, nothing begins.
    let away = |list: &str, at: usize| json(&lab, list)[at]["away_s"].is_u64();
    let first_of_mds3 = shards_of(&lab, "mds3")[0];
    wait_until("they are away", || away("target list", 1) && away("shard list", first_of_mds3 as usize));
    let since = "mds3 does not answer since";
    lab.ashlar(&format!("shard move {shard} --to mds3 --identity @first")).refused(&[since, "ashlar meta"]);
    lab.ashlar(&format!("shard move {first_of_mds3} --to mds --identity @first")).refused(&[since]);
    lab.ashlar("shard drain mds3 --identity @first").refused(&[since]);
    let balanced = lab.ashlar("shard balance --json --identity @first").expect(0);
    assert!(balanced.stderr.contains("mds3 is left out"), "{}", balanced.all());
    let moved: Value = serde_json::from_str(&balanced.stdout).unwrap();
    assert!(moved.as_array().unwrap().iter().all(|one| one["to"]["name"] != "mds3"), "{moved}");
    lab.ashlar("target drain 1 --identity @first").refused(&["nothing was heard of oss1 for"]);
    let told = lab.ashlar("target drain 2 --identity @first").expect(0).stdout;
    assert!(told.contains("100 chains") && told.contains("once oss1 is back"), "{told}");
    let told = lab.ashlar("target drain 2 --identity @first").expect(0).stdout;
    assert!(told.contains("target-2 is being drained already"), "{told}");

    let sessions = json(&lab, "session list");
    let unanswered = &sessions["unanswered"];
    assert_eq!((unanswered.as_array().unwrap().len(), &unanswered[0]["name"]), (1, &json!("mds3")));
    assert!(unanswered[0]["away_s"].is_u64() && unanswered[0]["reason"].is_string(), "{sessions}");
    let told = lab.ashlar("session list --identity @first").expect(0).stdout;
    assert!(told.contains("mds3 does not answer"), "{told}");
    lab.ashlar("session remove 7 --identity @first").refused(&["no session-7", "mds3 does not answer"]);
    mds2.stop();
    lab.meta.kill();
    lab.storage[0].stop();
    lab.manager.stop();
}
