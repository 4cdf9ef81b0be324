//! Goal: a stat tells every write that had returned when it was made, also when the writer is just reporting to somebody else. Method: the
//! calls of a writer one by one, and stats of others in threads.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_rpc::{MetaCalls, SessionEvents};
use ashlar_types::message::{MetaReply, MetaRequest, Recall, SessionEvent};
use ashlar_types::{Attr, InodeId, Name, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use support::{World, call, eventually, propose_layout};

/// A client that notes what it is asked.
#[derive(Default)]
struct Notes(Mutex<Vec<Recall>>);

impl SessionEvents for Notes {
    fn deliver(&self, event: SessionEvent) {
        if let SessionEvent::Recall(recall) = event {
            self.0.lock().push(recall);
        }
    }
}

fn report(inode: InodeId, size: u64) -> MetaRequest<'static> {
    MetaRequest::CommitWrite {
        inode,
        generation: Some(1),
        size_at_least: size,
        blocks_delta: 0,
        mtime: None,
        atime: None,
        kill_set_id: false,
        keeps_capability: false,
        done: false,
    }
}

/// A file with chunks that a session of its own writes.
fn chunked_file(world: &World) -> (Arc<Notes>, SessionId, InodeId) {
    let notes = Arc::new(Notes::default());
    let writer = world.meta.open_session(notes.clone()).unwrap().session;
    let (inode, layout) = propose_layout(world, writer, b"f");
    let bind = MetaRequest::SetLayout { inode, layout, blocks: 0, is_synced: false };
    call(world, writer, bind).unwrap();
    (notes, writer, inode)
}

/// What a new session is told.
fn stat_by_another(world: &World, inode: InodeId) -> Attr {
    let session = world.meta.open_session(Arc::new(Notes::default())).unwrap().session;
    match call(world, session, MetaRequest::Getattr { inode }).unwrap() {
        MetaReply::Attr { attr, .. } => attr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stat_that_joins_a_recall_does_not_take_a_report_from_before_it() {
    let world = World::new(48 << 20);
    let (notes, writer, inode) = chunked_file(&world);
    let size_told = || stat_by_another(&world, inode).size;
    std::thread::scope(|scope| {
        let first = scope.spawn(size_told);
        eventually(|| notes.0.lock().len() == 1);
        // The report is made up with 10 bytes; then a write to 20 returns, and only then comes the second stat.
        let second = scope.spawn(size_told);
        std::thread::sleep(Duration::from_millis(100));
        call(&world, writer, report(inode, 10)).unwrap();
        let id = notes.0.lock()[0].id;
        call(&world, writer, MetaRequest::RecallDone { inode, id }).unwrap();
        assert_eq!(first.join().unwrap(), 10);
        eventually(|| notes.0.lock().len() == 2 || second.is_finished());
        call(&world, writer, report(inode, 20)).unwrap();
        let ids: Vec<u64> = notes.0.lock().iter().map(|recall| recall.id).collect();
        for id in ids {
            call(&world, writer, MetaRequest::RecallDone { inode, id }).unwrap();
        }
        assert_eq!(second.join().unwrap(), 20);
    });
}

#[test]
fn a_stat_told_a_new_link_with_a_size_from_before_it() {
    let world = World::new(48 << 20);
    let (notes, writer, inode) = chunked_file(&world);
    let told = || {
        let attr = stat_by_another(&world, inode);
        (attr.nlink, attr.size)
    };
    std::thread::scope(|scope| {
        let stat = scope.spawn(told);
        eventually(|| notes.0.lock().len() == 1);
        // It has 10 bytes when the report is made up; then 20 are written, and then it gets its second name.
        call(&world, writer, report(inode, 10)).unwrap();
        let name = Name::new(b"g").unwrap();
        call(&world, writer, MetaRequest::Link { inode, parent: InodeId::ROOT, name }).unwrap();
        let id = notes.0.lock()[0].id;
        call(&world, writer, MetaRequest::RecallDone { inode, id }).unwrap();
        // Who tells the second name asks again.
        eventually(|| notes.0.lock().len() == 2 || stat.is_finished());
        call(&world, writer, report(inode, 20)).unwrap();
        let ids: Vec<u64> = notes.0.lock().iter().map(|recall| recall.id).collect();
        for id in ids {
            call(&world, writer, MetaRequest::RecallDone { inode, id }).unwrap();
        }
        assert_eq!(stat.join().unwrap(), (2, 20));
    });
}
