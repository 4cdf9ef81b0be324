//! Goal: who drains or rebalances sees what is done, of how much, how fast, and how long it takes yet, also from a manager that was started anew; and who pauses moves of shards sees none
//! move, whoever wants it, until they go on, also over a start of the manager and of the servers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::cluster::{Lab, Role};
use support::{PATIENCE, soon};

#[track_caller]
fn told(lab: &Lab, line: &str) -> Value {
    let printed = lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout;
    serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{line}: no JSON: {printed}"))
}

/// What a metric is for target 1.
fn metric(address: &str, name: &str) -> Option<u64> {
    let shown = Command::new("curl").args(["-s", &format!("http://{address}/metrics")]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(name) && line.contains("target=\"1\""))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn drain_of(lab: &Lab) -> Value {
    told(lab, "target show 1")["drain"].clone()
}

#[test]
fn a_drain_tells_what_is_done_of_how_much_and_how_long_it_takes() {
    let mut lab = Lab::start(2, 1);
    lab.ashlar("layout set @m0 --chunk-size 64K --stripe-count 2 --inline-size 0").expect(0);
    let written = 24usize << 20;
    for at in 0..24 {
        fs::write(lab.path(&format!("m0/file{at}")), vec![at as u8 + 1; written / 24]).unwrap();
    }
    Command::new("sync").arg("-f").arg(lab.path("m0")).status().unwrap();
    assert_eq!(told(&lab, "target show 1")["drain"], Value::Null);
    // Slow enough to be looked at, and counted before it begins.
    lab.ashlar("target moves --rate 1 --identity @first").expect(0);
    std::thread::sleep(Duration::from_secs(12));
    told(&lab, "target drain 1");
    soon(2 * PATIENCE, "chains to have gone", || drain_of(&lab)["chains_done"].as_u64().unwrap() >= 4);
    soon(2 * PATIENCE, "a rate", || {
        drain_of(&lab)["bytes_per_s"].as_u64().is_some_and(|rate| rate > 100_000)
    });
    let now = drain_of(&lab);
    let number = |name: &str| now[name].as_u64().unwrap_or_else(|| panic!("{name}: {now}"));
    assert_eq!((number("chains_total"), &now["is_estimated"]), (100, &json!(false)), "{now}");
    // Half of what was written is there, as the layout has it.
    let total = number("bytes_total");
    assert!((written as u64 * 3 / 10..written as u64 * 7 / 10).contains(&total), "{now}");
    assert!(number("bytes_done") > 0 && number("bytes_done") < total, "{now}");
    assert!(number("bytes_per_s") < 3 << 20, "the rate that was set is 1 MiB/s: {now}");
    let expected = (total - number("bytes_done")) / number("bytes_per_s").max(1);
    assert!(number("seconds_left").abs_diff(expected) <= 1 + expected / 2, "{now}");
    let text = lab.ashlar("target list --identity @first").expect(0).stdout;
    assert!(text.contains("of 100 chains") && text.contains("MiB/s") && text.contains("left"), "{text}");
    let work = told(&lab, "target moves")["works"][0].clone();
    assert_eq!((&work["target"], &work["pool"]), (&json!(1), &json!("default")));

    // Paused, it is told as that; and another manager goes on from there.
    lab.ashlar("target moves --pause --identity @first").expect(0);
    soon(2 * PATIENCE, "the chains under way", || drain_of(&lab)["bytes_per_s"] == json!(0));
    let before = drain_of(&lab);
    assert_eq!(before["seconds_left"], Value::Null, "{before}");
    lab.manager.kill();
    let address = Lab::free_address();
    let line = format!("manager --state @state --identity @first --metrics {address}");
    lab.manager = lab.run("manager", &line, "serves");
    let after = drain_of(&lab);
    for name in ["since", "chains_done", "chains_total"] {
        assert_eq!(after[name], before[name], "{after}");
    }
    lab.ashlar("target moves --resume --rate 0 --identity @first").expect(0);
    soon(2 * PATIENCE, "the drain", || drain_of(&lab)["chains_done"] == json!(100));
    let done = drain_of(&lab);
    assert_eq!(done["seconds_left"], json!(0), "{done}");
    assert_eq!(done["bytes_done"], done["bytes_total"], "{done}");
    let bytes = done["bytes_done"].as_u64().unwrap();
    assert!((written as u64 * 3 / 10..written as u64 * 7 / 10).contains(&bytes), "{done}");
    assert_eq!(metric(&address, "ashlar_moves_chains_done"), Some(100));
    assert_eq!(metric(&address, "ashlar_moves_chains_left"), Some(0));
    told(&lab, "target undrain 1");
    assert_eq!(told(&lab, "target show 1")["drain"], Value::Null, "it is told no more");

    // Rebalanced, the totals are estimates. All that was written is on the other one.
    // On a large disk that is too little to move, and it would be through as soon as both have told what they have.
    lab.ashlar("target moves --pause --identity @first").expect(0);
    assert_eq!(told(&lab, "pool show default")["rebalance"], Value::Null);
    told(&lab, "target rebalance");
    let mut estimate = Value::Null;
    soon(2 * PATIENCE, "an estimate", || {
        estimate = told(&lab, "pool show default")["rebalance"].clone();
        estimate["bytes_total"].as_u64().is_some_and(|total| total > 0)
    });
    assert_eq!(estimate["is_estimated"], json!(true), "{estimate}");
    told(&lab, "target rebalance --stop");
    lab.stop();
}

fn add_meta(lab: &Lab, name: &str) -> (Role, String) {
    lab.join_meta(name);
    let line = format!("meta --meta @{name}.meta --listen {} --identity @{name}", Lab::free_address());
    (lab.run(name, &line, "serves"), line)
}

fn shards_at(lab: &Lab, name: &str) -> Vec<u64> {
    let shards = told(lab, "shard list");
    let there = shards.as_array().unwrap().iter().filter(|shard| shard["node"]["name"] == name);
    there.map(|shard| shard["id"].as_u64().unwrap()).collect()
}

fn shards_of(lab: &Lab, name: &str) -> usize {
    shards_at(lab, name).len()
}

/// A command that goes on.
fn begin(lab: &Lab, line: &str) -> Child {
    Command::new(support::binary())
        .args(line.split(' '))
        .args(["--identity", &lab.path("first").display().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// How many of the shards 1 to 3 wait for their move to mds2, while moves are paused.
#[track_caller]
fn waiting(lab: &Lab) -> usize {
    let moves = told(lab, "shard moves");
    assert_eq!(moves["is_paused"], json!(true), "{moves}");
    let moves = moves["moves"].as_array().unwrap();
    let is_meant = |one: &&Value| {
        [1, 2, 3].contains(&one["id"].as_u64().unwrap())
            && one["state"] == "waiting"
            && one["to"]["name"] == "mds2"
    };
    moves.iter().filter(is_meant).count()
}

/// How many shards are to go from the server `name` to another one.
fn leaving(lab: &Lab, name: &str) -> usize {
    let moves = told(lab, "shard moves");
    let moves = moves["moves"].as_array().unwrap();
    moves.iter().filter(|one| one["node"]["name"] == name && one["to"]["name"] != name).count()
}

#[test]
fn no_shard_moves_while_moves_are_paused_whoever_wants_it() {
    let mut lab = Lab::start(1, 1);
    for at in 0..40 {
        fs::create_dir(lab.path(&format!("m0/d{at}"))).unwrap();
        fs::write(lab.path(&format!("m0/d{at}/file")), format!("{at}")).unwrap();
    }
    lab.ashlar("shard moves --pause --identity @first").expect(0);
    // The server hears of it when it asks next.
    std::thread::sleep(Duration::from_secs(3));
    // A server that joins takes nothing, and neither does an administrator move anything.
    let (mut mds2, line) = add_meta(&lab, "mds2");
    let mut moving = begin(&lab, "shard move 1 2 3 --to mds2");
    soon(2 * PATIENCE, "the moves to be known", || waiting(&lab) == 3);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!((waiting(&lab), shards_of(&lab, "mds2")), (3, 0), "nothing moves");
    assert!(moving.try_wait().unwrap().is_none(), "who wants it waits");
    let shown = lab.ashlar("shard moves --identity @first").expect(0).stdout;
    assert!(shown.contains("paused") && shown.contains("--resume"), "{shown}");

    // The manager keeps it, and so it holds for servers that are started anew.
    lab.manager.kill();
    lab.start_manager();
    lab.meta.kill();
    lab.start_meta();
    mds2.kill();
    mds2 = lab.run("mds2", &line, "serves");
    soon(2 * PATIENCE, "the command to ask once more", || waiting(&lab) == 3);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(shards_of(&lab, "mds2"), 0, "nothing moves after a start either");

    let resumed = told(&lab, "shard moves --resume");
    assert_eq!(resumed["is_paused"], json!(false));
    soon(2 * PATIENCE, "the moves", || shards_of(&lab, "mds2") >= 3);
    soon(2 * PATIENCE, "the command", || moving.try_wait().unwrap().is_some());
    let ended = moving.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("are paused") && said.contains("go on"), "{said}");
    soon(2 * PATIENCE, "the server that has joined to have its share", || shards_of(&lab, "mds2") > 20);

    // The server that is drained has what it has until it goes on.
    lab.ashlar("shard moves --pause --identity @first").expect(0);
    // The servers hear of it when they ask next.
    std::thread::sleep(Duration::from_secs(3));
    let before = shards_of(&lab, "mds2");
    // What is on its way to it when the drain begins does not stay there either.
    let late: Vec<String> = shards_at(&lab, "mds").iter().take(5).map(u64::to_string).collect();
    let mut moving = begin(&lab, &format!("shard move {} --to mds2", late.join(" ")));
    let is_on_its_way = |one: &Value| one["to"]["name"] == "mds2" && late.contains(&one["id"].to_string());
    soon(2 * PATIENCE, "the moves to be asked for", || {
        let moves = told(&lab, "shard moves")["moves"].as_array().unwrap().clone();
        moves.iter().filter(|one| is_on_its_way(one)).count() == 5
    });
    moving.kill().unwrap();
    moving.wait().unwrap();
    let mut draining = begin(&lab, "shard drain mds2");
    soon(2 * PATIENCE, "the drain to be known", || leaving(&lab, "mds2") == before);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(shards_of(&lab, "mds2"), before, "shards move while that is paused");
    for at in 0..40 {
        assert_eq!(fs::read_to_string(lab.path(&format!("m0/d{at}/file"))).unwrap(), format!("{at}"));
        fs::write(lab.path(&format!("m0/d{at}/more")), "more").unwrap();
    }
    lab.ashlar("shard moves --resume --identity @first").expect(0);
    soon(2 * PATIENCE, "the command", || draining.try_wait().unwrap().is_some());
    let drained = draining.wait_with_output().unwrap();
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert_eq!(shards_of(&lab, "mds2"), 0);

    // One that has not got its share yet when it is drained takes none by itself any more.
    lab.ashlar("shard moves --pause --identity @first").expect(0);
    std::thread::sleep(Duration::from_secs(3));
    let (mut mds3, _) = add_meta(&lab, "mds3");
    lab.ashlar("shard drain mds3 --identity @first").expect(0);
    lab.ashlar("shard moves --resume --identity @first").expect(0);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!((shards_of(&lab, "mds2"), shards_of(&lab, "mds3")), (0, 0), "they take shards by themselves");
    mds3.stop();
    for at in 0..40 {
        assert_eq!(fs::read_to_string(lab.path(&format!("m0/d{at}/more"))).unwrap(), "more");
    }
    lab.mounts.iter_mut().for_each(Role::stop);
    mds2.stop();
    lab.stop();
}
