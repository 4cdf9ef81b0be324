//! Goal: what free slots hold on the local disk counts as free, or is given back to it, also when they were freed before the target was
//! opened: after a clean stop, and after a kill. Method: full chunks are deleted, the target is opened anew, and its own figures and
//! those of the disk are compared with what they were before anything was written.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::ChunkStore;
use ashlar_env::Disk;
use std::time::Duration;
use support::{World, chunk, content, pattern};

const KIB64: u32 = 64 << 10;
const CHUNKS: u64 = 400;
const BYTES: u64 = CHUNKS * KIB64 as u64;
/// Headers, logs, and what the index takes.
const MARGIN: u64 = 4 << 20;

fn write_and_delete(store: &ChunkStore) {
    for index in 0..CHUNKS {
        store.write(chunk(7, index), KIB64, 0, &pattern(index, KIB64 as usize), None).unwrap();
    }
    store.write(chunk(8, 0), KIB64, 0, &pattern(1, KIB64 as usize), None).unwrap();
    store.sync().unwrap();
    let mut from = Some(0);
    while let Some(first) = from {
        from = store.delete_generation(chunk(7, 0).inode, 1, first).unwrap().next;
    }
    store.sync().unwrap();
}

fn tick(world: &World, store: &ChunkStore) {
    for _ in 0..200 {
        world.clock.advance(Duration::from_millis(100));
        store.background_tick(64).unwrap();
    }
}

fn check(keep_bytes: u64, end: impl Fn(&World, ChunkStore)) {
    let mut world = World::new();
    world.disk.set_capacity(256 << 20);
    world.config.freed_bytes_max = keep_bytes;
    let store = world.open();
    let before = store.space().unwrap().bytes_free;
    write_and_delete(&store);
    end(&world, store);

    let store = world.open();
    tick(&world, &store);
    let after = store.space().unwrap().bytes_free;
    assert!(after + MARGIN > before, "{after} of {before}");
    let held = store.space().unwrap().bytes_held;
    assert!(held <= keep_bytes + MARGIN, "{held}");
    let on_disk = world.disk.space().unwrap().bytes_free;
    assert!(on_disk + keep_bytes + MARGIN > 256 << 20, "{on_disk}: what is not kept is given back");
    assert_eq!(
        content(&store, chunk(8, 0), KIB64).unwrap().1,
        pattern(1, KIB64 as usize),
        "what lives stays"
    );
    // What counts as free can be written.
    for index in 0..CHUNKS {
        store.write(chunk(9, index), KIB64, 0, &pattern(index, KIB64 as usize), None).unwrap();
    }
    let then = store.space().unwrap().bytes_free;
    assert!(then + BYTES + MARGIN > after && then < after, "{then} after {after}");
}

#[test]
fn after_a_clean_stop() {
    for keep in [1 << 20, 1 << 30] {
        check(keep, |_, store| store.close().unwrap());
    }
}

#[test]
fn after_a_kill() {
    for keep in [1 << 20, 1 << 30] {
        check(keep, |world, store| world.kill(store));
    }
}

#[test]
fn after_a_power_cut() {
    check(1 << 30, |world, store| world.crash(store, 3));
}
