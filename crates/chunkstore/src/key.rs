//! Keys and values of the index (`docs/formats/target.md`). A key is the shard (always 0), a letter for the table, then
//! big-endian fields, so that the order of keys is the order of the fields. Values are little-endian.

use crate::error::ChunkError;
use crate::geometry::{Class, GROUP_SLOTS, Region, SlabId, Slot};
use crate::shape::{decode_chain, encode_chain};
use crate::suspects::FileGeneration;
use crate::target::TargetUuid;
use crate::verb::{ChainNote, Lack};
use ashlar_env::Continuity;
use ashlar_kv::Key;
use ashlar_types::{ChainId, ChunkId, Epoch, InodeId, Start, TargetId};
use bytes::Bytes;

/// Words of a group's bits.
pub(crate) const GROUP_WORDS: usize = GROUP_SLOTS as usize / 64;

/// Table of chunks: where each is.
pub(crate) const CHUNKS: u8 = b'c';
/// Table of groups: which of its 256 slots are in use.
pub(crate) const GROUPS: u8 = b'g';
/// Table of fresh slots: taken since the last sync.
pub(crate) const FRESH: u8 = b'n';
/// Table of dirty regions.
pub(crate) const DIRTY: u8 = b'd';
/// Table of suspects: files whose chunks changed and were synced, which metadata has not confirmed yet.
pub(crate) const SUSPECTS: u8 = b's';
/// Table of notes about chains that come or go.
pub(crate) const CHAIN_NOTES: u8 = b'h';
/// Table of notes about chains that have copies on other targets.
pub(crate) const COPIES: u8 = b'k';
/// Table of chunks with blocks that are lost.
pub(crate) const LOST: u8 = b'l';
/// Table of the target's own numbers.
const META: u8 = b'm';

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) slot: Slot,
    /// The slot's generation.
    pub(crate) generation: u64,
    /// Whether every block has data, so that length and blocks need no look at the header.
    pub(crate) is_full: bool,
    /// The chunk's chain, where that is known.
    pub(crate) chain: Option<ChainId>,
}

/// A slot taken since the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreshRecord {
    pub(crate) slot: Slot,
    pub(crate) chunk: ChunkId,
    /// For a slot whose old bytes were still on the disk: the digest of its checksums. It was written whole.
    pub(crate) stale: Option<u32>,
}

/// The blocks of a chunk whose content is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostRecord {
    /// The slot's generation.
    pub(crate) generation: u64,
    /// The blocks, ascending.
    pub(crate) blocks: Vec<u32>,
}

fn corrupt(table: &str) -> ChunkError {
    ChunkError::Corrupt { file: "index".into(), what: format!("a record of table {table} is malformed") }
}

/// The key of everything in `table` and of the table behind it.
pub(crate) fn table_range(table: u8) -> (Key, Key) {
    (Key::from_slice(&[0, 0, table]), Key::from_slice(&[0, 0, table + 1]))
}

fn own_number(name: &[u8]) -> Key {
    let mut key = Key::from_slice(&[0, 0, META]);
    key.extend_from_slice(name);
    key
}

/// The key under which the number of opens is kept.
pub(crate) fn opens() -> Key {
    own_number(b"opens")
}

/// The key under which the index says of which target it is, and which start it took part in last.
pub(crate) fn mark() -> Key {
    own_number(b"mark")
}

/// The key under which it says in which span of time the target was opened last.
pub(crate) fn continuity() -> Key {
    own_number(b"continuity")
}

/// The key under which it says by which open it was closed last.
pub(crate) fn closed() -> Key {
    own_number(b"closed")
}

/// The key that is there while it may have lost what was acknowledged, and those who are to know have not noted it yet.
pub(crate) fn loss() -> Key {
    own_number(b"loss")
}

/// The key under which it keeps its mark of losses, and by which open.
pub(crate) fn loss_mark() -> Key {
    own_number(b"loss-mark")
}

/// The key under which it says what is told with changes of a chain that has come from another target.
pub(crate) fn chain_mark(chain: ChainId) -> Key {
    let mut key = chain_marks_start();
    key.extend_from_slice(&chain.0.to_be_bytes());
    key
}

