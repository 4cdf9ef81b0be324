//! Which slots are free, and what a free slot may still hold.
//!
//! | state | `used` | `taken` | `clean` | meaning |
//! |---|---|---|---|---|
//! | in use | 1 | 1 | - | the index points to it |
//! | being filled | 0 | 1 | - | a writer has it; the index does not know yet |
//! | freed | 0 | 1 | - | waits in `freed` until the deletion is durable, or in `punched` for a sync |
//! | stale | 0 | 0 | 0 | free; old bytes may still be on the disk. Taken only by writes of a whole chunk |
//! | clean | 0 | 0 | 1 | free and, after any power cut, all zeros. Taken by every write |
//!
//! Only `used` is stored (table `g` of the index, in the same commit as the chunk's own record). `clean` is forgotten
//! when the target closes: what a crash left in free slots is unknown, so they start as stale.

use crate::geometry::{Class, GROUP_SLOTS, SlabId, Slot};
use crate::key::{self, GROUP_WORDS};
use ashlar_kv::{Key, Position};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the taker of a slot is going to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The whole chunk, header and data.
    Whole,
    /// Less than that: the rest must read as zeros whatever happens.
    Part,
}

/// A slot whose chunk was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) slot: Slot,
    /// Every block of the chunk held space.
    pub(crate) was_full: bool,
}

impl Freed {
    /// What the slot holds.
    pub(crate) fn rest(&self) -> Rest {
        if self.was_full { Rest::Whole } else { Rest::Some }
    }
}

/// What a slot that becomes free still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Durable zeros.
    Nothing,
    /// A whole chunk, whose space counts as free.
    Whole,
    /// Anything; what space that takes is not counted.
    Some,
}

/// A slot for a new chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: Slot,
    /// Old bytes may be on the disk.
    pub(crate) is_stale: bool,
    /// It holds space already, so that using it takes none.
    pub(crate) is_held: bool,
}

struct SlabBits {
    used: Vec<u64>,
    taken: Vec<u64>,
    clean: Vec<u64>,
    /// Free slots that are known to hold space on the disk.
    held: Vec<u64>,
    /// Slots that nobody has looked at since the target was opened: what a free one holds is not known.
    unseen: Vec<u64>,
}

struct ClassSlots {
    class: Class,
    slabs: BTreeMap<u32, SlabBits>,
    /// Slabs with clean slots.
    with_clean: BTreeSet<u32>,
    /// Slabs with stale slots.
    with_stale: BTreeSet<u32>,
    /// Slabs with free slots that nobody has looked at.
    with_unseen: BTreeSet<u32>,
    stale: u64,
    clean: u64,
    /// Free slots that hold space.
    held: u64,
    /// LIMIT: [`FREED_MAX`] entries; beyond them a delete flushes the index and settles them.
    freed: VecDeque<(Position, Freed)>,
    /// Those of them that held a full chunk.
    freed_whole: u64,
    /// (sync round that makes the punch durable, slot). LIMIT: bounded by the budget of the ticks between two syncs.
    punched: VecDeque<(u64, Slot)>,
}

/// Freed slots whose deletion is not durable yet, per class.
pub(crate) const FREED_MAX: usize = 1 << 16;

/// Counts of free slots in bytes of disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeBytes {
    /// Held by free slots that had full chunks; comes back when they are used again or punched.
    pub(crate) held: u64,
    /// Stale slots of any class.
    pub(crate) stale_slots: u64,
    /// Clean slots of any class.
    pub(crate) clean_slots: u64,
}

/// The free slots of a target.
pub(crate) struct Allocator {
    classes: Vec<Mutex<ClassSlots>>,
}

fn position(number: u32) -> (usize, u64) {
    ((number / 64) as usize, 1 << (number % 64))
}

fn is_set(bits: &[u64], number: u32) -> bool {
    let (word, bit) = position(number);
    bits.get(word).is_some_and(|value| value & bit != 0)
}

/// The first set bit at or behind `from`.
fn first_set(bits: &[u64], from: u32) -> Option<u32> {
    let (first, bit) = position(from);
    bits.iter().enumerate().skip(first).find_map(|(word, value)| {
        let value = if word == first { value & !(bit - 1) } else { *value };
        (value != 0).then(|| word as u32 * 64 + value.trailing_zeros())
    })
}

