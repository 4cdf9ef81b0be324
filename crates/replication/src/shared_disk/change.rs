//! Changes of a shared disk, as pure functions from one to the next. The manager runs them between reading the state of the file system and the compare-and-set that replaces it.

use ashlar_types::{DiskState, DiskWord, NodeId, SharedDisk};

/// Why a server does not get a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another one may have it mounted.
    #[error("{0} has it, or is about to")]
    Taken(NodeId),
    /// It has never said that it reaches it.
    #[error("the server has not said that it reaches it")]
    Unknown,
}

fn turned(disk: &SharedDisk, state: DiskState) -> SharedDisk {
    SharedDisk { turn: disk.turn + 1, state, ..disk.clone() }
}

/// `by` is about to mount the disk: granted at the turn that is returned.
///
/// # Errors
/// While somebody else may have it mounted.
pub fn use_by(disk: &SharedDisk, by: NodeId) -> Result<SharedDisk, Refused> {
    if !disk.servers.contains(&by) {
        return Err(Refused::Unknown);
    }
    match disk.state {
        DiskState::Free { .. } => Ok(turned(disk, DiskState::Used { by })),
        // Once more, by a process that was started anew, or whose answer was lost.
        DiskState::Used { by: known } if known == by => Ok(turned(disk, DiskState::Used { by })),
        _ => Err(Refused::Taken(disk.user().unwrap_or(by))),
    }
}

/// What follows from what `from`, a server, says of the disk, if anything does.
pub fn heard(disk: &SharedDisk, from: NodeId, word: &DiskWord) -> Option<SharedDisk> {
    let has_let_go = !word.is_mounted && word.seen >= disk.turn;
    match disk.state {
        DiskState::Used { by } if by == from && has_let_go => {
            Some(turned(disk, DiskState::Free { next: None }))
        }
        DiskState::Leaving { from: user, to } | DiskState::Fencing { from: user, by: to }
            if user == from && has_let_go =>
        {
            Some(turned(disk, DiskState::Free { next: Some(to) }))
        }
        DiskState::Fencing { by, .. } if by == from => word.fenced.and_then(|turn| fenced(disk, from, turn)),
        _ => None,
    }
}

/// `by` has fenced at `turn` who it was told to fence then.
pub fn fenced(disk: &SharedDisk, by: NodeId, turn: u64) -> Option<SharedDisk> {
    let is_it = matches!(disk.state, DiskState::Fencing { by: known, .. } if known == by);
    (is_it && turn == disk.turn).then(|| turned(disk, DiskState::Free { next: Some(by) }))
}

/// An administrator vouches for it that `node` is switched off, and cannot write to any disk before it is started anew.
pub fn confirmed(disk: &SharedDisk, node: NodeId) -> Option<SharedDisk> {
    let next = match disk.state {
        DiskState::Leaving { to, .. } | DiskState::Fencing { by: to, .. } => Some(to),
        _ => None,
    };
    (disk.user() == Some(node)).then(|| turned(disk, DiskState::Free { next }))
}

/// The disk is to go to `to`, in good order.
pub fn leave(disk: &SharedDisk, to: NodeId) -> Option<SharedDisk> {
    match disk.state {
        DiskState::Used { by } if by != to => Some(turned(disk, DiskState::Leaving { from: by, to })),
        DiskState::Free { next } if next != Some(to) => {
            Some(turned(disk, DiskState::Free { next: Some(to) }))
        }
        _ => None,
    }
}

/// Who may have it mounted is silent, or does not let go of it; so is who was to fence him, if it is another one. `by` is to fence him.
pub fn silent(disk: &SharedDisk, by: NodeId) -> Option<SharedDisk> {
    let from = disk.user().filter(|from| *from != by)?;
    let is_so = disk.state == DiskState::Fencing { from, by };
    (!is_so).then(|| turned(disk, DiskState::Fencing { from, by }))
}

/// `node` cannot use it: it is not given back to that one by itself.
pub fn failed(disk: &SharedDisk, node: NodeId) -> Option<SharedDisk> {
    (disk.failed != Some(node)).then(|| SharedDisk { failed: Some(node), ..disk.clone() })
}

/// Whether `node` is to let go of what it may have mounted.
pub fn is_to_leave(disk: &SharedDisk, node: NodeId) -> bool {
    disk.state != DiskState::Used { by: node }
}
