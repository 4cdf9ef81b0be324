//! How a lane is set up.

use crate::Position;
use std::time::Duration;

/// Who flushes and checkpoints in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Two threads of the lane.
    Threads,
    /// The caller, with [`crate::Lane::tick`]; a full overlay is checkpointed by the writer that meets it. For simulation.
    Manual,
}

/// Settings of a lane. The defaults are for a metadata server; a chunk store's index takes smaller ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// The lane's number in its server; it is in every header, so that lanes' files never mix.
    pub lane: u32,
    /// Length of a log segment, bytes. A longer group gets a segment of its own.
    pub segment_bytes: u64,
    /// LIMIT: memory of the active and the frozen overlay together, bytes; a checkpoint starts at half of it.
    pub overlay_bytes_max: u64,
    /// LIMIT: length of the log at which a checkpoint starts even if the overlay is small, bytes.
    pub log_bytes_max: u64,
    /// What is committed and not flushed becomes durable after this time at the latest (plus the time of the sync): a power
    /// cut loses no more.
    pub flush_interval: Duration,
    /// LIMIT: how long a writer waits for a checkpoint.
    pub stall_max: Duration,
    /// Space kept back for deletes and checkpoints, bytes; it is taken from the file system at once. Below the same amount of
    /// free space, changes that do not free any are refused. 0 switches both off.
    pub reserve_bytes: u64,
    /// Besides, so much is kept free as merging the engine's tables may take, but no more than one part in this many of the file system. 1: however much it is. More where others, which leave as
    /// much free, fill the file system: a lane must not run short before they do.
    pub merge_part: u64,
    /// Who works in the background.
    pub background: Background,
    /// The log stays as it is when the lane is opened, instead of going into the engine as a whole: other machines may know better what its end is
    /// ([`crate::Lane::truncate_after`]).
    pub keeps_log: bool,
    /// LIMIT: log that is kept behind checkpoints, bytes, where there are copies: what a copy has missed that was away for a while can be sent to it from there.
    pub retained_log_bytes: u64,
    /// Takes damage of the log at this position for its end: the way out of a damaged log, as the error names it. Everything
    /// after the position is lost. Without damage at this very position it has no effect.
    pub give_up_from: Option<Position>,
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            lane: 0,
            segment_bytes: 64 << 20,
            overlay_bytes_max: 64 << 20,
            log_bytes_max: 256 << 20,
            flush_interval: Duration::from_secs(1),
            stall_max: Duration::from_secs(30),
            reserve_bytes: 64 << 20,
            merge_part: 1,
            background: Background::Threads,
            keeps_log: false,
            retained_log_bytes: 256 << 20,
            give_up_from: None,
        }
    }
}

impl LaneConfig {
    /// Overlay size at which it is frozen, bytes.
    pub(super) fn freeze_bytes(&self) -> usize {
        (self.overlay_bytes_max / 2) as usize
    }
}
