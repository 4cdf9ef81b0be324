//! What this client has changed of chunks and not synced since: which mark each chain was changed under, so that an fsync knows whether the servers have lost it meanwhile.
//!
//! A file is remembered from its first change until its next fsync, also after it was closed: another program may be the one that syncs it.

use ashlar_types::message::LossMark;
use ashlar_types::{ChainId, InodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Files that are remembered. Of one that was forgotten an fsync tells nothing of what was lost before; those that were changed last are kept.
// LIMIT: 20 MiB with stripes of four chains, and more with wider ones.
const FILES_MAX: usize = 65_536;

/// The marks of the chains of a file; of each the oldest one.
pub(crate) type Marks = SmallVec<[(ChainId, LossMark); 4]>;

/// A file of which something is not synced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    /// Of its chunks; what was in those before is gone with them.
    generation: u32,
    marks: Marks,
    /// Grows with each change.
    changes: u64,
}

/// What was noted of a file when a sync of it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted(Option<Changed>);

/// What an fsync finds.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    /// All that was changed is durable.
    Whole,
    /// Some of it may be lost.
    Lost,
}

/// The same for the next process of a mount.
pub(crate) type UnsyncedFile = (InodeId, u32, Vec<(ChainId, LossMark)>);

/// See the module.
#[derive(Default)]
pub(crate) struct Unsynced(Mutex<Files>);

#[derive(Default)]
struct Files {
    files: FxHashMap<InodeId, Changed>,
    /// By the number of the last change.
    by_age: BTreeMap<u64, InodeId>,
    changes: u64,
}

impl Unsynced {
    /// A chunk of this generation on `chain` was changed under `mark`.
    pub fn note(&self, inode: InodeId, generation: u32, (chain, mark): (ChainId, LossMark)) {
        if mark != LossMark::NONE {
            self.0.lock().note(inode, generation, (chain, mark));
        }
    }

    /// What is noted of this generation, before that is made durable.
    pub fn noted(&self, inode: InodeId, generation: u32) -> Noted {
        let files = self.0.lock();
        Noted(files.files.get(&inode).filter(|changed| changed.generation == generation).cloned())
    }

    /// What was noted when a sync began is durable, which was told `synced`, or lost: then `lost` is called before anybody else can hear that it is durable.
    pub fn synced(&self, inode: InodeId, noted: &Noted, synced: &Marks, lost: impl FnOnce()) -> Synced {
        let Noted(Some(noted)) = noted else { return Synced::Whole };
        let mut files = self.0.lock();
        let is_same = |changed: &&mut Changed| changed.generation == noted.generation;
        // Another sync has ended meanwhile, and told what there was to tell; or the chunks are gone.
        let Some(changed) = files.files.get_mut(&inode).filter(is_same) else { return Synced::Whole };
        let mut is_lost = false;
        for (chain, mark) in &mut changed.marks {
            let now =
                synced.iter().find(|(synced, _)| synced == chain).map_or(LossMark::NONE, |(_, now)| *now);
            // One that was noted since is for the next sync, and so is one that another sync has brought up to date.
            if now != LossMark::NONE && noted.marks.contains(&(*chain, *mark)) {
                is_lost |= now != *mark;
                *mark = now;
            }
        }
        if changed.changes == noted.changes {
            files.forget(inode);
        }
        if is_lost {
            lost();
            return Synced::Lost;
        }
        Synced::Whole
    }

    /// All that is noted, for the next process.
    pub fn all(&self) -> Vec<UnsyncedFile> {
        let files = self.0.lock();
        let in_order = files.by_age.values().filter_map(|inode| Some((*inode, files.files.get(inode)?)));
        in_order.map(|(inode, changed)| (inode, changed.generation, changed.marks.to_vec())).collect()
    }

    /// Goes on with what the process before has left.
    pub fn take_up(&self, left: &[UnsyncedFile]) {
        for (inode, generation, marks) in left {
            marks.iter().for_each(|mark| self.note(*inode, *generation, *mark));
        }
    }
}

