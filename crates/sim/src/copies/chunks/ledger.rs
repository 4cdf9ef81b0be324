//! What callers know of contents, and what may be read because of that.
//!
//! Each cell of a chunk is a register: who writes it takes the next number, and one caller at a time changes a chunk, as the leases of metadata would have it.

use super::BLOCK;
use ashlar_types::Epoch;
use ashlar_types::message::LossMark;
use std::collections::{BTreeMap, BTreeSet};

/// Offset and length of what is written and read as a whole: blocks, parts of one, and what is on both sides of a border.
pub(super) const CELLS: [(u32, u32); 6] = [
    (0, BLOCK),
    (5 * BLOCK, 1000),
    (5 * BLOCK + 1000, BLOCK - 1000),
    (9 * BLOCK - 504, 1008),
    (15 * BLOCK, 2048),
    (15 * BLOCK + 2048, 2048),
];

/// A cell: chain, chunk of its file, number of the cell.
pub(super) type Place = (u32, u64, usize);

/// A chunk: chain, number in its file.
pub(super) type ChunkPlace = (u32, u64);

/// What callers know of a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Register {
    /// The greatest that somebody wrote, or tries to.
    issued: u64,
    /// What was acknowledged or read last; 0 once it may have been deleted.
    known: u64,
    /// What was deleted: nothing up to this is read any more.
    deleted: u64,
    /// How often it was about to be.
    deletions: u64,
    /// Of the two before, what was synced.
    durable: (u64, u64),
    /// All have lost their power in the middle of what was written: there may be something of several writes.
    is_torn: bool,
}

/// How often what was not synced in a chain may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// As all had lost their power.
    of_all: u64,
    /// As more than one thing has failed, and one of them was not all: then it may as well be there.
    perhaps: usize,
}

impl Register {
    /// To what was synced; of the rest something may be there.
    fn fall_back(&mut self) {
        self.is_torn |= self.issued > self.durable.0;
        (self.known, self.deleted) = self.durable;
    }
}

/// What was there when a sync began.
pub(super) struct Synced {
    chain: u32,
    cuts: Cuts,
    registers: Vec<(Place, Register)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Ledger {
    registers: BTreeMap<Place, Register>,
    /// Chunks that somebody changes.
    writers: BTreeSet<ChunkPlace>,
    /// Chunks of which the only copy was damaged, and more than one thing has failed: they may be errors.
    lost: BTreeSet<ChunkPlace>,
    /// How often all have lost their power.
    cuts: u64,
    /// Those of them that were so at a head, and at which epoch: it leaves in favour of one whose power was cut.
    left: BTreeSet<(ChunkPlace, Epoch)>,
    /// Of each chain: what came with the first change that was acknowledged since it was synced.
    marks: BTreeMap<u32, Marked>,
}

/// What came with a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked {
    mark: LossMark,
    /// How often all had lost their power when the change began, and when it was acknowledged.
    cuts: (Cuts, Cuts),
}

impl Ledger {
    pub fn get(&self, place: Place) -> Register {
        self.registers.get(&place).copied().unwrap_or_default()
    }

    fn at(&mut self, place: Place) -> &mut Register {
        self.registers.entry(place).or_default()
    }

    /// Begins a change of chunks, unless somebody changes one of them.
    pub fn begin(&mut self, chunks: &[ChunkPlace]) -> bool {
        if chunks.iter().any(|chunk| self.writers.contains(chunk)) {
            return false;
        }
        self.writers.extend(chunks);
        true
    }

    /// Ends what [`Ledger::begin`] has begun.
    pub fn end(&mut self, chunks: &[ChunkPlace]) {
        self.writers.retain(|writer| !chunks.contains(writer));
    }

    /// The number that is written next.
    pub fn issue(&mut self, place: Place) -> u64 {
        let register = self.at(place);
        register.issued += 1;
        register.issued
    }

    /// A write was acknowledged.
    pub fn written(&mut self, place: Place, value: u64, (cuts, is_durable): (Cuts, bool)) {
        let is_same = cuts == self.cuts(place.0);
        let register = self.at(place);
        // What was written before all lost their power may be lost, and its acknowledgement came late.
        if is_same {
            register.known = register.known.max(value);
            register.is_torn = false;
            register.durable.0 = register.durable.0.max(if is_durable { value } else { 0 });
        }
    }

    /// Cells are about to be deleted: from here on either may be read.
    pub fn clear(&mut self, places: &[Place]) {
        for &place in places {
            let register = self.at(place);
            register.known = 0;
            register.durable.0 = 0;
            register.deletions += 1;
        }
    }

    /// They were.
    pub fn cleared(&mut self, places: &[Place], cuts: Cuts) {
        for &place in places {
            if cuts != self.cuts(place.0) {
                continue;
            }
            let register = self.at(place);
            (register.known, register.deleted, register.is_torn) = (0, register.issued, false);
        }
    }

    pub fn cuts(&self, chain: u32) -> Cuts {
        let perhaps = self.left.iter().filter(|(chunk, _)| chunk.0 == chain).count();
        Cuts { of_all: self.cuts, perhaps }
    }

