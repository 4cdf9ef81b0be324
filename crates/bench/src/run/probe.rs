//! A short trial of a place, so that a plan can be made: what each phase will take, roughly.

use crate::BenchError;
use crate::data::{Action, DataPlan, Files, Order};
use crate::figure::Figure;
use crate::metadata::{MetadataPlan, Step};
use crate::place::Room;
use crate::task::{Machines, Task};
use crate::workload::{Rules, Workload};
use std::time::{Duration, Instant};

/// A trial is repeated with four times as much until it takes this long, or as long as the trial may take in all.
const ENOUGH: Duration = Duration::from_millis(250);
/// Bytes of each thread in the first trial, and at most.
const BYTES: (u64, u64) = (4 << 20, 1 << 30);
/// Files of each thread in the first trial, and at most.
const FILES: (u64, u64) = (32, 8192);
/// Part of the free space that a trial may take: one of so many.
const ROOM_PART: u64 = 10;

/// What some number of threads did in the trial, all of them together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Threads.
    pub threads: usize,
    /// Sequential writes, bytes per second; 0 if no part needs it.
    pub write_bytes: f64,
    /// Sequential reads, bytes per second.
    pub read_bytes: f64,
    /// Seconds that one empty file takes, from create to remove over all steps; 0 if no part needs it.
    pub empty_file_seconds: f64,
    /// The same for a file of 4 KiB.
    pub full_file_seconds: f64,
    /// Seconds beside the timed ones for each phase: caches dropped, files opened and removed.
    pub aside_seconds: f64,
}

/// What is known of a place before the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// With the fewest and the most threads of the plan, or just one of them.
    pub rates: Vec<Rates>,
    /// Whether files can be opened past the page cache, on every machine.
    pub has_direct: bool,
    /// Whether caches of all machines can be dropped.
    pub can_drop: bool,
    /// Free space, bytes.
    pub room: Room,
    /// Seconds that the trial took.
    pub seconds: f64,
}

/// Which trials are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Reads and writes.
    pub data: bool,
    /// Empty files.
    pub empty_files: bool,
    /// Files with content.
    pub full_files: bool,
}

/// One trial.
struct Trial<'a> {
    machines: &'a dyn Machines,
    rules: Rules,
    is_direct: bool,
    limit: Duration,
    room: Room,
}

/// Tries `threads` (fewest and most are enough) on `machines`, for `limit` at most or a little more.
///
/// # Errors
/// What a call answers.
pub fn probe(
    machines: &dyn Machines,
    threads: &[usize],
    wanted: Wanted,
    rules: Rules,
    limit: Duration,
) -> Result<Probe, BenchError> {
    let begun = Instant::now();
    let has_direct = machines.have_direct()?;
    let room = machines.room()?;
    let can_drop = rules.drops_caches && machines.carry_out(&Task::DropCaches)?.has_dropped;
    let rules = Rules { repetitions: 1, ..rules };
    let trials = threads.len() as u32
        * (u32::from(wanted.data) + u32::from(wanted.empty_files) + u32::from(wanted.full_files));
    let trial = Trial { machines, rules, is_direct: has_direct, limit: limit / trials.max(1), room };
    let rates = threads.iter().map(|threads| trial.rates(*threads, wanted)).collect::<Result<_, _>>()?;
    Ok(Probe { rates, has_direct, can_drop, room, seconds: begun.elapsed().as_secs_f64() })
}

