//! Scrub: reads everything in portions and compares it with its checksums, in two passes.
//!
//! The first goes over the slots in the order of the disk: header against index and cache, data against header. The
//! second goes over the index: every record against its slot. So a chunk without a slot, a slot without a chunk, and two
//! chunks in one slot are all found.

use crate::cache::{Chunk, State};
use crate::checksum::{BLOCK_BYTES, has_data, sum_of};
use crate::error::ChunkError;
use crate::geometry::{Class, SlabId, Slot};
use crate::header::{SlotContent, SlotHeader};
use crate::key::{self, Placement};
use crate::store::ChunkStore;
use crate::verb::successor;
use ashlar_types::{ChunkId, InodeId};

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A block does not match its checksum.
    Data {
        /// The chunk.
        chunk: ChunkId,
        /// The 4 KiB block inside the chunk.
        block: u32,
        /// The sealed checksum in the header.
        expected: u32,
        /// The sealed checksum of what was read.
        got: u32,
    },
    /// The header of a chunk is damaged, missing or not what the index says; or its slot cannot be read.
    Header {
        /// The chunk.
        chunk: ChunkId,
        /// What does not hold, with the place.
        what: String,
    },
    /// A slot that is in use has no readable header, or names a chunk the index has elsewhere or not at all.
    Slot {
        /// The slot.
        place: String,
        /// What does not hold.
        what: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Slot(Slot),
    Chunk(ChunkId),
}

/// Where a scrub goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubCursor(At);

/// Bytes of a cursor.
const CURSOR_BYTES: usize = 21;

impl ScrubCursor {
    /// For whoever is elsewhere.
    pub fn encode(self) -> Vec<u8> {
        let (tag, numbers) = match self.0 {
            At::Slot(Slot { slab: SlabId { class, number }, number: slot }) => {
                (0, (u64::from(class.log2()), number, u64::from(slot)))
            }
            At::Chunk(ChunkId { inode, generation, index }) => (1, (inode.0, generation, index)),
        };
        let mut out = vec![tag];
        out.extend_from_slice(&numbers.0.to_le_bytes());
        out.extend_from_slice(&numbers.1.to_le_bytes());
        out.extend_from_slice(&numbers.2.to_le_bytes());
        out
    }

    /// What [`ScrubCursor::encode`] gave; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<ScrubCursor> {
        let bytes: &[u8; CURSOR_BYTES] = bytes.try_into().ok()?;
        let first = u64::from_le_bytes(bytes[1..9].try_into().ok()?);
        let second = u32::from_le_bytes(bytes[9..13].try_into().ok()?);
        let third = u64::from_le_bytes(bytes[13..].try_into().ok()?);
        let at = match bytes[0] {
            0 => {
                let class = Class::from_log2(u8::try_from(first).ok()?)?;
                let slab = SlabId { class, number: second };
                At::Slot(Slot { slab, number: u32::try_from(third).ok()? })
            }
            1 => At::Chunk(ChunkId { inode: InodeId(first), generation: second, index: third }),
            _ => return None,
        };
        Some(ScrubCursor(at))
    }
}

/// What a call of [`ChunkStore::scrub`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// What is damaged. LIMIT: two per block that was read.
    pub findings: Vec<Finding>,
    /// Where the next call goes on; `None` when everything was looked at.
    pub next: Option<ScrubCursor>,
    /// Bytes read from the disk.
    pub bytes_read: u64,
}