fn assign(bits: &mut [u64], number: u32, value: bool) {
    let (word, bit) = position(number);
    if let Some(slot) = bits.get_mut(word) {
        *slot = if value { *slot | bit } else { *slot & !bit };
    }
}

impl SlabBits {
    fn new(class: Class, is_clean: bool) -> SlabBits {
        let words = class.slots_per_slab() as usize / 64;
        let clean = vec![if is_clean { u64::MAX } else { 0 }; words];
        let unseen = vec![if is_clean { 0 } else { u64::MAX }; words];
        SlabBits { used: vec![0; words], taken: vec![0; words], clean, held: vec![0; words], unseen }
    }

    /// The first free slot that is clean or stale, as asked.
    fn first_free(&self, is_clean: bool) -> Option<u32> {
        let words = self.taken.iter().zip(&self.clean).enumerate();
        words.into_iter().find_map(|(word, (taken, clean))| {
            let candidates = !taken & if is_clean { *clean } else { !clean };
            (candidates != 0).then(|| word as u32 * 64 + candidates.trailing_zeros())
        })
    }
}

impl ClassSlots {
    /// Takes the first free slot that nobody has looked at.
    fn take_unseen(&mut self) -> Option<Slot> {
        while let Some(slab) = self.with_unseen.first().copied() {
            let bits = self.slabs.get_mut(&slab)?;
            let words = bits.taken.iter().zip(&bits.unseen).enumerate();
            let found = words.into_iter().find_map(|(word, (taken, unseen))| {
                let candidates = !taken & unseen;
                (candidates != 0).then(|| word as u32 * 64 + candidates.trailing_zeros())
            });
            let Some(number) = found else {
                self.with_unseen.remove(&slab);
                continue;
            };
            assign(&mut bits.taken, number, true);
            assign(&mut bits.unseen, number, false);
            // INVARIANT: whoever has made a slot clean, or has noted what it holds, has put it back, and so it was seen.
            self.stale -= 1;
            return Some(self.slot(slab, number));
        }
        None
    }

    fn slot(&self, slab: u32, number: u32) -> Slot {
        Slot { slab: SlabId { class: self.class, number: slab }, number }
    }

    fn take(&mut self, is_clean: bool) -> Option<Taken> {
        loop {
            let set = if is_clean { &self.with_clean } else { &self.with_stale };
            let slab = set.first().copied()?;
            if let Some(taken) = self.take_of(slab, is_clean) {
                return Some(taken);
            }
        }
    }

    /// Takes a stale slot of another slab than that whose clean slots are taken now.
    fn take_stale_beside_writers(&mut self) -> Option<Taken> {
        let busy = self.with_clean.first().copied();
        loop {
            let slab = self.with_stale.iter().copied().find(|slab| Some(*slab) != busy)?;
            if let Some(taken) = self.take_of(slab, false) {
                return Some(taken);
            }
        }
    }

    /// Takes a free slot of a slab; without one the slab leaves the set it was in.
    fn take_of(&mut self, slab: u32, is_clean: bool) -> Option<Taken> {
        let found = self.slabs.get_mut(&slab).and_then(|bits| Some((bits.first_free(is_clean)?, bits)));
        let Some((number, bits)) = found else {
            let set = if is_clean { &mut self.with_clean } else { &mut self.with_stale };
            set.remove(&slab);
            return None;
        };
        assign(&mut bits.taken, number, true);
        let is_held = is_set(&bits.held, number);
        if is_held {
            assign(&mut bits.held, number, false);
            self.held -= 1;
        }
        if is_clean {
            self.clean -= 1;
        } else {
            self.stale -= 1;
        }
        Some(Taken { slot: self.slot(slab, number), is_stale: !is_clean, is_held })
    }

