//! Goal: a file counts for the blocks that its chunks have, also when the answer to a write was lost with a storage server that was killed, and the write was made again: the second one
//! finds the blocks there and says that it has added none. They were missing from quota and `st_blocks` until `ashlar fsck --repair`. Method: storage that carries changes out twice,
//! and says of the answer what the caller's end of a connection says then.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{AllocateMode, Client, Handle, Who, WriteFlags};
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::Errno;
use ashlar_types::message::{MetaReply, MetaRequest, SetAttr, StorageReply, StorageRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use support::{KIB64, World, call, content, deaf_session, make, write};

const CHUNK: u64 = KIB64 as u64;

/// Storage that loses answers to changes while it is told to.
struct Lossy {
    storage: Arc<dyn StorageCalls>,
    loses: AtomicBool,
    /// Nobody is there for a second attempt.
    is_gone: AtomicBool,
    counts: AtomicU64,
}

impl Lossy {
    fn new(storage: Arc<dyn StorageCalls>) -> Lossy {
        let (loses, is_gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Lossy { storage, loses, is_gone, counts: AtomicU64::new(0) }
    }
}

impl StorageCalls for Lossy {
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno> {
        let is_change = matches!(
            request,
            StorageRequest::Write { .. }
                | StorageRequest::Punch { .. }
                | StorageRequest::Allocate { .. }
                | StorageRequest::Truncate { .. }
                | StorageRequest::DeleteGeneration { .. }
        );
        self.counts.fetch_add(u64::from(matches!(request, StorageRequest::Extent { .. })), SeqCst);
        if !is_change || !self.loses.load(SeqCst) {
            return self.storage.call(request, payload);
        }
        let (first, second) = match payload {
            Payload::Write(data) => (Payload::Write(data), Payload::Write(data)),
            _ => (Payload::None, Payload::None),
        };
        self.storage.call(request, first)?;
        if self.is_gone.load(SeqCst) {
            return Err(Errno::ETIMEDOUT);
        }
        let mut reply = self.storage.call(request, second)?;
        match &mut reply {
            StorageReply::Written(written) => {
                assert_eq!(written.blocks_delta, 0, "all was done");
                written.may_be_second = true;
            }
            StorageReply::Deleted { may_be_second, .. } => *may_be_second = true,
            other => panic!("{other:?}"),
        }
        Ok(reply)
    }
}

fn lossy(world: &World) -> (Arc<Client>, Arc<Lossy>) {
    let lossy = Arc::new(Lossy::new(world.storage.clone()));
    (world.client_through(world.meta.clone(), lossy.clone()), lossy)
}

/// Blocks that metadata counts for, and that the target has.
fn blocks(world: &World, client: &Client, file: &Handle) -> (u64, u64) {
    let inode = file.file.inode;
    let request = MetaRequest::Getattr { inode };
    let MetaReply::Attr { attr, .. } = call(world, deaf_session(world), request).unwrap() else { panic!() };
    let layout = client.layout_show(&Who::system(), inode).unwrap().1.unwrap();
    (attr.blocks, world.blocks(inode, layout.generation))
}

type Change = fn(&Client, &Handle);
/// A change that does not go.
type Attempt = fn(&Client, &Handle) -> Result<(), Errno>;

/// Changes that take or free space in a file of four chunks, and one more that leaves its inode.
const CHANGES: [(&str, Change); 4] = [
    ("write", |client, file| write(client, file, 4 * CHUNK + 100, &content(2, 2 * KIB64)).unwrap()),
    ("allocate", |client, file| allocate(client, file, AllocateMode::KeepSize, 6 * CHUNK)),
    ("punch", |client, file| allocate(client, file, AllocateMode::PunchHole, CHUNK)),
    ("both", |client, file| allocate(client, file, AllocateMode::ZeroRange, 3 * CHUNK + CHUNK / 2 + 7)),
];

fn allocate(client: &Client, file: &Handle, mode: AllocateMode, offset: u64) {
    client.fallocate(&Who::system(), file, mode, (offset, CHUNK)).unwrap();
}

#[test]
fn when_it_is_synced_or_closed_for_the_last_time() {
    for (at, (name, change)) in CHANGES.into_iter().enumerate() {
        let world = World::new(64 << 20);
        let (client, lossy) = lossy(&world);
        let file = make(&client, name).unwrap();
        write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
        lossy.loses.store(true, SeqCst);
        change(&client, &file);
        lossy.loses.store(false, SeqCst);
        if at % 2 == 0 {
            client.fsync(&file).unwrap();
            // Once: what was answered at first costs nothing.
            let counts = lossy.counts.load(SeqCst);
            assert!(counts > 0);
            client.fsync(&file).unwrap();
            assert_eq!(lossy.counts.load(SeqCst), counts, "{name}");
        } else {
            client.release(&file);
        }
        let (counted, there) = blocks(&world, &client, &file);
        assert_eq!(counted, there, "{name}");
        assert_ne!(there, 4 * CHUNK / 512, "{name} changes something");
    }
}

#[test]
fn when_it_was_what_took_the_file_out_of_its_inode() {
    let world = World::new(64 << 20);
    let (client, lossy) = lossy(&world);
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 3000)).unwrap();
    lossy.loses.store(true, SeqCst);
    write(&client, &file, 3000, &content(2, KIB64)).unwrap();
    lossy.loses.store(false, SeqCst);
    client.fsync(&file).unwrap();
    let (counted, there) = blocks(&world, &client, &file);
    assert_eq!(counted, there);
}

