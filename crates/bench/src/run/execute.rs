//! Carries out a plan, step by step, and keeps what was measured.

use super::fill::{Filling, Usage};
use super::journal::{Journal, Key};
use super::plan::{Measured, Plan, Point, Tool, Work};
use super::progress::Estimate;
use crate::data::Action;
use crate::figure::Figure;
use crate::metadata::Step;
use crate::sample::{Load, Sampler};
use crate::task::{Alone, Machines};
use crate::workload::{Rules, Workload};
use crate::{BenchError, tools};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What somebody who watches is told before each step, and once at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// What comes now; nothing at the end.
    pub step: Option<String>,
    /// Steps done, of those of earlier runs as well.
    pub done: usize,
    /// All steps.
    pub all: usize,
    /// Seconds that are left, as far as is known.
    pub seconds_left: f64,
}

/// A plan on its way.
pub struct Sweep<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Who measures.
    pub machines: &'a dyn Machines,
    /// The same, if this machine measures alone: only then are there other programs, and is a file system filled.
    pub alone: Option<&'a Alone<'a>>,
    /// What was done, and where the rest is written down.
    pub journal: &'a mut Journal,
    /// Ends it, when somebody sets it.
    pub cancel: &'a AtomicBool,
    /// Hears of each step before it begins.
    pub tell: &'a dyn Fn(&Told),
}

impl Sweep<'_> {
    /// Measures what is not yet in the journal.
    ///
    /// # Errors
    /// What a call answers; [`BenchError::Stopped`]. What was done before is in the journal.
    pub fn run(&mut self) -> Result<(), BenchError> {
        let measured_bytes = self.plan.fill_points.iter().map(Point::bytes).max().unwrap_or(0);
        if !self.plan.fill_percents.is_empty() {
            Usage::of(self.alone()?.place)?.check(&self.plan.fill_percents, measured_bytes)?;
        }
        let keys = keys(self.plan);
        let mut estimate = Estimate::default();
        keys.iter().for_each(|key| estimate.add(*key, self.point(*key).expected_seconds));
        for (key, (seconds, _)) in &self.journal.progress.done {
            estimate.done(*key, *seconds);
        }
        let mut filling = Filling::default();
        for key in keys {
            if self.journal.progress.done.contains_key(&key) {
                continue;
            }
            if self.cancel.load(Relaxed) {
                return Err(BenchError::Stopped);
            }
            self.told(&estimate, Some(self.title(key)));
            if let Some(percent) = key.fill_percent {
                filling.fill(self.alone()?.place, percent, measured_bytes, self.cancel)?;
            }
            let begun = Instant::now();
            let measured = self.step(key)?;
            let seconds = begun.elapsed().as_secs_f64();
            estimate.done(key, seconds);
            self.journal.done(key, seconds, measured)?;
        }
        self.told(&estimate, None);
        Ok(())
    }

    fn told(&self, estimate: &Estimate, step: Option<String>) {
        let (done, all) = estimate.count();
        (self.tell)(&Told { step, done, all, seconds_left: estimate.seconds_left() });
    }

    /// For what only this machine does.
    fn alone(&self) -> Result<&Alone<'_>, BenchError> {
        let why =
            "agents run no other programs and fill no file system: leave --agents out, or --with and --fill";
        self.alone.ok_or_else(|| BenchError::Plan(why.into()))
    }

    fn point(&self, key: Key) -> &Point {
        let points = if key.fill_percent.is_some() { &self.plan.fill_points } else { &self.plan.points };
        &points[key.point]
    }

    fn title(&self, key: Key) -> String {
        let point = self.point(key);
        let plural = if point.threads == 1 { "" } else { "s" };
        let mut text =
            format!("{}, {} thread{plural}, repetition {}", point.part, point.threads, key.repetition);
        if key.tool != Tool::Ashlar {
            text += &format!(", {}", key.tool);
        }
        if let Some(percent) = key.fill_percent {
            text += &format!(", {percent} % full");
        }
        text
    }

    fn step(&self, key: Key) -> Result<Vec<Measured>, BenchError> {
        let point = *self.point(key);
        let measured = RefCell::new(Vec::new());
        let tell = |figure: &Figure, loads: &[Option<Load>]| {
            let (load, loads) = match loads {
                [one] => (one.clone(), Vec::new()),
                all => (None, all.to_vec()),
            };
            let figure = Figure { repetition: key.repetition, ..figure.clone() };
            let (part, tool, fill_percent) = (point.part, key.tool, key.fill_percent);
            measured.borrow_mut().push(Measured { part, tool, fill_percent, figure, load, loads });
        };
        let rules = Rules {
            repetitions: 1,
            drops_caches: self.plan.drops_caches,
            memory_bytes: self.plan.memory_bytes,
        };
        if key.tool == Tool::Ashlar {
            let workload = Workload { machines: self.machines, rules, tell: &tell };
            match point.work(self.plan.is_direct) {
                Work::Data(plan) => workload.data(&plan, &[Action::Write, Action::Read])?,
                Work::Metadata(plan) => workload.metadata(&plan, &Step::ALL)?,
            };
        } else {
            let work = point.work(self.plan.is_direct);
            let alone = self.alone()?;
            let tell = |figure: &Figure, since: Instant| {
                let time = Duration::from_secs_f64(figure.seconds);
                let busiest = |sampler: &Sampler| sampler.busiest(time, since);
                tell(figure, &[alone.sampler.and_then(busiest)]);
            };
            tools::run(key.tool, &work, alone.place, rules, self.cancel, &tell)?;
        }
        Ok(measured.into_inner())
    }
}

