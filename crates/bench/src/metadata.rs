//! Creating, looking at, reading, changing and removing many files, as mdtest does.
//!
//! Names are made before the time begins, calls are relative to an open directory, and each thread has a table of open files of its own, so that
//! the file system is measured and not this program.

mod act;

use crate::buffer::AlignedBuffer;
use crate::crew::{Crew, Line, Outcome, Tally};
use crate::{BenchError, cache};
use act::Actor;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most bytes in a file.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// What is done with every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// open(2) of a new file, write(2) if it has bytes, close(2)
    Create,
    /// stat(2)
    Stat,
    /// open(2), read(2) to the end, close(2)
    Read,
    /// utimensat(2)
    Utime,
    /// unlink(2)
    Remove,
}

impl Step {
    /// All, in the order they run.
    pub const ALL: [Step; 5] = [Step::Create, Step::Stat, Step::Read, Step::Utime, Step::Remove];

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Stat => "stat",
            Step::Read => "read",
            Step::Utime => "utime",
            Step::Remove => "remove",
        }
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataPlan {
    /// Threads.
    pub threads: usize,
    /// Files of each thread.
    pub thread_files: u64,
    /// Bytes of each file.
    pub file_bytes: u64,
    /// All threads in one directory (tree).
    pub is_shared: bool,
    /// stat, read and utime look at the files of another thread, on another machine if there are several, so that no cache of the maker answers (mdtest's `-N`).
    pub looks_at_neighbour: bool,
    /// Levels of directories below a thread's, each directory with `branches`; files are in the lowest only (mdtest's `-z`, `-b`, `-L`).
    pub depth: u32,
    /// Directories in each directory.
    pub branches: u32,
    /// fsync(2) of each file that is created.
    pub has_fsync: bool,
}

/// LIMIT: directories of one thread.
const DIRECTORIES_MAX: u64 = 1 << 20;
/// LIMIT: levels of them.
pub const DEPTH_MAX: u32 = 20;
/// Bytes that a name takes in memory, with its place in the list.
const NAME_BYTES: u64 = 96;

impl MetadataPlan {
    /// Files of all threads.
    pub fn files(&self) -> u64 {
        self.thread_files.saturating_mul(self.threads as u64)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files().saturating_mul(self.file_bytes)
    }

    /// The lowest directories of a tree.
    fn leaves(&self) -> u64 {
        u64::from(self.branches).saturating_pow(self.depth)
    }

    /// Whether it can be done as it is.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with what does not fit together.
    pub fn check(&self) -> Result<(), BenchError> {
        let fault = |text: String| Err(BenchError::Plan(text));
        if self.threads == 0 || self.thread_files == 0 || self.branches == 0 {
            return fault("threads, files and branches are at least 1".into());
        }
        if self.file_bytes > FILE_BYTES_MAX {
            return fault(format!("a file has at most 1 GiB, not {} bytes", self.file_bytes));
        }
        if self.depth > DEPTH_MAX {
            return fault(format!("{} levels of directories are too many: {DEPTH_MAX} at most", self.depth));
        }
        if self.leaves() > DIRECTORIES_MAX {
            return fault(format!(
                "{} levels of {} directories are {} of them; at most {DIRECTORIES_MAX} are possible",
                self.depth,
                self.branches,
                self.leaves()
            ));
        }
        Ok(())
    }

    /// Whether the names of all files fit into the memory of a machine with `memory_bytes` that has `threads` of the plan.
    ///
    /// # Errors
    /// [`BenchError::Plan`] if they take more than half of it.
    fn check_memory(&self, threads: usize, memory_bytes: u64) -> Result<(), BenchError> {
        let names = self.thread_files.saturating_mul(threads as u64);
        let bytes = names.saturating_mul(NAME_BYTES);
        if bytes <= memory_bytes / 2 {
            return Ok(());
        }
        Err(BenchError::Plan(format!(
            "the names of {names} files take {bytes} bytes of this machine's memory, which has {memory_bytes}: half of it at most. \
             Ask for fewer files (--files), or have more machines make them (--agents)"
        )))
    }

    fn tree(&self, root: &Path, thread: usize) -> PathBuf {
        root.join(if self.is_shared { "files".to_owned() } else { format!("files.{thread}") })
    }

    /// The path of the lowest directory `leaf` of a tree, relative to it, with `/` at the end; empty if there are no levels.
    fn leaf(&self, leaf: u64) -> String {
        let mut parts = Vec::new();
        let mut rest = leaf;
        for _ in 0..self.depth {
            parts.push(format!("d{}/", rest % u64::from(self.branches)));
            rest /= u64::from(self.branches);
        }
        parts.reverse();
        parts.concat()
    }

