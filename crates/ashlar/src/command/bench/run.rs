//! `ashlar bench run`: everything, and the report.

mod alone;
mod network;
mod progress;
mod together;
mod wording;

use super::report::{check_apart, check_output, check_rows, names};
use super::workload::cancelled_by_signals;
use crate::cli::BenchSweepArgs;
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_bench::BenchError;
use ashlar_bench::ceiling::{Ceilings, NetworkCeiling};
use ashlar_bench::inventory::{AgentMachine, Inventory};
use ashlar_bench::report::{self, Report, number};
use ashlar_bench::run::budget::Wish;
use ashlar_bench::run::execute::Sweep;
use ashlar_bench::run::identity::Identity;
use ashlar_bench::run::journal::Journal;
use ashlar_bench::run::{Part, Plan, Tool, probe};
use ashlar_bench::task::{Alone, Machines};
use ashlar_bench::tools;
use ashlar_bench::workload::Rules;
use network::Network;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// With less time than this, memory is measured with arrays that are too small for STREAM's rule.
const HURRY: Duration = Duration::from_secs(120);
/// Of the time, one part of so many is for the trial, and one for the devices.
const TRIAL_PART: u32 = 20;
const DEVICE_PART: u32 = 6;
/// What STREAM takes at most, roughly.
const MEMORY_TIME: Duration = Duration::from_secs(8);

