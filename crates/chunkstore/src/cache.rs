//! Slot headers in memory. An [`Entry`] is also the lock of its chunk: whoever works on the chunk holds the same entry,
//! and entries in use are never dropped, so two entries for one chunk never exist.

use crate::checksum::{SUM_HOLE, has_data};
use crate::geometry::Slot;
use crate::header::{Identity, InFlight, SlotHeader};
use crate::key::Placement;
use crate::slab::Slab;
use ashlar_types::ChunkId;
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Bytes an entry costs beside its checksums: itself, the map's and the queue's element.
const ENTRY_BYTES: usize = 300;

/// A chunk as its header describes it.
pub(crate) struct Chunk {
    pub(crate) slot: Slot,
    pub(crate) slab: Arc<Slab>,
    pub(crate) identity: Identity,
    pub(crate) len: u32,
    pub(crate) sums: Box<[u32]>,
    /// Blocks that hold space: with data or reserved.
    pub(crate) blocks_held: u32,
    /// Blocks with data.
    blocks_data: u32,
    /// What the index says.
    pub(crate) is_full_in_index: bool,
    /// The note in the header on disk.
    pub(crate) in_flight: Option<InFlight>,
}

/// What is known of a chunk.
pub(crate) enum State {
    /// Nothing yet.
    Unknown,
    /// It is not here.
    Absent,
    /// It is here.
    Present(Chunk),
}

/// The lock and the cached header of one chunk.
pub(crate) struct Entry {
    pub(crate) id: ChunkId,
    pub(crate) state: RwLock<State>,
    is_recent: AtomicBool,
    charged: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    entries: FxHashMap<ChunkId, Arc<Entry>>,
    /// Order in which entries are looked at for eviction. LIMIT: one element per entry.
    queue: VecDeque<ChunkId>,
    bytes: usize,
}

/// A bounded cache of entries.
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// LIMIT: headers beyond this are dropped, except those in use at the moment.
    shard_bytes_max: usize,
}

impl Chunk {
    /// A chunk from its header.
    pub(crate) fn new(slab: Arc<Slab>, slot: Slot, header: SlotHeader, is_full_in_index: bool) -> Chunk {
        let SlotHeader { identity, len, sums, in_flight } = header;
        let blocks_held = sums.iter().filter(|sum| **sum != SUM_HOLE).count() as u32;
        let blocks_data = sums.iter().filter(|sum| has_data(**sum)).count() as u32;
        Chunk { slot, slab, identity, len, sums, blocks_held, blocks_data, is_full_in_index, in_flight }
    }

    /// The stored checksum of a block; a hole behind the end.
    pub(crate) fn sum(&self, block: u32) -> u32 {
        self.sums.get(block as usize).copied().unwrap_or(SUM_HOLE)
    }

    /// Changes the checksum of a block.
    pub(crate) fn set_sum(&mut self, block: u32, sum: u32) {
        let Some(place) = self.sums.get_mut(block as usize) else { return };
        let before = std::mem::replace(place, sum);
        self.blocks_held = self.blocks_held + u32::from(sum != SUM_HOLE) - u32::from(before != SUM_HOLE);
        self.blocks_data = self.blocks_data + u32::from(has_data(sum)) - u32::from(has_data(before));
    }

    /// Whether every block has data.
    pub(crate) fn is_full(&self) -> bool {
        let class = self.slot.slab.class;
        self.blocks_data == class.blocks() && self.len == class.chunk_bytes()
    }

    /// The length, where the chunk is not full: an append is to be expected there.
    pub(crate) fn open_end(&self) -> Option<u32> {
        (!self.is_full() && self.len < self.slot.slab.class.chunk_bytes()).then_some(self.len)
    }

    /// Its record in the index.
    pub(crate) fn placement(&self, is_full: bool) -> Placement {
        let Identity { generation, chain, .. } = self.identity;
        Placement { slot: self.slot, generation, is_full, chain }
    }
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Cache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Cache { shards, shard_bytes_max: bytes_max / SHARDS }
    }

    fn shard(&self, id: ChunkId) -> &Mutex<Shard> {
        let hash = FxBuildHasher.hash_one(id);
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// The entry of a chunk, made if need be.
    pub(crate) fn entry(&self, id: ChunkId) -> Arc<Entry> {
        let mut shard = self.shard(id).lock();
        if let Some(entry) = shard.entries.get(&id) {
            entry.is_recent.store(true, Ordering::Relaxed);
            return Arc::clone(entry);
        }
        let entry = Arc::new(Entry {
            id,
            state: RwLock::new(State::Unknown),
            is_recent: AtomicBool::new(false),
            charged: AtomicUsize::new(ENTRY_BYTES),
        });
        shard.entries.insert(id, Arc::clone(&entry));
        shard.queue.push_back(id);
        shard.bytes += ENTRY_BYTES;
        self.evict(&mut shard);
        entry
    }

    /// Accounts for what an entry holds now. The caller holds the entry's lock.
    pub(crate) fn recharge(&self, entry: &Entry, state: &State) {
        let sums = if let State::Present(chunk) = state { chunk.sums.len() * 4 } else { 0 };
        let cost = ENTRY_BYTES + sums;
        if entry.charged.load(Ordering::Relaxed) == cost {
            return;
        }
        let mut shard = self.shard(entry.id).lock();
        let before = entry.charged.swap(cost, Ordering::Relaxed);
        shard.bytes = (shard.bytes + cost).saturating_sub(before);
        self.evict(&mut shard);
    }

    /// Drops entries nobody uses until the shard fits, second chance for those used since the last look.
    fn evict(&self, shard: &mut Shard) {
        let mut tries = 2 * shard.queue.len();
        while shard.bytes > self.shard_bytes_max && tries > 0 {
            tries -= 1;
            let Some(id) = shard.queue.pop_front() else { return };
            let Some(entry) = shard.entries.get(&id) else { continue };
            // Clones are made under the shard's lock only, so a count of one cannot grow meanwhile.
            if Arc::strong_count(entry) > 1 || entry.is_recent.swap(false, Ordering::Relaxed) {
                shard.queue.push_back(id);
                continue;
            }
            shard.bytes = shard.bytes.saturating_sub(entry.charged.load(Ordering::Relaxed));
            shard.entries.remove(&id);
        }
    }

    /// Bytes of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes as u64).sum()
    }
}
