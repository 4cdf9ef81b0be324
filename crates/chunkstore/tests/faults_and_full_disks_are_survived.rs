//! Goal: a full disk refuses writes and nothing else, and loses nothing; a failed write or sync stops the store for good.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkError, ChunkStore};
use ashlar_env::sim::FaultOp;
use ashlar_env::{Disk, OpenMode};
use std::time::Duration;
use support::{World, chunk, content, pattern, scrub_all};

const KIB64: u32 = 64 << 10;
const ENOSPC: i32 = 28;
const EIO: i32 = 5;

/// Writes full chunks until the store refuses one; how many it took.
fn fill(store: &ChunkStore) -> u64 {
    for index in 0.. {
        match store.write(chunk(7, index), KIB64, 0, &pattern(index, KIB64 as usize), None) {
            Ok(_) => {}
            Err(ChunkError::NoSpace { .. }) => return index,
            Err(error) => panic!("{error}"),
        }
        assert!(index < 10_000);
    }
    unreachable!()
}

#[test]
fn a_full_disk_still_deletes_truncates_syncs_and_overwrites_and_takes_writes_again() {
    let mut world = World::new();
    world.disk.set_capacity(24 << 20);
    world.config.freed_bytes_max = 1 << 30;
    let store = world.open();
    let count = fill(&store);
    assert!(count > 100, "{count}");
    assert!(world.disk.space().unwrap().bytes_free >= 1 << 20, "the reserve is kept");
    let small =
        (100..).find(|index| store.write(chunk(8, *index), KIB64, 9000, b"x", None).is_err()).unwrap();
    assert!(matches!(store.write(chunk(8, small), KIB64, 9000, b"x", None), Err(ChunkError::NoSpace { .. })));
    assert!(matches!(store.allocate(chunk(8, small), KIB64, 0, 4096), Err(ChunkError::NoSpace { .. })));
    assert_eq!(store.read(chunk(8, small), KIB64, 0, &mut [0; 10]).unwrap(), 0);
    store.sync().unwrap();
    store.write(chunk(7, 3), KIB64, 8192, &pattern(99, 4096), None).unwrap();
    assert_eq!(store.truncate(chunk(7, 4), KIB64, 4096).unwrap(), -15 * 8);
    assert_eq!(store.delete(chunk(7, 5)).unwrap(), 128);
    assert_eq!(store.delete(chunk(7, 6)).unwrap(), 128);
    store.sync().unwrap();
    assert!(store.space().unwrap().bytes_free >= 2 * u64::from(KIB64), "what free slots hold counts as free");
    store.write(chunk(8, 1), KIB64, 0, &pattern(200, KIB64 as usize), None).unwrap();
    store.write(chunk(8, 2), KIB64, 0, &pattern(201, 100), None).unwrap();
    for index in 0..count {
        let (_, bytes) = content(&store, chunk(7, index), KIB64).unwrap();
        let mut expected = pattern(index, KIB64 as usize);
        match index {
            3 => expected[8192..12_288].copy_from_slice(&pattern(99, 4096)),
            4 => expected[4096..].fill(0),
            5 | 6 => expected.fill(0),
            _ => {}
        }
        assert!(bytes == expected, "chunk {index}");
    }
    world.crash(store, 9);
    let store = world.open();
    assert!(scrub_all(&store).is_empty());
    assert!(store.stats().refused_for_space == 0);
}

#[test]
fn free_slots_hold_no_space_while_the_disk_is_short_of_it() {
    let mut world = World::new();
    world.disk.set_capacity(24 << 20);
    world.config.freed_bytes_max = 1 << 30;
    let store = world.open();
    let count = fill(&store);
    assert!(store.space().unwrap().bytes_free < 1 << 20, "statfs says that it is full");
    store.sync().unwrap();
    let free = || world.disk.space().unwrap().bytes_free;
    let full = free();
    (0..count / 3).for_each(|index| {
        store.delete(chunk(7, index)).unwrap();
    });
    store.sync().unwrap();
    assert!(free() < full + (1 << 20), "deleting alone gives nothing back");
    let third = count / 3 * u64::from(KIB64);
    assert!(store.space().unwrap().bytes_free >= third, "but it counts");
    let report = store.background_tick(64).unwrap();
    assert!(free() >= full + third, "one tick gives all of it to whoever needs it: {report:?}");
    assert_eq!(report.slots_kept, 0);
    // Now there is enough, and what is freed is kept for quick reuse.
    (count / 3..count / 3 + 9).for_each(|index| {
        store.delete(chunk(7, index)).unwrap();
    });
    store.sync().unwrap();
    assert_eq!(store.background_tick(64).unwrap().slots_kept, 9);
    assert_eq!(store.give_back().unwrap(), 0, "nobody needs it");
    // Others take what is free: somebody who waits for space need not wait for a tick, nor for a sync.
    crowd(&world, 0);
    (count / 3 + 9..count / 3 + 20).for_each(|index| {
        store.delete(chunk(7, index)).unwrap();
    });
    assert_eq!(store.give_back().unwrap(), 20);
    assert!(free() >= 20 * u64::from(KIB64));
    for index in count / 3 + 20..count {
        assert!(content(&store, chunk(7, index), KIB64).unwrap().1 == pattern(index, KIB64 as usize));
    }
    world.crash(store, 3);
    assert!(scrub_all(&world.open()).is_empty());
}

