//! Goal: readers and writers of one chunk never see a checksum error or half a block, whatever else goes on: creation,
//! deletion, truncation, sync, scrub and background work.
#![allow(clippy::unwrap_used)] // test code outside of test functions

mod support;

use ashlar_chunkstore::ChunkStore;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{World, chunk, content, scrub_all};

const KIB64: u32 = 64 << 10;

fn hammer(store: &ChunkStore, thread: u8, rounds: u32) {
    let mut out = vec![0; KIB64 as usize];
    for round in 0..rounds {
        let byte = thread * 50 + (round % 50) as u8 + 1;
        let block = (round * 7 + u32::from(thread)) % 16;
        store.write(chunk(1, 0), KIB64, block * 4096, &[byte; 4096], None).unwrap();
        store.read(chunk(1, 0), KIB64, 0, &mut out).unwrap();
        for block in out.chunks(4096) {
            assert!(block.iter().all(|byte| *byte == block[0]), "half a block");
        }
        match round % 64 {
            7 => {
                store.delete(chunk(1, 0)).unwrap();
            }
            23 => {
                store.truncate(chunk(1, 0), KIB64, 8192).unwrap();
            }
            41 => {
                store.punch(chunk(1, 0), KIB64, 4096, 8192).unwrap();
            }
            50 => {
                store.write(chunk(1, 0), KIB64, 0, &vec![byte; KIB64 as usize], None).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn one_chunk_is_hammered_by_threads_while_everything_else_runs() {
    let world = World::new();
    let store = world.open();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn({
                    let store = &store;
                    move || hammer(store, thread, 1500)
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.sync().unwrap();
                world.clock.advance(Duration::from_millis(700));
                store.background_tick(20).unwrap();
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let findings = scrub_all(&store);
                assert!(findings.is_empty(), "{findings:?}");
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    let now = content(&store, chunk(1, 0), KIB64).unwrap();
    world.kill(store);
    let store = world.open();
    assert!(content(&store, chunk(1, 0), KIB64).unwrap() == now, "a kill loses nothing");
    assert!(scrub_all(&store).is_empty());
}

#[test]
fn many_chunks_are_made_and_dropped_by_threads_and_no_slot_is_lost() {
    let world = World::new();
    let store = world.open();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..60 {
                    for index in 0..10 {
                        let len = if index % 2 == 0 { KIB64 as usize } else { 5000 };
                        let data = vec![thread as u8 + 1; len];
                        store.write(chunk(thread + 1, index), KIB64, 0, &data, None).unwrap();
                    }
                    for index in 0..10 {
                        let (len, bytes) = content(store, chunk(thread + 1, index), KIB64).unwrap();
                        assert!(bytes[..len].iter().all(|byte| *byte == thread as u8 + 1), "another's data");
                    }
                    if round % 5 == 0 {
                        store.sync().unwrap();
                    }
                    while store.delete_generation(chunk(thread + 1, 0).inode, 1, 0).unwrap().next.is_some() {}
                }
            });
        }
    });
    assert!(scrub_all(&store).is_empty());
    store.sync().unwrap();
    let slabs = ashlar_env::Disk::list(&world.disk, "slabs/65536").unwrap().len();
    assert_eq!(slabs, 1);
    let (stats, total) = (store.stats(), 16_384);
    store.background_tick(0).unwrap();
    assert!(stats.stale_slots + stats.clean_slots <= total);
    world.kill(store);
    let store = world.open();
    assert_eq!(store.stats().stale_slots + store.stats().clean_slots, total, "every slot is free again");
}
