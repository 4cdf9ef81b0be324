//! The writer: random operations on its own files, each noted before and after.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use super::block::{BLOCK_BYTES, BlockId};
use super::expect::Mode;
use super::record::{DirId, Ledger, Line, ObjectId, Op, Place, dir_path};
use super::verify::top_name;
use crate::rng::Rng;

/// LIMIT: files and directories a writer has at a time, and blocks in a file.
const FILES_MAX: usize = 60;
const DIRS_MAX: usize = 5;
const BLOCKS_MAX: u64 = 200;

/// What a writer does.
#[derive(Clone, Debug)]
pub struct Job {
    /// The directory on the file system under test; the writer makes its own below it.
    pub tree: PathBuf,
    /// The directory for ledgers, elsewhere.
    pub ledgers: PathBuf,
    /// Its number.
    pub writer: u32,
    /// Fixes all choices (not the timing).
    pub seed: u64,
    /// Stops after this many operations.
    pub ops_max: u64,
    /// Whether it syncs, so that there is something to hold after a power cut.
    pub mode: Mode,
}

/// How a writer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was stopped or has done all its operations.
    Finished {
        /// Operations answered.
        operations: u64,
    },
    /// An operation failed.
    Failed {
        /// Operations answered before.
        operations: u64,
        /// Which and how.
        what: String,
    },
}

struct FileHere {
    place: Place,
    blocks: u64,
    /// All data is synced, so that the file may replace another by rename.
    synced: bool,
}

struct Writer<'a> {
    job: &'a Job,
    stop: &'a AtomicBool,
    top: PathBuf,
    ledger: Ledger,
    rng: Rng,
    files: BTreeMap<ObjectId, FileHere>,
    dirs: Vec<DirId>,
    next_id: u64,
    number: u64,
    version: u64,
}

/// Runs a writer until `stop` is set, its operations are done, or one fails.
///
/// # Errors
/// When the ledger cannot be written or the top directory cannot be made.
pub fn run(job: &Job, stop: &AtomicBool) -> anyhow::Result<Ending> {
    let top = job.tree.join(top_name(job.writer));
    fs::create_dir(&top).with_context(|| format!("create {}", top.display()))?;
    for directory in [&top, &job.tree] {
        File::open(directory).and_then(|dir| dir.sync_all()).context("sync the top directory")?;
    }
    let mut writer = Writer {
        job,
        stop,
        top,
        ledger: Ledger::create(&job.ledgers, job.writer)?,
        rng: Rng::derive(job.seed, u64::from(job.writer)),
        files: BTreeMap::new(),
        dirs: vec![0],
        next_id: 1,
        number: 0,
        version: 1,
    };
    while writer.number < job.ops_max {
        if let Err(failure) = writer.step() {
            return match failure {
                Failure::Stopped => Ok(Ending::Finished { operations: writer.number }),
                Failure::Ledger(error) => Err(error),
                Failure::Call(what) => Ok(Ending::Failed { operations: writer.number, what }),
            };
        }
    }
    Ok(Ending::Finished { operations: writer.number })
}

enum Failure {
    Stopped,
    Ledger(anyhow::Error),
    Call(String),
}

