//! `ashlar drill thrash`: rounds in which several things fail at once that nobody has chosen.
//!
//! ```text
//!  round:  all copies there ── load ┬─ a fails ────────── a right ─┬─ load until all copies are there ── every file compared ── copies compared
//!                                   └──── b fails ─ c fails ─ b, c ┘
//! ```
//!
//! What fails when follows from the seed and the number of the round ([`plan`]); what programs see of it, from the moment. So a round that failed can be run again by itself, and is another one all the same.

mod fault;
mod plan;
mod report;

use super::broken::{Broken, Repair};
use super::ledger::Diary;
use super::make_lab::OwnLab;
use super::outcome::{Outcome, what_is_wrong};
use super::place::Place;
use super::run::{Drill, Watch, keep_a_diary, node_text, told_by_signals, write};
use crate::cli::DrillThrashArgs;
use crate::drill::load::Load;
use crate::lab::{Lab, manager_beside};
use crate::terminal::{say, shown};
use anyhow::{Result, bail};
use ashlar_env::Env;
use plan::{Planned, Shape};
use report::{Report, Round};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// For how long nothing happens before a round, and after it.
const CALM: Duration = Duration::from_secs(2);
/// For how long all copies must be there: who has just gone is missed after 5 s.
const SETTLED: Duration = Duration::from_secs(7);
/// Time between two looks what is to be put right.
const TURN: Duration = Duration::from_millis(50);
/// What is put right for less long than this before the next thing fails was hardly right: who has gone is missed after 5 s.
const BETWEEN: Duration = Duration::from_secs(5);
/// LIMIT: panics of one log that are told one by one.
const TOLD_MAX: usize = 5;
/// LIMIT: for how long a scrub may take.
const SCRUB_MAX: Duration = Duration::from_secs(600);

/// Thrashes a lab and writes a report; tells whether all rounds were survived, and there was one.
pub fn thrash(args: &DrillThrashArgs) -> Result<bool> {
    let is_told_to_stop = told_by_signals()?;
    let own = args.make_lab.then(|| OwnLab::make(&args.lab, args.load.copies)).transpose()?;
    let place = Place::lab(&args.lab)?;
    let (ledger, diary) = keep_a_diary(&place, &args.load, &args.report)?;
    let drill = Drill::begin(place, &args.load, diary.clone(), is_told_to_stop)?;
    let seed = args.seed.unwrap_or_else(|| Env::os().entropy.next_u64() >> 32);
    say(format_args!("seed {seed}"));
    let mut report = Report {
        cluster: drill.place.cluster.clone(),
        place: drill.place.name(),
        at: Env::os().clock.now().utc(),
        nodes: nodes(&drill),
        workers: drill.count,
        has_two_mounts: drill.place.mounts[0] != drill.place.mounts[1],
        copies: args.load.copies,
        weak: drill.weak.clone(),
        limits: drill.limits,
        seed,
        ledger: shown(&ledger),
        ledger_trouble: None,
        took: Duration::ZERO,
        rounds: Vec::new(),
    };
    let logs = Logs::now(&drill);
    let mut thrash = Thrash { drill, seed, logs };
    let outcome = thrash.rounds(args, &mut report, &diary);
    if let (Err(error), Some(own)) = (&outcome, &own) {
        own.keep();
        say(format_args!("the lab is kept, after {error:#}"));
    }
    outcome?;
    thrash.drill.clear(report.is_good());
    say(format_args!("{}; the report is {}", report.summary(), shown(&args.report)));
    match own {
        Some(own) if report.is_good() => own.remove()?,
        Some(own) => {
            own.keep();
            say(format_args!("the lab is kept; `ashlar lab down --dir {}` removes it", shown(&args.lab)));
        }
        None => {}
    }
    Ok(report.is_good())
}

fn nodes(drill: &Drill) -> Vec<String> {
    let nodes = drill.place.asker.ask(&["node", "list", "--json"]).unwrap_or_default();
    nodes.as_array().into_iter().flatten().map(node_text).collect()
}

