//! Goal: of two writes at once to a file that lives with its inode, of which one makes it outgrow the inode, neither is lost. Method: metadata that
//! carries the small one out only once the other has been granted WRITE, and told the content without it.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;
use support::{KIB64, World, content, eventually, make, read, write};

/// What the write that waits brings.
const SMALL: &[u8] = b"small";

/// Keeps the write of [`SMALL`] until somebody has been granted WRITE.
struct Overtaking {
    service: Arc<dyn MetaCalls>,
    keeps: AtomicBool,
    has_one: AtomicBool,
    /// Grants of WRITE that were told.
    granted: AtomicU32,
}

impl MetaCalls for Overtaking {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.service.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.service.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if matches!(request, MetaRequest::WriteInline { data: SMALL, .. }) {
            self.has_one.store(true, SeqCst);
            while self.keeps.load(SeqCst) {
                sleep(Duration::from_millis(1));
            }
        }
        let is_acquisition = matches!(request, MetaRequest::AcquireData { write: true, .. });
        let reply = self.service.call(caller, request);
        if is_acquisition {
            self.granted.fetch_add(1, SeqCst);
        }
        reply
    }
}

#[test]
fn a_small_write_that_a_big_one_overtakes_is_there() {
    let world = World::new(64 << 20);
    let meta = Arc::new(Overtaking {
        service: world.meta.clone(),
        keeps: AtomicBool::new(true),
        has_one: AtomicBool::new(false),
        granted: AtomicU32::new(0),
    });
    let client = world.client_over(meta.clone());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, b"before").unwrap();
    let big = content(1, KIB64);
    std::thread::scope(|threads| {
        let small = threads.spawn(|| write(&client, &file, 0, SMALL).unwrap());
        eventually(|| meta.has_one.load(SeqCst));
        let outgrowing = threads.spawn(|| write(&client, &file, 4096, &big).unwrap());
        eventually(|| meta.granted.load(SeqCst) > 0);
        // It has the grant in a moment, and waits for the small one.
        sleep(Duration::from_millis(100));
        assert!(!outgrowing.is_finished(), "it waits for what is under way");
        meta.keeps.store(false, SeqCst);
        small.join().unwrap();
        outgrowing.join().unwrap();
    });
    let seen = read(&client, &file, 4096 + KIB64);
    assert_eq!(&seen[..6], b"smalle", "the small write is lost");
    assert!(seen[4096..] == big, "the big write is lost");
}
