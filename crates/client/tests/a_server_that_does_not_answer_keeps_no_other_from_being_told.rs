//! Goal: a metadata server that was started anew is told what a mount has also while another one, started anew before it, does not answer; it would end the session after a
//! minute, and locks and unlinked files with it. Method: what one server is told is held up, and the other one asks.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{OpenFlags, Who};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest, Reclaim, SessionEvent};
use ashlar_types::{Errno, NodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::{Gate, World, eventually, lock, lock_request, make};

/// It has everything.
const NODE: NodeId = NodeId(1);
const SILENT: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);

/// Metadata of several servers to which sessions tell what they have.
struct Servers {
    gate: Arc<Gate>,
    events: Mutex<Option<Arc<dyn SessionEvents>>>,
    /// Which know everything, in that order.
    told: Mutex<Vec<NodeId>>,
    /// Locks that were asked for, to be waited for.
    asked: AtomicU64,
}

impl Servers {
    fn behind(gate: Arc<Gate>) -> Arc<Servers> {
        let (events, told, asked) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Arc::new(Servers { gate, events, told, asked })
    }
}

impl MetaCalls for Servers {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        *self.events.lock() = Some(events.clone());
        self.gate.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.gate.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let done = match &request {
            MetaRequest::Reclaim { server, part: Reclaim::Done, .. } => Some(*server),
            _ => None,
        };
        let is_of_lock = matches!(&request, MetaRequest::LockWait { .. });
        let reply = self.gate.call(caller, request);
        self.told.lock().extend(done);
        self.asked.fetch_add(u64::from(is_of_lock), SeqCst);
        reply
    }
}

#[test]
fn a_server_that_does_not_answer_keeps_no_other_from_being_told() {
    let world = World::new(48 << 20);
    let gate = Gate::new(&world, |request| matches!(request, MetaRequest::Reclaim { server: SILENT, .. }));
    let servers = Servers::behind(gate.clone());
    let _client = world.client_over(servers.clone());
    let events = servers.events.lock().clone().unwrap();
    gate.shut();
    events.deliver(SessionEvent::Reclaim { server: SILENT, incarnation: 0 });
    gate.await_waiter();
    events.deliver(SessionEvent::Reclaim { server: OTHER, incarnation: 0 });
    eventually(|| servers.told.lock().contains(&OTHER));
    assert_eq!(*servers.told.lock(), [OTHER]);
    gate.open();
    eventually(|| *servers.told.lock() == [OTHER, SILENT]);
}

/// Asked for once more it might have been granted and given back meanwhile, and then nobody would know who has it.
#[test]
fn a_lock_is_asked_for_again_only_at_the_server_that_was_started_anew() {
    let world = World::new(48 << 20);
    let (holder, gate) = (world.client(), Gate::new(&world, |_| false));
    let servers = Servers::behind(gate);
    let client = world.client_over(servers.clone());
    let file = make(&holder, "f").unwrap();
    lock(&holder, &file, 1, false).unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let waiting = client.open(&Who::system(), file.file.inode, flags).unwrap().handle;
    let (answer, answered) = std::sync::mpsc::channel();
    let request = lock_request(&waiting, 2, false);
    client.lock_wait_deferred(&waiting, request, 1, Box::new(move |outcome| answer.send(outcome).unwrap()));
    assert_eq!(servers.asked.load(SeqCst), 1);
    let events = servers.events.lock().clone().unwrap();
    for (server, asked) in [(OTHER, 1), (NODE, 2)] {
        events.deliver(SessionEvent::Reclaim { server, incarnation: 0 });
        eventually(|| servers.told.lock().contains(&server));
        eventually(|| servers.asked.load(SeqCst) >= asked);
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(servers.asked.load(SeqCst), 2);
    assert!(answered.try_recv().is_err(), "it is not free yet");
    holder.release(&file);
    assert_eq!(answered.recv().unwrap(), Ok(()));
    client.release(&waiting);
}
