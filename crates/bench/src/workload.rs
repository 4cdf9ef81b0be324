//! A workload from beginning to end: files made, caches emptied, figures taken with what must be said of them, files removed.

use crate::BenchError;
use crate::crew::Share;
use crate::data::{Action, DataPlan, Order};
use crate::figure::{Caution, Figure};
use crate::metadata::{MetadataPlan, Step};
use crate::sample::Load;
use crate::task::{Machines, Task};

/// The part of a file that may be cached without anybody noticing it in a rate.
pub(crate) const CACHED_PART_MAX: f64 = 0.01;
/// How much data there must be for each byte of memory of clients and servers.
const TIMES_MEMORY: u64 = 2;

/// How a workload is measured.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How often all of it is done.
    pub repetitions: u32,
    /// Drop all caches of the machines between phases, where that is permitted.
    pub drops_caches: bool,
    /// Memory of these machines and of the servers that are others, bytes.
    pub memory_bytes: u64,
}

impl Rules {
    /// Bytes that no cache can hold back.
    pub fn enough_bytes(&self) -> u64 {
        self.memory_bytes.saturating_mul(TIMES_MEMORY)
    }
}

/// Where the files of a workload come from, and whether they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They are made.
    Made {
        /// And stay at the end; else they are removed.
        is_kept: bool,
    },
    /// They were kept before, and stay.
    Found,
}

/// A workload.
pub struct Workload<'a> {
    /// Who carries it out.
    pub machines: &'a dyn Machines,
    /// How.
    pub rules: Rules,
    /// Hears of each figure when it is there, with what each machine did meanwhile.
    pub tell: &'a dyn Fn(&Figure, &[Option<Load>]),
}

