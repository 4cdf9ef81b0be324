//! The header in front of every chunk (`docs/formats/target.md`): who the slot belongs to, how long the chunk is, one
//! checksum per block.
//!
//! Identity, length and checksums are guarded one by one, because they change one by one: the identity never while the
//! slot is in use, length and checksums in place. The identity and the length lie in the first 512 bytes and change by
//! one write, so no power cut tears them.
//!
//! A change of blocks that have data notes them in the header before it begins, and takes the note back when their checksums are there: see
//! [`InFlight`].

use crate::checksum::SUM_HOLE;
use crate::geometry::{Class, HEADER_PREFIX_BYTES, SlabId, Slot};
use crate::shape::{decode_chain, encode_chain};
use ashlar_types::codec::crc32c;
use ashlar_types::{ChainId, ChunkId, ClusterId, InodeId, TargetId};

/// First bytes of a slot in use.
pub(crate) const MAGIC_USED: [u8; 8] = *b"ASHLSLOT";
/// First bytes of a slot that was freed and not yet used again.
pub(crate) const MAGIC_FREED: [u8; 8] = *b"ASHLFREE";
/// Format of slot headers.
pub(crate) const FORMAT: u16 = 1;
/// Bytes guarded by the identity's checksum.
const IDENTITY_BYTES: usize = 72;
/// Offset of the length.
pub(crate) const LENGTH_AT: u32 = 80;

/// Offset of the note of what is being changed.
const IN_FLIGHT_AT: u32 = 88;

/// Names the target in every header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) cluster: ClusterId,
    pub(crate) target: TargetId,
}

/// Who a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) chunk: ChunkId,
    /// Grows with every allocation on the target, across restarts.
    pub(crate) generation: u64,
    /// The chain it is on, where that is known.
    pub(crate) chain: Option<ChainId>,
}

/// The blocks of a chunk that are being overwritten: data and checksum may disagree there, and nowhere else, once the process that did
/// it is gone. A power cut may lose the note or bring an old one back, and says nothing by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// First block.
    pub(crate) from: u32,
    /// The block behind the last one.
    pub(crate) to: u32,
}

impl InFlight {
    /// What stands there is no note (half of one, say, that could not be written) and says nothing; it is to be taken away.
    const UNREADABLE: InFlight = InFlight { from: 0, to: 0 };

    /// Both ranges and what is between them.
    pub(crate) fn join(self, other: InFlight) -> InFlight {
        match (self, other) {
            (InFlight::UNREADABLE, range) | (range, InFlight::UNREADABLE) => range,
            _ => InFlight { from: self.from.min(other.from), to: self.to.max(other.to) },
        }
    }

    /// The note for the slot of generation `generation`; zeros say that nothing is being changed.
    fn encode(note: Option<InFlight>, generation: u64) -> [u8; 8] {
        let Some(InFlight { from, to }) = note else { return [0; 8] };
        let range = u64::from(from) | u64::from(to) << 16;
        let crc = crc32c(crc32c(0, &range.to_le_bytes()[..4]), &generation.to_le_bytes());
        (range | u64::from(crc) << 32).to_le_bytes()
    }

    fn decode(bytes: &[u8], generation: u64, class: Class) -> Option<InFlight> {
        if bytes.iter().all(|byte| *byte == 0) {
            return None;
        }
        let (from, to) = (u32::from(u16_at(bytes, 0)), u32::from(u16_at(bytes, 2)));
        let note = InFlight { from, to };
        let is_sound = from < to && to <= class.blocks() && bytes == InFlight::encode(Some(note), generation);
        Some(if is_sound { note } else { InFlight::UNREADABLE })
    }

    /// Where in the slot a note is written, and its bytes.
    pub(crate) fn write(note: Option<InFlight>, generation: u64) -> (u32, [u8; 8]) {
        (IN_FLIGHT_AT, InFlight::encode(note, generation))
    }
}

/// A decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotHeader {
    pub(crate) identity: Identity,
    /// One past the last byte written, at most the chunk size.
    pub(crate) len: u32,
    pub(crate) sums: Box<[u32]>,
    /// What the process that wrote it was changing when it stopped.
    pub(crate) in_flight: Option<InFlight>,
}

/// What is in front of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotContent {
    /// Nothing was written here, or it was punched.
    Blank,
    /// The slot was freed.
    Freed,
    /// A chunk.
    Used(SlotHeader),
    /// Anything else, with what does not hold.
    Damaged(String),
    /// A newer format.
    Newer(u16),
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|raw| raw.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|raw| raw.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn length_check(len: u32, generation: u64) -> u32 {
    crc32c(crc32c(0, &len.to_le_bytes()), &generation.to_le_bytes())
}

/// The bytes from the length to the end of `sums`, which are those from block 0 on, for one write at [`LENGTH_AT`].
pub(crate) fn encode_length_and_sums(
    len: u32,
    generation: u64,
    in_flight: Option<InFlight>,
    sums: &[u32],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + 4 * sums.len());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&length_check(len, generation).to_le_bytes());
    out.extend_from_slice(&InFlight::encode(in_flight, generation));
    encode_sums(sums, &mut out);
    out
}

/// Appends checksums as they are on disk.
pub(crate) fn encode_sums(sums: &[u32], out: &mut Vec<u8>) {
    out.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
}

/// Offset in the slot of the checksum of `block`.
pub(crate) fn sum_at(block: u32) -> u32 {
    HEADER_PREFIX_BYTES + 4 * block
}

