//! Reading and writing file content: sequential and random, a file per thread or one for all.
//!
//! | here | papers and tools |
//! |---|---|
//! | a file per thread, in order | IOzone's N-N |
//! | one file, in order, segments | IOR's N-1 (`-b`, `-s`) |
//! | one file, many small segments | IOR's N-1 strided |
//! | random, a queue per thread | IOzone's random N-N, fio (`randread`, `iodepth`) |
//!
//! Every record carries the number of its file and its place. What is read without them ends the measurement: a figure for wrong data is no
//! figure.

mod places;
mod queued;
mod single;
mod stamp;

use crate::crew::{Crew, Line, Outcome, Share, Tally};
use crate::{BenchError, cache};
use places::Places;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Record size of writing the files that random reads and writes go to, bytes.
const LAY_OUT_RECORD_BYTES: u64 = 1 << 20;

/// Most bytes in one record.
pub const RECORD_BYTES_MAX: u64 = 1 << 30;

/// LIMIT: requests of one thread that are under way at the same time.
pub const DEPTH_MAX: u32 = 4096;
/// LIMIT: of a phase.
const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Which files there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Files {
    /// One per thread (N-N).
    PerThread,
    /// One for all (N-1): so many times after each other, each thread has its part.
    Shared {
        /// How many times.
        segments: u64,
    },
}

/// In which order a thread goes through its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// From first to last.
    Sequential,
    /// Each once, as drawn.
    Random {
        /// Fixes what is drawn.
        seed: u64,
    },
}

/// What the calls are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// write(2)
    Write,
    /// read(2)
    Read,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Threads.
    pub threads: usize,
    /// Which files.
    pub files: Files,
    /// In which order.
    pub order: Order,
    /// Bytes of one read or write.
    pub record_bytes: u64,
    /// Bytes that each thread reads or writes, a multiple of the record and, with one file, of record and segments.
    pub thread_bytes: u64,
    /// Requests of one thread that are under way at the same time.
    pub depth: u32,
    /// Past the page cache (`O_DIRECT`).
    pub is_direct: bool,
    /// Whether the time of writing includes fsync and close of each file.
    pub counts_fsync: bool,
    /// The end, should the bytes take longer; random I/O goes on until then, over the same records once more.
    pub time_max: Option<Duration>,
}

