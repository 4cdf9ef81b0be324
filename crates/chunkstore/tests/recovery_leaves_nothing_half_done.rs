//! Goal: after a recovery the next power cut finds nothing of the last stop any more: what was in the page cache only is
//! durable, and bytes of a write that was cut short are gone.

mod support;

use ashlar_env::sim::FaultOp;
use std::time::Duration;
use support::{World, chunk, content, pattern, scrub_all};

const MIB16: u32 = 16 << 20;
const KIB64: u32 = 64 << 10;

#[test]
fn what_a_killed_process_left_in_memory_is_durable_once_it_was_recovered() {
    for seed in 0..6 {
        let world = World::new();
        let store = world.open();
        // All slots of the first slab are in use, and it is not the newest: nothing but recovery has a reason to sync it.
        for index in 0..257 {
            store.write(chunk(1, index), MIB16, 0, &pattern(index, 3000), None).unwrap();
        }
        store.sync().unwrap();
        for index in 0..20 {
            store.write(chunk(1, index), MIB16, 1000, &pattern(1000 + index, 9000), None).unwrap();
        }
        world.kill(store);
        let (store, report) = world.try_open().unwrap();
        assert!(report.dirty_regions > 0 && report.blocks_accepted == 0, "{report:?}");
        world.crash(store, seed);
        let (store, report) = world.try_open().unwrap();
        assert!(report.is_clean(), "{report:?}");
        for index in 0..257 {
            let mut out = vec![0; 10_000];
            store.read(chunk(1, index), MIB16, 0, &mut out).unwrap();
            let mut expected = pattern(index, 3000);
            expected.resize(10_000, 0);
            if index < 20 {
                expected[1000..].copy_from_slice(&pattern(1000 + index, 9000));
            }
            assert!(out == expected, "seed {seed} chunk {index}");
        }
    }
}

#[test]
fn bytes_of_a_write_that_was_cut_short_do_not_come_up_later() {
    for (seed, is_reserved) in (0..60).map(|seed| (seed, seed % 2 == 0)) {
        let world = World::new();
        let store = world.open();
        let id = chunk(1, 0);
        store.write(id, KIB64, 0, &[1; 100], None).unwrap();
        if is_reserved {
            store.allocate(id, KIB64, 0, KIB64).unwrap();
        }
        store.sync().unwrap();
        store.write(id, KIB64, 0, &[2; 100], None).unwrap();
        // Data is written, its checksums are not.
        world.disk.cut_power_after(0);
        assert!(store.write(id, KIB64, 8192, &[0xAA; 8192], None).is_err());
        world.kill(store);
        let store = world.open();
        assert!(content(&store, id, KIB64).unwrap().1[8192..].iter().all(|byte| *byte == 0));
        store.write(id, KIB64, 8192, &[3; 600], None).unwrap();
        world.crash(store, seed);
        let store = world.open();
        let (_, bytes) = content(&store, id, KIB64).unwrap();
        assert!(bytes[8192..].iter().all(|byte| matches!(byte, 0 | 3)), "seed {seed}");
        assert!(scrub_all(&store).is_empty());
    }
}

#[test]
fn a_region_stays_marked_until_its_change_was_synced() {
    for seed in 0..40 {
        let mut world = World::new();
        world.config.sync_interval = Duration::from_secs(1000);
        let store = world.open();
        let id = chunk(1, 0);
        store.write(id, KIB64, 0, &pattern(1, KIB64 as usize), None).unwrap();
        store.sync().unwrap();
        store.write(id, KIB64, 0, &pattern(2, KIB64 as usize), None).unwrap();
        for _ in 0..5 {
            world.clock.advance(Duration::from_secs(20));
            assert_eq!(store.background_tick(10).unwrap().regions_cleared, 0);
        }
        world.crash(store, seed);
        let store = world.open();
        let (_, bytes) = content(&store, id, KIB64).unwrap();
        let (old, new) = (pattern(1, KIB64 as usize), pattern(2, KIB64 as usize));
        assert!((0..bytes.len()).all(|at| bytes[at] == old[at] || bytes[at] == new[at]), "seed {seed}");
        store.sync().unwrap();
        world.clock.advance(Duration::from_secs(20));
        assert_eq!(store.stats().dirty_regions, 0, "recovery cleared it");
    }
}

#[test]
fn data_whose_length_was_lost_does_not_come_up_when_the_chunk_grows() {
    const MIB: u32 = 1 << 20;
    let mut lost = 0;
    for seed in 0..120 {
        let world = World::new();
        let store = world.open();
        let id = chunk(1, 0);
        store.write(id, MIB, 0, &[1; 4096], None).unwrap();
        store.sync().unwrap();
        // The length is in the first sector of the header, this checksum in another.
        store.write(id, MIB, 900_000, &[2; 50_000], None).unwrap();
        world.crash(store, seed);
        let store = world.open();
        let (len, before) = content(&store, id, MIB).unwrap();
        assert!(len == 4096 || len == 950_000);
        lost += u32::from(len == 4096);
        store.truncate(id, MIB, MIB).unwrap();
        let (_, after) = content(&store, id, MIB).unwrap();
        assert!(before == after, "seed {seed}: what read as zeros is not zeros any more");
    }
    assert!(lost > 10);
}