    /// Makes a taken slot free.
    fn put_back(&mut self, slot: Slot, rest: Rest) {
        let slab = slot.slab.number;
        let Some(bits) = self.slabs.get_mut(&slab) else { return };
        assign(&mut bits.taken, slot.number, false);
        assign(&mut bits.clean, slot.number, rest == Rest::Nothing);
        assign(&mut bits.held, slot.number, rest == Rest::Whole);
        assign(&mut bits.unseen, slot.number, false);
        self.held += u64::from(rest == Rest::Whole);
        if rest == Rest::Nothing {
            self.clean += 1;
            self.with_clean.insert(slab);
        } else {
            self.stale += 1;
            self.with_stale.insert(slab);
        }
    }

    fn settle(&mut self, durable: Position, completed: u64) {
        while let Some(freed) = self.pop_freed(durable) {
            self.put_back(freed.slot, freed.rest());
        }
        while let Some((round, slot)) = self.punched.front().copied()
            && round <= completed
        {
            self.punched.pop_front();
            self.put_back(slot, Rest::Nothing);
        }
    }

    fn pop_freed(&mut self, durable: Position) -> Option<Freed> {
        let (at, freed) = *self.freed.front()?;
        (at <= durable).then(|| {
            self.freed.pop_front();
            self.freed_whole -= u64::from(freed.was_full);
            freed
        })
    }
}

impl Allocator {
    pub(crate) fn new() -> Allocator {
        let new = |class| ClassSlots {
            class,
            slabs: BTreeMap::new(),
            with_clean: BTreeSet::new(),
            with_stale: BTreeSet::new(),
            with_unseen: BTreeSet::new(),
            stale: 0,
            clean: 0,
            held: 0,
            freed: VecDeque::new(),
            freed_whole: 0,
            punched: VecDeque::new(),
        };
        Allocator { classes: Class::all().map(|class| Mutex::new(new(class))).collect() }
    }

    fn class(&self, class: Class) -> &Mutex<ClassSlots> {
        // INVARIANT: `classes` has one entry for each class, in order, and a `Class` is always one of them.
        let smallest = Class::all().next().map_or(0, Class::log2);
        &self.classes[usize::from(class.log2() - smallest)]
    }

    /// Adds a slab that was just made.
    pub(crate) fn add_new_slab(&self, id: SlabId) {
        let mut slots = self.class(id.class).lock();
        slots.slabs.insert(id.number, SlabBits::new(id.class, true));
        slots.with_clean.insert(id.number);
        slots.clean += u64::from(id.class.slots_per_slab());
    }

    /// Adds a slab that was found when the target was opened; its free slots are stale.
    pub(crate) fn add_found_slab(&self, id: SlabId) {
        let mut slots = self.class(id.class).lock();
        slots.slabs.insert(id.number, SlabBits::new(id.class, false));
        slots.with_stale.insert(id.number);
        slots.with_unseen.insert(id.number);
        slots.stale += u64::from(id.class.slots_per_slab());
    }

    /// Adds a slab the index knows and whose file is gone: nothing in it is free.
    pub(crate) fn add_lost_slab(&self, id: SlabId) {
        let mut slots = self.class(id.class).lock();
        let mut bits = SlabBits::new(id.class, false);
        bits.taken.fill(u64::MAX);
        slots.slabs.insert(id.number, bits);
    }

    /// Takes over the stored bits of a group; false when the slab is not there.
    pub(crate) fn load_group(&self, id: SlabId, group: u32, stored: [u64; GROUP_WORDS]) -> bool {
        let mut slots = self.class(id.class).lock();
        let Some(bits) = slots.slabs.get_mut(&id.number) else { return stored == [0; GROUP_WORDS] };
        let from = group as usize * GROUP_WORDS;
        let mut newly = 0;
        for (offset, word) in stored.into_iter().enumerate() {
            newly += (word & !bits.taken[from + offset]).count_ones();
            bits.used[from + offset] = word;
            bits.taken[from + offset] |= word;
        }
        slots.stale -= u64::from(newly);
        true
    }

    /// The number the next slab of a class gets.
    pub(crate) fn next_slab(&self, class: Class) -> SlabId {
        let slots = self.class(class).lock();
        SlabId { class, number: slots.slabs.last_key_value().map_or(0, |(number, _)| number + 1) }
    }

