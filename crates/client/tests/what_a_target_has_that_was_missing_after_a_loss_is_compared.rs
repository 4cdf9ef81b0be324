//! Goal: what metadata has lost is not taken for content because the target that has it was missing when metadata was started anew: once the target is there, its
//! chunks are compared with metadata before it is told that they are known, and what a mount writes meanwhile stays. Method: all roles in this process; chunks that
//! metadata does not know of are written past it.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{StorageReply, StorageRequest};
use ashlar_types::{ChainId, ChunkId, Errno, FileLayout, InodeId, OfChains, ShardSet, TargetId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use support::{KIB64, World, content, eventually, make, read, write};

const LATE: TargetId = TargetId(2);
/// Its only chain.
const CHAIN: ChainId = ChainId(1);

/// Targets of which one is missing for metadata.
struct Missing {
    storage: Arc<dyn StorageCalls>,
    is_missing: Arc<AtomicBool>,
}

impl StorageCalls for Missing {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        if request.target() == LATE && self.is_missing.load(SeqCst) {
            return Err(Errno::ENODEV);
        }
        self.storage.call(request, payload)
    }
}

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

/// Writes a chunk past metadata, and has the target tell of it.
fn write_unknown(world: &World, chunk: ChunkId) {
    let chunk_bytes = KIB64 as u32;
    let request =
        StorageRequest::Write { target: LATE, chunk, chain: CHAIN, chunk_bytes, offset: 0, sums: Vec::new() };
    world.storage.call(&request, Payload::Write(&[0xaa; KIB64])).unwrap();
    world.storage.call(&StorageRequest::Sync { target: LATE, chains: OfChains::All }, Payload::None).unwrap();
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

#[test]
fn what_was_lost_is_gone_from_a_target_that_comes_later() {
    let is_missing = Arc::new(AtomicBool::new(false));
    let wrapped = is_missing.clone();
    let mut world = World::whose_metadata_calls(48 << 20, &[48 << 20], |storage| {
        Arc::new(Missing { storage, is_missing: wrapped })
    });
    // Files are striped over both targets: chunks with even numbers are on the late one.
    let len = 2 * KIB64 + KIB64 / 2;
    let client = world.client();
    let (closed, layout) = make_late(&client, "closed", len);
    let (written, layout_of_written) = make_late(&client, "written", len);
    let generation = layout.generation;
    // As what a power cut took from metadata alone: a file that was written longer, one that is written again now, and one that had other chunks.
    for (inode, generation, index) in
        [(closed, generation, 6), (written, layout_of_written.generation, 6), (closed, generation + 7, 0)]
    {
        write_unknown(&world, ChunkId { inode, generation, index });
    }
    is_missing.store(true, SeqCst);
    world.start_metadata_again(true);
    is_missing.store(false, SeqCst);
    assert!(suspects(&world) >= 3);
    let client = world.client();
    assert_eq!(chains_of_new(&client, "early", 4), vec![ChainId(0); 4], "before the target was compared");
    let file = open(&client, written);
    write(&client, &file, len as u64, &content(2, KIB64)).unwrap();

    world.meta.start_collector().unwrap();
    eventually(|| end_of(&world, closed, generation + 7) == 0);
    eventually(|| end_of(&world, closed, generation) == len as u64);
    let written_end = 3 * KIB64 as u64;
    eventually(|| end_of(&world, written, layout_of_written.generation) == written_end);
    // It is written on: nothing of what was there before shows.
    write(&client, &file, 8 * KIB64 as u64, b"end").unwrap();
    let whole = read(&client, &file, 9 * KIB64);
    assert_eq!(whole.len(), 8 * KIB64 + 3);
    assert!(whole[..len] == content(1, len) && whole[len..len + KIB64] == content(2, KIB64));
    assert!(
        whole[len + KIB64..8 * KIB64].iter().all(|byte| *byte == 0),
        "bytes that were lost show in a hole"
    );
    client.release(&file);
    let turn = AtomicU64::new(0);
    eventually(|| {
        let name = format!("late{}-", turn.fetch_add(1, SeqCst));
        chains_of_new(&client, &name, 2).contains(&CHAIN)
    });
}
