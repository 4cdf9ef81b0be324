//! Comparing a tree with what its ledgers promise.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::block::{BLOCK_BYTES, BlockId, Found, decode};
use super::expect::{Expectation, FileState, Mode};
use super::record::{DirId, Ledger, ObjectId, Place};
use crate::report::Report;

/// The name of writer `writer`'s top directory.
#[must_use]
pub fn top_name(writer: u32) -> String {
    format!("w{writer}")
}

/// Whether a read may answer with EIO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Everything must be readable.
    None,
    /// The stored bytes were damaged on purpose: EIO instead of content is right, wrong content or absence is not.
    Eio,
}

/// Verifies the directories of `writers` writers below `tree` against the ledgers in `ledgers`. Counts in `unreadable` what answered
/// with a tolerated EIO.
///
/// # Errors
/// When a ledger cannot be read; every broken promise is a failure in the report.
pub fn verify(
    tree: &Path,
    ledgers: &Path,
    writers: u32,
    mode: Mode,
    tolerance: Tolerance,
    unreadable: &mut u64,
) -> anyhow::Result<Report> {
    let mut report = Report::new();
    for writer in 0..writers {
        let lines = Ledger::read(&Ledger::path(ledgers, writer))?;
        let expectation = Expectation::replay(&lines, mode).map_err(anyhow::Error::msg)?;
        let mut check = Check {
            writer,
            top: tree.join(top_name(writer)),
            expectation: &expectation,
            tolerance,
            unreadable_dirs: HashSet::new(),
            unreadable: 0,
            report,
        };
        check.run();
        report = check.report;
        *unreadable += check.unreadable;
    }
    Ok(report)
}

/// A file found in the tree.
#[derive(Default)]
struct FoundFile {
    /// `None` when not even that could be read.
    size: Option<u64>,
    /// `None` for a block that cannot be read.
    blocks: Vec<Option<Found>>,
}

impl FoundFile {
    /// The file its intact blocks say it is.
    fn identity(&self) -> Option<BlockId> {
        self.blocks.iter().find_map(|block| match block {
            Some(Found::Written(id)) => Some(*id),
            _ => None,
        })
    }
}

struct Check<'a> {
    writer: u32,
    top: PathBuf,
    expectation: &'a Expectation,
    tolerance: Tolerance,
    unreadable_dirs: HashSet<DirId>,
    unreadable: u64,
    report: Report,
}

