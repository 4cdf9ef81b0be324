//! Answers recalls: takes what is recalled out of the kernel's caches, reports, and gives the lease back.
//!
//! One thread per session does this, holding no lock while it waits for the kernel, because the kernel may hold a lock that
//! one of its own calls into this client is waiting to release. Content is given back like this: invalidate; if no read or
//! write began meanwhile and none is under way, the lease is gone from that instant; else once more. While a recall is in
//! work the lease still holds, so reads and writes that hold kernel page locks finish.

use crate::call::Who;
use crate::client::Client;
use crate::file::File;
use ashlar_rpc::SessionEvents;
use ashlar_types::InodeId;
use ashlar_types::message::{LeaseSet, MetaRequest, Recall, SessionEvent};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The caches of the kernel over this client. Each call may block until the kernel has let go.
pub trait KernelCache: Send + Sync {
    /// Drops the attributes of an inode.
    fn drop_attributes(&self, inode: InodeId);
    /// Writes back and drops the pages of a file, and its attributes.
    fn drop_content(&self, inode: InodeId);
    /// Drops the entries of a directory, those that a lookup under way is about to put in included.
    fn drop_entries(&self, directory: InodeId);
}

/// Events on their way to the session's thread.
#[derive(Default)]
pub(crate) struct EventQueue {
    // LIMIT: at most one recall per lease this session holds, and one event per lock it waits for.
    queue: Mutex<(VecDeque<SessionEvent>, bool)>,
    ready: Condvar,
}

impl EventQueue {
    pub(crate) fn close(&self) {
        self.queue.lock().1 = true;
        self.ready.notify_all();
    }

    fn next(&self) -> Option<SessionEvent> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(event) = queue.0.pop_front() {
                return Some(event);
            }
            if queue.1 {
                return None;
            }
            self.ready.wait(&mut queue);
        }
    }
}

impl SessionEvents for EventQueue {
    fn deliver(&self, event: SessionEvent) {
        self.queue.lock().0.push_back(event);
        self.ready.notify_one();
    }
}

/// Answers events until the queue is closed or the client is gone.
pub(crate) fn run_events(queue: &Arc<EventQueue>, client: &Weak<Client>) {
    while let Some(event) = queue.next() {
        let Some(client) = client.upgrade() else { return };
        match event {
            SessionEvent::Recall(recall) => client.answer_recall(&recall),
            SessionEvent::LockDone { ticket, outcome } => client.lock_waits.finish(ticket, outcome),
            SessionEvent::Evicted { session } => {
                tracing::error!(%session, "the metadata service ended this session: a recall was not answered in time");
                client.lock_waits.fail_all();
            }
        }
    }
}

impl Client {
    fn answer_recall(&self, recall: &Recall) {
        let content = LeaseSet::READ.with(LeaseSet::WRITE);
        if let Some(kernel) = self.kernel.get() {
            if recall.leases.meets(LeaseSet::ENTRIES) {
                kernel.drop_entries(recall.inode);
            }
            if recall.leases.meets(LeaseSet::ATTR) && !recall.leases.meets(content) {
                kernel.drop_attributes(recall.inode);
            }
        }
        if recall.leases.meets(content) {
            self.give_back_content(recall);
        }
        let done = MetaRequest::RecallDone { id: recall.id };
        if let Err(errno) = self.call_done(&Who::system(), done) {
            tracing::warn!(%errno, inode = %recall.inode, "could not acknowledge a recall");
        }
    }

    fn give_back_content(&self, recall: &Recall) {
        let Some(file) = self.open_file(recall.inode) else {
            if let Some(kernel) = self.kernel.get().filter(|_| !recall.flush_only) {
                kernel.drop_content(recall.inode);
            }
            return;
        };
        if !recall.flush_only {
            self.surrender(&file, recall.leases);
        }
        if let Err(errno) = self.report(&file, false) {
            tracing::error!(%errno, inode = %file.inode, "could not report size and times of a recalled file");
        }
    }

    /// Ends the leases at an instant at which nothing is under way and the kernel caches nothing.
    fn surrender(&self, file: &File, leases: LeaseSet) {
        loop {
            let begun = file.state.lock().begun;
            if let Some(kernel) = self.kernel.get() {
                kernel.drop_content(file.inode);
            }
            let mut state = file.state.lock();
            while state.in_flight > 0 {
                // A read or write under way ends without waiting for this recall. Past the bound the service evicts the session.
                if file.wait(&mut state).is_err() {
                    tracing::error!(inode = %file.inode, "a read or write under way does not end; giving the lease back regardless");
                    break;
                }
            }
            if state.begun == begun || self.kernel.get().is_none() || state.in_flight > 0 {
                // ORDER: the lease ends here, under the lock, before the acknowledgement; later reads and writes ask again.
                state.leases = state.leases.without(leases);
                state.lease_epoch += 1;
                if leases.has(LeaseSet::WRITE) {
                    state.leases = state.leases.without(LeaseSet::READ);
                }
                return;
            }
        }
    }
}