impl DataPlan {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.thread_bytes.saturating_mul(self.threads as u64)
    }

    /// Whether it can be done as it is.
    ///
    /// # Errors
    /// [`BenchError::Plan`] with what does not fit together.
    pub fn check(&self) -> Result<(), BenchError> {
        let segments = match self.files {
            Files::PerThread => 1,
            Files::Shared { segments } => segments,
        };
        let fault = |text: String| Err(BenchError::Plan(text));
        if self.threads == 0 || self.depth == 0 || segments == 0 {
            return fault("threads, depth and segments are at least 1".into());
        }
        if self.depth > DEPTH_MAX {
            return fault(format!("{} requests of one thread are too many: {DEPTH_MAX} at most", self.depth));
        }
        if self.time_max.is_some_and(|time| time > TIME_MAX) {
            return fault("a phase takes a year at most".into());
        }
        if !(stamp::BYTES..=RECORD_BYTES_MAX).contains(&self.record_bytes) {
            return fault(format!("a record has {} bytes to 1 GiB, not {}", stamp::BYTES, self.record_bytes));
        }
        let step = self.record_bytes.saturating_mul(segments);
        if self.thread_bytes == 0 || !self.thread_bytes.is_multiple_of(step) {
            return fault(format!(
                "the bytes of a thread ({}) are not a multiple of the record ({}) times the segments ({segments})",
                self.thread_bytes, self.record_bytes
            ));
        }
        if self.is_direct && !self.record_bytes.is_multiple_of(crate::buffer::ALIGNMENT) {
            return fault(format!(
                "a record of {} bytes cannot be written with --direct: take a multiple of 4096",
                self.record_bytes
            ));
        }
        Ok(())
    }

    /// Whether the requests that are under way fit into the memory of a machine with `memory_bytes` that has `threads` of the plan.
    ///
    /// # Errors
    /// [`BenchError::Plan`] if they take more than half of it.
    fn check_memory(&self, threads: usize, memory_bytes: u64) -> Result<(), BenchError> {
        let each = self.record_bytes.saturating_mul(u64::from(self.depth));
        let bytes = each.saturating_mul(threads as u64);
        if bytes <= memory_bytes / 2 {
            return Ok(());
        }
        Err(BenchError::Plan(format!(
            "{} requests of {} bytes in each of {threads} threads take {bytes} bytes of this machine's memory, which has {memory_bytes}: \
             half of it at most. Ask for smaller records (--record), fewer requests (--depth) or fewer threads",
            self.depth, self.record_bytes
        )))
    }

    /// What the figure of `action` is called.
    pub fn name(&self, action: Action) -> &'static str {
        match (self.order, action) {
            (Order::Sequential, Action::Write) => "sequential write",
            (Order::Sequential, Action::Read) => "sequential read",
            (Order::Random { .. }, Action::Write) => "random write",
            (Order::Random { .. }, Action::Read) => "random read",
        }
    }

    /// The same bytes written in order and large pieces: what random I/O goes to.
    pub fn lay_out(&self) -> DataPlan {
        let piece = [LAY_OUT_RECORD_BYTES, self.record_bytes];
        let segments = if let Files::Shared { segments } = self.files { segments } else { 1 };
        let fits = |piece: &u64| {
            (self.thread_bytes / segments).is_multiple_of(*piece) && piece.is_multiple_of(self.record_bytes)
        };
        let record_bytes = piece.into_iter().find(fits).unwrap_or(self.record_bytes);
        DataPlan { order: Order::Sequential, depth: 1, time_max: None, record_bytes, ..self.clone() }
    }

    /// The file of `thread` below `root`.
    fn path(&self, root: &Path, thread: usize) -> PathBuf {
        match self.files {
            Files::PerThread => root.join(format!("data.{thread}")),
            Files::Shared { .. } => root.join("data"),
        }
    }

    /// The files below `root` that the threads of `share` use.
    pub fn paths(&self, root: &Path, share: Share) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            share.threads(self.threads).map(|thread| self.path(root, thread)).collect();
        paths.dedup();
        paths
    }

    fn open(&self, path: &Path, action: Action) -> Result<File, BenchError> {
        let mut options = OpenOptions::new();
        match action {
            Action::Write => options.write(true).create(true),
            Action::Read => options.read(true),
        };
        if !self.is_direct {
            return options.open(path).map_err(BenchError::io("open", path));
        }
        options.custom_flags(OFlags::DIRECT.bits() as i32).open(path).map_err(|answer| match answer.kind() {
            std::io::ErrorKind::InvalidInput => BenchError::NoDirect { path: path.to_owned(), answer },
            _ => BenchError::Io { what: "open", path: path.to_owned(), answer },
        })
    }

    /// Reads or writes all of it in `root`, records of `stamped` bytes each with its stamp (smaller records of the same files would not have
    /// one each).
    fn run(&self, root: &Path, action: Action, stamped: u64, crew: &Crew<'_>) -> Result<Outcome, BenchError> {
        self.check()?;
        if let Some(memory_bytes) = cache::memory_bytes() {
            self.check_memory(crew.share.threads(self.threads).count(), memory_bytes)?;
        }
        crew.run(self.threads, |thread, line| self.work(root, action, stamped, (thread, line)))
    }

    fn work(
        &self,
        root: &Path,
        action: Action,
        stamped: u64,
        (thread, line): (usize, &Line<'_>),
    ) -> Result<Tally, BenchError> {
        let path = self.path(root, thread);
        let file = self.open(&path, action)?;
        let part = Part { plan: self, file: &file, path: &path, action, stamped, line };
        let tally = if self.depth == 1 { part.single(thread)? } else { part.queued(thread)? };
        if action == Action::Write && self.counts_fsync {
            file.sync_all().map_err(BenchError::io("fsync", &path))?;
        }
        Ok(tally)
    }
}