impl ChunkStore {
    /// Checks chunks from `from` (`None`: the beginning) until `budget_bytes` have been read; at least one chunk. Changes may
    /// go on at the same time.
    ///
    /// # Errors
    /// Those of the index. What cannot be read is a finding.
    pub fn scrub(&self, from: Option<ScrubCursor>, budget_bytes: u64) -> Result<Scrubbed, ChunkError> {
        let mut out = Scrubbed::default();
        let smallest = Class::all().next();
        let mut at = match (from, smallest) {
            (Some(ScrubCursor(at)), _) => at,
            (None, Some(class)) => At::Slot(Slot { slab: SlabId { class, number: 0 }, number: 0 }),
            (None, None) => return Ok(out),
        };
        loop {
            self.check()?;
            let next = match at {
                At::Slot(slot) => self.scrub_slot_from(slot, &mut out)?,
                At::Chunk(id) => self.scrub_record_from(id, &mut out)?,
            };
            let Some(next) = next else { return Ok(out) };
            at = next;
            if out.bytes_read >= budget_bytes {
                out.next = Some(ScrubCursor(at));
                return Ok(out);
            }
        }
    }

    /// Checks the first slot in use at or behind `from`.
    fn scrub_slot_from(&self, from: Slot, out: &mut Scrubbed) -> Result<Option<At>, ChunkError> {
        let Some(slot) = self.alloc.next_used(from) else {
            return Ok(Some(At::Chunk(ChunkId { inode: InodeId(0), generation: 0, index: 0 })));
        };
        let next = Some(At::Slot(Slot { number: slot.number + 1, ..slot }));
        let finding = |what: String| Finding::Slot { place: self.place(slot), what };
        let id = match self.scrub_header(slot, out) {
            Ok(header) => header.identity.chunk,
            Err(ChunkError::Stopped { what }) => return Err(ChunkError::Stopped { what }),
            Err(error) => {
                if self.alloc.is_used(slot) {
                    out.findings.push(finding(error.to_string()));
                }
                return Ok(next);
            }
        };
        // The header was read without the chunk's lock: it is read again with it, and counts only then.
        let entry = self.cache.entry(id);
        let state = entry.state.read();
        let placement = self.index.placement(id)?;
        if placement.is_none_or(|placement| placement.slot != slot) {
            if self.alloc.is_used(slot) && self.is_still_named(slot, id) {
                out.findings
                    .push(finding(format!("it names chunk {id}, which the index does not have here")));
            }
            return Ok(next);
        }
        match self.scrub_header(slot, out) {
            Ok(header) => self.scrub_data(slot, header, &state, out),
            Err(error) => out.findings.push(Finding::Header { chunk: id, what: error.to_string() }),
        }
        Ok(next)
    }

    fn is_still_named(&self, slot: Slot, id: ChunkId) -> bool {
        let header = self.read_header(&self.slabs.slab(slot.slab), slot);
        matches!(header, Ok(SlotContent::Used(header)) if header.identity.chunk == id)
    }

    fn scrub_header(&self, slot: Slot, out: &mut Scrubbed) -> Result<SlotHeader, ChunkError> {
        let mut bytes = vec![0; slot.slab.class.header_bytes() as usize];
        self.slabs.read(&self.slabs.slab(slot.slab), slot.offset(), &mut bytes)?;
        out.bytes_read += bytes.len() as u64;
        let corrupt = |what: String| ChunkError::Corrupt { file: self.place(slot), what };
        match SlotHeader::decode(&bytes, self.owner, slot) {
            // Of no consequence to readers, but a sign that the place is bad.
            SlotContent::Used(_) if !SlotHeader::is_padding_blank(&bytes, slot) => {
                Err(corrupt("the padding of the header is not blank".into()))
            }
            SlotContent::Used(header) => Ok(header),
            SlotContent::Blank => Err(corrupt("the slot is blank".into())),
            SlotContent::Freed => Err(corrupt("the slot is marked as free".into())),
            SlotContent::Damaged(what) => Err(corrupt(what)),
            SlotContent::Newer(format) => Err(corrupt(format!("the header has format {format}"))),
        }
    }

