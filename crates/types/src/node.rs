//! Servers and clients of a cluster: what they may be, where they listen, and the name that a certificate gives them.

use crate::{ClusterId, NodeId, NodePolicy};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// What a process of the cluster does. The number is part of stored and sent forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Keeps the cluster map and the certificate authority.
    Manager,
    /// Serves metadata.
    Meta,
    /// Serves targets.
    Storage,
    /// Mounts the file system.
    Client,
    /// Administers.
    Admin,
    /// Has a token and wants to become a node. No certificate has this role.
    Joiner,
    /// Shows administrators how the file system is, and changes nothing.
    Console,
}

impl Role {
    /// All that a certificate may have.
    pub const ALL: [Role; 6] =
        [Role::Manager, Role::Meta, Role::Storage, Role::Client, Role::Admin, Role::Console];

    /// What the first node of a file system may be: everything but a console, which has a certificate of its own that is good for nothing else.
    pub const OF_FIRST_NODE: [Role; 5] =
        [Role::Manager, Role::Meta, Role::Storage, Role::Client, Role::Admin];

    /// Its name on the command line and in certificates.
    pub fn name(self) -> &'static str {
        match self {
            Role::Manager => "manager",
            Role::Meta => "meta",
            Role::Storage => "storage",
            Role::Client => "client",
            Role::Admin => "admin",
            Role::Joiner => "joiner",
            Role::Console => "console",
        }
    }

    /// Whether it calls servers at their addresses for management, where they have such.
    pub fn is_of_management(self) -> bool {
        matches!(self, Role::Admin | Role::Console)
    }

    /// The role of this name.
    pub fn parse(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who a session belongs to: a process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOwner {
    /// The node.
    pub node: NodeId,
    /// Which of its processes: drawn at random when it starts.
    pub instance: [u8; 16],
}

/// A set of roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Roles(pub u16);

impl Roles {
    /// Whether `role` is in it.
    pub fn has(self, role: Role) -> bool {
        self.0 & (1 << role as u16) != 0
    }

    /// With `role`.
    #[must_use]
    pub fn with(self, role: Role) -> Roles {
        Roles(self.0 | 1 << role as u16)
    }

    /// Whether every role of it is in `other`.
    pub fn is_within(self, other: Roles) -> bool {
        self.0 & !other.0 == 0
    }

    /// The roles that are in both.
    #[must_use]
    pub fn and(self, other: Roles) -> Roles {
        Roles(self.0 & other.0)
    }

    /// The roles in it.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.has(*role))
    }

    /// Reads names with `+` or `,` between them; none of them may be unknown.
    pub fn parse(text: &str) -> Option<Roles> {
        text.split(['+', ',']).try_fold(Roles::default(), |roles, name| Some(roles.with(Role::parse(name)?)))
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Roles {
        roles.into_iter().fold(Roles::default(), Roles::with)
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, role) in self.iter().enumerate() {
            write!(f, "{}{role}", if at > 0 { "+" } else { "" })?;
        }
        Ok(())
    }
}

/// Where one role of a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// The role.
    pub role: Role,
    /// Its addresses, the preferred one first.
    pub addresses: Vec<SocketAddr>,
}

/// A machine that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id, never reused.
    pub id: NodeId,
    /// The name an administrator gave it; unique.
    pub name: String,
    /// What its certificate allows it to be.
    pub roles: Roles,
    /// Which of them listen where; a client listens nowhere.
    pub listening: Vec<Listening>,
    /// What it may do as a client.
    pub policy: NodePolicy,
    /// What it shares with other nodes that can fail at once, such as a rack; empty: it fails alone.
    pub domain: String,
}

impl Node {
    // LIMIT: of a name, bytes; of the addresses of a role.
    /// Longest name, bytes.
    pub const NAME_BYTES_MAX: usize = 64;
    /// Most addresses of one role.
    pub const ADDRESSES_MAX: usize = 16;

    /// Whether `name` may be the name of a node: letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
    pub fn is_name(name: &str) -> bool {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        name.len() <= Self::NAME_BYTES_MAX
            && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && name.bytes().all(is_good)
    }