/// What one thread does with its file.
struct Part<'a> {
    plan: &'a DataPlan,
    file: &'a File,
    path: &'a Path,
    action: Action,
    /// Bytes from one stamp to the next.
    stamped: u64,
    line: &'a Line<'a>,
}

impl Part<'_> {
    fn places(&self, thread: usize) -> Places {
        Places::new(self.plan, thread)
    }

    /// The number that the stamps of this thread's file carry.
    fn file_number(&self, thread: usize) -> u64 {
        match self.plan.files {
            Files::PerThread => thread as u64,
            Files::Shared { .. } => 0,
        }
    }

    fn check_length(&self, offset: u64, moved: u64) -> Result<(), BenchError> {
        if moved == self.plan.record_bytes {
            return Ok(());
        }
        let path = self.path.to_owned();
        Err(BenchError::Short { path, offset, moved, wanted: self.plan.record_bytes })
    }

    fn check_content(&self, number: u64, offset: u64, record: &[u8]) -> Result<(), BenchError> {
        stamp::check(record, self.stamped, number, offset)
            .map_err(|offset| BenchError::Wrong { path: self.path.to_owned(), offset })
    }
}

/// Files of one plan in a directory, from the first write on: those of a crew's threads.
pub struct DataFiles<'a> {
    plan: &'a DataPlan,
    root: &'a Path,
    crew: Crew<'a>,
}