/// Leaves `left` bytes free by a file of others.
fn crowd(world: &World, left: u64) {
    let file = world.disk.open("others", OpenMode::CreateOrOpen).unwrap();
    let free = world.disk.space().unwrap().bytes_free;
    file.allocate(0, file.len().unwrap() + free.saturating_sub(left)).unwrap();
}

#[test]
fn what_is_there_is_overwritten_when_not_even_the_index_has_space_for_new_records() {
    let mut world = World::new();
    world.disk.set_capacity(24 << 20);
    world.config.index.reserve_bytes = 1 << 20;
    let store = world.open();
    for index in 0..20 {
        store.write(chunk(1, index), KIB64, 0, &pattern(index, KIB64 as usize), None).unwrap();
    }
    store.sync().unwrap();
    crowd(&world, 0);
    store.background_tick(1).unwrap();
    let refused = store.write(chunk(2, 0), KIB64, 0, b"new", None);
    assert!(matches!(refused, Err(ChunkError::NoSpace { .. })), "{refused:?}");
    for round in 1..4 {
        for index in 0..20 {
            let new = pattern(round * 100 + index, 5000);
            store.write(chunk(1, index), KIB64, 7000, &new, None).unwrap();
        }
        store.sync().unwrap();
        world.clock.advance(Duration::from_secs(60));
        store.background_tick(1).unwrap();
    }
    world.crash(store, 5);
    let store = world.open();
    for index in 0..20 {
        let mut expected = pattern(index, KIB64 as usize);
        expected[7000..12_000].copy_from_slice(&pattern(300 + index, 5000));
        assert!(content(&store, chunk(1, index), KIB64).unwrap().1 == expected, "{index}");
    }
    assert!(scrub_all(&store).is_empty());
}

#[test]
fn a_write_that_finds_no_space_half_way_leaves_what_was_there() {
    let world = World::new();
    let store = world.open();
    let id = chunk(1, 0);
    store.write(id, KIB64, 10_000, &pattern(1, 10_000), None).unwrap();
    store.sync().unwrap();
    // The first write of the call goes to the holes around the old data.
    for nth in 1..=4 {
        world.disk.fail_nth(FaultOp::Write, nth, ENOSPC);
        let result = store.write(id, KIB64, 0, &pattern(2, 50_000), None);
        let (len, bytes) = content(&store, id, KIB64).unwrap();
        if result.is_ok() {
            assert!(len == 50_000 && bytes[..50_000] == pattern(2, 50_000));
        } else {
            assert!(matches!(result, Err(ChunkError::NoSpace { .. })), "{result:?}");
            assert_eq!(len, 20_000);
            let old = pattern(1, 10_000);
            let new = pattern(2, 50_000);
            let is_old_or_new = |at: usize| bytes[at] == old[at - 10_000] || bytes[at] == new[at];
            assert!((10_000..20_000).all(is_old_or_new));
            assert!(nth > 2 || bytes[10_000..20_000] == old, "only holes were written to");
        }
        assert!(scrub_all(&store).is_empty(), "{nth}");
    }
    world.disk.fail_nth(FaultOp::Write, 1, ENOSPC);
    assert!(matches!(store.write(chunk(2, 0), KIB64, 0, b"new", None), Err(ChunkError::NoSpace { .. })));
    assert!(matches!(store.chunk_blocks(chunk(2, 0)), Err(ChunkError::NotFound(_))));
    world.disk.fail_nth(FaultOp::Allocate, 1, ENOSPC);
    assert!(matches!(store.allocate(chunk(2, 0), KIB64, 0, 9), Err(ChunkError::NoSpace { .. })));
    store.write(chunk(2, 0), KIB64, 0, b"new", None).unwrap();
    assert_eq!(content(&store, chunk(2, 0), KIB64).unwrap().0, 3);
    assert!(scrub_all(&store).is_empty());
}