pub fn run(args: &BenchSweepArgs) -> Result<ExitCode> {
    // What can be refused before anything is touched.
    check_output(&args.output, args.replace || args.dry_run)?;
    if !args.beside_others {
        check_apart(&args.output, &args.directory)?;
    }
    check_rows(&args.beside)?;
    together::check(args)?;
    let wanted: Vec<Tool> = args.with.iter().map(|tool| Tool::from(*tool)).collect();
    wanted.iter().try_for_each(|tool| tools::check(*tool))?;
    let network = args.network.as_deref().map(Network::read).transpose()?;
    if !args.dry_run {
        Journal::check(&report::file(&args.output, "journal"), args.resume)?;
    }
    let cancel = cancelled_by_signals()?;
    match args.team.agents {
        None => alone::run(args, wanted, network.as_ref(), &cancel)?,
        Some(count) => together::run(args, count, network.as_ref(), &cancel)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Begins the journal, or goes on with it.
fn open(args: &BenchSweepArgs, identity: &Identity) -> Result<Journal> {
    let path = report::file(&args.output, "journal");
    Ok(if args.resume { Journal::resume(&path, identity)? } else { Journal::begin(&path, identity)? })
}

/// Keeps the journal of a run that has failed, if there is something in it, and says so.
fn keep(args: &BenchSweepArgs, journal: Journal, error: anyhow::Error) -> anyhow::Error {
    let (done, has_plan) = (journal.progress.done.len(), journal.progress.plan.is_some());
    // An agent that was lost may have left the directory of the run, and only the journal knows its name.
    let may_be_left =
        error.chain().any(|cause| matches!(cause.downcast_ref(), Some(BenchError::Lost { .. })));
    if done == 0 && !has_plan && !may_be_left {
        // Nothing is known yet that would have to be kept.
        return match journal.end() {
            Ok(()) => error,
            Err(other) => error.context(other),
        };
    }
    let path = report::file(&args.output, "journal");
    error.context(format!(
        "{done} steps are kept in {}; the same command with --resume goes on there",
        shown(&path)
    ))
}

/// A run from its plan to its report.
struct Run<'a> {
    args: &'a BenchSweepArgs,
    cancel: &'a AtomicBool,
    /// This machine, or that of the first agent.
    inventory: Inventory,
    /// Those of all agents; empty without them.
    agents: Vec<AgentMachine>,
    /// Processors of all that measure, and their memory, bytes.
    processors: usize,
    memory_bytes: u64,
    network: Option<NetworkCeiling>,
}

impl Run<'_> {
    /// The plan, announced, with what is measured before it: of an interrupted run what is in the journal.
    fn prepared(
        &self,
        machines: &dyn Machines,
        journal: &mut Journal,
        wanted: Vec<Tool>,
        devices: &dyn Fn(&mut Ceilings, &Plan) -> Result<()>,
    ) -> Result<Plan> {
        let plan = match journal.progress.plan.clone() {
            Some(plan) => plan,
            None => {
                let plan = self.planned(machines, wanted)?;
                journal.plan(&plan)?;
                plan
            }
        };
        self.announce(&plan);
        if journal.progress.ceilings.is_none() {
            let mut ceilings = Ceilings { network: self.network.clone(), ..Ceilings::default() };
            let is_in_a_hurry = plan.expected_seconds() < HURRY.as_secs_f64();
            say("Ceilings: memory");
            ceilings.measure_memory(machines, is_in_a_hurry)?;
            devices(&mut ceilings, &plan)?;
            journal.ceilings(&ceilings)?;
        }
        Ok(plan)
    }

    /// Measures what is not yet in the journal; `alone` is this machine, if it is the one that measures.
    fn sweep(
        &self,
        machines: &dyn Machines,
        alone: Option<&Alone<'_>>,
        journal: &mut Journal,
        plan: &Plan,
    ) -> Result<()> {
        let shown = progress::Shown::new();
        let tell = |told: &_| shown.tell(told);
        let outcome = Sweep { plan, machines, alone, journal, cancel: self.cancel, tell: &tell }.run();
        shown.end();
        Ok(outcome?)
    }

    fn rules(&self) -> Rules {
        Rules {
            repetitions: self.args.repetitions,
            drops_caches: !self.args.keep_caches,
            memory_bytes: self.memory_bytes.saturating_add(self.args.server_memory),
        }
    }

    /// Tries the place and makes a plan, or takes that of an earlier report.
    fn planned(&self, machines: &dyn Machines, tools: Vec<Tool>) -> Result<Plan> {
        let args = self.args;
        if let Some(path) = &args.same_as {
            let plan = Plan { budget_seconds: 0.0, ..Report::read(path)?.plan };
            plan.tools.iter().try_for_each(|tool| tools::check(*tool))?;
            machines.check_room(plan.bytes_max(), plan.files_max())?;
            if plan.is_direct && !machines.have_direct()? {
                bail!(
                    "{} was measured past the page cache, and this file system does not do that (O_DIRECT)",
                    shown(path)
                );
            }
            if !plan.fill_percents.is_empty() && !args.consent_to_fill {
                bail!("{} filled its file system: say --consent-to-fill to do the same", shown(path));
            }
            plan.check()?;
            return Ok(plan);
        }
        let parts: Vec<Part> = args.parts.iter().flat_map(|list| list.0.clone()).collect();
        let mut fill_percents = args.fill.clone();
        fill_percents.sort_unstable();
        fill_percents.dedup();
        let trial = args.budget / TRIAL_PART;
        let memory = if args.budget < HURRY { Duration::from_secs(1) } else { MEMORY_TIME };
        let devices = if args.devices.is_empty() { Duration::ZERO } else { args.budget / DEVICE_PART };
        let mut wish = Wish {
            budget: args.budget,
            aside: trial + memory + devices,
            parts: (!parts.is_empty()).then_some(parts),
            threads: args.threads.clone().map(|list| list.0),
            processors: self.processors,
            agents: self.agents.len(),
            rules: self.rules(),
            fill_percents,
            tools,
        };
        say(format!(
            "Trying {} for about {}, so that a plan can be made.",
            shown(&args.directory),
            number::time(trial.as_secs_f64())
        ));
        let probe = probe::probe(machines, &wish.trial_threads(), wish.trials(), wish.rules, trial)?;
        wish.aside = memory + devices + Duration::from_secs_f64(probe.seconds);
        Ok(wish.plan(&probe)?)
    }

    /// Says what will be done, and what not.
    fn announce(&self, plan: &Plan) {
        let names: Vec<&str> = plan.parts().iter().map(|part| part.name()).collect();
        let threads: Vec<String> = plan.threads().iter().map(usize::to_string).collect();
        say(format!("Workloads: {}", names.join(", ")));
        say(format!("Threads: {}; each measured {} times", threads.join(", "), plan.repetitions));
        say(format!(
            "Data: {} at a time at most; it will take about {}",
            number::bytes(plan.bytes_max()),
            number::time(plan.expected_seconds())
        ));
        let (most, agents) = (plan.threads().last().copied().unwrap_or(0), self.agents.len());
        if most < agents {
            say(format!(
                "{} of {agents} agents have nothing to do with so few threads: name more with --threads",
                agents - most
            ));
        }
        if !plan.tools.is_empty() {
            let names: Vec<&str> = plan.tools.iter().map(|tool| tool.name()).collect();
            say(format!("In turns with: {}", names.join(", ")));
        }
        if !plan.fill_percents.is_empty() {
            let levels: Vec<String> =
                plan.fill_percents.iter().map(|percent| format!("{percent} %")).collect();
            say(format!("Then filled to {}, which takes as long as writing so much", levels.join(", ")));
        }
        plan.shortened.iter().for_each(|text| say(format!("Shortened: {text}")));
        plan.left_out.iter().for_each(|text| say(format!("Left out: {text}")));
    }

    fn write(&self, journal: &Journal, plan: Plan) -> Result<()> {
        let args = self.args;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let seconds = journal.progress.seconds();
        let title = args
            .title
            .clone()
            .unwrap_or_else(|| format!("Characterization of {}", lower_first(&args.place_name)));
        let report = Report {
            format: report::FORMAT,
            title,
            place_name: args.place_name.clone(),
            made_unix_seconds: now.as_secs(),
            command: wording::command(args),
            inventory: self.inventory.clone(),
            agents: self.agents.clone(),
            plan,
            ceilings: journal.progress.ceilings.clone().unwrap_or_default(),
            measured: journal.progress.measured(),
            curves: Vec::new(),
            seconds,
            beside: (!args.beside.is_empty()).then(|| args.beside.clone()),
        };
        report.finish().write(&args.output)?;
        say(format!("Measured for {}. The report: {}", number::time(seconds), names(&args.output)));
        Ok(())
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    first + characters.as_str()
}
