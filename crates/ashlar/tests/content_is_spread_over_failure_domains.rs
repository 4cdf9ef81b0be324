//! Goal: the chunks of a file are on targets of as many failure domains as there are, as evenly as targets allow; domains are named, shown and taken away while files are
//! written; and chains of a target that is drained stay in its domain. Method: real servers, real files, and the layouts that they get.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use support::can_mount;
use support::cluster::Lab;

fn json(lab: &Lab, line: &str) -> Value {
    serde_json::from_str(&lab.ashlar(&format!("{line} --json --identity @first")).expect(0).stdout).unwrap()
}

/// The targets that the chunks of a file are on.
fn targets_of(lab: &Lab, file: &Path) -> Vec<u64> {
    let shown = lab.ashlar(&format!("layout show {} --json", file.display())).expect(0).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let targets = shown["targets"].as_str().unwrap_or_else(|| panic!("{shown}"));
    targets.split(',').map(|target| target.parse().unwrap()).collect()
}

/// On which pairs of domains `count` new files have chunks that are striped over two targets each.
fn pairs(lab: &Lab, count: usize, domain_of: &BTreeMap<u64, &str>) -> BTreeSet<Vec<String>> {
    let directory = lab.path("m0/striped");
    let mut pairs = BTreeSet::new();
    for at in 0..count {
        let file = directory.join(format!("f{at}"));
        fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
        let targets = targets_of(lab, &file);
        assert_eq!(targets.len(), 2, "{targets:?}");
        let mut domains: Vec<String> = targets.iter().map(|target| domain_of[target].to_owned()).collect();
        domains.sort();
        pairs.insert(domains);
        fs::remove_file(&file).unwrap();
    }
    pairs
}

#[test]
fn stripes_alternate_over_domains_and_drained_chains_stay_in_theirs() {
    if !can_mount("failure domains") {
        return;
    }
    let mut lab = Lab::start(4, 1);
    let ended = lab.ashlar("node domain oss0 rack/1 --identity @first");
    ended.refused(&["rack/1", "cannot be the name of a failure domain"]);
    lab.ashlar("node domain nobody rack1 --identity @first").refused(&["no node `nobody`"]);
    lab.ashlar("node domain oss0 rack1 --identity @c0").refused(&["admin"]);
    assert_eq!(lab.ashlar("node domain oss0 --identity @first").expect(0).stdout, "none\n");
    for (node, domain) in [("oss0", "rack1"), ("oss1", "rack1"), ("oss2", "rack2"), ("oss3", "rack2")] {
        let said = lab.ashlar(&format!("node domain {node} {domain} --identity @first")).expect(0).stdout;
        assert_eq!(said, format!("{node}: {domain}\n"));
    }
    assert_eq!(lab.ashlar("node domain oss3 --identity @first").expect(0).stdout, "rack2\n");
    let nodes = json(&lab, "node list");
    let domain = |name: &str| {
        nodes.as_array().unwrap().iter().find(|node| node["name"] == name).unwrap()["domain"].clone()
    };
    assert_eq!((domain("oss1"), domain("mds")), ("rack1".into(), Value::Null));
    let targets = json(&lab, "target list");
    let by_target: BTreeMap<u64, &str> = targets
        .as_array()
        .unwrap()
        .iter()
        .map(|target| (target["id"].as_u64().unwrap(), target["domain"].as_str().unwrap()))
        .collect();
    assert_eq!(by_target.values().filter(|domain| **domain == "rack1").count(), 2);
    let shown = lab.ashlar("target list --identity @first").expect(0).stdout;
    assert_eq!(shown.matches(", in rack2").count(), 2, "{shown}");
    let shown = lab.ashlar("node show oss0 --identity @first").expect(0).stdout;
    assert!(shown.contains("in rack1"), "{shown}");
    let events = json(&lab, "event list --kind domain-changed");
    assert_eq!(events.as_array().unwrap().len(), 4, "{events}");

    let directory = lab.path("m0/striped");
    fs::create_dir(&directory).unwrap();
    for choice in ["round-robin", "scatter", "free-space"] {
        let set = format!("layout set {} --stripe-count 2 --choice {choice}", directory.display());
        lab.ashlar(&set).expect(0);
        let found = pairs(&lab, 12, &by_target);
        assert_eq!(found, BTreeSet::from([vec!["rack1".to_owned(), "rack2".to_owned()]]), "{choice}");
    }
    // Content that is there stays readable while its chains go to the other target of the rack.
    lab.ashlar(&format!("layout set {} --stripe-count 0 --choice round-robin", directory.display()))
        .expect(0);
    let file = directory.join("kept");
    let content: Vec<u8> = (0..8u32 << 20).map(|at| (at % 251) as u8).collect();
    fs::write(&file, &content).unwrap();
    assert_eq!(targets_of(&lab, &file).len(), 4);
    let drained = by_target.iter().find(|(_, domain)| **domain == "rack1").map(|(id, _)| *id).unwrap();
    let sibling = by_target.iter().rfind(|(_, domain)| **domain == "rack1").map(|(id, _)| *id).unwrap();
    lab.ashlar(&format!("target drain {drained} --identity @first")).expect(0);
    let deadline = Instant::now() + Duration::from_secs(120);
    let chains = |id: u64| {
        let targets = json(&lab, "target list");
        targets.as_array().unwrap().iter().find(|target| target["id"] == id).unwrap()["chains"]
            .as_u64()
            .unwrap()
    };
    while chains(drained) > 0 {
        assert!(Instant::now() < deadline, "{} chains are left", chains(drained));
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(chains(sibling), 200, "all went to the other one of the rack");
    assert_eq!(fs::read(&file).unwrap(), content);
    // Without racks each server is by itself.
    lab.ashlar("node domain oss0 none --identity @first").expect(0);
    assert_eq!(lab.ashlar("node domain oss0 --identity @first").expect(0).stdout, "none\n");
    lab.stop();
}
