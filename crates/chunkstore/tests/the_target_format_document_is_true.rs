//! Goal: `docs/formats/target.md` says what is on the disk. Method: makes the target of its examples and compares every byte;
//! the other way round, bytes of the document are what an open finds. `ASHLAR_PRINT` prints what it found.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkStore, Config, INDEX_DIR, SUM_RESERVED, TargetHeader, sum_of};
use ashlar_env::{Disk, OpenMode};
use ashlar_kv::{Lane, Snapshot};
use ashlar_types::{ChainId, ChunkId, InodeId, ShardId, Start};
use std::ops::ControlFlow;
use std::sync::Arc;
use support::{IDENTITY, World};

const KIB64: u32 = 64 << 10;
const SLAB: &str = "slabs/65536/0.slab";

/// The bytes of an example.
fn example(name: &str) -> Vec<u8> {
    let document = include_str!("../../../docs/formats/target.md");
    let start = format!("```hex {name}\n");
    let (_, rest) = document.split_once(&start).unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let digits: String = block.chars().filter(|char| !char.is_whitespace()).collect();
    let byte = |at: usize| {
        u8::from_str_radix(&digits[at..at + 2], 16).unwrap_or_else(|_| panic!("{name}: {digits}"))
    };
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn check(name: &str, found: &[u8]) {
    if std::env::var("ASHLAR_PRINT").is_ok() {
        let lines: Vec<String> =
            found.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x} ")).collect()).collect();
        println!("@{name}\n{}", lines.join("\n"));
    } else {
        assert_eq!(found, example(name), "{name}");
    }
}

/// The start of the examples.
const START: Start = Start { number: 7, tag: u64::from_le_bytes(*b"seventh!") };

fn chunk() -> ChunkId {
    ChunkId { inode: InodeId::new(ShardId(1), 5).unwrap(), generation: 2, index: 7 }
}

#[test]
fn the_examples_are_what_is_written() {
    let mut world = World::new();
    world.config.start = Some(START);
    let store = world.open();
    store.write(chunk(), (KIB64, ChainId(3)), 4096, b"Ashlar", None).unwrap();
    let mut header = vec![0; 160];
    let read =
        |path: &str, out: &mut [u8]| world.disk.open(path, OpenMode::Read).unwrap().read_at(0, out).unwrap();
    read(SLAB, &mut header);
    check("slot-header", &header);
    let mut target = vec![0; 200];
    let len = read("target", &mut target);
    check("target", &target[..len]);
    world.kill(store);
    let engine = Box::new(world.engine.clone());
    let disk = Arc::new(world.disk.clone());
    let lane =
        Lane::open(disk, INDEX_DIR, engine, &world.env, IDENTITY.cluster, Config::small().index).unwrap();
    for (name, table) in [("chunk-record", b'c'), ("group-record", b'g'), ("fresh-record", b'n')] {
        let mut pair = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            pair.extend_from_slice(key);
            pair.extend_from_slice(value);
            ControlFlow::Continue(())
        };
        lane.read().scan(&[0, 0, table], &[0, 0, table + 1], &mut visit).unwrap();
        check(name, &pair);
    }
    let mark = lane.read().get(b"\0\0mmark").unwrap().unwrap();
    check("mark-record", &[b"\0\0mmark", &mark[..]].concat());
}

#[test]
fn the_bytes_of_the_document_are_a_target() {
    assert_eq!(
        TargetHeader::decode(&example("target"), "target").unwrap(),
        TargetHeader { identity: IDENTITY, start: START }
    );
    let world = World::new();
    let store = world.open();
    // Any chunk, so that the slab is there.
    store.write(ChunkId { index: 8, ..chunk() }, KIB64, 0, b"x", None).unwrap();
    store.close().unwrap();
    world.kill(store);
    let file = world.disk.open(SLAB, OpenMode::ReadWrite).unwrap();
    file.write_at(0, &[0; 8192]).unwrap();
    file.write_at(0, &example("slot-header")).unwrap();
    file.write_at(8192, b"Ashlar").unwrap();
    let engine = world.engine.clone();
    let disk = Arc::new(world.disk.clone());
    let make = move || Ok(Box::new(engine) as Box<_>);
    let report = ChunkStore::rebuild_index(disk, make, &world.env, &IDENTITY, &Config::small()).unwrap();
    assert_eq!((report.chunks, report.damaged), (1, 0));
    let store = world.open();
    let mut out = [1; 10];
    assert_eq!(store.read(chunk(), KIB64, 4094, &mut out).unwrap(), 8);
    assert_eq!(&out, b"\0\0Ashlar\0\0");
    let header = example("slot-header");
    assert_eq!(header[100..104], sum_of(b"Ashlar").to_le_bytes());
    assert_eq!(SUM_RESERVED, 0x4456_5352);
}
