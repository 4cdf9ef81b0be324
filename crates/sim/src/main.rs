//! Runs seeds, and shows those that fail.

use ashlar_sim::run::Plan;
use ashlar_sim::runner::{Runner, SEED_MAX};
use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates the whole file system under many seeds.
#[derive(Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
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
    /// Stop after so many seeds that fail.
    #[arg(long, default_value_t = 10)]
    failures_max: u64,
    /// Real seconds after which a seed counts as hung.
    #[arg(long, default_value_t = SEED_MAX.as_secs())]
    seed_max_s: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (from, to) =
        args.seed.map_or((args.start, args.start.saturating_add(args.seeds)), |seed| (seed, seed + 1));
    let begin = Instant::now();
    let mut runner = Runner::new(Duration::from_secs(args.seed_max_s));
    let (mut passed, mut failed, mut answers, mut crashes, mut moves) = (0, 0, 0, 0, 0);
    for seed in from..to {
        if args.trace {
            eprintln!("{:#?}", Plan::of(seed));
        }
        let report = runner.run(seed, args.trace);
        (answers, crashes) = (answers + report.answers, crashes + report.crashes);
        moves += report.moves;
        if report.failures.is_empty() {
            passed += 1;
            continue;
        }
        failed += 1;
        println!("seed {seed} fails:");
        report.failures.iter().for_each(|what| println!("  {what}"));
        println!("  replay: cargo xtask simulate --seed {seed} --trace");
        if failed >= args.failures_max {
            break;
        }
    }
    println!(
        "{answers} answers checked, {crashes} crashes survived, {moves} chains moved, {:.1} s\n{passed} passed, {failed} failed",
        begin.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