#[test]
fn what_changed_no_data_before_a_kill_is_durable_after_the_next_sync_too() {
    const SLAB: &str = "slabs/16777216/0.slab";
    for seed in 0..6 {
        let world = World::new();
        let store = world.open();
        // As above: the first slab is not the newest.
        for index in 0..257 {
            store.write(chunk(1, index), MIB16, 0, &pattern(index, 3000), None).unwrap();
        }
        store.close().unwrap();
        world.kill(store);
        // No region is marked by what comes now.
        let store = world.open();
        world.disk.flip_bit(SLAB, (20_480 + 17) * 8).unwrap();
        assert!(store.damage(chunk(1, 0)).unwrap().is_some());
        assert!(store.mend_block(chunk(1, 0), 0, &pattern(0, 3000)).unwrap());
        assert_eq!(store.allocate(chunk(1, 1), MIB16, 32_768, 8192).unwrap(), 16);
        world.kill(store);
        let store = world.open();
        store.sync().unwrap();
        world.crash(store, seed);
        let store = world.open();
        assert_eq!(store.damage(chunk(1, 0)).unwrap(), None, "seed {seed}");
        assert_eq!(
            store.allocate(chunk(1, 1), MIB16, 32_768, 8192).unwrap(),
            0,
            "seed {seed}: it is reserved"
        );
    }
}

#[test]
fn a_place_of_the_disk_that_cannot_be_read_keeps_no_target_from_being_opened() {
    const EIO: i32 = 5;
    let mut refused_by_slabs = 0;
    let mut opened = 0;
    for nth in 1..60 {
        let world = World::new();
        let store = world.open();
        store.write(chunk(1, 0), KIB64, 0, &pattern(1, 40_000), None).unwrap();
        store.sync().unwrap();
        store.write(chunk(1, 0), KIB64, 4096, &pattern(2, 8192), None).unwrap();
        store.write(chunk(1, 1), KIB64, 0, &pattern(3, 9000), None).unwrap();
        store.write(chunk(1, 2), KIB64, 0, &pattern(4, 9000), None).unwrap();
        world.crash(store, nth);
        world.disk.fail_nth(FaultOp::Read, nth, EIO);
        let store = match world.try_open() {
            Ok((store, _)) => store,
            // Without its header and its index no target is one.
            Err(error) => {
                refused_by_slabs += usize::from(format!("{error:?}").contains("slab"));
                continue;
            }
        };
        opened += 1;
        world.disk.forget_failures();
        let mut whole = pattern(1, 40_000);
        whole.resize(KIB64 as usize, 0);
        for block in (0..16).filter(|block| ![1, 2].contains(block)) {
            let at = block as usize * 4096;
            let mut out = vec![0; 4096];
            if let Ok(len) = store.read(chunk(1, 0), KIB64, block * 4096, &mut out) {
                assert!(out[..len] == whole[at..at + len] || len == 0, "nth {nth} block {block}");
            }
        }
        // It is usable.
        store.write(chunk(2, 0), KIB64, 0, &pattern(5, 9000), None).unwrap();
        store.sync().unwrap();
        store.close().unwrap();
    }
    assert!(refused_by_slabs == 0 && opened > 10, "{refused_by_slabs} refused, {opened} opened");
}

#[test]
fn bytes_of_an_earlier_chunk_do_not_come_up_where_a_block_could_not_be_read_for_a_moment() {
    const EIO: i32 = 5;
    let (old, new) = (pattern(1, KIB64 as usize), pattern(2, KIB64 as usize));
    let mut torn = 0;
    for (seed, nth) in (0..12).flat_map(|seed| (1..60).map(move |nth| (seed, nth))) {
        let world = World::new();
        let store = world.open();
        store.write(chunk(1, 0), KIB64, 0, &old, None).unwrap();
        store.sync().unwrap();
        store.delete(chunk(1, 0)).unwrap();
        store.sync().unwrap();
        store.write(chunk(2, 0), KIB64, 0, &new, None).unwrap();
        assert_eq!(store.stats().slots_recycled, 1);
        world.crash(store, seed);
        world.disk.fail_nth(FaultOp::Read, nth, EIO);
        let Ok((store, _)) = world.try_open() else { continue };
        world.disk.forget_failures();
        for block in 0..16 {
            let mut out = vec![0; 4096];
            let Ok(len) = store.read(chunk(2, 0), KIB64, block * 4096, &mut out) else { continue };
            let at = block as usize * 4096;
            let is_new = out[..len] == new[at..at + len];
            torn += usize::from(!is_new);
            assert!(
                is_new || out[..len].iter().all(|byte| *byte == 0),
                "seed {seed} nth {nth} block {block}"
            );
        }
    }
    assert!(torn > 0, "nothing was torn");
}
