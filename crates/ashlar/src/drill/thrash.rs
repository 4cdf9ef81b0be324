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
use super::make_lab::OwnLab;
use super::outcome::{Outcome, what_is_wrong};
use super::place::Place;
use super::run::{Drill, Watch, keep_a_diary, node_text, told_by_signals, write};
use crate::cli::DrillThrashArgs;
use crate::drill::load::Load;
use crate::lab::Lab;
use crate::terminal::{say, shown};
use anyhow::{Result, bail};
use ashlar_env::Env;
use plan::{Planned, Shape};
use report::{Report, Round};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// For how long nothing happens before a round, and after it.
const CALM: Duration = Duration::from_secs(2);
/// For how long all copies must be there: who has just gone is missed after 5 s.
const SETTLED: Duration = Duration::from_secs(7);

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
        copies: args.load.copies,
        weak: drill.weak.clone(),
        limits: drill.limits,
        seed,
        ledger: shown(&ledger),
        ledger_trouble: None,
        took: Duration::ZERO,
        rounds: Vec::new(),
    };
    let mut thrash = Thrash { drill, seed };
    thrash.rounds(args, &mut report)?;
    report.ledger_trouble = diary.trouble();
    write(&args.report, &report.text())?;
    if let Some(path) = &args.load.json {
        write(path, &serde_json::to_string_pretty(&report.object())?)?;
    }
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

struct Thrash {
    drill: Drill,
    seed: u64,
}

/// What has been broken, and when that ends.
struct Under {
    until: Duration,
    repairs: Vec<Repair>,
}

impl Thrash {
    fn rounds(&mut self, args: &DrillThrashArgs, report: &mut Report) -> Result<()> {
        let begun = Instant::now();
        let most = Duration::from_secs(60 * u64::from(args.minutes));
        let last = args.first_round.saturating_add(args.rounds - 1);
        for number in args.first_round..=last {
            if begun.elapsed() >= most || self.drill.is_told_to_stop.load(Relaxed) {
                break;
            }
            let round = self.round(number)?;
            report.took = begun.elapsed();
            say(round.line());
            let is_over = !round.wrong.is_empty();
            report.rounds.push(round);
            if is_over {
                break;
            }
        }
        Ok(())
    }

    fn round(&mut self, number: u32) -> Result<Round> {
        let Some(lab) = &self.drill.place.lab else { bail!("there is no lab") };
        let planned = plan::round(self.seed, number, &Shape::of(lab));
        if self.drill.wait_until_full(Instant::now(), Duration::ZERO).is_none() {
            bail!("not all copies were there before round {number}");
        }
        let name = format!("round {number}");
        self.drill.calls.mark(&name, "load");
        let load = Load::start(std::mem::take(&mut self.drill.workers))?;
        self.drill.pause(CALM);
        let mut outcome = Outcome { before: self.drill.calls.take(), ..Outcome::default() };
        let watch = Watch::start(&self.drill.place)?;
        let begun = Instant::now();
        self.drill.calls.mark(&name, "begins");
        let done = self.fail(&planned, &mut outcome);
        outcome.lasted = begun.elapsed();
        self.drill.calls.mark(&name, "was put right");
        outcome.full_after = self.drill.wait_until_full(Instant::now(), SETTLED);
        self.drill.pause(CALM);
        outcome.is_stopped = self.drill.is_told_to_stop.load(Relaxed);
        outcome.worst = watch.worst();
        let workers = load.stop(self.drill.limits.redundant_within);
        if workers.len() < self.drill.count {
            (outcome.unfinished, outcome.unfinished_for) = self.drill.calls.under_way();
        }
        outcome.seen = self.drill.calls.take();
        (self.drill.workers, outcome.verified) = self.drill.verify(workers)?;
        if !outcome.is_stopped && outcome.full_after.is_some() {
            // One copy of each was read: the others are compared with it.
            let scrubbed = self.drill.place.asker.run(&["scrub"]);
            outcome.troubles.extend(scrubbed.err().map(|error| format!("copies differ: {error:#}")));
        }
        // Whatever has failed may have been all there is of something.
        let allowed = self.drill.limits.stall + outcome.lasted;
        let wrong = what_is_wrong(allowed, &outcome, &self.drill.limits);
        Ok(Round { number, done, allowed, outcome, wrong })
    }

    /// Has it all happen, and puts all right; tells what was done.
    fn fail(&mut self, planned: &[Planned], outcome: &mut Outcome) -> Vec<String> {
        let Drill { place, is_told_to_stop, .. } = &mut self.drill;
        let Some(lab) = &mut place.lab else { return Vec::new() };
        let mut course = Course { lab, begun: Instant::now(), under: Vec::new(), troubles: Vec::new() };
        let mut done = Vec::new();
        for one in planned {
            while Instant::now() < course.begun + one.at && !is_told_to_stop.load(Relaxed) {
                course.turn();
            }
            if is_told_to_stop.load(Relaxed) {
                break;
            }
            done.extend(course.begin(one));
        }
        while !course.under.is_empty() {
            let is_enough = is_told_to_stop.load(Relaxed);
            if is_enough {
                course.under.iter_mut().for_each(|under| under.until = Duration::ZERO);
            }
            course.turn();
        }
        course.start_all();
        outcome.troubles.append(&mut course.troubles);
        done
    }
}

/// A round under way.
struct Course<'l> {
    lab: &'l mut Lab,
    begun: Instant,
    under: Vec<Under>,
    troubles: Vec<String>,
}

/// Time between two looks what is to be put right.
const TURN: Duration = Duration::from_millis(50);

impl Course<'_> {
    /// Begins one; tells what that was.
    fn begin(&mut self, planned: &Planned) -> Option<String> {
        let since = self.begun.elapsed();
        let mut broken = Broken::new(self.lab);
        let made = fault::make(&mut broken, planned);
        // Also what was made in part.
        self.under.push(Under { until: since + planned.lasts, repairs: broken.into_repairs() });
        match made {
            Ok(what) => {
                let (from, lasts) = (since.as_secs_f64(), planned.lasts.as_secs_f64());
                Some(format!("{from:.1} s: {what}, for {lasts:.1} s"))
            }
            Err(error) => {
                self.troubles.push(format!("{}: could not be made: {error:#}", planned.node));
                None
            }
        }
    }

    /// Puts right what has lasted for long enough, and rests.
    fn turn(&mut self) {
        let now = self.begun.elapsed();
        let (over, under) = std::mem::take(&mut self.under).into_iter().partition(|one| one.until <= now);
        self.under = under;
        let over: Vec<Under> = over;
        for one in over {
            if let Err(error) = Broken::again(self.lab, one.repairs).put_right_and_go_on() {
                self.troubles.push(format!("could not be put right: {error:#}"));
            }
        }
        std::thread::sleep(TURN);
    }

    /// Waits until all that were started serve, and starts those again that have ended because of others: as whoever runs them does.
    fn start_all(&mut self) {
        let names: Vec<String> = self.lab.record.nodes.iter().map(|node| node.name.clone()).collect();
        for name in names {
            if let Err(error) = self.lab.start_again(&name) {
                self.troubles.push(format!("{name} does not start: {error:#}"));
            }
        }
    }
}