#[test]
fn a_failed_sync_or_write_stops_the_store_for_good() {
    for (op, nth) in [(FaultOp::Sync, 1), (FaultOp::Sync, 2), (FaultOp::Write, 1), (FaultOp::Write, 2)] {
        let world = World::new();
        let store = world.open();
        store.write(chunk(1, 0), KIB64, 0, &pattern(1, 9000), None).unwrap();
        store.sync().unwrap();
        store.write(chunk(1, 1), KIB64, 0, &pattern(2, 9000), None).unwrap();
        world.disk.fail_nth(op, nth, EIO);
        let failed = match op {
            FaultOp::Sync => store.sync().unwrap_err(),
            _ => store.write(chunk(1, 2), KIB64, 0, &pattern(3, KIB64 as usize), None).unwrap_err(),
        };
        assert!(matches!(failed, ChunkError::Stopped { .. }), "{op:?} {nth}: {failed}");
        for _ in 0..2 {
            assert!(matches!(store.sync(), Err(ChunkError::Stopped { .. })), "{op:?}: never retried");
            assert!(matches!(content(&store, chunk(1, 0), KIB64), Err(ChunkError::Stopped { .. })));
            assert!(matches!(
                store.write(chunk(1, 0), KIB64, 0, b"x", None),
                Err(ChunkError::Stopped { .. })
            ));
            assert!(matches!(store.delete(chunk(1, 0)), Err(ChunkError::Stopped { .. })));
            assert!(matches!(store.background_tick(5), Err(ChunkError::Stopped { .. })));
        }
        world.crash(store, nth);
        let store = world.open();
        assert!(content(&store, chunk(1, 0), KIB64).unwrap().1[..9000] == pattern(1, 9000));
        assert!(scrub_all(&store).is_empty());
    }
}

#[test]
fn a_read_error_is_the_readers_alone() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(1, 0), KIB64, 0, &pattern(1, 9000), None).unwrap();
    world.disk.fail_nth(FaultOp::Read, 1, EIO);
    assert!(matches!(content(&store, chunk(1, 0), KIB64), Err(ChunkError::Io { .. })));
    assert!(content(&store, chunk(1, 0), KIB64).unwrap().1[..9000] == pattern(1, 9000));
}

#[test]
fn a_freed_slot_is_not_used_before_its_deletion_is_durable() {
    let world = World::new();
    let store = world.open();
    let old = pattern(1, KIB64 as usize);
    store.write(chunk(1, 0), KIB64, 0, &old, None).unwrap();
    store.sync().unwrap();
    store.delete(chunk(1, 0)).unwrap();
    for index in 0..50 {
        store.write(chunk(2, index), KIB64, 0, &pattern(9, KIB64 as usize), None).unwrap();
    }
    let file = world.disk.open("slabs/65536/0.slab", OpenMode::Read).unwrap();
    let mut bytes = vec![0; KIB64 as usize];
    file.read_at(4096, &mut bytes).unwrap();
    assert!(bytes == old, "a power cut would bring the chunk back");
    store.sync().unwrap();
    let before = store.stats().slots_recycled;
    store.write(chunk(3, 0), KIB64, 0, &pattern(9, KIB64 as usize), None).unwrap();
    assert_eq!(store.stats().slots_recycled, before + 1, "now it is");
}

#[test]
fn a_recycled_slot_shows_nothing_of_its_past_whatever_a_power_cut_leaves() {
    for seed in 0..150 {
        recycle_and_cut_power(seed, KIB64, 8);
    }
    // The checksums of larger chunks take several sectors, which a power cut keeps or loses one by one.
    for seed in 0..80 {
        recycle_and_cut_power(seed, 1 << 20, 3);
    }
}

fn recycle_and_cut_power(seed: u64, size: u32, count: u64) {
    let mut world = World::new();
    let is_punched = seed % 4 < 2;
    world.config.freed_bytes_max = if is_punched { 0 } else { 1 << 30 };
    let store = world.open();
    let secret = vec![0xAA; size as usize];
    for index in 0..count {
        store.write(chunk(1, index), size, 0, &secret, None).unwrap();
    }
    store.sync().unwrap();
    (0..count).for_each(|index| {
        store.delete(chunk(1, index)).unwrap();
    });
    store.sync().unwrap();
    let mut store = store;
    if is_punched {
        store.background_tick(100).unwrap();
    } else if seed % 8 >= 4 {
        // The open cleans some slots.
        world.kill(store);
        store = world.open();
    }
    for index in 0..count {
        let len = if index % 2 == 0 { size } else { 50_000 };
        store.write(chunk(2, index), size, 0, &vec![0x55; len as usize], None).unwrap();
        if seed.is_multiple_of(3) {
            store.write(chunk(2, index), size, 30_000, &[0x55; 3000], None).unwrap();
        }
    }
    // The index is durable, the slabs are not: the new chunks exist, whatever is in their slots.
    world.clock.advance(Duration::from_secs(1));
    store.background_tick(0).unwrap();
    world.crash(store, seed);
    let store = world.open();
    for index in 0..count {
        let is_own = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, 0 | 0x55));
        assert!(is_own(&content(&store, chunk(2, index), size).unwrap().1), "seed {seed} chunk {index}");
        store.truncate(chunk(2, index), size, size).unwrap();
        assert!(
            is_own(&content(&store, chunk(2, index), size).unwrap().1),
            "seed {seed} chunk {index}, grown"
        );
    }
    assert!(scrub_all(&store).is_empty());
}
