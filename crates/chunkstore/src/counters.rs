//! Counters and sizes of a store.

use crate::store::ChunkStore;
use ashlar_kv::LaneStats;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the store was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) chunks_created: AtomicU64,
    pub(crate) slots_recycled: AtomicU64,
    pub(crate) chunks_deleted: AtomicU64,
    pub(crate) checksum_errors: AtomicU64,
    pub(crate) headers_read: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) slab_syncs: AtomicU64,
    pub(crate) mark_flushes: AtomicU64,
    pub(crate) regions_marked: AtomicU64,
    pub(crate) regions_cleared: AtomicU64,
    pub(crate) slots_punched: AtomicU64,
    pub(crate) refused_for_space: AtomicU64,
    pub(crate) syncs_for_stale_slots: AtomicU64,
}

/// Counters since the store was opened, and sizes at the moment.
#[derive(Clone, Debug, Default)]
pub struct StoreStats {
    /// Bytes given to readers.
    pub bytes_read: u64,
    /// Bytes taken from writers.
    pub bytes_written: u64,
    /// Chunks that got a slot.
    pub chunks_created: u64,
    /// Of these, in a slot that still held old bytes.
    pub slots_recycled: u64,
    /// Chunks deleted.
    pub chunks_deleted: u64,
    /// Blocks whose checksum did not match when read.
    pub checksum_errors: u64,
    /// Slot headers read from disk.
    pub headers_read: u64,
    /// Sync rounds.
    pub syncs: u64,
    /// Slab files synced in them.
    pub slab_syncs: u64,
    /// Flushes of the index that first overwrites of regions waited for.
    pub mark_flushes: u64,
    /// Regions marked dirty.
    pub regions_marked: u64,
    /// Regions cleared.
    pub regions_cleared: u64,
    /// Regions marked at the moment.
    pub dirty_regions: u64,
    /// Slots taken since the last sync.
    pub fresh_slots: u64,
    /// Free slots whose space was given back.
    pub slots_punched: u64,
    /// Writes refused for lack of space.
    pub refused_for_space: u64,
    /// Syncs that overwrites of just recycled slots waited for.
    pub syncs_for_stale_slots: u64,
    /// Free slots that may hold old bytes.
    pub stale_slots: u64,
    /// Free slots that are durably zero.
    pub clean_slots: u64,
    /// Memory of cached slot headers, bytes.
    pub header_cache_bytes: u64,
    /// The index.
    pub index: LaneStats,
}

impl ChunkStore {
    /// Counters and sizes.
    pub fn stats(&self) -> StoreStats {
        let counters = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let free = self.alloc.free_bytes();
        StoreStats {
            bytes_read: load(&counters.bytes_read),
            bytes_written: load(&counters.bytes_written),
            chunks_created: load(&counters.chunks_created),
            slots_recycled: load(&counters.slots_recycled),
            chunks_deleted: load(&counters.chunks_deleted),
            checksum_errors: load(&counters.checksum_errors),
            headers_read: load(&counters.headers_read),
            syncs: load(&counters.syncs),
            slab_syncs: load(&counters.slab_syncs),
            mark_flushes: load(&counters.mark_flushes),
            regions_marked: load(&counters.regions_marked),
            regions_cleared: load(&counters.regions_cleared),
            dirty_regions: self.dirty.count() as u64,
            fresh_slots: self.fresh.count() as u64,
            slots_punched: load(&counters.slots_punched),
            refused_for_space: load(&counters.refused_for_space),
            syncs_for_stale_slots: load(&counters.syncs_for_stale_slots),
            stale_slots: free.stale_slots,
            clean_slots: free.clean_slots,
            header_cache_bytes: self.cache.bytes(),
            index: self.index.stats(),
        }
    }
}
