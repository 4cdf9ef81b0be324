//! Goal: what a metadata server has acknowledged is in all copies of its log that count. Method: the fixed seeds of continuous integration of the simulation of copies of metadata
//! ([`ashlar_sim::copies::metadata`]). More of them: `cargo xtask simulate --what metadata-copies --seeds N`.

#[path = "support/seeds.rs"]
mod seeds;

use ashlar_sim::simulation::Simulation;
use seeds::{insist_on, pass_all};

/// Seeds that are run twice, each of which gives one run.
const TWICE: std::ops::Range<u64> = 3..5;

#[test]
fn copies_of_metadata_lose_nothing() {
    let (count, counts) = pass_all(Simulation::MetadataCopies, 8, TWICE, &[]);
    if count < 8 {
        return;
    }
    let least = [
        ("acknowledged", 3000),
        ("reads", 3000),
        ("runs with take-overs", 4),
        ("copies sent whole", 5),
        ("cuts of all", 3),
    ];
    for (what, least) in least {
        insist_on(&counts, what, least + 1);
    }
}