    /// The files that `thread` made, relative to its tree, in the order it made them.
    fn names(&self, thread: usize) -> Vec<CString> {
        let each = self.thread_files.div_ceil(self.leaves());
        let name = |number: u64| {
            let path = format!("{}file.{thread}.{number}", self.leaf(number / each));
            CString::new(path).unwrap_or_else(|_| unreachable!("there is no zero in it"))
        };
        (0..self.thread_files).map(name).collect()
    }
}

/// The files of one plan in a directory, as far as they are those of a crew's threads.
pub struct MetadataFiles<'a> {
    plan: &'a MetadataPlan,
    root: &'a Path,
    crew: Crew<'a>,
    content: Vec<u8>,
}

impl<'a> MetadataFiles<'a> {
    /// The plan's files in `root`, which exists, for this machine alone.
    ///
    /// # Errors
    /// As [`MetadataPlan::check`].
    pub fn new(
        plan: &'a MetadataPlan,
        root: &'a Path,
        cancel: &'a AtomicBool,
    ) -> Result<MetadataFiles<'a>, BenchError> {
        MetadataFiles::of(plan, root, Crew::alone(cancel))
    }

    /// The part of them that `crew` has.
    ///
    /// # Errors
    /// As [`MetadataPlan::check`].
    pub fn of(
        plan: &'a MetadataPlan,
        root: &'a Path,
        crew: Crew<'a>,
    ) -> Result<MetadataFiles<'a>, BenchError> {
        plan.check()?;
        let content = AlignedBuffer::noise((plan.file_bytes as usize).max(1), 1)?.as_slice()
            [..plan.file_bytes as usize]
            .to_vec();
        Ok(MetadataFiles { plan, root, crew, content })
    }

    /// The trees that are this machine's to make and to remove: one of all is the first's.
    fn trees(&self) -> Vec<PathBuf> {
        let share = self.crew.share;
        if self.plan.is_shared {
            return if share.machine == 0 { vec![self.plan.tree(self.root, 0)] } else { Vec::new() };
        }
        share.threads(self.plan.threads).map(|thread| self.plan.tree(self.root, thread)).collect()
    }

    /// Makes the directories the files will be in. Not measured.
    ///
    /// # Errors
    /// What a call answers.
    pub fn make_directories(&self) -> Result<(), BenchError> {
        for tree in self.trees() {
            for leaf in 0..self.plan.leaves() {
                if self.crew.cancel.load(Relaxed) {
                    return Err(BenchError::Stopped);
                }
                let path = tree.join(self.plan.leaf(leaf));
                fs::create_dir_all(&path).map_err(BenchError::io("make directory", &path))?;
            }
        }
        Ok(())
    }

    /// Removes them, with all that is left in them. Not measured.
    ///
    /// # Errors
    /// What a call answers.
    pub fn remove_directories(&self) -> Result<(), BenchError> {
        for tree in self.trees() {
            fs::remove_dir_all(&tree).map_err(BenchError::io("remove", &tree))?;
        }
        Ok(())
    }

    /// Does `step` with every file.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Wrong`] when a file does not hold what it was made with.
    pub fn run(&self, step: Step) -> Result<Outcome, BenchError> {
        if let Some(memory_bytes) = cache::memory_bytes() {
            self.plan.check_memory(self.crew.share.threads(self.plan.threads).count(), memory_bytes)?;
        }
        self.crew.run(self.plan.threads, |thread, line| self.work(step, (thread, line)))
    }

    fn work(&self, step: Step, (thread, line): (usize, &Line<'_>)) -> Result<Tally, BenchError> {
        let is_looking = !matches!(step, Step::Create | Step::Remove);
        let owner = if is_looking && self.plan.looks_at_neighbour {
            self.crew.share.neighbour(thread, self.plan.threads)
        } else {
            thread
        };
        let tree = self.plan.tree(self.root, owner);
        let names = self.plan.names(owner);
        let directory = own_directory(&tree)?;
        let mut actor = Actor::new(&directory, &tree, &self.content, self.plan.has_fsync);
        let mut tally = Tally::default();
        line.start()?;
        for name in &names {
            line.check()?;
            tally = actor.timed(step, name, tally)?;
        }
        Ok(tally)
    }
}

