//! Places in a shard's log.

use ashlar_types::Epoch;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// The number of an entry in its shard's log, from 1, without gaps. 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The one after it.
    pub fn next(self) -> Sequence {
        Sequence(self.0 + 1)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry-{}", self.0)
    }
}

/// Names one entry, and with it the whole log up to it. The default is the empty log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// Its number.
    pub sequence: Sequence,
    /// The epoch whose primary wrote it.
    pub epoch: Epoch,
}

/// Consecutive entries of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryRun {
    /// The epoch they were written at.
    pub epoch: Epoch,
    /// How many, at least 1.
    pub count: u64,
}

/// Consecutive entries, as runs with ascending epochs.
pub type EntryRuns = SmallVec<[EntryRun; 2]>;
