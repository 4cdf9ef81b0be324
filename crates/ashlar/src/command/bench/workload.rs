//! What all workloads have in common: the place, the signals that end them in good order, and what is printed.

use super::table::{Table, Unit};
use crate::cli::BenchRunArgs;
use crate::terminal::say;
use anyhow::{Context, Result};
use ashlar_bench::figure::Figure;
use ashlar_bench::place::Place;
use ashlar_bench::task::Alone;
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
    figures: &'a [Figure],
}

/// One run of a workload.
pub struct Session<'a> {
    args: &'a BenchRunArgs,
    unit: Unit,
    place: Place,
    /// How it is measured.
    pub rules: Rules,
    cancel: Arc<AtomicBool>,
}

impl<'a> Session<'a> {
    /// Makes the place. Ctrl-C and SIGTERM end the run from now on, and what it made goes.
    pub fn begin(args: &'a BenchRunArgs, unit: Unit) -> Result<Session<'a>> {
        let cancel = cancelled_by_signals()?;
        let memory =
            cache::memory_bytes().context("cannot find out how much memory there is (/proc/meminfo)")?;
        let rules = Rules {
            repetitions: args.repetitions,
            drops_caches: !args.keep_caches,
            memory_bytes: memory.saturating_add(args.server_memory),
        };
        let place = Place::make(&args.directory, args.beside_others)?;
        Ok(Session { args, unit, place, rules, cancel })
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> Result<u64> {
        Ok(self.place.free_bytes()?)
    }

    /// Runs `measure` with each of `plans`, and prints what came out.
    pub fn run<P: Serialize>(
        &self,
        plans: &[P],
        measure: impl Fn(&Workload<'_>, &P) -> Result<Vec<Figure>, BenchError>,
    ) -> Result<ExitCode> {
        let table = RefCell::new(Table::new(self.unit, self.args.allow_cached));
        let mut figures = Vec::new();
        let mut outcome = Ok(());
        for plan in plans {
            let machines = Alone { place: &self.place, cancel: &self.cancel };
            let workload = Workload { machines: &machines, rules: self.rules, tell: &log };
            match measure(&workload, plan) {
                Ok(more) => {
                    if !self.args.json {
                        table.borrow_mut().show(&more);
                    }
                    figures.extend(more);
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if self.args.json {
            let told = Printed {
                plans,
                repetitions: self.rules.repetitions,
                memory_bytes: self.rules.memory_bytes,
                drops_caches: self.rules.drops_caches,
                figures: &figures,
            };
            say(serde_json::to_string_pretty(&told)?);
        } else {
            table.borrow().explain();
        }
        outcome?;
        Ok(ExitCode::SUCCESS)
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
