//! Goal: on the operating system's disk and the real engine, a process that is killed in the middle of its work loses no
//! acknowledged write. Method: the test runs itself as a child that works through a fixed sequence and tells the number of
//! each operation it finished; the parent kills it, repeats the sequence in memory, and compares.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkStore, Config, ENGINE_DIR, RecoveryReport};
use ashlar_env::Env;
use ashlar_env::os::OsDisk;
use ashlar_kv::{FjallEngine, FjallOptions};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use support::{IDENTITY, chunk, content, pattern, scrub_all};

const KIB64: u32 = 64 << 10;
const DIRECTORY: &str = "ASHLAR_TEST_TARGET";
const FIRST: &str = "ASHLAR_TEST_FIRST_OPERATION";
const CHUNKS: u64 = 40;

fn open(root: &Path) -> (ChunkStore, RecoveryReport) {
    let disk = Arc::new(OsDisk::new(root));
    if ChunkStore::header(&*disk).is_err() {
        ChunkStore::format(&*disk, &IDENTITY).unwrap();
    }
    let engine = root.join(ENGINE_DIR);
    let make = move || Ok(Box::new(FjallEngine::open(engine, FjallOptions::default())?) as Box<_>);
    let config = Config { reserve_bytes: Some(1 << 20), ..Config::default() };
    ChunkStore::open(disk, make, &Env::os(), &IDENTITY, config).unwrap()
}

enum Operation {
    Write { offset: u32, data: Vec<u8> },
    Delete,
    Truncate { len: u32 },
    Sync,
}

/// Operation `number` of the sequence and the chunk it is about.
fn operation(number: u64) -> (u64, Operation) {
    let dice = pattern(number, 8);
    let index = u64::from(dice[0]) % CHUNKS;
    let block = u32::from(dice[1]) % 16;
    let operation = match dice[2] % 16 {
        0..5 => Operation::Write { offset: 0, data: pattern(number, KIB64 as usize) },
        5..10 => Operation::Write { offset: block * 4096, data: pattern(number, 4096) },
        10..13 => Operation::Write { offset: block * 3000 + 7, data: pattern(number, 5000) },
        13 => Operation::Delete,
        14 => Operation::Truncate { len: block * 3000 + 1 },
        _ => Operation::Sync,
    };
    (index, operation)
}

/// The child: does nothing unless the parent named a target.
#[test]
fn child_that_works_until_it_is_killed() {
    let (Ok(root), Ok(first)) = (std::env::var(DIRECTORY), std::env::var(FIRST)) else { return };
    let (store, _) = open(Path::new(&root));
    let mut out = std::io::stdout();
    for number in first.parse::<u64>().unwrap().. {
        let (index, operation) = operation(number);
        match operation {
            Operation::Write { offset, data } => {
                store.write(chunk(1, index), KIB64, offset, &data, None).unwrap();
            }
            Operation::Delete => {
                store.delete(chunk(1, index)).unwrap();
            }
            Operation::Truncate { len } => {
                store.truncate(chunk(1, index), KIB64, len).unwrap();
            }
            Operation::Sync if number % 3 == 0 => store.sync().unwrap(),
            Operation::Sync => drop(store.background_tick(10).unwrap()),
        }
        writeln!(out, "done {number}").unwrap();
    }
}

type Model = BTreeMap<u64, (usize, Vec<u8>)>;

fn apply(model: &mut Model, number: u64) {
    let (index, operation) = operation(number);
    match operation {
        Operation::Write { offset, data } => {
            let (len, bytes) = model.entry(index).or_insert_with(|| (0, vec![0; KIB64 as usize]));
            let end = offset as usize + data.len();
            bytes[offset as usize..end].copy_from_slice(&data);
            *len = end.max(*len);
        }
        Operation::Delete => drop(model.remove(&index)),
        Operation::Truncate { len: new } => {
            if let Some((len, bytes)) = model.get_mut(&index) {
                bytes[new as usize..].fill(0);
                *len = new as usize;
            }
        }
        Operation::Sync => {}
    }
}

/// Runs the child from operation `first` on and kills it after about `count`; the last one it finished.
fn run_child(root: &Path, first: u64, count: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_works_until_it_is_killed", "--nocapture"])
        .env(DIRECTORY, root)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut last = first;
    let mut is_killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // The harness may have begun the line.
        let Some(number) = line.as_deref().ok().and_then(|line| line.split("done ").nth(1)) else { continue };
        let Ok(number) = number.parse() else { continue };
        last = number;
        if number >= first + count && !is_killed {
            child.kill().unwrap();
            is_killed = true;
        }
    }
    child.wait().unwrap();
    assert!(is_killed, "the child died by itself after operation {last}");
    last
}

#[test]
fn a_killed_process_loses_no_acknowledged_write() {
    let root = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let mut first = 1;
    for life in 0..6 {
        let last = run_child(root.path(), first, 100 + 150 * life);
        (first..=last).for_each(|number| apply(&mut model, number));
        // The operation behind the last one told may have happened, or its answer may not have been written.
        let mut after = model.clone();
        apply(&mut after, last + 1);
        let (in_flight, _) = operation(last + 1);
        let (store, report) = open(root.path());
        assert!(report.chunks_dropped == 0 && report.slots_damaged == 0, "{report:?}");
        assert!(scrub_all(&store).is_empty(), "life {life}");
        let absent = (0, vec![0; KIB64 as usize]);
        for index in 0..CHUNKS {
            let seen = content(&store, chunk(1, index), KIB64).unwrap();
            let old = model.get(&index).unwrap_or(&absent);
            let new = after.get(&index).unwrap_or(&absent);
            if index != in_flight {
                assert!(seen == *old, "life {life}, chunk {index}");
            } else {
                assert!(seen.0 == old.0 || seen.0 == new.0, "life {life}, chunk {index}");
                let is_either = |at: usize| seen.1[at] == old.1[at] || seen.1[at] == new.1[at];
                assert!((0..KIB64 as usize).all(is_either), "life {life}, chunk {index}");
            }
            // What is there now is where the next life goes on.
            if store.chunk_blocks(chunk(1, index)).is_ok() {
                model.insert(index, seen);
            } else {
                model.remove(&index);
            }
        }
        first = last + 2;
        if life % 2 == 0 {
            store.close().unwrap();
        }
    }
}
