//! Goal: what is noted of chains with copies is there for the next process, and a power cut is told once, until it was heard of. Method: a store on a simulated disk that is dropped, closed and
//! cut off.
#![allow(clippy::unwrap_used, reason = "the helpers of a test panic as the test does")]

mod support;

use ashlar_chunkstore::{ChunkError, Lack};
use ashlar_types::message::LossMark;
use ashlar_types::{ChainId, TargetId};
use bytes::Bytes;
use support::{World, chunk, pattern};

const CHAIN: ChainId = ChainId(7);
const OTHER: TargetId = TargetId(4);

#[test]
fn they_are_there_for_the_next_process_until_they_are_forgotten() {
    let world = World::new();
    let store = world.open();
    let (one, two) = (chunk(5, 0), chunk(5, 1));
    store.note_copy(CHAIN, Some(Bytes::from_static(b"in sync"))).unwrap();
    store.note_uncertain(CHAIN, two).unwrap();
    store.note_uncertain(ChainId(3), one).unwrap();
    store.begin_lacks((CHAIN, OTHER), Bytes::from_static(b"from"), &[one]).unwrap();
    store.note_lack(CHAIN, &[OTHER, TargetId(9)], Lack::Deletion(one)).unwrap();
    store.note_lack(CHAIN, &[OTHER], Lack::Chunk(two)).unwrap();
    world.kill(store);
    let store = world.open();
    assert_eq!(
        store.copy_notes().unwrap().into_iter().collect::<Vec<_>>(),
        [(CHAIN, Bytes::from_static(b"in sync"))]
    );
    assert_eq!(store.uncertain().unwrap(), [(ChainId(3), one), (CHAIN, two)]);
    let notes: Vec<_> = store.lack_notes().unwrap().into_iter().collect();
    assert_eq!(notes, [((CHAIN, OTHER), Bytes::from_static(b"from"))]);
    let lacks = [Lack::Chunk(one), Lack::Chunk(two), Lack::Deletion(one)];
    assert_eq!(store.lacks((CHAIN, OTHER), None).unwrap(), lacks);
    assert_eq!(store.lacks((CHAIN, OTHER), Some(Lack::Chunk(one))).unwrap(), lacks[1..]);
    store.forget_uncertain(&[(CHAIN, two)]).unwrap();
    store.end_lacks((CHAIN, OTHER)).unwrap();
    store.note_copy(CHAIN, None).unwrap();
    world.kill(store);
    let store = world.open();
    assert!(store.copy_notes().unwrap().is_empty() && store.lack_notes().unwrap().is_empty());
    assert_eq!(store.uncertain().unwrap(), [(ChainId(3), one)]);
    assert_eq!(store.lacks((CHAIN, OTHER), None).unwrap(), []);
    assert_eq!(store.lacks((CHAIN, TargetId(9)), None).unwrap(), [Lack::Deletion(one)]);
}

#[test]
fn more_than_a_page_of_what_one_lacks_is_told_and_forgotten() {
    let world = World::new();
    let store = world.open();
    for number in 0..1200 {
        store.note_lack(CHAIN, &[OTHER], Lack::Chunk(chunk(5, number))).unwrap();
    }
    let (mut after, mut found) = (None, 0);
    loop {
        let page = store.lacks((CHAIN, OTHER), after).unwrap();
        assert!(page.iter().zip(found..).all(|(lack, number)| *lack == Lack::Chunk(chunk(5, number))));
        found += page.len() as u64;
        match page.last() {
            Some(last) => after = Some(*last),
            None => break,
        }
    }
    assert_eq!(found, 1200);
    store.end_lacks((CHAIN, OTHER)).unwrap();
    assert_eq!(store.lacks((CHAIN, OTHER), None).unwrap(), []);
}

#[test]
fn a_power_cut_is_told_until_it_was_heard_of_and_nothing_else_is() {
    let world = World::new();
    let store = world.open();
    assert!(!store.has_lost().unwrap(), "it is new");
    store.write(chunk(5, 0), 64 << 10, 0, &pattern(1, 3000), None).unwrap();
    world.kill(store);
    let store = world.open();
    assert!(!store.has_lost().unwrap(), "a process that died has lost nothing");
    world.crash(store, 1);
    let store = world.open();
    assert!(store.has_lost().unwrap());
    world.kill(store);
    let store = world.open();
    assert!(store.has_lost().unwrap(), "nobody has heard of it");
    store.forget_loss().unwrap();
    assert!(!store.has_lost().unwrap());
    store.close().unwrap();
    assert!(matches!(store.has_lost(), Err(ChunkError::Stopped { .. })));
    world.crash(store, 2);
    let store = world.open();
    assert!(!store.has_lost().unwrap(), "it was closed in good order");
    world.kill(store);
    let store = world.open();
    world.crash(store, 3);
    assert!(world.open().has_lost().unwrap(), "that it was closed once says nothing of later opens");
}

#[test]
fn the_mark_of_a_chain_is_another_one_after_a_loss_and_after_nothing_else() {
    let world = World::new();
    let store = world.open();
    let (elsewhere, before) = (LossMark(77), store.loss_mark(CHAIN));
    assert_ne!(before, LossMark::NONE);
    store.take_loss_mark(ChainId(3), Some(elsewhere)).unwrap();
    store.take_loss_mark(ChainId(4), Some(elsewhere)).unwrap();
    store.take_loss_mark(ChainId(4), None).unwrap();
    let marks =
        |store: &ashlar_chunkstore::ChunkStore| [7, 3, 4].map(|chain| store.loss_mark(ChainId(chain)));
    let unchanged = [before, elsewhere, before];
    assert_eq!(marks(&store), unchanged);
    world.kill(store);
    let store = world.open();
    assert_eq!(marks(&store), unchanged, "a process that died has lost nothing");
    store.close().unwrap();
    world.crash(store, 1);
    let store = world.open();
    assert_eq!(marks(&store), unchanged, "it was closed in good order");
    world.crash(store, 2);
    let store = world.open();
    let after = store.loss_mark(CHAIN);
    assert!(after != before && after != LossMark::NONE);
    assert_eq!(marks(&store), [after; 3], "what it has of a chain from elsewhere may be lost, too");
    store.forget_loss().unwrap();
    world.kill(store);
    let store = world.open();
    assert_eq!(marks(&store), [after; 3], "nothing more was lost");
    world.crash(store, 3);
    let store = world.open();
    assert!(![before, after].contains(&store.loss_mark(CHAIN)), "once more");
}

#[test]
fn the_mark_of_an_index_that_was_made_anew_is_another_one() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(5, 0), 64 << 10, 0, &pattern(1, 3000), None).unwrap();
    let before = store.loss_mark(CHAIN);
    store.close().unwrap();
    world.kill(store);
    world.rebuild_index().unwrap();
    assert_ne!(world.open().loss_mark(CHAIN), before);
}

#[test]
fn an_index_that_was_made_anew_tells_that_something_may_be_lost() {
    let world = World::new();
    let store = world.open();
    store.write(chunk(5, 0), 64 << 10, 0, &pattern(1, 3000), None).unwrap();
    store.close().unwrap();
    world.kill(store);
    world.rebuild_index().unwrap();
    assert!(world.open().has_lost().unwrap(), "what was damaged is missing");
}
