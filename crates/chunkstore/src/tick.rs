//! Background work, in portions the caller asks for: freed slots, clean slots, idle regions, the regular sync.

use crate::alloc::Rest;
use crate::error::ChunkError;
use crate::geometry::{Class, Slot};
use crate::header::{MAGIC_FREED, SlotHeader};
use crate::store::ChunkStore;
use ashlar_kv::Background;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Free slots that a tick looks at for each one it may change: most have never been used, and cost one short read.
const LOOK_FACTOR: usize = 16;

/// Free slots punched by one call.
const PUNCH_RUN: u64 = 16;

/// How much more a tick does for writers of parts while there is more than a slab of stale slots: they make chunks faster than that else.
const MANY_FACTOR: usize = 8;

/// How much more a tick does while free space is short.
const SHORT_FACTOR: usize = 16;

/// What a call of [`ChunkStore::background_tick`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickReport {
    /// Freed slots kept for quick reuse.
    pub slots_kept: u64,
    /// Free slots whose space was given back.
    pub slots_punched: u64,
    /// Dirty regions cleared.
    pub regions_cleared: u64,
    /// Whether the target was synced.
    pub is_synced: bool,
}

/// Space of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetSpace {
    /// Total, bytes.
    pub bytes_total: u64,
    /// What writes can still use, bytes: free on the local file system or held by free slots, without the reserve.
    pub bytes_free: u64,
    /// The part of `bytes_free` that is held by free slots of this target; the rest is anybody's on the local file system.
    pub bytes_held: u64,
    /// Kept back for deletes, truncates and syncs, bytes.
    pub bytes_reserved: u64,
    /// Which local file system it is on, where that is known: targets with the same number share their space.
    pub file_system: Option<u64>,
}

impl ChunkStore {
    /// Does up to `slots_max` slots' worth of background work (more while free space is short), and syncs when
    /// [`crate::Config::sync_interval`] has passed. To be called every second or so, by one thread.
    ///
    /// # Errors
    /// As [`ChunkStore::sync`].
    pub fn background_tick(&self, slots_max: usize) -> Result<TickReport, ChunkError> {
        self.check().inspect_err(|_| self.stop.note_again())?;
        let mut report = TickReport::default();
        if self.config.index.background == Background::Manual {
            self.index.tick()?;
        }
        let keep_bytes_max = self.keep_bytes_max()?;
        let mut looks = slots_max.saturating_mul(LOOK_FACTOR);
        let mut many_budget = slots_max.saturating_mul(MANY_FACTOR);
        let mut budget = if keep_bytes_max == 0 { slots_max.saturating_mul(SHORT_FACTOR) } else { slots_max };
        for class in Class::all() {
            self.alloc.settle_punched(class, self.rounds.completed());
            self.tick_freed(class, keep_bytes_max, &mut budget, &mut report)?;
            self.tick_stale(class, keep_bytes_max, (&mut budget, &mut many_budget), &mut report)?;
            self.tick_unseen(class, keep_bytes_max, (&mut looks, &mut budget), &mut report)?;
        }
        if self.is_sync_due() {
            self.sync()?;
            report.is_synced = true;
        }
        if let Some(idle_since) = self.clock.monotonic().checked_sub(self.config.dirty_idle) {
            report.regions_cleared = self.clear(Some(idle_since))? as u64;
        }
        Ok(report)
    }

    /// Space of the target.
    ///
    /// # Errors
    /// [`ChunkError::Io`].
    pub fn space(&self) -> Result<TargetSpace, ChunkError> {
        let disk = self.space.ask()?;
        let reserve = self.space.reserve_bytes();
        let held = self.alloc.free_bytes().held;
        let bytes_free = (disk.bytes_free + held).saturating_sub(reserve).min(disk.bytes_total);
        Ok(TargetSpace {
            bytes_total: disk.bytes_total,
            bytes_free,
            bytes_held: held.min(bytes_free),
            bytes_reserved: reserve,
            file_system: disk.file_system,
        })
    }

    /// Gives the space that free slots hold back to the local file system while that is short of free space, so that others on it
    /// (a metadata log, another target) can have it. Slots freed before the call are included: their deletion is made durable first.
    /// Returns the slots punched.
    ///
    /// # Errors
    /// As [`ChunkStore::sync`].
    pub fn give_back(&self) -> Result<u64, ChunkError> {
        self.check()?;
        if !self.is_short()? {
            return Ok(0);
        }
        let before = self.counters.slots_punched.load(Ordering::Relaxed);
        // As much again as the reserve: what is above it is what new data can use.
        self.reclaim(self.space.reserve_bytes())?;
        Ok(self.counters.slots_punched.load(Ordering::Relaxed).saturating_sub(before))
    }

    /// Whether less than twice the reserve is free.
    fn is_short(&self) -> Result<bool, ChunkError> {
        Ok(self.space.ask()?.bytes_free < self.space.reserve_bytes().saturating_mul(2))
    }

    /// What free slots may go on holding.
    fn keep_bytes_max(&self) -> Result<u64, ChunkError> {
        Ok(if self.is_short()? { 0 } else { self.config.freed_bytes_max })
    }

    fn is_above(&self, keep_bytes_max: u64) -> bool {
        self.alloc.free_bytes().held > keep_bytes_max
    }

