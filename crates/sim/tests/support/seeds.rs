//! Fixed seeds of a simulation, or those that the environment asks for: from `ASHLAR_SEED` on, `ASHLAR_SEEDS` of them.

use ashlar_sim::copies::{Counts, tell};
use ashlar_sim::runner::Batch;
use ashlar_sim::simulation::Simulation;
use std::ops::Range;
use std::time::Duration;

/// Real time that a seed may take in a debug build, beside others.
const SEED_MAX: Duration = Duration::from_secs(600);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(simulation: Simulation, seeds: Range<u64>, is_twice: bool) -> Counts {
    let batch = Batch {
        simulation,
        is_twice,
        is_traced: seeds.end - seeds.start == 1 && number("ASHLAR_SEED").is_some(),
        seeds,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        failures_max: 1,
        seed_max: SEED_MAX,
    };
    let summary = batch.run(&|seed, failures| eprintln!("seed {seed} fails: {failures:?}"));
    assert!(summary.failed.is_empty(), "{simulation:?}: seeds {:?} fail", summary.failed);
    summary.counts
}

/// Runs seeds from 0 on, `usual` many if the environment asks for no others, those of `twice` twice, and those that `found` something once. Tells how many of the first ones there were, and what has
/// happened in them.
pub fn pass_all(
    simulation: Simulation,
    usual: u64,
    twice: Range<u64>,
    found: &[(u64, &str)],
) -> (u64, Counts) {
    let (first, count) = (number("ASHLAR_SEED"), number("ASHLAR_SEEDS"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { usual });
    let first_seed = first.unwrap_or(0);
    let counts = run(simulation, first_seed..first_seed + count, false);
    eprintln!("{count} seeds: {}", tell(&counts));
    if first.is_none() {
        run(simulation, twice, true);
        for &(seed, what) in found {
            eprintln!("seed {seed}, by which it was found once that {what}");
            run(simulation, seed..seed + 1, false);
        }
    }
    (count, counts)
}

/// What a simulation is for has happened in it, so often at least.
pub fn insist_on(counts: &Counts, what: &str, least: u64) {
    let found = counts.get(what).copied().unwrap_or(0);
    assert!(found >= least, "{found} {what} are too few");
}
