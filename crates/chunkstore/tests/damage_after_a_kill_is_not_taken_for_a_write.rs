//! Goal: a bit that changes while no process has the target open is found where the process was killed, also in what was written the
//! moment before; only what was being overwritten at that moment is taken as it is. Method: the simulated disk knows a kill from a
//! power cut, and changes bits.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::ChunkError;
use ashlar_env::sim::FaultOp;
use ashlar_env::{Disk, OpenMode};
use ashlar_kv::{Frame, Key, Lane, Snapshot, Urgency, WriteSet};
use ashlar_types::{Epoch, OpId, ShardId};
use bytes::Bytes;
use std::sync::Arc;
use support::{IDENTITY, World, chunk, content, pattern, scrub_all};

const MIB: u32 = 1 << 20;
const MIB16: u32 = 16 << 20;
const BLOCK: u32 = 4096;

/// The only slab of a class, and where a byte of the chunk in its first slot is.
fn place(chunk_bytes: u32, at: u32) -> (String, u64) {
    let header = (96 + 4 * (chunk_bytes / BLOCK)).next_multiple_of(BLOCK);
    (format!("slabs/{chunk_bytes}/0.slab"), u64::from(header + at))
}

fn flip(world: &World, chunk_bytes: u32, at: u32) {
    let (slab, at) = place(chunk_bytes, at);
    world.disk.flip_bit(&slab, at * 8 + 3).unwrap();
}

/// What was done to a chunk of two blocks and a bit before the kill.
#[derive(Clone, Copy, Debug)]
enum Past {
    Unsynced,
    Synced,
    Overwritten,
    Appended,
    Truncated,
    Punched,
}

const PASTS: [Past; 6] =
    [Past::Unsynced, Past::Synced, Past::Overwritten, Past::Appended, Past::Truncated, Past::Punched];

/// A target with a chunk that has a past, after the kill, and what the chunk has to be.
fn killed(past: Past, chunk_bytes: u32) -> (World, Vec<u8>) {
    let world = World::new();
    let store = world.open();
    let id = chunk(1, 0);
    let mut expected = pattern(1, 10_000);
    store.write(id, chunk_bytes, 0, &expected, None).unwrap();
    match past {
        Past::Unsynced => {}
        Past::Synced => store.sync().unwrap(),
        Past::Overwritten => {
            store.sync().unwrap();
            expected[..5000].copy_from_slice(&pattern(2, 5000));
            store.write(id, chunk_bytes, 0, &pattern(2, 5000), None).unwrap();
        }
        Past::Appended => {
            store.sync().unwrap();
            expected.extend(pattern(2, 5000));
            store.write(id, chunk_bytes, 10_000, &pattern(2, 5000), None).unwrap();
        }
        Past::Truncated => {
            store.sync().unwrap();
            store.truncate(id, chunk_bytes, 9_000).unwrap();
            expected.truncate(9_000);
        }
        Past::Punched => {
            store.sync().unwrap();
            store.punch(id, chunk_bytes, 4000, 200).unwrap();
            expected[4000..4200].fill(0);
        }
    }
    world.kill(store);
    expected.resize(chunk_bytes as usize, 0);
    (world, expected)
}

#[test]
fn a_bit_that_changes_after_a_kill_is_no_write_in_flight() {
    for past in PASTS {
        for chunk_bytes in [64 << 10, MIB, MIB16] {
            for block in 0..2 {
                let (world, _) = killed(past, chunk_bytes);
                flip(&world, chunk_bytes, block * BLOCK + 17);
                let (store, report) = world.try_open().unwrap();
                assert_eq!(report.blocks_accepted, 0, "{past:?}");
                let read = content(&store, chunk(1, 0), chunk_bytes);
                assert!(
                    matches!(read, Err(ChunkError::Checksum { block: found, .. }) if found == block),
                    "{past:?} {chunk_bytes} {block}: {read:?}"
                );
                assert_eq!(scrub_all(&store).len(), 1, "{past:?}");
            }
        }
    }
}

