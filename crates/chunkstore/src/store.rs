//! The store: its parts, how a chunk's header gets into memory, and how a slot is found for a new chunk.

use crate::alloc::{Allocator, Purpose, Rest, Taken};
use crate::cache::{Cache, Chunk, Entry, State};
use crate::config::Config;
use crate::counters::Counters;
use crate::dirty::DirtyRegions;
use crate::error::ChunkError;
use crate::fresh::FreshSlots;
use crate::geometry::{Class, Slot};
use crate::header::{Identity, Owner, SlotContent, SlotHeader};
use crate::index::Index;
use crate::key::Placement;
use crate::loss_marks::LossMarks;
use crate::lost::LostChunks;
use crate::slab::{Slab, Slabs};
use crate::space::Space;
use crate::stop::StopSwitch;
use crate::suspects::Touched;
use crate::sync::SyncRounds;
use ashlar_env::{Clock, DiskFile};
use ashlar_types::{ChainId, ChunkId};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots punched together while free space is looked for, and when a target is opened.
pub(crate) const CLEAN_BATCH: usize = 64;

/// Slots punched together when a writer waits for it.
const WAITED_BATCH: usize = 256;

// LIMIT: slabs' worth of stale slots of a class beyond which a writer that needs a clean one cleans some itself.
const STALE_SLABS_MAX: u64 = 4;

/// The chunks of one target. See the crate's documentation.
///
/// All calls may come from many threads at once. Dropping a store leaves the rest to the next open, as a crash of the process
/// does; [`ChunkStore::close`] makes that open quick.
pub struct ChunkStore {
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) owner: Owner,
    pub(crate) loss_marks: LossMarks,
    pub(crate) stop: Arc<StopSwitch>,
    pub(crate) index: Index,
    pub(crate) slabs: Slabs,
    pub(crate) alloc: Allocator,
    pub(crate) cache: Cache,
    pub(crate) fresh: FreshSlots,
    pub(crate) dirty: DirtyRegions,
    /// What changed length or space since the last sync round.
    pub(crate) touched: Touched,
    /// How many chunks have blocks that are lost.
    pub(crate) lost: LostChunks,
    /// Held while suspects are written, or looked at to be forgotten.
    pub(crate) suspects_gate: Mutex<()>,
    pub(crate) space: Space,
    pub(crate) rounds: SyncRounds,
    pub(crate) counters: Counters,
    /// The generation of the next slot: number of opens in the top 24 bits, a counter below.
    pub(crate) next_generation: AtomicU64,
    /// When the last sync round ended, microseconds of the monotonic clock.
    pub(crate) synced_at: AtomicU64,
    /// Shared by those who mark regions, exclusive for those who remove marks; see `dirty`.
    pub(crate) mark_gate: RwLock<()>,
    /// Held while a slab is made or slots are cleaned, so that one thread does it and the others find the result.
    pub(crate) growing: Mutex<()>,
    /// Held for its lock.
    pub(crate) _lock: Arc<dyn DiskFile>,
}

impl ChunkStore {
    /// Why the target is out of service; `None` while it serves.
    pub fn stopped(&self) -> Option<String> {
        match self.check() {
            Err(ChunkError::Stopped { what }) => Some(what),
            _ => None,
        }
    }

    /// Checks what every call checks.
    pub(crate) fn check(&self) -> Result<(), ChunkError> {
        self.stop.check()
    }

    /// The class of chunks of `chunk_bytes`, after checking that `[offset, offset + len)` is inside.
    pub(crate) fn class_for(chunk_bytes: u32, offset: u32, len: usize) -> Result<Class, ChunkError> {
        let class =
            Class::of(chunk_bytes).ok_or(ChunkError::BadRequest("the chunk size is not one of a layout"))?;
        let end = u64::from(offset) + len as u64;
        if end > u64::from(chunk_bytes) {
            return Err(ChunkError::BadRequest("the range leaves the chunk"));
        }
        Ok(class)
    }

    /// Checks that a chunk that is here has the caller's chunk size.
    pub(crate) fn check_class(chunk: &Chunk, class: Class) -> Result<(), ChunkError> {
        let is_same = chunk.slot.slab.class == class;
        is_same.then_some(()).ok_or(ChunkError::BadRequest("the chunk is here with another chunk size"))
    }

