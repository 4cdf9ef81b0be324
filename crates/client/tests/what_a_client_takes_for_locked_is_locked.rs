//! Goal: a client takes no lock for held that others may have, and none is left at the service that nobody knows to hold: when a session ends while a lock is granted, when a wait is interrupted meanwhile, and when
//! a flock is not converted. Method: answers, and the opening of the next session, are held up, and meanwhile another client takes the lock; a service that was started anew is told which locks there are.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{Client, Handle, OpenFlags, Who};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{LockKind, LockRequest, MetaReply, MetaRequest, Reclaim, SessionEvent};
use ashlar_types::{Errno, NodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use support::heard::Heard;
use support::{World, eventually, lock, lock_request, make};

/// It has everything.
const NODE: NodeId = NodeId(1);

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
    heard: Arc<Heard>,
    answers: Held,
    openings: Held,
    /// Whether calls that drop locks get no answer, and are not carried out.
    are_releases_lost: AtomicBool,
    /// Calls for locks.
    asked: AtomicU32,
    /// Calls that take them back.
    cancelled: AtomicU32,
    /// How many locks it was told that the client has, when it was told everything.
    told: Mutex<Option<usize>>,
    telling: Mutex<usize>,
}

impl Late {
    fn new(world: &Arc<World>) -> Arc<Late> {
        let (heard, answers, openings) = (Heard::new(world), Held::default(), Held::default());
        let are_releases_lost = AtomicBool::new(false);
        let (asked, cancelled) = (AtomicU32::new(0), AtomicU32::new(0));
        let (told, telling) = (Mutex::default(), Mutex::default());
        Arc::new(Late {
            world: world.clone(),
            heard,
            answers,
            openings,
            are_releases_lost,
            asked,
            cancelled,
            told,
            telling,
        })
    }

    fn client(self: &Arc<Late>) -> Arc<Client> {
        self.world.client_that_comes_back(self.clone(), self.world.storage.clone())
    }

    /// Another client that has `file` open.
    fn other(&self, file: &Handle) -> (Arc<Client>, Arc<Handle>) {
        let other = self.world.client();
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let theirs = other.open(&Who::system(), file.file.inode, flags).unwrap().handle;
        (other, theirs)
    }

    /// Ends the session of `client`, which has no other one until it may; which that was.
    fn begin_to_end_session(&self, client: &Client) -> SessionId {
        let ended = client.session();
        self.openings.is_held.store(true, SeqCst);
        self.close_session(ended);
        self.heard.tell(SessionEvent::Evicted { session: ended });
        self.openings.await_one();
        ended
    }

    fn begin_next_session(&self, client: &Client, ended: SessionId) {
        self.openings.is_held.store(false, SeqCst);
        eventually(|| client.session() != ended);
    }

    /// While an answer is held up, ends the session of `client`, and has somebody else take the lock before the answer comes and the next session begins; who that is.
    fn end_session_under(&self, client: &Client, file: &Handle) -> (Arc<Client>, Arc<Handle>) {
        self.answers.await_one();
        let ended = self.begin_to_end_session(client);
        let (other, theirs) = self.other(file);
        lock(&other, &theirs, 1, false).unwrap();
        self.answers.is_held.store(false, SeqCst);
        eventually(|| self.asked.load(SeqCst) > 1);
        self.begin_next_session(client, ended);
        (other, theirs)
    }

    /// Starts the service anew, as far as `client` knows; how many locks it tells of.
    fn start_anew(&self) -> usize {
        *self.told.lock() = None;
        self.heard.tell(SessionEvent::Reclaim { server: NODE, incarnation: 0 });
        eventually(|| self.told.lock().is_some());
        self.told.lock().unwrap()
    }
}

/// Has `client` wait for a lock; where the outcome comes.
fn wait_for(client: &Client, file: &Arc<Handle>, request: LockRequest) -> Receiver<Result<(), Errno>> {
    let (answer, answered) = channel();
    client.lock_wait_deferred(file, request, 1, Box::new(move |outcome| answer.send(outcome).unwrap()));
    answered
}

