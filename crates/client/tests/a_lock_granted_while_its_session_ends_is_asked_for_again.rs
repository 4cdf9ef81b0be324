//! Goal: a lock that was granted in a session, and of which the answer comes when that session has ended and the next one has not begun, is not taken for held: others have it by then. Method: the answer
//! and the opening of the next session are held up, and meanwhile another client takes the lock.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest, Reclaim, SessionEvent};
use ashlar_types::{Errno, NodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use support::{World, eventually, lock, lock_request, make};

/// It has everything.
const NODE: NodeId = NodeId(1);
/// Time in which something would have happened that must not.
const A_WHILE: Duration = Duration::from_millis(100);

/// Something that is held up.
#[derive(Default)]
struct Held {
    is_held: AtomicBool,
    waiting: AtomicU32,
}

impl Held {
    fn pass(&self) {
        self.waiting.fetch_add(1, SeqCst);
        while self.is_held.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn await_one(&self) {
        eventually(|| self.waiting.load(SeqCst) > 0);
    }
}

/// Metadata whose answers to calls for locks, and openings of sessions, are held up.
struct Late {
    world: Arc<World>,
    events: Mutex<Option<Arc<dyn SessionEvents>>>,
    answers: Held,
    openings: Held,
    /// How many locks it was told that the client has, when it was told everything.
    told: Mutex<Option<usize>>,
    telling: Mutex<usize>,
}

impl Late {
    fn new(world: &Arc<World>) -> Arc<Late> {
        let (events, answers, openings) = (Mutex::default(), Held::default(), Held::default());
        let (told, telling) = (Mutex::default(), Mutex::default());
        Arc::new(Late { world: world.clone(), events, answers, openings, told, telling })
    }

    fn tell(&self, event: SessionEvent) {
        let events = self.events.lock().clone().unwrap();
        events.deliver(event);
    }

    /// While an answer is held up, ends the session of `client`, and has somebody else take the lock before the answer comes and the next session begins; who that is.
    fn end_session_under(&self, client: &Client, file: &Handle) -> (Arc<Client>, Arc<Handle>) {
        self.answers.await_one();
        let ended = client.session();
        self.openings.is_held.store(true, SeqCst);
        self.close_session(ended);
        self.tell(SessionEvent::Evicted { session: ended });
        self.openings.await_one();
        let other = self.world.client();
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let theirs = other.open(&Who::system(), file.file.inode, flags).unwrap().handle;
        lock(&other, &theirs, 1, false).unwrap();
        self.answers.is_held.store(false, SeqCst);
        std::thread::sleep(A_WHILE);
        self.openings.is_held.store(false, SeqCst);
        eventually(|| client.session() != ended);
        (other, theirs)
    }
}

impl MetaCalls for Late {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.openings.pass();
        *self.events.lock() = Some(events.clone());
        self.world.meta.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.world.meta.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let is_of_lock = matches!(request, MetaRequest::Lock { .. } | MetaRequest::LockWait { .. });
        match &request {
            MetaRequest::Reclaim { part: Reclaim::Locks(locks), .. } => *self.telling.lock() += locks.len(),
            MetaRequest::Reclaim { part: Reclaim::Done, .. } => {
                *self.told.lock() = Some(std::mem::take(&mut self.telling.lock()));
            }
            _ => {}
        }
        let reply = self.world.meta.call(caller, request);
        if is_of_lock {
            self.answers.pass();
        }
        reply
    }
}

#[test]
fn by_who_waits_for_it() {
    let world = Arc::new(World::new(48 << 20));
    let late = Late::new(&world);
    let client = world.client_that_comes_back(late.clone(), world.storage.clone());
    let file = make(&client, "f").unwrap();
    let (answer, answered) = std::sync::mpsc::channel();
    late.answers.is_held.store(true, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = lock_request(&file, 2, false);
            client.lock_wait_deferred(
                &file,
                request,
                1,
                Box::new(move |outcome| answer.send(outcome).unwrap()),
            );
        });
        let (other, theirs) = late.end_session_under(&client, &file);
        std::thread::sleep(A_WHILE);
        assert!(answered.try_recv().is_err(), "another client has the lock");
        other.release(&theirs);
        assert_eq!(answered.recv(), Ok(Ok(())));
    });
}

#[test]
fn by_who_does_not_wait_for_it() {
    let world = Arc::new(World::new(48 << 20));
    let late = Late::new(&world);
    let client = world.client_that_comes_back(late.clone(), world.storage.clone());
    let file = make(&client, "f").unwrap();
    late.answers.is_held.store(true, SeqCst);
    std::thread::scope(|scope| {
        let locking = scope.spawn(|| lock(&client, &file, 2, false));
        let (other, theirs) = late.end_session_under(&client, &file);
        assert_eq!(locking.join().unwrap(), Err(Errno::EAGAIN), "another client has the lock");
        other.release(&theirs);
    });
    late.tell(SessionEvent::Reclaim { server: NODE, incarnation: 0 });
    eventually(|| late.told.lock().is_some());
    assert_eq!(*late.told.lock(), Some(0), "locks that a server is told of after a start");
}