    /// Takes a free slot: recycled ones first where the write covers everything. Deletions up to `durable` are durable,
    /// sync rounds up to `completed` are over.
    pub(crate) fn take(
        &self,
        class: Class,
        purpose: Purpose,
        durable: Position,
        completed: u64,
    ) -> Option<Taken> {
        let mut slots = self.class(class).lock();
        slots.settle(durable, completed);
        match purpose {
            Purpose::Whole => slots.take(false).or_else(|| slots.take(true)),
            Purpose::Part => slots.take(true),
        }
    }

    /// Takes up to `count` stale slots, to be punched.
    pub(crate) fn take_stale(&self, class: Class, count: usize) -> Vec<Slot> {
        let mut slots = self.class(class).lock();
        std::iter::from_fn(|| slots.take(false)).take(count).map(|taken| taken.slot).collect()
    }

    /// As [`Allocator::take_stale`], but of slabs that writers do not take clean slots of now: a punch keeps writers out of its slab.
    pub(crate) fn take_stale_beside_writers(&self, class: Class, count: usize) -> Vec<Slot> {
        let mut slots = self.class(class).lock();
        std::iter::from_fn(|| slots.take_stale_beside_writers()).take(count).map(|taken| taken.slot).collect()
    }

    /// Takes a free slot that nobody has looked at since the target was opened.
    pub(crate) fn take_unseen(&self, class: Class) -> Option<Slot> {
        self.class(class).lock().take_unseen()
    }

    /// Gives a taken slot back that nothing points to.
    pub(crate) fn put_back(&self, slot: Slot, rest: Rest) {
        self.class(slot.slab.class).lock().put_back(slot, rest);
    }

    /// Changes the stored bit of slots and gives the records to be committed. Called under the index's write lock,
    /// so that records are committed in the order in which they were made.
    pub(crate) fn mark_used(&self, slots: &[Slot], is_used: bool, out: &mut BTreeMap<Key, Option<Bytes>>) {
        for slot in slots {
            let mut class = self.class(slot.slab.class).lock();
            let Some(bits) = class.slabs.get_mut(&slot.slab.number) else { continue };
            assign(&mut bits.used, slot.number, is_used);
            let group = slot.number / GROUP_SLOTS;
            let from = group as usize * GROUP_WORDS;
            let value = key::encode_bits(&bits.used[from..from + GROUP_WORDS]);
            out.insert(key::group(slot.slab, group), Some(value));
        }
    }

    /// Takes back [`Allocator::mark_used`] after a refused commit.
    pub(crate) fn unmark(&self, slots: &[Slot], is_used: bool) {
        self.mark_used(slots, !is_used, &mut BTreeMap::new());
    }

    /// Notes slots whose deletion is committed at `at`; false when too many wait.
    pub(crate) fn freed(&self, all: impl Iterator<Item = Freed>, at: Position) -> bool {
        let mut has_room = true;
        for freed in all {
            let mut class = self.class(freed.slot.slab.class).lock();
            class.freed.push_back((at, freed));
            class.freed_whole += u64::from(freed.was_full);
            has_room &= class.freed.len() <= FREED_MAX;
        }
        has_room
    }

    /// Makes punched slots clean whose sync round is over.
    pub(crate) fn settle_punched(&self, class: Class, completed: u64) {
        self.class(class).lock().settle(Position(0), completed);
    }

    /// Makes freed slots stale whose deletion is durable, and punched slots clean whose sync round is over.
    pub(crate) fn settle(&self, class: Class, durable: Position, completed: u64) {
        self.class(class).lock().settle(durable, completed);
    }

    /// One freed slot whose deletion is durable; it stays taken.
    pub(crate) fn pop_freed(&self, class: Class, durable: Position) -> Option<Freed> {
        self.class(class).lock().pop_freed(durable)
    }

    /// Notes a taken slot that was punched; sync round `round` makes that durable.
    pub(crate) fn punched(&self, slot: Slot, round: u64) {
        self.class(slot.slab.class).lock().punched.push_back((round, slot));
    }

    /// Stale and clean slots of a class.
    pub(crate) fn free_slots(&self, class: Class) -> (u64, u64) {
        let slots = self.class(class).lock();
        (slots.stale, slots.clean)
    }

