//! Goal: chunks that a session wrote for a file about to leave its inode do not outlive the session, and a layout that was bound
//! does. Method: the calls of a client, one by one, and an end of the session in between.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, StorageCalls};
use ashlar_types::message::{MetaReply, MetaRequest, Recall, SessionEvent, StorageRequest};
use ashlar_types::{ChunkId, Credentials, Errno, FileLayout, InodeId, OpId, SessionId};
use std::sync::{Arc, Mutex, mpsc};
use support::{World, call, content, deaf_session, make, propose_layout, read, write};

/// A client that gives back whatever it is asked for, and does nothing else.
struct Obliging(Mutex<mpsc::Sender<Recall>>);

impl SessionEvents for Obliging {
    fn deliver(&self, event: SessionEvent) {
        if let SessionEvent::Recall(recall) = event {
            // The other end is gone when the test is over.
            let _ = self.0.lock().unwrap().send(recall);
        }
    }
}

fn obliging_session(world: &World) -> SessionId {
    let (sender, recalls) = mpsc::channel();
    let session = world.meta.open_session(Arc::new(Obliging(Mutex::new(sender)))).unwrap().session;
    let meta = world.meta.clone();
    std::thread::spawn(move || {
        for Recall { inode, id, .. } in recalls {
            let creds = Credentials::root();
            let caller = Caller::new(OpId { session, sequence: 1 }, &creds);
            let _ = meta.call(caller, MetaRequest::RecallDone { inode, id });
        }
    });
    session
}

/// A deaf session with an inline file that was proposed a layout and has written a chunk to it.
fn half_spilled(world: &World, name: &[u8]) -> (SessionId, InodeId, FileLayout) {
    half_spilled_by(world, deaf_session(world), name)
}

fn half_spilled_by(world: &World, session: SessionId, name: &[u8]) -> (SessionId, InodeId, FileLayout) {
    let (inode, layout) = propose_layout(world, session, name);
    put_chunk(world, inode, &layout);
    (session, inode, layout)
}

fn put_chunk(world: &World, inode: InodeId, layout: &FileLayout) {
    let request = StorageRequest::Write {
        target: world.storage.targets()[0].0,
        chunk: ChunkId { inode, generation: layout.generation, index: 0 },
        chain: layout.chain(0),
        chunk_bytes: layout.chunk_bytes,
        offset: 0,
        sums: Vec::new(),
    };
    world.storage.call(&request, Payload::Write(&content(1, 9000))).unwrap();
}

/// Collects garbage in the name of a bystander.
fn collect(world: &World) {
    let bystander = deaf_session(world);
    assert_eq!(call(world, bystander, MetaRequest::MakeRoom), Ok(MetaReply::Done));
    world.meta.close_session(bystander);
}

#[test]
fn what_a_session_was_filling_goes_when_it_ends() {
    let world = World::new(48 << 20);
    let (session, inode, layout) = half_spilled(&world, b"f");
    collect(&world);
    assert!(world.has_chunks(inode, layout.generation), "the session may yet bind it");
    world.meta.close_session(session);
    collect(&world);
    assert!(!world.has_chunks(inode, layout.generation));
    // The file is as usable as before.
    let late = MetaRequest::SetLayout { inode, layout, blocks: 24, is_synced: true };
    assert_eq!(call(&world, session, late), Err(Errno::ENOTCONN));
    let (_, _, newer) = {
        let session = deaf_session(&world);
        let reply = call(&world, session, MetaRequest::ProposeLayout { inode }).unwrap();
        let MetaReply::Layout { layout, is_bound: false } = reply else { panic!() };
        (session, inode, layout)
    };
    assert!(newer.generation > 0);
}

#[test]
fn what_a_session_was_filling_goes_when_it_is_evicted() {
    let world = World::new(48 << 20);
    let (session, inode, layout) = half_spilled(&world, b"f");
    let other = world.client();
    // The recall of the write lease is not answered.
    other.getattr(&ashlar_client::Who::system(), inode).unwrap();
    assert_eq!(call(&world, session, MetaRequest::Getattr { inode }), Err(Errno::ENOTCONN));
    collect(&world);
    assert!(!world.has_chunks(inode, layout.generation));
}

#[test]
fn giving_up_a_proposal_frees_its_chunks_at_once_and_only_its_own() {
    let world = World::new(48 << 20);
    let (session, inode, layout) = half_spilled(&world, b"f");
    let generation = layout.generation;
    let other = deaf_session(&world);
    call(&world, other, MetaRequest::WithdrawLayout { inode, generation }).unwrap();
    collect(&world);
    assert!(world.has_chunks(inode, generation), "it is not the other session's to give up");
    call(&world, session, MetaRequest::WithdrawLayout { inode, generation }).unwrap();
    collect(&world);
    assert!(!world.has_chunks(inode, generation));
    assert_eq!(
        call(&world, session, MetaRequest::SetLayout { inode, layout, blocks: 24, is_synced: true }),
        Err(Errno::EAGAIN),
        "its chunks are gone"
    );
}

#[test]
fn a_newer_proposal_to_somebody_else_survives_the_end_of_the_first_session() {
    let world = World::new(48 << 20);
    let (first, inode, old) = half_spilled_by(&world, obliging_session(&world), b"f");
    let second = deaf_session(&world);
    let reply = call(&world, second, MetaRequest::ProposeLayout { inode });
    let MetaReply::Layout { layout: new, is_bound: false } = reply.unwrap() else { panic!() };
    assert!(call(&world, first, MetaRequest::Getattr { inode }).is_ok(), "the first session lives");
    put_chunk(&world, inode, &new);
    world.meta.close_session(first);
    collect(&world);
    assert!(!world.has_chunks(inode, old.generation));
    assert!(world.has_chunks(inode, new.generation));
    let bind = MetaRequest::SetLayout { inode, layout: new.clone(), blocks: 24, is_synced: true };
    call(&world, second, bind).unwrap();
    world.meta.close_session(second);
    collect(&world);
    assert!(world.has_chunks(inode, new.generation), "a bound layout is the file's");
}

#[test]
fn a_file_in_chunks_keeps_them_when_its_writer_goes() {
    let world = World::new(48 << 20);
    let client = world.client();
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(3, 1000)).unwrap();
    write(&client, &file, 1000, &content(4, 200_000)).unwrap();
    client.release(&file);
    client.disconnect().unwrap();
    collect(&world);
    let client = world.client();
    let flags = ashlar_client::OpenFlags { read: true, ..Default::default() };
    let opened = client.open(&ashlar_client::Who::system(), file.file.inode, flags).unwrap();
    let expected = [content(3, 1000), content(4, 200_000)].concat();
    assert!(read(&client, &opened.handle, 300_000) == expected);
}
