//! Goal: a metadata server that was started anew is told what a mount has also while another one, started anew before it, does not answer; it would end the session after a
//! minute, and locks and unlinked files with it. Method: what one server is told is held up, and the other one asks.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest, Reclaim, SessionEvent};
use ashlar_types::{Errno, NodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use support::{Gate, World, eventually};

const SILENT: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

/// Metadata of several servers to which sessions tell what they have.
struct Servers {
    gate: Arc<Gate>,
    events: Mutex<Option<Arc<dyn SessionEvents>>>,
    /// Which know everything, in that order.
    told: Mutex<Vec<NodeId>>,
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
        let reply = self.gate.call(caller, request);
        self.told.lock().extend(done);
        reply
    }
}

#[test]
fn a_server_that_does_not_answer_keeps_no_other_from_being_told() {
    let world = World::new(48 << 20);
    let gate = Gate::new(&world, |request| matches!(request, MetaRequest::Reclaim { server: SILENT, .. }));
    let servers = Arc::new(Servers { gate: gate.clone(), events: Mutex::default(), told: Mutex::default() });
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
