//! Starts of a file system. Metadata and every target note in which start they took part last, so that a copy of one of them that is
//! older than the rest is told from the one that belongs there.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One start: from `ashlar up`, or a repair, to its end. The default is "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Counts the starts of a file system, from 1.
    pub number: u64,
    /// Drawn at random: tells the starts of two copies of a file system apart that have the same number.
    pub tag: u64,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "start {}", self.number)
    }
}

/// What metadata knows of a target's starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStarts {
    /// The target's uuid.
    pub uuid: [u8; 16],
    /// The last start it is known to have taken part in.
    pub last: Start,
    /// One it may have taken part in: it began, and nobody knows how far it came.
    pub joining: Option<Start>,
}

/// What metadata knows of all starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// The last one that began.
    pub last: Start,
    /// Targets that have taken part in any.
    // LIMIT: one per target of the cluster map.
    pub targets: Vec<TargetStarts>,
}

/// Where a directory is that a server serves, so that the same one is told from a copy: no two directories that are there at the same time have the same place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartPlace {
    /// The boot of the machine (`random(4)`); zeros: not known.
    pub boot: [u8; 16],
    /// The device that its file system is on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

impl StartPlace {
    /// Whether it is certain that both are the same directory, on the same machine, since it was booted: then whoever has it locked is the only one who uses it.
    pub fn is_same(&self, other: &StartPlace) -> bool {
        self == other && self.boot != [0; 16]
    }
}

/// A directory of a target, or of metadata, that a server of many serves or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// What it is known by.
    pub uuid: [u8; 16],
    /// The start that is noted in it.
    pub start: Start,
    /// Its path, for people.
    pub path: String,
    /// Where it is.
    pub place: StartPlace,
}

impl Holding {
    /// Longest path that managers keep, bytes.
    // LIMIT: PATH_MAX of Linux.
    pub const PATH_BYTES_MAX: usize = 4096;
    /// Most of one server.
    // LIMIT: of what one call may bring.
    pub const COUNT_MAX: usize = 4096;
}
