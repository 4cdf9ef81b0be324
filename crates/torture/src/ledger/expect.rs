//! What must be there: the ledger replayed into the set of states each file may be in.
//!
//! Every operation adds a possible state; a promise (an answer, or an fsync, depending on the mode) removes the states before it.
//!
//! | promise | removes |
//! |---|---|
//! | `returned`: the call returned | all older states of what the call changed |
//! | `fsynced`: fsync of a file returned | older sizes and block versions of that file |
//! | `fsynced`: fsync of a directory returned | older places whose change involved no other directory that is not yet synced |

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::record::{DirId, Line, ObjectId, Op, Place};

/// When an operation counts as promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Once its call has returned.
    Returned,
    /// Once an fsync after it has returned.
    Fsynced,
}

/// A possible place of an object and what still has to be synced before it is the only one.
#[derive(Clone, Debug)]
struct Standing {
    place: Option<Place>,
    unsynced: BTreeSet<DirId>,
}

/// The states one file may be in. Lists are in the order of the operations, the newest state last.
#[derive(Clone, Debug, Default)]
pub struct FileState {
    standings: Vec<Standing>,
    sizes: Vec<u64>,
    blocks: BTreeMap<u64, Vec<u64>>,
}

impl FileState {
    /// The places where the file may be; `None` among them means it may be absent.
    #[must_use]
    pub fn places(&self) -> Vec<Option<&Place>> {
        self.standings.iter().map(|standing| standing.place.as_ref()).collect()
    }

    /// Whether the file may be absent.
    #[must_use]
    pub fn may_be_absent(&self) -> bool {
        self.standings.iter().any(|standing| standing.place.is_none())
    }

    /// The smallest and largest size it may have, in blocks.
    #[must_use]
    pub fn size_range(&self) -> (u64, u64) {
        (self.sizes.iter().copied().min().unwrap_or(0), self.sizes.iter().copied().max().unwrap_or(0))
    }

    /// The versions block `index` may have; 0 stands for zeros.
    #[must_use]
    pub fn versions(&self, index: u64) -> &[u64] {
        self.blocks.get(&index).map_or(&[0], Vec::as_slice)
    }

    fn newest_size(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    fn put_block(&mut self, index: u64, version: u64) {
        self.blocks.entry(index).or_insert_with(|| vec![0]).push(version);
    }

    fn settle_data(&mut self) {
        keep_newest(&mut self.sizes);
        self.blocks.values_mut().for_each(keep_newest);
    }

    /// Removes the standings before the newest one that needs no more syncs.
    fn settle_places(&mut self) {
        if let Some(newest) = self.standings.iter().rposition(|standing| standing.unsynced.is_empty()) {
            self.standings.drain(..newest);
        }
    }
}

fn keep_newest(states: &mut Vec<u64>) {
    if states.len() > 1 {
        states.drain(..states.len() - 1);
    }
}

/// Everything one writer was promised.
#[derive(Clone, Debug)]
pub struct Expectation {
    mode: Mode,
    files: BTreeMap<ObjectId, FileState>,
    dirs: BTreeMap<DirId, Vec<Standing>>,
    /// Operations promised, for the report.
    pub promised: u64,
}

impl Expectation {
    /// Replays a ledger.
    ///
    /// # Errors
    /// A line that does not follow from the ones before it: the ledger is damaged.
    pub fn replay(lines: &[Line], mode: Mode) -> Result<Self, String> {
        let mut expectation = Self { mode, files: BTreeMap::new(), dirs: BTreeMap::new(), promised: 0 };
        let mut intents: HashMap<u64, &Op> = HashMap::new();
        for line in lines {
            match line {
                Line::Intent(number, op) => {
                    expectation.attempt(op);
                    intents.insert(*number, op);
                }
                Line::Returned(number) => {
                    let op = intents.remove(number).ok_or(format!("answer {number} without a call"))?;
                    expectation.promise(op);
                }
                Line::Failed(..) => {}
            }
        }
        Ok(expectation)
    }

    /// The files, present or not.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<ObjectId, FileState> {
        &self.files
    }

    /// Whether a directory may be present and whether it may be absent.
    #[must_use]
    pub fn directory(&self, dir: DirId) -> (bool, bool) {
        let Some(standings) = self.dirs.get(&dir) else { return (dir == 0, dir != 0) };
        let present = standings.iter().any(|standing| standing.place.is_some());
        (present, standings.iter().any(|standing| standing.place.is_none()))
    }

    /// All directories ever made, except the top directory.
    pub fn directories(&self) -> impl Iterator<Item = DirId> {
        self.dirs.keys().copied()
    }

    fn attempt(&mut self, op: &Op) {
        match op {
            Op::Mkdir { dir } | Op::Rmdir { dir } => {
                let place = matches!(op, Op::Mkdir { .. })
                    .then(|| Place { dir: 0, name: super::record::dir_name(*dir) });
                let standings = self.dirs.entry(*dir).or_insert_with(|| vec![absent()]);
                standings.push(Standing { place, unsynced: BTreeSet::from([0]) });
            }
            Op::Create { object, place } => {
                let mut state =
                    FileState { standings: vec![absent()], sizes: vec![0], ..FileState::default() };
                state.standings.push(standing(Some(place), &[place.dir]));
                self.files.insert(*object, state);
            }
            Op::Write { object, index, count, version, .. } => {
                if let Some(state) = self.files.get_mut(object) {
                    (*index..index + count).for_each(|block| state.put_block(block, *version));
                    state.sizes.push(state.newest_size().max(index + count));
                }
            }
            Op::Truncate { object, blocks, .. } => {
                if let Some(state) = self.files.get_mut(object) {
                    let cut: Vec<u64> = state.blocks.range(blocks..).map(|(block, _)| *block).collect();
                    cut.into_iter().for_each(|block| state.put_block(block, 0));
                    state.sizes.push(*blocks);
                }
            }
            Op::Rename { object, from, to, replaced } => {
                let involved = [from.dir, to.dir];
                if let Some(state) = self.files.get_mut(object) {
                    state.standings.push(standing(Some(to), &involved));
                }
                if let Some(state) = replaced.and_then(|replaced| self.files.get_mut(&replaced)) {
                    state.standings.push(standing(None, &involved));
                }
            }
            Op::Unlink { object, place } => {
                if let Some(state) = self.files.get_mut(object) {
                    state.standings.push(standing(None, &[place.dir]));
                }
            }
            Op::FsyncFile { .. } | Op::FsyncDir { .. } => {}
        }
    }

