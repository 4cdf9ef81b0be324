//! Write: a new chunk, or blocks of one that is here.

use crate::alloc::{Purpose, Rest, Taken};
use crate::cache::{Chunk, Entry, State};
use crate::checksum::{BLOCK, SUM_HOLE, has_data};
use crate::error::ChunkError;
use crate::fresh::FRESH_MAX;
use crate::geometry::{Class, Slot};
use crate::header::{Identity, InFlight, SlotHeader, digest};
use crate::index::{Changes, Verb};
use crate::key::{self, FreshRecord};
use crate::lost::put_lost;
use crate::piece::{Image, Pieces, runs};
use crate::shape::Shape;
use crate::store::ChunkStore;
use crate::verb::delete::Leaving;
use ashlar_kv::Urgency;
use ashlar_types::{ChainId, ChunkId};
use std::sync::atomic::Ordering;

/// What a write changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Growth of the space the chunk counts for, in units of 512 bytes.
    pub blocks_delta: i64,
    /// Length of the chunk: one past the last byte ever written, bytes.
    pub chunk_len: u32,
}

/// What is lost of a chunk that is made.
#[derive(Default)]
pub(crate) struct Lost {
    /// The chunk whose place it takes.
    pub(crate) old: Option<Leaving>,
    /// Blocks, ascending.
    pub(crate) blocks: Vec<u32>,
}

/// Units of 512 bytes in a block.
pub(crate) const UNITS: i64 = BLOCK as i64 / 512;

impl ChunkStore {
    /// Writes `data` at `offset` of a chunk of `shape`, and makes the chunk if it is not here. `sums` are the CRC-32C of
    /// the whole 4 KiB-aligned blocks in `data`, in order, as the sender computed them.
    ///
    /// The write is visible when the call returns and survives the death of the process; [`ChunkStore::sync`] makes it
    /// survive a power cut. A reader sees each block old or new.
    ///
    /// # Errors
    /// [`ChunkError::InTransit`] when `data` is not what `sums` were made of, [`ChunkError::NoSpace`], [`ChunkError::Checksum`] when
    /// the rest of a partly written block is damaged, [`ChunkError::BadRequest`] for ranges outside the chunk, another chunk size
    /// than before, or no data. After [`ChunkError::NoSpace`] blocks in the range are old or new, the others as they were.
    pub fn write(
        &self,
        id: ChunkId,
        shape: impl Into<Shape>,
        offset: u32,
        data: &[u8],
        sums: Option<&[u32]>,
    ) -> Result<Written, ChunkError> {
        self.check()?;
        let Shape { chunk_bytes, chain } = shape.into();
        let class = ChunkStore::class_for(chunk_bytes, offset, data.len())?;
        if data.is_empty() {
            return Err(ChunkError::BadRequest("nothing to write"));
        }
        let pieces = Pieces::cut(id, offset, data, sums)?;
        let end = offset + data.len() as u32;
        let entry = self.cache.entry(id);
        let (mut state, change) = self.begin_change(&entry, (offset, end))?;
        let written = match (&mut *state, change) {
            (State::Present(chunk), Some(mut change)) => {
                ChunkStore::check_class(chunk, class)?;
                ChunkStore::check_chain(chunk, chain)?;
                let written = self.overwrite(chunk, pieces, end);
                change.open_end = chunk.open_end();
                written?
            }
            (state, _) => self.create(&entry, state, (class, chain), pieces, end)?,
        };
        self.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(written)
    }