fn write_report(args: &DrillThrashArgs, report: &mut Report, diary: &Diary) -> Result<()> {
    report.ledger_trouble = diary.trouble();
    write(&args.report, &report.text())?;
    match &args.load.json {
        Some(path) => write(path, &serde_json::to_string_pretty(&report.object())?),
        None => Ok(()),
    }
}

struct Thrash {
    drill: Drill,
    seed: u64,
    logs: Logs,
}

impl Thrash {
    fn rounds(&mut self, args: &DrillThrashArgs, report: &mut Report, diary: &Diary) -> Result<()> {
        let begun = Instant::now();
        let most = Duration::from_secs(60 * u64::from(args.minutes));
        let last = args.first_round.saturating_add(args.rounds - 1);
        for number in args.first_round..=last {
            if begun.elapsed() >= most || self.drill.is_told_to_stop.load(Relaxed) {
                break;
            }
            let round = match self.round(number) {
                Ok(Some(round)) => round,
                // Told to stop before it began.
                Ok(None) => break,
                Err(error) => Round::not_run(number, &error),
            };
            // One that somebody has ended says nothing if nothing was wrong until then.
            let is_ended = self.drill.is_told_to_stop.load(Relaxed);
            if is_ended && round.is_good_but_for_the_end() {
                break;
            }
            say(round.line());
            let is_over = !round.wrong.is_empty();
            report.took = begun.elapsed();
            report.rounds.push(round);
            // Each time: nothing is known of a thrash that is killed, else.
            write_report(args, report, diary)?;
            if is_over || is_ended {
                break;
            }
        }
        write_report(args, report, diary)
    }

    /// One round, unless it is told to stop before.
    fn round(&mut self, number: u32) -> Result<Option<Round>> {
        let Some(lab) = &self.drill.place.lab else { bail!("there is no lab") };
        let planned = plan::round(self.seed, number, &Shape::of(lab));
        if self.drill.wait_until_full(Instant::now(), Duration::ZERO).is_none() {
            if self.drill.is_told_to_stop.load(Relaxed) {
                return Ok(None);
            }
            bail!("not all copies were there before it");
        }
        let name = format!("round {number}");
        self.drill.calls.mark(&name, "load");
        let load = Load::start(std::mem::take(&mut self.drill.workers))?;
        self.drill.pause(CALM);
        let mut outcome = Outcome { before: self.drill.calls.take(), ..Outcome::default() };
        let watch = Watch::start(&self.drill.place)?;
        let begun = Instant::now();
        self.drill.calls.mark(&name, "begins");
        let (done, broken_for) = self.fail(&name, &planned, &mut outcome);
        outcome.lasted = begun.elapsed();
        self.drill.calls.mark(&name, "was put right");
        outcome.full_after = self.drill.wait_until_full(Instant::now(), SETTLED);
        self.drill.pause(CALM);
        outcome.worst = watch.end();
        let workers = load.stop(self.drill.limits.redundant_within);
        if workers.len() < self.drill.count {
            (outcome.unfinished, outcome.unfinished_for) = self.drill.calls.under_way();
        }
        outcome.seen = self.drill.calls.take();
        (self.drill.workers, outcome.verified) = self.drill.verify(workers)?;
        if !self.drill.is_told_to_stop.load(Relaxed) && outcome.full_after.is_some() {
            // One copy of each was read: the others are compared with it.
            let scrubbed = self.drill.place.asker.run_for(&["scrub"], SCRUB_MAX);
            outcome.troubles.extend(scrubbed.err().map(|error| format!("after a scrub: {error:#}")));
        }
        outcome.is_stopped = self.drill.is_told_to_stop.load(Relaxed);
        outcome.troubles.extend(self.logs.new_panics());
        // Whatever has failed may have been all there is of something.
        let allowed = self.drill.limits.stall + broken_for;
        let wrong = what_is_wrong(allowed, &outcome, &self.drill.limits);
        Ok(Some(Round { number, done, allowed, outcome, wrong }))
    }