fn chain_marks_start() -> Key {
    own_number(b"chain-mark ")
}

/// All keys of [`chain_mark`] are from the first one on, and before the second one.
pub(crate) fn chain_marks() -> (Key, Key) {
    (chain_marks_start(), own_number(b"chain-mark!"))
}

/// The chain of a key of [`chain_mark`].
pub(crate) fn decode_chain_mark(key: &[u8]) -> Result<ChainId, ChunkError> {
    let chain = key.get(chain_marks_start().len()..).and_then(|raw| <[u8; 4]>::try_from(raw).ok());
    chain.map(|raw| ChainId(u32::from_be_bytes(raw))).ok_or_else(|| corrupt("m"))
}

/// Where and when a target was open: a span of time, and the number of the open. Software that knows nothing of it counts opens all the same,
/// so that the record is seen to be of an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenedIn {
    pub(crate) span: Continuity,
    pub(crate) opens: u64,
}

impl OpenedIn {
    pub(crate) fn encode(&self) -> Bytes {
        let OpenedIn { span, opens } = self;
        [span.boot.as_slice(), &span.mount.to_le_bytes(), &opens.to_le_bytes()].concat().into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<OpenedIn, ChunkError> {
        let mut fields = Fields { rest: value };
        let decoded = fields.take().zip(fields.u64()).zip(fields.u64());
        let ((boot, mount), opens) =
            decoded.filter(|_| fields.rest.is_empty()).ok_or_else(|| corrupt("m"))?;
        Ok(OpenedIn { span: Continuity { boot, mount }, opens })
    }
}

/// The key of a chunk.
pub(crate) fn chunk(id: ChunkId) -> Key {
    let mut key = Key::from_slice(&[0, 0, CHUNKS]);
    put_chunk_be(id, &mut key);
    key
}

/// The first key behind all chunks of a generation.
pub(crate) fn generation_end(inode: InodeId, generation: u32) -> Key {
    let mut key = chunk(ChunkId { inode, generation, index: u64::MAX });
    key.push(0);
    key
}

/// The chunk of a key of table [`CHUNKS`].
pub(crate) fn decode_chunk(key: &[u8]) -> Result<ChunkId, ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    let id = fields.chunk_be().filter(|_| fields.rest.is_empty());
    id.ok_or_else(|| corrupt("c"))
}

/// The key of the record of blocks that are lost.
pub(crate) fn lost(id: ChunkId) -> Key {
    let mut key = Key::from_slice(&[0, 0, LOST]);
    put_chunk_be(id, &mut key);
    key
}

/// The chunk of a key of table [`LOST`].
pub(crate) fn decode_lost(key: &[u8]) -> Result<ChunkId, ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    let id = fields.chunk_be().filter(|_| fields.rest.is_empty());
    id.ok_or_else(|| corrupt("l"))
}

/// The key of a group's bits.
pub(crate) fn group(slab: SlabId, group: u32) -> Key {
    let mut key = Key::from_slice(&[0, 0, GROUPS, slab.class.log2()]);
    key.extend_from_slice(&slab.number.to_be_bytes());
    key.extend_from_slice(&group.to_be_bytes());
    key
}

/// Slab and group of a key of table [`GROUPS`].
pub(crate) fn decode_group(key: &[u8]) -> Result<(SlabId, u32), ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    let decoded = fields.slab_be().zip(fields.u32_be());
    match decoded {
        Some((slab, group)) if fields.rest.is_empty() && group < slab.class.groups_per_slab() => {
            Ok((slab, group))
        }
        _ => Err(corrupt("g")),
    }
}

