//! Many seeds of the simulation of the whole system (`crates/sim`).

use clap::Args;

use crate::repository::Repository;
use crate::shell;

/// What is handed on to the runner.
#[derive(Args, Debug)]
pub struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// This seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Show what happens.
    #[arg(long)]
    trace: bool,
}

/// Builds the runner for speed and runs it.
///
/// # Errors
/// When it cannot be built, or a seed fails.
pub fn run(repository: &Repository, arguments: &Arguments) -> anyhow::Result<()> {
    let (seeds, start) = (arguments.seeds.to_string(), arguments.start.to_string());
    let seed = arguments.seed.map(|seed| seed.to_string());
    let mut words = vec!["run", "--quiet", "--release", "-p", "ashlar-sim", "--"];
    match &seed {
        Some(seed) => words.extend(["--seed", seed]),
        None => words.extend(["--seeds", &seeds, "--start", &start]),
    }
    if arguments.trace {
        words.push("--trace");
    }
    shell::run(&mut repository.cargo(&words))
}
