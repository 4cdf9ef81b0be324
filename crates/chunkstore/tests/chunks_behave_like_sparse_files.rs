//! Goal: without faults a chunk is a small sparse file: what was written is read, everything else is zeros, the held space
//! is counted exactly, and the space and the slots come back.

mod support;

use ashlar_chunkstore::{BLOCK_BYTES, ChunkError, ChunkStore, Config, Extent, sum_of};
use ashlar_types::codec::crc32c;
use ashlar_types::{ChunkId, InodeId};
use std::time::Duration;
use support::{World, chunk, content, pattern, scrub_all};

const MIB: u32 = 1 << 20;
const KIB64: u32 = 64 << 10;

#[test]
fn a_chunk_grows_block_by_block_and_zeros_fill_the_gaps() {
    let world = World::new();
    let store = world.open();
    let id = chunk(1, 0);
    let data = pattern(1, 5000);
    let first = store.write(id, MIB, 10_000, &data, None).unwrap();
    assert_eq!((first.blocks_delta, first.chunk_len), (16, 15_000), "blocks 2 and 3, 8 units each");
    let second = store.write(id, MIB, 14_990, &data, None).unwrap();
    assert_eq!((second.blocks_delta, second.chunk_len), (8, 19_990));
    let third = store.write(id, MIB, 500_000, b"x", None).unwrap();
    assert_eq!((third.blocks_delta, third.chunk_len), (8, 500_001));
    let mut expected = vec![0; MIB as usize];
    expected[10_000..15_000].copy_from_slice(&data);
    expected[14_990..19_990].copy_from_slice(&data);
    expected[500_000] = b'x';
    let (len, seen) = content(&store, id, MIB).unwrap();
    assert_eq!(len, 500_001);
    assert!(seen == expected);
    for (offset, count) in [(9_999, 2), (12_288, 4096), (4096, 8192), (19_000, 5000), (499_990, 30)] {
        let mut out = vec![1; count];
        let got = store.read(id, MIB, offset, &mut out).unwrap();
        assert_eq!(got, count.min(500_001 - offset as usize), "{offset}");
        assert!(out == expected[offset as usize..offset as usize + count], "{offset}");
    }
    assert_eq!(store.chunk_blocks(id).unwrap(), 32);
    assert_eq!(
        (store.seek_data(id, 0).unwrap(), store.seek_data(id, 30_000).unwrap()),
        (Some(8192), Some(499_712))
    );
    assert_eq!(
        (store.seek_hole(id, 9000).unwrap(), store.seek_hole(id, 499_900).unwrap()),
        (20_480, 500_001)
    );
    assert_eq!(store.seek_data(id, 600_000).unwrap(), None);
}

#[test]
fn an_absent_chunk_reads_as_nothing_and_needs_no_care() {
    let world = World::new();
    let store = world.open();
    let id = chunk(9, 9);
    let (len, seen) = content(&store, id, KIB64).unwrap();
    assert_eq!((len, seen.iter().any(|byte| *byte != 0)), (0, false));
    assert_eq!((store.delete(id).unwrap(), store.truncate(id, KIB64, 7).unwrap()), (0, 0));
    assert_eq!(store.punch(id, KIB64, 0, 100).unwrap(), 0);
    assert_eq!(store.extent(id.inode, 1).unwrap(), None);
    assert!(matches!(store.chunk_blocks(id), Err(ChunkError::NotFound(missing)) if missing == id));
    assert!(matches!(store.write(id, KIB64, 0, &[], None), Err(ChunkError::BadRequest(_))));
    assert!(matches!(store.write(id, KIB64, KIB64, b"x", None), Err(ChunkError::BadRequest(_))));
    assert!(matches!(store.write(id, 5000, 0, b"x", None), Err(ChunkError::BadRequest(_))));
    store.write(id, KIB64, 0, b"x", None).unwrap();
    assert!(matches!(store.write(id, MIB, 0, b"x", None), Err(ChunkError::BadRequest(_))));
    assert!(matches!(store.read(id, MIB, 0, &mut [0]), Err(ChunkError::BadRequest(_))));
}

#[test]
fn truncated_punched_and_zeroed_bytes_never_come_back() {
    let world = World::new();
    let store = world.open();
    let id = chunk(1, 0);
    store.write(id, KIB64, 0, &pattern(1, KIB64 as usize), None).unwrap();
    assert_eq!(store.truncate(id, KIB64, 5000).unwrap(), -14 * 8);
    assert_eq!(store.truncate(id, KIB64, 40_000).unwrap(), 0, "growing takes no space");
    let (len, seen) = content(&store, id, KIB64).unwrap();
    assert_eq!(len, 40_000);
    assert!(seen[..5000] == pattern(1, KIB64 as usize)[..5000] && seen[5000..].iter().all(|byte| *byte == 0));
    store.write(id, KIB64, 0, &pattern(2, KIB64 as usize), None).unwrap();
    assert_eq!(store.punch(id, KIB64, 100, 9000).unwrap(), -8, "one whole block");
    assert_eq!(store.zero(id, KIB64, 20_000, 9000).unwrap(), 0, "space stays");
    let mut expected = pattern(2, KIB64 as usize);
    expected[100..9100].fill(0);
    expected[20_000..29_000].fill(0);
    assert!(content(&store, id, KIB64).unwrap().1 == expected);
    assert_eq!(store.zero(id, KIB64, 0, 9000).unwrap(), 8, "the punched block is reserved again");
    assert_eq!(store.chunk_blocks(id).unwrap(), 128);
    assert_eq!(store.truncate(id, KIB64, 0).unwrap(), -128);
    assert_eq!(store.extent(id.inode, id.generation).unwrap(), None);
    assert!(scrub_all(&store).is_empty());
}

