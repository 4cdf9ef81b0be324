//! Where things are inside a slab. A slab holds slots of one class; a class is a chunk size. All numbers follow from
//! the class, none is stored.
//!
//! ```text
//! slab:  | slot 0 | slot 1 | ...           slot:  | header block(s) | data, chunk bytes |
//! ```

use crate::checksum::BLOCK;
use ashlar_types::LayoutPolicy;
use smallvec::SmallVec;

/// Bytes in front of the checksums in a slot header.
pub(crate) const HEADER_PREFIX_BYTES: u32 = 96;
/// Slots whose allocation bits share one index record.
pub(crate) const GROUP_SLOTS: u32 = 256;
/// Data bytes a slab holds, unless [`GROUP_SLOTS`] slots need more.
const SLAB_DATA_BYTES: u32 = 1 << 30;
/// Data bytes of a dirty region.
pub(crate) const REGION_BYTES: u32 = 1 << 20;

/// Regions of one change: a chunk of 16 MiB has 16.
pub(crate) type Regions = SmallVec<[Region; 2]>;

/// A chunk size, as its binary logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class(u8);

impl Class {
    /// The class of chunks of `chunk_bytes`; `None` when no layout may ask for it.
    pub(crate) fn of(chunk_bytes: u32) -> Option<Class> {
        let is_valid = chunk_bytes.is_power_of_two()
            && (LayoutPolicy::CHUNK_BYTES_MIN..=LayoutPolicy::CHUNK_BYTES_MAX).contains(&chunk_bytes);
        is_valid.then(|| Class(chunk_bytes.trailing_zeros() as u8))
    }

    /// The class with this logarithm; `None` when no layout may ask for it.
    pub(crate) fn from_log2(log2: u8) -> Option<Class> {
        1_u32.checked_shl(u32::from(log2)).and_then(Class::of)
    }

    /// All classes, smallest first.
    pub(crate) fn all() -> impl Iterator<Item = Class> {
        (0..32).filter_map(Class::from_log2)
    }

    pub(crate) fn log2(self) -> u8 {
        self.0
    }

    pub(crate) fn chunk_bytes(self) -> u32 {
        1 << self.0
    }

    /// Blocks of a chunk.
    pub(crate) fn blocks(self) -> u32 {
        self.chunk_bytes() / BLOCK
    }

    pub(crate) fn header_bytes(self) -> u32 {
        (HEADER_PREFIX_BYTES + 4 * self.blocks()).next_multiple_of(BLOCK)
    }

    /// Bytes from one slot to the next.
    pub(crate) fn stride(self) -> u32 {
        self.header_bytes() + self.chunk_bytes()
    }

    pub(crate) fn slots_per_slab(self) -> u32 {
        (SLAB_DATA_BYTES / self.chunk_bytes()).max(GROUP_SLOTS)
    }

    pub(crate) fn groups_per_slab(self) -> u32 {
        self.slots_per_slab() / GROUP_SLOTS
    }

    pub(crate) fn slab_file_bytes(self) -> u64 {
        u64::from(self.stride()) * u64::from(self.slots_per_slab())
    }

    pub(crate) fn regions_per_slab(self) -> u32 {
        (u64::from(self.chunk_bytes()) * u64::from(self.slots_per_slab()) / u64::from(REGION_BYTES)) as u32
    }

    /// The directory of this class's slabs.
    pub(crate) fn dir(self) -> String {
        format!("slabs/{}", self.chunk_bytes())
    }
}

/// One slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlabId {
    pub(crate) class: Class,
    pub(crate) number: u32,
}

impl SlabId {
    pub(crate) fn path(self) -> String {
        format!("{}/{}.slab", self.class.dir(), self.number)
    }
}

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) slab: SlabId,
    pub(crate) number: u32,
}

impl Slot {
    /// Offset of the header in the slab.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.slab.class.stride()) * u64::from(self.number)
    }

    /// Offset of data byte `at` of the chunk in the slab.
    pub(crate) fn data_offset(self, at: u32) -> u64 {
        self.offset() + u64::from(self.slab.class.header_bytes()) + u64::from(at)
    }

    /// The regions that data bytes `[from, to)` of the chunk touch; the region of `from` when the range is empty.
    pub(crate) fn regions(self, from: u32, to: u32) -> Regions {
        let base = u64::from(self.number) << self.slab.class.0;
        let region = |at: u32| ((base + u64::from(at)) / u64::from(REGION_BYTES)) as u32;
        let last = to.max(from + 1) - 1;
        (region(from)..=region(last)).map(|number| Region { slab: self.slab, number }).collect()
    }
}

/// 1 MiB of a slab's data; in classes of smaller chunks it covers several slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Region {
    pub(crate) slab: SlabId,
    pub(crate) number: u32,
}

impl Region {
    /// The slots it touches, each with the data bytes `[from, to)` of its chunk that are inside.
    pub(crate) fn slots(self) -> impl Iterator<Item = (Slot, u32, u32)> {
        let chunk = u64::from(self.slab.class.chunk_bytes());
        let from = u64::from(self.number) * u64::from(REGION_BYTES);
        let to = from + u64::from(REGION_BYTES);
        (from / chunk..to.div_ceil(chunk)).map(move |number| {
            let base = number * chunk;
            let slot = Slot { slab: self.slab, number: number as u32 };
            (slot, (from.max(base) - base) as u32, (to.min(base + chunk) - base) as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_chunk_sizes_of_layouts() {
        assert_eq!(Class::all().count(), 9);
        assert_eq!((Class::of(0), Class::of(1 << 25), Class::of(100_000)), (None, None, None));
        for class in Class::all() {
            assert_eq!(class.stride() % BLOCK, 0);
            assert!(class.slots_per_slab() % GROUP_SLOTS == 0);
        }
        assert_eq!(Class::of(16 << 20).map(Class::header_bytes), Some(20480));
    }

    #[test]
    fn regions_and_slots_agree_in_both_directions() {
        for class in Class::all() {
            let slab = SlabId { class, number: 3 };
            let slot = Slot { slab, number: 5 };
            for region in slot.regions(4096, class.chunk_bytes()) {
                assert!(region.number < class.regions_per_slab());
                assert!(region.slots().any(|(other, from, to)| other == slot && from < to));
            }
        }
    }
}
