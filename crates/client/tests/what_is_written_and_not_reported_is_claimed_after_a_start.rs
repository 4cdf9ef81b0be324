//! Goal: a mount whose report of what it has written is on its way when the metadata server is started anew has the file kept for it until the report is
//! there; else somebody else would append where it has written. Method: the report is held up, and what the mount tells the next start is looked at.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{OpenFlags, Who};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, Reclaim, ReclaimedFile, SessionEvent};
use ashlar_types::{Errno, NodeId, SessionId};
use parking_lot::Mutex;
use std::sync::Arc;
use support::{Gate, KIB64, World, content, eventually, make, read, write};

/// Metadata to which sessions tell what they have.
struct Started {
    gate: Arc<Gate>,
    events: Mutex<Option<Arc<dyn SessionEvents>>>,
    told: Mutex<Vec<ReclaimedFile>>,
}

impl Started {
    /// As if it were started anew: the session is asked; what it tells.
    fn ask(&self) -> Vec<ReclaimedFile> {
        self.told.lock().clear();
        let events = self.events.lock().clone().unwrap();
        events.deliver(SessionEvent::Reclaim { server: NodeId(1), incarnation: 0 });
        eventually(|| !self.told.lock().is_empty());
        self.told.lock().clone()
    }
}

impl MetaCalls for Started {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        *self.events.lock() = Some(events.clone());
        self.gate.open_session(events)
    }
    fn close_session(&self, session: SessionId) {
        self.gate.close_session(session);
    }
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if let MetaRequest::Reclaim { part: Reclaim::Files(files), .. } = &request {
            self.told.lock().extend(files.iter().cloned());
        }
        self.gate.call(caller, request)
    }
}

#[test]
fn a_writer_that_is_just_reporting_keeps_the_file_for_itself() {
    let world = World::new(48 << 20);
    let gate = Gate::new(&world, |request| matches!(request, MetaRequest::CommitWrite { .. }));
    let started = Arc::new(Started { gate: gate.clone(), events: Mutex::default(), told: Mutex::default() });
    let (writer, other) = (world.client_over(started.clone()), world.client());
    let written = make(&writer, "f").unwrap();
    // Before, as an open asks for a report, and not for the lease.
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let read_by_other = other.open(&Who::system(), written.file.inode, flags).unwrap().handle;
    let before = content(1, 2 * KIB64);
    write(&writer, &written, 0, &before).unwrap();
    gate.shut();
    std::thread::scope(|threads| {
        let found = threads.spawn(|| {
            let found = read(&other, &read_by_other, 4 * KIB64);
            other.release(&read_by_other);
            found
        });
        gate.await_waiter();
        let told = started.ask();
        gate.open();
        assert_eq!(told.len(), 1);
        assert!(told[0].leases.has(LeaseSet::WRITE), "its length is known to nobody else: {told:?}");
        assert!(found.join().unwrap() == before);
    });
    eventually(|| started.ask().iter().all(|file| !file.leases.has(LeaseSet::WRITE)));
    writer.release(&written);
}
