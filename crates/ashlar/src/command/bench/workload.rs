//! What all workloads have in common: the place, the signals that end them in good order, and what is printed.

use super::table::Table;
use super::team::gather;
use crate::cli::BenchRunArgs;
use crate::terminal::{say, shown};
use anyhow::{Context, Result, bail};
use ashlar_bench::agent::{AgentTold, Team};
use ashlar_bench::data::DataPlan;
use ashlar_bench::figure::Figure;
use ashlar_bench::place::Place;
use ashlar_bench::run::Unit;
use ashlar_bench::sample::Load;
use ashlar_bench::task::{Alone, Machines};
use ashlar_bench::workload::{Rules, Workload};
use ashlar_bench::{BenchError, cache};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a, P> {
    plans: &'a [P],
    repetitions: u32,
    memory_bytes: u64,
    drops_caches: bool,
    /// Who measured; nobody for this machine alone.
    agents: Vec<AgentTold>,
    /// Whether all of it was measured.
    complete: bool,
    /// Why not.
    error: Option<String>,
    figures: &'a [Figure],
}

/// Who measures.
enum Who<'a> {
    Alone(Place),
    Team(Team<'a>),
}

/// One run of a workload.
pub struct Session<'a> {
    args: &'a BenchRunArgs,
    unit: Unit,
    who: Who<'a>,
    /// How it is measured.
    pub rules: Rules,
    /// The plan of the files that stay at the end, should all go well.
    pub keeps: Option<DataPlan>,
    cancel: &'a AtomicBool,
}

impl<'a> Session<'a> {
    /// Makes the place, here or on the agents that are waited for. `cancel` ends the run from now on, and what it made goes.
    pub fn begin(args: &'a BenchRunArgs, unit: Unit, cancel: &'a AtomicBool) -> Result<Session<'a>> {
        let (who, memory) = match args.team.agents {
            None => (Who::Alone(Place::make(&args.directory, args.beside_others)?), memory_here()?),
            Some(count) => {
                if !args.directory.is_absolute() {
                    bail!(
                        "{} is not a path that agents could see: it has to begin with /",
                        shown(&args.directory)
                    );
                }
                let team = gather(&args.team, count, Some(&args.directory), cancel)?;
                if let Err(error) = team.prepare(&args.directory, args.beside_others) {
                    team.abandon(&error.to_string());
                    return Err(error.into());
                }
                let memory = team.memory_bytes();
                (Who::Team(team), memory)
            }
        };
        Ok(Session { args, unit, who, rules: rules(args, memory), keeps: None, cancel })
    }

    /// In a place with files that were kept.
    pub fn begin_in(
        place: Place,
        args: &'a BenchRunArgs,
        unit: Unit,
        cancel: &'a AtomicBool,
    ) -> Result<Session<'a>> {
        let rules = rules(args, memory_here()?);
        Ok(Session { args, unit, who: Who::Alone(place), rules, keeps: None, cancel })
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> Result<u64> {
        Ok(match &self.who {
            Who::Alone(place) => place.room()?.bytes,
            Who::Team(team) => team.room()?.bytes,
        })
    }

    /// Runs `measure` with each of `plans`, and prints what came out: also of a run that ends early, marked as such.
    pub fn run<P: Serialize>(
        self,
        plans: &[P],
        measure: impl Fn(&Workload<'_>, &P) -> Result<Vec<Figure>, BenchError>,
    ) -> Result<ExitCode> {
        let mut table = Table::new(self.unit, self.args.allow_cached);
        let figures = RefCell::new(Vec::new());
        let tell = |figure: &Figure, _: &[Option<Load>]| {
            log(figure);
            figures.borrow_mut().push(figure.clone());
        };
        let mut measure_all = || {
            for plan in plans {
                let before = figures.borrow().len();
                let measured = match &self.who {
                    Who::Alone(place) => {
                        let alone = Alone { place, cancel: self.cancel, sampler: None };
                        measure(&Workload { machines: &alone, rules: self.rules, tell: &tell }, plan)
                    }
                    Who::Team(team) => {
                        measure(&Workload { machines: team, rules: self.rules, tell: &tell }, plan)
                    }
                };
                if !self.args.json {
                    table.show(&figures.borrow()[before..]);
                }
                measured?;
            }
            Ok(())
        };
        let mut outcome: Result<(), BenchError> = measure_all();
        if let (Ok(()), Some(plan), Who::Alone(place)) = (&outcome, &self.keeps, &self.who) {
            let kept = place.keep(plan);
            outcome = kept.map(|kept| {
                eprintln!("the files are in {}: --use-kept reads them, and you remove them", shown(&kept));
            });
        }
        let agents = match self.who {
            Who::Alone(_) => Vec::new(),
            Who::Team(team) => {
                let told = team.told();
                match &outcome {
                    Ok(()) => outcome = team.finish(),
                    Err(error) => team.abandon(&error.to_string()),
                }
                told
            }
        };
        if self.args.json {
            let told = Printed {
                plans,
                repetitions: self.rules.repetitions,
                memory_bytes: self.rules.memory_bytes,
                drops_caches: self.rules.drops_caches,
                agents,
                complete: outcome.is_ok(),
                error: outcome.as_ref().err().map(ToString::to_string),
                figures: &figures.borrow(),
            };
            say(serde_json::to_string_pretty(&told)?);
        } else {
            table.explain();
            agents.iter().for_each(|agent| say(format!("measured by {}", agent.name)));
            if let (Err(_), Some(last)) = (&outcome, figures.borrow().last()) {
                say(format!(
                    "INCOMPLETE: the run ended early; not all steps and repetitions with {} threads are in these figures, and none with more.",
                    last.threads
                ));
            }
        }
        outcome?;
        Ok(ExitCode::SUCCESS)
    }
}

fn memory_here() -> Result<u64> {
    cache::memory_bytes().context("cannot find out how much memory there is (/proc/meminfo)")
}

fn rules(args: &BenchRunArgs, memory_bytes: u64) -> Rules {
    Rules {
        repetitions: args.repetitions,
        drops_caches: !args.keep_caches,
        memory_bytes: memory_bytes.saturating_add(args.server_memory),
    }
}

/// What Ctrl-C, SIGTERM and SIGHUP set, so that what was made can go before the program ends.
pub fn cancelled_by_signals() -> Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, cancel.clone()).context("cannot take signals")?;
    }
    Ok(cancel)
}

/// Figures as they come are for whoever watches a long run.
pub fn log(figure: &Figure) {
    tracing::info!(
        what = figure.what,
        threads = figure.threads,
        repetition = figure.repetition,
        operations_per_second = figure.operations_per_second(),
        mib_per_second = figure.bytes_per_second() / f64::from(1 << 20),
        "measured"
    );
}
