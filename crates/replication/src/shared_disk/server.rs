//! What one server does about a shared disk.

use super::is_to_leave;
use ashlar_types::{DiskState, NodeId, SharedDisk};

/// What is to be done next. Whoever does it says what came of it before the machine is told anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Do {
    /// Ask for it ([`super::use_by`]), then [`AtServer::granted`].
    Ask,
    /// Close what is on it and unmount it, then [`AtServer::let_go`].
    LetGo,
    /// See to it that this server cannot write any more, then [`AtServer::has_fenced`].
    Fence {
        /// Who.
        from: NodeId,
        /// At which turn.
        turn: u64,
    },
}

/// What a server knows of a shared disk, for as long as its process lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AtServer {
    node: NodeId,
    seen: u64,
    is_mounted: bool,
    fenced: Option<u64>,
}

impl AtServer {
    /// At the start of a process. `is_mounted`: one before has left it so.
    pub fn new(node: NodeId, is_mounted: bool) -> AtServer {
        AtServer { node, seen: 0, is_mounted, fenced: None }
    }

    /// The last turn that was seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether it is mounted here, or may be.
    pub fn is_mounted(&self) -> bool {
        self.is_mounted
    }

    /// At which turn somebody was fenced by this server.
    pub fn fenced(&self) -> Option<u64> {
        self.fenced
    }

    /// The disk is `disk`, as a manager says. `serves`: the target on it is in service here; `is_to_take`: it is for this server to have it.
    pub fn told(&mut self, disk: &SharedDisk, serves: bool, is_to_take: bool) -> Option<Do> {
        if disk.turn < self.seen {
            return None;
        }
        self.seen = disk.turn;
        match disk.state {
            _ if self.is_mounted && is_to_leave(disk, self.node) => Some(Do::LetGo),
            // What a process before has left mounted is asked for like anything else.
            DiskState::Used { by } if by == self.node && !serves => Some(Do::Ask),
            DiskState::Free { .. } if is_to_take => Some(Do::Ask),
            DiskState::Fencing { from, by } if by == self.node && self.fenced != Some(disk.turn) => {
                Some(Do::Fence { from, turn: disk.turn })
            }
            _ => None,
        }
    }

    /// What was asked for is granted, at the turn that `disk` says. Tells whether to mount it now: it counts as mounted from here on.
    pub fn granted(&mut self, disk: &SharedDisk) -> bool {
        if disk.turn < self.seen || is_to_leave(disk, self.node) {
            return false;
        }
        self.seen = disk.turn;
        self.is_mounted = true;
        true
    }

    /// It is not mounted here (any more).
    pub fn let_go(&mut self) {
        self.is_mounted = false;
    }

    /// Whoever was to be fenced at `turn` cannot write any more.
    pub fn has_fenced(&mut self, turn: u64) {
        self.fenced = Some(turn);
    }
}