    /// Has it all happen, and puts all right; tells what was done, and for how long something was broken at the most.
    fn fail(&mut self, name: &str, planned: &[Planned], outcome: &mut Outcome) -> (Vec<String>, Duration) {
        let Drill { place, is_told_to_stop, calls, .. } = &mut self.drill;
        let Some(lab) = &mut place.lab else { return (Vec::new(), Duration::ZERO) };
        let mark = |what: &str| calls.mark(name, what);
        let mut course = Course::new(lab, &mark);
        for one in planned {
            while Instant::now() < course.begun + one.at && !is_told_to_stop.load(Relaxed) {
                course.turn();
            }
            if is_told_to_stop.load(Relaxed) {
                break;
            }
            course.begin(one);
        }
        while !course.under.is_empty() {
            if is_told_to_stop.load(Relaxed) {
                course.under.iter_mut().for_each(|under| under.until = Duration::ZERO);
            }
            course.turn();
        }
        course.start_all(planned);
        outcome.troubles.append(&mut course.troubles);
        let broken: Vec<_> = course.broken.iter().map(|(_, from, to)| (*from, *to)).collect();
        // What began first comes first, however long it lasted.
        course.done.sort_by_key(|(from, _)| *from);
        let done = std::mem::take(&mut course.done).into_iter().map(|(_, what)| what).collect();
        (done, longest(&broken))
    }
}

/// The longest time without a moment in which nothing was broken, of intervals.
fn longest(broken: &[(Duration, Duration)]) -> Duration {
    let mut sorted = broken.to_vec();
    sorted.sort_unstable();
    let mut longest = Duration::ZERO;
    let mut current: Option<(Duration, Duration)> = None;
    for (from, to) in sorted {
        // In a moment between two nobody takes over, and is known to have.
        current = match current {
            Some((first, last)) if from <= last + BETWEEN => Some((first, last.max(to))),
            _ => Some((from, to)),
        };
        longest = longest.max(current.map_or(Duration::ZERO, |(first, last)| last - first));
    }
    longest
}

/// How long the logs of a lab were.
struct Logs(Vec<(PathBuf, u64)>);

impl Logs {
    fn now(drill: &Drill) -> Logs {
        let Some(lab) = &drill.place.lab else { return Logs(Vec::new()) };
        let logs = lab.record.nodes.iter().map(|node| lab.places.log(&node.name));
        Logs(logs.map(|log| (log.clone(), log.metadata().map_or(0, |known| known.len()))).collect())
    }

    /// What they say of threads that have panicked since the last time: nobody else may have noticed.
    fn new_panics(&mut self) -> Vec<String> {
        let mut panics = Vec::new();
        for (log, len) in &mut self.0 {
            let bytes = fs::read(&*log).unwrap_or_default();
            let new = bytes.get(usize::try_from(*len).unwrap_or(usize::MAX)..).unwrap_or_default();
            let text = String::from_utf8_lossy(new).into_owned();
            let lines = text.lines().filter(|line| line.contains("panicked at")).take(TOLD_MAX);
            panics.extend(lines.map(|line| format!("{}: {line}", shown(log))));
            *len = bytes.len() as u64;
        }
        panics
    }
}

/// What has been broken, and when that ends.
struct Under {
    node: String,
    what: String,
    from: Duration,
    until: Duration,
    repairs: Vec<Repair>,
}

/// A round under way.
struct Course<'l> {
    lab: &'l mut Lab,
    /// Into the ledger: what is done at the moment, also if it never ends.
    mark: &'l dyn Fn(&str),
    begun: Instant,
    under: Vec<Under>,
    /// What was done, with the times at which it was, and when it began.
    done: Vec<(Duration, String)>,
    /// Which node, and from when to when.
    broken: Vec<(String, Duration, Duration)>,
    troubles: Vec<String>,
}

