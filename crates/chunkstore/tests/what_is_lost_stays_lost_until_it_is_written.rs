//! Goal: what is damaged is named block by block, what another copy has of it is told apart by its checksum, and a block that is noted as lost is never taken for sound: not by a read, not by a partial
//! write, not after the death of the process, not after a power cut.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_chunkstore::{ChunkError, ChunkStore, Damage, sum_of};
use ashlar_types::ChainId;
use support::{World, chunk, content, pattern, scrub_all};

const KIB64: u32 = 64 << 10;
const SLAB: &str = "slabs/65536/0.slab";
const CHAIN: ChainId = ChainId(3);

fn blocks(damage: Option<Damage>) -> Vec<u32> {
    match damage {
        Some(Damage::Blocks { blocks, .. }) => blocks.into_iter().map(|(block, _)| block).collect(),
        other => panic!("{other:?}"),
    }
}

fn is_lost(store: &ChunkStore, index: u64, block: u32) -> bool {
    let mut out = vec![0; 4096];
    let read = store.read(chunk(1, index), KIB64, block * 4096, &mut out);
    matches!(read, Err(ChunkError::Checksum { block: found, .. }) if found == block)
}

#[test]
fn damage_is_named_and_what_a_copy_has_of_it_mends_it() {
    let world = World::new();
    let (store, other) = (world.open(), World::new());
    let copy = other.open();
    for store in [&store, &copy] {
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 50_000), None).unwrap();
        store.sync().unwrap();
    }
    assert_eq!(store.damage(chunk(1, 0)).unwrap(), None);
    assert_eq!(store.damage(chunk(1, 9)).unwrap(), None, "what is not here is not damaged");
    assert_eq!(store.chain_of(chunk(1, 0)).unwrap(), Some(CHAIN));
    for block in [2, 12] {
        world.disk.flip_bit(SLAB, (4096 + block * 4096 + 17) * 8).unwrap();
    }
    let Some(Damage::Blocks { chunk_bytes, len, blocks: wanted }) = store.damage(chunk(1, 0)).unwrap() else {
        panic!("two blocks are damaged")
    };
    assert_eq!((chunk_bytes, len, wanted.len()), (KIB64, 50_000, 2));
    // The copy has another content in one of them by now.
    copy.write(chunk(1, 0), (KIB64, CHAIN), 2 * 4096, &pattern(5, 4096), None).unwrap();
    let found = copy.blocks_matching(chunk(1, 0), &wanted).unwrap();
    assert!(found[0].is_none());
    let last = found[1].clone().unwrap();
    assert_eq!(last.len(), 50_000 - 12 * 4096, "up to the length of the chunk");
    assert_eq!(sum_of(&last), wanted[1].1);
    assert!(!store.mend_block(chunk(1, 0), 12, &pattern(5, 4096)).unwrap(), "that is not what was there");
    assert!(!store.mend_block(chunk(1, 0), 13, &last).unwrap(), "there is no data");
    assert!(store.mend_block(chunk(1, 0), 12, &last).unwrap());
    assert_eq!(blocks(store.damage(chunk(1, 0)).unwrap()), [2]);
    assert_eq!(store.map(chunk(1, 0)).unwrap().unwrap().len, 50_000);
    assert_eq!(
        store.blocks_matching(chunk(1, 0), &wanted).unwrap()[0],
        None,
        "what is damaged matches nothing"
    );
}

