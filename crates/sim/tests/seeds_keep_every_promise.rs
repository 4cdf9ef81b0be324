//! The fixed seeds of continuous integration: whatever stops in the middle of what, nothing promised is lost, and everything answers as
//! the reference does. More of them: `cargo xtask simulate --seeds N`.

use ashlar_sim::run::{CHAIN_SEEDS, FEW_SEEDS, Report, SHARE_SEEDS, SITE_SEEDS, SPLIT_SEEDS};
use ashlar_sim::runner::Runner;

/// Seeds from 0 on that every test run goes through.
const SEEDS: u64 = 400;
/// And seeds in which directories are split.
const SEEDS_SPLIT: u64 = 150;
/// And seeds in which several clients write one file.
const SEEDS_SHARE: u64 = 150;
/// And seeds with several metadata servers.
const SEEDS_SITE: u64 = 40;
/// And seeds with storage servers beside them, whose targets give each other chains.
const SEEDS_CHAIN: u64 = 12;
/// And seeds, with storage servers or without, in which mounts are at metadata servers only where they have to be.
const SEEDS_FEW: u64 = 20;

/// Seeds that found something once, and what.
const FOUND: [(u64, &str); 57] = [
    (
        309_097,
        "the simulation had a hole over what was written after it, while the hole was made durable: there had been nothing in it",
    ),
    (
        342_945,
        "a power cut left no log: a checkpoint ended just where the next segment was begun, which was not durable yet",
    ),
    (
        361_329,
        "the simulation took a file on a missing target to be as short as a commit had made it that was lost with a failed sync",
    ),
    (
        19_381,
        "the simulation took a hole behind the end of a file for a change at the moment at which it was answered",
    ),
    (24_162, "a client that hangs kept all from a file, as nobody waited for its answer to a recall"),
    (5, "a stat told an old size while a report was on its way and a recall was answered past it"),
    (17, "a power cut brought back chunks whose garbage record was gone"),
    (44, "a lease that was taken back while the grant travelled was taken for valid"),
    (60, "a client did not see the size it was just reporting"),
    (64, "the end of one writer's session counted the blocks of another's twice"),
    (74, "a fallocate lost the new size with the process"),
    (112, "an open told an old size because a report ended meanwhile"),
    (124, "a call of a session that had ended left a writer record"),
    (181, "two readers evicted each other over access times"),
    (45, "a power cut leaked chunks that the log had forgotten"),
    (206, "after a power cut a chunk reached beyond the end of its file"),
    (834, "after a power cut a later chunk reached beyond the end of its file"),
    (1093, "a hole showed bytes of a write that a power cut had taken back"),
    (1709, "a new file showed bytes of one that a power cut had taken back"),
    (557, "a spill dropped what another client had synced"),
    (911, "a fallocate in a synchronous directory was not durable"),
    (1904, "a fsync did not reach the chunks of a file that another client had moved there"),
    (2263, "a lane was in none of the states it may be in"),
    (2575, "a create told a link count of zero"),
    (2904, "a write that failed left a size nobody expected"),
    (4501, "blocks of emptied content were reported with the next chunks"),
    (2966, "a write that failed left bytes nobody expected"),
    (2466, "a chmod of a pipe in a synchronous directory was not durable"),
    (3187, "a chmod of a pipe in a synchronous directory was not durable"),
    (
        20798,
        "a lease was taken for valid while a recall of a file that had just been opened was being answered",
    ),
    (22521, "a create with truncation told the size from before it"),
    (24769, "a sync covered an inline file, and its move to chunks by another client lost it in a power cut"),
    (25202, "as 24769"),
    (24663, "a close was expected to be durable"),
    (28264, "a write was answered EAGAIN after a lease that had been given back"),
    (29718, "what a failed write left was forgotten"),
    (34600, "a stat told an old size"),
    (37482, "a link told a size from after its commit"),
    (83124, "a write that a hanging client had not ended was expected to be there whole or not at all"),
    (
        110325,
        "an open told the size from before it was asked of the chunks of a writer that had been evicted",
    ),
    (66632, "a truncation that had failed was carried out after a fsync of what was written since"),
    (1001444, "what was written after a truncation that had failed was lost with the next start"),
    (
        3100682,
        "a read told new bytes up to an old length: another session wrote before READ had been given back",
    ),
    (1015679, "as 1001444, after a crash of the process"),
    (2000415, "a file that a dead client was writing ended early while one of its targets was missing"),
    (
        2024521,
        "chunks that a power cut had taken from a file stayed on a target that came back, for others had got their generation",
    ),
    (2000365, "two appends failed halfway, and what the second left was not where the reference had put it"),
    (6001381, "a stat told a new link with a size from before it"),
    (6001188, "a commit waited for the disk to make a segment while everybody waited for its lock"),
    (1013947, "an open that joined a recall told a size from before it began"),
    (29000265, "a block whose checksum could not be written was unreadable after a restart"),
    (
        31001302,
        "half a checksum, which a failing write had left, made a reserved block unreadable after a restart",
    ),
    (
        SHARE_SEEDS + 4,
        "of two that wrote one file the one that reported last took the time of change back to its own write",
    ),
    (
        SHARE_SEEDS + 32,
        "who wrote a file beside others was told the time of its own write after they had written",
    ),
    (CHAIN_SEEDS + 10, "a note about a chain that had not come after all stayed where it was to come"),
    (CHAIN_SEEDS + 12, "as CHAIN_SEEDS + 10"),
    (
        FEW_SEEDS + 283,
        "a session that had come along with a shard, and was evicted before its holder had come, stayed for ever",
    ),
];

