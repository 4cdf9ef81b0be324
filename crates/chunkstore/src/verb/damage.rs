//! Damage: what of a chunk cannot be read, so that another copy can be asked for it, and that something of it is lost everywhere.

use crate::alloc::Purpose;
use crate::cache::{Chunk, Entry, State};
use crate::checksum::{BLOCK, BLOCK_BYTES, SUM_HOLE, ZEROS, has_data, seal, sum_of};
use crate::error::ChunkError;
use crate::geometry::Class;
use crate::header::{SlotContent, SlotHeader};
use crate::key::Placement;
use crate::shape::Shape;
use crate::store::ChunkStore;
use crate::verb::write::Lost;
use ashlar_kv::Urgency;
use ashlar_types::{ChainId, ChunkId};
use std::collections::BTreeMap;

/// A block, and the sealed checksum that its content has, or had.
pub type BlockSum = (u32, u32);

/// What of a chunk cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Everything: its header cannot be used.
    Header {
        /// The size of the chunk, bytes.
        chunk_bytes: u32,
    },
    /// Some of its 4 KiB blocks.
    Blocks {
        /// The size of the chunk, bytes.
        chunk_bytes: u32,
        /// Its length, bytes.
        len: u32,
        /// The blocks, ascending, with the checksum of what was written.
        blocks: Vec<BlockSum>,
    },
}

/// A chunk in short, for whoever compares copies: equal where length and content are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The chunk.
    pub chunk: ChunkId,
    /// Of its length and the checksums of its blocks; `None` when its header cannot be used.
    pub sum: Option<u64>,
}

impl Damage {
    /// All blocks of a chunk of this size as lost: what was in them nobody knows.
    pub fn all_blocks(chunk_bytes: u32) -> Vec<BlockSum> {
        (0..chunk_bytes / BLOCK).map(|block| (block, lost_sum())).collect()
    }
}

/// The checksum of a block of which not even that is known: not that of zeros, which are below it.
fn lost_sum() -> u32 {
    seal(sum_of(&ZEROS) ^ 1)
}

/// The checksum to store for a lost block that had `sum`.
fn stored_sum(sum: u32) -> u32 {
    if sum == sum_of(&ZEROS) { lost_sum() } else { seal(sum) }
}

fn numbers(blocks: &[BlockSum]) -> Vec<u32> {
    blocks.iter().map(|(block, _)| *block).collect()
}

impl ChunkStore {
    /// The chain that a chunk is on; `None` where the chunk is not here, or its chain is not known.
    ///
    /// # Errors
    /// Those of the index.
    pub fn chain_of(&self, id: ChunkId) -> Result<Option<ChainId>, ChunkError> {
        self.check()?;
        Ok(self.index.placement(id)?.and_then(|placement| placement.chain))
    }

