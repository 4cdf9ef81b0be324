//! Goal: every chunk that changed length or space is listed as a suspect by the next open, until metadata has confirmed that it knows
//! the file durably: whether it was synced meanwhile or not, and whatever stopped when.

mod support;

use ashlar_types::{ChunkId, InodeId, ShardId, ShardSet};
use support::{World, chunk, pattern};

const KIB64: u32 = 64 << 10;

#[test]
fn a_chunk_that_was_synced_is_a_suspect_until_it_is_confirmed() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(5, 0), KIB64, 0, &pattern(1, 3000), None).unwrap();
    assert_eq!(
        store.suspects(None, 10, &ShardSet::below(64)).unwrap().found,
        [],
        "nothing of it can be there after a power cut"
    );
    store.sync().unwrap();
    world.crash(store, 1);
    // The metadata log may have lost the file although the chunk is there: a sync of the target alone excuses nobody.
    let store = world.open();
    let file = (InodeId(5), chunk(5, 0).generation);
    assert_eq!(store.suspects(None, 10, &ShardSet::below(64)).unwrap().found, [file]);
    store.confirm(u64::MAX, &ShardSet::below(64)).unwrap();
    assert_eq!(store.suspects(None, 10, &ShardSet::below(64)).unwrap().found, []);
    store.sync().unwrap();
    world.crash(store, 2);
    assert_eq!(world.open().suspects(None, 10, &ShardSet::below(64)).unwrap().found, []);
}

#[test]
fn what_was_written_after_the_mark_was_taken_is_not_confirmed_with_it() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(5, 0), KIB64, 0, &pattern(1, 3000), None).unwrap();
    store.write(chunk(6, 0), KIB64, 0, &pattern(1, 3000), None).unwrap();
    store.sync().unwrap();
    let mark = store.suspects(None, 1, &ShardSet::below(64)).unwrap().mark;
    // One of them grows: what metadata flushed before does not cover that.
    store.write(chunk(6, 0), KIB64, 3000, &pattern(2, 9000), None).unwrap();
    store.sync().unwrap();
    store.confirm(mark, &ShardSet::below(64)).unwrap();
    let generation = chunk(6, 0).generation;
    assert_eq!(store.suspects(None, 10, &ShardSet::below(64)).unwrap().found, [(InodeId(6), generation)]);
    assert_eq!(
        store.suspects(Some((InodeId(6), generation)), 10, &ShardSet::below(64)).unwrap().found,
        [],
        "the page behind it"
    );
}

#[test]
fn what_was_not_synced_is_a_suspect_after_the_death_of_the_process_and_of_the_machine() {
    for is_power_cut in [false, true] {
        let world = World::new();
        let store = world.open();
        store.write(chunk(5, 0), KIB64, 0, &pattern(1, 3000), None).unwrap();
        store.sync().unwrap();
        store.confirm(u64::MAX, &ShardSet::below(64)).unwrap();
        // Old: in a dirty region.
        store.write(chunk(5, 0), KIB64, 3000, &pattern(2, 9000), None).unwrap();
        if is_power_cut {
            world.crash(store, 3);
        } else {
            // And a new one, whose record a power cut takes with it.
            store.write(chunk(7, 4), KIB64, 0, &pattern(3, 10), None).unwrap();
            world.kill(store);
        }
        let store = world.open();
        let found: Vec<u64> = store
            .suspects(None, 10, &ShardSet::below(64))
            .unwrap()
            .found
            .into_iter()
            .map(|(inode, _)| inode.0)
            .collect();
        let expected: &[u64] = if is_power_cut { &[5] } else { &[5, 7] };
        assert_eq!(found, expected, "power cut {is_power_cut}");
        // An open that nobody followed up loses nothing of it.
        world.crash(store, 4);
        assert_eq!(
            world.open().suspects(None, 10, &ShardSet::below(64)).unwrap().found.len(),
            expected.len()
        );
    }
}

#[test]
fn one_metadata_server_does_not_speak_for_the_files_of_another() {
    let world = World::new();
    let store = world.open();
    let inode = |shard: u16| InodeId::new(ShardId(shard), 5).unwrap();
    let (mine, theirs) = (1, 2);
    for shard in [mine, theirs] {
        let chunk = ChunkId { inode: inode(shard), ..chunk(5, 0) };
        store.write(chunk, KIB64, 0, &pattern(1, 3000), None).unwrap();
    }
    store.sync().unwrap();
    let set = |shard: u16| [ShardId(shard)].into_iter().collect::<ShardSet>();
    let generation = chunk(5, 0).generation;
    // A page of one: that of others has to be passed over.
    assert_eq!(store.suspects(None, 1, &set(theirs)).unwrap().found, [(inode(theirs), generation)]);
    store.confirm(u64::MAX, &set(mine)).unwrap();
    assert_eq!(store.suspects(None, 1, &set(mine)).unwrap().found, []);
    assert_eq!(store.suspects(None, 1, &set(theirs)).unwrap().found, [(inode(theirs), generation)]);
}
