//! Goal: what metadata has lost is not taken for content because the target that has it was missing when metadata was started anew: the target is not told that its chunks are known before
//! each was looked at, and a start that finds it there removes what nobody knows. Method: all roles in this process; chunks that metadata does not know of are written past it.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_rpc::{Payload, StorageCalls as _};
use ashlar_types::message::{SetAttr, StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, FileLayout, InodeId, OfChains, ShardSet, TargetId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use support::missing::Missing;
use support::{KIB64, World, content, eventually, make, read, remove, write};

const LATE: TargetId = TargetId(2);
/// Its only chain.
const CHAIN: ChainId = ChainId(1);
/// Of a file: chunks with even numbers are on the late target.
const LEN: usize = 2 * KIB64 + KIB64 / 2;

/// A file of `len` bytes on the target that will be missing; nobody has it open.
fn make_late(client: &Client, name: &str, len: usize) -> (InodeId, FileLayout) {
    for turn in 0..4 {
        let file = make(client, &format!("{name}{turn}")).unwrap();
        write(client, &file, 0, &content(1, len)).unwrap();
        client.release(&file);
        let layout = client.layout_show(&Who::system(), file.file.inode).unwrap().1.unwrap();
        if layout.chains[0] == CHAIN {
            return (file.file.inode, layout);
        }
    }
    panic!("no file came to the other target");
}

/// Writes a chunk past metadata.
fn write_unknown(world: &World, chunk: ChunkId) {
    let chunk_bytes = KIB64 as u32;
    let request =
        StorageRequest::Write { target: LATE, chunk, chain: CHAIN, chunk_bytes, offset: 0, sums: Vec::new() };
    world.storage.call(&request, Payload::Write(&[0xaa; KIB64])).unwrap();
}

/// End in bytes of what the target has of a generation of a file; 0 for nothing.
fn end_of(world: &World, inode: InodeId, generation: u32) -> u64 {
    let request = StorageRequest::Extent { target: LATE, inode, generation, chains: OfChains::All };
    match world.storage.call(&request, Payload::None).unwrap() {
        StorageReply::Extent(extent) => {
            extent.map_or(0, |(index, len, _)| index * KIB64 as u64 + u64::from(len))
        }
        other => panic!("{other:?}"),
    }
}

fn suspects(world: &World) -> usize {
    let request =
        StorageRequest::Suspects { target: LATE, after: None, limit: 64, shards: ShardSet::below(64) };
    match world.storage.call(&request, Payload::None).unwrap() {
        StorageReply::Suspects { found, .. } => found.len(),
        other => panic!("{other:?}"),
    }
}

fn open(client: &Client, inode: InodeId) -> Arc<Handle> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    client.open(&Who::system(), inode, flags).unwrap().handle
}

/// Chains of so many new files.
fn chains_of_new(client: &Client, name: &str, count: usize) -> Vec<ChainId> {
    let chain_of = |number| {
        let file = make(client, &format!("{name}{number}")).unwrap();
        write(client, &file, 0, &content(number, KIB64)).unwrap();
        client.release(&file);
        client.layout_show(&Who::system(), file.file.inode).unwrap().1.unwrap().chains[0]
    };
    (0..count).map(chain_of).collect()
}

/// A world whose metadata was started after a loss while a target was missing, which is back; and a file on both targets, with its length.
fn after_a_loss(lose: impl Fn(&World, InodeId, u32)) -> (World, InodeId, u32) {
    let is_missing = Arc::new(AtomicBool::new(false));
    let mut world = Missing::world(48 << 20, LATE, &is_missing);
    let (inode, layout) = make_late(&world.client(), "f", LEN);
    lose(&world, inode, layout.generation);
    world.storage.call(&StorageRequest::Sync { target: LATE, chains: OfChains::All }, Payload::None).unwrap();
    is_missing.store(true, SeqCst);
    world.start_metadata_again(true);
    is_missing.store(false, SeqCst);
    assert!(suspects(&world) > 0);
    world.meta.start_collector().unwrap();
    (world, inode, layout.generation)
}

