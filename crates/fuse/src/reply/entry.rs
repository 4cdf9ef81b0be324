//! The answer to everything that finds or makes a node.

use super::{Attr, lifetime_parts};
use crate::id::NodeId;
use crate::protocol::wire;
use std::time::Duration;

/// A node behind a name. Each reply with one counts as a lookup, until the kernel forgets it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The node; 0 says the name does not exist, for `entry_lifetime`.
    pub node: NodeId,
    /// Distinguishes nodes that had the same id at different times (NFS export).
    pub generation: u64,
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may believe the name.
    pub entry_lifetime: Duration,
    /// How long the kernel may believe the attributes.
    pub attr_lifetime: Duration,
}

impl Entry {
    /// The name does not exist, and the kernel need not ask again for `lifetime`.
    pub fn negative(lifetime: Duration) -> Self {
        Self {
            node: NodeId(0),
            generation: 0,
            attr: Attr::default(),
            entry_lifetime: lifetime,
            attr_lifetime: Duration::ZERO,
        }
    }

    pub(crate) fn to_wire(self) -> wire::EntryOut {
        let (entry_valid, entry_valid_nsec) = lifetime_parts(self.entry_lifetime);
        let (attr_valid, attr_valid_nsec) = lifetime_parts(self.attr_lifetime);
        wire::EntryOut {
            nodeid: self.node.0,
            generation: self.generation,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr: self.attr.to_wire(),
        }
    }
}
