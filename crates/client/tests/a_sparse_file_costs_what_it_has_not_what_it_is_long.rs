//! Goal: SEEK_DATA and punching in a file of 4 EiB with a few chunks end at once: a call that walks all chunks it could have ties up a
//! thread of the mount for days. A hole takes no space when the file leaves its inode. Method: such files, with chunks at both ends and in the middle.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{AllocateMode, Client, Handle, Seek, Who, WriteFlags};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::message::{SetAttr, StorageReply, StorageRequest};
use ashlar_types::{Errno, LayoutPolicy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use support::{KIB64, World, content, make, read, write};

const CHUNK: u64 = KIB64 as u64;
const LONG: u64 = 1 << 62;

/// Targets whose calls are counted; one that is called without end answers no more.
struct Counted {
    storage: Arc<dyn StorageCalls>,
    calls: AtomicU64,
}

/// More calls than a few chunks can need.
const CALLS_MAX: u64 = 50;

impl StorageCalls for Counted {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        if self.calls.fetch_add(1, SeqCst) >= CALLS_MAX {
            return Err(Errno::ELOOP);
        }
        self.storage.call(request, payload)
    }
}

fn counted(world: &World) -> (Arc<Client>, Arc<Counted>) {
    let counted = Arc::new(Counted { storage: world.storage.clone(), calls: AtomicU64::new(0) });
    (world.client_through(world.meta.clone(), counted.clone()), counted)
}

/// A file with three chunks, the middle one at 1 EiB and the last one shortly before the end.
fn sparse(client: &Client) -> Arc<Handle> {
    let file = make(client, "f").unwrap();
    write(client, &file, 0, &content(1, 5 * KIB64 - 1000)).unwrap();
    let longer = SetAttr { size: Some(LONG), ..SetAttr::default() };
    client.setattr(&Who::system(), file.file.inode, Some(&file), longer).unwrap();
    for offset in [LONG / 4, LONG - 2 * CHUNK] {
        client.write(&file, offset, &content(2, 100), WriteFlags::default()).unwrap();
    }
    file
}

#[test]
fn a_seek_jumps_over_a_hole_of_any_length() {
    let world = World::new(48 << 20);
    let (client, counted) = counted(&world);
    let file = sparse(&client);
    counted.calls.store(0, SeqCst);
    let seek = |offset, what| client.seek(&file, offset, what);
    assert_eq!(seek(0, Seek::Data), Ok(0));
    let hole = (5 * CHUNK - 1000).next_multiple_of(4096);
    assert_eq!(seek(5000, Seek::Hole).map(|at| at.next_multiple_of(4096)), Ok(hole));
    assert_eq!(seek(hole, Seek::Data), Ok(LONG / 4));
    assert_eq!(seek(3 * CHUNK, Seek::Data), Ok(3 * CHUNK));
    assert_eq!(seek(LONG / 4 + 50, Seek::Data), Ok(LONG / 4 + 50));
    assert_eq!(seek(LONG / 4 + 5000, Seek::Data), Ok(LONG - 2 * CHUNK));
    assert_eq!(seek(LONG - CHUNK, Seek::Data), Err(Errno::ENXIO));
    assert_eq!(seek(LONG - CHUNK, Seek::Hole), Ok(LONG - CHUNK));
    assert_eq!(seek(LONG, Seek::Data), Err(Errno::ENXIO));
    assert!(counted.calls.load(SeqCst) < CALLS_MAX);
}

#[test]
fn a_punch_passes_over_what_is_not_there() {
    let world = World::new(48 << 20);
    let (client, counted) = counted(&world);
    let file = sparse(&client);
    counted.calls.store(0, SeqCst);
    client
        .fallocate(&Who::system(), &file, AllocateMode::PunchHole, (1000, LONG - 2 * CHUNK - 1000))
        .unwrap();
    assert!(counted.calls.load(SeqCst) < CALLS_MAX);
    assert_eq!(
        client.seek(&file, 4096, Seek::Data),
        Ok(LONG - 2 * CHUNK),
        "only what is behind the range is left"
    );
    let mut start = vec![0xEE; 4096];
    client.read(&file, 0, &mut start).unwrap();
    assert_eq!(start[..1000], content(1, 1000));
    assert!(start[1000..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_hole_that_leaves_its_inode_stays_one() {
    let world = World::new(48 << 20);
    let client = world.client();
    for (name, start) in [("hole", &[][..]), ("begun", b"start")] {
        let file = make(&client, name).unwrap();
        write(&client, &file, 0, start).unwrap();
        let longer = SetAttr { size: Some(CHUNK), ..SetAttr::default() };
        client.setattr(&Who::system(), file.file.inode, Some(&file), longer).unwrap();
        write(&client, &file, 10 * CHUNK, &content(1, 4096)).unwrap();
        assert_eq!(client.seek(&file, start.len().next_multiple_of(4096) as u64, Seek::Data), Ok(10 * CHUNK));
        assert_eq!(read(&client, &file, start.len()), start);
        let (_, layout) = client.layout_show(&Who::system(), file.file.inode).unwrap();
        let expected = if start.is_empty() { 8 } else { 16 };
        assert_eq!(world.blocks(file.file.inode, layout.unwrap().generation), expected, "what was written");
    }
}

#[test]
fn settings_of_an_open_empty_file_hold_for_its_next_write() {
    let world = World::new(48 << 20);
    let client = world.client();
    for (name, inline_bytes, is_chunked) in [("more", 64 << 10, false), ("less", 512, true)] {
        let file = make(&client, name).unwrap();
        let policy = LayoutPolicy { inline_bytes: Some(inline_bytes), ..LayoutPolicy::default() };
        client.layout_set(&Who::system(), file.file.inode, policy).unwrap();
        write(&client, &file, 0, &content(1, if is_chunked { 1000 } else { 20_000 })).unwrap();
        let (_, layout) = client.layout_show(&Who::system(), file.file.inode).unwrap();
        assert_eq!(layout.is_some(), is_chunked, "{name}");
    }
}
