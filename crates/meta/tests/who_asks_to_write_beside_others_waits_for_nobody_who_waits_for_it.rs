//! Goal: a write that asks for SHARE, and may hold a page, does not wait for the answer of a session whose write waits for the answer of its own session, where that has read a page
//! meanwhile. Method: a clock that has somebody read just when it is decided whom to wait for, and two sessions that answer for their pages only when their writes have ended.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_env::{Clock, Env};
use ashlar_rpc::{LastingSessions, SessionEvents};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Recall, SessionEvent};
use ashlar_types::node::SessionOwner;
use ashlar_types::{DescriptionId, InodeId, Name, NodeId, SessionId, Timespec};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use support::{Nowhere, Server};

const SHARER: SessionId = SessionId(1);
const WRITER: SessionId = SessionId(2);
/// Less than the time after which a session that does not answer is ended.
const SOON: Duration = Duration::from_secs(4);

/// What is to be done at one of the next looks of a thread at the clock.
type Due = (ThreadId, u32, Box<dyn FnOnce() + Send>);

struct Watch {
    clock: Arc<dyn Clock>,
    due: Mutex<Option<Due>>,
}

impl Clock for Watch {
    fn now(&self) -> Timespec {
        self.clock.now()
    }
    fn monotonic(&self) -> Duration {
        let mut due = self.due.lock();
        let is_now = match &mut *due {
            Some((thread, looks, _)) if *thread == std::thread::current().id() => {
                *looks -= 1;
                *looks == 0
            }
            _ => false,
        };
        let run = if is_now { due.take() } else { None };
        drop(due);
        if let Some((_, _, run)) = run {
            run();
        }
        self.clock.monotonic()
    }
}

/// Two mounts that have one file open.
#[derive(Default)]
struct Site {
    server: OnceLock<Server>,
    file: OnceLock<InodeId>,
    watch: OnceLock<Arc<Watch>>,
    has_ended: AtomicBool,
    /// Recalls of pages that SHARER answers when its write has ended.
    owed: Mutex<Vec<u64>>,
    /// Recalls of pages that WRITER was told of.
    recalls: AtomicU32,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
    evicted: AtomicBool,
}

impl Site {
    fn call(&self, session: SessionId, request: &MetaRequest<'_>) -> MetaReply {
        self.server.get().unwrap().call(session, request).unwrap()
    }

    fn answer(&self, session: SessionId, id: u64) {
        let inode = *self.file.get().unwrap();
        self.call(session, &MetaRequest::RecallDone { inode, id });
    }

    fn acquire(&self, session: SessionId, write: bool) {
        let inode = *self.file.get().unwrap();
        let reply = self.call(session, &MetaRequest::AcquireData { inode, write, is_writeback: false });
        assert!(matches!(reply, MetaReply::Granted { .. }), "{reply:?}");
    }

    /// WRITER gives WRITE back and reads; SHARER reads when it is decided whom SHARER waits for.
    fn give_write_back(self: &Arc<Site>, id: u64) {
        self.answer(WRITER, id);
        self.acquire(WRITER, false);
        let site = self.clone();
        let read = Box::new(move || site.acquire(SHARER, false));
        // The next look is when the wait for this answer ends.
        *self.watch.get().unwrap().due.lock() = Some((std::thread::current().id(), 2, read));
    }

    /// WRITER writes again, and answers when that has ended.
    fn write_first(self: &Arc<Site>, id: u64) {
        let site = self.clone();
        let write = move || {
            site.acquire(WRITER, true);
            site.answer(WRITER, id);
        };
        *self.writer.lock() = Some(std::thread::spawn(write));
    }

    fn end_sharing(&self) {
        self.has_ended.store(true, SeqCst);
        let owed = std::mem::take(&mut *self.owed.lock());
        owed.into_iter().for_each(|id| self.answer(SHARER, id));
    }
}

struct Events(Arc<Site>, SessionId);

impl SessionEvents for Events {
    fn deliver(&self, event: SessionEvent) {
        let Events(site, session) = self;
        let Recall { id, leases, .. } = match event {
            SessionEvent::Recall(recall) => recall,
            SessionEvent::Evicted { .. } => return site.evicted.store(true, SeqCst),
            _ => return,
        };
        let is_of_pages = leases.meets(LeaseSet::PAGES);
        match (*session, is_of_pages) {
            (SHARER, true) if !site.has_ended.load(SeqCst) => site.owed.lock().push(id),
            (WRITER, true) => match site.recalls.fetch_add(1, SeqCst) {
                0 => site.give_write_back(id),
                1 => site.write_first(id),
                _ => site.answer(WRITER, id),
            },
            _ => site.answer(*session, id),
        }
    }
}

#[test]
fn who_asks_to_write_beside_others_waits_for_nobody_who_waits_for_it() {
    let watch = Arc::new(Watch { clock: Env::os().clock, due: Mutex::default() });
    let env = Env { clock: watch.clone(), ..Env::os() };
    let site = Arc::new(Site::default());
    assert!(site.watch.set(watch).is_ok());
    let server = Server::start_in(env, NodeId(1), &[NodeId(1)], Arc::new(Nowhere));
    for session in [SHARER, WRITER] {
        let owner = SessionOwner { node: NodeId(session.0 as u32), instance: [1; 16] };
        let events = Arc::new(Events(site.clone(), session));
        server.meta.open_lasting(Some(session), owner, events).unwrap();
    }
    assert!(site.server.set(server).is_ok());
    let (parent, name, handle) = (InodeId::ROOT, Name::new(b"f").unwrap(), DescriptionId(1));
    let (mode, umask) = (0o644, 0);
    let (exclusive, read, write, truncate) = (true, true, true, false);
    let create = MetaRequest::Create { parent, name, mode, umask, exclusive, read, write, truncate, handle };
    let MetaReply::Opened { open, .. } = site.call(SHARER, &create) else { panic!("no file") };
    let inode = open.attr.inode;
    assert!(site.file.set(inode).is_ok());
    // What came with the file goes, so that WRITER writes it first.
    site.end_sharing();
    site.call(WRITER, &MetaRequest::Open { inode, read, write, truncate, handle: DescriptionId(2) });
    site.acquire(WRITER, true);
    site.has_ended.store(false, SeqCst);
    let begun = Instant::now();
    site.call(SHARER, &MetaRequest::AcquireShared { inode });
    site.end_sharing();
    let writer = site.writer.lock().take().expect("WRITER was asked for what it had read");
    writer.join().unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(!site.evicted.load(SeqCst), "a session was ended");
}