/// Opens a directory on a thread that from now on shares no table of open files with the others.
fn own_directory(path: &Path) -> Result<OwnedFd, BenchError> {
    // SAFETY: the thread is one of a crew's and opens its files itself. What others have open stays valid in its copy of the table, and
    // nothing in this program closes a descriptor on one thread and expects it closed on another.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }
        .map_err(BenchError::errno("have a table of open files apart for", path))?;
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(BenchError::errno("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);
    static STOP: AtomicBool = AtomicBool::new(true);

    fn plan() -> MetadataPlan {
        MetadataPlan {
            threads: 3,
            thread_files: 10,
            file_bytes: 100,
            is_shared: false,
            looks_at_neighbour: true,
            depth: 2,
            branches: 2,
            has_fsync: false,
        }
    }

    #[test]
    fn every_file_goes_through_all_steps_and_nothing_is_left() {
        for is_shared in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let plan = MetadataPlan { is_shared, ..plan() };
            let files = MetadataFiles::new(&plan, root.path(), &GO_ON).unwrap();
            files.make_directories().unwrap();
            for step in Step::ALL {
                let outcome = files.run(step).unwrap();
                assert_eq!(outcome.tally.operations(), 30);
                let moved = if matches!(step, Step::Create | Step::Read) { 3000 } else { 0 };
                assert_eq!(outcome.tally.bytes(), moved, "{step:?}");
            }
            files.remove_directories().unwrap();
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn more_files_than_there_is_memory_for_their_names_are_refused() {
        let many = |thread_files| MetadataPlan { thread_files, ..plan() };
        assert!(many(1 << 24).check_memory(2, 8 << 30).is_ok());
        let refused = many(1 << 24).check_memory(4, 8 << 30).unwrap_err().to_string();
        assert!(refused.contains("--files") && refused.contains("67108864 files"), "{refused}");
        let root = tempfile::tempdir().unwrap();
        for (plan, word) in
            [(many(u64::MAX), "--files"), (MetadataPlan { depth: u32::MAX, branches: 1, ..plan() }, "levels")]
        {
            let refused = MetadataFiles::new(&plan, root.path(), &GO_ON)
                .and_then(|files| files.run(Step::Create))
                .unwrap_err();
            assert!(matches!(&refused, BenchError::Plan(text) if text.contains(word)), "{refused}");
        }
    }

    #[test]
    fn directories_are_not_made_on_when_somebody_wants_to_stop() {
        let root = tempfile::tempdir().unwrap();
        let plan = MetadataPlan { depth: 10, branches: 4, ..plan() };
        let files =
            MetadataFiles { plan: &plan, root: root.path(), crew: Crew::alone(&STOP), content: Vec::new() };
        assert!(matches!(files.make_directories(), Err(BenchError::Stopped)));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_are_in_the_lowest_directories_only_and_evenly() {
        let plan = plan();
        let names: Vec<String> = plan.names(1).into_iter().map(|name| name.into_string().unwrap()).collect();
        let folders: Vec<&str> = names.iter().map(|name| name.rsplit_once('/').unwrap().0).collect();
        let expected =
            ["d0/d0", "d0/d0", "d0/d0", "d0/d1", "d0/d1", "d0/d1", "d1/d0", "d1/d0", "d1/d0", "d1/d1"];
        assert_eq!(folders, expected);
        assert!(MetadataPlan { depth: 0, ..plan }.names(0)[3].to_str().unwrap() == "file.0.3");
    }

    #[test]
    fn a_file_that_changed_is_no_figure() {
        let root = tempfile::tempdir().unwrap();
        let plan = plan();
        let files = MetadataFiles::new(&plan, root.path(), &GO_ON).unwrap();
        files.make_directories().unwrap();
        files.run(Step::Create).unwrap();
        fs::write(root.path().join("files.2/d1/d1/file.2.9"), [7; 100]).unwrap();
        assert!(matches!(files.run(Step::Read), Err(BenchError::Wrong { .. })));
        fs::remove_file(root.path().join("files.2/d1/d1/file.2.9")).unwrap();
        assert!(matches!(files.run(Step::Stat), Err(BenchError::Io { what: "stat", .. })));
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        assert!(plan().check().is_ok());
        assert!(MetadataPlan { threads: 0, ..plan() }.check().is_err());
        assert!(MetadataPlan { depth: 64, ..plan() }.check().is_err());
        assert!(MetadataPlan { file_bytes: FILE_BYTES_MAX + 1, ..plan() }.check().is_err());
    }
}