#[test]
fn a_lost_block_is_an_error_until_all_of_it_is_written() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 20_000), None).unwrap();
    let sums = [(1, sum_of(&pattern(7, 4096))), (2, sum_of(&pattern(8, 4096))), (4, sum_of(&[0; 4096]))];
    store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), 20_000, &sums).unwrap();
    store.lose_blocks(chunk(1, 1), (KIB64, CHAIN), KIB64, &Damage::all_blocks(KIB64)).unwrap();
    let are_lost = |store: &ChunkStore| {
        [1, 2, 4].into_iter().all(|block| is_lost(store, 0, block))
            && (0..16).all(|block| is_lost(store, 1, block))
            && !is_lost(store, 0, 0)
            && !is_lost(store, 0, 3)
    };
    assert!(are_lost(&store));
    assert_eq!(store.map(chunk(1, 0)).unwrap().unwrap().len, 20_000);
    assert_eq!(blocks(store.damage(chunk(1, 0)).unwrap()), [1, 2, 4]);
    assert!(!scrub_all(&store).is_empty());
    let refused = store.write(chunk(1, 0), (KIB64, CHAIN), 4100, b"part of it", None);
    assert!(matches!(refused, Err(ChunkError::Checksum { block: 1, .. })), "{refused:?}");
    // Neither a stop in the middle of everything nor one in good order makes it sound.
    world.kill(store);
    let store = world.open();
    assert!(are_lost(&store));
    store.close().unwrap();
    world.kill(store);
    let store = world.open();
    assert!(are_lost(&store));
    store.write(chunk(1, 0), (KIB64, CHAIN), 4096, &pattern(9, 4096), None).unwrap();
    assert!(!is_lost(&store, 0, 1) && is_lost(&store, 0, 2));
    store.delete(chunk(1, 1)).unwrap();
    assert_eq!(content(&store, chunk(1, 1), KIB64).unwrap().0, 0);
    // One that ends within a lost block ends there, and the block stays lost.
    store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), 9000, &[(2, 5)]).unwrap();
    assert_eq!(store.map(chunk(1, 0)).unwrap().unwrap().len, 9000);
    let mut part = [0; 100];
    assert!(store.read(chunk(1, 0), KIB64, 8200, &mut part).is_err());
    let refused = store.lose_blocks(chunk(1, 0), (u32::MAX, CHAIN), u32::MAX, &[(2, 5)]);
    assert!(matches!(refused, Err(ChunkError::BadRequest(_))), "{refused:?}");
    for wrong in [vec![(2, 5), (2, 5)], vec![(16, 5)], vec![(5, 5)]] {
        let refused = store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), 20_000, &wrong);
        assert!(matches!(refused, Err(ChunkError::BadRequest(_))), "{wrong:?}: {refused:?}");
    }
}

#[test]
fn a_header_that_is_damaged_on_disk_alone_is_written_again() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 20_000), None).unwrap();
    store.sync().unwrap();
    assert!(!store.mend_header(chunk(1, 0)).unwrap());
    world.disk.flip_bit(SLAB, 20 * 8).unwrap();
    assert!(!scrub_all(&store).is_empty());
    assert!(store.mend_header(chunk(1, 0)).unwrap() && scrub_all(&store).is_empty());
    // What means nothing in it was told to be whole again, and was found again by each scrub.
    world.disk.flip_bit(SLAB, 3427 * 8).unwrap();
    assert!(!scrub_all(&store).is_empty());
    assert!(store.mend_header(chunk(1, 0)).unwrap() && scrub_all(&store).is_empty());
    store.close().unwrap();
    world.kill(store);
    // Nobody knows any more what was there.
    world.disk.flip_bit(SLAB, 20 * 8).unwrap();
    let store = world.open();
    assert!(!store.mend_header(chunk(1, 0)).unwrap());
    assert_eq!(store.damage(chunk(1, 0)).unwrap(), Some(Damage::Header { chunk_bytes: KIB64 }));
    assert!(matches!(store.look(chunk(1, 0)), Err(ChunkError::Corrupt { .. })));
    assert_eq!(store.digests(CHAIN, None, None).unwrap().0[0].sum, None);
}