    /// Slots whose deletion has become durable: those that held a full chunk are kept with a mark in their header, up to the
    /// bound; the others are punched, because they can be used for parts only then.
    fn tick_freed(
        &self,
        class: Class,
        keep_bytes_max: u64,
        budget: &mut usize,
        report: &mut TickReport,
    ) -> Result<(), ChunkError> {
        let durable = self.index.durable();
        let mut to_punch = Vec::new();
        while *budget > 0 {
            let is_above = self.is_above(keep_bytes_max);
            let Some(freed) = self.alloc.pop_freed(class, durable) else { break };
            let slot = freed.slot;
            *budget -= 1;
            if is_above || !freed.was_full {
                to_punch.push(slot);
                report.slots_punched += 1;
                continue;
            }
            let marked = self.keep(slot);
            if marked.is_err() {
                to_punch.drain(..).for_each(|slot| self.alloc.put_back(slot, Rest::Some));
            }
            marked?;
            report.slots_kept += 1;
        }
        to_punch.sort_unstable();
        self.punch_later_clean(&to_punch)
    }

    /// Punches stale slots while they hold too much, while there are too few clean ones for writes of parts, or while there are more than
    /// a slab of them: writers of parts would go on making slabs.
    fn tick_stale(
        &self,
        class: Class,
        keep_bytes_max: u64,
        (budget, many_budget): (&mut usize, &mut usize),
        report: &mut TickReport,
    ) -> Result<(), ChunkError> {
        loop {
            let (stale, clean) = self.alloc.free_slots(class);
            let clean = clean + self.alloc.punched_slots(class) as u64;
            let missing = self.config.clean_slots_min.saturating_sub(clean).min(stale);
            let is_wanted = missing > 0 || self.is_above(keep_bytes_max);
            let (slots, budget) = if is_wanted && *budget > 0 {
                (self.alloc.take_stale(class, (missing.max(PUNCH_RUN) as usize).min(*budget)), &mut *budget)
            } else if stale >= u64::from(class.slots_per_slab()) {
                let count = (PUNCH_RUN as usize).min(*many_budget);
                (self.alloc.take_stale_beside_writers(class, count), &mut *many_budget)
            } else {
                break;
            };
            if slots.is_empty() {
                break;
            }
            *budget -= slots.len();
            report.slots_punched += slots.len() as u64;
            self.punch_later_clean(&slots)?;
        }
        Ok(())
    }

    /// Looks at free slots that the target was opened with. What an earlier run has kept, or had no time to punch, is as if freed now: it
    /// counts as free space, or is given back.
    fn tick_unseen(
        &self,
        class: Class,
        keep_bytes_max: u64,
        (looks, budget): (&mut usize, &mut usize),
        report: &mut TickReport,
    ) -> Result<(), ChunkError> {
        while *looks > 0 && *budget > 0 {
            let is_above = self.is_above(keep_bytes_max);
            let Some(slot) = self.alloc.take_unseen(class) else { break };
            *looks -= 1;
            match self.remains(slot) {
                // It holds nothing that is known of. Not clean: what a power cut left of it is not known.
                Ok(Rest::Nothing) => self.alloc.put_back(slot, Rest::Some),
                Ok(Rest::Whole) if !is_above => {
                    *budget -= 1;
                    self.keep(slot)?;
                    report.slots_kept += 1;
                }
                Ok(_) => {
                    *budget -= 1;
                    report.slots_punched += 1;
                    self.punch_later_clean(&[slot])?;
                }
                Err(error) => {
                    self.alloc.put_back(slot, Rest::Some);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// What the header of a free slot says that the slot still holds.
    fn remains(&self, slot: Slot) -> Result<Rest, ChunkError> {
        let slab = self.slabs.slab(slot.slab);
        let mut magic = [0; MAGIC_FREED.len()];
        self.slabs.read(&slab, slot.offset(), &mut magic)?;
        if magic == [0; MAGIC_FREED.len()] {
            return Ok(Rest::Nothing);
        }
        let mut header = vec![0; slot.slab.class.header_bytes() as usize];
        self.slabs.read(&slab, slot.offset(), &mut header)?;
        let is_whole = SlotHeader::holds_all_blocks(&header, slot.slab.class);
        Ok(if is_whole { Rest::Whole } else { Rest::Some })
    }

    /// Makes a taken slot that holds a whole chunk nobody has any more a free one.
    fn keep(&self, slot: Slot) -> Result<(), ChunkError> {
        // For a rebuild of the index, which must not take the chunk for a living one.
        let slab = self.slabs.slab(slot.slab);
        let marked = self.slabs.change(&slab, |file| file.write_at(slot.offset(), &MAGIC_FREED));
        self.alloc.put_back(slot, Rest::Whole);
        marked
    }

    /// Punches taken slots; the next sync round makes them clean.
    fn punch_later_clean(&self, slots: &[Slot]) -> Result<(), ChunkError> {
        let punched = self.punch_slots(slots);
        let round = self.rounds.started() + 1;
        for slot in slots {
            match punched {
                Ok(()) => self.alloc.punched(*slot, round),
                Err(_) => self.alloc.put_back(*slot, Rest::Some),
            }
        }
        punched
    }

    fn is_sync_due(&self) -> bool {
        let now = u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        let age = Duration::from_micros(now.saturating_sub(self.synced_at.load(Ordering::Relaxed)));
        let is_owed = self.slabs.has_touched()
            || self.fresh.count() > 0
            || self.index.appended() > self.index.durable();
        is_owed && age >= self.config.sync_interval
    }
}
