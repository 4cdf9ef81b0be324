//! Goal: administrators see which servers do not answer, for how long, and what is with them; and the event log tells when one goes and comes. Targets of such a server stay
//! what they are in the map. Method: real servers that are killed, paused, stopped and started again, and a manager that is started anew meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::time::{Duration, Instant};
use support::cluster::Lab;

/// Longest time until something is shown: a server counts as away after 10 s.
const SHOWN_MAX: Duration = Duration::from_secs(60);

fn json(lab: &Lab, line: &str) -> Value {
    serde_json::from_str(&lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout).unwrap()
}

/// For how many seconds `role` of a node is away, as `node list` shows it.
fn away(lab: &Lab, node: &str, role: &str) -> Option<u64> {
    let nodes = json(lab, "node list");
    let node = nodes.as_array().unwrap().iter().find(|known| known["name"] == node).unwrap().clone();
    node["away_s"][role].as_u64()
}

#[track_caller]
fn soon(what: &str, is_so: impl FnMut() -> bool) {
    support::soon(SHOWN_MAX, what, is_so);
}

/// Kinds of the events about a server going and coming, the oldest first.
fn told(lab: &Lab, node: &str) -> Vec<String> {
    let events = json(lab, "event list");
    let about = events.as_array().unwrap().iter().filter(|event| event["subject"] == node);
    let kinds = about.map(|event| event["kind"].as_str().unwrap().to_owned());
    kinds.filter(|kind| kind.starts_with("server-")).collect()
}

#[test]
fn a_server_that_is_killed_or_hangs_is_away_until_it_is_heard_of_again() {
    let mut lab = Lab::start(2, 0);
    // All are there from the beginning, and stay so.
    std::thread::sleep(Duration::from_secs(12));
    for (node, role) in [("oss0", "storage"), ("oss1", "storage"), ("mds", "meta"), ("first", "manager")] {
        assert_eq!(away(&lab, node, role), None, "{node}");
    }
    lab.storage[0].kill();
    soon("a server that was killed is away", || {
        away(&lab, "oss0", "storage").is_some_and(|seconds| seconds >= 10)
    });
    assert_eq!(away(&lab, "oss1", "storage"), None);
    let begun = Instant::now();
    let targets = json(&lab, "target list");
    let target =
        |id: u64| targets.as_array().unwrap().iter().find(|known| known["id"] == id).unwrap().clone();
    assert!(target(1)["away_s"].as_u64().is_some_and(|seconds| seconds >= 10), "{targets}");
    assert_eq!((&target(1)["state"], &target(1)["bytes_total"]), (&"online".into(), &Value::Null));
    assert!(target(2)["away_s"].is_null() && target(2)["bytes_total"].is_u64(), "{targets}");
    let shown = lab.ashlar("target list --identity @first").expect(0).stdout;
    assert!(shown.lines().any(|line| line.contains("target-1") && line.contains("away since ")), "{shown}");
    assert!(!shown.lines().any(|line| line.contains("target-2") && line.contains("away")), "{shown}");
    assert!(begun.elapsed() < Duration::from_secs(3), "nobody waits for it");
    let shown = lab.ashlar("node list --identity @first").expect(0).stdout;
    assert!(shown.lines().any(|line| line.contains("storage: ") && line.contains("away since ")), "{shown}");
    soon("an event", || told(&lab, "oss0") == ["server-started", "server-away"]);
    // A manager that is started anew finds that out again, and tells nothing twice.
    lab.manager.stop();
    lab.start_manager();
    soon("still away", || away(&lab, "oss0", "storage").is_some());
    lab.start_storage(0);
    soon("there again", || away(&lab, "oss0", "storage").is_none());
    soon("an event", || {
        let told = told(&lab, "oss0");
        told.len() == 4
            && told[2..].contains(&"server-back".into())
            && told[2..].contains(&"server-started".into())
    });
    // One that hangs, and goes on.
    lab.meta.pause();
    soon("a server that hangs is away", || away(&lab, "mds", "meta").is_some());
    lab.meta.resume();
    soon("it goes on", || away(&lab, "mds", "meta").is_none());
    let expected = ["server-started", "server-away", "server-back"];
    soon(&format!("{expected:?} of mds"), || told(&lab, "mds") == expected);
    // A manager that itself has not run for a while does not take others for away.
    lab.manager.pause();
    std::thread::sleep(Duration::from_secs(12));
    lab.manager.resume();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(away(&lab, "oss1", "storage"), None);
    }
    assert_eq!(told(&lab, "oss1"), ["server-started"]);
    // One that was stopped in good order is away as well, and that it was stopped is told already.
    lab.storage[1].stop();
    soon("a server that was stopped is away", || away(&lab, "oss1", "storage").is_some());
    assert_eq!(told(&lab, "oss1"), ["server-started", "server-stopped"]);
    let event = json(&lab, "event list --kind server-away");
    assert!(
        event[0]["text"].as_str().unwrap().starts_with("storage: nothing was heard of it for 1"),
        "{event}"
    );
    lab.stop();
}