#[test]
fn when_others_write_the_file_beside_it() {
    let world = World::new(64 << 20);
    let ((client, lossy), (other, _)) = (lossy(&world), lossy(&world));
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    let flags = ashlar_client::OpenFlags { write: true, past_cache: true, ..Default::default() };
    let open = |client: &Client| client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
    let (ours, theirs) = (open(&client), open(&other));
    let past = WriteFlags { is_past_cache: true, ..WriteFlags::default() };
    let written = |client: &Client, handle: &Handle, at: u64| {
        client.write_as(&Who::system(), handle, at * CHUNK, &content(3, KIB64), past).unwrap();
    };
    written(&other, &theirs, 8);
    lossy.loses.store(true, SeqCst);
    written(&client, &ours, 5);
    lossy.loses.store(false, SeqCst);
    written(&other, &theirs, 10);
    client.fsync(&ours).unwrap();
    // What the other one has not told yet is told when the file is wanted alone.
    let (counted, there) = blocks(&world, &client, &file);
    assert_eq!(counted, there);
    written(&other, &theirs, 12);
    other.fsync(&theirs).unwrap();
    let (counted, there) = blocks(&world, &client, &file);
    assert_eq!((counted, there), (there, 8 * CHUNK / 512));
}

#[test]
fn when_its_client_ends_before_it_has_counted() {
    for is_in_good_order in [true, false] {
        let world = World::new(64 << 20);
        let (client, lossy) = lossy(&world);
        let file = make(&client, "f").unwrap();
        write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
        client.flush(&file).unwrap();
        lossy.loses.store(true, SeqCst);
        write(&client, &file, 5 * CHUNK, &content(2, KIB64)).unwrap();
        if is_in_good_order {
            client.disconnect().unwrap();
        } else {
            ashlar_rpc::MetaCalls::close_session(&*world.meta, client.session());
        }
        let other = world.client();
        let (counted, there) = blocks(&world, &other, &file);
        assert_eq!((counted, there), (there, 5 * CHUNK / 512));
    }
}

#[test]
fn when_it_is_cut_before() {
    let world = World::new(64 << 20);
    let (client, lossy) = lossy(&world);
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
    lossy.loses.store(true, SeqCst);
    write(&client, &file, 5 * CHUNK, &content(2, 2 * KIB64)).unwrap();
    lossy.loses.store(false, SeqCst);
    cut(&client, &file, 5 * CHUNK + 5000);
    client.fsync(&file).unwrap();
    let (counted, there) = blocks(&world, &client, &file);
    assert_eq!((counted, there), (there, (4 * CHUNK + 8192) / 512));
}

#[test]
fn when_it_ended_with_an_error_after_it_was_carried_out() {
    let changes: [Attempt; 3] = [
        |client, file| write(client, file, 5 * CHUNK, &content(2, 2 * KIB64)),
        |client, file| allocated(client, file, AllocateMode::KeepSize),
        |client, file| allocated(client, file, AllocateMode::PunchHole),
    ];
    for (change, is_synced) in changes.into_iter().flat_map(|change| [(change, true), (change, false)]) {
        let world = World::new(64 << 20);
        let (client, lossy) = lossy(&world);
        let file = make(&client, "f").unwrap();
        write(&client, &file, 0, &content(1, 4 * KIB64)).unwrap();
        lossy.loses.store(true, SeqCst);
        lossy.is_gone.store(true, SeqCst);
        client.flush(&file).unwrap();
        assert_eq!(change(&client, &file), Err(Errno::ETIMEDOUT));
        lossy.loses.store(false, SeqCst);
        if is_synced {
            client.fsync(&file).unwrap();
        } else {
            // Whoever closes it does not wait for the target once more.
            client.release(&file);
            assert_eq!(lossy.counts.load(SeqCst), 0);
            ashlar_rpc::MetaCalls::close_session(&*world.meta, client.session());
        }
        let (counted, there) = blocks(&world, &world.client(), &file);
        assert_eq!(counted, there);
        assert_ne!(there, 4 * CHUNK / 512, "it was carried out");
    }
}

fn allocated(client: &Client, file: &Handle, mode: AllocateMode) -> Result<(), Errno> {
    let at = if matches!(mode, AllocateMode::PunchHole) { CHUNK } else { 6 * CHUNK };
    client.fallocate(&Who::system(), file, mode, (at, CHUNK))
}

fn cut(client: &Client, file: &Handle, size: u64) {
    let shorter = SetAttr { size: Some(size), ..SetAttr::default() };
    client.setattr(&Who::system(), file.file.inode, Some(file), shorter).unwrap();
}

/// Metadata cuts chunks.
#[test]
fn when_it_was_a_cut_that_was_made_again() {
    let world = World::whose_metadata_calls(64 << 20, &[], |storage| {
        let lossy = Lossy::new(storage);
        lossy.loses.store(true, SeqCst);
        Arc::new(lossy)
    });
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 6 * KIB64)).unwrap();
    cut(&client, &file, 2 * CHUNK + 5000);
    client.fsync(&file).unwrap();
    let (counted, there) = blocks(&world, &client, &file);
    assert_eq!((counted, there), (there, (2 * CHUNK + 8192) / 512));
}