#[test]
fn without_damage_everything_is_there_after_a_kill() {
    for past in PASTS {
        for chunk_bytes in [64 << 10, MIB, MIB16] {
            let (world, expected) = killed(past, chunk_bytes);
            let (store, report) = world.try_open().unwrap();
            assert_eq!((report.blocks_accepted, report.blocks_dropped, report.slots_damaged), (0, 0, 0));
            assert!(content(&store, chunk(1, 0), chunk_bytes).unwrap().1 == expected, "{past:?}");
            assert!(scrub_all(&store).is_empty(), "{past:?}");
        }
    }
}

#[test]
fn a_damaged_header_of_a_new_chunk_is_an_error_after_a_kill_and_no_hole() {
    // Magic number, identity, length; each of them once.
    for at in [2, 50, 82] {
        let world = World::new();
        let store = world.open();
        store.write(chunk(1, 0), MIB, 0, &pattern(1, 10_000), None).unwrap();
        world.kill(store);
        world.disk.flip_bit(&place(MIB, 0).0, at * 8).unwrap();
        let (store, report) = world.try_open().unwrap();
        assert_eq!((report.slots_damaged, report.chunks_dropped), (1, 0), "byte {at}");
        let read = content(&store, chunk(1, 0), MIB);
        assert!(matches!(read, Err(ChunkError::Corrupt { .. })), "byte {at}: {read:?}");
    }
}

#[test]
fn a_block_of_a_slot_used_again_that_changes_after_a_kill_is_no_hole() {
    let world = World::new();
    let store = world.open();
    let data = pattern(1, 64 << 10);
    store.write(chunk(1, 0), 64 << 10, 0, &data, None).unwrap();
    store.sync().unwrap();
    store.delete(chunk(1, 0)).unwrap();
    store.sync().unwrap();
    store.background_tick(100).unwrap();
    store.write(chunk(2, 0), 64 << 10, 0, &pattern(2, 64 << 10), None).unwrap();
    assert_eq!(store.stats().slots_recycled, 1, "the test needs a slot with old bytes");
    world.kill(store);
    flip(&world, 64 << 10, 9 * BLOCK);
    let (store, report) = world.try_open().unwrap();
    assert_eq!(report.blocks_dropped, 0);
    let read = content(&store, chunk(2, 0), 64 << 10);
    assert!(matches!(read, Err(ChunkError::Checksum { block: 9, .. })), "{read:?}");
}

#[test]
fn a_bit_beside_a_write_that_was_killed_is_damage_and_the_write_is_not() {
    let (mut interrupted, mut accepted) = (0, 0);
    // The note, the data, the checksums and the note again are one operation each; 16 MiB have a header of several pages.
    for (chunk_bytes, cut) in [(MIB, 0), (MIB, 1), (MIB, 2), (MIB, 3), (MIB16, 1), (MIB16, 2), (MIB16, 3)] {
        let far = chunk_bytes / BLOCK - 6;
        for first in [10, 200, far] {
            let world = World::new();
            let store = world.open();
            let id = chunk(1, 0);
            let old = pattern(1, chunk_bytes as usize);
            store.write(id, chunk_bytes, 0, &old, None).unwrap();
            let new = pattern(2, 4 * BLOCK as usize);
            world.disk.cut_power_after(cut);
            interrupted += u32::from(store.write(id, chunk_bytes, first * BLOCK, &new, None).is_err());
            world.kill(store);
            flip(&world, chunk_bytes, (first + 4) * BLOCK);
            let (store, report) = world.try_open().unwrap();
            accepted += report.blocks_accepted;
            let mut out = vec![0; 4 * BLOCK as usize];
            store.read(id, chunk_bytes, first * BLOCK, &mut out).unwrap();
            let old = &old[(first * BLOCK) as usize..][..out.len()];
            let blocks =
                out.chunks(BLOCK as usize).zip(old.chunks(BLOCK as usize).zip(new.chunks(BLOCK as usize)));
            blocks.for_each(|(seen, (old, new))| assert!(seen == old || seen == new));
            let read = store.read(id, chunk_bytes, (first + 4) * BLOCK, &mut out[..100]);
            assert!(
                matches!(read, Err(ChunkError::Checksum { .. })),
                "{chunk_bytes} {cut} {first}: {read:?}"
            );
            assert_eq!(scrub_all(&store).len(), 1, "the note is gone");
        }
    }
    assert!(interrupted >= 15 && accepted > 8, "{interrupted} interrupted, {accepted} accepted");
}