/// The bits of a group.
pub(crate) fn encode_bits(bits: &[u64]) -> Bytes {
    bits.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The bits of a group.
pub(crate) fn decode_bits(value: &[u8]) -> Result<[u64; GROUP_WORDS], ChunkError> {
    let mut fields = Fields { rest: value };
    let mut bits = [0; GROUP_WORDS];
    for word in &mut bits {
        *word = fields.u64().ok_or_else(|| corrupt("g"))?;
    }
    if fields.rest.is_empty() { Ok(bits) } else { Err(corrupt("g")) }
}

/// The key of a fresh slot.
pub(crate) fn fresh(generation: u64) -> Key {
    let mut key = Key::from_slice(&[0, 0, FRESH]);
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// The key of a suspect.
pub(crate) fn suspect((inode, generation): FileGeneration) -> Key {
    let mut key = Key::from_slice(&[0, 0, SUSPECTS]);
    key.extend_from_slice(&inode.0.to_be_bytes());
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// The file of a key of table [`SUSPECTS`].
pub(crate) fn decode_suspect(key: &[u8]) -> Result<FileGeneration, ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    let decoded = fields.u64_be().zip(fields.u32_be());
    match decoded {
        Some((inode, generation)) if fields.rest.is_empty() => Ok((InodeId(inode), generation)),
        _ => Err(corrupt("s")),
    }
}

/// The key of a note about a chain.
pub(crate) fn chain_note(chain: ChainId) -> Key {
    let mut key = Key::from_slice(&[0, 0, CHAIN_NOTES]);
    key.extend_from_slice(&chain.0.to_be_bytes());
    key
}

/// The chain of a key of table [`CHAIN_NOTES`].
pub(crate) fn decode_chain_note(key: &[u8]) -> Result<ChainId, ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    let chain = fields.u32_be().filter(|_| fields.rest.is_empty());
    chain.map(ChainId).ok_or_else(|| corrupt("h"))
}

/// What a record of table [`COPIES`] is about, besides its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyKey {
    /// What the target is in the group of the chain.
    Membership,
    /// A chunk that others may not have as it is here.
    Uncertain(ChunkId),
    /// That it is noted what a target lacks.
    Lacking(TargetId),
    /// What it lacks.
    Lacks(TargetId, Lack),
}

impl CopyKey {
    pub(crate) fn of(self, chain: ChainId) -> Key {
        let mut key = Key::from_slice(&[0, 0, COPIES]);
        key.extend_from_slice(&chain.0.to_be_bytes());
        match self {
            CopyKey::Membership => key.push(0),
            CopyKey::Uncertain(chunk) => {
                key.push(1);
                put_chunk_be(chunk, &mut key);
            }
            CopyKey::Lacking(target) => {
                key.push(2);
                key.extend_from_slice(&target.0.to_be_bytes());
            }
            CopyKey::Lacks(target, lack) => {
                key.push(3);
                key.extend_from_slice(&target.0.to_be_bytes());
                let (kind, chunk) = match lack {
                    Lack::Chunk(chunk) => (0, chunk),
                    Lack::Deletion(chunk) => (1, chunk),
                };
                key.push(kind);
                put_chunk_be(chunk, &mut key);
            }
        }
        key
    }
}

fn put_chunk_be(chunk: ChunkId, key: &mut Key) {
    key.extend_from_slice(&chunk.inode.0.to_be_bytes());
    key.extend_from_slice(&chunk.generation.to_be_bytes());
    key.extend_from_slice(&chunk.index.to_be_bytes());
}

/// The keys of what `target` lacks of `chain`.
pub(crate) fn lacks_range(chain: ChainId, target: TargetId) -> (Key, Key) {
    let mut from = Key::from_slice(&[0, 0, COPIES]);
    from.extend_from_slice(&chain.0.to_be_bytes());
    from.push(3);
    from.extend_from_slice(&target.0.to_be_bytes());
    let mut to = from.clone();
    // Behind both kinds.
    to.push(2);
    (from, to)
}

pub(crate) fn corrupt_copy() -> ChunkError {
    corrupt("k")
}

/// Chain and meaning of a key of table [`COPIES`].
pub(crate) fn decode_copy(key: &[u8]) -> Result<(ChainId, CopyKey), ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    let mut read = || {
        let chain = ChainId(fields.u32_be()?);
        let what = match fields.u8()? {
            0 => CopyKey::Membership,
            1 => CopyKey::Uncertain(fields.chunk_be()?),
            2 => CopyKey::Lacking(TargetId(fields.u32_be()?)),
            3 => {
                let (target, kind) = (TargetId(fields.u32_be()?), fields.u8()?);
                let chunk = fields.chunk_be()?;
                CopyKey::Lacks(
                    target,
                    match kind {
                        0 => Lack::Chunk(chunk),
                        1 => Lack::Deletion(chunk),
                        _ => return None,
                    },
                )
            }
            _ => return None,
        };
        fields.rest.is_empty().then_some((chain, what))
    };
    read().ok_or_else(corrupt_copy)
}

