//! Which nodes a lab has, and where they are.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// What a node of a lab does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabRole {
    Manager,
    /// A member of an etcd that keeps the state of the managers.
    Etcd,
    Meta,
    Storage,
    Client,
    Console,
    /// Lets browsers of this machine in to the console.
    Gateway,
}

impl LabRole {
    /// As the command line of `ashlar` names it.
    pub fn name(self) -> &'static str {
        match self {
            LabRole::Manager => "manager",
            LabRole::Etcd => "etcd",
            LabRole::Meta => "meta",
            LabRole::Storage => "storage",
            LabRole::Client => "client",
            LabRole::Console => "console",
            LabRole::Gateway => "gateway",
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

/// The name of the first manager, which makes the file system.
pub const FIRST_MANAGER: &str = "manager";
/// Members of an etcd; each is beside a manager, with which it shares a directory.
pub const ETCD_MEMBERS: u32 = 3;

/// How many there are of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub managers: u32,
    pub has_etcd: bool,
    pub meta: u32,
    pub storage: u32,
    pub clients: u32,
    pub has_console: bool,
}

/// The manager that the member of etcd of this name is beside.
pub fn manager_beside(member: &str) -> String {
    match member.trim_start_matches(LabRole::Etcd.name()) {
        "1" => FIRST_MANAGER.to_owned(),
        number => format!("{}{number}", LabRole::Manager.name()),
    }
}

/// The managers and members of etcd, in the order in which they start: a manager wants its state, a further member of etcd has its manager join first.
fn managers(shape: &Shape) -> Vec<(LabRole, String)> {
    let etcd = |number: u32| (LabRole::Etcd, format!("{}{number}", LabRole::Etcd.name()));
    let mut named = Vec::new();
    named.extend(shape.has_etcd.then(|| etcd(1)));
    named.push((LabRole::Manager, FIRST_MANAGER.to_owned()));
    for number in 2..=shape.managers {
        named.push((LabRole::Manager, format!("{}{number}", LabRole::Manager.name())));
        named.extend((shape.has_etcd && number <= ETCD_MEMBERS).then(|| etcd(number)));
    }
    named
}

/// The nodes, servers first, in the order in which they start.
pub fn nodes(shape: &Shape) -> Vec<LabNode> {
    let numbered =
        |role: LabRole, count: u32| (1..=count).map(move |at| (role, format!("{}{at}", role.name())));
    let of_console = [LabRole::Console, LabRole::Gateway].map(|role| (role, role.name().to_owned()));
    let named = managers(shape)
        .into_iter()
        // Targets before metadata, which looks at them when it starts.
        .chain(numbered(LabRole::Storage, shape.storage))
        .chain(numbered(LabRole::Meta, shape.meta))
        .chain(numbered(LabRole::Client, shape.clients))
        .chain(of_console.into_iter().filter(|_| shape.has_console));
    // LIMIT: 5 + 3 + 16 + 64 + 64 + 2 nodes, as the command line has them, fit behind 10.77.0.
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

    const ALL: Shape =
        Shape { managers: 5, has_etcd: true, meta: 16, storage: 64, clients: 64, has_console: true };

    #[test]
    fn every_node_has_an_address_of_its_own() {
        let nodes = nodes(&ALL);
        assert_eq!(nodes.len(), 154);
        let mut addresses: Vec<Ipv4Addr> = nodes.iter().map(|node| node.address).collect();
        addresses.dedup();
        assert_eq!(addresses.len(), 154);
    }

    #[test]
    fn what_is_needed_starts_first() {
        let small =
            Shape { managers: 1, has_etcd: false, meta: 1, storage: 1, clients: 1, has_console: true };
        let names =
            |shape: &Shape| -> Vec<String> { nodes(shape).into_iter().map(|node| node.name).collect() };
        assert_eq!(names(&small), ["manager", "storage1", "meta1", "client1", "console", "gateway"]);
        let first = [
            "etcd1", "manager", "manager2", "etcd2", "manager3", "etcd3", "manager4", "manager5", "storage1",
        ];
        assert_eq!(names(&ALL)[..9], first);
        assert_eq!(["etcd1", "etcd3"].map(manager_beside), ["manager", "manager3"]);
    }
}
