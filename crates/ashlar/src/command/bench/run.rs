//! `ashlar bench run`: everything, and the report.

mod progress;

use super::report::{check_output, check_rows, names};
use super::workload::cancelled_by_signals;
use crate::cli::BenchSweepArgs;
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_bench::ceiling::{Ceilings, NetworkCeiling};
use ashlar_bench::device::DevicePlan;
use ashlar_bench::inventory::Inventory;
use ashlar_bench::network::NetworkFigures;
use ashlar_bench::place::Place;
use ashlar_bench::report::{self, Report, number};
use ashlar_bench::run::budget::Wish;
use ashlar_bench::run::execute::Sweep;
use ashlar_bench::run::identity::Identity;
use ashlar_bench::run::journal::Journal;
use ashlar_bench::run::{Part, Plan, Point, Tool, probe};
use ashlar_bench::sample::Sampler;
use ashlar_bench::task::{Alone, Machines};
use ashlar_bench::workload::Rules;
use ashlar_bench::{cache, tools};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// With less time than this, memory is measured with arrays that are too small for STREAM's rule.
const HURRY: Duration = Duration::from_secs(120);
/// Of the time, one part of so many is for the trial, and one for the devices.
const TRIAL_PART: u32 = 20;
const DEVICE_PART: u32 = 6;
/// What is done on each device: requests under way, bytes at least, seconds of random requests at most.
const DEVICE_DEPTH: u32 = 16;
const DEVICE_BYTES_MIN: u64 = 64 << 20;
const DEVICE_SECONDS_MAX: u64 = 5;
/// What STREAM takes at most, roughly.
const MEMORY_TIME: Duration = Duration::from_secs(8);

pub fn run(args: &BenchSweepArgs) -> Result<ExitCode> {
    // What can be refused before anything is touched.
    check_output(&args.output, args.replace || args.dry_run)?;
    check_rows(&args.beside)?;
    let wanted: Vec<Tool> = args.with.iter().map(|tool| Tool::from(*tool)).collect();
    wanted.iter().try_for_each(|tool| tools::check(*tool))?;
    let network = args.network.as_deref().map(|file| network(file, args.network_agent)).transpose()?;
    let cancel = cancelled_by_signals()?;
    let inventory = Inventory::collect(&args.directory, &wanted);
    let mut run = Run { args, cancel: &cancel, inventory, network };
    if args.dry_run {
        let place = Place::make(&args.directory, args.beside_others)?;
        let plan = run.planned(&place, wanted)?;
        run.announce(&plan);
        return Ok(ExitCode::SUCCESS);
    }
    let identity = Identity::of(&args.directory, &run.inventory, asked(args))?;
    let path = report::file(&args.output, "journal");
    let mut journal =
        if args.resume { Journal::resume(&path, &identity)? } else { Journal::begin(&path, &identity)? };
    journal.progress.clean(&args.directory)?;
    let outcome = run.measured(&mut journal, wanted);
    if let Err(error) = outcome {
        let (done, plan) = (journal.progress.done.len(), journal.progress.plan.is_some());
        if done == 0 && !plan {
            // Nothing is known yet that would have to be kept.
            journal.end()?;
            return Err(error);
        }
        return Err(error.context(format!(
            "{done} steps are kept in {}; the same command with --resume goes on there",
            shown(&path)
        )));
    }
    journal.end()?;
    Ok(ExitCode::SUCCESS)
}