impl ChainNote {
    pub(crate) fn encode(self) -> Bytes {
        let (kind, since) = match self {
            ChainNote::Leaving { since } => (1u8, since),
            ChainNote::Arrived { since } => (2, since),
        };
        [&[kind], since.0.to_le_bytes().as_slice()].concat().into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<ChainNote, ChunkError> {
        let mut fields = Fields { rest: value };
        match fields.u8().zip(fields.u64().map(Epoch)) {
            Some((1, since)) if fields.rest.is_empty() => Ok(ChainNote::Leaving { since }),
            Some((2, since)) if fields.rest.is_empty() => Ok(ChainNote::Arrived { since }),
            _ => Err(corrupt("h")),
        }
    }
}

/// The value of a suspect: the sync round that made it durable.
pub(crate) fn encode_round(round: u64) -> Bytes {
    Bytes::copy_from_slice(&round.to_le_bytes())
}

/// The sync round of a suspect.
pub(crate) fn decode_round(value: &[u8]) -> Result<u64, ChunkError> {
    let mut fields = Fields { rest: value };
    fields.u64().filter(|_| fields.rest.is_empty()).ok_or_else(|| corrupt("s"))
}

/// The slot generation of a key of table [`FRESH`].
pub(crate) fn decode_fresh(key: &[u8]) -> Result<u64, ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    match fields.u64_be() {
        Some(generation) if fields.rest.is_empty() => Ok(generation),
        _ => Err(corrupt("n")),
    }
}

/// The key of a dirty region.
pub(crate) fn dirty(region: Region) -> Key {
    let mut key = Key::from_slice(&[0, 0, DIRTY, region.slab.class.log2()]);
    key.extend_from_slice(&region.slab.number.to_be_bytes());
    key.extend_from_slice(&region.number.to_be_bytes());
    key
}

/// The region of a key of table [`DIRTY`].
pub(crate) fn decode_dirty(key: &[u8]) -> Result<Region, ChunkError> {
    let mut fields = Fields { rest: key.get(3..).unwrap_or_default() };
    match fields.slab_be().zip(fields.u32_be()) {
        Some((slab, number)) if fields.rest.is_empty() && number < slab.class.regions_per_slab() => {
            Ok(Region { slab, number })
        }
        _ => Err(corrupt("d")),
    }
}

/// What an index says of itself, so that another target's, or an older copy of this one's, is not taken for it: chunks would be
/// missing, and read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) uuid: TargetUuid,
    /// The last start it took part in.
    pub(crate) start: Start,
    /// What the header of the target said before that start: it is noted there a moment later.
    pub(crate) before: Start,
}

impl Mark {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(48);
        out.extend_from_slice(&self.uuid.0);
        for number in [self.start.number, self.start.tag, self.before.number, self.before.tag] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Mark, ChunkError> {
        let mut fields = Fields { rest: value };
        let mut read = || {
            let uuid = TargetUuid(fields.take()?);
            let start = Start { number: fields.u64()?, tag: fields.u64()? };
            let before = Start { number: fields.u64()?, tag: fields.u64()? };
            fields.rest.is_empty().then_some(Mark { uuid, start, before })
        };
        read().ok_or_else(|| corrupt("m"))
    }
}

impl Placement {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(22);
        put_slot(self.slot, &mut out);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.push(u8::from(self.is_full));
        out.extend_from_slice(&encode_chain(self.chain).to_le_bytes());
        out.into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Placement, ChunkError> {
        let mut fields = Fields { rest: value };
        let decoded = fields.slot().zip(fields.u64()).zip(fields.u8());
        // Written before chains were noted, it ends here.
        let chain = if fields.rest.is_empty() { Some(0) } else { fields.u32() };
        match decoded.zip(chain) {
            Some((((slot, generation), full), chain)) if fields.rest.is_empty() && full < 2 => {
                Ok(Placement { slot, generation, is_full: full == 1, chain: decode_chain(chain) })
            }
            _ => Err(corrupt("c")),
        }
    }
}

