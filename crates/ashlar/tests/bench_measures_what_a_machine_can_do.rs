//! `ashlar bench` as a person and a script use it.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::process::Command;
use support::{binary, finish};

fn memory(options: &[&str]) -> support::Ended {
    let mut command = Command::new(binary());
    finish(command.args(["bench", "memory"]).args(options))
}

#[test]
fn memory_is_measured_on_every_node_and_its_modules_are_looked_at() {
    let ended = memory(&["--array-size", "1m", "--repetitions", "3"]).expect(0);
    for text in
        ["NUMA node 0", "less than four times the caches", "copy", "scale", "add", "triad", "memory modules:"]
    {
        assert!(ended.stdout.contains(text), "{text} is missing in {}", ended.all());
    }
    let ended =
        memory(&["--array-size", "1m", "--repetitions", "3", "--json", "--node", "0", "--threads", "1"])
            .expect(0);
    let read: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let node = &read["nodes"][0];
    assert_eq!(
        (&node["node"], &node["threads"], &node["array_bytes"]),
        (&0.into(), &1.into(), &(1 << 20).into())
    );
    let rates = node["bytes_per_second"].as_array().unwrap();
    assert_eq!(rates.len(), 4);
    assert!(rates.iter().all(|rates| rates["best"].as_f64().unwrap() > 1e6), "{}", ended.stdout);
}

#[test]
fn what_cannot_be_measured_is_named() {
    memory(&["--node", "77"]).refused(&["there is no NUMA node 77", "there is 0"]);
    memory(&["--threads", "100000"]).refused(&["--threads can be"]);
    memory(&["--array-size", "100000g"]).refused(&["bytes of free memory", "name a smaller size"]);
    let ended = memory(&["--array-size", "1k"]);
    assert!(ended.stderr.contains("an array has 1m at least"), "{}", ended.all());
}
