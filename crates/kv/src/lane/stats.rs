//! What a lane counts.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Counters that only grow.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) appended_groups: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) checkpoints: AtomicU64,
    pub(super) last_checkpoint_us: AtomicU64,
    pub(super) write_waits: AtomicU64,
    pub(super) write_wait_us: AtomicU64,
    pub(super) refused_for_space: AtomicU64,
    pub(super) replayed_groups: AtomicU64,
}

/// A lane's sizes now, and its counters since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Log that a crash would have to read, bytes.
    pub log_bytes: u64,
    /// Memory of the overlays, estimated, bytes.
    pub overlay_bytes: u64,
    /// Keys in the overlays.
    pub overlay_entries: u64,
    /// The engine's files, bytes.
    pub engine_bytes: u64,
    /// Groups committed.
    pub appended_groups: u64,
    /// Times that somebody waited for syncs, each for all who asked meanwhile.
    pub flush_count: u64,
    /// Checkpoints applied.
    pub checkpoint_count: u64,
    /// How long the last one took.
    pub last_checkpoint: Duration,
    /// Writers that waited for a checkpoint.
    pub write_waits: u64,
    /// How long they waited in all.
    pub write_wait_total: Duration,
    /// Commits refused with [`crate::KvError::NoSpace`].
    pub refused_for_space: u64,
    /// Whether changes that free no space are refused now.
    pub is_space_low: bool,
    /// Groups replayed from the log when the lane was opened.
    pub replayed_groups: u64,
}
