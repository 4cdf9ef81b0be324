//! Goal: what a call promises about a small or empty file holds as for a large one. Method: a client over a simulated disk; space that was
//! allocated behind the end of an empty file, and writes that ask for durability by themselves, of which the syncs are counted.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{AllocateMode, Who, WriteFlags};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use support::{KIB64, World, content, make, write};

const CAPACITY: u64 = 48 << 20;

/// Metadata that counts how often it was asked to become durable.
struct Counting {
    meta: Arc<dyn MetaCalls>,
    syncs: AtomicU64,
}

impl MetaCalls for Counting {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.meta.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.meta.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.syncs.fetch_add(u64::from(matches!(request, MetaRequest::Sync(_))), SeqCst);
        self.meta.call(caller, request)
    }
}

#[test]
fn space_allocated_behind_the_end_of_an_empty_file_was_not_there_when_the_disk_was_full() {
    let world = World::new(CAPACITY);
    let client = world.client();
    let file = make(&client, "kept").unwrap();
    client.fallocate(&Who::system(), &file, AllocateMode::KeepSize, (0, 16 * KIB64 as u64)).unwrap();
    let attr = client.getattr(&Who::system(), file.file.inode).unwrap().attr;
    assert_eq!(attr.size, 0);
    assert!(attr.blocks >= 16 * KIB64 as u64 / 512, "{} blocks", attr.blocks);
    world.fill(&client);
    write(&client, &file, 0, &content(1, 16 * KIB64)).unwrap();
}

#[test]
fn a_write_that_asked_for_durability_was_answered_without() {
    let world = World::new(CAPACITY);
    let meta = Arc::new(Counting { meta: world.meta.clone(), syncs: AtomicU64::new(0) });
    let client = world.client_over(meta.clone());
    for len in [100, KIB64] {
        let file = make(&client, &format!("file-{len}")).unwrap();
        write(&client, &file, 0, &content(1, len)).unwrap();
        let before = meta.syncs.load(SeqCst);
        let flags = WriteFlags { is_sync: true, ..WriteFlags::default() };
        client.write(&file, 0, &content(2, 10), flags).unwrap();
        assert!(meta.syncs.load(SeqCst) > before, "{len} bytes");
    }
}
