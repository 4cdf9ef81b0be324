//! Recovery after an unclean stop: only fresh slots and dirty regions are looked at (`design.md` D5).
//!
//! What may be found there depends on what stopped. A power cut loses some of what was not synced and keeps the rest. The death of the
//! process loses nothing: only what it was overwriting at that moment, which the header notes, may disagree with its checksum. Which
//! of the two it was is told by [`ashlar_env::Continuity`], the boot and the mount, as the index has it from the last open and as it is now.
//!
//! | where | what is found | after a power cut | after the death of the process |
//! |---|---|---|---|
//! | fresh slot | no header of the chunk, or (stale slot) not the checksums it was given | the chunk was never synced: it is dropped | damage: it stays, reads fail |
//! | fresh slot, stale | a block that does not match | bytes of an earlier chunk: the block becomes a hole | damage |
//! | fresh slot, else, and dirty region | a block that does not match | old or new bytes of a write in flight: accepted | so noted in the header: accepted; else damage |
//! | fresh slot, stale | a header or block that cannot be read | as one that does not match | damage |
//! | fresh slot, else, and dirty region | a header or block that cannot be read | damage | damage |
//! | either | data behind the length | of a write whose length is lost: becomes zeros | the same |
//! | either | anything below a block without data | of a write that was cut short: becomes zeros | the same |
//!
//! Damage is left for the reader to find. A stale fresh slot is never changed in place before it is synced. Everything is made durable
//! before the index forgets it, so recovery may be interrupted and begin anew. That includes what was right already: after the
//! death of the process it may be in the page cache only.

use crate::alloc::Rest;
use crate::cache::Chunk;
use crate::checksum::{BLOCK, SUM_HOLE, SUM_RESERVED, has_data, sum_of};
use crate::error::ChunkError;
use crate::geometry::{Region, SlabId, Slot};
use crate::header::{SlotContent, digest};
use crate::index::Verb;
use crate::key::{self, FreshRecord, OpenedIn, Placement};
use crate::piece::runs;
use crate::store::ChunkStore;
use crate::suspects::FileGeneration;
use ashlar_kv::{Key, Urgency};
use ashlar_types::ChunkId;
use std::collections::BTreeSet;

/// What the last stop lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// Nothing: the process died.
    Nothing,
    /// Some of what was not synced: the power was cut, or nobody knows.
    Unsynced,
}

/// Records removed by one commit.
const REMOVE_BATCH: usize = 4096;

/// What an open had to put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Slots looked at because they were not synced yet.
    pub fresh_slots: u64,
    /// Dirty regions looked at.
    pub dirty_regions: u64,
    /// Chunks dropped, of which nothing had been synced.
    pub chunks_dropped: u64,
    /// Blocks whose content was accepted with a new checksum.
    pub blocks_accepted: u64,
    /// Blocks that became holes, because they never reached the disk.
    pub blocks_dropped: u64,
    /// Slots in dirty regions whose header is damaged or does not agree with the index; they were left alone.
    pub slots_damaged: u64,
}

impl RecoveryReport {
    /// Whether the last stop was a clean one, as far as the chunks show.
    pub fn is_clean(&self) -> bool {
        *self == RecoveryReport::default()
    }
}

impl ChunkStore {
    /// Makes durable what the last process has left in the page cache: space that was allocated, and a block that was mended, are in no table, and may be in any slab.
    pub(crate) fn sync_what_was_left(&self, is_after_loss: bool) -> Result<(), ChunkError> {
        match self.slabs.sync_all() {
            // Of that it is told, and what is in memory was read anew.
            Err(error) if is_after_loss => {
                tracing::warn!(%error, "what was not written before the disk failed is lost");
                Ok(())
            }
            // The next open reads it anew.
            synced => synced
                .map_err(|error| self.stop.stop("sync what the last process has written".into(), &error)),
        }
    }

