//! Goal: whatever bit changes on the disk of a synced target, no reader gets a wrong byte, and scrub finds it; malformed
//! headers with valid checksums never make the store panic; the index comes back from the slots.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::{ChunkError, ChunkStore, Finding};
use ashlar_env::sim::SimEntropy;
use ashlar_env::{Disk, Entropy, OpenMode};
use ashlar_types::ShardSet;
use ashlar_types::codec::crc32c;
use ashlar_types::{ChunkId, InodeId};
use std::time::Duration;
use support::{World, chunk, content, pattern, scrub_all};

const KIB64: u32 = 64 << 10;
const SLAB: &str = "slabs/65536/0.slab";
/// Header block and data.
const STRIDE: u64 = 4096 + 65536;

/// A synced target without fresh slots or dirty regions: two full chunks, a short one, and one with holes.
fn filled() -> (World, ChunkStore) {
    let world = World::new();
    let store = world.open();
    store.write(chunk(1, 0), KIB64, 0, &pattern(1, KIB64 as usize), None).unwrap();
    store.write(chunk(1, 1), KIB64, 0, &pattern(2, KIB64 as usize), None).unwrap();
    store.write(chunk(1, 2), KIB64, 0, &pattern(3, 5000), None).unwrap();
    store.write(chunk(1, 3), KIB64, 20_000, &pattern(4, 30_000), None).unwrap();
    store.close().unwrap();
    world.kill(store);
    let (store, report) = world.try_open().unwrap();
    assert!(report.is_clean(), "{report:?}");
    (world, store)
}

fn expected(index: u64) -> Vec<u8> {
    let mut bytes = vec![0; KIB64 as usize];
    let (at, data) = match index {
        0 => (0, pattern(1, KIB64 as usize)),
        1 => (0, pattern(2, KIB64 as usize)),
        2 => (0, pattern(3, 5000)),
        _ => (20_000, pattern(4, 30_000)),
    };
    bytes[at..at + data.len()].copy_from_slice(&data);
    bytes
}

#[test]
fn every_flipped_bit_is_an_error_or_harmless_and_scrub_sees_it() {
    let (world, store) = filled();
    world.kill(store);
    let random = SimEntropy::new(5);
    let (mut data_errors, mut header_errors) = (0, 0);
    for round in 0..600 {
        let slot = round % 4;
        // Many flips hit the header, which is a small part of the slot.
        let span = [160, 4096, STRIDE][round as usize / 4 % 3] * 8;
        let within = random.below(span);
        let bit = slot * STRIDE * 8 + within;
        world.disk.flip_bit(SLAB, bit).unwrap();
        let store = world.open();
        let mut is_seen = false;
        for index in 0..4 {
            match content(&store, chunk(1, index), KIB64) {
                Ok((_, bytes)) => {
                    assert!(bytes == expected(index), "bit {bit}: wrong bytes in chunk {index}")
                }
                Err(ChunkError::Checksum { chunk: id, .. }) => {
                    assert_eq!(id, chunk(1, index), "bit {bit}");
                    (data_errors, is_seen) = (data_errors + 1, true);
                }
                Err(ChunkError::Corrupt { .. } | ChunkError::Newer { .. }) => {
                    (header_errors, is_seen) = (header_errors + 1, true);
                }
                Err(error) => panic!("bit {bit}: {error}"),
            }
        }
        let findings = scrub_all(&store);
        // Below a block without data nothing is checked, because nothing of it is ever used.
        let data_byte = within / 8;
        let is_below_hole = match slot {
            2 => data_byte >= 4096 + 8192,
            3 => data_byte >= 4096 && !(4096 + 16_384..4096 + 53_248).contains(&data_byte),
            _ => false,
        };
        assert!(!findings.is_empty() || is_below_hole, "bit {bit} of slot {slot} is not found");
        assert!(!is_seen || !findings.is_empty(), "bit {bit}");
        world.kill(store);
        world.disk.flip_bit(SLAB, bit).unwrap();
    }
    assert!(data_errors > 100 && header_errors > 50, "{data_errors} {header_errors}");
}