#[test]
fn allocated_space_is_counted_and_reads_as_zeros() {
    let world = World::new();
    let store = world.open();
    let id = chunk(1, 0);
    assert_eq!(store.allocate(id, KIB64, 100, 8192).unwrap(), 24);
    assert_eq!(store.allocate(id, KIB64, 0, 8192).unwrap(), 0);
    assert_eq!(content(&store, id, KIB64).unwrap(), (0, vec![0; KIB64 as usize]));
    let written = store.write(id, KIB64, 4000, b"abc", None).unwrap();
    assert_eq!((written.blocks_delta, written.chunk_len), (0, 4003), "the space was there");
    let (_, seen) = content(&store, id, KIB64).unwrap();
    assert!(&seen[4000..4003] == b"abc" && seen.iter().filter(|byte| **byte != 0).count() == 3);
    assert_eq!(store.seek_data(id, 0).unwrap(), Some(0));
    assert_eq!(store.truncate(id, KIB64, 4001).unwrap(), -16, "what was reserved behind the end goes");
}

#[test]
fn checksums_travel_with_the_data_in_both_directions() {
    let world = World::new();
    let store = world.open();
    let id = chunk(1, 0);
    let data = pattern(3, 3 * BLOCK_BYTES);
    let sums: Vec<u32> = data.chunks(BLOCK_BYTES).map(|block| crc32c(0, block)).collect();
    store.write(id, KIB64, BLOCK_BYTES as u32, &data, Some(&sums)).unwrap();
    let mut damaged = data.clone();
    damaged[5000] ^= 1;
    let refused = store.write(id, KIB64, BLOCK_BYTES as u32, &damaged, Some(&sums)).unwrap_err();
    assert!(matches!(refused, ChunkError::InTransit { block: 2, .. }), "{refused}");
    let (mut out, mut got) = (vec![0; 5 * BLOCK_BYTES], Vec::new());
    let len = store.read_with_sums(id, KIB64, 0, &mut out, &mut got).unwrap();
    assert_eq!((len, got.len()), (4 * BLOCK_BYTES, 5));
    for (block, sum) in out.chunks(BLOCK_BYTES).zip(got) {
        assert_eq!(sum_of(block), sum);
    }
    assert!(out[BLOCK_BYTES..4 * BLOCK_BYTES] == data);
}