#[test]
fn a_recovery_from_a_power_cut_that_is_killed_stays_one() {
    let mut accepted = 0;
    for seed in 0..80 {
        let world = World::new();
        let store = world.open();
        let id = chunk(1, 0);
        store.write(id, MIB, 0, &pattern(1, MIB as usize), None).unwrap();
        store.sync().unwrap();
        store.write(id, MIB, 0, &pattern(2, MIB as usize), None).unwrap();
        world.crash(store, seed);
        world.disk.cut_power_after(seed);
        if let Ok((store, _)) = world.try_open() {
            drop(store);
        }
        world.disk.kill_process();
        let (store, report) = world.try_open().unwrap();
        accepted += report.blocks_accepted;
        content(&store, id, MIB).unwrap();
        assert!(scrub_all(&store).is_empty(), "seed {seed}");
    }
    assert!(accepted > 0);
}

#[test]
fn blocks_whose_checksums_could_not_be_written_are_readable_after_a_restart() {
    // The note, the data, the checksums, the note again; and nothing works afterwards.
    for (nth, is_dead) in (1..=4).flat_map(|nth| [(nth, false), (nth, true)]) {
        let world = World::new();
        let store = world.open();
        let (id, old, new) = (chunk(1, 0), pattern(1, 100_000), pattern(2, 5000));
        store.write(id, MIB, 0, &old, None).unwrap();
        let failing = if is_dead { nth..nth + 10 } else { nth..nth + 1 };
        failing.for_each(|nth| world.disk.fail_nth(FaultOp::Write, nth, libc::EIO));
        assert!(matches!(store.write(id, MIB, 50_000, &new, None), Err(ChunkError::Stopped { .. })), "{nth}");
        world.kill(store);
        let store = world.open();
        let seen = content(&store, id, MIB).unwrap().1;
        let is_old_or_new =
            |at: usize| seen[at] == old[at] || (50_000..55_000).contains(&at) && seen[at] == new[at - 50_000];
        assert!((0..old.len()).all(is_old_or_new), "{nth}");
        assert!(scrub_all(&store).is_empty(), "{nth} {is_dead}");
    }
}

/// Opens the target as an earlier build did, which knows nothing of notes: one open more.
fn open_without_notes(world: &World) {
    let disk = Arc::new(world.disk.clone());
    let engine = Box::new(world.engine.clone());
    let config = world.config.index.clone();
    let lane = Lane::open(disk, "index", engine, &world.env, IDENTITY.cluster, config).unwrap();
    let key = Key::from_slice(b"\0\0mopens");
    let opens = u64::from_le_bytes((*lane.read().get(&key).unwrap().unwrap()).try_into().unwrap());
    let value = Bytes::copy_from_slice(&(opens + 1).to_le_bytes());
    let writes = WriteSet(vec![(key, Some(value))]);
    let frame = Frame {
        shard: ShardId(0),
        epoch: Epoch(0),
        op: OpId::default(),
        verb: 1,
        writes,
        reply: Bytes::new(),
    };
    lane.write().commit(vec![frame], Urgency::FreesSpace).unwrap();
}

#[test]
fn what_an_earlier_build_was_overwriting_when_it_was_killed_is_no_damage() {
    for has_old_build in [false, true] {
        let (world, _) = killed(Past::Unsynced, MIB);
        if has_old_build {
            open_without_notes(&world);
            world.disk.kill_process();
        }
        // Data, and not its checksum.
        let (slab, at) = place(MIB, 4096);
        let file = world.disk.open(&slab, OpenMode::ReadWrite).unwrap();
        file.write_at(at, &pattern(9, 4096)).unwrap();
        world.disk.kill_process();
        let (store, report) = world.try_open().unwrap();
        assert_eq!(report.blocks_accepted, u64::from(has_old_build));
        assert_eq!(content(&store, chunk(1, 0), MIB).is_ok(), has_old_build);
    }
}