/// Has the collector look again, as it does after some time, or when there is something to collect.
fn look_again(world: &World, client: &Client) {
    world.clock.advance(Duration::from_secs(10));
    let file = make(client, "removed").unwrap();
    write(client, &file, 0, &content(1, KIB64)).unwrap();
    client.release(&file);
    remove(client, "removed").unwrap();
}

#[test]
fn a_target_whose_disk_hangs_at_a_start_keeps_nobody_from_being_served_and_is_looked_at_later() {
    let hangs = Arc::new(AtomicBool::new(false));
    let mut world = Missing::hanging_world(48 << 20, LATE, &hangs);
    let (inode, _) = make_late(&world.client(), "f", LEN);
    world.storage.call(&StorageRequest::Sync { target: LATE, chains: OfChains::All }, Payload::None).unwrap();
    let before = suspects(&world);
    assert!(before > 0);
    hangs.store(true, SeqCst);
    world.start_metadata_again(true);
    assert_eq!(suspects(&world), before, "nobody has compared them");
    make(&world.client(), "served").unwrap();
    hangs.store(false, SeqCst);
    world.meta.start_collector().unwrap();
    let client = world.client();
    eventually(|| {
        look_again(&world, &client);
        suspects(&world) == 0
    });
    assert!(read(&client, &open(&client, inode), 2 * LEN) == content(1, LEN));
}

#[test]
fn a_target_that_has_only_what_is_known_is_one_of_all_again() {
    let (world, inode, _) = after_a_loss(|_, _, _| ());
    let client = world.client();
    eventually(|| {
        look_again(&world, &client);
        suspects(&world) == 0
    });
    assert!(chains_of_new(&client, "new", 4).contains(&CHAIN));
    assert!(read(&client, &open(&client, inode), 2 * LEN) == content(1, LEN));
}

#[test]
fn what_was_lost_is_kept_in_mind_until_a_start_removes_it() {
    // As what a power cut took from metadata alone: the file was written longer, and had other chunks before.
    let (mut world, inode, generation) = after_a_loss(|world, inode, generation| {
        write_unknown(world, ChunkId { inode, generation, index: 6 });
        write_unknown(world, ChunkId { inode, generation: generation + 7, index: 0 });
    });
    let client = world.client();
    let file = open(&client, inode);
    for turn in 0..20 {
        look_again(&world, &client);
        let more = content(turn, 10);
        let new = chains_of_new(&client, &format!("early{turn}-"), 2);
        assert_eq!(new, [ChainId(0); 2], "a target that has what nobody knows");
        // It is in use meanwhile.
        write(&client, &file, 0, &more).unwrap();
        assert!(read(&client, &file, 10) == more);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(suspects(&world) > 0, "they were confirmed, and no start would look at them");
    assert_eq!(end_of(&world, inode, generation), 7 * KIB64 as u64, "nothing is cut while it is in use");
    write(&client, &file, 0, &content(1, LEN)).unwrap();
    client.release(&file);

    world.start_metadata_again(false);
    assert_eq!(end_of(&world, inode, generation + 7), 0);
    assert_eq!(end_of(&world, inode, generation), LEN as u64);
    assert_eq!(suspects(&world), 0);
    let client = world.client();
    let file = open(&client, inode);
    write(&client, &file, 8 * KIB64 as u64, b"end").unwrap();
    let whole = read(&client, &file, 9 * KIB64);
    assert!(whole[..LEN] == content(1, LEN));
    assert!(whole[LEN..8 * KIB64].iter().all(|byte| *byte == 0), "bytes that were lost show in a hole");
    // Nor is a generation given out again that the lost end of the log had given out.
    let emptied = SetAttr { size: Some(0), ..SetAttr::default() };
    client.setattr(&Who::system(), inode, Some(&file), emptied).unwrap();
    write(&client, &file, 0, &content(3, LEN)).unwrap();
    client.release(&file);
    let layout = client.layout_show(&Who::system(), inode).unwrap().1.unwrap();
    assert!(layout.generation > generation + 1000, "{}", layout.generation);
    assert!(chains_of_new(&client, "late", 2).contains(&CHAIN));
}