    /// A sync of what is in a chain begins.
    pub fn begin_sync(&self, chain: u32) -> Synced {
        let of_chain = self.registers.iter().filter(|(place, _)| place.0 == chain);
        let registers = of_chain.map(|(place, register)| (*place, *register));
        Synced { chain, cuts: self.cuts(chain), registers: registers.collect() }
    }

    /// A change of a chain that began after so many `cuts` was acknowledged with `mark`.
    pub fn marked(&mut self, chain: u32, mark: LossMark, cuts: Cuts) {
        if mark == LossMark::NONE {
            return;
        }
        let cuts = (cuts, self.cuts(chain));
        self.marks.entry(chain).or_insert(Marked { mark, cuts });
    }

    /// Takes what came with the first change since the last sync, for the next one, which begins.
    pub fn take_mark(&mut self, chain: u32) -> Option<Marked> {
        self.marks.remove(&chain)
    }

    /// The sync did not come to its end.
    pub fn put_mark_back(&mut self, chain: u32, marked: Option<Marked>) {
        if let Some(marked) = marked {
            self.marks.insert(chain, marked);
        }
    }

    /// Checks what a sync of a chain has told that began after so many cuts of the power, of what was changed before.
    pub fn check_mark(
        &self,
        chain: u32,
        marked: Marked,
        told: LossMark,
        cuts_before: Cuts,
    ) -> Result<&'static str, String> {
        let (is_told, Marked { cuts: (begun, acknowledged), .. }) = (told != marked.mark, marked);
        if !is_told && cuts_before.of_all > acknowledged.of_all {
            return Err(format!(
                "nobody tells that a change may be lost that was acknowledged after {acknowledged:?}, and synced after {cuts_before:?}"
            ));
        }
        if is_told && self.cuts(chain) == begun {
            return Err(format!("{told:?} tells that a change with {marked:?} may be lost, and nothing is"));
        }
        Ok(if is_told { "losses told" } else { "syncs of all there is" })
    }

    /// It was answered.
    pub fn synced(&mut self, synced: Synced) {
        if synced.cuts != self.cuts(synced.chain) {
            return;
        }
        for (place, before) in synced.registers {
            let register = self.at(place);
            // Not of what may have been deleted since, also where something else was written then.
            if register.deletions == before.deletions {
                register.durable.0 = register.durable.0.max(before.known);
            }
            register.durable.1 = register.durable.1.max(before.deleted);
        }
    }

    /// All have lost their power: what was synced is there, and of the rest something.
    pub fn cut(&mut self) {
        self.cuts += 1;
        self.registers.values_mut().for_each(Register::fall_back);
    }

    /// A chunk may be an error from here on, as nobody in sync has it whole who has everything. `leaves`: the epoch, if the one that it is damaged at is head, and leaves in favour of another one, which has
    /// lost what was not synced of their chain.
    pub fn lose(&mut self, chunk: ChunkPlace, leaves: Option<Epoch>) {
        self.lost.insert(chunk);
        if leaves.is_some_and(|epoch| self.left.insert((chunk, epoch))) {
            let of_chain = self.registers.iter_mut().filter(|(place, _)| place.0 == chunk.0);
            of_chain.for_each(|(_, register)| register.fall_back());
        }
    }

    pub fn is_lost(&self, chunk: ChunkPlace) -> bool {
        self.lost.contains(&chunk)
    }

    pub fn is_changing(&self, chunk: ChunkPlace) -> bool {
        self.writers.contains(&chunk)
    }

    /// A cell was read; `before` and `was_changing` are from before that was begun.
    ///
    /// # Errors
    /// When it is not what may be there.
    pub fn see(
        &mut self,
        place: Place,
        (before, was_changing): (Register, bool),
        bytes: &[u8],
    ) -> Result<(), String> {
        let values = values_of(bytes);
        let register = self.at(place);
        if values.len() != 1 && !(register.is_torn || before.is_torn) {
            return Err(format!("{place:?}: some of one write and some of another: {values:?}"));
        }
        // Also one that has begun, and may have been made at this target and not at others.
        let is_deleted_since = register.deleted != before.deleted
            || register.known < before.known
            || (was_changing && before.known == 0);
        for &value in &values {
            let is_old = value < before.known || (value != 0 && value <= before.deleted);
            if !is_deleted_since && is_old || value > register.issued {
                return Err(format!("{place:?} is {value}, with {before:?} before and {register:?} now"));
            }
        }
        let is_one = values.len() == 1 && !is_deleted_since && register.known > 0;
        register.known = register.known.max(if is_one { values[0] } else { 0 });
        Ok(())
    }

    /// What is at rest in a cell.
    ///
    /// # Errors
    /// When it is not what must be there.
    pub fn check(&self, place: Place, bytes: &[u8]) -> Result<(), String> {
        let (values, register) = (values_of(bytes), self.get(place));
        let is_right = |value: &u64| {
            *value >= register.known
                && *value <= register.issued
                && (*value == 0 || *value > register.deleted)
        };
        if values.iter().all(is_right) && (values.len() == 1 || register.is_torn) {
            return Ok(());
        }
        Err(format!("{place:?} is {values:?}, not {register:?}"))
    }
}

/// What a cell is filled with for a number.
pub(super) fn content(value: u64, cell: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(CELLS[cell].1 as usize / 8)
}

/// The numbers that a cell is filled with.
fn values_of(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    let mut values: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    values.sort_unstable();
    values.dedup();
    values
}