impl Workload<'_> {
    /// Writes and reads as `plan` says; only `actions` of it are told, but what is read is always written first.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Plan`], [`BenchError::NoRoom`] before anything is written.
    pub fn data(&self, plan: &DataPlan, actions: &[Action]) -> Result<Vec<Figure>, BenchError> {
        self.data_of(plan, actions, Origin::Made { is_kept: false })
    }

    /// The same with files that stay at the end, or were there at the begin.
    ///
    /// # Errors
    /// As [`Workload::data`].
    pub fn data_of(
        &self,
        plan: &DataPlan,
        actions: &[Action],
        origin: Origin,
    ) -> Result<Vec<Figure>, BenchError> {
        plan.check()?;
        if origin != Origin::Found {
            self.machines.check_room(plan.bytes(), plan.threads as u64)?;
        }
        let carry_out = |task: Task| self.machines.carry_out(&task);
        let mut figures = Vec::new();
        for repetition in 1..=self.rules.repetitions {
            let is_laid_out = plan.order != Order::Sequential || !actions.contains(&Action::Write);
            if is_laid_out && origin != Origin::Found {
                carry_out(Task::LayOut(plan.clone()))?;
                self.empty_caches(plan)?;
            }
            for action in [Action::Write, Action::Read].into_iter().filter(|action| actions.contains(action))
            {
                let cached = if action == Action::Read { self.empty_caches(plan)? } else { 0.0 };
                let done = carry_out(Task::Transfer(plan.clone(), action))?;
                let cautions = self.cautions(plan, action, cached, done.outcome.tally.bytes());
                let figure =
                    Figure::new(plan.name(action), plan.threads, repetition, &done.outcome, cautions);
                (self.tell)(&figure, &done.loads);
                figures.push(figure);
            }
            // Every repetition writes new files.
            let stays = match origin {
                Origin::Made { is_kept } => is_kept && repetition == self.rules.repetitions,
                Origin::Found => true,
            };
            if !stays {
                carry_out(Task::RemoveData(plan.clone()))?;
            }
        }
        Ok(figures)
    }

    /// Evicts the files, and where it is permitted all else; tells which part of them is still cached.
    fn empty_caches(&self, plan: &DataPlan) -> Result<f64, BenchError> {
        if self.rules.drops_caches {
            self.machines.carry_out(&Task::DropCaches)?;
        }
        Ok(self.machines.carry_out(&Task::Evict(plan.clone()))?.cached_part)
    }

    fn cautions(&self, plan: &DataPlan, action: Action, cached: f64, moved: u64) -> Vec<Caution> {
        let mut cautions = Vec::new();
        if action == Action::Read && !plan.is_direct && cached > CACHED_PART_MAX {
            cautions.push(Caution::WasCached(cached));
        }
        if action == Action::Write && !plan.is_direct && !plan.counts_fsync {
            cautions.push(Caution::NotWrittenBack);
        }
        if plan.bytes() < self.rules.enough_bytes() {
            cautions.push(Caution::FewBytes);
        }
        if plan.time_max.is_some() && moved < plan.bytes() {
            cautions.push(Caution::TimeWasOver);
        }
        cautions
    }

    /// Does `steps` with the files of `plan`, in the order of [`Step::ALL`]. Those that need files make them first, and what was made goes.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Plan`], [`BenchError::NoRoom`] before anything is made.
    pub fn metadata(&self, plan: &MetadataPlan, steps: &[Step]) -> Result<Vec<Figure>, BenchError> {
        plan.check()?;
        self.machines.check_room(plan.bytes(), plan.files())?;
        let carry_out = |task: Task| self.machines.carry_out(&task);
        let mut figures = Vec::new();
        for repetition in 1..=self.rules.repetitions {
            carry_out(Task::MakeDirectories(plan.clone()))?;
            // The files of another machine are known here only after they were looked at.
            let mut names_are_known = !self.looks_elsewhere(plan);
            for step in Step::ALL {
                let is_told = steps.contains(&step);
                if !is_told && step != Step::Create {
                    continue;
                }
                if self.rules.drops_caches && step != Step::Create && carry_out(Task::DropCaches)?.has_dropped
                {
                    names_are_known = false;
                }
                let done = carry_out(Task::Step(plan.clone(), step))?;
                let looks = matches!(step, Step::Stat | Step::Read);
                let cautions =
                    if looks && names_are_known { vec![Caution::NamesWereKnown] } else { Vec::new() };
                names_are_known |= step != Step::Create;
                if is_told {
                    let figure = Figure::new(step.name(), plan.threads, repetition, &done.outcome, cautions);
                    (self.tell)(&figure, &done.loads);
                    figures.push(figure);
                }
            }
            carry_out(Task::RemoveDirectories(plan.clone()))?;
        }
        Ok(figures)
    }

    fn looks_elsewhere(&self, plan: &MetadataPlan) -> bool {
        let share = Share { machine: 0, machines: self.machines.count() };
        plan.looks_at_neighbour && share.has_neighbours_elsewhere(plan.threads) && self.machines.are_apart()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chore::{Answer, Chore};
    use crate::crew::Outcome;
    use crate::data::Files;
    use crate::place::{Place, Room};
    use crate::task::{Alone, Done};
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::AtomicBool;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn plan() -> DataPlan {
        DataPlan {
            threads: 2,
            files: Files::PerThread,
            order: Order::Sequential,
            record_bytes: 4096,
            thread_bytes: 1 << 20,
            depth: 1,
            is_direct: false,
            counts_fsync: true,
            time_max: None,
        }
    }

    fn measured<T>(memory_bytes: u64, run: impl FnOnce(&Workload<'_>) -> T) -> (T, u32) {
        // Not on tmpfs, whose pages cannot be evicted.
        let root = crate::test_disk::folder();
        let place = Place::make(root.path(), false).unwrap();
        let told = Cell::new(0);
        let tell = |_: &Figure, _: &[Option<Load>]| told.set(told.get() + 1);
        let rules = Rules { repetitions: 2, drops_caches: false, memory_bytes };
        let machines = Alone { place: &place, cancel: &GO_ON, sampler: None };
        let done = run(&Workload { machines: &machines, rules, tell: &tell });
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "nothing is left");
        (done, told.get())
    }

    #[test]
    fn what_was_just_written_is_not_read_from_the_cache() {
        let (figures, told) =
            measured(1 << 20, |workload| workload.data(&plan(), &[Action::Write, Action::Read]));
        let figures = figures.unwrap();
        let names: Vec<&str> = figures.iter().map(|figure| figure.what.as_str()).collect();
        assert_eq!(names, ["sequential write", "sequential read", "sequential write", "sequential read"]);
        assert_eq!(told, 4);
        assert!(
            figures.iter().all(|figure| figure.cautions.is_empty() && figure.bytes == 2 << 20),
            "{figures:?}"
        );
    }

    #[test]
    fn a_figure_is_told_with_what_may_have_answered_instead() {
        let random = DataPlan { order: Order::Random { seed: 1 }, counts_fsync: false, ..plan() };
        let (figures, _) =
            measured(1 << 40, |workload| workload.data(&random, &[Action::Write, Action::Read]));
        let [write, read, ..] = &figures.unwrap()[..] else { panic!("two of each") };
        assert_eq!(write.cautions, [Caution::NotWrittenBack, Caution::FewBytes]);
        assert_eq!(read.cautions, [Caution::FewBytes]);
    }

    #[test]
    fn pages_that_the_kernel_keeps_spoil_a_figure() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Place::make(root.path(), false).unwrap();
        let rules = Rules { repetitions: 1, drops_caches: false, memory_bytes: 1 };
        let machines = Alone { place: &place, cancel: &GO_ON, sampler: None };
        let workload = Workload { machines: &machines, rules, tell: &|_, _| () };
        let figures = workload.data(&plan(), &[Action::Read]).unwrap();
        assert!(figures[0].cautions.iter().any(|caution| caution.is_spoiled()), "{figures:?}");
    }

    #[test]
    fn steps_that_were_not_asked_for_are_not_told() {
        let plan = MetadataPlan {
            threads: 2,
            thread_files: 5,
            file_bytes: 10,
            is_shared: false,
            looks_at_neighbour: false,
            depth: 0,
            branches: 1,
            has_fsync: false,
        };
        let (figures, told) = measured(1, |workload| workload.metadata(&plan, &[Step::Stat]));
        let figures = figures.unwrap();
        assert_eq!((figures.len(), told, figures[0].what.as_str()), (2, 2, "stat"));
        assert_eq!(figures[0].cautions, [Caution::NamesWereKnown]);
    }

    /// Machines that do nothing but note what they should; their caches can be dropped or not.
    struct Noting {
        tasks: RefCell<Vec<String>>,
        may_drop: bool,
        are_apart: bool,
    }

    impl Machines for Noting {
        fn count(&self) -> usize {
            2
        }

        fn are_apart(&self) -> bool {
            self.are_apart
        }

        fn carry_out(&self, task: &Task) -> Result<Done, BenchError> {
            self.tasks.borrow_mut().push(task.name());
            Ok(Done { outcome: Outcome::default(), has_dropped: self.may_drop, ..Done::default() })
        }

        fn do_chore(&self, _: &Chore) -> Result<Vec<Answer>, BenchError> {
            Ok(Vec::new())
        }

        fn room(&self) -> Result<Room, BenchError> {
            Ok(Room { bytes: 0, files: 0 })
        }

        fn check_room(&self, _: u64, _: u64) -> Result<(), BenchError> {
            Ok(())
        }
    }

    #[test]
    fn names_of_another_machines_files_are_not_known_before_they_were_looked_at() {
        let plan = MetadataPlan {
            threads: 2,
            thread_files: 1,
            file_bytes: 0,
            is_shared: false,
            looks_at_neighbour: true,
            depth: 0,
            branches: 1,
            has_fsync: false,
        };
        let rules = Rules { repetitions: 1, drops_caches: true, memory_bytes: 1 };
        for (may_drop, looks_at_neighbour, are_apart, expected) in [
            (false, true, true, [false, true]),
            (false, true, false, [true, true]),
            (false, false, true, [true, true]),
            (true, false, true, [false, false]),
        ] {
            let machines = Noting { tasks: RefCell::default(), may_drop, are_apart };
            let workload = Workload { machines: &machines, rules, tell: &|_, _| () };
            let plan = MetadataPlan { looks_at_neighbour, ..plan.clone() };
            let figures = workload.metadata(&plan, &[Step::Stat, Step::Read]).unwrap();
            let marked: Vec<bool> = figures.iter().map(|figure| !figure.cautions.is_empty()).collect();
            assert_eq!(marked, expected);
            let tasks = machines.tasks.borrow();
            let expected = [
                "making directories",
                "create",
                "emptying caches",
                "stat",
                "emptying caches",
                "read",
                "removing files",
            ];
            assert_eq!(*tasks, expected, "caches are emptied on all of them");
        }
    }
}