    /// Checks that a chunk that is here is on the caller's chain, if both are known.
    pub(crate) fn check_chain(chunk: &Chunk, chain: Option<ChainId>) -> Result<(), ChunkError> {
        let is_same = chunk.identity.chain.zip(chain).is_none_or(|(known, given)| known == given);
        is_same.then_some(()).ok_or(ChunkError::BadRequest("the chunk is here on another chain"))
    }

    /// What is known of a chunk, for reading.
    pub(crate) fn read_state<'e>(&self, entry: &'e Entry) -> Result<RwLockReadGuard<'e, State>, ChunkError> {
        let state = entry.state.read();
        if !matches!(&*state, State::Unknown) {
            return Ok(state);
        }
        drop(state);
        Ok(RwLockWriteGuard::downgrade(self.write_state(entry)?))
    }

    /// What is known of a chunk, for changing it.
    pub(crate) fn write_state<'e>(
        &self,
        entry: &'e Entry,
    ) -> Result<RwLockWriteGuard<'e, State>, ChunkError> {
        let mut state = entry.state.write();
        if !matches!(&*state, State::Unknown) {
            return Ok(state);
        }
        *state = match self.index.placement(entry.id)? {
            None => State::Absent,
            Some(placement) => State::Present(self.load(entry.id, placement)?),
        };
        self.cache.recharge(entry, &state);
        Ok(state)
    }

    /// Reads the header of a chunk from its slot.
    pub(crate) fn load(&self, id: ChunkId, placement: Placement) -> Result<Chunk, ChunkError> {
        let slab = self.slabs.slab(placement.slot.slab);
        let Placement { generation, chain, .. } = placement;
        let expected = Identity { chunk: id, generation, chain };
        let corrupt = |what: String| ChunkError::Corrupt { file: self.place(placement.slot), what };
        match self.read_header(&slab, placement.slot)? {
            SlotContent::Used(header) if header.identity == expected => {
                Ok(Chunk::new(slab, placement.slot, header, placement.is_full))
            }
            SlotContent::Used(header) => {
                let (found, generation) = (header.identity.chunk, header.identity.generation);
                let wanted = expected.generation;
                Err(corrupt(format!(
                    "the index has chunk {id} ({wanted}) here, the slot {found} ({generation})"
                )))
            }
            SlotContent::Blank => Err(corrupt(format!("the index has chunk {id} here, the slot is blank"))),
            SlotContent::Freed => Err(corrupt(format!("the index has chunk {id} here, the slot is free"))),
            SlotContent::Damaged(what) => Err(corrupt(format!("{what} (chunk {id})"))),
            SlotContent::Newer(found) => Err(ChunkError::Newer {
                file: self.place(placement.slot),
                found,
                known: crate::header::FORMAT,
            }),
        }
    }

    /// Reads and decodes what is in front of a slot.
    pub(crate) fn read_header(&self, slab: &Arc<Slab>, slot: Slot) -> Result<SlotContent, ChunkError> {
        let mut bytes = vec![0; slot.slab.class.header_bytes() as usize];
        self.slabs.read(slab, slot.offset(), &mut bytes)?;
        self.counters.headers_read.fetch_add(1, Ordering::Relaxed);
        Ok(SlotHeader::decode(&bytes, self.owner, slot))
    }

    /// Names a slot in messages.
    pub(crate) fn place(&self, slot: Slot) -> String {
        format!("{} slot {}", self.slabs.describe(slot.slab), slot.number)
    }

    /// A generation for a new slot.
    pub(crate) fn new_generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::Relaxed)
    }

    /// A slot for a new chunk; a slab is made when there is none.
    pub(crate) fn take_slot(&self, class: Class, purpose: Purpose) -> Result<Taken, ChunkError> {
        let take = || self.alloc.take(class, purpose, self.index.durable(), self.rounds.completed());
        loop {
            if let Some(taken) = take() {
                return Ok(taken);
            }
            let _growing = self.growing.lock();
            if let Some(taken) = take() {
                return Ok(taken);
            }
            // Cleaning takes a sync, and on some disks a trim per slot, for which all writers wait. So a burst grows into a new slab, which
            // costs the disk nothing yet, and leaves the cleaning to the background.
            let (stale, _) = self.alloc.free_slots(class);
            if stale >= STALE_SLABS_MAX * u64::from(class.slots_per_slab()) {
                self.clean_slots(class, WAITED_BATCH)?;
                continue;
            }
            match self.grow(class) {
                Err(ChunkError::NoSpace { .. }) if stale > 0 => {
                    self.clean_slots(class, WAITED_BATCH)?;
                }
                other => other?,
            }
        }
    }

    /// Makes a slab. The caller has `growing` locked.
    fn grow(&self, class: Class) -> Result<(), ChunkError> {
        let id = self.alloc.next_slab(class);
        self.slabs.create(id)?;
        self.alloc.add_new_slab(id);
        tracing::debug!(slab = self.slabs.describe(id), "slab made");
        Ok(())
    }

    /// Turns up to `count` stale slots into clean ones at once.
    pub(crate) fn clean_slots(&self, class: Class, count: usize) -> Result<usize, ChunkError> {
        let slots = self.alloc.take_stale(class, count);
        let cleaned = self.punch_slots(&slots).and_then(|()| {
            let mut slabs: Vec<_> = slots.iter().map(|slot| slot.slab).collect();
            slabs.dedup();
            // ORDER: a slot is clean only once its zeros are durable: a chunk that fills it in parts relies on them.
            slabs.into_iter().try_for_each(|id| self.slabs.sync(&self.slabs.slab(id)))
        });
        let rest = if cleaned.is_ok() { Rest::Nothing } else { Rest::Some };
        slots.iter().for_each(|slot| self.alloc.put_back(*slot, rest));
        cleaned.map(|()| slots.len())
    }

    /// Frees the space of taken slots; neighbours in one call.
    pub(crate) fn punch_slots(&self, slots: &[Slot]) -> Result<(), ChunkError> {
        let mut rest = slots;
        while let Some(first) = rest.first() {
            let mut follows = rest.iter().zip(first.number..);
            let run = follows.position(|(slot, number)| slot.slab != first.slab || slot.number != number);
            let run = run.unwrap_or(rest.len());
            let bytes = u64::from(first.slab.class.stride()) * run as u64;
            let slab = self.slabs.slab(first.slab);
            self.slabs.change(&slab, |file| file.punch_hole(first.offset(), bytes))?;
            self.counters.slots_punched.fetch_add(run as u64, Ordering::Relaxed);
            rest = &rest[run..];
        }
        Ok(())
    }

    /// Lets a change use `bytes` more of the local file system, if need be after giving back what free slots hold.
    pub(crate) fn admit_space(&self, bytes: u64) -> Result<(), ChunkError> {
        if self.space.admit(bytes)? || (self.reclaim(bytes)? && self.space.admit(bytes)?) {
            return Ok(());
        }
        self.counters.refused_for_space.fetch_add(1, Ordering::Relaxed);
        let free = self.space.ask()?.bytes_free;
        let what = format!("{bytes} bytes wanted, {free} free, {} are kept back", self.space.reserve_bytes());
        Err(ChunkError::NoSpace { what })
    }

    /// Punches free slots until `bytes` can be had; false when nothing was left to punch.
    pub(crate) fn reclaim(&self, bytes: u64) -> Result<bool, ChunkError> {
        self.index.flush(self.index.appended())?;
        let mut punched = 0;
        for class in Class::all() {
            self.alloc.settle(class, self.index.durable(), self.rounds.completed());
            loop {
                let slots = self.alloc.take_stale(class, CLEAN_BATCH);
                if slots.is_empty() {
                    break;
                }
                let done = self.punch_slots(&slots);
                // ORDER: asked for after that: a round that began before may not have it.
                let round = self.rounds.started() + 1;
                for slot in &slots {
                    match done {
                        Ok(()) => self.alloc.punched(*slot, round),
                        Err(_) => self.alloc.put_back(*slot, Rest::Some),
                    }
                }
                done?;
                punched += slots.len();
                if self.space.ask()?.bytes_free >= self.space.reserve_bytes().saturating_add(bytes) {
                    return Ok(true);
                }
            }
        }
        Ok(punched > 0)
    }
}
