//! How a sweep is made to fit into a time.
//!
//! What is wanted is every part with every number of threads, three times, with phases of 30 s. When that takes too long,
//! 1. phases get shorter, down to 2 s;
//! 2. numbers of threads between the fewest and the most go, every second one, until three are left;
//! 3. parts go in the order of [`Part::DISPENSABLE`];
//! 4. phases get shorter still, down to a quarter of a second;
//! 5. what does not fit then is refused, with the time it would take.
//!
//! Numbers of threads and parts that somebody named are kept, and repetitions are never fewer than asked for: without them nothing can be told
//! about how sure a figure is.

use super::part::Part;
use super::plan::{Amount, Plan, Point, Tool};
use super::probe::{Probe, Rates, Wanted};
use crate::BenchError;
use crate::workload::Rules;
use std::time::Duration;

/// Longest phase, seconds.
const PHASE_MAX: f64 = 30.0;
/// A phase is made this short before anything is left out, seconds.
const PHASE_GOOD: f64 = 2.0;
/// Shortest phase, seconds.
const PHASE_MIN: f64 = 0.25;
/// Numbers of threads that stay when they were not asked for.
const THREADS_LEFT: usize = 3;
/// Part of the free space that files may take, percent.
const ROOM_PERCENT: u64 = 40;
/// Of a phase of random requests, the part that laying out their files may take.
const LAY_OUT_PART: f64 = 0.5;
/// Steps of a metadata part that take as long as a phase, all together: stat and remove are short beside create.
const METADATA_PHASES: f64 = 3.0;
/// Bytes and files of a thread are multiples of these.
const BYTES_STEP: u64 = 1 << 20;
const FILES_STEP: u64 = 10;
/// LIMIT: files of one thread.
const FILES_MAX: u64 = 1_000_000;

/// What somebody asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// What the run may take.
    pub budget: Duration,
    /// What of that is not for the sweep: trial and ceilings.
    pub aside: Duration,
    /// Which parts; nothing for all that fit.
    pub parts: Option<Vec<Part>>,
    /// Which numbers of threads; nothing for powers of two up to four times the processors, and to where every agent has a thread.
    pub threads: Option<Vec<usize>>,
    /// Processors of all machines.
    pub processors: usize,
    /// Agents that measure; 0 for this machine alone.
    pub agents: usize,
    /// How it is measured.
    pub rules: Rules,
    /// Levels to fill to, percent.
    pub fill_percents: Vec<u8>,
    /// Programs beside our own workloads.
    pub tools: Vec<Tool>,
}

/// LIMIT: numbers of threads that are chosen here, not by a person: of each machine, and of all together.
const THREADS_MAX: usize = 64;
const ALL_THREADS_MAX: usize = 4096;

impl Wish {
    /// The parts that were asked for, or all.
    pub fn all_parts(&self) -> Vec<Part> {
        let mut parts = self.parts.clone().unwrap_or_else(|| Part::ALL.to_vec());
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// The numbers of threads that were asked for, or powers of two up to four times the processors, and to where every agent has one, ascending.
    pub fn all_threads(&self) -> Vec<usize> {
        let limit = (THREADS_MAX * self.agents.max(1)).min(ALL_THREADS_MAX);
        let most = (self.processors * 4).clamp(4, limit).max(self.agents.next_power_of_two());
        let powers = (0..usize::BITS).map(|bit| 1 << bit).take_while(|power| *power <= most);
        let mut threads = self.threads.clone().unwrap_or_else(|| powers.collect());
        threads.sort_unstable();
        threads.dedup();
        threads
    }

    /// The numbers of threads that a trial is made with.
    pub fn trial_threads(&self) -> Vec<usize> {
        let all = self.all_threads();
        let mut ends: Vec<usize> = all.first().into_iter().chain(all.last()).copied().collect();
        ends.dedup();
        ends
    }

    /// The trials that are needed.
    pub fn trials(&self) -> Wanted {
        let parts = self.all_parts();
        Wanted {
            data: parts.iter().any(|part| !part.is_metadata()) || !self.fill_percents.is_empty(),
            empty_files: parts.iter().any(|part| part.file_bytes() == Some(0)),
            full_files: parts.iter().any(|part| part.file_bytes().is_some_and(|bytes| bytes > 0)),
        }
    }

    /// The plan for a place of which `probe` is known.
    ///
    /// # Errors
    /// [`BenchError::Plan`] when it does not fit, with the budget that would do.
    pub fn plan(&self, probe: &Probe) -> Result<Plan, BenchError> {
        let mut draft = Draft {
            wish: self,
            probe,
            parts: self.all_parts(),
            threads: self.all_threads(),
            phase: PHASE_MAX,
            left_out: Vec::new(),
        };
        let room = (self.budget.saturating_sub(self.aside)).as_secs_f64();
        draft.fit(room)?;
        let mut shortened = Vec::new();
        if draft.phase < PHASE_MAX {
            shortened.push(format!("phases to {:.2} s (30 s are wanted)", draft.phase));
        }
        let mut left_out = draft.left_out.clone();
        if !probe.has_direct {
            left_out.push("direct I/O: this file system does not do it (O_DIRECT), so content is written with fsync and read after its pages were evicted".into());
        }
        if !probe.can_drop {
            let whose = if self.agents > 0 { "all machines" } else { "this machine" };
            left_out
                .push(format!("dropping the caches of {whose} between phases: not permitted or not wanted"));
        }
        let mut plan = draft.plan();
        (plan.shortened, plan.left_out) = (shortened, left_out);
        plan.check()?;
        Ok(plan)
    }
}

/// A plan on its way.
struct Draft<'a> {
    wish: &'a Wish,
    probe: &'a Probe,
    parts: Vec<Part>,
    threads: Vec<usize>,
    phase: f64,
    left_out: Vec<String>,
}

