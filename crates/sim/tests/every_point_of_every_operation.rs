//! Goal: whatever fails in the middle of an operation, it has happened whole or not at all, what was answered is there, and nothing is left
//! behind. Method: a part of the sweep ([`ashlar_sim::sweep`]), and what it has found. All of it: `cargo xtask simulate --what sweep`.

#[path = "support/seeds.rs"]
mod seeds;

use ashlar_sim::simulation::Simulation;
use seeds::pass_all;

/// A part of all; seeds beside each other differ in everything.
const SEEDS: u64 = 110;
const TWICE: std::ops::Range<u64> = 0..3;

/// Seeds that found something, and what.
const FOUND: [(u64, &str); 3] = [
    (2961, "a decision that came to a server which had just started took a file away that somebody had open"),
    (1955, "the same after a power cut; and what the decision waited for waited for what the decision held"),
    (2314, "blocks that a truncation had freed before a disk failed under it were counted for ever"),
];

#[test]
fn every_operation_happens_whole_or_not_at_all() {
    let (count, counts) = pass_all(Simulation::Sweep, SEEDS, TWICE, &FOUND);
    if count < SEEDS {
        return;
    }
    let least = [
        ("kills", 30),
        ("power cuts", 30),
        ("clients that died", 30),
        ("writes that failed", 30),
        ("syncs that failed", 3),
        ("kills of one of two servers", 3),
        ("power cuts of one of two servers", 3),
    ];
    for (what, least) in least {
        let found = counts.get(what).copied().unwrap_or(0);
        assert!(found >= least, "{found} {what} are too few");
    }
}
