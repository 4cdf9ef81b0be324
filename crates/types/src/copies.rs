//! Copies of metadata servers, as managers keep and tell them (ADR 0029).

use crate::{Epoch, Membership, NodeId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The copies of one metadata server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyGroup {
    /// The metadata server: the node that set it up.
    pub server: NodeId,
    /// How many copies there are to be.
    pub wanted: u8,
    /// Who keeps them, the machine that serves first. `None` until the server has made its log one that can be copied.
    pub membership: Option<Membership<NodeId>>,
    /// The epoch of the membership at which the metadata service was begun last.
    pub begun: Epoch,
    /// Machines that have kept a copy, the last one last: what they have is most of it. With how often in turn each was removed before it had all of it.
    // LIMIT: `CopyGroup::FORMER_MAX`.
    pub former: Vec<(NodeId, u8)>,
    /// When one was removed last, seconds since 1970: it is waited for a while before another machine is given all of it.
    pub removed_s: u64,
}

impl CopyGroup {
    /// Most copies of a metadata server.
    pub const COPIES_MAX: u8 = 3;
    /// Most machines that are remembered to have kept a copy.
    pub const FORMER_MAX: usize = 8;

    /// A group that is to be, of the metadata server that `server` has set up.
    pub fn new(server: NodeId, wanted: u8) -> CopyGroup {
        CopyGroup { server, wanted, membership: None, begun: Epoch(0), former: Vec::new(), removed_s: 0 }
    }

    /// Whether `node` keeps a copy, or is being given one.
    pub fn is_kept_by(&self, node: NodeId) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.is_member(node))
    }
}

/// A machine that can keep copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyHost {
    /// The machine.
    pub node: NodeId,
    /// Where other copies reach it.
    pub addresses: Vec<SocketAddr>,
}

/// All copies of metadata servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyNotes {
    /// One for each metadata server that has copies, or is to have some; by server.
    // LIMIT: as metadata servers.
    pub groups: Vec<CopyGroup>,
}

impl CopyNotes {
    /// The group of `server`.
    pub fn group(&self, server: NodeId) -> Option<&CopyGroup> {
        self.groups.iter().find(|group| group.server == server)
    }

    /// The membership of `server`, if there are copies.
    pub fn membership(&self, server: NodeId) -> Option<&Membership<NodeId>> {
        self.group(server)?.membership.as_ref()
    }
}