#[test]
fn a_partial_write_does_not_launder_a_damaged_block() {
    let (world, store) = filled();
    world.disk.flip_bit(SLAB, (4096 + 8192 + 17) * 8).unwrap();
    let refused = store.write(chunk(1, 0), KIB64, 8200, b"new", None).unwrap_err();
    assert!(matches!(refused, ChunkError::Checksum { block: 2, .. }), "{refused}");
    assert!(matches!(store.truncate(chunk(1, 0), KIB64, 8200), Err(ChunkError::Checksum { block: 2, .. })));
    assert!(matches!(store.punch(chunk(1, 0), KIB64, 8200, 5), Err(ChunkError::Checksum { block: 2, .. })));
    store.write(chunk(1, 0), KIB64, 8192, &pattern(9, 4096), None).unwrap();
    let (_, bytes) = content(&store, chunk(1, 0), KIB64).unwrap();
    assert!(bytes[8192..12_288] == pattern(9, 4096), "a whole block replaces the damaged one");
    assert!(scrub_all(&store).is_empty());
}

#[test]
fn scrub_names_the_block_and_goes_on_where_it_stopped() {
    let (world, store) = filled();
    world.disk.flip_bit(SLAB, (STRIDE + 4096 + 5 * 4096) * 8).unwrap();
    let first = store.scrub(None, 1).unwrap();
    assert!(first.findings.is_empty() && first.next.is_some());
    let second = store.scrub(first.next, 1).unwrap();
    let [Finding::Data { chunk: id, block: 5, expected, got }] = second.findings.as_slice() else {
        panic!("{:?}", second.findings)
    };
    assert!(*id == chunk(1, 1) && expected != got);
}

#[test]
fn a_slot_and_an_index_that_disagree_are_found_from_both_sides() {
    let (world, store) = filled();
    let file = world.disk.open(SLAB, OpenMode::ReadWrite).unwrap();
    let mut header = vec![0; 4096];
    file.read_at(0, &mut header).unwrap();
    // The second slot gets the first one's header: its place is wrong.
    file.write_at(STRIDE, &header).unwrap();
    let findings = scrub_all(&store);
    assert!(findings.iter().any(|finding| matches!(finding, Finding::Slot { .. })), "{findings:?}");
    assert!(
        findings
            .iter()
            .any(|finding| matches!(finding, Finding::Header { chunk: id, .. } if *id == chunk(1, 1))),
        "{findings:?}"
    );
    world.kill(store);
    let store = world.open();
    assert!(matches!(content(&store, chunk(1, 1), KIB64), Err(ChunkError::Corrupt { .. })));
    assert!(content(&store, chunk(1, 0), KIB64).unwrap().1 == expected(0));
    assert_eq!(
        store.list(chunk(0, 0), 10).unwrap().chunks.iter().filter(|chunk| chunk.len.is_none()).count(),
        0
    );
    assert_eq!(
        store.delete(chunk(1, 1)).unwrap(),
        128,
        "a damaged chunk can be deleted; the index knew its size"
    );
    assert_eq!(content(&store, chunk(1, 1), KIB64).unwrap().0, 0);
}

/// Puts a valid checksum and length check on a header.
fn reseal(header: &mut [u8]) {
    let crc = crc32c(0, &header[..72]);
    header[72..76].copy_from_slice(&crc.to_le_bytes());
    let check = crc32c(crc32c(0, &header[80..84]), &header[64..72]);
    header[84..88].copy_from_slice(&check.to_le_bytes());
}

#[test]
fn ten_thousand_malformed_headers_never_make_it_panic() {
    let (mut world, store) = filled();
    world.kill(store);
    // Every call reads the header anew.
    world.config.header_cache_bytes = 0;
    let store = world.open();
    let random = SimEntropy::new(11);
    let file = world.disk.open(SLAB, OpenMode::ReadWrite).unwrap();
    let mut good = vec![0; STRIDE as usize];
    file.read_at(2 * STRIDE, &mut good).unwrap();
    let id = chunk(1, 2);
    for round in 0..10_000_u64 {
        let mut slot = good.clone();
        (0..=random.below(2)).for_each(|_| mutate(&mut slot[..4096], &random));
        reseal(&mut slot);
        file.write_at(2 * STRIDE, &slot).unwrap();
        if let Ok((len, bytes)) = content(&store, id, KIB64) {
            let is_ours = bytes[..len.min(5000)] == expected(2)[..len.min(5000)];
            assert!(is_ours || slot[96..4096] != good[96..4096], "round {round}");
        }
        let _ = (store.list(chunk(0, 0), 10).unwrap(), store.extent(InodeId(1), 1), store.seek_data(id, 0));
        let _ = (store.write(id, KIB64, 60_000, b"x", None), store.truncate(id, KIB64, 100));
        let _ = (store.punch(id, KIB64, 50, 9000), store.zero(id, KIB64, 5000, 20_000));
        let _ = scrub_all(&store);
        if round % 64 == 0 {
            recover_and_rebuild(&slot);
        }
    }
}