    /// Compares data with header, and header with cache. The caller holds the chunk's lock.
    fn scrub_data(&self, slot: Slot, header: SlotHeader, cached: &State, out: &mut Scrubbed) {
        let chunk = Chunk::new(self.slabs.slab(slot.slab), slot, header, false);
        let id = chunk.identity.chunk;
        if let State::Present(cached) = cached
            && (cached.sums != chunk.sums || cached.len != chunk.len || cached.identity != chunk.identity)
        {
            let what = format!("{}: the header on disk is not the one in memory", self.place(slot));
            out.findings.push(Finding::Header { chunk: id, what });
        }
        let end = chunk.sums.iter().rposition(|sum| has_data(*sum)).map_or(0, |last| last + 1);
        if end == 0 {
            return;
        }
        let mut data = vec![0; end * BLOCK_BYTES];
        if let Err(error) = self.slabs.read(&chunk.slab, slot.data_offset(0), &mut data) {
            out.findings.push(Finding::Header { chunk: id, what: error.to_string() });
            return;
        }
        out.bytes_read += data.len() as u64;
        for (block, bytes) in (0..).zip(data.chunks(BLOCK_BYTES)) {
            let (expected, got) = (chunk.sum(block), sum_of(bytes));
            if has_data(expected) && expected != got {
                out.findings.push(Finding::Data { chunk: id, block, expected, got });
            }
        }
    }

    /// Checks the first record of a chunk at or behind `from`.
    fn scrub_record_from(&self, from: ChunkId, out: &mut Scrubbed) -> Result<Option<At>, ChunkError> {
        let (_, end) = key::table_range(key::CHUNKS);
        let pairs = self.index.page(&key::chunk(from), &end, 1)?;
        let Some((key, _)) = pairs.first() else { return Ok(None) };
        let id = key::decode_chunk(key)?;
        let entry = self.cache.entry(id);
        let _state = entry.state.read();
        if let Some(placement) = self.index.placement(id)?
            && let Some(what) = self.disagreement(id, placement, out)
        {
            out.findings.push(Finding::Header { chunk: id, what });
        }
        Ok(successor(id).map(At::Chunk))
    }

    /// What does not hold between a record and its slot.
    fn disagreement(&self, id: ChunkId, placement: Placement, out: &mut Scrubbed) -> Option<String> {
        let slot = placement.slot;
        if !self.alloc.is_used(slot) {
            return Some(format!("{}: the slot of chunk {id} counts as free", self.place(slot)));
        }
        match self.scrub_header(slot, out) {
            Err(error) => Some(error.to_string()),
            Ok(header)
                if header.identity.chunk != id || header.identity.generation != placement.generation =>
            {
                let found = header.identity.chunk;
                Some(format!("{}: the slot of chunk {id} names chunk {found}", self.place(slot)))
            }
            Ok(header) => {
                let chunk = Chunk::new(self.slabs.slab(slot.slab), slot, header, placement.is_full);
                let is_wrong = placement.is_full && !chunk.is_full();
                is_wrong
                    .then(|| format!("{}: the index calls the chunk full, the header not", self.place(slot)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_and_nothing_else_is_one() {
        let class = Class::all().next().unwrap();
        let slot = At::Slot(Slot { slab: SlabId { class, number: 7 }, number: 9 });
        let chunk = At::Chunk(ChunkId { inode: InodeId(1 << 48), generation: 3, index: u64::MAX });
        for at in [slot, chunk] {
            let bytes = ScrubCursor(at).encode();
            assert_eq!(ScrubCursor::decode(&bytes), Some(ScrubCursor(at)));
            assert_eq!(ScrubCursor::decode(&bytes[1..]), None);
            assert_eq!(ScrubCursor::decode(&[bytes.as_slice(), &[0]].concat()), None);
        }
        let mut bytes = ScrubCursor(slot).encode();
        bytes[1] = 63;
        assert_eq!(ScrubCursor::decode(&bytes), None, "there is no such class");
        assert_eq!(ScrubCursor::decode(&[2; CURSOR_BYTES]), None);
    }
}
