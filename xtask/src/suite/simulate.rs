//! Many seeds of the simulations of the whole system, and of copies alone (`crates/sim`).

use clap::Args;

use crate::repository::Repository;
use crate::shell;

/// What is handed on to the runner.
#[derive(Args, Debug)]
pub struct Arguments {
    /// What to simulate: system, sweep, servers, chunk-copies or metadata-copies.
    #[arg(long, default_value = "system")]
    what: String,
    /// How many seeds; 1000 if nothing is said, and of the sweep all.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// This seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Run each seed twice: both runs must be the same.
    #[arg(long)]
    twice: bool,
    /// Seeds that are run at the same time; as many as there are processors if nothing is said.
    #[arg(long)]
    jobs: Option<usize>,
    /// Show what happens.
    #[arg(long)]
    trace: bool,
}

/// Builds the runner for speed and runs it.
///
/// # Errors
/// When it cannot be built, or a seed fails.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let usual = (arguments.what != "sweep").then_some(1000);
    let seeds = arguments.seeds.or(usual).map(|seeds| seeds.to_string());
    let start = arguments.start.to_string();
    let seed = arguments.seed.map(|seed| seed.to_string());
    let jobs = arguments.jobs.map(|jobs| jobs.to_string());
    let mut words = vec!["run", "--quiet", "--release", "-p", "ashlar-sim", "--", "--what", &arguments.what];
    match &seed {
        Some(seed) => words.extend(["--seed", seed]),
        None => words.extend(["--start", &start]),
    }
    if let (None, Some(seeds)) = (&seed, &seeds) {
        words.extend(["--seeds", seeds]);
    }
    if let Some(jobs) = &jobs {
        words.extend(["--jobs", jobs]);
    }
    words.extend(arguments.twice.then_some("--twice"));
    words.extend(arguments.trace.then_some("--trace"));
    shell::run(&mut repository.cargo(&words))
}