    /// Changes blocks of a chunk that is here.
    fn overwrite(&self, chunk: &mut Chunk, pieces: Pieces<'_>, end: u32) -> Result<Written, ChunkError> {
        let (first, count) = pieces.span();
        let image = pieces.merge(|edge| {
            let reaches_end = edge.at == 0 && edge.block * BLOCK + edge.data.len() as u32 >= chunk.len;
            if !has_data(chunk.sum(edge.block)) || reaches_end {
                return Ok(None);
            }
            self.read_block(chunk, edge.block).map(Some)
        })?;
        let before = chunk.blocks_held;
        let range = first as usize..(first + count) as usize;
        let holes = chunk.sums[range].iter().filter(|sum| **sum == SUM_HOLE).count() as u64;
        if holes > 0 {
            self.admit_space(holes * u64::from(BLOCK))?;
        }
        if holes > 0 || end > chunk.len {
            self.touched.note(chunk.identity.chunk);
        }
        self.write_data(chunk, &image)?;
        // ORDER: data, then checksums. A stop in between leaves blocks that had data in a marked region or fresh slot,
        // where recovery takes what it finds, and others without data as they were.
        for (block, sum) in (first..).zip(&image.sums) {
            chunk.set_sum(block, *sum);
        }
        let grows = end > chunk.len;
        chunk.len = chunk.len.max(end);
        let written = self.write_sums(chunk, first, first + count, grows);
        if holes > 0 || grows {
            // ORDER: once more: a round that has begun meanwhile does not have all of it.
            self.touched.note(chunk.identity.chunk);
        }
        written?;
        self.have_forgotten(self.forget_lost(chunk, first, first + count))?;
        if chunk.is_full() && !chunk.is_full_in_index {
            // Only saves later looks at the header: the write itself is done.
            match self.note_full(chunk, true, Urgency::Normal) {
                Ok(()) | Err(ChunkError::NoSpace { .. } | ChunkError::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Written {
            blocks_delta: (i64::from(chunk.blocks_held) - i64::from(before)) * UNITS,
            chunk_len: chunk.len,
        })
    }

    /// Writes the blocks. Those without data go first: they may find no space, and then the others are still old.
    fn write_data(&self, chunk: &mut Chunk, image: &Image<'_>) -> Result<(), ChunkError> {
        let (first, end) = (image.first_block, image.first_block + image.blocks());
        let mut parts_written: Vec<(u32, u32, bool)> =
            runs(first, &chunk.sums[first as usize..end as usize]).collect();
        let overwritten = parts_written
            .iter()
            .filter(|run| run.2)
            .map(|(from, to, _)| InFlight { from: *from, to: *to })
            .reduce(InFlight::join);
        parts_written.sort_by_key(|(_, _, has_data)| *has_data);
        for (index, (from, to, had_data)) in parts_written.iter().copied().enumerate() {
            let offset = chunk.slot.data_offset(from * BLOCK);
            let parts = image.parts(from, to);
            let noted =
                overwritten.filter(|_| had_data).map_or(Ok(()), |all| self.note_in_flight(chunk, all));
            let result = noted.and_then(|()| {
                self.slabs.change(&chunk.slab, |file| match parts.as_slice() {
                    [one] => file.write_at(offset, one),
                    several => file.write_vectored_at(offset, several),
                })
            });
            let Err(error) = result else { continue };
            return match error {
                ChunkError::NoSpace { .. } => {
                    self.undo(chunk, &parts_written[..=index], had_data)?;
                    Err(error)
                }
                // The file could not be opened again, say: what was written does not agree with its checksums.
                error if index > 0 => Err(self.stop.stop("write the rest of a change".into(), &error)),
                error => Err(error),
            };
        }
        Ok(())
    }

    /// Puts a chunk right after a write that found no space.
    fn undo(&self, chunk: &mut Chunk, runs: &[(u32, u32, bool)], had_data: bool) -> Result<(), ChunkError> {
        for (from, to, _) in runs.iter().filter(|run| !run.2) {
            let holes = (*from..*to).filter(|block| chunk.sum(*block) == SUM_HOLE).count() as u32;
            if holes == to - from {
                self.punch_blocks(chunk, *from, *to)?;
            }
        }
        if had_data {
            // Only where the local file system needs space to overwrite in place.
            for (from, to, _) in runs.iter().filter(|run| run.2) {
                let stop =
                    |error: ChunkError| self.stop.stop("put a half written chunk right".into(), &error);
                self.accept_blocks(chunk, *from, *to).map_err(stop)?;
            }
            let (first, last) =
                runs.iter().fold((u32::MAX, 0), |(first, last), run| (first.min(run.0), last.max(run.1)));
            self.write_sums(chunk, first, last, false)?;
        }
        Ok(())
    }

    /// Makes a chunk with this data.
    fn create(
        &self,
        entry: &Entry,
        state: &mut State,
        (class, chain): (Class, Option<ChainId>),
        pieces: Pieces<'_>,
        end: u32,
    ) -> Result<Written, ChunkError> {
        let image = pieces.merge(|_| Ok(None))?;
        let is_whole = image.first_block == 0 && end == class.chunk_bytes();
        let purpose = if is_whole { Purpose::Whole } else { Purpose::Part };
        let data_bytes = u64::from(image.blocks()) * u64::from(BLOCK);
        let chunk = self.create_with((entry.id, chain), class, purpose, data_bytes, |chunk| {
            for (block, sum) in (image.first_block..).zip(&image.sums) {
                chunk.set_sum(block, *sum);
            }
            chunk.len = end;
            let header = self.encode_header(chunk);
            let mut parts = image.parts(image.first_block, image.first_block + image.blocks());
            let slot = chunk.slot;
            if image.first_block == 0 {
                parts.insert(0, &header);
                return self.slabs.change(&chunk.slab, |file| file.write_vectored_at(slot.offset(), &parts));
            }
            let data_offset = slot.data_offset(image.first_block * BLOCK);
            self.slabs.change(&chunk.slab, |file| {
                file.write_at(slot.offset(), &header)
                    .and_then(|()| file.write_vectored_at(data_offset, &parts))
            })
        })?;
        let written = Written { blocks_delta: i64::from(chunk.blocks_held) * UNITS, chunk_len: chunk.len };
        *state = State::Present(chunk);
        self.cache.recharge(entry, state);
        Ok(written)
    }

    /// Takes a slot, lets `fill` put header and data there, and tells the index.
    pub(crate) fn create_with(
        &self,
        (id, chain): (ChunkId, Option<ChainId>),
        class: Class,
        purpose: Purpose,
        data_bytes: u64,
        fill: impl FnOnce(&mut Chunk) -> Result<(), ChunkError>,
    ) -> Result<Chunk, ChunkError> {
        self.create_lost(Lost::default(), (id, chain), class, purpose, data_bytes, fill)
    }

    /// As [`ChunkStore::create_with`], of a chunk in which something is lost: in one change of the index, so that a chunk that it takes the place of is never away.
    pub(crate) fn create_lost(
        &self,
        lost: Lost,
        (id, chain): (ChunkId, Option<ChainId>),
        class: Class,
        purpose: Purpose,
        data_bytes: u64,
        fill: impl FnOnce(&mut Chunk) -> Result<(), ChunkError>,
    ) -> Result<Chunk, ChunkError> {
        if self.fresh.count() >= FRESH_MAX {
            self.sync()?;
        }
        let taken = self.take_slot(class, purpose)?;
        let identity = Identity { chunk: id, generation: self.new_generation(), chain };
        let header = SlotHeader::new(taken.slot, identity);
        let mut chunk = Chunk::new(self.slabs.slab(taken.slot.slab), taken.slot, header, false);
        let admit = || {
            let bytes = data_bytes + u64::from(class.header_bytes());
            if taken.is_held { Ok(()) } else { self.admit_space(bytes) }
        };
        if let Err(error) = admit() {
            self.alloc.put_back(taken.slot, if taken.is_stale { Rest::Some } else { Rest::Nothing });
            return Err(error);
        }
        // ORDER: header and data, then the index: a slot the index points to is always whole for a killed process.
        let placed = fill(&mut chunk).and_then(|()| self.place_in_index(&mut chunk, taken, lost));
        if let Err(error) = placed {
            // Some of it may be there: the slot is not clean any more.
            self.alloc.put_back(taken.slot, Rest::Some);
            return Err(error);
        }
        self.touched.note(id);
        self.fresh.insert(identity.generation, taken.slot, taken.is_stale, chunk.open_end());
        self.counters.chunks_created.fetch_add(1, Ordering::Relaxed);
        self.counters.slots_recycled.fetch_add(u64::from(taken.is_stale), Ordering::Relaxed);
        Ok(chunk)
    }

    fn place_in_index(
        &self,
        chunk: &mut Chunk,
        taken: Taken,
        Lost { old, blocks: lost }: Lost,
    ) -> Result<(), ChunkError> {
        let Identity { chunk: id, generation, .. } = chunk.identity;
        let stale = taken.is_stale.then(|| digest(&chunk.sums));
        let record = FreshRecord { slot: taken.slot, chunk: id, stale };
        chunk.is_full_in_index = chunk.is_full();
        let has_lost = !lost.is_empty();
        let is_first = has_lost && !self.has_lost_record(id)?;
        let old_slots: Vec<Slot> = old.iter().map(|old| old.slot).collect();
        let plan = |changes: &mut Changes| {
            changes.extend(old.iter().map(|old| (key::fresh(old.generation), None)));
            if has_lost {
                put_lost(chunk, lost, changes);
            }
            self.alloc.mark_used(&old_slots, false, changes);
            changes.insert(key::chunk(id), Some(chunk.placement(chunk.is_full()).encode()));
            changes.insert(key::fresh(generation), Some(record.encode()));
            self.alloc.mark_used(&[taken.slot], true, changes);
        };
        let undo = || {
            self.alloc.unmark(&[taken.slot], true);
            self.alloc.unmark(&old_slots, false);
        };
        let position = self.index.commit_or(Verb::Create, Urgency::Normal, plan, undo)?;
        if is_first {
            self.lost.came();
        }
        // What fails here has stopped the target: the chunk is in its place.
        old.map_or(Ok(()), |old| self.have_left(&[old], position)).or_else(|_| self.check())
    }

    /// The header of a chunk as it is in memory.
    pub(crate) fn encode_header(&self, chunk: &Chunk) -> Vec<u8> {
        let Chunk { identity, len, in_flight, .. } = *chunk;
        let header = SlotHeader { identity, len, sums: chunk.sums.clone(), in_flight };
        header.encode(self.owner, chunk.slot)
    }
}