impl<'a> DataFiles<'a> {
    /// The plan's files in `root`, which exists, for this machine alone.
    pub fn new(plan: &'a DataPlan, root: &'a Path, cancel: &'a AtomicBool) -> DataFiles<'a> {
        DataFiles { plan, root, crew: Crew::alone(cancel) }
    }

    /// The part of them that `crew` has.
    pub fn of(plan: &'a DataPlan, root: &'a Path, crew: Crew<'a>) -> DataFiles<'a> {
        DataFiles { plan, root, crew }
    }

    /// Writes or reads as the plan says.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Wrong`] for content that was not written.
    pub fn run(&self, action: Action) -> Result<Outcome, BenchError> {
        self.plan.run(self.root, action, self.plan.record_bytes, &self.crew)
    }

    /// Writes the files in order and large pieces, with a stamp for every record of the plan.
    ///
    /// # Errors
    /// What a call answers.
    pub fn lay_out(&self) -> Result<Outcome, BenchError> {
        let plan = DataPlan { counts_fsync: true, ..self.plan.lay_out() };
        plan.run(self.root, Action::Write, self.plan.record_bytes, &self.crew)
    }

    /// Writes them back and asks the kernel to forget their pages; tells which part (0 to 1) of them it still has.
    ///
    /// # Errors
    /// What a call answers.
    pub fn evict(&self) -> Result<f64, BenchError> {
        let mut worst: f64 = 0.0;
        for path in self.plan.paths(self.root, self.crew.share) {
            if self.crew.cancel.load(Relaxed) {
                return Err(BenchError::Stopped);
            }
            worst = worst.max(cache::evict(&path)?);
        }
        Ok(worst)
    }

    /// Removes them; one file of all is the first machine's to remove.
    ///
    /// # Errors
    /// What a call answers.
    pub fn remove(&self) -> Result<(), BenchError> {
        if self.plan.files != Files::PerThread && self.crew.share.machine != 0 {
            return Ok(());
        }
        for path in self.plan.paths(self.root, self.crew.share) {
            std::fs::remove_file(&path).map_err(BenchError::io("remove", &path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn plan() -> DataPlan {
        DataPlan {
            threads: 3,
            files: Files::PerThread,
            order: Order::Sequential,
            record_bytes: 4096,
            thread_bytes: 40_960,
            depth: 1,
            is_direct: false,
            counts_fsync: true,
            time_max: None,
        }
    }

    #[test]
    fn what_is_written_is_read_whatever_files_and_order() {
        for files in [Files::PerThread, Files::Shared { segments: 1 }, Files::Shared { segments: 10 }] {
            for (order, depth) in
                [(Order::Sequential, 1), (Order::Random { seed: 3 }, 1), (Order::Random { seed: 3 }, 4)]
            {
                let root = tempfile::tempdir().unwrap();
                let plan = DataPlan { files, order, depth, ..plan() };
                let made = DataFiles::new(&plan, root.path(), &GO_ON);
                for action in [Action::Write, Action::Read] {
                    let outcome = made.run(action).unwrap();
                    assert_eq!((outcome.tally.operations(), outcome.tally.bytes()), (30, 30 * 4096));
                }
                let bytes: u64 = plan
                    .paths(root.path(), Share::WHOLE)
                    .iter()
                    .map(|path| path.metadata().unwrap().len())
                    .sum();
                assert_eq!(bytes, plan.bytes());
                made.remove().unwrap();
                assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
            }
        }
    }

    #[test]
    fn files_that_were_laid_out_in_large_pieces_can_be_read_in_small_ones() {
        let root = tempfile::tempdir().unwrap();
        let random = Order::Random { seed: 1 };
        let plan = DataPlan { order: random, record_bytes: 1024, thread_bytes: 3 << 20, depth: 8, ..plan() };
        assert_eq!(plan.lay_out().record_bytes, 1 << 20);
        let made = DataFiles::new(&plan, root.path(), &GO_ON);
        made.lay_out().unwrap();
        assert_eq!(made.run(Action::Read).unwrap().tally.operations(), 9 * 1024);
        made.run(Action::Write).unwrap();
        made.run(Action::Read).unwrap();
    }

    #[test]
    fn wrong_content_and_short_files_are_no_figure() {
        for depth in [1, 4] {
            let root = tempfile::tempdir().unwrap();
            let plan = DataPlan { depth, order: Order::Random { seed: 9 }, ..plan() };
            let made = DataFiles::new(&plan, root.path(), &GO_ON);
            made.run(Action::Write).unwrap();
            let path = &plan.paths(root.path(), Share::WHOLE)[1];
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.write_at(&[1; 16], 8192).unwrap();
            let wrong = made.run(Action::Read);
            assert!(matches!(wrong, Err(BenchError::Wrong { offset: 8192, .. })), "{wrong:?}");
            file.set_len(20_000).unwrap();
            file.write_at(&[0; 16], 8192).unwrap();
            assert!(made.run(Action::Read).is_err());
        }
    }

    #[test]
    fn requests_that_do_not_fit_into_memory_are_refused_before_any_is_made() {
        let deep = DataPlan { depth: DEPTH_MAX, record_bytes: 1 << 20, thread_bytes: 1 << 20, ..plan() };
        assert!(deep.check_memory(2, 16 << 30).is_ok());
        let refused = deep.check_memory(3, 16 << 30).unwrap_err().to_string();
        assert!(refused.contains("--depth") && refused.contains("3 threads"), "{refused}");
        let (root, all) = (tempfile::tempdir().unwrap(), DataPlan { threads: 100_000, ..deep });
        let refused = DataFiles::new(&all, root.path(), &GO_ON).run(Action::Write).unwrap_err();
        assert!(matches!(refused, BenchError::Plan(_)), "{refused}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        assert!(plan().check().is_ok());
        assert!(DataPlan { record_bytes: 8, ..plan() }.check().is_err());
        assert!(DataPlan { thread_bytes: 5000, ..plan() }.check().is_err());
        assert!(DataPlan { files: Files::Shared { segments: 3 }, ..plan() }.check().is_err());
        assert!(DataPlan { depth: 0, ..plan() }.check().is_err());
        assert!(DataPlan { depth: DEPTH_MAX + 1, ..plan() }.check().is_err());
        assert!(DataPlan { time_max: Some(Duration::MAX), ..plan() }.check().is_err());
        let odd = DataPlan { record_bytes: 1024, is_direct: true, ..plan() };
        assert!(odd.check().unwrap_err().to_string().contains("--direct"));
    }
}