    /// Makes sure that a chunk that is here has a header by which it can be used.
    ///
    /// # Errors
    /// [`ChunkError::Corrupt`] if it has not.
    pub fn look(&self, id: ChunkId) -> Result<(), ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        self.read_state(&entry).map(drop)
    }

    /// Reads all of a chunk, and tells what of it cannot be used; `None` where everything can, or the chunk is not here.
    ///
    /// # Errors
    /// [`ChunkError::Stopped`] and those of the index.
    pub fn damage(&self, id: ChunkId) -> Result<Option<Damage>, ChunkError> {
        self.check()?;
        let Some(Placement { slot, .. }) = self.index.placement(id)? else { return Ok(None) };
        let chunk_bytes = slot.slab.class.chunk_bytes();
        let entry = self.cache.entry(id);
        let state = match self.read_state(&entry) {
            Ok(state) => state,
            Err(ChunkError::Corrupt { .. } | ChunkError::Io { .. }) => {
                return Ok(Some(Damage::Header { chunk_bytes }));
            }
            Err(error) => return Err(error),
        };
        let State::Present(chunk) = &*state else { return Ok(None) };
        let mut blocks = Vec::new();
        for (block, expected) in (0..).zip(&*chunk.sums).filter(|(_, sum)| has_data(**sum)) {
            if self.content_of(chunk, block)?.is_none() {
                blocks.push((block, *expected));
            }
        }
        Ok((!blocks.is_empty()).then_some(Damage::Blocks { chunk_bytes, len: chunk.len, blocks }))
    }

    /// The content of those of `wanted` that have this checksum here; up to the chunk's length, so that a last block may be shorter than 4 KiB.
    ///
    /// # Errors
    /// As [`ChunkStore::read`] for a damaged header. A damaged block is none: it has not the checksum.
    pub fn blocks_matching(
        &self,
        id: ChunkId,
        wanted: &[BlockSum],
    ) -> Result<Vec<Option<Vec<u8>>>, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        let state = self.read_state(&entry)?;
        let State::Present(chunk) = &*state else { return Ok(vec![None; wanted.len()]) };
        let one = |&(block, sum): &BlockSum| {
            if !has_data(sum) || chunk.sum(block) != sum {
                return Ok(None);
            }
            let len = chunk.len.saturating_sub(block * BLOCK).min(BLOCK) as usize;
            let content = self.content_of(chunk, block)?;
            Ok(content.map(|mut bytes| {
                bytes.truncate(len);
                bytes
            }))
        };
        wanted.iter().map(one).collect()
    }

    /// What a block with data has, if that is what was written.
    fn content_of(&self, chunk: &Chunk, block: u32) -> Result<Option<Vec<u8>>, ChunkError> {
        let mut bytes = vec![0; BLOCK_BYTES];
        match self.slabs.read(&chunk.slab, chunk.slot.data_offset(block * BLOCK), &mut bytes) {
            Ok(()) => Ok((sum_of(&bytes) == chunk.sum(block)).then_some(bytes)),
            // A place of the disk that cannot be read.
            Err(ChunkError::Io { .. } | ChunkError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes that the content of blocks is lost, in a chunk of `shape` that is made if it is not here, or cannot be used at all: reads of them fail until they are written again,
    /// whatever stops when. `blocks` are ascending, each with the checksum of what was there; `len` is the length of the chunk, bytes, which ends there if the block at its end is lost.
    ///
    /// # Errors
    /// As [`ChunkStore::write`].
    pub fn lose_blocks(
        &self,
        id: ChunkId,
        shape: impl Into<Shape>,
        len: u32,
        blocks: &[BlockSum],
    ) -> Result<(), ChunkError> {
        self.check()?;
        let Shape { chunk_bytes, chain } = shape.into();
        let class = ChunkStore::class_for(chunk_bytes, len, 0)?;
        let is_ascending = blocks.is_sorted_by(|(one, _), (next, _)| one < next);
        let end = blocks.last().map_or(0, |(last, _)| last.saturating_add(1).saturating_mul(BLOCK));
        if !is_ascending || end > len.next_multiple_of(BLOCK) {
            return Err(ChunkError::BadRequest("these are not blocks of the chunk"));
        }
        let entry = self.cache.entry(id);
        if let Err(ChunkError::Corrupt { .. } | ChunkError::Io { .. }) = self.write_state(&entry) {
            return self.replace_lost(&entry, (class, chain), len, blocks);
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let (mut state, change) = self.begin_change(&entry, (0, chunk_bytes))?;
        let lose = |chunk: &mut Chunk| {
            blocks.iter().for_each(|(block, sum)| chunk.set_sum(*block, stored_sum(*sum)));
        };
        if let (State::Present(chunk), Some(mut change)) = (&mut *state, change) {
            ChunkStore::check_class(chunk, class)?;
            ChunkStore::check_chain(chunk, chain)?;
            self.touched.note(id);
            // ORDER: the index stops to call the chunk full before it is not, and has what is lost before the header.
            self.note_full(chunk, false, Urgency::FreesSpace)?;
            self.note_lost(chunk, &numbers(blocks))?;
            // What is below them stays: it is not what the checksums say, or it is what was there.
            lose(chunk);
            let ends_within = end > len && chunk.len > len;
            let held_end = if ends_within { self.end_within(chunk, len) } else { end };
            chunk.len = if ends_within { len } else { chunk.len.max(len) };
            change.open_end = chunk.open_end();
            let written = self.write_sums(chunk, 0, (held_end / BLOCK).max(end / BLOCK), true);
            self.touched.note(id);
            return written;
        }
        let lost = Lost { old: None, blocks: numbers(blocks) };
        let chunk = self.create_as_lost(lost, (id, chain), class, len, lose)?;
        *state = State::Present(chunk);
        self.cache.recharge(&entry, &state);
        Ok(())
    }

    /// Puts a chunk in which everything up to its length is lost in the place of one that cannot be used: nothing can be written over that.
    fn replace_lost(
        &self,
        entry: &Entry,
        (class, chain): (Class, Option<ChainId>),
        len: u32,
        blocks: &[BlockSum],
    ) -> Result<(), ChunkError> {
        let id = entry.id;
        let mut state = entry.state.write();
        let Some(placement) = self.index.placement(id)? else {
            return Err(ChunkError::Busy { what: format!("chunk {id} has just gone") });
        };
        let Placement { slot, chain: known, .. } = placement;
        if slot.slab.class != class {
            return Err(ChunkError::BadRequest("the chunk is here with another chunk size"));
        }
        if known.zip(chain).is_some_and(|(known, given)| known != given) {
            return Err(ChunkError::BadRequest("the chunk is here on another chain"));
        }
        // It may have been a moment at which too many files were open, or the disk may have thought better of it.
        self.slabs.require_open(&self.slabs.slab(slot.slab))?;
        let changed = || ChunkError::Busy { what: format!("chunk {id} has just changed") };
        match self.load(id, placement) {
            Err(ChunkError::Corrupt { .. } | ChunkError::Io { .. }) => {}
            Ok(_) => return Err(changed()),
            Err(error) => return Err(error),
        }
        let old = match (&*state, self.leaving(id, &state)?) {
            (State::Unknown, Some(old)) => old,
            _ => return Err(changed()),
        };
        tracing::warn!(chunk = %id, place = self.place(slot), "a chunk whose header is damaged goes for one in which everything is lost");
        let told: BTreeMap<u32, u32> = blocks.iter().copied().collect();
        let all: Vec<u32> = (0..len.div_ceil(BLOCK)).collect();
        let lost = Lost { old: Some(old), blocks: all.clone() };
        let chunk = self.create_as_lost(lost, (id, known.or(chain)), class, len, |chunk| {
            for block in &all {
                chunk.set_sum(*block, told.get(block).map_or(lost_sum(), |sum| stored_sum(*sum)));
            }
        })?;
        *state = State::Present(chunk);
        self.cache.recharge(entry, &state);
        Ok(())
    }

    fn create_as_lost(
        &self,
        lost: Lost,
        id: (ChunkId, Option<ChainId>),
        class: Class,
        len: u32,
        lose: impl FnOnce(&mut Chunk),
    ) -> Result<Chunk, ChunkError> {
        self.create_lost(lost, id, class, Purpose::Part, 0, |chunk| {
            lose(chunk);
            chunk.len = len;
            let header = self.encode_header(chunk);
            let place = chunk.slot.offset();
            self.slabs.change(&chunk.slab, |file| file.write_at(place, &header))?;
            // ORDER: durable before the index has it. After a power cut a new chunk without a header is taken for one of which nothing was synced, and would be a hole.
            self.slabs.sync(&chunk.slab)
        })
    }

    /// Takes away what there is of a chunk behind the block that `len` is in, which is lost; tells up to where something was, bytes.
    fn end_within(&self, chunk: &mut Chunk, len: u32) -> u32 {
        let first_gone = len.div_ceil(BLOCK);
        let held_end = chunk.sums.iter().rposition(|sum| *sum != SUM_HOLE).map_or(0, |last| last as u32 + 1);
        (first_gone..held_end).for_each(|block| chunk.set_sum(block, SUM_HOLE));
        held_end * BLOCK
    }

    /// What a chunk consists of: its size and length, bytes, and its blocks that have data; `None` when it is not here.
    ///
    /// # Errors
    /// [`ChunkError::Corrupt`] when its header is damaged.
    pub fn sums(&self, id: ChunkId) -> Result<Option<(u32, u32, Vec<BlockSum>)>, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        let state = self.read_state(&entry)?;
        let State::Present(chunk) = &*state else { return Ok(None) };
        let blocks = (0..).zip(chunk.sums.iter().copied()).filter(|(_, sum)| has_data(*sum)).collect();
        Ok(Some((chunk.slot.slab.class.chunk_bytes(), chunk.len, blocks)))
    }

    /// Writes the content of a block again that cannot be read, up to the chunk's length at least; tells whether `bytes` are what was written there. Nothing but its data is
    /// changed, so that it is damaged or whole whatever stops when.
    ///
    /// # Errors
    /// As [`ChunkStore::write`].
    pub fn mend_block(&self, id: ChunkId, block: u32, bytes: &[u8]) -> Result<bool, ChunkError> {
        self.check()?;
        if bytes.len() > BLOCK_BYTES {
            return Err(ChunkError::BadRequest("that is more than a block"));
        }
        let entry = self.cache.entry(id);
        let state = self.write_state(&entry)?;
        let State::Present(chunk) = &*state else { return Ok(false) };
        if !has_data(chunk.sum(block)) || chunk.sum(block) != sum_of(bytes) {
            return Ok(false);
        }
        let mut whole = vec![0; BLOCK_BYTES];
        whole[..bytes.len()].copy_from_slice(bytes);
        let place = chunk.slot.data_offset(block * BLOCK);
        self.slabs.change(&chunk.slab, |file| file.write_at(place, &whole))?;
        self.have_forgotten(self.forget_lost(chunk, block, block + 1))?;
        Ok(true)
    }

    /// Writes the header of a chunk again whose header on disk cannot be used while the one in memory can; tells whether that was so.
    ///
    /// # Errors
    /// As [`ChunkStore::write`].
    pub fn mend_header(&self, id: ChunkId) -> Result<bool, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        // Without a mark that something is being changed here: after a power cut the blocks below it would be taken as they are.
        let state = match self.write_state(&entry) {
            Err(ChunkError::Corrupt { .. } | ChunkError::Io { .. }) => return Ok(false),
            state => state?,
        };
        let State::Present(chunk) = &*state else { return Ok(false) };
        let is_sound = |content: &SlotContent| matches!(content, SlotContent::Used(header) if header.identity == chunk.identity && header.sums == chunk.sums && header.len == chunk.len);
        let mut bytes = vec![0; chunk.slot.slab.class.header_bytes() as usize];
        match self.slabs.read(&chunk.slab, chunk.slot.offset(), &mut bytes) {
            // Also what means nothing in it: a scrub finds it damaged, too.
            Ok(())
                if is_sound(&SlotHeader::decode(&bytes, self.owner, chunk.slot))
                    && SlotHeader::is_padding_blank(&bytes, chunk.slot) =>
            {
                return Ok(false);
            }
            Ok(_) | Err(ChunkError::Io { .. } | ChunkError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
        let header = self.encode_header(chunk);
        self.slabs.change(&chunk.slab, |file| file.write_at(chunk.slot.offset(), &header))?;
        Ok(true)
    }

    /// Chunks of `chain` from `from` on and before `to`, in short, and where the next page begins. Looks at up to 512 chunks of any chain.
    ///
    /// # Errors
    /// [`ChunkError::Stopped`] and those of the index.
    pub fn digests(
        &self,
        chain: ChainId,
        from: Option<ChunkId>,
        to: Option<ChunkId>,
    ) -> Result<(Vec<Digest>, Option<ChunkId>), ChunkError> {
        let page = self.list_chain(chain, from)?;
        let is_before = |chunk: &ChunkId| to.is_none_or(|to| *chunk < to);
        let mut all = Vec::with_capacity(page.chunks.len());
        for chunk in page.chunks.into_iter().filter(is_before) {
            let entry = self.cache.entry(chunk);
            let sum = match self.read_state(&entry) {
                Ok(state) => match &*state {
                    State::Present(chunk) => Some(digest_of(chunk)),
                    State::Absent | State::Unknown => continue,
                },
                Err(ChunkError::Corrupt { .. } | ChunkError::Io { .. }) => None,
                Err(error) => return Err(error),
            };
            all.push(Digest { chunk, sum });
        }
        Ok((all, page.next.filter(is_before)))
    }
}

/// FNV-1a over the length and the checksums. A hole, what is reserved, and zeros that were written are the same content.
fn digest_of(chunk: &Chunk) -> u64 {
    let zeros = sum_of(&ZEROS);
    let plain = |sum: u32| if has_data(sum) && sum != zeros { sum } else { SUM_HOLE };
    let end = chunk.sums.iter().rposition(|sum| plain(*sum) != SUM_HOLE).map_or(0, |last| last + 1);
    let numbers = std::iter::once(chunk.len).chain(chunk.sums[..end].iter().map(|sum| plain(*sum)));
    numbers
        .flat_map(u32::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