/// All steps: every point once, then every point again; levels of filling at the end, each with all its repetitions.
fn keys(plan: &Plan) -> Vec<Key> {
    let mut keys = Vec::new();
    for repetition in 1..=plan.repetitions {
        for (number, point) in plan.points.iter().enumerate() {
            let others = plan.tools.iter().copied().filter(|tool| tools::does(*tool, point.part));
            let mut programs: Vec<Tool> = std::iter::once(Tool::Ashlar).chain(others).collect();
            // Who comes second finds the disk as the first has left it.
            if repetition.is_multiple_of(2) {
                programs.reverse();
            }
            for tool in programs {
                keys.push(Key { fill_percent: None, point: number, tool, repetition });
            }
        }
    }
    for percent in &plan.fill_percents {
        for repetition in 1..=plan.repetitions {
            let of_level =
                |point| Key { fill_percent: Some(*percent), point, tool: Tool::Ashlar, repetition };
            keys.extend((0..plan.fill_points.len()).map(of_level));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::super::identity::tests::identity;
    use super::super::plan::tests::{plan, point};
    use super::*;
    use crate::place::Place;
    use crate::run::Part;
    use std::cell::Cell;

    #[test]
    fn every_step_is_done_once_and_a_stopped_run_goes_on_where_it_was() {
        let folder = crate::test_disk::folder();
        let path = folder.path().join("report.journal");
        let root = folder.path().join("place");
        std::fs::create_dir(&root).unwrap();
        let plan =
            Plan { repetitions: 2, ..plan(vec![point(Part::SequentialN1, 2), point(Part::Metadata3k, 1)]) };
        let sampler = Sampler::start().unwrap();
        let cancel = AtomicBool::new(false);
        let told = Cell::new(0);
        let run = |journal: &mut Journal, stop_at: usize| {
            let place = Place::make(&root, false).unwrap();
            let tell = |now: &Told| {
                told.set(told.get() + 1);
                cancel.store(now.done >= stop_at, Relaxed);
                assert_eq!(now.all, 4);
            };
            let machines = Alone { place: &place, cancel: &cancel, sampler: Some(&sampler) };
            let mut sweep = Sweep {
                plan: &plan,
                machines: &machines,
                alone: Some(&machines),
                journal,
                cancel: &cancel,
                tell: &tell,
            };
            sweep.run()
        };
        let mut journal = Journal::begin(&path, &identity()).unwrap();
        assert!(matches!(run(&mut journal, 2), Err(BenchError::Stopped)));
        assert_eq!(journal.progress.done.len(), 2, "each point once, not the first one twice");
        drop(journal);
        cancel.store(false, Relaxed);
        told.set(0);
        let mut journal = Journal::resume(&path, &identity()).unwrap();
        run(&mut journal, usize::MAX).unwrap();
        assert_eq!(told.get(), 3, "two steps and the end");
        let measured = journal.progress.measured();
        let repetitions: u32 = measured.iter().map(|one| one.figure.repetition).sum();
        assert_eq!((measured.len(), repetitions), (2 * (2 + 5), 3 * (2 + 5)));
        assert!(std::fs::read_dir(&root).unwrap().next().is_none());
    }
}