    fn promise(&mut self, op: &Op) {
        self.promised += 1;
        match (self.mode, op) {
            (Mode::Returned, Op::FsyncFile { .. } | Op::FsyncDir { .. }) => {}
            (Mode::Returned, op) => self.promise_returned(op),
            (Mode::Fsynced, Op::FsyncFile { object, .. }) => {
                if let Some(state) = self.files.get_mut(object) {
                    state.settle_data();
                }
            }
            (Mode::Fsynced, Op::FsyncDir { dir }) => {
                for state in self.files.values_mut() {
                    for standing in &mut state.standings {
                        standing.unsynced.remove(dir);
                    }
                    state.settle_places();
                }
                if *dir == 0 {
                    self.dirs.values_mut().for_each(|standings| {
                        standings.drain(..standings.len() - 1);
                    });
                }
            }
            (Mode::Fsynced, _) => {}
        }
    }

    fn promise_returned(&mut self, op: &Op) {
        let settle = |state: &mut FileState| {
            if let Some(newest) = state.standings.last_mut() {
                newest.unsynced.clear();
            }
            state.settle_places();
            state.settle_data();
        };
        match op {
            Op::Mkdir { dir } | Op::Rmdir { dir } => {
                if let Some(standings) = self.dirs.get_mut(dir) {
                    standings.drain(..standings.len() - 1);
                }
            }
            Op::Create { object, .. }
            | Op::Write { object, .. }
            | Op::Truncate { object, .. }
            | Op::Unlink { object, .. } => {
                if let Some(state) = self.files.get_mut(object) {
                    settle(state);
                }
            }
            Op::Rename { object, replaced, .. } => {
                for object in [Some(*object), *replaced].into_iter().flatten() {
                    if let Some(state) = self.files.get_mut(&object) {
                        settle(state);
                    }
                }
            }
            Op::FsyncFile { .. } | Op::FsyncDir { .. } => {}
        }
    }
}

fn absent() -> Standing {
    Standing { place: None, unsynced: BTreeSet::new() }
}

fn standing(place: Option<&Place>, involved: &[DirId]) -> Standing {
    Standing { place: place.cloned(), unsynced: involved.iter().copied().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        Place { dir: 0, name: name.into() }
    }

    fn run(ops: &[(Op, bool)], mode: Mode) -> Expectation {
        let mut lines = Vec::new();
        for (number, (op, returned)) in (0u64..).zip(ops) {
            lines.push(Line::Intent(number, op.clone()));
            if *returned {
                lines.push(Line::Returned(number));
            }
        }
        Expectation::replay(&lines, mode).expect("a sound ledger")
    }

    fn example() -> Vec<(Op, bool)> {
        let at = place("a");
        vec![
            (Op::Create { object: 1, place: at.clone() }, true),
            (Op::Write { object: 1, place: at.clone(), index: 0, count: 2, version: 1 }, true),
            (Op::FsyncFile { object: 1, place: at.clone() }, true),
            (Op::Write { object: 1, place: at.clone(), index: 1, count: 2, version: 2 }, true),
            (Op::Rename { object: 1, from: at, to: place("b"), replaced: None }, false),
        ]
    }

    #[test]
    fn an_answer_is_a_promise_and_a_call_without_one_leaves_both_states() {
        let expectation = run(&example(), Mode::Returned);
        let state = &expectation.files()[&1];
        assert_eq!(state.places(), [Some(&place("a")), Some(&place("b"))]);
        assert_eq!(state.size_range(), (3, 3));
        assert_eq!((state.versions(0), state.versions(1), state.versions(9)), (&[1][..], &[2][..], &[0][..]));
    }

    #[test]
    fn without_fsync_of_the_directory_a_name_is_not_promised() {
        let expectation = run(&example(), Mode::Fsynced);
        let state = &expectation.files()[&1];
        assert!(state.may_be_absent());
        assert_eq!(state.size_range(), (2, 3));
        assert_eq!(state.versions(1), [1, 2]);
        assert_eq!(state.versions(2), [0, 2]);
        let mut synced = example();
        synced.push((Op::FsyncDir { dir: 0 }, true));
        let expectation = run(&synced, Mode::Fsynced);
        assert_eq!(expectation.files()[&1].places(), [Some(&place("b"))]);
    }

    #[test]
    fn a_rename_between_directories_needs_both_synced() {
        let to = Place { dir: 5, name: "b".into() };
        let mut ops = vec![
            (Op::Create { object: 1, place: place("a") }, true),
            (Op::FsyncDir { dir: 0 }, true),
            (Op::Rename { object: 1, from: place("a"), to: to.clone(), replaced: None }, true),
            (Op::FsyncDir { dir: 5 }, true),
        ];
        assert_eq!(run(&ops, Mode::Fsynced).files()[&1].places(), [Some(&place("a")), Some(&to)]);
        ops.push((Op::FsyncDir { dir: 0 }, true));
        assert_eq!(run(&ops, Mode::Fsynced).files()[&1].places(), [Some(&to)]);
    }
}