impl Writer<'_> {
    fn step(&mut self) -> Result<(), Failure> {
        let syncs = self.job.mode == Mode::Fsynced;
        match self.rng.below(100) {
            0..30 => self.create(),
            30..55 => self.write(),
            55..62 => self.truncate(),
            62..75 => self.rename(),
            75..85 => self.unlink(),
            85..88 => self.mkdir(),
            88..90 => self.rmdir(),
            90..95 if syncs => self.fsync_file(),
            95..100 if syncs => self.fsync_dir(),
            _ => self.write(),
        }
    }

    /// Notes the operation, does it, notes the answer.
    fn call(&mut self, op: Op) -> Result<(), Failure> {
        let number = self.number;
        self.ledger.append(&Line::Intent(number, op.clone())).map_err(Failure::Ledger)?;
        let result = carry_out(&self.top, self.job.writer, &op);
        // ORDER: the flag is read after the call has returned. What returned after it was set counts as unanswered: while the disk is being shut
        // down, ext4 and XFS may answer an fsync that a real power cut would not have let return.
        if self.stop.load(Ordering::SeqCst) {
            return Err(Failure::Stopped);
        }
        let line = match &result {
            Ok(()) => Line::Returned(number),
            Err(error) => Line::Failed(number, error.raw_os_error().unwrap_or(0)),
        };
        self.ledger.append(&line).map_err(Failure::Ledger)?;
        result.map_err(|error| Failure::Call(format!("operation {number} {op:?}: {error}")))?;
        self.number += 1;
        Ok(())
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn a_file(&mut self) -> Option<ObjectId> {
        let at = self.rng.index(self.files.len());
        self.files.keys().nth(at).copied()
    }

    fn a_dir(&mut self) -> DirId {
        *self.rng.pick(&self.dirs)
    }

    fn place_of(&self, object: ObjectId) -> Option<Place> {
        self.files.get(&object).map(|file| file.place.clone())
    }

    /// Creates a file with at least one block, so that its content always tells which file it is.
    fn create(&mut self) -> Result<(), Failure> {
        if self.files.len() >= FILES_MAX {
            return self.unlink();
        }
        let object = self.fresh_id();
        let place = Place { dir: self.a_dir(), name: format!("f{object}") };
        self.call(Op::Create { object, place: place.clone() })?;
        self.files.insert(object, FileHere { place, blocks: 0, synced: false });
        self.write_to(object, 0)
    }

    fn write(&mut self) -> Result<(), Failure> {
        let Some(object) = self.a_file() else { return self.create() };
        let blocks = self.files.get(&object).map_or(0, |file| file.blocks);
        // Overwrites, appends, and now and then a gap.
        let index = match self.rng.below(10) {
            0..4 => self.rng.below(blocks + 1),
            4..9 => blocks,
            _ => blocks + self.rng.below(20),
        };
        self.write_to(object, index)
    }

    fn write_to(&mut self, object: ObjectId, index: u64) -> Result<(), Failure> {
        let count = if self.rng.percent(60) { 1 } else { 1 + self.rng.below(24) };
        let Some(place) = self.place_of(object) else { return Ok(()) };
        if index + count > BLOCKS_MAX {
            return Ok(());
        }
        let version = self.version;
        self.version += 1;
        self.call(Op::Write { object, place, index, count, version })?;
        if let Some(file) = self.files.get_mut(&object) {
            file.blocks = file.blocks.max(index + count);
            file.synced = false;
        }
        Ok(())
    }

    fn truncate(&mut self) -> Result<(), Failure> {
        let Some(object) = self.a_file() else { return Ok(()) };
        let (Some(place), Some(blocks)) =
            (self.place_of(object), self.files.get(&object).map(|file| file.blocks))
        else {
            return Ok(());
        };
        let blocks = (1 + self.rng.below(blocks + 4)).min(BLOCKS_MAX);
        self.call(Op::Truncate { object, place, blocks })?;
        if let Some(file) = self.files.get_mut(&object) {
            file.blocks = blocks;
            file.synced = false;
        }
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Failure> {
        let Some(object) = self.a_file() else { return Ok(()) };
        let Some(from) = self.place_of(object) else { return Ok(()) };
        let victim = self.a_file().filter(|victim| *victim != object && self.rng.percent(50));
        let (to, replaced) = match victim.and_then(|victim| Some((self.place_of(victim)?, victim))) {
            Some((place, victim)) => {
                // The way applications replace a file: sync the new one, then rename it over the old one.
                if self.job.mode == Mode::Fsynced && !self.files.get(&object).is_some_and(|file| file.synced)
                {
                    self.fsync(object)?;
                }
                (place, Some(victim))
            }
            None => {
                let id = self.fresh_id();
                (Place { dir: self.a_dir(), name: format!("r{id}") }, None)
            }
        };
        self.call(Op::Rename { object, from, to: to.clone(), replaced })?;
        if let Some(replaced) = replaced {
            self.files.remove(&replaced);
        }
        if let Some(file) = self.files.get_mut(&object) {
            file.place = to;
        }
        Ok(())
    }

    fn unlink(&mut self) -> Result<(), Failure> {
        let Some(object) = self.a_file() else { return Ok(()) };
        let Some(place) = self.place_of(object) else { return Ok(()) };
        self.call(Op::Unlink { object, place })?;
        self.files.remove(&object);
        Ok(())
    }

    fn mkdir(&mut self) -> Result<(), Failure> {
        if self.dirs.len() >= DIRS_MAX {
            return self.rmdir();
        }
        let dir = self.fresh_id();
        self.call(Op::Mkdir { dir })?;
        if self.job.mode == Mode::Fsynced {
            // What is in a directory can only be promised once the directory itself is.
            self.call(Op::FsyncDir { dir: 0 })?;
        }
        self.dirs.push(dir);
        Ok(())
    }

    fn rmdir(&mut self) -> Result<(), Failure> {
        let used =
            |dir: DirId, files: &BTreeMap<ObjectId, FileHere>| files.values().any(|f| f.place.dir == dir);
        let Some(at) = (1..self.dirs.len()).find(|at| !used(self.dirs[*at], &self.files)) else {
            return Ok(());
        };
        let dir = self.dirs[at];
        if self.job.mode == Mode::Fsynced {
            // Afterwards the removals in it could no longer be synced.
            self.call(Op::FsyncDir { dir })?;
        }
        self.call(Op::Rmdir { dir })?;
        self.dirs.remove(at);
        Ok(())
    }

    fn fsync_file(&mut self) -> Result<(), Failure> {
        match self.a_file() {
            Some(object) => self.fsync(object),
            None => Ok(()),
        }
    }

    fn fsync(&mut self, object: ObjectId) -> Result<(), Failure> {
        let Some(place) = self.place_of(object) else { return Ok(()) };
        self.call(Op::FsyncFile { object, place })?;
        if let Some(file) = self.files.get_mut(&object) {
            file.synced = true;
        }
        Ok(())
    }

    fn fsync_dir(&mut self) -> Result<(), Failure> {
        let dir = self.a_dir();
        self.call(Op::FsyncDir { dir })
    }
}

fn carry_out(top: &Path, writer: u32, op: &Op) -> std::io::Result<()> {
    let at = |place: &Place| top.join(place.path());
    match op {
        Op::Mkdir { dir } => fs::create_dir(top.join(dir_path(*dir))),
        Op::Rmdir { dir } => fs::remove_dir(top.join(dir_path(*dir))),
        Op::Create { place, .. } => OpenOptions::new().write(true).create_new(true).open(at(place)).map(drop),
        Op::Write { object, place, index, count, version } => {
            let bytes: Vec<u8> = (*index..index + count)
                .flat_map(|index| BlockId { writer, object: *object, index, version: *version }.encode())
                .collect();
            let file = OpenOptions::new().write(true).open(at(place))?;
            file.write_all_at(&bytes, index * BLOCK_BYTES as u64)
        }
        Op::Truncate { place, blocks, .. } => {
            OpenOptions::new().write(true).open(at(place))?.set_len(blocks * BLOCK_BYTES as u64)
        }
        Op::Rename { from, to, .. } => fs::rename(at(from), at(to)),
        Op::Unlink { place, .. } => fs::remove_file(at(place)),
        Op::FsyncFile { place, .. } => OpenOptions::new().write(true).open(at(place))?.sync_all(),
        Op::FsyncDir { dir } => File::open(top.join(dir_path(*dir)))?.sync_all(),
    }
}
