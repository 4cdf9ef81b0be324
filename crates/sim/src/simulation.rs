//! All simulations, by name.

use crate::copies::{Outcome, chunks, metadata};
use crate::run::{self, FEW_SEEDS, Plan};
use crate::scheduler::Scheduler;
use crate::sweep;
use clap::ValueEnum;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Simulation {
    /// The whole file system.
    System,
    /// The same, with each operation and each fault at each point.
    Sweep,
    /// Several metadata servers that give each other shards, and in every other seed storage servers that give each other chains.
    Servers,
    /// Copies of chunks.
    ChunkCopies,
    /// Copies of the log of a metadata server.
    MetadataCopies,
}

impl Simulation {
    /// Its name on a command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How many seeds are run if nobody says how many.
    pub fn seeds(self) -> u64 {
        if self == Simulation::Sweep { sweep::seeds_in_all() } else { 100 }
    }

    /// Runs `seed`; `note` gets the scheduler before it begins.
    pub fn run(self, seed: u64, is_traced: bool, note: &dyn Fn(&Arc<Scheduler>)) -> Outcome {
        let run = || match self {
            Simulation::System => run_system(seed, is_traced, note),
            Simulation::Servers => run_system(FEW_SEEDS.saturating_add(seed), is_traced, note),
            Simulation::Sweep => sweep::run(seed, is_traced, note),
            Simulation::ChunkCopies => chunks::run(seed, is_traced, note),
            Simulation::MetadataCopies => metadata::run(seed, is_traced, note),
        };
        // What the main program of a simulation does is production code, too.
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let what = format!("it panicked: {}", text.unwrap_or_default());
            Outcome { failures: vec![what], ..Outcome::default() }
        })
    }
}

fn run_system(seed: u64, is_traced: bool, note: &dyn Fn(&Arc<Scheduler>)) -> Outcome {
    let plan = Plan::of(seed);
    if is_traced {
        eprintln!("{plan:#?}");
    }
    let report = run::run_watched(seed, plan, is_traced, note);
    let counts = [
        ("answers checked", report.answers),
        ("crashes survived", report.crashes),
        ("chains moved", report.moves),
    ];
    Outcome { failures: report.failures, trace: report.trace_hash, counts: counts.into() }
}
