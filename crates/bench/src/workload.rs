//! A workload from beginning to end: files made, caches emptied, figures taken with what must be said of them, files removed.

use crate::data::{Action, DataFiles, DataPlan, Order};
use crate::figure::{Caution, Figure};
use crate::metadata::{MetadataFiles, MetadataPlan, Step};
use crate::place::Place;
use crate::{BenchError, cache};
use std::sync::atomic::AtomicBool;

/// The part of a file that may be cached without anybody noticing it in a rate.
pub(crate) const CACHED_PART_MAX: f64 = 0.01;
/// How much data there must be for each byte of memory of clients and servers.
const TIMES_MEMORY: u64 = 2;

/// How a workload is measured.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How often all of it is done.
    pub repetitions: u32,
    /// Drop all caches of this machine between phases, where that is permitted.
    pub drops_caches: bool,
    /// Memory of this machine and of the servers that are others, bytes.
    pub memory_bytes: u64,
}

impl Rules {
    /// Bytes that no cache can hold back.
    pub fn enough_bytes(&self) -> u64 {
        self.memory_bytes.saturating_mul(TIMES_MEMORY)
    }
}

/// A workload in a place.
pub struct Workload<'a> {
    /// Where.
    pub place: &'a Place,
    /// How.
    pub rules: Rules,
    /// Ends it, when somebody sets it.
    pub cancel: &'a AtomicBool,
    /// Hears of each figure when it is there.
    pub tell: &'a dyn Fn(&Figure),
}

impl Workload<'_> {
    /// Writes and reads as `plan` says; only `actions` of it are told, but what is read is always written first.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Plan`], [`BenchError::NoRoom`] before anything is written.
    pub fn data(&self, plan: &DataPlan, actions: &[Action]) -> Result<Vec<Figure>, BenchError> {
        plan.check()?;
        self.place.check_room(plan.bytes())?;
        let files = DataFiles::new(plan, self.place.path(), self.cancel);
        let mut figures = Vec::new();
        for repetition in 1..=self.rules.repetitions {
            let is_laid_out = plan.order != Order::Sequential || !actions.contains(&Action::Write);
            if is_laid_out {
                files.lay_out()?;
                self.empty_caches(&files)?;
            }
            for action in [Action::Write, Action::Read].into_iter().filter(|action| actions.contains(action))
            {
                let cached = if action == Action::Read { self.empty_caches(&files)? } else { 0.0 };
                let outcome = files.run(action)?;
                let cautions = self.cautions(plan, action, cached, outcome.tally.bytes());
                let figure = Figure::new(name(plan, action), plan.threads, repetition, &outcome, cautions);
                (self.tell)(&figure);
                figures.push(figure);
            }
            files.remove()?;
        }
        Ok(figures)
    }

    /// Evicts the files, and where it is permitted all else; tells which part of them is still cached.
    fn empty_caches(&self, files: &DataFiles<'_>) -> Result<f64, BenchError> {
        if self.rules.drops_caches {
            cache::drop_all();
        }
        files.evict()
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
        let files = MetadataFiles::new(plan, self.place.path(), self.cancel)?;
        self.place.check_room(plan.bytes())?;
        let mut figures = Vec::new();
        for repetition in 1..=self.rules.repetitions {
            files.make_directories()?;
            for step in Step::ALL {
                let is_told = steps.contains(&step);
                if !is_told && step != Step::Create {
                    continue;
                }
                let is_dropped = self.rules.drops_caches && step != Step::Create && cache::drop_all();
                let outcome = files.run(step)?;
                let looks = matches!(step, Step::Stat | Step::Read);
                let cautions = if looks && !is_dropped { vec![Caution::NamesWereKnown] } else { Vec::new() };
                if is_told {
                    let figure = Figure::new(step.name(), plan.threads, repetition, &outcome, cautions);
                    (self.tell)(&figure);
                    figures.push(figure);
                }
            }
            files.remove_directories()?;
        }
        Ok(figures)
    }
}

fn name(plan: &DataPlan, action: Action) -> &'static str {
    match (plan.order, action) {
        (Order::Sequential, Action::Write) => "sequential write",
        (Order::Sequential, Action::Read) => "sequential read",
        (Order::Random { .. }, Action::Write) => "random write",
        (Order::Random { .. }, Action::Read) => "random read",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Files;
    use std::cell::Cell;

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
        let tell = |_: &Figure| told.set(told.get() + 1);
        let rules = Rules { repetitions: 2, drops_caches: false, memory_bytes };
        let done = run(&Workload { place: &place, rules, cancel: &GO_ON, tell: &tell });
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
        let workload = Workload { place: &place, rules, cancel: &GO_ON, tell: &|_| () };
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
}
