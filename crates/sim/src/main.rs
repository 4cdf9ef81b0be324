//! Runs seeds, and shows those that fail.

use ashlar_sim::copies::tell;
use ashlar_sim::runner::{Batch, SEED_MAX};
use ashlar_sim::simulation::Simulation;
use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates the whole file system, or copies alone, under many seeds.
#[derive(Parser)]
struct Args {
    /// What to simulate.
    #[arg(long, value_enum, default_value_t = Simulation::System)]
    what: Simulation,
    /// How many seeds; 100 if nothing is said, and of the sweep all.
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
    /// Show what happens.
    #[arg(long)]
    trace: bool,
    /// Seeds that are run at the same time; as many as there are processors if nothing is said, but one with `--trace`.
    #[arg(long)]
    jobs: Option<usize>,
    /// Stop after so many seeds that fail.
    #[arg(long, default_value_t = 10)]
    failures_max: u64,
    /// Real seconds after which a seed counts as hung.
    #[arg(long, default_value_t = SEED_MAX.as_secs())]
    seed_max_s: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seeds = args.seeds.unwrap_or_else(|| args.what.seeds());
    let (from, to) =
        args.seed.map_or((args.start, args.start.saturating_add(seeds)), |seed| (seed, seed + 1));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let batch = Batch {
        simulation: args.what,
        seeds: from..to,
        is_twice: args.twice,
        is_traced: args.trace,
        jobs: args.jobs.unwrap_or(if args.trace { 1 } else { processors }),
        failures_max: args.failures_max,
        seed_max: Duration::from_secs(args.seed_max_s),
    };
    let begin = Instant::now();
    let what = args.what.name();
    let summary = batch.run(&|seed, failures| {
        println!("seed {seed} fails:");
        failures.iter().for_each(|what| println!("  {what}"));
        println!("  replay: cargo xtask simulate --what {what} --seed {seed} --trace");
    });
    let (took, failed) = (begin.elapsed().as_secs_f64(), summary.failed.len());
    let rate = (summary.passed + failed as u64) as f64 / took.max(0.001);
    println!("{}", tell(&summary.counts));
    println!("{took:.1} s, {rate:.2} seeds a second{}", if args.twice { ", each run twice" } else { "" });
    println!("{} passed, {failed} failed", summary.passed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