    /// Puts right what the last stop left. `before` tells where the target was open before, as far as that is known, `now` where it is.
    pub(crate) fn recover(
        &self,
        before: Option<OpenedIn>,
        now: Option<OpenedIn>,
    ) -> Result<RecoveryReport, ChunkError> {
        let mut report = RecoveryReport::default();
        let lost = if now.is_some() && now == before { Lost::Nothing } else { Lost::Unsynced };
        let mut done: Vec<Key> = Vec::new();
        let mut slabs: BTreeSet<SlabId> = BTreeSet::new();
        // LIMIT: a file per fresh slot, and per slot in a dirty region; both are bounded.
        let mut suspects: BTreeSet<FileGeneration> = BTreeSet::new();
        let (from, to) = key::table_range(key::FRESH);
        self.index.for_each(&from, &to, |key, value| {
            let (generation, record) = (key::decode_fresh(key)?, FreshRecord::decode(value)?);
            report.fresh_slots += 1;
            done.push(Key::from_slice(key));
            slabs.insert(record.slot.slab);
            suspects.insert((record.chunk.inode, record.chunk.generation));
            self.recover_fresh(lost, generation, &record, &mut report)
        })?;
        let (from, to) = key::table_range(key::DIRTY);
        self.index.for_each(&from, &to, |key, _| {
            report.dirty_regions += 1;
            done.push(Key::from_slice(key));
            let region = key::decode_dirty(key)?;
            slabs.insert(region.slab);
            self.recover_region(lost, region, &mut suspects, &mut report)
        })?;
        // ORDER: data and headers are durable before the index forgets where to look.
        for id in slabs {
            match self.slabs.sync(&self.slabs.slab(id)) {
                // A missing slab has been counted as damaged.
                Ok(()) | Err(ChunkError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.slabs.sync_touched()?;
        // ORDER: metadata is to compare them before the index forgets that they were not synced (`crate::suspects`).
        let suspects: Vec<FileGeneration> = suspects.into_iter().collect();
        for files in suspects.chunks(REMOVE_BATCH) {
            self.index.commit(Verb::Recover, Urgency::FreesSpace, |changes| {
                changes.extend(files.iter().map(|file| (key::suspect(*file), Some(key::encode_round(0)))));
            })?;
        }
        for keys in done.chunks(REMOVE_BATCH) {
            self.index.commit(Verb::Recover, Urgency::FreesSpace, |changes| {
                changes.extend(keys.iter().map(|key| (key.clone(), None)));
            })?;
        }
        // ORDER: last, and before the first change of this open: a recovery from a power cut that is cut short begins anew as one.
        if before != now {
            self.index.commit(Verb::Recover, Urgency::FreesSpace, |changes| {
                changes.insert(key::continuity(), now.map(|now| now.encode()));
            })?;
        }
        self.index.flush(self.index.appended())?;
        if !report.is_clean() {
            tracing::info!(?report, ?lost, "recovered from an unclean stop");
        }
        Ok(report)
    }

    fn recover_fresh(
        &self,
        lost: Lost,
        generation: u64,
        record: &FreshRecord,
        report: &mut RecoveryReport,
    ) -> Result<(), ChunkError> {
        let Some(placement) = self.placement_at(record.chunk, record.slot)? else { return Ok(()) };
        if placement.generation != generation {
            return Ok(());
        }
        let slab = self.slabs.slab(record.slot.slab);
        self.slabs.require_open(&slab)?;
        let header = match self.read_header(&slab, record.slot) {
            Ok(SlotContent::Used(header)) => Some(header),
            Ok(_) => None,
            Err(ChunkError::Corrupt { file, what }) => {
                tracing::error!(file, what, "a slab is not whole");
                report.slots_damaged += 1;
                return Ok(());
            }
            // A place of the disk that cannot be read keeps nobody from the rest of it. Where it may be half an old header, it is one that is not ours.
            Err(error @ ChunkError::Io { .. }) if record.stale.is_none() || lost == Lost::Nothing => {
                tracing::error!(%error, chunk = %record.chunk, "the header of a new chunk cannot be read");
                report.slots_damaged += 1;
                return Ok(());
            }
            Err(ChunkError::Io { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_ours = |header: &crate::header::SlotHeader| {
            let is_same = header.identity.chunk == record.chunk && header.identity.generation == generation;
            is_same && record.stale.is_none_or(|expected| expected == digest(&header.sums))
        };
        let Some(header) = header.filter(is_ours) else {
            if lost == Lost::Nothing {
                tracing::error!(place = self.place(record.slot), chunk = %record.chunk, "the header of a new chunk is damaged");
                report.slots_damaged += 1;
                return Ok(());
            }
            report.chunks_dropped += 1;
            return self.drop_chunk(record.chunk, record.slot);
        };
        let mut chunk = Chunk::new(slab, record.slot, header, placement.is_full);
        let blocks = chunk.slot.slab.class.blocks();
        self.settle_lost(&chunk, 0, blocks)?;
        let mut changed = 0;
        if record.stale.is_some() && lost == Lost::Unsynced {
            changed = self.drop_blocks(&mut chunk)?;
            report.blocks_dropped += changed;
        }
        changed += self.recover_blocks(lost, &mut chunk, (0, blocks), report)?;
        self.finish_chunk(&mut chunk, changed, 0, blocks)
    }

    fn recover_region(
        &self,
        lost: Lost,
        region: Region,
        suspects: &mut BTreeSet<FileGeneration>,
        report: &mut RecoveryReport,
    ) -> Result<(), ChunkError> {
        for (slot, from, to) in region.slots() {
            if !self.alloc.is_used(slot) {
                continue;
            }
            let slab = self.slabs.slab(slot.slab);
            self.slabs.require_open(&slab)?;
            let found = match self.read_header(&slab, slot) {
                Ok(SlotContent::Used(header)) => {
                    let placement = self.placement_at(header.identity.chunk, slot)?;
                    placement.filter(|at| at.generation == header.identity.generation).map(|at| (header, at))
                }
                Ok(_) | Err(ChunkError::Corrupt { .. } | ChunkError::Io { .. }) => None,
                Err(error) => return Err(error),
            };
            let Some((header, placement)) = found else {
                tracing::error!(place = self.place(slot), "header and index do not agree");
                report.slots_damaged += 1;
                continue;
            };
            let found = header.identity.chunk;
            suspects.insert((found.inode, found.generation));
            let mut chunk = Chunk::new(slab, slot, header, placement.is_full);
            let (from, to) = (from / BLOCK, to / BLOCK);
            self.settle_lost(&chunk, from, to)?;
            let changed = self.recover_blocks(lost, &mut chunk, (from, to), report)?;
            self.finish_chunk(&mut chunk, changed, from, to)?;
        }
        Ok(())
    }

    /// Where a chunk is, if that is in `slot`.
    fn placement_at(&self, id: ChunkId, slot: Slot) -> Result<Option<Placement>, ChunkError> {
        Ok(self.index.placement(id)?.filter(|placement| placement.slot == slot))
    }

    /// Accepts those of the blocks `[from, to)` that may not match as they are, and makes those behind the length holes; returns how many
    /// changed.
    fn recover_blocks(
        &self,
        lost: Lost,
        chunk: &mut Chunk,
        (from, to): (u32, u32),
        report: &mut RecoveryReport,
    ) -> Result<u64, ChunkError> {
        let mut dropped = 0;
        for block in from.max(chunk.len.div_ceil(BLOCK))..to {
            if has_data(chunk.sum(block)) {
                chunk.set_sum(block, SUM_HOLE);
                dropped += 1;
            }
        }
        let accepted = match (lost, chunk.in_flight) {
            (Lost::Unsynced, _) => self.accept_blocks(chunk, from, to)?,
            // The whole note, which may go beyond this region: with it goes what is known.
            (Lost::Nothing, Some(noted)) => {
                let accepted = self.accept_blocks(chunk, noted.from, noted.to)?;
                self.write_sums(chunk, noted.from, noted.to, false)?;
                accepted
            }
            (Lost::Nothing, None) => 0,
        };
        self.blank_blocks(chunk, from, to)?;
        report.blocks_accepted += accepted;
        report.blocks_dropped += dropped;
        Ok(accepted + dropped)
    }

    /// Zeros the disk below blocks without data: an interrupted write may have been there already. Those bytes were never
    /// acknowledged, and a later power cut in the middle of another write must not bring them up.
    fn blank_blocks(&self, chunk: &Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        let without_data =
            runs(from, &chunk.sums[from as usize..to as usize]).filter(|(_, _, has_data)| !has_data);
        for (from, to, _) in without_data {
            self.punch_blocks(chunk, from, to)?;
            let reserved = (from..to).filter(|block| chunk.sum(*block) == SUM_RESERVED);
            for block in reserved {
                let place = chunk.slot.data_offset(block * BLOCK);
                match self.slabs.change(&chunk.slab, |file| file.allocate(place, u64::from(BLOCK))) {
                    Err(ChunkError::NoSpace { what }) => tracing::warn!(what, "a reservation is lost"),
                    result => result?,
                }
            }
        }
        Ok(())
    }

    /// Makes holes of the blocks that do not match.
    fn drop_blocks(&self, chunk: &mut Chunk) -> Result<u64, ChunkError> {
        let lost = self.lost_blocks(chunk)?;
        let mut dropped = 0;
        let mut bytes = vec![0; BLOCK as usize];
        for block in 0..chunk.slot.slab.class.blocks() {
            if !has_data(chunk.sum(block)) || lost.binary_search(&block).is_ok() {
                continue;
            }
            let place = chunk.slot.data_offset(block * BLOCK);
            let is_read = self.slabs.read_if_it_can_be(&chunk.slab, place, &mut bytes)?;
            // What cannot be read now may be another chunk's, and be read later.
            if !is_read || sum_of(&bytes) != chunk.sum(block) {
                chunk.set_sum(block, SUM_HOLE);
                self.punch_blocks(chunk, block, block + 1)?;
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Writes changed checksums, and corrects what the index says about fullness.
    fn finish_chunk(&self, chunk: &mut Chunk, changed: u64, from: u32, to: u32) -> Result<(), ChunkError> {
        if changed > 0 || chunk.in_flight.is_some() {
            self.write_sums(chunk, from, to, false)?;
        }
        let is_full = chunk.is_full();
        self.note_full(chunk, is_full, Urgency::FreesSpace)
    }

    fn drop_chunk(&self, id: ChunkId, slot: Slot) -> Result<(), ChunkError> {
        let was_lost = self.has_lost_record(id)?;
        self.index.commit(Verb::Recover, Urgency::FreesSpace, |changes| {
            changes.insert(key::chunk(id), None);
            changes.extend(was_lost.then(|| (key::lost(id), None)));
            self.alloc.mark_used(&[slot], false, changes);
        })?;
        self.lost.gone(usize::from(was_lost));
        self.alloc.put_back(slot, Rest::Some);
        Ok(())
    }
}