impl Files {
    fn note(&mut self, inode: InodeId, generation: u32, (chain, mark): (ChainId, LossMark)) {
        self.changes += 1;
        let changes = self.changes;
        let marks = match self.forget(inode).filter(|changed| changed.generation == generation) {
            Some(Changed { mut marks, .. }) => {
                if !marks.iter().any(|(known, _)| *known == chain) {
                    marks.push((chain, mark));
                }
                marks
            }
            None => Marks::from_slice(&[(chain, mark)]),
        };
        if self.files.len() >= FILES_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.files.remove(&oldest);
        }
        self.by_age.insert(changes, inode);
        self.files.insert(inode, Changed { generation, marks, changes });
    }

    fn forget(&mut self, inode: InodeId) -> Option<Changed> {
        let changed = self.files.remove(&inode)?;
        self.by_age.remove(&changed.changes);
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    fn marks(all: &[(u32, u64)]) -> Marks {
        all.iter().map(|(chain, mark)| (ChainId(*chain), LossMark(*mark))).collect()
    }

    fn note(unsynced: &Unsynced, all: &[(u32, u64)]) {
        marks(all).into_iter().for_each(|mark| unsynced.note(FILE, 1, mark));
    }

    /// What a sync finds that was told `told`, with changes meanwhile.
    fn sync(unsynced: &Unsynced, told: &[(u32, u64)], meanwhile: &[(u32, u64)]) -> Synced {
        let noted = unsynced.noted(FILE, 1);
        note(unsynced, meanwhile);
        unsynced.synced(FILE, &noted, &marks(told), || {})
    }

    #[test]
    fn the_oldest_mark_of_each_chain_counts_until_it_is_synced() {
        let unsynced = Unsynced::default();
        note(&unsynced, &[(1, 5), (2, 6), (1, 9), (3, 0)]);
        assert!(unsynced.noted(FILE, 2).0.is_none(), "another generation");
        assert_eq!(
            unsynced.noted(FILE, 1).0.unwrap().marks,
            marks(&[(1, 5), (2, 6)]),
            "and none where nothing can be lost"
        );
        assert_eq!(sync(&unsynced, &[(1, 9), (2, 6)], &[]), Synced::Lost);
        assert_eq!(sync(&unsynced, &[(1, 9), (2, 6)], &[]), Synced::Whole, "it was told");
        assert!(unsynced.all().is_empty() && unsynced.0.lock().by_age.is_empty());
        for said_nothing in [vec![], vec![(1, 0)], vec![(4, 4)]] {
            note(&unsynced, &[(1, 5)]);
            assert_eq!(sync(&unsynced, &said_nothing, &[]), Synced::Whole, "{said_nothing:?}");
        }
    }

    #[test]
    fn what_is_changed_while_a_sync_is_under_way_is_for_the_next_one() {
        let unsynced = Unsynced::default();
        note(&unsynced, &[(1, 5)]);
        assert_eq!(sync(&unsynced, &[(1, 5), (2, 6)], &[(1, 5), (2, 7)]), Synced::Whole);
        assert_eq!(sync(&unsynced, &[(1, 8), (2, 7)], &[]), Synced::Lost, "what was written meanwhile");
    }

    #[test]
    fn of_two_syncs_at_a_time_one_finds_a_loss_before_the_other_one_finds_nothing() {
        let unsynced = Unsynced::default();
        note(&unsynced, &[(1, 5)]);
        let (first, second) = (unsynced.noted(FILE, 1), unsynced.noted(FILE, 1));
        assert_eq!(unsynced.synced(FILE, &second, &marks(&[(1, 6)]), || {}), Synced::Lost);
        assert_eq!(unsynced.synced(FILE, &first, &marks(&[(1, 6)]), || {}), Synced::Whole);
    }

    #[test]
    fn a_newer_generation_takes_the_place_of_what_was_noted() {
        let unsynced = Unsynced::default();
        note(&unsynced, &[(1, 5)]);
        unsynced.note(FILE, 2, (ChainId(1), LossMark(8)));
        assert!(unsynced.noted(FILE, 1).0.is_none());
        let next = Unsynced::default();
        next.take_up(&unsynced.all());
        assert_eq!(next.all(), [(FILE, 2, vec![(ChainId(1), LossMark(8))])]);
    }

    #[test]
    fn the_file_that_was_not_changed_for_longest_is_forgotten_for_one_too_many() {
        let unsynced = Unsynced::default();
        let change = |file: u64| unsynced.note(InodeId(file), 1, (ChainId(1), LossMark(1)));
        (0..FILES_MAX as u64).for_each(change);
        change(0);
        change(FILES_MAX as u64);
        let is_noted = |file: u64| unsynced.noted(InodeId(file), 1).0.is_some();
        assert!(is_noted(0) && !is_noted(1) && is_noted(2) && is_noted(FILES_MAX as u64));
    }
}