impl Draft<'_> {
    fn fit(&mut self, room: f64) -> Result<(), BenchError> {
        if self.shorten(PHASE_GOOD, room) {
            return Ok(());
        }
        self.thin_threads(room);
        self.drop_parts(room);
        if self.shorten(PHASE_GOOD, room) || self.shorten(PHASE_MIN, room) {
            return Ok(());
        }
        let needed = self.seconds() + self.wish.aside.as_secs_f64();
        Err(BenchError::Plan(format!(
            "{} parts with {} numbers of threads, {} times, take {needed:.0} s at least here, and the budget is {:.0} s: \
             give more with --budget, or name fewer with --parts and --threads",
            self.parts.len(),
            self.threads.len(),
            self.wish.rules.repetitions,
            self.wish.budget.as_secs_f64()
        )))
    }

    /// Finds the longest phase from `least` on with which it fits.
    fn shorten(&mut self, least: f64, room: f64) -> bool {
        self.phase = least;
        if self.seconds() > room {
            return false;
        }
        let (mut fits, mut too_long) = (least, PHASE_MAX);
        self.phase = PHASE_MAX;
        if self.seconds() <= room {
            return true;
        }
        for _ in 0..30 {
            self.phase = (fits + too_long) / 2.0;
            if self.seconds() <= room { fits = self.phase } else { too_long = self.phase }
        }
        self.phase = fits;
        true
    }

    fn thin_threads(&mut self, room: f64) {
        if self.wish.threads.is_some() {
            return;
        }
        let before = self.threads.clone();
        self.phase = PHASE_GOOD;
        while self.seconds() > room && self.threads.len() > THREADS_LEFT {
            let last = self.threads.len() - 1;
            let kept = |at: &usize| at.is_multiple_of(2) || *at == last;
            self.threads = (0..=last).filter(kept).map(|at| self.threads[at]).collect();
        }
        let gone: Vec<String> =
            before.iter().filter(|one| !self.threads.contains(one)).map(usize::to_string).collect();
        if !gone.is_empty() {
            self.left_out.push(format!("{} threads: no time", gone.join(", ")));
        }
    }

    fn drop_parts(&mut self, room: f64) {
        if self.wish.parts.is_some() {
            return;
        }
        self.phase = PHASE_GOOD;
        for part in Part::DISPENSABLE {
            if self.seconds() <= room {
                return;
            }
            self.parts.retain(|kept| *kept != part);
            self.left_out.push(format!("{part}: no time"));
        }
    }

    fn seconds(&self) -> f64 {
        self.plan().expected_seconds()
    }

    fn plan(&self) -> Plan {
        let points =
            self.parts.iter().flat_map(|part| self.threads.iter().map(|threads| self.point(*part, *threads)));
        let most = self.threads.last().copied().unwrap_or(1);
        let is_filling = !self.wish.fill_percents.is_empty();
        let fill_parts = [Part::SequentialNN, Part::Random4k].into_iter().filter(|_| is_filling);
        Plan {
            points: points.collect(),
            repetitions: self.wish.rules.repetitions,
            is_direct: self.probe.has_direct,
            drops_caches: self.probe.can_drop,
            memory_bytes: self.wish.rules.memory_bytes,
            fill_percents: self.wish.fill_percents.clone(),
            fill_points: fill_parts.map(|part| self.point(part, most)).collect(),
            tools: self.wish.tools.clone(),
            budget_seconds: self.wish.budget.as_secs_f64(),
            shortened: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// What `threads` threads do in phases of the present length, and what that takes.
    fn point(&self, part: Part, threads: usize) -> Point {
        let rates = between(&self.probe.rates, threads);
        let phase = self.phase;
        let room = self.probe.room.bytes / 100 * ROOM_PERCENT;
        let mut amount = Amount { bytes: 0, files: 0, seconds: phase };
        let expected_seconds = if let Some(file_bytes) = part.file_bytes() {
            let each = if file_bytes == 0 { rates.empty_file_seconds } else { rates.full_file_seconds };
            let files = phase * METADATA_PHASES / each.max(1e-9) / threads as f64;
            let room = (room / file_bytes.max(1)).min(self.probe.room.files / 100 * ROOM_PERCENT);
            let most = (room / threads as u64).min(FILES_MAX);
            amount.files = rounded(files, FILES_STEP, most);
            amount.files as f64 * threads as f64 * each + 5.0 * rates.aside_seconds
        } else {
            let (write, read) = (1.0 / rates.write_bytes.max(1.0), 1.0 / rates.read_bytes.max(1.0));
            let most = room.min(self.wish.rules.enough_bytes().max(BYTES_STEP)) / threads as u64;
            let (bytes, phases) = if part.is_random() {
                (phase * LAY_OUT_PART / write, 2.0 * phase)
            } else {
                (2.0 * phase / (write + read), 0.0)
            };
            amount.bytes = rounded(bytes / threads as f64, BYTES_STEP, most);
            let all = amount.bytes as f64 * threads as f64;
            let moved = if part.is_random() { all * write } else { all * (write + read) };
            moved + phases + 3.0 * rates.aside_seconds
        };
        Point { part, threads, amount, expected_seconds }
    }
}

/// Down to a multiple of `step` that is no more than `most`, but one step at least. Beyond 16 steps in powers of two, so that two plans for one
/// place are more often the same than not.
fn rounded(amount: f64, step: u64, most: u64) -> u64 {
    let steps = (amount.min(most as f64) / step as f64).max(1.0) as u64;
    let whole = if steps > 16 { (steps >> (steps.ilog2() - 2)) << (steps.ilog2() - 2) } else { steps };
    whole * step
}

/// Rates with `threads` threads, in between those of the trial on a scale of powers of two.
fn between(rates: &[Rates], threads: usize) -> Rates {
    let (Some(few), Some(many)) = (rates.first(), rates.last()) else {
        unreachable!("a trial has one number of threads at least");
    };
    let scale = |threads: usize| (threads as f64).log2();
    let width = scale(many.threads) - scale(few.threads);
    let at = if width > 0.0 { ((scale(threads) - scale(few.threads)) / width).clamp(0.0, 1.0) } else { 0.0 };
    let mix = |of: fn(&Rates) -> f64| of(few) * (1.0 - at) + of(many) * at;
    Rates {
        threads,
        write_bytes: mix(|rates| rates.write_bytes),
        read_bytes: mix(|rates| rates.read_bytes),
        empty_file_seconds: mix(|rates| rates.empty_file_seconds),
        full_file_seconds: mix(|rates| rates.full_file_seconds),
        aside_seconds: mix(|rates| rates.aside_seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Room;

    fn wish(budget: u64) -> Wish {
        Wish {
            budget: Duration::from_secs(budget),
            aside: Duration::from_secs(10),
            parts: None,
            threads: None,
            processors: 8,
            agents: 0,
            rules: Rules { repetitions: 3, drops_caches: true, memory_bytes: 16 << 30 },
            fill_percents: Vec::new(),
            tools: Vec::new(),
        }
    }

    fn probe() -> Probe {
        let rates = |threads: usize| Rates {
            threads,
            write_bytes: 5e8 * threads as f64,
            read_bytes: 1e9 * threads as f64,
            empty_file_seconds: 1e-4,
            full_file_seconds: 2e-4,
            aside_seconds: 0.05,
        };
        Probe {
            rates: vec![rates(1), rates(32)],
            has_direct: true,
            can_drop: true,
            room: Room { bytes: 1 << 40, files: u64::MAX },
            seconds: 2.0,
        }
    }

    #[test]
    fn with_enough_time_everything_is_done_as_long_as_wanted() {
        let plan = wish(100_000).plan(&probe()).unwrap();
        assert_eq!((plan.parts().len(), plan.threads()), (11, vec![1, 2, 4, 8, 16, 32]));
        assert!(plan.shortened.is_empty() && plan.left_out.is_empty(), "{plan:?}");
        assert!(plan.points.iter().all(|point| point.amount.seconds == PHASE_MAX));
    }

    #[test]
    fn phases_get_shorter_first_then_threads_go_then_parts_then_phases_get_shorter_still() {
        let mut seen = Vec::new();
        for budget in [3000, 1300, 800, 300, 120] {
            let plan = wish(budget).plan(&probe()).unwrap();
            let expected = plan.expected_seconds();
            assert!(expected <= budget as f64 - 10.0, "{expected} s do not fit into {budget} s");
            seen.push((
                plan.threads().len(),
                plan.parts().len(),
                plan.points[0].amount.seconds >= PHASE_GOOD,
            ));
            assert_eq!(plan.repetitions, 3);
        }
        assert_eq!(seen[0], (6, 11, true), "{seen:?}");
        assert!(seen.windows(2).all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 <= pair[0].1), "{seen:?}");
        assert!(seen[2].0 < 6 && seen[3].1 < 11, "{seen:?}");
        assert_eq!((seen[4].0, seen[4].1), (3, 3), "{seen:?}");
    }

    #[test]
    fn what_somebody_named_is_kept_or_refused_with_the_time_it_takes() {
        let asked = |budget| Wish {
            parts: Some(vec![Part::Metadata3kShared, Part::Random1k]),
            threads: Some(vec![3, 1, 7]),
            ..wish(budget)
        };
        let plan = asked(40).plan(&probe()).unwrap();
        assert_eq!(
            (plan.parts(), plan.threads()),
            (vec![Part::Random1k, Part::Metadata3kShared], vec![1, 3, 7])
        );
        let refused = asked(12).plan(&probe()).unwrap_err().to_string();
        assert!(
            refused.contains("--budget") && refused.contains("2 parts with 3 numbers of threads"),
            "{refused}"
        );
    }

    #[test]
    fn what_the_file_system_cannot_do_is_left_out_and_said() {
        let plan = wish(1000).plan(&Probe { has_direct: false, can_drop: false, ..probe() }).unwrap();
        assert!(!plan.is_direct && !plan.drops_caches);
        assert!(plan.left_out.iter().any(|text| text.contains("O_DIRECT")), "{:?}", plan.left_out);
        let small =
            wish(1000).plan(&Probe { room: Room { bytes: 1 << 30, files: u64::MAX }, ..probe() }).unwrap();
        assert!(small.bytes_max() <= (1 << 30) / 100 * ROOM_PERCENT, "{}", small.bytes_max());
        let few = Room { bytes: 1 << 40, files: 100_000 };
        let few = wish(1000).plan(&Probe { room: few, ..probe() }).unwrap();
        assert!(few.files_max() <= 100_000 / 100 * ROOM_PERCENT, "{} files", few.files_max());
    }

    #[test]
    fn many_machines_have_more_threads_and_none_of_them_is_idle_with_the_most() {
        let most = |processors, agents| {
            let wish = Wish { processors, agents, ..wish(100) };
            wish.all_threads().last().copied().unwrap()
        };
        assert_eq!((most(8, 0), most(1, 0), most(400, 0)), (32, 4, 64));
        assert_eq!((most(400, 50), most(100_000, 1024)), (1024, 4096));
        assert_eq!(most(1, 5), 8, "every agent has one");
    }

    #[test]
    fn amounts_are_round() {
        assert_eq!(rounded(3.7e6, BYTES_STEP, u64::MAX), 3 << 20);
        assert_eq!(rounded(1.0, BYTES_STEP, u64::MAX), 1 << 20);
        assert_eq!(rounded(1e9, BYTES_STEP, u64::MAX), 896 << 20);
        assert_eq!(rounded(1e9, BYTES_STEP, 100 << 20), 96 << 20);
    }
}
