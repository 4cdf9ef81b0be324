//! Two runs of a seed are the same in every turn, message and answer, or no failure could be looked into.

use ashlar_sim::run::{CHAIN_SEEDS, SITE_SEEDS, run};

#[test]
fn a_seed_runs_the_same_way_twice_and_another_one_otherwise() {
    let mut hashes = Vec::new();
    for seed in (0..40).chain(SITE_SEEDS..SITE_SEEDS + 8).chain(CHAIN_SEEDS..CHAIN_SEEDS + 3) {
        let (first, second) = (run(seed, false), run(seed, false));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed} ran differently the second time");
        assert_eq!((first.steps, first.answers), (second.steps, second.answers), "seed {seed}");
        hashes.push(first.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 51, "different seeds give different runs");
}
