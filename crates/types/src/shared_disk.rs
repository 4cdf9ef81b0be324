//! Disks that several storage servers reach, and of which one at a time has the file system mounted (ADR 0031).

use crate::{NodeId, TargetId};
use serde::{Deserialize, Serialize};

/// The UUID of the file system on a disk, as `blkid` tells it: both servers read the same.
pub type DiskId = [u8; 16];

/// A disk that several storage servers reach. What it becomes says `ashlar_replication::shared_disk`, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SharedDisk {
    /// Which.
    pub id: DiskId,
    /// Grows with each change of `state`: whoever has seen one does nothing any more by an earlier one.
    pub turn: u64,
    /// Who may have it mounted.
    pub state: DiskState,
    /// Servers that reach it.
    // LIMIT: [`SharedDisk::SERVERS_MAX`].
    pub servers: Vec<NodeId>,
    /// The server that is to have it while it is there.
    pub preferred: Option<NodeId>,
    /// A server that could not use it: it is not given back to that by itself.
    pub failed: Option<NodeId>,
    /// The target on it, once it is known.
    pub target: Option<TargetId>,
}

/// Who may have a shared disk mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DiskState {
    /// Nobody has it mounted.
    Free {
        /// Who is to have it next, before others.
        next: Option<NodeId>,
    },
    /// This server may have it mounted, and nobody else has.
    Used {
        /// Who.
        by: NodeId,
    },
    /// As `Used`, and it is to let go of it.
    Leaving {
        /// Who.
        from: NodeId,
        /// Who waits for it.
        to: NodeId,
    },
    /// As `Leaving`; it is silent, and the other one is to see to it that it cannot write any more.
    Fencing {
        /// Who is to be fenced.
        from: NodeId,
        /// Who does it.
        by: NodeId,
    },
}

impl SharedDisk {
    /// Most servers that reach one.
    pub const SERVERS_MAX: usize = 4;
    /// Most disks of one server.
    // LIMIT: each has a thread there.
    pub const AT_SERVER_MAX: usize = 64;
    /// Most disks of a file system.
    pub const COUNT_MAX: usize = 4096;

    /// One that nobody has.
    pub fn new(id: DiskId) -> SharedDisk {
        let state = DiskState::Free { next: None };
        SharedDisk { id, turn: 1, state, servers: Vec::new(), preferred: None, failed: None, target: None }
    }

    /// Who may have it mounted.
    pub fn user(&self) -> Option<NodeId> {
        match self.state {
            DiskState::Free { .. } => None,
            DiskState::Used { by } => Some(by),
            DiskState::Leaving { from, .. } | DiskState::Fencing { from, .. } => Some(from),
        }
    }

    /// The UUID as `blkid` writes it.
    pub fn shown(id: DiskId) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let [a, b, c, d, e] = [&id[..4], &id[4..6], &id[6..8], &id[8..10], &id[10..]].map(hex);
        format!("{a}-{b}-{c}-{d}-{e}")
    }
}

/// What a storage server says of a shared disk that it reaches, every second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DiskWord {
    /// Which.
    pub id: DiskId,
    /// The last turn that it has seen; 0: none.
    pub seen: u64,
    /// It has it mounted, or is about to, or may have.
    pub is_mounted: bool,
    /// At which turn it has fenced whoever it was told to.
    pub fenced: Option<u64>,
    /// It cannot use it: what it mounts fails, or the target has stopped, or the disk does not answer.
    pub is_failing: bool,
    /// It is the one that is to have it while it is there.
    pub is_preferred: bool,
    /// It can fence others.
    pub can_fence: bool,
    /// The target on it, if it has it mounted.
    pub target: Option<TargetId>,
}

/// What a server is told of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskOrder {
    /// The disk as it is.
    pub disk: SharedDisk,
    /// It is for the server to ask for it (`ManagerRequest::UseDisk`).
    pub is_to_take: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_shown_as_other_programs_write_it() {
        let id = [0x0a, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        assert_eq!(SharedDisk::shown(id), "0a010203-0405-0607-0809-0a0b0c0d0eff");
    }
}