    /// Punched slots of a class that wait for a sync.
    pub(crate) fn punched_slots(&self, class: Class) -> usize {
        self.class(class).lock().punched.len()
    }

    /// What free slots hold.
    pub(crate) fn free_bytes(&self) -> FreeBytes {
        let mut sum = FreeBytes::default();
        for slots in &self.classes {
            let slots = slots.lock();
            sum.held += (slots.held + slots.freed_whole) * u64::from(slots.class.stride());
            sum.stale_slots += slots.stale;
            sum.clean_slots += slots.clean;
        }
        sum
    }

    /// Whether the index points to the slot, as of now.
    pub(crate) fn is_used(&self, slot: Slot) -> bool {
        let slots = self.class(slot.slab.class).lock();
        slots.slabs.get(&slot.slab.number).is_some_and(|bits| is_set(&bits.used, slot.number))
    }

    /// The first slot in use at or behind `from`, in the order of class, slab and slot.
    pub(crate) fn next_used(&self, from: Slot) -> Option<Slot> {
        for class in Class::all().filter(|class| *class >= from.slab.class) {
            let slots = self.class(class).lock();
            let first_slab = if class == from.slab.class { from.slab.number } else { 0 };
            for (slab, bits) in slots.slabs.range(first_slab..) {
                let is_first = class == from.slab.class && *slab == first_slab;
                let first = if is_first { from.number } else { 0 };
                if let Some(number) = first_set(&bits.used, first) {
                    return Some(slots.slot(*slab, number));
                }
            }
        }
        None
    }

    /// Whether any slot of the region is in use.
    pub(crate) fn is_region_used(&self, region: crate::geometry::Region) -> bool {
        region.slots().any(|(slot, _, _)| self.is_used(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Class {
        Class::of(1 << 20).unwrap()
    }

    #[test]
    fn a_freed_slot_comes_back_only_after_its_deletion_is_durable() {
        let allocator = Allocator::new();
        let slab = SlabId { class: class(), number: 0 };
        allocator.add_new_slab(slab);
        let taken = allocator.take(class(), Purpose::Whole, Position(0), 0).unwrap();
        assert!(!taken.is_stale);
        allocator.freed([Freed { slot: taken.slot, was_full: true }].into_iter(), Position(9));
        assert_eq!(allocator.free_bytes().held, u64::from(class().stride()));
        assert_ne!(allocator.take(class(), Purpose::Whole, Position(8), 0).unwrap().slot, taken.slot);
        let part = allocator.take(class(), Purpose::Part, Position(9), 0).unwrap();
        assert_ne!(part.slot, taken.slot, "a part never takes a stale slot");
        assert_eq!(allocator.free_bytes().held, u64::from(class().stride()));
        let recycled = Taken { slot: taken.slot, is_stale: true, is_held: true };
        assert_eq!(allocator.take(class(), Purpose::Whole, Position(9), 0).unwrap(), recycled);
        assert_eq!(allocator.free_bytes().held, 0);
    }

    #[test]
    fn stored_bits_come_back_and_everything_else_is_stale() {
        let allocator = Allocator::new();
        let slab = SlabId { class: class(), number: 2 };
        allocator.add_found_slab(slab);
        assert!(allocator.load_group(slab, 1, [1, 0, 0, 2]));
        assert!(!allocator.load_group(SlabId { number: 7, ..slab }, 1, [1, 0, 0, 2]));
        let first =
            allocator.next_used(Slot { slab: SlabId { class: class(), number: 0 }, number: 0 }).unwrap();
        assert_eq!((first.slab, first.number), (slab, 256));
        let second = allocator.next_used(Slot { number: 257, ..first }).unwrap();
        assert_eq!(second.number, 256 + 193);
        assert_eq!(allocator.free_slots(class()), (1024 - 2, 0));
        assert_eq!(allocator.take(class(), Purpose::Part, Position(0), 0), None);
        let mut records = BTreeMap::new();
        allocator.mark_used(&[first], false, &mut records);
        assert_eq!(records.into_values().next().unwrap().unwrap()[..8], [0; 8]);
    }
}
