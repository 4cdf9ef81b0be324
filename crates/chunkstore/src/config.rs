//! Settings of a chunk store. Few are for operators; the rest is here so that tests can make things small.

use ashlar_kv::{Background, LaneConfig};
use ashlar_types::Start;
use std::time::Duration;

/// Smallest reserve of free space, bytes.
const RESERVE_BYTES_MIN: u64 = 16 << 20;
/// Largest reserve of free space, bytes.
const RESERVE_BYTES_MAX: u64 = 4 << 30;

/// The reserve is this part of the file system. A lane on the same one that gets no more for merging ([`LaneConfig::merge_part`]) does not run short before data does.
pub const RESERVE_PART: u64 = 100;

/// Settings of a [`crate::ChunkStore`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Names this process in the lock file, for the message another process gets.
    pub holder: String,
    /// The start of the file system that this open is part of; target and index note it. `None` changes neither's note.
    pub start: Option<Start>,
    /// LIMIT: memory for slot headers, bytes; headers in use at the moment come on top.
    pub header_cache_bytes: usize,
    /// LIMIT: slab files open at a time.
    pub open_slabs_max: usize,
    /// Free space below which writes that need more are refused, bytes. `None`: 1 % of the file system, at least 16 MiB, at most
    /// 4 GiB, and on top twice what the index keeps back, so that the index never runs short before data does.
    pub reserve_bytes: Option<u64>,
    /// Kept free on top of the reserve for others on the same local file system, bytes: a metadata log must be the last to run
    /// short, else nothing could be overwritten or deleted any more.
    pub reserve_for_others_bytes: u64,
    /// Space that free slots may go on holding for quick reuse, bytes; what is beyond is given back by background ticks, and all
    /// of it while free space is short.
    pub freed_bytes_max: u64,
    /// Clean slots per class of which background ticks keep a stock once a class recycles slots.
    pub clean_slots_min: u64,
    /// LIMIT: dirty regions (1 MiB each); a write that would make more syncs the target and clears the old ones. Recovery reads
    /// at most as much after an unclean stop.
    pub dirty_regions_max: usize,
    /// A region no write went to for this long is cleared, once synced.
    pub dirty_idle: Duration,
    /// Background ticks sync the target when this long has passed since the last sync: what a power cut can lose of writes
    /// that were acknowledged and not synced.
    pub sync_interval: Duration,
    /// Settings of the index.
    pub index: LaneConfig,
}

impl Default for Config {
    fn default() -> Config {
        let index = LaneConfig {
            segment_bytes: 16 << 20,
            overlay_bytes_max: 32 << 20,
            log_bytes_max: 64 << 20,
            reserve_bytes: 16 << 20,
            // What data leaves free besides.
            merge_part: RESERVE_PART,
            ..LaneConfig::default()
        };
        Config {
            holder: String::new(),
            start: None,
            header_cache_bytes: 32 << 20,
            open_slabs_max: 256,
            reserve_bytes: None,
            reserve_for_others_bytes: 0,
            freed_bytes_max: 1 << 30,
            clean_slots_min: 64,
            dirty_regions_max: 1 << 15,
            dirty_idle: Duration::from_secs(5),
            sync_interval: Duration::from_secs(5),
            index,
        }
    }
}

impl Config {
    /// Settings for simulation: small, without threads, index work only in ticks.
    pub fn small() -> Config {
        let index = LaneConfig {
            segment_bytes: 1 << 20,
            overlay_bytes_max: 1 << 20,
            log_bytes_max: 4 << 20,
            reserve_bytes: 0,
            background: Background::Manual,
            ..LaneConfig::default()
        };
        Config {
            header_cache_bytes: 1 << 20,
            open_slabs_max: 4,
            reserve_bytes: Some(1 << 20),
            freed_bytes_max: 1 << 20,
            clean_slots_min: 4,
            dirty_regions_max: 64,
            index,
            ..Config::default()
        }
    }

    /// The reserve on a file system of `bytes_total`.
    pub(crate) fn reserve(&self, bytes_total: u64) -> u64 {
        let own = self.reserve_bytes.unwrap_or_else(|| {
            let share = (bytes_total / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
            share + 2 * self.index.reserve_bytes
        });
        own + self.reserve_for_others_bytes
    }
}