fn check(runner: &mut Runner, seed: u64, what: &str) -> u64 {
    pass(runner, seed, what).answers
}

fn pass(runner: &mut Runner, seed: u64, what: &str) -> Report {
    let report = runner.run(seed, false);
    assert!(
        report.failures.is_empty(),
        "seed {seed} ({what}) fails: {}; replay: cargo xtask simulate --seed {seed} --trace",
        report.failures.join("; ")
    );
    report
}

#[test]
fn the_first_seeds_find_nothing() {
    let mut runner = Runner::default();
    let answers: u64 = (0..SEEDS).map(|seed| check(&mut runner, seed, "one of the first")).sum();
    // A workload that stops early would find nothing either.
    assert!(answers > SEEDS * 40, "only {answers} answers were checked");
}

#[test]
fn seeds_that_found_something_find_nothing_any_more() {
    let mut runner = Runner::default();
    for (seed, what) in FOUND {
        check(&mut runner, seed, what);
    }
}

#[test]
fn seeds_that_split_directories_find_nothing() {
    let mut runner = Runner::default();
    let seeds = SPLIT_SEEDS..SPLIT_SEEDS + SEEDS_SPLIT;
    let answers: u64 = seeds.map(|seed| check(&mut runner, seed, "with directories that are split")).sum();
    assert!(answers > SEEDS_SPLIT * 40, "only {answers} answers were checked");
}

#[test]
fn seeds_that_write_one_file_with_several_clients_find_nothing() {
    let mut runner = Runner::default();
    let seeds = SHARE_SEEDS..SHARE_SEEDS + SEEDS_SHARE;
    let answers: u64 = seeds.map(|seed| check(&mut runner, seed, "with a file that several write")).sum();
    assert!(answers > SEEDS_SHARE * 40, "only {answers} answers were checked");
}

#[test]
fn seeds_that_start_servers_anew_and_move_shards_find_nothing() {
    let mut runner = Runner::default();
    let seeds = SITE_SEEDS..SITE_SEEDS + SEEDS_SITE;
    let answers: u64 = seeds.map(|seed| check(&mut runner, seed, "with several metadata servers")).sum();
    assert!(answers > SEEDS_SITE * 40, "only {answers} answers were checked");
}

#[test]
fn seeds_whose_mounts_are_only_where_they_have_something_find_nothing() {
    let mut runner = Runner::default();
    let seeds = FEW_SEEDS..FEW_SEEDS + SEEDS_FEW;
    let answers: u64 = seeds.map(|seed| check(&mut runner, seed, "with mounts at few servers")).sum();
    assert!(answers > SEEDS_FEW * 40, "only {answers} answers were checked");
}

#[test]
fn seeds_whose_chains_move_while_they_are_written_find_nothing() {
    let mut runner = Runner::default();
    let seeds = CHAIN_SEEDS..CHAIN_SEEDS + SEEDS_CHAIN;
    let reports: Vec<Report> =
        seeds.map(|seed| pass(&mut runner, seed, "with chains that move between servers")).collect();
    let answers: u64 = reports.iter().map(|report| report.answers).sum();
    assert!(answers > SEEDS_CHAIN * 80, "only {answers} answers were checked");
    // Nor would one that moves nothing, or that nothing happens to.
    let (moves, stops): (u64, u64) =
        (reports.iter().map(|report| report.moves).sum(), reports.iter().map(|report| report.crashes).sum());
    assert!(moves > SEEDS_CHAIN * 4, "chains moved {moves} times only");
    assert!(stops > SEEDS_CHAIN, "servers stopped {stops} times only");
}