impl LostRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let bits = self.blocks.last().map_or(0, |last| *last as usize / 8 + 1);
        let mut out = vec![0; 8 + bits];
        let (generation, bits) = out.split_at_mut(8);
        generation.copy_from_slice(&self.generation.to_le_bytes());
        for block in &self.blocks {
            if let Some(byte) = bits.get_mut(*block as usize / 8) {
                *byte |= 1 << (block % 8);
            }
        }
        out.into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<LostRecord, ChunkError> {
        let mut fields = Fields { rest: value };
        let generation = fields.u64().ok_or_else(|| corrupt("l"))?;
        let blocks = (0u32..).zip(fields.rest).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| 8 * at + bit)
        });
        Ok(LostRecord { generation, blocks: blocks.collect() })
    }
}

impl FreshRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(34);
        put_slot(self.slot, &mut out);
        out.extend_from_slice(&self.chunk.inode.0.to_le_bytes());
        out.extend_from_slice(&self.chunk.generation.to_le_bytes());
        out.extend_from_slice(&self.chunk.index.to_le_bytes());
        out.push(u8::from(self.stale.is_some()));
        out.extend_from_slice(&self.stale.unwrap_or(0).to_le_bytes());
        out.into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<FreshRecord, ChunkError> {
        let mut fields = Fields { rest: value };
        let mut read = || {
            let slot = fields.slot()?;
            let chunk =
                ChunkId { inode: InodeId(fields.u64()?), generation: fields.u32()?, index: fields.u64()? };
            let (is_stale, digest) = (fields.u8()?, fields.u32()?);
            let record = FreshRecord { slot, chunk, stale: (is_stale == 1).then_some(digest) };
            (fields.rest.is_empty() && is_stale < 2).then_some(record)
        };
        read().ok_or_else(|| corrupt("n"))
    }
}

fn put_slot(slot: Slot, out: &mut Vec<u8>) {
    out.push(slot.slab.class.log2());
    out.extend_from_slice(&slot.slab.number.to_le_bytes());
    out.extend_from_slice(&slot.number.to_le_bytes());
}

