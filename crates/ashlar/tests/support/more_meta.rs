//! Metadata servers besides the first.

use super::PATIENCE;
use super::cluster::{Lab, Role};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

impl Lab {
    /// Has another metadata server join: an identity, not a process.
    #[track_caller]
    pub fn join_meta(&self, name: &str) {
        let token = self.ashlar("token --role meta --identity @first").expect(0).stdout;
        self.ashlar(&format!("join {} --name {name} --identity @{name}", token.trim())).expect(0);
    }

    /// Has the `at`th metadata server join, and starts it.
    #[track_caller]
    pub fn add_meta(&self, at: usize) -> Role {
        let name = format!("mds{at}");
        self.join_meta(&name);
        self.start_more_meta(at)
    }

    /// Starts the `at`th metadata server, which has joined.
    #[track_caller]
    pub fn start_more_meta(&self, at: usize) -> Role {
        let name = format!("mds{at}");
        let line = format!("meta --meta @meta{at} --listen {} --identity @{name}", Lab::free_address());
        // It serves, or keeps copies.
        self.run(&name, &line, "serves|keeps copies")
    }

    /// How many shards each metadata server has that has any.
    #[track_caller]
    pub fn shards_by_node(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for node in self.nodes_of_shards() {
            *counts.entry(node).or_insert(0) += 1;
        }
        counts
    }

    /// The name of the metadata server of each shard, in the order of their numbers.
    #[track_caller]
    pub fn nodes_of_shards(&self) -> Vec<String> {
        let listed = self.ashlar("shard list --json --identity @first").expect(0).stdout;
        let shards: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let named = |shard: &serde_json::Value| {
            let name = shard["node"]["name"].as_str().unwrap_or_default().to_owned();
            (shard["id"].as_u64().unwrap(), name)
        };
        let named: BTreeMap<u64, String> = shards.as_array().unwrap().iter().map(named).collect();
        named.into_values().collect()
    }

    /// Waits until so many servers have about as many shards as each other.
    #[track_caller]
    pub fn wait_until_spread(&self, servers: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counts = self.shards_by_node();
            if counts.len() == servers && counts.values().all(|count| *count >= 64 / servers) {
                return;
            }
            assert!(Instant::now() < deadline, "shards are not spread: {counts:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