/// Changes one field of a header.
fn mutate(header: &mut [u8], random: &SimEntropy) {
    if random.below(4) == 0 {
        let at = 96 + 4 * random.below(16) as usize;
        header[at..at + 4].copy_from_slice(&(random.next_u64() as u32 >> random.below(32)).to_le_bytes());
        return;
    }
    // (offset, bytes) of every field.
    let fields = [
        (0, 8),
        (8, 2),
        (10, 1),
        (16, 16),
        (32, 4),
        (36, 4),
        (40, 4),
        (44, 4),
        (48, 8),
        (56, 8),
        (64, 8),
        (80, 4),
    ];
    let (at, len) = fields[random.below(fields.len() as u64) as usize];
    let value = match random.below(4) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.below(64),
        _ => random.next_u64(),
    };
    header[at..at + len].copy_from_slice(&[value.to_le_bytes(), value.to_le_bytes()].concat()[..len]);
}

/// Lets recovery and rebuild meet the slot, in a world of their own.
fn recover_and_rebuild(slot: &[u8]) {
    let (world, store) = filled();
    store.write(chunk(1, 2), KIB64, 0, b"marks the region", None).unwrap();
    store.write(chunk(1, 9), KIB64, 0, b"a fresh slot", None).unwrap();
    world.kill(store);
    let file = world.disk.open(SLAB, OpenMode::ReadWrite).unwrap();
    file.write_at(2 * STRIDE, slot).unwrap();
    let (store, report) = world.try_open().unwrap();
    assert!(report.dirty_regions > 0 && report.fresh_slots == 1, "{report:?}");
    assert!(content(&store, chunk(1, 0), KIB64).unwrap().1 == expected(0));
    world.kill(store);
    // A rebuild believes the headers; it refuses those of a newer format.
    match world.rebuild_index() {
        Ok(report) => assert!((4..=5).contains(&report.chunks), "{report:?}"),
        Err(error) => assert!(matches!(error, ChunkError::Newer { .. }), "{error}"),
    }
}

#[test]
fn the_index_comes_back_from_the_slots() {
    let (world, store) = filled();
    store.delete(chunk(1, 1)).unwrap();
    store.sync().unwrap();
    world.clock.advance(Duration::from_secs(9));
    store.background_tick(100).unwrap();
    store.delete(chunk(1, 3)).unwrap();
    store.write(chunk(1, 3), KIB64, 0, &pattern(8, KIB64 as usize), None).unwrap();
    store.close().unwrap();
    world.kill(store);
    let report = world.rebuild_index().unwrap();
    assert_eq!((report.chunks, report.superseded, report.damaged), (3, 1, 0), "{report:?}");
    let (store, recovery) = world.try_open().unwrap();
    assert!(recovery.is_clean());
    assert!(content(&store, chunk(1, 0), KIB64).unwrap().1 == expected(0));
    assert_eq!(content(&store, chunk(1, 1), KIB64).unwrap().0, 0, "a deleted chunk stays away");
    assert!(content(&store, chunk(1, 2), KIB64).unwrap().1 == expected(2));
    assert!(content(&store, chunk(1, 3), KIB64).unwrap().1 == pattern(8, KIB64 as usize));
    assert!(scrub_all(&store).is_empty());
    for index in 10..60 {
        store.write(chunk(1, index), KIB64, 0, &pattern(index, 9000), None).unwrap();
    }
    assert!(
        content(&store, chunk(1, 3), KIB64).unwrap().1 == pattern(8, KIB64 as usize),
        "its slot was not taken"
    );
}

#[test]
fn chunks_that_come_back_with_a_new_index_are_compared_with_metadata_even_if_the_repair_is_cut_short() {
    let (world, store) = filled();
    store.delete(chunk(1, 1)).unwrap();
    store.sync().unwrap();
    store.confirm(u64::MAX, &ShardSet::below(64)).unwrap();
    assert!(store.suspects(None, 10, &ShardSet::below(64)).unwrap().found.is_empty());
    world.kill(store);
    let report = world.rebuild_index().unwrap();
    assert_eq!(report.chunks, 4, "the header does not know of the deletion yet: {report:?}");
    let (store, _) = world.try_open().unwrap();
    let ChunkId { inode, generation, .. } = chunk(1, 1);
    assert_eq!(store.suspects(None, 10, &ShardSet::below(64)).unwrap().found, [(inode, generation)]);
}
