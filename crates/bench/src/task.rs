//! What all machines of a workload do at the same time, and who they are: this one, or many.

use crate::chore::{Answer, Chore};
use crate::crew::{Crew, Outcome};
use crate::data::{Action, DataFiles, DataPlan};
use crate::metadata::{MetadataFiles, MetadataPlan, Step};
use crate::place::{Place, Room};
use crate::sample::{Load, Sampler};
use crate::{BenchError, cache};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A part of a workload. Each machine does it for the threads that are its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Write the files that random reads and writes go to.
    LayOut(DataPlan),
    /// Write or read, measured.
    Transfer(DataPlan, Action),
    /// Have the kernel forget the pages of the files.
    Evict(DataPlan),
    /// Remove the files.
    RemoveData(DataPlan),
    /// Make the directories of many files.
    MakeDirectories(MetadataPlan),
    /// Do something with every file, measured.
    Step(MetadataPlan, Step),
    /// Remove the directories, with all that is left in them.
    RemoveDirectories(MetadataPlan),
    /// Drop all caches of the machine, if that is permitted.
    DropCaches,
}

/// What came of a task.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// What was measured; all zero for a task that is not.
    pub outcome: Outcome,
    /// The part (0 to 1) of the files that is still cached after they were evicted, of the machine with most.
    pub cached_part: f64,
    /// Whether the caches were dropped, on every machine.
    pub has_dropped: bool,
    /// What each machine did while its own threads worked, in their order; nothing for one that nobody watched, or not for long enough.
    pub loads: Vec<Option<Load>>,
}

impl Task {
    /// Whether it is measured: then machines wait for each other before it begins.
    pub fn is_measured(&self) -> bool {
        matches!(self, Task::Transfer(..) | Task::Step(..))
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match self {
            Task::LayOut(_) => "writing the files that are measured".into(),
            Task::Transfer(plan, action) => plan.name(*action).into(),
            Task::Evict(_) | Task::DropCaches => "emptying caches".into(),
            Task::RemoveData(_) | Task::RemoveDirectories(_) => "removing files".into(),
            Task::MakeDirectories(_) => "making directories".into(),
            Task::Step(_, step) => step.name().into(),
        }
    }

    /// How many threads take part.
    pub fn threads(&self) -> usize {
        match self {
            Task::LayOut(plan) | Task::Transfer(plan, _) | Task::Evict(plan) | Task::RemoveData(plan) => {
                plan.threads
            }
            Task::MakeDirectories(plan) | Task::Step(plan, _) | Task::RemoveDirectories(plan) => plan.threads,
            Task::DropCaches => 0,
        }
    }

    /// Does it in `root`, as far as it is the crew's. Only a measured task waits at the crew's barrier.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Stopped`] when it was cancelled.
    pub fn carry_out(&self, root: &Path, crew: Crew<'_>) -> Result<Done, BenchError> {
        let crew = Crew { barrier: crew.barrier.filter(|_| self.is_measured()), ..crew };
        let mut done = Done::default();
        match self {
            Task::LayOut(plan) => {
                DataFiles::of(plan, root, crew).lay_out()?;
            }
            Task::Transfer(plan, action) => done.outcome = DataFiles::of(plan, root, crew).run(*action)?,
            Task::Evict(plan) => done.cached_part = DataFiles::of(plan, root, crew).evict()?,
            Task::RemoveData(plan) => DataFiles::of(plan, root, crew).remove()?,
            Task::MakeDirectories(plan) => MetadataFiles::of(plan, root, crew)?.make_directories()?,
            Task::Step(plan, step) => done.outcome = MetadataFiles::of(plan, root, crew)?.run(*step)?,
            Task::RemoveDirectories(plan) => MetadataFiles::of(plan, root, crew)?.remove_directories()?,
            Task::DropCaches => done.has_dropped = cache::drop_all(),
        }
        Ok(done)
    }
}

/// Those who carry out the tasks of a workload.
pub trait Machines {
    /// How many there are.
    fn count(&self) -> usize;

    /// Whether no two of them are on one computer, and thus share its caches.
    fn are_apart(&self) -> bool;

    /// All of them do `task`; returns when the last has.
    ///
    /// # Errors
    /// The first of theirs.
    fn carry_out(&self, task: &Task) -> Result<Done, BenchError>;

    /// Each of them does `chore`, all at the same time; the answers in their order. What is measured of a computer is so once, by the first that is
    /// on it.
    ///
    /// # Errors
    /// The first of theirs.
    fn do_chore(&self, chore: &Chore) -> Result<Vec<Answer>, BenchError>;

    /// What is free where they work.
    ///
    /// # Errors
    /// What statvfs(3) answers.
    fn room(&self) -> Result<Room, BenchError>;

    /// Whether `bytes` in `files` fit where they work.
    ///
    /// # Errors
    /// [`BenchError::NoRoom`] or [`BenchError::NoFiles`] if not.
    fn check_room(&self, bytes: u64, files: u64) -> Result<(), BenchError>;

    /// Whether every one of them can open files past the page cache where it works.
    ///
    /// # Errors
    /// What a call answers other than that it does not.
    fn have_direct(&self) -> Result<bool, BenchError> {
        let answers = self.do_chore(&Chore::TryDirect)?;
        Ok(answers.iter().all(|answer| matches!(answer, Answer::Direct(true))))
    }
}

/// This machine and no other.
pub struct Alone<'a> {
    /// Where it works.
    pub place: &'a Place,
    /// Ends it, when somebody sets it.
    pub cancel: &'a AtomicBool,
    /// Who watches the machine, if somebody does.
    pub sampler: Option<&'a Sampler>,
}

impl Machines for Alone<'_> {
    fn count(&self) -> usize {
        1
    }

    fn are_apart(&self) -> bool {
        true
    }

    fn carry_out(&self, task: &Task) -> Result<Done, BenchError> {
        let mut done = task.carry_out(self.place.path(), Crew::alone(self.cancel))?;
        if task.is_measured() {
            done.loads = vec![self.sampler.and_then(|sampler| sampler.last(done.outcome.time))];
        }
        Ok(done)
    }

    fn do_chore(&self, chore: &Chore) -> Result<Vec<Answer>, BenchError> {
        Ok(vec![chore.carry_out(self.place.path(), 0, self.cancel)?])
    }

    fn room(&self) -> Result<Room, BenchError> {
        self.place.room()
    }

    fn check_room(&self, bytes: u64, files: u64) -> Result<(), BenchError> {
        self.place.check_room(bytes, files)
    }
}