impl MetaCalls for Late {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.openings.pass();
        self.heard.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.heard.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let is_of_lock = matches!(request, MetaRequest::Lock { .. } | MetaRequest::LockWait { .. });
        self.asked.fetch_add(u32::from(is_of_lock), SeqCst);
        let is_cancel = matches!(request, MetaRequest::LockCancel { .. });
        self.cancelled.fetch_add(u32::from(is_cancel), SeqCst);
        match &request {
            MetaRequest::Reclaim { part: Reclaim::Locks(locks), .. } => *self.telling.lock() += locks.len(),
            MetaRequest::Reclaim { part: Reclaim::Done, .. } => {
                *self.told.lock() = Some(std::mem::take(&mut self.telling.lock()));
            }
            _ => {}
        }
        if matches!(request, MetaRequest::LockRelease { .. }) && self.are_releases_lost.load(SeqCst) {
            return Err(Errno::ETIMEDOUT);
        }
        let reply = self.heard.call(caller, request);
        if is_of_lock {
            self.answers.pass();
        }
        reply
    }
}

#[test]
fn a_lock_that_was_waited_for_and_granted_while_its_session_ended_is_asked_for_again() {
    let (late, client, file) = begin();
    late.answers.is_held.store(true, SeqCst);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_for(&client, &file, lock_request(&file, 2, false)));
        let (other, theirs) = late.end_session_under(&client, &file);
        let answered = waiting.join().unwrap();
        assert!(answered.try_recv().is_err(), "another client has the lock");
        other.release(&theirs);
        assert_eq!(answered.recv(), Ok(Ok(())));
    });
    assert_eq!(late.start_anew(), 1);
}

#[test]
fn a_lock_that_was_granted_while_its_session_ended_is_asked_for_again() {
    let (late, client, file) = begin();
    late.answers.is_held.store(true, SeqCst);
    std::thread::scope(|scope| {
        let locking = scope.spawn(|| lock(&client, &file, 2, false));
        let (other, theirs) = late.end_session_under(&client, &file);
        assert_eq!(locking.join().unwrap(), Err(Errno::EAGAIN), "another client has the lock");
        other.release(&theirs);
    });
    assert_eq!(late.start_anew(), 0);
    lock(&client, &file, 2, false).unwrap();
    assert_eq!(late.start_anew(), 1);
}

/// A client of a service whose answers can be held up, and a file that it has open.
fn begin() -> (Arc<Late>, Arc<Client>, Arc<Handle>) {
    let late = Late::new(&Arc::new(World::new(48 << 20)));
    let client = late.client();
    let file = make(&client, "f").unwrap();
    (late, client, file)
}

type Waiting = ((Arc<Client>, Arc<Handle>), Receiver<Result<(), Errno>>);

/// Has `client` wait for a lock of `file` that another client has.
fn wait_behind_another(late: &Late, client: &Client, file: &Arc<Handle>) -> Waiting {
    let (other, theirs) = late.other(file);
    lock(&other, &theirs, 1, false).unwrap();
    let answered = wait_for(client, file, lock_request(file, 2, false));
    ((other, theirs), answered)
}

fn unlock((client, file): &(Arc<Client>, Arc<Handle>)) {
    client.lock(file, LockRequest { kind: LockKind::Unlock, ..lock_request(file, 1, false) }).unwrap();
}

/// Whatever `outcome` says, the service and others agree.
#[track_caller]
fn require_true(late: &Late, outcome: Result<(), Errno>, (other, theirs): &(Arc<Client>, Arc<Handle>)) {
    let (locks, others) = match outcome {
        Ok(()) => (1, Err(Errno::EAGAIN)),
        Err(errno) => {
            assert_eq!(errno, Errno::EINTR);
            (0, Ok(()))
        }
    };
    assert_eq!(late.start_anew(), locks, "{outcome:?}");
    assert_eq!(lock(other, theirs, 1, false), others, "{outcome:?}");
    other.release(theirs);
}