/// Fields taken one by one from the front; `None` when the bytes end.
struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32_be(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64_be(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn chunk_be(&mut self) -> Option<ChunkId> {
        Some(ChunkId { inode: InodeId(self.u64_be()?), generation: self.u32_be()?, index: self.u64_be()? })
    }

    fn slab_be(&mut self) -> Option<SlabId> {
        Some(SlabId { class: Class::from_log2(self.u8()?)?, number: self.u32_be()? })
    }

    fn slot(&mut self) -> Option<Slot> {
        let slab = SlabId { class: Class::from_log2(self.u8()?)?, number: self.u32()? };
        let number = self.u32()?;
        (number < slab.class.slots_per_slab()).then_some(Slot { slab, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_round_trip_and_short_ones_are_refused() {
        let slab = SlabId { class: Class::of(1 << 20).unwrap(), number: 9 };
        let slot = Slot { slab, number: 1023 };
        let id = ChunkId { inode: InodeId(5), generation: 6, index: 7 };
        let placement = Placement { slot, generation: 1 << 40, is_full: true, chain: Some(ChainId(7)) };
        assert_eq!(Placement::decode(&placement.encode()).unwrap(), placement);
        let record = FreshRecord { slot, chunk: id, stale: Some(3) };
        assert_eq!(FreshRecord::decode(&record.encode()).unwrap(), record);
        for end in 0..record.encode().len() {
            assert!(FreshRecord::decode(&record.encode()[..end]).is_err());
            assert!(Placement::decode(&placement.encode()[..end.min(17)]).is_err());
        }
        assert_eq!(decode_chunk(&chunk(id)).unwrap(), id);
        let region = Region { slab, number: 8 };
        assert_eq!(decode_dirty(&dirty(region)).unwrap(), region);
        assert_eq!(decode_group(&group(slab, 3)).unwrap(), (slab, 3));
        assert!(decode_group(&group(slab, 4)).is_err());
        let (start, before) = (Start { number: 5, tag: 6 }, Start { number: 3, tag: 4 });
        let mark = Mark { uuid: TargetUuid([7; 16]), start, before };
        assert_eq!(Mark::decode(&mark.encode()).unwrap(), mark);
        assert!(Mark::decode(&mark.encode()[..47]).is_err());
        let opened = OpenedIn { span: Continuity { boot: [1; 16], mount: 2 }, opens: 3 };
        assert_eq!(OpenedIn::decode(&opened.encode()).unwrap(), opened);
        assert!(OpenedIn::decode(&opened.encode()[..31]).is_err());
        assert_eq!(decode_fresh(&fresh(77)).unwrap(), 77);
        let file = (InodeId(5), 6);
        assert_eq!(decode_suspect(&suspect(file)).unwrap(), file);
        assert!(decode_suspect(&suspect(file)[..14]).is_err());
        assert_eq!(decode_round(&encode_round(8)).unwrap(), 8);
        assert!(decode_round(&[0; 7]).is_err());
        assert!(chunk(id) < generation_end(id.inode, id.generation));
        let target = TargetId(8);
        for what in [
            CopyKey::Membership,
            CopyKey::Uncertain(id),
            CopyKey::Lacking(target),
            CopyKey::Lacks(target, Lack::Chunk(id)),
            CopyKey::Lacks(target, Lack::Deletion(id)),
        ] {
            let key = what.of(ChainId(7));
            assert_eq!(decode_copy(&key).unwrap(), (ChainId(7), what));
            assert!(decode_copy(&key[..key.len() - 1]).is_err());
            let (from, to) = lacks_range(ChainId(7), target);
            assert_eq!((from..to).contains(&key), matches!(what, CopyKey::Lacks(..)));
        }
    }

    #[test]
    fn ten_thousand_keys_and_values_with_other_fields_are_refused_or_read() {
        let slab = SlabId { class: Class::of(1 << 20).unwrap(), number: 9 };
        let slot = Slot { slab, number: 1023 };
        let id = ChunkId { inode: InodeId(5), generation: 6, index: 7 };
        let samples: Vec<Vec<u8>> = vec![
            Placement { slot, generation: 1 << 40, is_full: true, chain: Some(ChainId(7)) }.encode().to_vec(),
            FreshRecord { slot, chunk: id, stale: Some(3) }.encode().to_vec(),
            Mark { uuid: TargetUuid([7; 16]), start: Start::default(), before: Start::default() }
                .encode()
                .to_vec(),
            OpenedIn { span: Continuity { boot: [1; 16], mount: 2 }, opens: 3 }.encode().to_vec(),
            encode_bits(&[u64::MAX; GROUP_WORDS]).to_vec(),
            encode_round(5).to_vec(),
            chunk(id).to_vec(),
            group(slab, 3).to_vec(),
            fresh(7).to_vec(),
            dirty(Region { slab, number: 8 }).to_vec(),
            suspect((InodeId(5), 6)).to_vec(),
            CopyKey::Lacks(TargetId(8), Lack::Chunk(id)).of(ChainId(7)).to_vec(),
        ];
        let random = ashlar_env::sim::SimEntropy::new(9);
        for round in 0..10_000 {
            let mut bytes = samples[round % samples.len()].clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = [0, 1, 127, 128, 255, random.below(256) as u8][random.below(6) as usize];
            }
            if random.below(5) == 0 {
                bytes.resize(random.below(60) as usize, 0);
            }
            // Whatever decodes names a place that exists.
            if let Ok(placement) = Placement::decode(&bytes) {
                assert!(placement.slot.number < placement.slot.slab.class.slots_per_slab());
            }
            if let Ok(record) = FreshRecord::decode(&bytes) {
                assert!(record.slot.number < record.slot.slab.class.slots_per_slab());
            }
            if let Ok(region) = decode_dirty(&bytes) {
                assert!(region.number < region.slab.class.regions_per_slab());
            }
            if let Ok((slab, group)) = decode_group(&bytes) {
                assert!(group < slab.class.groups_per_slab());
            }
            let _ =
                (Mark::decode(&bytes), OpenedIn::decode(&bytes), decode_bits(&bytes), decode_round(&bytes));
            let _ = (decode_chunk(&bytes), decode_fresh(&bytes), decode_suspect(&bytes), decode_copy(&bytes));
        }
    }
}
