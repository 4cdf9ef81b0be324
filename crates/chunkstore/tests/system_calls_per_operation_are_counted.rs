//! Goal: the budget of disk operations per call is kept (`design.md`, section 5, for the storage side). Method: the
//! simulated disk counts. The index's log write is one of the writes of a new chunk.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::ChunkStore;
use ashlar_env::sim::{DiskCounts, SimDisk};
use support::{World, chunk, pattern};

const MIB: u32 = 1 << 20;

/// Reads, writes, syncs and other operations of `call`.
fn cost(disk: &SimDisk, call: impl FnOnce()) -> (u64, u64, u64, u64) {
    let before = disk.counts();
    call();
    let after = disk.counts();
    let other = |counts: DiskCounts| counts.allocations + counts.dir_syncs + counts.names;
    (
        after.reads - before.reads,
        after.writes - before.writes,
        after.syncs - before.syncs,
        other(after) - other(before),
    )
}

/// A store with one full, synced chunk and warm slabs.
fn warm() -> (World, ChunkStore) {
    let world = World::new();
    let store = world.open();
    store.write(chunk(1, 0), MIB, 0, &pattern(1, MIB as usize), None).unwrap();
    store.sync().unwrap();
    (world, store)
}

#[test]
fn a_new_full_chunk_is_one_write_and_one_commit() {
    let (world, store) = warm();
    let data = pattern(2, MIB as usize);
    for index in 1..20 {
        let write = || {
            store.write(chunk(1, index), MIB, 0, &data, None).unwrap();
        };
        assert_eq!(cost(&world.disk, write), (0, 2, 0, 0), "chunk {index}");
    }
}

#[test]
fn an_overwrite_of_a_block_is_four_writes_and_a_read_one_read() {
    let (world, store) = warm();
    let data = pattern(2, 4096);
    let first = cost(&world.disk, || {
        store.write(chunk(1, 0), MIB, 8192, &data, None).unwrap();
    });
    assert_eq!(
        first,
        (0, 5, 1, 0),
        "note, data, checksums, note; the first one marks the region: one commit and one flush more"
    );
    for block in 0..200 {
        let write = || {
            store.write(chunk(1, 0), MIB, block * 4096, &data, None).unwrap();
        };
        assert_eq!(cost(&world.disk, write), (0, 4, 0, 0), "block {block}");
    }
    let mut out = vec![0; 4096];
    assert_eq!(
        cost(&world.disk, || {
            store.read(chunk(1, 0), MIB, 8192, &mut out).unwrap();
        }),
        (1, 0, 0, 0)
    );
    let mut out = vec![0; 100_000];
    assert_eq!(
        cost(&world.disk, || {
            store.read(chunk(1, 0), MIB, 777, &mut out).unwrap();
        }),
        (1, 0, 0, 0)
    );
    let unaligned = cost(&world.disk, || {
        store.write(chunk(1, 0), MIB, 100, &data, None).unwrap();
    });
    assert_eq!(unaligned, (2, 4, 0, 0), "both edges are read and checked");
}

#[test]
fn appends_read_nothing_and_syncs_cost_two() {
    let (world, store) = warm();
    let data = pattern(2, 100_000);
    store.write(chunk(2, 0), MIB, 0, &data, None).unwrap();
    for piece in 1..8 {
        let aligned = cost(&world.disk, || {
            store.write(chunk(3, 0), MIB, piece * 65_536, &data[..65_536], None).unwrap();
        });
        assert!(aligned == (0, 2, 0, 0) || piece == 1, "{aligned:?}");
        let unaligned = cost(&world.disk, || {
            store.write(chunk(2, 0), MIB, piece * 100_000, &data, None).unwrap();
        });
        assert_eq!(
            unaligned,
            (1, 5, 0, 0),
            "the last block is read; new blocks, note, last block, checksums, note"
        );
    }
    assert_eq!(cost(&world.disk, || store.sync().unwrap()), (0, 1, 2, 0), "slab and index");
    assert_eq!(cost(&world.disk, || store.sync().unwrap()), (0, 0, 0, 0), "nothing to do");
    let append = cost(&world.disk, || {
        store.write(chunk(2, 0), MIB, 800_000, &data, None).unwrap();
    });
    assert_eq!(append, (1, 5, 0, 0), "the sync marked the place of the next append");
    assert_eq!(
        cost(&world.disk, || store.sync().unwrap()),
        (0, 1, 1, 0),
        "the slab, and a suspect without a flush"
    );
}

#[test]
fn a_sequential_overwrite_of_synced_chunks_flushes_rarely() {
    let world = World::new();
    let store = world.open();
    let data = pattern(2, MIB as usize);
    for index in 0..200 {
        store.write(chunk(1, index), MIB, 0, &data, None).unwrap();
    }
    store.sync().unwrap();
    let mut world = world;
    world.config.dirty_regions_max = 1000;
    world.kill(store);
    let store = world.open();
    let before = store.stats().mark_flushes;
    for index in 0..200 {
        store.write(chunk(1, index), MIB, 0, &data, None).unwrap();
    }
    let flushes = store.stats().mark_flushes - before;
    assert!(flushes <= 8, "{flushes} flushes for 200 MiB");
}

#[test]
fn new_chunks_after_many_were_deleted_wait_for_no_punch_and_no_sync() {
    let (world, store) = warm();
    let data = pattern(2, 4096);
    for index in 0..1500 {
        store.write(chunk(2, index), MIB, 0, &data, None).unwrap();
    }
    while store.delete_generation(chunk(2, 0).inode, 1, 0).unwrap().next.is_some() {}
    store.sync().unwrap();
    let punched = store.stats().slots_punched;
    let (_, writes, syncs, other) = cost(&world.disk, || {
        for index in 0..1500 {
            store.write(chunk(3, index), MIB, 0, &data, None).unwrap();
        }
    });
    // 547 slots were never used; the rest takes a slab: one sync, and some operations on names. Two segments of the index's log end meanwhile.
    assert_eq!(store.stats().slots_punched, punched);
    assert!(
        writes <= 2 * 1500 + 1 && syncs <= 3 && other <= 6,
        "{writes} writes, {syncs} syncs, {other} others"
    );
}

#[test]
fn a_delete_is_one_commit_and_a_generation_a_few() {
    let (world, store) = warm();
    let data = pattern(2, MIB as usize);
    for index in 1..100 {
        store.write(chunk(1, index), MIB, 0, &data, None).unwrap();
    }
    assert_eq!(
        cost(&world.disk, || {
            store.delete(chunk(1, 0)).unwrap();
        }),
        (0, 1, 0, 0)
    );
    world.kill(store);
    let store = world.open();
    let all = cost(&world.disk, || {
        store.delete_generation(chunk(1, 0).inode, 1, 0).unwrap();
    });
    assert_eq!(all, (0, 1, 0, 0), "full chunks need no look at their headers");
}
