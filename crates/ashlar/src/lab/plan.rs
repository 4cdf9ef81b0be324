//! Which nodes a lab has, and where they are.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// What a node of a lab does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabRole {
    Manager,
    Meta,
    Storage,
    Client,
}

impl LabRole {
    /// As the command line of `ashlar` names it.
    pub fn name(self) -> &'static str {
        match self {
            LabRole::Manager => "manager",
            LabRole::Meta => "meta",
            LabRole::Storage => "storage",
            LabRole::Client => "client",
        }
    }
}

/// A node of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabNode {
    pub name: String,
    pub role: LabRole,
    pub address: Ipv4Addr,
}

/// The nodes, servers first, in the order in which they start.
pub fn nodes(meta: u32, storage: u32, clients: u32) -> Vec<LabNode> {
    let numbered =
        |role: LabRole, count: u32| (1..=count).map(move |at| (role, format!("{}{at}", role.name())));
    let named = [(LabRole::Manager, "manager".to_owned())]
        .into_iter()
        // Targets before metadata, which looks at them when it starts.
        .chain(numbered(LabRole::Storage, storage))
        .chain(numbered(LabRole::Meta, meta))
        .chain(numbered(LabRole::Client, clients));
    // LIMIT: 1 + 16 + 64 + 64 nodes, as the command line has them, fit behind 10.77.0.
    let nodes = named.zip(1..=254u8).map(|((role, name), at)| LabNode {
        name,
        role,
        address: Ipv4Addr::new(10, 77, 0, at),
    });
    nodes.collect()
}

/// Where everything of a lab is.
#[derive(Clone, Debug)]
pub struct Places {
    pub dir: PathBuf,
}

impl Places {
    pub fn record(&self) -> PathBuf {
        self.dir.join("lab.json")
    }

    pub fn log(&self, node: &str) -> PathBuf {
        self.dir.join("log").join(format!("{node}.log"))
    }

    pub fn identity(&self, node: &str) -> PathBuf {
        self.dir.join("identity").join(node)
    }

    pub fn data(&self, node: &str) -> PathBuf {
        self.dir.join("data").join(node)
    }

    pub fn mountpoint(&self, node: &str) -> PathBuf {
        self.dir.join(node)
    }

    /// What a lab makes besides mount points and its record.
    pub fn trees(&self) -> [PathBuf; 3] {
        ["log", "identity", "data"].map(|name| self.dir.join(name))
    }

    /// Without symbolic links: the mount table has none.
    pub fn of(dir: &Path) -> Places {
        let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Places { dir: absolute.canonicalize().unwrap_or(absolute) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_an_address_of_its_own() {
        let nodes = nodes(16, 64, 64);
        assert_eq!(nodes.len(), 145);
        let mut addresses: Vec<Ipv4Addr> = nodes.iter().map(|node| node.address).collect();
        addresses.dedup();
        assert_eq!(addresses.len(), 145);
        assert_eq!((nodes[1].name.as_str(), nodes[65].name.as_str()), ("storage1", "meta1"));
    }
}