impl Trial<'_> {
    fn rates(&self, threads: usize, wanted: Wanted) -> Result<Rates, BenchError> {
        let mut aside: f64 = 0.0;
        let (mut write_bytes, mut read_bytes) = (0.0, 0.0);
        if wanted.data {
            let (figures, beside) = self.grown(BYTES, |bytes| self.data(threads, bytes))?;
            aside = aside.max(beside);
            let rate = |at: usize| figures.get(at).map_or(0.0, Figure::bytes_per_second);
            (write_bytes, read_bytes) = (rate(0), rate(1));
        }
        let mut seconds = [0.0; 2];
        for (at, is_wanted) in [wanted.empty_files, wanted.full_files].into_iter().enumerate() {
            if is_wanted {
                let size = at as u64 * 4096;
                let (figures, beside) = self.grown(FILES, |files| self.metadata(threads, files, size))?;
                aside = aside.max(beside);
                let each = |figure: &Figure| figure.seconds / figure.operations.max(1) as f64;
                seconds[at] = figures.iter().map(each).sum();
            }
        }
        let [empty_file_seconds, full_file_seconds] = seconds;
        Ok(Rates {
            threads,
            write_bytes,
            read_bytes,
            empty_file_seconds,
            full_file_seconds,
            aside_seconds: aside,
        })
    }

    /// Repeats `run` with more until it takes long enough; its last figures, and seconds beside them for each.
    fn grown(
        &self,
        (least, most): (u64, u64),
        run: impl Fn(u64) -> Result<Vec<Figure>, BenchError>,
    ) -> Result<(Vec<Figure>, f64), BenchError> {
        let mut amount = least;
        let all = Instant::now();
        loop {
            let begun = Instant::now();
            let figures = run(amount)?;
            let timed: f64 = figures.iter().map(|figure| figure.seconds).sum();
            let taken = begun.elapsed();
            let is_enough = taken >= ENOUGH || amount >= most || all.elapsed() + 4 * taken > self.limit;
            if is_enough {
                let beside = (taken.as_secs_f64() - timed).max(0.0) / figures.len().max(1) as f64;
                return Ok((figures, beside));
            }
            amount = (amount * 4).min(most);
        }
    }

    fn data(&self, threads: usize, bytes: u64) -> Result<Vec<Figure>, BenchError> {
        let room = (self.room.bytes / ROOM_PART / threads.max(1) as u64) >> 20 << 20;
        let plan = DataPlan {
            threads,
            files: Files::PerThread,
            order: Order::Sequential,
            record_bytes: 1 << 20,
            thread_bytes: bytes.min(room).max(1 << 20),
            depth: 1,
            is_direct: self.is_direct,
            counts_fsync: true,
            time_max: None,
        };
        Workload { machines: self.machines, rules: self.rules, tell: &|_, _| () }
            .data(&plan, &[Action::Write, Action::Read])
    }

    fn metadata(
        &self,
        threads: usize,
        thread_files: u64,
        file_bytes: u64,
    ) -> Result<Vec<Figure>, BenchError> {
        let plan = MetadataPlan {
            threads,
            thread_files,
            file_bytes,
            is_shared: false,
            looks_at_neighbour: true,
            depth: 0,
            branches: 1,
            has_fsync: false,
        };
        Workload { machines: self.machines, rules: self.rules, tell: &|_, _| () }.metadata(&plan, &Step::ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use crate::task::Alone;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_trial_tells_rates_and_leaves_nothing() {
        let root = crate::test_disk::folder();
        let place = Place::make(root.path(), false).unwrap();
        let rules = Rules { repetitions: 3, drops_caches: false, memory_bytes: 1 };
        let cancel = AtomicBool::new(false);
        let wanted = Wanted { data: true, empty_files: true, full_files: false };
        let machines = Alone { place: &place, cancel: &cancel, sampler: None };
        let told = probe(&machines, &[1, 2], wanted, rules, Duration::from_millis(400)).unwrap();
        assert_eq!(told.rates.iter().map(|rates| rates.threads).collect::<Vec<_>>(), [1, 2]);
        for rates in &told.rates {
            assert!(rates.write_bytes > 0.0 && rates.read_bytes > 0.0 && rates.empty_file_seconds > 0.0);
            assert!(rates.full_file_seconds == 0.0 && rates.aside_seconds > 0.0);
        }
        assert!(told.room.bytes > 0 && !told.can_drop);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