/// One number for all checksums of a header: recovery compares it for slots that held another chunk before.
pub(crate) fn digest(sums: &[u32]) -> u32 {
    sums.iter().fold(0, |crc, sum| crc32c(crc, &sum.to_le_bytes()))
}

impl SlotHeader {
    /// A header without data.
    pub(crate) fn new(slot: Slot, identity: Identity) -> SlotHeader {
        let sums = vec![SUM_HOLE; slot.slab.class.blocks() as usize].into_boxed_slice();
        SlotHeader { identity, len: 0, sums, in_flight: None }
    }

    /// The whole header, padded to whole blocks.
    pub(crate) fn encode(&self, owner: Owner, slot: Slot) -> Vec<u8> {
        let SlabId { class, number } = slot.slab;
        let chunk = self.identity.chunk;
        let mut out = Vec::with_capacity(class.header_bytes() as usize);
        out.extend_from_slice(&MAGIC_USED);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[class.log2(), 0]);
        out.extend_from_slice(&encode_chain(self.identity.chain).to_le_bytes());
        out.extend_from_slice(&owner.cluster.0);
        out.extend_from_slice(&owner.target.0.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&slot.number.to_le_bytes());
        out.extend_from_slice(&chunk.generation.to_le_bytes());
        out.extend_from_slice(&chunk.inode.0.to_le_bytes());
        out.extend_from_slice(&chunk.index.to_le_bytes());
        out.extend_from_slice(&self.identity.generation.to_le_bytes());
        let crc = crc32c(0, &out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let generation = self.identity.generation;
        out.extend(encode_length_and_sums(self.len, generation, self.in_flight, &self.sums));
        out.resize(class.header_bytes() as usize, 0);
        out
    }

    /// Whether the bytes of a header in use that mean nothing are zeros, as they were written.
    pub(crate) fn is_padding_blank(bytes: &[u8], slot: Slot) -> bool {
        let class = slot.slab.class;
        let end = sum_at(class.blocks()) as usize;
        let note = bytes.get(IN_FLIGHT_AT as usize..sum_at(0) as usize).unwrap_or_default();
        let is_readable = InFlight::decode(note, u64_at(bytes, 64), class) != Some(InFlight::UNREADABLE);
        let ranges = [
            11..12,
            IDENTITY_BYTES + 4..LENGTH_AT as usize,
            if is_readable { 0..0 } else { IN_FLIGHT_AT as usize..sum_at(0) as usize },
            end..class.header_bytes() as usize,
        ];
        ranges
            .into_iter()
            .all(|range| bytes.get(range).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)))
    }

    /// Whether every block had data or space reserved, by the checksums of a header, in use or freed.
    pub(crate) fn holds_all_blocks(bytes: &[u8], class: Class) -> bool {
        (0..class.blocks()).all(|block| u32_at(bytes, sum_at(block) as usize) != SUM_HOLE)
    }

    /// Decodes what is in front of `slot`; `bytes` are at least the header's.
    pub(crate) fn decode(bytes: &[u8], owner: Owner, slot: Slot) -> SlotContent {
        let class = slot.slab.class;
        if bytes.len() < class.header_bytes() as usize {
            return SlotContent::Damaged(format!("{} bytes of header", bytes.len()));
        }
        if bytes.starts_with(&MAGIC_FREED) {
            return SlotContent::Freed;
        }
        if !bytes.starts_with(&MAGIC_USED) {
            let is_blank = bytes[..class.header_bytes() as usize].iter().all(|byte| *byte == 0);
            let damaged = || SlotContent::Damaged("the slot's magic number is wrong".into());
            return if is_blank { SlotContent::Blank } else { damaged() };
        }
        if u32_at(bytes, IDENTITY_BYTES) != crc32c(0, &bytes[..IDENTITY_BYTES]) {
            return SlotContent::Damaged("the checksum of the slot's identity is wrong".into());
        }
        let format = u16_at(bytes, 8);
        if format > FORMAT {
            return SlotContent::Newer(format);
        }
        if let Some(what) = misplacement(bytes, owner, slot) {
            return SlotContent::Damaged(what);
        }
        let chunk = ChunkId {
            inode: InodeId(u64_at(bytes, 48)),
            generation: u32_at(bytes, 44),
            index: u64_at(bytes, 56),
        };
        let chain = decode_chain(u32_at(bytes, 12));
        let identity = Identity { chunk, generation: u64_at(bytes, 64), chain };
        let len = u32_at(bytes, LENGTH_AT as usize);
        if u32_at(bytes, LENGTH_AT as usize + 4) != length_check(len, identity.generation)
            || len > class.chunk_bytes()
        {
            return SlotContent::Damaged("the slot's length fails its check".into());
        }
        let sums = (0..class.blocks()).map(|block| u32_at(bytes, sum_at(block) as usize)).collect();
        let note = &bytes[IN_FLIGHT_AT as usize..sum_at(0) as usize];
        let in_flight = InFlight::decode(note, identity.generation, class);
        SlotContent::Used(SlotHeader { identity, len, sums, in_flight })
    }
}

/// What of a header's place is not the place it was read from.
fn misplacement(bytes: &[u8], owner: Owner, slot: Slot) -> Option<String> {
    if bytes.get(16..32) != Some(owner.cluster.0.as_slice()) || u32_at(bytes, 32) != owner.target.0 {
        return Some("the slot's header is of another file system or target".into());
    }
    let (class, slab, number) = (bytes[10], u32_at(bytes, 36), u32_at(bytes, 40));
    let is_here = class == slot.slab.class.log2() && slab == slot.slab.number && number == slot.number;
    (!is_here).then(|| format!("the header belongs into slot {number} of slab {slab}, class 2^{class}"))
}
