//! Goal: whatever fails in the middle of an operation, it has happened whole or not at all, what was answered is there, and nothing is left
//! behind. Method: a part of the sweep ([`ashlar_sim::sweep`]), and what it has found. All of it: `cargo xtask simulate --what sweep`.

#[path = "support/seeds.rs"]
mod seeds;

use ashlar_sim::simulation::Simulation;
use ashlar_sim::sweep::seed_of;
use seeds::{insist_on, pass_all};

/// A part of all; seeds beside each other differ in everything.
const SEEDS: u64 = 110;
const TWICE: std::ops::Range<u64> = 0..3;

/// What found something, and what.
const FOUND: [(&str, &str); 3] = [
    (
        "open file renamed, Kill { server: 0 }",
        "a decision that came to a server which had just started took a file away that somebody had open",
    ),
    (
        "open file renamed, PowerCut { server: 0 }",
        "the same after a power cut; and what the decision waited for waited for what the decision held",
    ),
    (
        "truncate of chunks, Durable, Disk { disk: 0, op: Write, errno: 5 }",
        "blocks that a truncation had freed before a disk failed under it were counted for ever",
    ),
];

#[test]
fn every_operation_happens_whole_or_not_at_all() {
    let found = FOUND.map(|(case, what)| (seed_of(case).expect(case), what));
    let (count, counts) = pass_all(Simulation::Sweep, SEEDS, TWICE, &found);
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
        insist_on(&counts, what, least);
    }
}
