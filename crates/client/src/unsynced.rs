//! What this client has changed of chunks and not synced since: which mark each chain was changed under, so that an fsync knows whether the servers have lost it meanwhile.
//!
//! A file is remembered from its first change until its next fsync, also after it was closed: another program may be the one that syncs it.

use ashlar_types::message::LossMark;
use ashlar_types::{ChainId, FileLayout, InodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Files that are remembered. Of one that was forgotten an fsync tells nothing of what was lost before; those that were changed first go first.
// LIMIT: about 10 MiB.
const FILES_MAX: usize = 65_536;

/// A file and the generation of its chunks.
pub(crate) type Generation = (InodeId, u32);

/// The marks of the chains of a file; of each the oldest one.
pub(crate) type Marks = SmallVec<[(ChainId, LossMark); 4]>;

#[derive(Default)]
struct Files {
    /// Each with its place in `by_age`.
    marks: FxHashMap<Generation, (u64, Marks)>,
    by_age: BTreeMap<u64, Generation>,
    next: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Unsynced(Mutex<Files>);

/// What an fsync finds.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    /// All that was changed is durable.
    Whole,
    /// Some of it may be lost.
    Lost,
}

impl Unsynced {
    /// A chunk on `chain` was changed under `mark`.
    pub fn note(&self, inode: InodeId, generation: u32, (chain, mark): (ChainId, LossMark)) {
        if mark == LossMark::NONE {
            return;
        }
        let mut files = self.0.lock();
        files.note((inode, generation), (chain, mark));
    }

    /// Takes what is noted, before what it is about is made durable.
    pub fn take(&self, inode: InodeId, generation: u32) -> Marks {
        let mut files = self.0.lock();
        let Some((age, marks)) = files.marks.remove(&(inode, generation)) else { return Marks::new() };
        files.by_age.remove(&age);
        marks
    }

    /// All that is noted, which stays.
    pub fn all(&self) -> Vec<(Generation, Marks)> {
        self.0.lock().marks.iter().map(|(file, (_, marks))| (*file, marks.clone())).collect()
    }

    /// It could not be made durable: these are the oldest again.
    pub fn put_back(&self, inode: InodeId, generation: u32, marks: Marks) {
        let mut files = self.0.lock();
        let newer = files.marks.remove(&(inode, generation));
        let (age, newer) = newer.map_or((None, Marks::new()), |(age, newer)| (Some(age), newer));
        age.map(|age| files.by_age.remove(&age));
        marks.into_iter().chain(newer).for_each(|mark| files.note((inode, generation), mark));
    }
}

impl Files {
    fn note(&mut self, file: Generation, (chain, mark): (ChainId, LossMark)) {
        if let Some((_, marks)) = self.marks.get_mut(&file) {
            if !marks.iter().any(|(known, _)| *known == chain) {
                marks.push((chain, mark));
            }
            return;
        }
        if self.marks.len() >= FILES_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.marks.remove(&oldest);
        }
        self.next += 1;
        self.by_age.insert(self.next, file);
        self.marks.insert(file, (self.next, Marks::from_slice(&[(chain, mark)])));
    }
}

/// Compares what was told with changes with what was told when they were made durable.
pub(crate) fn compare(layout: &FileLayout, changed: &Marks, synced: &Marks) -> Synced {
    let is_lost = |(chain, mark): &(ChainId, LossMark)| {
        let now = synced.iter().find(|(synced, _)| synced == chain).map_or(LossMark::NONE, |(_, mark)| *mark);
        layout.chains.contains(chain) && now != LossMark::NONE && now != *mark
    };
    if changed.iter().any(is_lost) { Synced::Lost } else { Synced::Whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn marks(all: &[(u32, u64)]) -> Marks {
        all.iter().map(|(chain, mark)| (ChainId(*chain), LossMark(*mark))).collect()
    }

    #[test]
    fn the_oldest_mark_of_each_chain_counts_until_it_is_taken() {
        let unsynced = Unsynced::default();
        for (chain, mark) in [(1, 5), (2, 6), (1, 9), (3, 0)] {
            unsynced.note(FILE, 1, (ChainId(chain), LossMark(mark)));
        }
        assert!(unsynced.take(FILE, 2).is_empty(), "another generation");
        let taken = unsynced.take(FILE, 1);
        assert_eq!(taken, marks(&[(1, 5), (2, 6)]), "and none where nothing can be lost");
        unsynced.note(FILE, 1, (ChainId(2), LossMark(8)));
        unsynced.note(FILE, 1, (ChainId(4), LossMark(8)));
        unsynced.put_back(FILE, 1, taken);
        assert_eq!(unsynced.take(FILE, 1), marks(&[(1, 5), (2, 6), (4, 8)]));
        assert!(unsynced.take(FILE, 1).is_empty());
        assert!(unsynced.0.lock().by_age.is_empty());
    }

    #[test]
    fn the_file_that_was_changed_first_is_forgotten_for_one_too_many() {
        let unsynced = Unsynced::default();
        for file in 0..=FILES_MAX as u64 {
            unsynced.note(InodeId(file), 1, (ChainId(1), LossMark(1)));
        }
        assert!(unsynced.take(InodeId(0), 1).is_empty());
        assert_eq!(unsynced.take(InodeId(1), 1).len(), 1);
        assert_eq!(unsynced.take(InodeId(FILES_MAX as u64), 1).len(), 1);
    }

    #[test]
    fn another_mark_is_a_loss_and_none_says_nothing() {
        let chains = [1, 2].map(ChainId).into_iter().collect();
        let layout = FileLayout { chunk_bytes: 1 << 20, generation: 1, chains };
        let changed = marks(&[(1, 5), (2, 6)]);
        for (synced, found) in [
            (marks(&[(1, 5), (2, 6)]), Synced::Whole),
            (marks(&[(2, 6), (1, 7)]), Synced::Lost),
            (marks(&[(1, 5)]), Synced::Whole),
            (marks(&[(1, 0), (2, 0)]), Synced::Whole),
        ] {
            assert_eq!(compare(&layout, &changed, &synced), found, "{synced:?}");
        }
    }
}