#[test]
fn digests_are_equal_where_content_is_however_it_came_to_be() {
    let (one, other) = (World::new(), World::new());
    let (one, other) = (one.open(), other.open());
    let both = |store: &ChunkStore, steps: &dyn Fn(&ChunkStore)| {
        steps(store);
        let (digests, next) = store.digests(CHAIN, None, None).unwrap();
        assert_eq!((digests.len(), next.is_some()), (1, true));
        digests[0].sum.unwrap()
    };
    let first = both(&one, &|store| {
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 4096), None).unwrap();
        store.write(chunk(1, 0), (KIB64, CHAIN), 12_288, &pattern(2, 100), None).unwrap();
    });
    let second = both(&other, &|store| {
        // Zeros that were written are holes to whoever reads.
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &[0; 16_384], None).unwrap();
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 4096), None).unwrap();
        store.write(chunk(1, 0), (KIB64, CHAIN), 12_288, &pattern(2, 100), None).unwrap();
        store.truncate(chunk(1, 0), KIB64, 12_388).unwrap();
    });
    assert_eq!(first, second);
    other.write(chunk(1, 0), (KIB64, CHAIN), 12_387, b"x", None).unwrap();
    assert_ne!(both(&other, &|_| ()), first);
    let before = one.digests(CHAIN, None, Some(chunk(1, 0))).unwrap();
    assert_eq!(before, (Vec::new(), None), "up to one, without that one");
}

#[test]
fn a_lost_block_is_lost_after_a_power_cut_beside_a_write_that_was_not_synced() {
    for seed in 0..20 {
        let world = World::new();
        let store = world.open();
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 20_000), None).unwrap();
        store.sync().unwrap();
        store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), 20_000, &[(1, 5), (2, 6)]).unwrap();
        store.lose_blocks(chunk(1, 1), (KIB64, CHAIN), KIB64, &Damage::all_blocks(KIB64)).unwrap();
        store.sync().unwrap();
        // Of the same region, and of a chunk that is new.
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(2, 4096), None).unwrap();
        store.write(chunk(1, 1), (KIB64, CHAIN), 8192, &pattern(3, 4096), None).unwrap();
        world.crash(store, seed);
        let store = world.open();
        assert!(is_lost(&store, 0, 1) && is_lost(&store, 0, 2), "seed {seed}");
        assert!(!is_lost(&store, 0, 0) && !is_lost(&store, 0, 3), "seed {seed}");
        assert!((0..16).filter(|block| *block != 2).all(|block| is_lost(&store, 1, block)), "seed {seed}");
        // As often as that happens.
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(4, 4096), None).unwrap();
        world.crash(store, seed + 1);
        assert!(is_lost(&world.open(), 0, 1), "seed {seed}");
    }
}

#[test]
fn a_lost_block_is_new_or_lost_after_a_power_cut_that_takes_what_was_written_over_it() {
    // Another chunk's change makes the index durable, and a second time something else is told to be lost.
    for seed in 0..60 {
        let world = World::new();
        let store = world.open();
        for index in 0..40 {
            store.write(chunk(1, index), (KIB64, CHAIN), 0, &pattern(index, KIB64 as usize), None).unwrap();
        }
        store.sync().unwrap();
        store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), KIB64, &[(1, 5), (2, 6), (3, 7), (4, 8)]).unwrap();
        store.sync().unwrap();
        let new = pattern(99, 4096);
        store.write(chunk(1, 0), (KIB64, CHAIN), 4096, &new, None).unwrap();
        assert!(!store.mend_block(chunk(1, 0), 2, &new).unwrap());
        store.punch(chunk(1, 0), KIB64, 3 * 4096, 4096).unwrap();
        store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), KIB64, &[(4, 9)]).unwrap();
        if seed % 2 == 0 {
            store.write(chunk(1, 39), (KIB64, CHAIN), 4096, &new, None).unwrap();
        }
        world.crash(store, seed);
        let store = world.open();
        let mut out = vec![0; 4096];
        let is_new = store.read(chunk(1, 0), KIB64, 4096, &mut out).is_ok() && out == new;
        assert!(is_new || is_lost(&store, 0, 1), "seed {seed}");
        assert!(is_lost(&store, 0, 2) && is_lost(&store, 0, 4), "seed {seed}");
        let is_hole = store.read(chunk(1, 0), KIB64, 3 * 4096, &mut out).is_ok();
        assert!((is_hole && out == [0; 4096]) || is_lost(&store, 0, 3), "seed {seed}");
        assert!(!is_lost(&store, 0, 5), "seed {seed}");
    }
}