impl Check<'_> {
    /// Reports an error, unless it is one that the damage done explains; true if so.
    fn tolerate(&mut self, error: &std::io::Error, what: impl FnOnce() -> String) -> bool {
        let tolerated = self.tolerance == Tolerance::Eio && error.raw_os_error() == Some(libc::EIO);
        if tolerated {
            self.unreadable += 1;
        } else {
            self.report.fail(format!("{}: {error}", what()));
        }
        tolerated
    }

    fn run(&mut self) {
        let mut found = BTreeMap::new();
        self.scan(0, &mut found);
        for dir in self.expectation.directories().collect::<Vec<_>>() {
            let path = self.top.join(super::record::dir_path(dir));
            let (may_be_present, may_be_absent) = self.expectation.directory(dir);
            match fs::symlink_metadata(&path) {
                Ok(_) if may_be_present => self.scan(dir, &mut found),
                Ok(_) => self.report.fail(format!("{} is back after rmdir", path.display())),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.report.check(may_be_absent, || format!("{} is lost", path.display()));
                }
                Err(error) => {
                    if self.tolerate(&error, || format!("stat {}", path.display())) {
                        self.unreadable_dirs.insert(dir);
                    }
                }
            }
        }
        let owners = self.assign(&found);
        self.check_presence(&owners);
        for (place, object) in &owners {
            if let (Some(file), Some(state)) = (found.get(place), self.expectation.files().get(object)) {
                self.check_content(place, *object, file, state);
            }
        }
    }

    /// Reads all files of one directory.
    fn scan(&mut self, dir: DirId, found: &mut BTreeMap<Place, FoundFile>) {
        let path = self.top.join(super::record::dir_path(dir));
        let entries = match fs::read_dir(&path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>()) {
            Ok(entries) => entries,
            Err(error) => {
                if self.tolerate(&error, || format!("read directory {}", path.display())) {
                    self.unreadable_dirs.insert(dir);
                }
                return;
            }
        };
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let place = Place { dir, name };
            match fs::symlink_metadata(entry.path()) {
                Ok(stat) if stat.is_dir() => {
                    let known = dir == 0
                        && place
                            .name
                            .strip_prefix('d')
                            .and_then(|id| id.parse().ok())
                            .is_some_and(|id: DirId| self.expectation.directory(id).0);
                    self.report.check(known, || format!("{} was never made", entry.path().display()));
                }
                Ok(stat) => match self.read_blocks(&entry.path(), stat.len()) {
                    Ok(file) => {
                        found.insert(place, file);
                    }
                    Err(error) => self.note_unreadable(&error, &entry.path(), place, found),
                },
                Err(error) => self.note_unreadable(&error, &entry.path(), place, found),
            }
        }
    }

    fn note_unreadable(
        &mut self,
        error: &std::io::Error,
        path: &Path,
        place: Place,
        found: &mut BTreeMap<Place, FoundFile>,
    ) {
        if self.tolerate(error, || format!("{} is listed but", path.display())) {
            found.insert(place, FoundFile::default());
        }
    }

    /// Decides which file of the ledger each found file is, by its content or else by its name.
    fn assign(&mut self, found: &BTreeMap<Place, FoundFile>) -> BTreeMap<Place, ObjectId> {
        let mut candidates: HashMap<&Place, Vec<ObjectId>> = HashMap::new();
        for (object, state) in self.expectation.files() {
            for place in state.places().into_iter().flatten() {
                candidates.entry(place).or_default().push(*object);
            }
        }
        let mut owners = BTreeMap::new();
        for (place, file) in found {
            let allowed = candidates.get(place).map_or(&[][..], Vec::as_slice);
            let Some(id) = file.identity() else { continue };
            if id.writer == self.writer && allowed.contains(&id.object) {
                owners.insert(place.clone(), id.object);
            } else {
                let path = self.top.join(place.path());
                self.report
                    .fail(format!("{} holds {id:?}; files allowed there: {allowed:?}", path.display()));
            }
        }
        let known: HashSet<ObjectId> = owners.values().copied().collect();
        for (place, _) in found.iter().filter(|(_, file)| file.identity().is_none()) {
            // Nothing written survived: one of the files that may be there and are nowhere else, first of all one that must be somewhere.
            let allowed = candidates.get(place).map_or(&[][..], Vec::as_slice);
            let state = |object: &ObjectId| self.expectation.files().get(object);
            let free = || allowed.iter().filter(|object| !known.contains(object));
            let needed = free().find(|object| state(object).is_some_and(|state| !state.may_be_absent()));
            match needed.or_else(|| free().next_back()) {
                Some(object) => {
                    owners.insert(place.clone(), *object);
                }
                None => {
                    let path = self.top.join(place.path());
                    self.report.fail(format!(
                        "{} was never made or is back after its removal; files allowed there: {allowed:?}",
                        path.display()
                    ));
                }
            }
        }
        owners
    }

    fn check_presence(&mut self, owners: &BTreeMap<Place, ObjectId>) {
        let mut at: HashMap<ObjectId, Vec<&Place>> = HashMap::new();
        for (place, object) in owners {
            at.entry(*object).or_default().push(place);
        }
        for (object, state) in self.expectation.files() {
            let places = at.get(object).map_or(&[][..], Vec::as_slice);
            match places.len() {
                0 if self.hidden(state) => {}
                0 => self.report.check(state.may_be_absent(), || {
                    format!(
                        "{}: file {object} is lost; it must be at one of {:?}",
                        self.top.display(),
                        state.places()
                    )
                }),
                1 => self.report.pass(),
                _ => self
                    .report
                    .fail(format!("{}: file {object} has several names: {places:?}", self.top.display())),
            }
        }
    }

    /// Whether the file may be in a directory that cannot be read.
    fn hidden(&self, state: &FileState) -> bool {
        state.places().into_iter().flatten().any(|place| self.unreadable_dirs.contains(&place.dir))
    }

    fn check_content(&mut self, place: &Place, object: ObjectId, file: &FoundFile, state: &FileState) {
        let path = self.top.join(place.path());
        let Some(size) = file.size else { return };
        let (smallest, largest) = state.size_range();
        let allowed = smallest * BLOCK_BYTES as u64..=largest * BLOCK_BYTES as u64;
        self.report.check(allowed.contains(&size), || {
            format!("{}: {size} bytes; expected {allowed:?}", path.display())
        });
        for (index, block) in (0u64..).zip(&file.blocks) {
            let versions = state.versions(index);
            let Some(block) = block else { continue };
            let right = match block {
                Found::Zero => versions.contains(&0),
                Found::Written(id) => {
                    id.writer == self.writer
                        && id.object == object
                        && id.index == index
                        && versions.contains(&id.version)
                }
                Found::Damaged => false,
            };
            self.report.check(right, || {
                format!("{}: block {index} is {block:?}; versions allowed: {versions:?}", path.display())
            });
        }
    }

    fn read_blocks(&mut self, path: &Path, size: u64) -> std::io::Result<FoundFile> {
        let file = File::open(path)?;
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < size {
            let len = (size - at).min(BLOCK_BYTES as u64) as usize;
            let mut bytes = vec![0u8; len];
            let read = file.read_exact_at(&mut bytes, at);
            at += len as u64;
            // A size that ends within a block comes from a write that was cut off; only whole blocks are judged.
            match read {
                Ok(()) if len == BLOCK_BYTES => blocks.push(Some(decode(&bytes))),
                Ok(()) => {}
                Err(error) if self.tolerance == Tolerance::Eio && error.raw_os_error() == Some(libc::EIO) => {
                    self.unreadable += 1;
                    blocks.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(FoundFile { size: Some(size), blocks })
    }
}