/// Each option that must be the same when a run is gone on with.
fn asked(args: &BenchSweepArgs) -> BTreeMap<String, String> {
    let list = |all: Vec<String>| if all.is_empty() { "not given".to_owned() } else { all.join(",") };
    let paths = |all: &[std::path::PathBuf]| list(all.iter().map(|path| shown(path)).collect());
    let parts: Vec<Part> = args.parts.iter().flat_map(|list| list.0.clone()).collect();
    let threads = args.threads.iter().flat_map(|list| list.0.iter().map(usize::to_string));
    let pairs = [
        ("budget", format!("{} s", args.budget.as_secs())),
        ("parts", list(parts.iter().map(ToString::to_string).collect())),
        ("threads", list(threads.collect())),
        ("repetitions", args.repetitions.to_string()),
        ("same-as", paths(args.same_as.as_slice())),
        ("device", paths(&args.devices)),
        ("network", paths(args.network.as_slice())),
        ("network-agent", args.network_agent.to_string()),
        ("with", list(args.with.iter().map(|tool| Tool::from(*tool).to_string()).collect())),
        ("fill", list(args.fill.iter().map(u8::to_string).collect())),
        ("server-memory", args.server_memory.to_string()),
        ("keep-caches", args.keep_caches.to_string()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The ceiling that a file of `ashlar bench network --json` tells for one of its agents.
fn network(file: &Path, agent: u32) -> Result<NetworkCeiling> {
    let name = shown(file);
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let told: serde_json::Value = serde_json::from_str(&text)
        .with_context(|| format!("{name} is not what `ashlar bench network --json` prints"))?;
    if told["complete"] == false {
        bail!("{name} is of a measurement that ended early; measure the network again");
    }
    let figures: NetworkFigures = serde_json::from_value(told)
        .with_context(|| format!("{name} is not what `ashlar bench network --json` prints"))?;
    NetworkCeiling::of_machine(&figures, agent as usize).with_context(|| {
        format!("{name} tells of no agent {agent}: --network-agent is the number of this machine in it")
    })
}

/// A run from its plan to its report.
struct Run<'a> {
    args: &'a BenchSweepArgs,
    cancel: &'a AtomicBool,
    inventory: Inventory,
    network: Option<NetworkCeiling>,
}

impl Run<'_> {
    fn measured(&mut self, journal: &mut Journal, wanted: Vec<Tool>) -> Result<()> {
        let args = self.args;
        journal.place(&Place::own_name(), false)?;
        let place = Place::make(&args.directory, args.beside_others)?;
        journal.place(&Place::own_name(), true)?;
        let plan = match journal.progress.plan.clone() {
            Some(plan) => plan,
            None => {
                let plan = self.planned(&place, wanted)?;
                journal.plan(&plan)?;
                plan
            }
        };
        self.announce(&plan);
        if journal.progress.ceilings.is_none() {
            let ceilings = self.ceilings(&place, &plan)?;
            journal.ceilings(&ceilings)?;
        }
        let sampler = Sampler::start().context("cannot watch the machine")?;
        let shown = progress::Shown::new();
        let tell = |told: &_| shown.tell(told);
        let alone = Alone { place: &place, cancel: self.cancel, sampler: Some(&sampler) };
        let outcome = Sweep {
            plan: &plan,
            machines: &alone,
            alone: Some(&alone),
            journal,
            cancel: self.cancel,
            tell: &tell,
        }
        .run();
        shown.end();
        outcome?;
        self.write(journal, plan)
    }

    fn rules(&self) -> Result<Rules> {
        let memory =
            cache::memory_bytes().context("cannot find out how much memory there is (/proc/meminfo)")?;
        Ok(Rules {
            repetitions: self.args.repetitions,
            drops_caches: !self.args.keep_caches,
            memory_bytes: memory.saturating_add(self.args.server_memory),
        })
    }

    fn planned(&self, place: &Place, tools: Vec<Tool>) -> Result<Plan> {
        let args = self.args;
        let machines = Alone { place, cancel: self.cancel, sampler: None };
        if let Some(path) = &args.same_as {
            let plan = Plan { budget_seconds: 0.0, ..Report::read(path)?.plan };
            plan.tools.iter().try_for_each(|tool| tools::check(*tool))?;
            place.check_room(plan.bytes_max())?;
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
            processors: self.inventory.hardware.processors,
            agents: 0,
            rules: self.rules()?,
            fill_percents,
            tools,
        };
        say(format!(
            "Trying {} for about {}, so that a plan can be made.",
            shown(&args.directory),
            number::time(trial.as_secs_f64())
        ));
        let probe = probe::probe(&machines, &wish.trial_threads(), wish.trials(), wish.rules, trial)?;
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

    fn ceilings(&self, place: &Place, plan: &Plan) -> Result<Ceilings> {
        let mut ceilings = Ceilings { network: self.network.clone(), ..Ceilings::default() };
        let is_in_a_hurry = plan.expected_seconds() < HURRY.as_secs_f64();
        say("Ceilings: memory");
        let machines = Alone { place, cancel: self.cancel, sampler: None };
        ceilings.measure_memory(&machines, is_in_a_hurry)?;
        if self.args.devices.is_empty() {
            return Ok(ceilings);
        }
        say(format!("Ceilings: {} devices", self.args.devices.len()));
        let places: Vec<Place> = (self.args.devices.iter())
            .map(|directory| Place::make(directory, self.args.beside_others))
            .collect::<Result<_, _>>()?;
        ceilings.measure_devices(&self.device_plan(plan), &places, self.cancel)?;
        Ok(ceilings)
    }

    /// As many bytes, and as long, as the sweep's longest points: both are of the same size.
    fn device_plan(&self, plan: &Plan) -> DevicePlan {
        let data = || plan.points.iter().filter(|point| !point.part.is_metadata());
        let bytes = data().map(Point::bytes).max().unwrap_or(0);
        let seconds = data().map(|point| point.amount.seconds).fold(1.0, f64::max);
        DevicePlan {
            threads: plan.threads().last().copied().unwrap_or(1).clamp(1, 4),
            bytes: bytes.max(DEVICE_BYTES_MIN),
            depth: DEVICE_DEPTH,
            random_seconds: (seconds.ceil() as u64).min(DEVICE_SECONDS_MAX),
            repetitions: plan.repetitions,
        }
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
            command: command(args),
            inventory: self.inventory.clone(),
            agents: Vec::new(),
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

/// The command as it stands in the report: without names of paths.
fn command(args: &BenchSweepArgs) -> String {
    let mut line = String::from("ashlar bench run DIR");
    if let Some(threads) = &args.threads {
        let threads: Vec<String> = threads.0.iter().map(usize::to_string).collect();
        line += &format!(" --threads {}", threads.join(","));
    }
    match &args.same_as {
        Some(_) => line += " --same-as REPORT.json",
        None => line += &format!(" --budget {}s --repetitions {}", args.budget.as_secs(), args.repetitions),
    }
    let parts: Vec<&str> = args.parts.iter().flat_map(|list| list.0.iter().map(|part| part.name())).collect();
    let lists: [(&str, Vec<String>); 3] = [
        ("parts", parts.into_iter().map(str::to_owned).collect()),
        ("with", args.with.iter().map(|tool| Tool::from(*tool).to_string()).collect()),
        ("fill", args.fill.iter().map(u8::to_string).collect()),
    ];
    for (name, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
        line += &format!(" --{name} {}", list.join(","));
    }
    args.devices.iter().for_each(|_| line += " --device DEVICE-DIR");
    if args.network.is_some() {
        line += &format!(" --network NETWORK.json --network-agent {}", args.network_agent);
    }
    for (name, is_given) in [("consent-to-fill", args.consent_to_fill), ("keep-caches", args.keep_caches)] {
        if is_given {
            line += &format!(" --{name}");
        }
    }
    if args.server_memory > 0 {
        line += &format!(" --server-memory {}", args.server_memory);
    }
    line
}