#[test]
fn what_was_written_over_a_lost_block_is_old_or_new_after_a_power_cut_as_anything_else() {
    let (old, new) = (pattern(7, 4096), pattern(8, 4096));
    for seed in 0..40 {
        let world = World::new();
        let store = world.open();
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 20_000), None).unwrap();
        store.sync().unwrap();
        store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), 20_000, &[(1, sum_of(&old)), (2, 6)]).unwrap();
        // By its content the block cannot be told from the one that was lost.
        match seed % 3 {
            0 => drop(store.write(chunk(1, 0), (KIB64, CHAIN), 4096, &old, None).unwrap()),
            1 => assert!(store.mend_block(chunk(1, 0), 1, &old).unwrap()),
            _ => {
                store.zero(chunk(1, 0), KIB64, 4096, 4096).unwrap();
                store.punch(chunk(1, 0), KIB64, 4096, 4096).unwrap();
                store.write(chunk(1, 0), (KIB64, CHAIN), 4096, &old, None).unwrap();
            }
        }
        store.sync().unwrap();
        store.write(chunk(1, 0), (KIB64, CHAIN), 4096, &new, None).unwrap();
        world.crash(store, seed);
        let store = world.open();
        let mut out = vec![0; 4096];
        store.read(chunk(1, 0), KIB64, 4096, &mut out).unwrap();
        // A disk keeps or loses sectors.
        let mut sectors = out.chunks(512).zip(old.chunks(512)).zip(new.chunks(512));
        assert!(sectors.all(|((out, old), new)| out == old || out == new), "seed {seed}");
        assert!(is_lost(&store, 0, 2), "seed {seed}");
    }
}

#[test]
fn a_chunk_whose_header_is_damaged_is_never_away_while_a_lost_one_takes_its_place() {
    for seed in 0..20 {
        let world = World::new();
        let store = world.open();
        for index in 0..31 {
            store.write(chunk(1, index), (KIB64, CHAIN), 0, &pattern(1, 20_000), None).unwrap();
        }
        store.close().unwrap();
        world.kill(store);
        world.disk.flip_bit(SLAB, 20 * 8).unwrap();
        let store = world.open();
        assert!(store.look(chunk(1, 0)).is_err());
        let refused = store.lose_blocks(chunk(1, 0), (KIB64, ChainId(4)), 20_000, &[(1, 5)]);
        assert!(matches!(refused, Err(ChunkError::BadRequest(_))), "{refused:?}");
        let refused = store.lose_blocks(chunk(1, 0), (2 * KIB64, CHAIN), 20_000, &[(1, 5)]);
        assert!(matches!(refused, Err(ChunkError::BadRequest(_))), "{refused:?}");
        // What is not told of it is no hole.
        let told = if seed % 4 == 0 { Vec::new() } else { vec![(3, 7)] };
        store.lose_blocks(chunk(1, 0), (KIB64, CHAIN), KIB64, &told).unwrap();
        assert!((0..16).all(|block| is_lost(&store, 0, block)));
        if seed % 3 == 0 {
            // Another one has its slot, once that is free.
            store.sync().unwrap();
            store.write(chunk(1, 1), (KIB64, CHAIN), 0, &pattern(2, KIB64 as usize), None).unwrap();
        } else {
            // The index becomes durable by another change.
            store.write(chunk(1, 30), (KIB64, CHAIN), 4096, &pattern(3, 4096), None).unwrap();
        }
        if seed % 2 == 0 {
            store.sync().unwrap();
        }
        world.crash(store, seed);
        let store = world.open();
        assert!((0..16).all(|block| is_lost(&store, 0, block)), "seed {seed}");
        store.delete(chunk(1, 0)).unwrap();
        assert_eq!(content(&store, chunk(1, 0), KIB64).unwrap().0, 0);
        store.write(chunk(1, 0), (KIB64, CHAIN), 0, &pattern(1, 20_000), None).unwrap();
        world.kill(store);
        assert!(!is_lost(&world.open(), 0, 1), "what was lost of one that was deleted says nothing");
    }
}