#[test]
fn who_is_interrupted_while_his_session_ends_leaves_no_lock_behind() {
    for others_let_go in [true, false] {
        let (late, client, file) = begin();
        let (others, answered) = wait_behind_another(&late, &client, &file);
        let ended = late.begin_to_end_session(&client);
        std::thread::scope(|scope| {
            let cancelling = scope.spawn(|| client.lock_cancel(1));
            eventually(|| late.cancelled.load(SeqCst) > 0);
            if others_let_go {
                unlock(&others);
            }
            late.begin_next_session(&client, ended);
            cancelling.join().unwrap();
        });
        let outcome = answered.recv().unwrap();
        assert_eq!(outcome.is_ok(), others_let_go, "{outcome:?}");
        unlock(&others);
        require_true(&late, outcome, &others);
    }
}

/// The service has granted it in a start of which the answer does not count any more.
#[test]
fn who_is_interrupted_while_a_lock_is_asked_for_again_leaves_none_behind() {
    let (late, client, file) = begin();
    let (others, answered) = wait_behind_another(&late, &client, &file);
    late.answers.is_held.store(true, SeqCst);
    assert_eq!(late.start_anew(), 0);
    late.answers.await_one();
    client.lock_cancel(1);
    assert_eq!(late.start_anew(), 0);
    unlock(&others);
    assert!(answered.try_recv().is_err(), "whoever asks has not been answered");
    late.answers.is_held.store(false, SeqCst);
    let outcome = answered.recv().unwrap();
    require_true(&late, outcome, &others);
}

/// The service has let it go, and others have it, before the answer comes.
#[test]
fn a_lock_that_is_being_dropped_is_not_told_of_to_the_next_start() {
    let (late, client, file) = begin();
    lock(&client, &file, 2, false).unwrap();
    assert_eq!(late.start_anew(), 1);
    late.answers.is_held.store(true, SeqCst);
    std::thread::scope(|scope| {
        let (client, file) = (&client, &file);
        let unlock = LockRequest { kind: LockKind::Unlock, ..lock_request(file, 2, false) };
        let unlocking = scope.spawn(move || client.lock(file, unlock));
        late.answers.await_one();
        let told = late.start_anew();
        late.answers.is_held.store(false, SeqCst);
        assert_eq!(told, 0);
        unlocking.join().unwrap().unwrap();
    });
    assert_eq!(late.start_anew(), 0);
}

/// It is gone at the service (`flock(2)`: a conversion is not atomic). A service that was started anew would have it, and others' locks not.
#[test]
fn a_flock_that_is_not_converted_is_not_told_of_to_the_next_start() {
    let (late, client, file) = begin();
    let (other, theirs) = late.other(&file);
    let shared =
        |file: &Handle, owner| LockRequest { kind: LockKind::Read, ..lock_request(file, owner, true) };
    other.lock(&theirs, shared(&theirs, 1)).unwrap();
    client.lock(&file, shared(&file, 2)).unwrap();
    assert_eq!(late.start_anew(), 1);
    assert_eq!(lock(&client, &file, 2, true), Err(Errno::EAGAIN));
    assert_eq!(late.start_anew(), 0, "locks, after a conversion was refused");
    client.lock(&file, shared(&file, 2)).unwrap();
    assert_eq!(late.start_anew(), 1);
    let answered = wait_for(&client, &file, lock_request(&file, 2, true));
    assert!(answered.try_recv().is_err(), "another client has it, too");
    assert_eq!(late.start_anew(), 0, "locks, while a conversion waits");
    other.release(&theirs);
    assert_eq!(answered.recv(), Ok(Ok(())));
    assert_eq!(late.start_anew(), 1);
}

#[test]
fn a_lock_whose_end_the_service_was_not_told_of_ends_with_its_file() {
    for is_flock in [false, true] {
        let (late, client, file) = begin();
        let (other, theirs) = late.other(&file);
        let mine = lock_request(&file, 2, is_flock);
        client.lock(&file, mine).unwrap();
        late.are_releases_lost.store(true, SeqCst);
        assert_eq!(client.lock_release(&file, mine.owner, is_flock), Err(Errno::ETIMEDOUT));
        assert_eq!(lock(&other, &theirs, 1, is_flock), Err(Errno::EAGAIN));
        let answered = wait_for(&other, &theirs, lock_request(&theirs, 1, is_flock));
        client.release(&file);
        assert_eq!(answered.recv_timeout(Duration::from_secs(30)), Ok(Ok(())), "is_flock: {is_flock}");
        other.release(&theirs);
    }
}
