//! Blocks of a chunk in memory: reading and checking one, writing their checksums, giving their space back, and taking
//! them as they are after something was cut short.

use crate::cache::Chunk;
use crate::checksum::{BLOCK, BLOCK_BYTES, sum_of};
use crate::error::ChunkError;
use crate::header::{InFlight, LENGTH_AT, encode_length_and_sums, encode_sums, sum_at};
use crate::index::Verb;
use crate::key;
use crate::piece::runs;
use crate::store::ChunkStore;
use ashlar_kv::Urgency;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks read together when they are taken as they are.
const ACCEPT_BLOCKS: u32 = 256;

impl ChunkStore {
    /// Reads one block with data and checks it.
    pub(crate) fn read_block(&self, chunk: &Chunk, block: u32) -> Result<Box<[u8; BLOCK_BYTES]>, ChunkError> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        self.slabs.read(&chunk.slab, chunk.slot.data_offset(block * BLOCK), bytes.as_mut_slice())?;
        self.verify(chunk, block, sum_of(bytes.as_slice()))?;
        Ok(bytes)
    }

    /// Compares the sum of what was read with what was written.
    pub(crate) fn verify(&self, chunk: &Chunk, block: u32, got: u32) -> Result<(), ChunkError> {
        let expected = chunk.sum(block);
        if got == expected {
            return Ok(());
        }
        self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        tracing::error!(chunk = %chunk.identity.chunk, block, expected, got, place = self.place(chunk.slot), "bad checksum");
        Err(ChunkError::Checksum { chunk: chunk.identity.chunk, block, expected, got })
    }

    /// Notes in the header that blocks are being overwritten: [`ChunkStore::write_sums`] takes the note back. To be called before the
    /// first byte of one that has data changes.
    pub(crate) fn note_in_flight(&self, chunk: &mut Chunk, blocks: InFlight) -> Result<(), ChunkError> {
        let all = chunk.in_flight.map_or(blocks, |noted| noted.join(blocks));
        if chunk.in_flight == Some(all) {
            return Ok(());
        }
        let written = self.write_note(chunk, Some(all));
        if let Err(ChunkError::NoSpace { .. }) = &written {
            // A part of it may be there.
            self.write_note(chunk, chunk.in_flight).map_err(|error| self.stop_for_header(error))?;
        }
        written
    }

    fn write_note(&self, chunk: &mut Chunk, note: Option<InFlight>) -> Result<(), ChunkError> {
        let (at, bytes) = InFlight::write(note, chunk.identity.generation);
        let offset = chunk.slot.offset() + u64::from(at);
        self.slabs.change(&chunk.slab, |file| file.write_at(offset, &bytes))?;
        chunk.in_flight = note;
        Ok(())
    }

    /// A header has its space, so a failure to change it, whatever it is, stops the target.
    fn stop_for_header(&self, error: ChunkError) -> ChunkError {
        match error {
            ChunkError::Stopped { .. } => error,
            ChunkError::NoSpace { what } => self.stop.stop("update a slot header".into(), &what),
            other => self.stop.stop("update a slot header".into(), &other),
        }
    }

    /// Writes the checksums of the blocks `[from, to)`, and of those noted as being overwritten, as they are in memory, with the length
    /// if it changed, and takes the note back. A failure stops the target.
    pub(crate) fn write_sums(
        &self,
        chunk: &mut Chunk,
        from: u32,
        to: u32,
        with_length: bool,
    ) -> Result<(), ChunkError> {
        self.try_write_sums(chunk, from, to, with_length).map_err(|error| self.stop_for_header(error))
    }

    fn try_write_sums(
        &self,
        chunk: &mut Chunk,
        from: u32,
        to: u32,
        with_length: bool,
    ) -> Result<(), ChunkError> {
        let blocks = InFlight { from, to };
        let InFlight { from, to } = chunk.in_flight.map_or(blocks, |noted| noted.join(blocks));
        let (at, bytes) = if with_length {
            let sums = &chunk.sums[..to as usize];
            (LENGTH_AT, encode_length_and_sums(chunk.len, chunk.identity.generation, chunk.in_flight, sums))
        } else {
            let mut bytes = Vec::with_capacity(4 * (to - from) as usize);
            encode_sums(&chunk.sums[from as usize..to as usize], &mut bytes);
            (sum_at(from), bytes)
        };
        let offset = chunk.slot.offset() + u64::from(at);
        self.slabs.change(&chunk.slab, |file| file.write_at(offset, &bytes))?;
        // ORDER: behind the checksums, and not with them: of a write that fails, any part may be there.
        if chunk.in_flight.is_some() { self.write_note(chunk, None) } else { Ok(()) }
    }

    /// Overwrites bytes inside the blocks `[from, to)`, which have data. Where the local file system needs space for that and
    /// has none, the blocks are taken as they are then, so that they stay readable.
    pub(crate) fn write_in_place(
        &self,
        chunk: &mut Chunk,
        (from, to): (u32, u32),
        offset: u64,
        parts: &[&[u8]],
    ) -> Result<(), ChunkError> {
        self.note_in_flight(chunk, InFlight { from, to })?;
        let result = self.slabs.change(&chunk.slab, |file| file.write_vectored_at(offset, parts));
        if let Err(ChunkError::NoSpace { .. }) = &result {
            let stop = |error: ChunkError| self.stop.stop("put a half written chunk right".into(), &error);
            self.accept_blocks(chunk, from, to).map_err(stop)?;
            self.write_sums(chunk, from, to, false)?;
        }
        result
    }

    /// Frees the space of the blocks `[from, to)`; their checksums say already that they have no data. Where the local file
    /// system has no space for even that, the space comes back with the slot.
    pub(crate) fn punch_blocks(&self, chunk: &Chunk, from: u32, to: u32) -> Result<(), ChunkError> {
        if from >= to {
            return Ok(());
        }
        let (offset, bytes) = (chunk.slot.data_offset(from * BLOCK), u64::from(to - from) * u64::from(BLOCK));
        match self.slabs.change(&chunk.slab, |file| file.punch_hole(offset, bytes)) {
            Err(ChunkError::NoSpace { what }) => {
                tracing::warn!(what, place = self.place(chunk.slot), "cannot punch");
                Ok(())
            }
            result => result,
        }
    }

    /// Takes the blocks `[from, to)` as they are on disk: after a write that may have stopped half way, each of them is old
    /// or new, but for those that were lost before ([`crate::lost`]) and are as they were. What lies behind the length becomes zeros again.
    pub(crate) fn accept_blocks(&self, chunk: &mut Chunk, from: u32, to: u32) -> Result<u64, ChunkError> {
        let lost = self.lost_blocks(chunk)?;
        let mut accepted = 0;
        let mut bytes = Vec::new();
        let all: Vec<_> = runs(from, &chunk.sums[from as usize..to as usize]).filter(|run| run.2).collect();
        let portions = all.iter().flat_map(|(from, to, _)| {
            (*from..*to)
                .step_by(ACCEPT_BLOCKS as usize)
                .map(|first| (first, (first + ACCEPT_BLOCKS).min(*to)))
        });
        for (first, end) in portions {
            bytes.resize((end - first) as usize * BLOCK_BYTES, 0);
            let (slab, slot) = (Arc::clone(&chunk.slab), chunk.slot);
            let read_at = |block: u32, bytes: &mut [u8]| {
                self.slabs.read_if_it_can_be(&slab, slot.data_offset(block * BLOCK), bytes)
            };
            // One place of the disk may keep the rest from being read.
            let is_readable = read_at(first, &mut bytes)?;
            for (block, bytes) in (first..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
                if lost.binary_search(&block).is_ok() || !(is_readable || read_at(block, bytes)?) {
                    // An error for whoever reads it, as it is now.
                    continue;
                }
                accepted += u64::from(self.accept_block(chunk, block, bytes)?);
            }
        }
        Ok(accepted)
    }

    /// Takes one block as it was read; whether its checksum changed.
    fn accept_block(&self, chunk: &mut Chunk, block: u32, bytes: &mut [u8]) -> Result<bool, ChunkError> {
        let kept = chunk.len.saturating_sub(block * BLOCK).min(BLOCK);
        let padding = &mut bytes[kept as usize..];
        if padding.iter().any(|byte| *byte != 0) {
            padding.fill(0);
            let place = chunk.slot.data_offset(block * BLOCK + kept);
            self.slabs.change(&chunk.slab, |file| file.write_at(place, padding))?;
        }
        let sum = sum_of(bytes);
        let is_changed = sum != chunk.sum(block);
        chunk.set_sum(block, sum);
        Ok(is_changed)
    }

    /// Tells the index whether every block of a chunk has data, if that changed.
    pub(crate) fn note_full(
        &self,
        chunk: &mut Chunk,
        is_full: bool,
        urgency: Urgency,
    ) -> Result<(), ChunkError> {
        if chunk.is_full_in_index == is_full {
            return Ok(());
        }
        let placement = chunk.placement(is_full);
        self.index.commit(Verb::Fill, urgency, |changes| {
            changes.insert(key::chunk(chunk.identity.chunk), Some(placement.encode()));
        })?;
        chunk.is_full_in_index = is_full;
        Ok(())
    }
}