#[test]
fn a_generation_is_measured_listed_and_deleted_in_portions() {
    let world = World::new();
    let store = world.open();
    for index in 0..600 {
        let len = if index == 599 { 100 } else { 4096 };
        store.write(chunk(5, index * 3), KIB64, 0, &pattern(index, len), None).unwrap();
    }
    store.write(chunk(4, 0), KIB64, 0, b"before", None).unwrap();
    store.write(ChunkId { generation: 2, ..chunk(5, 0) }, KIB64, 0, b"behind", None).unwrap();
    let extent = store.extent(InodeId(5), 1).unwrap().unwrap();
    assert_eq!(extent, Extent { last_index: 599 * 3, last_len: 100, blocks: 600 * 8 });
    let (mut listed, mut next) = (0, Some(chunk(0, 0)));
    while let Some(from) = next {
        let page = store.list(from, 100).unwrap();
        listed += page.chunks.len();
        assert!(page.chunks.iter().all(|chunk| chunk.len.is_some() && chunk.blocks == 8));
        next = page.next;
    }
    assert_eq!(listed, 602);
    let (mut from, mut calls, mut blocks) = (300, 0, 0);
    loop {
        let deleted = store.delete_generation(InodeId(5), 1, from).unwrap();
        (calls, blocks) = (calls + 1, blocks + deleted.blocks);
        match deleted.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((calls, blocks), (2, 500 * 8), "chunks 100 to 599 of 600, 256 a call");
    assert_eq!(store.extent(InodeId(5), 1).unwrap().unwrap().last_index, 297);
    assert!(store.chunk_blocks(chunk(4, 0)).is_ok());
    assert!(scrub_all(&store).is_empty());
}

#[test]
fn slots_and_space_come_back_after_deletes() {
    let mut world = World::new();
    world.config.freed_bytes_max = 4 * u64::from(MIB);
    let store = world.open();
    for round in 0..6 {
        for index in 0..20 {
            store.write(chunk(1, index), MIB, 0, &pattern(round, MIB as usize), None).unwrap();
        }
        while store.delete_generation(InodeId(1), 1, 0).unwrap().next.is_some() {}
        store.sync().unwrap();
        world.clock.advance(Duration::from_secs(1));
        store.background_tick(100).unwrap();
        store.sync().unwrap();
        store.background_tick(100).unwrap();
    }
    let stats = store.stats();
    assert!(stats.slots_recycled > 5, "{stats:?}");
    let used = (1 << 40) - ashlar_env::Disk::space(&world.disk).unwrap().bytes_free;
    assert!(used < 24 * u64::from(MIB), "{used} bytes are held by nothing");
    let space = store.space().unwrap();
    assert_eq!(space.bytes_total, 1 << 40);
    assert!(space.bytes_free + space.bytes_reserved + used >= (1 << 40));
}

#[test]
fn small_chunks_that_come_and_go_do_not_grow_the_target_for_ever() {
    let world = World::new();
    let store = world.open();
    let churn = |rounds| {
        for round in 0..rounds {
            for index in 0..300 {
                store.write(chunk(1, index), 16 * MIB, 0, &pattern(round, 5000), None).unwrap();
            }
            while store.delete_generation(InodeId(1), 1, 0).unwrap().next.is_some() {}
            store.sync().unwrap();
        }
        ashlar_env::Disk::list(&world.disk, "slabs/16777216").unwrap().len()
    };
    // Without ticks: 4 slabs' worth of what was used, and what 300 chunks take.
    let slabs = churn(20);
    assert!(slabs <= 6, "{slabs} slabs of 256 slots for 300 chunks");
    // A tick leaves less than a slab's worth uncleaned.
    store.background_tick(10_000).unwrap();
    store.sync().unwrap();
    assert!(store.stats().stale_slots <= 2 * 256, "{} stale slots", store.stats().stale_slots);
    let punched = store.stats().slots_punched;
    assert_eq!(churn(2), slabs);
    assert_eq!(store.stats().slots_punched, punched, "there are clean slots enough");
}

#[test]
fn caches_and_open_files_stay_within_their_bounds() {
    let mut world = World::new();
    world.config = Config { header_cache_bytes: 1 << 20, open_slabs_max: 2, ..Config::small() };
    let store = world.open();
    let sizes = [KIB64, 2 * KIB64, 4 * KIB64, 8 * KIB64, MIB];
    for index in 0..400 {
        let size = sizes[index as usize % sizes.len()];
        store.write(chunk(1, index), size, 0, &pattern(index, 5000), None).unwrap();
    }
    store.sync().unwrap();
    for index in 0..400 {
        let size = sizes[index as usize % sizes.len()];
        let (len, seen) = content(&store, chunk(1, index), size).unwrap();
        assert_eq!(len, 5000);
        assert!(seen[..5000] == pattern(index, 5000));
    }
    for index in 400..3000 {
        assert_eq!(store.read(chunk(2, index), MIB, 0, &mut [0]).unwrap(), 0);
    }
    assert!(store.stats().header_cache_bytes <= 1 << 20, "{}", store.stats().header_cache_bytes);
}

#[test]
fn a_closed_target_opens_clean_and_answers_nothing_meanwhile() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(1, 0), MIB, 0, &pattern(1, MIB as usize), None).unwrap();
    store.sync().unwrap();
    store.write(chunk(1, 0), MIB, 0, b"marks a region", None).unwrap();
    store.close().unwrap();
    assert!(matches!(store.sync(), Err(ChunkError::Stopped { .. })));
    assert!(matches!(content(&store, chunk(1, 0), MIB), Err(ChunkError::Stopped { .. })));
    drop(store);
    let (store, report) = world.try_open().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(&content(&store, chunk(1, 0), MIB).unwrap().1[..14], b"marks a region");
}

#[test]
fn a_target_is_opened_once_and_only_by_its_name() {
    let mut world = World::new();
    world.config.holder = "process 17 on node-1".into();
    let store = world.open();
    let Err(ChunkError::Locked { holder, .. }) = world.try_open() else { panic!("opened twice") };
    assert_eq!(holder, "process 17 on node-1");
    drop(store);
    assert!(matches!(ChunkStore::format(&world.disk, &support::IDENTITY), Err(ChunkError::Foreign { .. })));
    let mut other = support::IDENTITY;
    other.uuid.0[0] ^= 1;
    let engine = world.engine.clone();
    let disk = std::sync::Arc::new(world.disk.clone());
    let opened = ChunkStore::open(disk, move || Ok(Box::new(engine)), &world.env, &other, Config::small());
    assert!(matches!(opened, Err(ChunkError::Foreign { .. })));
    assert_eq!(ChunkStore::header(&world.disk).unwrap().identity, support::IDENTITY);
}
