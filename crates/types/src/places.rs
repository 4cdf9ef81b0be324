//! Where a role of a node listens: for everybody, for management alone, and for single targets.
//!
//! In the map a role may have several entries in [`Node::listening`](crate::Node). The first one is for everybody, and the only one that earlier versions
//! know. A further one is for one purpose, which its first address says: it is no address but a mark of the discard prefix `100::/64` (RFC 6666), port 0.

use crate::node::Listening;
use crate::{Node, Role, TargetId};
use std::net::{Ipv6Addr, SocketAddr};

/// The discard prefix, and what a mark is for.
const PREFIX: u16 = 0x100;
const FOR_MANAGEMENT: u16 = 1;
const FOR_TARGET: u16 = 2;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// For everybody, the preferred one first.
    pub addresses: Vec<SocketAddr>,
    /// For administrators and between servers; nobody's data is carried there.
    pub management: Vec<SocketAddr>,
    /// Those of `addresses` at which a target is reached best.
    pub targets: Vec<(TargetId, Vec<SocketAddr>)>,
}

fn mark(purpose: u16, number: u32) -> SocketAddr {
    let [high, low] = [(number >> 16) as u16, number as u16];
    SocketAddr::from((Ipv6Addr::new(PREFIX, 0, 0, 0, 0, purpose, high, low), 0))
}

impl Places {
    /// Most targets of a server that have addresses of their own.
    // LIMIT: of an entry of the map.
    pub const TARGETS_MAX: usize = 64;

    /// Whether others can connect to all of them, and targets are where the server is.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_bad = |address: &SocketAddr| address.port() == 0 || address.ip().is_unspecified();
        let is_too_long = |all: &[SocketAddr]| all.len() > Node::ADDRESSES_MAX || all.iter().any(is_bad);
        if self.addresses.is_empty() || is_too_long(&self.addresses) || is_too_long(&self.management) {
            return Err("addresses must be such that others can connect to them, 16 at the most");
        }
        if self.management.iter().any(|address| self.addresses.contains(address)) {
            return Err("an address is for management, and for everybody");
        }
        let is_elsewhere = |(_, own): &(TargetId, Vec<SocketAddr>)| {
            own.is_empty() || own.iter().any(|address| !self.addresses.contains(address))
        };
        if self.targets.len() > Self::TARGETS_MAX || self.targets.iter().any(is_elsewhere) {
            return Err(
                "addresses of a target must be among those of its server, and 64 targets have some at the most",
            );
        }
        Ok(())
    }

    /// As the map has them.
    pub fn entries(&self, role: Role) -> Vec<Listening> {
        let marked = |first: SocketAddr, all: &[SocketAddr]| Listening {
            role,
            addresses: std::iter::once(first).chain(all.iter().copied()).collect(),
        };
        let mut entries = vec![Listening { role, addresses: self.addresses.clone() }];
        if !self.management.is_empty() {
            entries.push(marked(mark(FOR_MANAGEMENT, 0), &self.management));
        }
        entries.extend(self.targets.iter().map(|(target, own)| marked(mark(FOR_TARGET, target.0), own)));
        entries
    }
}

impl Node {
    fn marked(&self, role: Role, first: SocketAddr) -> &[SocketAddr] {
        let mut of_role = self.listening.iter().filter(|listening| listening.role == role).skip(1);
        let found = of_role.find(|listening| listening.addresses.first() == Some(&first));
        found.map_or(&[], |found| &found.addresses[1..])
    }

    /// The addresses at which it is `role` for management alone; none if it makes no difference.
    pub fn management(&self, role: Role) -> &[SocketAddr] {
        self.marked(role, mark(FOR_MANAGEMENT, 0))
    }

    /// The addresses at which `target` is reached best; none if all are the same.
    pub fn addresses_of_target(&self, target: TargetId) -> &[SocketAddr] {
        self.marked(Role::Storage, mark(FOR_TARGET, target.0))
    }

    /// Where `caller` finds it as `role`: first, and if nobody answers there. An administrator goes by the network for management and by no other, where there is
    /// one; other servers reach managers there first; clients know nothing of it.
    pub fn reached_by(&self, caller: Role, role: Role) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let (everybody, management) = (self.addresses(role).to_vec(), self.management(role).to_vec());
        match caller {
            _ if management.is_empty() => (everybody, Vec::new()),
            _ if caller.is_of_management() => (management, Vec::new()),
            Role::Meta | Role::Storage | Role::Manager if role == Role::Manager => (management, everybody),
            _ => (everybody, Vec::new()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::{NodeId, NodePolicy};

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn places() -> Places {
        Places {
            addresses: vec![at("10.0.0.1:1"), at("10.0.1.1:1")],
            management: vec![at("192.168.0.1:1")],
            targets: vec![(TargetId(7), vec![at("10.0.1.1:1")]), (TargetId(70_000), vec![at("10.0.0.1:1")])],
        }
    }

    fn node(role: Role) -> Node {
        Node {
            id: NodeId(1),
            name: "n".into(),
            roles: Default::default(),
            listening: places().entries(role),
            policy: NodePolicy::default(),
            domain: String::new(),
        }
    }

    #[test]
    fn what_each_address_is_for_can_be_read_from_the_map() {
        let node = node(Role::Storage);
        assert_eq!(node.addresses(Role::Storage), places().addresses);
        assert_eq!(node.management(Role::Storage), places().management);
        assert_eq!(node.addresses_of_target(TargetId(7)), [at("10.0.1.1:1")]);
        assert_eq!(node.addresses_of_target(TargetId(70_000)), [at("10.0.0.1:1")]);
        assert!(node.addresses_of_target(TargetId(8)).is_empty() && node.management(Role::Meta).is_empty());
    }

    #[test]
    fn administrators_go_by_the_management_network_alone_and_clients_never() {
        let (everybody, management) = (places().addresses, places().management);
        let manager = node(Role::Manager);
        assert_eq!(manager.reached_by(Role::Admin, Role::Manager), (management.clone(), vec![]));
        assert_eq!(manager.reached_by(Role::Client, Role::Manager), (everybody.clone(), vec![]));
        assert_eq!(manager.reached_by(Role::Storage, Role::Manager), (management.clone(), everybody.clone()));
        let storage = node(Role::Storage);
        assert_eq!(storage.reached_by(Role::Meta, Role::Storage), (everybody, vec![]));
        assert_eq!(storage.reached_by(Role::Admin, Role::Storage), (management.clone(), vec![]));
        assert_eq!(storage.reached_by(Role::Console, Role::Storage), (management, vec![]));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert_eq!(places().check(), Ok(()));
        let spoilt: [fn(&mut Places); 5] = [
            |places| places.addresses.clear(),
            |places| places.management.push(at("10.0.0.1:1")),
            |places| places.management.push(at("192.168.0.1:0")),
            |places| places.targets[0].1.push(at("10.0.2.1:1")),
            |places| places.targets[0].1.clear(),
        ];
        for spoil in spoilt {
            let mut places = places();
            spoil(&mut places);
            assert!(places.check().is_err(), "{places:?}");
        }
    }
}