    /// The addresses at which it is `role`.
    pub fn addresses(&self, role: Role) -> &[SocketAddr] {
        self.listening.iter().find(|listening| listening.role == role).map_or(&[], |at| &at.addresses)
    }
}

/// Who a certificate says its holder is. Its text is a URI among the certificate's alternative names (RFC 5280, 4.2.1.6):
/// `ashlar://CLUSTER/NODE/ROLE+ROLE`, the node as a decimal number; with `/HOST` behind it, also a decimal number, when another machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerId {
    /// The file system.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// What it may be.
    pub roles: Roles,
    /// The machine that has it in the place of the node: one that keeps a copy of its metadata. `None`: the node itself.
    pub host: Option<NodeId>,
}

impl PeerId {
    /// Reads what [`fmt::Display`] wrote, and nothing else.
    pub fn parse(uri: &str) -> Option<PeerId> {
        let mut parts = uri.strip_prefix("ashlar://")?.split('/');
        let (cluster, node, roles) = (parts.next()?, parts.next()?, parts.next()?);
        let number = |text: &str| text.parse().ok().map(NodeId);
        let host = match parts.next() {
            Some(host) => Some(number(host)?),
            None => None,
        };
        let (cluster, roles) = (ClusterId::parse(cluster)?, Roles::parse(roles)?);
        let peer = PeerId { cluster, node: number(node)?, roles, host };
        (parts.next().is_none() && peer.to_string() == uri).then_some(peer)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ashlar://{}/{}/{}", self.cluster, self.node.0, self.roles)?;
        match self.host {
            Some(host) => write!(f, "/{}", host.0),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_a_certificate_is_read_as_it_was_written_and_nothing_else_is() {
        let roles = Roles::default().with(Role::Meta).with(Role::Storage);
        let peer = PeerId { cluster: ClusterId([0xab; 16]), node: NodeId(17), roles, host: None };
        let text = peer.to_string();
        assert_eq!(text, "ashlar://abababab-abab-abab-abab-abababababab/17/meta+storage");
        assert_eq!(PeerId::parse(&text), Some(peer));
        for wrong in [
            text.replace("ashlar:", "http:"),
            text.replace("/17/", "/+17/"),
            text.replace("/17/", "/017/"),
            text.replace("meta+storage", "storage+meta"),
            text.replace("meta", "root"),
            text.replace("abababab-", "abababab"),
            text.replace("abababab-", "ABABABAB-"),
            format!("{text}/"),
            String::new(),
        ] {
            assert_eq!(PeerId::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_certificate_that_another_machine_has_says_which() {
        let roles = Roles::default().with(Role::Meta);
        let own = PeerId { cluster: ClusterId([0xab; 16]), node: NodeId(17), roles, host: None };
        for host in [0, 4, 17, u32::MAX] {
            let peer = PeerId { host: Some(NodeId(host)), ..own };
            assert_eq!(peer.to_string(), format!("{own}/{host}"));
            assert_eq!(PeerId::parse(&peer.to_string()), Some(peer));
        }
        for wrong in
            ["/", "/4/", "/4/5", "//4", "/+4", "/04", "/-4", "/ 4", "/4 ", "/4294967296", "/x", "/meta"]
        {
            let wrong = format!("{own}{wrong}");
            assert_eq!(PeerId::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn roles_are_sets_with_names() {
        let roles = Roles::parse("client,meta").unwrap();
        assert_eq!(roles.to_string(), "meta+client");
        assert!(
            roles.is_within(Role::ALL.into_iter().collect())
                && !roles.is_within(Roles::default().with(Role::Meta))
        );
        assert_eq!(Roles::parse(""), None);
        assert_eq!(Roles::parse("meta,,client"), None);
    }

    #[test]
    fn names_of_nodes_cannot_be_mistaken_for_anything_else() {
        assert!(Node::is_name("oss-1.example") && Node::is_name("1"));
        for wrong in ["", "-a", ".", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(!Node::is_name(wrong), "{wrong}");
        }
    }
}