impl Course<'_> {
    fn new<'l>(lab: &'l mut Lab, mark: &'l dyn Fn(&str)) -> Course<'l> {
        let (under, done, broken, troubles) = Default::default();
        Course { lab, mark, begun: Instant::now(), under, done, broken, troubles }
    }

    fn begin(&mut self, planned: &Planned) {
        let from = self.begun.elapsed();
        let node = &planned.node;
        if self.lab.process(node).is_none() {
            self.troubles.push(format!("{node} had ended before anything was done to it"));
            return;
        }
        (self.mark)(&format!("{node}: {:?} for {:.1} s", planned.fault, planned.lasts.as_secs_f64()));
        let mut broken = Broken::new(self.lab);
        let made = fault::make(&mut broken, planned);
        let repairs = broken.into_repairs();
        let until = self.begun.elapsed() + planned.lasts;
        let what = match made {
            Ok(what) => what,
            // What was made of it is put right all the same.
            Err(error) => {
                self.troubles.push(format!("{node}: could not be made: {error:#}"));
                format!("{node}: not made")
            }
        };
        self.under.push(Under { node: node.clone(), what, from, until, repairs });
    }

    /// Puts right what has lasted for long enough, and rests.
    // LIMIT: one after the other. What takes long (a disk that is mounted anew) has the rest last longer; the times that are told are those that it was.
    fn turn(&mut self) {
        let now = self.begun.elapsed();
        let (over, under): (Vec<Under>, Vec<Under>) =
            std::mem::take(&mut self.under).into_iter().partition(|one| one.until <= now);
        self.under = under;
        for one in over {
            (self.mark)(&format!("{}: is put right", one.what));
            if let Err(error) = Broken::again(self.lab, one.repairs).put_right_and_go_on() {
                self.troubles.push(format!("{}: could not be put right: {error:#}", one.what));
            }
            let to = self.begun.elapsed();
            self.broken.push((one.node, one.from, to));
            let seconds = [one.from, to].map(|at| at.as_secs_f64());
            self.done.push((one.from, format!("{:.1} to {:.1} s: {}", seconds[0], seconds[1], one.what)));
        }
        std::thread::sleep(TURN);
    }

    /// Starts those again that have ended because of others, as whoever runs them does. To which nothing was done has no reason to end.
    fn start_all(&mut self, planned: &[Planned]) {
        let names: Vec<String> = self.lab.record.nodes.iter().map(|node| node.name.clone()).collect();
        for name in names.iter().filter(|name| self.lab.process(name).is_none()).collect::<Vec<_>>() {
            let last = self.lab.last_line(name);
            // A member of etcd dies with its manager.
            let is_of = |node: &str| node == name || manager_beside(name) == node;
            let is_meant = planned.iter().any(|one| one.fault.ends_process() && is_of(&one.node));
            (self.mark)(&format!("{name}: is started again"));
            match is_meant {
                true => self.done.push((self.begun.elapsed(), format!("{name} had ended again: {last}"))),
                false => self.troubles.push(format!("{name} has ended by itself: {last}")),
            }
            if let Err(error) = self.lab.start_again(name) {
                self.troubles.push(format!("{name} does not start: {error:#}"));
            }
            let since = self.broken.iter().find(|(node, ..)| is_of(node)).map(|(_, from, _)| *from);
            let to = self.begun.elapsed();
            self.broken.push((name.clone(), since.unwrap_or(to), to));
        }
    }
}

impl Drop for Course<'_> {
    fn drop(&mut self) {
        for one in self.under.drain(..) {
            // It puts right what it has when it goes.
            drop(Broken::again(self.lab, one.repairs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_without_a_moment_of_rest_counts() {
        let at = |seconds: &[(u64, u64)]| -> Duration {
            let broken =
                seconds.iter().map(|(from, to)| (Duration::from_secs(*from), Duration::from_secs(*to)));
            longest(&broken.collect::<Vec<_>>())
        };
        assert_eq!(at(&[]), Duration::ZERO);
        assert_eq!(at(&[(20, 21), (1, 9), (3, 5)]), Duration::from_secs(8));
        assert_eq!(at(&[(1, 9), (8, 12), (13, 15)]), Duration::from_secs(14), "hardly a moment is between");
    }
}
