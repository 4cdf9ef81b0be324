//! Goal: what was acknowledged of chunks that have several copies is not lost. Method: the fixed seeds of continuous integration of the simulation of copies of chunks
//! ([`ashlar_sim::copies::chunks`]); whether they notice anything is tried with `cargo xtask mutants`. More of them: `cargo xtask simulate --what chunk-copies --seeds N`.

#[path = "support/seeds.rs"]
mod seeds;

use ashlar_sim::simulation::Simulation;
use seeds::{insist_on, pass_all};

/// Seeds that are run twice, each of which gives one run.
const TWICE: std::ops::Range<u64> = 3..5;

/// Seeds that found something once, and what.
const FOUND: [(u64, &str); 8] = [
    (20, "a head that had just been started told the writer of a damaged chunk that nobody had it"),
    (
        98,
        "a target whose disk failed was taken for the only one, as it had not heard yet that the copy behind was promoted",
    ),
    (184, "a damaged block of a change that the head had made alone was an error for good"),
    (203, "the same"),
    (340, "a mark of losses that came late was taken for a newer one than that which had overtaken it"),
    (224, "the simulation took what was written after a deletion for synced by a sync that had begun before"),
    (
        574,
        "a new copy was told that a block is lost which the target in front, that did not answer for a while, had whole",
    ),
    (
        3394,
        "the simulation cut the power of a target beside one that had not found out yet what it had lost itself",
    ),
];

#[test]
fn copies_of_chunks_lose_nothing() {
    let (count, counts) = pass_all(Simulation::ChunkCopies, 8, TWICE, &FOUND);
    let at_least = |what: &str, least: u64| insist_on(&counts, what, least);
    at_least("bits flipped", 1);
    at_least("read behind the head", 1);
    at_least("deletions", 1);
    at_least("written", 100 * count);
}
