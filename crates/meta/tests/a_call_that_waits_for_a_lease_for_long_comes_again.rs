//! Goal: a call of a mount that needs a lease of another one, which waits for a disk, is told to come again and does not fail: for how long it waits is for its mount to say. Method: a session that
//! has WRITE, does not answer and says that it is busy, and a clock that is put ahead.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::{Clock, Env};
use ashlar_rpc::{Caller, LastingSessions, MetaCalls, SessionEvents};
use ashlar_types::message::{MetaReply, MetaRequest, SessionEvent};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Credentials, DescriptionId, Errno, InodeId, Name, NodeId, OpId, SessionId, Timespec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::{Nowhere, Server};

const WRITER: SessionId = SessionId(1);
/// More than one try may take.
const AHEAD_S: u64 = 25;

struct AheadClock {
    clock: Arc<dyn Clock>,
    ahead_s: AtomicU64,
}

impl Clock for AheadClock {
    fn now(&self) -> Timespec {
        self.clock.now()
    }
    fn monotonic(&self) -> Duration {
        self.clock.monotonic() + Duration::from_secs(self.ahead_s.load(SeqCst))
    }
}

/// Waits for a disk all the time.
struct Busy;

impl SessionEvents for Busy {
    fn deliver(&self, _: SessionEvent) {}
    fn is_busy(&self, _: InodeId) -> bool {
        true
    }
}

#[test]
fn a_call_that_waits_for_a_lease_for_long_comes_again() {
    let clock = Arc::new(AheadClock { clock: Env::os().clock, ahead_s: AtomicU64::new(0) });
    let env = Env { clock: clock.clone(), ..Env::os() };
    let server = Server::start_in(env, NodeId(1), &[NodeId(1)], Arc::new(Nowhere));
    let owner = SessionOwner { node: NodeId(1), instance: [1; 16] };
    server.meta.open_lasting(Some(WRITER), owner, Arc::new(Busy)).unwrap();
    let reader = server.open(2);
    let (parent, name, handle) = (InodeId::ROOT, Name::new(b"f").unwrap(), DescriptionId(1));
    let (mode, umask) = (0o644, 0);
    let (exclusive, read, write, truncate) = (true, true, true, false);
    let create = MetaRequest::Create { parent, name, mode, umask, exclusive, read, write, truncate, handle };
    let Ok(MetaReply::Opened { open, .. }) = server.call(WRITER, &create) else { panic!("no file") };
    let inode = open.attr.inode;
    let acquire = MetaRequest::AcquireData { inode, write: true, is_writeback: false };
    assert!(matches!(server.call(WRITER, &acquire), Ok(MetaReply::Granted { .. })));
    let creds = Credentials::root();
    let ask = |sequence| {
        let op = OpId { session: reader, sequence };
        let request = MetaRequest::AcquireData { inode, write: false, is_writeback: false };
        server.meta.call(Caller::new(op, &creds), request)
    };
    std::thread::scope(|threads| {
        let asking = threads.spawn(|| ask(1000));
        std::thread::sleep(Duration::from_millis(500));
        clock.ahead_s.store(AHEAD_S, SeqCst);
        assert_eq!(asking.join().unwrap().err(), Some(Errno::EHOSTDOWN), "nothing was done: it comes again");
    });
    // In the end the other one is taken for gone.
    clock.ahead_s.store(3 * AHEAD_S, SeqCst);
    assert!(matches!(
        server.call(reader, &MetaRequest::AcquireData { inode, write: false, is_writeback: false }),
        Ok(MetaReply::Granted { .. })
    ));
}
