//! Cluster-wide `fcntl(2)` and `flock(2)` locks.
//!
//! The kernel names the owner of a lock by an address of its own: that of a process's table of descriptors (`fcntl`), or of an open file description (`flock`,
//! `F_OFD_SETLK`). It tells of the end of a description some time after `close(2)`, when another may be at that address and have taken a lock. So a
//! `flock` belongs to the handle here, whatever the kernel calls its owner, and one at the same address shows that the first is gone. What a
//! description has locked by `F_OFD_SETLK` does not look different from a process's lock, which falls with its close of any descriptor; so
//! metadata is told through which handle a lock was taken, and drops with the end of a handle what was taken through that one only. A
//! process's locks are gone by then: it has closed the file before.

mod held;
mod starts;

pub(crate) use held::HeldLocks;
pub(crate) use starts::LockStarts;

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_types::message::{LockKind, LockRange, LockRequest, MetaReply, MetaRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, LockOwner, NodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Lock calls that wait, by ticket.
#[derive(Default)]
pub(crate) struct LockWaits {
    // LIMIT: the service bounds waiting locks (ENOLCK).
    waiting: Mutex<FxHashMap<u64, Waiting>>,
}

struct Waiting {
    answer: Answer,
    request: LockRequest,
    through: DescriptionId,
    /// Whether the service has said that it waits; of the others somebody is asking just now.
    is_queued: bool,
    /// Whether it is to end without the lock.
    is_cancelled: bool,
}

impl LockWaits {
    pub(crate) fn finish(&self, ticket: u64, outcome: Result<(), Errno>) {
        let waiting = self.waiting.lock().remove(&ticket);
        if let Some(waiting) = waiting {
            (waiting.answer)(outcome);
        }
    }

    /// Notes that the service has queued a request; false if nobody waits for it any more.
    fn is_queued(&self, ticket: u64) -> bool {
        let mut all = self.waiting.lock();
        let waiting = all.get_mut(&ticket).filter(|waiting| !waiting.is_cancelled);
        waiting.map(|waiting| waiting.is_queued = true).is_some()
    }

    /// Has whoever calls this ask for a lock that is queued once more; false if it has been granted, or somebody else asks.
    fn claim(&self, ticket: u64) -> bool {
        let mut all = self.waiting.lock();
        let queued = all.get_mut(&ticket).filter(|waiting| waiting.is_queued);
        queued.map(|waiting| waiting.is_queued = false).is_some()
    }

    /// The servers, as `server_of` says, at which locks are queued.
    pub(crate) fn servers(&self, server_of: impl Fn(InodeId) -> NodeId) -> BTreeSet<NodeId> {
        let all = self.waiting.lock();
        all.values()
            .filter(|waiting| waiting.is_queued)
            .map(|waiting| server_of(waiting.request.inode))
            .collect()
    }

    /// All of them: ticket, request, and through which description.
    pub(crate) fn all(&self) -> Vec<(u64, LockRequest, DescriptionId)> {
        let all = self.waiting.lock();
        all.iter().map(|(ticket, waiting)| (*ticket, waiting.request, waiting.through)).collect()
    }

    pub(crate) fn fail_all(&self) {
        let all: Vec<Answer> = self.waiting.lock().drain().map(|(_, waiting)| waiting.answer).collect();
        all.into_iter().for_each(|answer| answer(Err(Errno::EIO)));
    }
}

impl Client {
    /// Takes or drops a lock without waiting (`F_SETLK`, `LOCK_NB`).
    ///
    /// # Errors
    /// `EAGAIN` when another holds a conflicting lock, `ENOLCK` when there are too many.
    pub fn lock(&self, handle: &Handle, request: LockRequest) -> Result<(), Errno> {
        let request = self.owned(handle, request);
        note_lock(handle, &request);
        let through = DescriptionId(handle.number);
        self.lock_now(request, through)?;
        if let Some(anew) = self.asks_anew().filter(|_| request.kind != LockKind::Unlock) {
            anew.about(&handle.file);
        }
        Ok(())
    }

    /// Has the service take or drop a lock, and notes it.
    fn lock_now(&self, request: LockRequest, through: DescriptionId) -> Result<(), Errno> {
        // LIMIT: a turn per start of the service, and per session.
        loop {
            let before = self.era();
            self.call_done(&Who::system(), MetaRequest::Lock { request, through })?;
            // What was told of by a service that has ended, after the next one was told what this client has, only that one knows.
            let is_done = if request.kind == LockKind::Unlock {
                self.held_locks.note(&request, through);
                self.era() == before
            } else {
                self.held_locks.note_while(&request, through, || self.era() == before)
            };
            if is_done {
                return Ok(());
            }
        }
    }

    /// Has the service drop locks, and notes that.
    fn release_locks(
        &self,
        (inode, is_flock): (InodeId, bool),
        owner: LockOwner,
        through: Option<DescriptionId>,
    ) -> Result<(), Errno> {
        loop {
            let before = self.era();
            let request = MetaRequest::LockRelease { inode, owner, through, is_flock };
            let outcome = self.call_done(&Who::system(), request);
            self.held_locks.release((inode, is_flock), owner, through);
            if outcome.is_err() || self.era() == before {
                return outcome;
            }
        }
    }

    /// Takes a lock, waiting for it (`F_SETLKW`). `answer` is called exactly once when the wait is over, perhaps before this returns.
    pub fn lock_wait_deferred(
        &self,
        handle: &Arc<Handle>,
        request: LockRequest,
        ticket: u64,
        answer: Box<dyn FnOnce(Result<(), Errno>) + Send>,
    ) {
        let request = self.owned(handle, request);
        note_lock(handle, &request);
        let (through, anew) = (Arc::clone(handle), self.asks_anew());
        let answer: Box<dyn FnOnce(Result<(), Errno>) + Send> = Box::new(move |outcome| {
            // Once more: a close of another descriptor of the process meanwhile had nothing to drop, and made its owner forgotten.
            if outcome.is_ok() {
                note_lock(&through, &request);
                if let Some(anew) = &anew {
                    anew.about(&through.file);
                }
            }
            answer(outcome);
        });
        // ORDER: the waiter is known before the service can announce the lock.
        let through = DescriptionId(handle.number);
        let waiting = Waiting { answer, request, through, is_queued: false, is_cancelled: false };
        self.lock_waits.waiting.lock().insert(ticket, waiting);
        self.ask_to_wait(ticket, request, through);
    }

    /// Asks the service for a lock that may be waited for.
    fn ask_to_wait(&self, ticket: u64, request: LockRequest, through: DescriptionId) {
        // LIMIT: a turn per start of the service, and per session.
        loop {
            let before = self.lock_time(request.inode);
            let reply = self.call(&Who::system(), MetaRequest::LockWait { request, through, ticket });
            let outcome = match reply {
                Ok(MetaReply::LockQueued) => None,
                Ok(MetaReply::Done) => Some(Ok(())),
                Ok(other) => Some(Err(unexpected(&other))),
                Err(errno) => Some(Err(errno)),
            };
            if outcome.is_none() && !self.lock_waits.is_queued(ticket) {
                // It was interrupted before the service knew of it. Nobody waits for the announcement, should there be one.
                let cancel = MetaRequest::LockCancel { inode: request.inode, ticket };
                let _ = self.call_done(&Who::system(), cancel);
                self.lock_waits.finish(ticket, Err(Errno::EINTR));
                return;
            }
            // What a service said that has ended does not count, nor what was said in a session that has.
            let is_still = || self.is_still(&before, request.inode);
            let is_over = match outcome {
                Some(Ok(())) => self.grant_lock(ticket, is_still),
                Some(Err(errno)) => {
                    self.lock_waits.finish(ticket, Err(errno));
                    true
                }
                None => is_still() || !self.lock_waits.claim(ticket),
            };
            if is_over {
                return;
            }
        }
    }

    /// Ends a wait: the lock is held. Unless that does not count any more, when it has to be asked for anew; false then.
    fn grant_lock(&self, ticket: u64, counts: impl FnOnce() -> bool) -> bool {
        let granted = {
            let mut all = self.lock_waits.waiting.lock();
            let Some(waiting) = all.get(&ticket) else { return true };
            if !self.held_locks.note_while(&waiting.request, waiting.through, counts) {
                return false;
            }
            all.remove(&ticket)
        };
        if let Some(granted) = granted {
            (granted.answer)(Ok(()));
        }
        true
    }

    /// The service says that a wait is over.
    pub(crate) fn end_lock_wait(&self, ticket: u64, outcome: Result<(), Errno>) {
        match outcome {
            // ORDER: heard before the end of the session it was said in, and before a start of who said it: whoever takes or tells what is held comes later.
            Ok(()) => drop(self.grant_lock(ticket, || true)),
            Err(errno) => self.lock_waits.finish(ticket, Err(errno)),
        }
    }

    /// Asks `server`, which was started anew, or knows nothing of this session yet, for the locks that are waited for.
    pub(crate) fn ask_again_for_locks(&self, server: NodeId) {
        let queued: Vec<_> = {
            let waiting = self.lock_waits.waiting.lock();
            let all = waiting
                .iter()
                .filter(|(_, waiting)| waiting.is_queued && self.server_of(waiting.request.inode) == server);
            all.map(|(ticket, waiting)| (*ticket, waiting.request, waiting.through)).collect()
        };
        for (ticket, request, through) in queued {
            // ORDER: just before. Once granted, and perhaps given back, it would be granted to nobody.
            if self.lock_waits.claim(ticket) {
                self.ask_to_wait(ticket, request, through);
            }
        }
    }

    /// Ends a wait early, as a signal does: the answer is `EINTR` unless the lock was granted before.
    pub fn lock_cancel(&self, ticket: u64) {
        let inode = match self.lock_waits.waiting.lock().get_mut(&ticket) {
            Some(waiting) => {
                waiting.is_cancelled = true;
                waiting.request.inode
            }
            None => return,
        };
        let before = self.lock_time(inode);
        // The service answers a cancelled wait itself; if the call fails the session is gone and so is the lock.
        let outcome = self.call_done(&Who::system(), MetaRequest::LockCancel { inode, ticket });
        // A service that was started meanwhile knows of no wait, and announces nothing.
        if outcome.is_ok() || !self.is_still(&before, inode) {
            self.lock_waits.finish(ticket, Err(Errno::EINTR));
        }
    }

    /// Which lock would be in the way (`F_GETLK`).
    ///
    /// # Errors
    /// `EINVAL` for a bad range.
    pub fn lock_test(&self, request: LockRequest) -> Result<Option<(LockKind, LockRange, u32)>, Errno> {
        match self.call(&Who::system(), MetaRequest::LockTest(request))? {
            MetaReply::LockConflict { conflict } => Ok(conflict),
            other => Err(unexpected(&other)),
        }
    }

    /// Drops the locks of `told` taken through `handle`, as closing a descriptor does. Costs nothing if it took none.
    ///
    /// # Errors
    /// `ENOTCONN` when the session is gone (and the locks with it).
    pub fn lock_release(&self, handle: &Handle, told: LockOwner, is_flock: bool) -> Result<(), Errno> {
        let owner = owner(handle, told, is_flock);
        let had_any = {
            let mut owners = handle.lock_owners.lock();
            let before = owners.len();
            owners.retain(|known| *known != (owner, is_flock));
            owners.len() < before
        };
        let had_elsewhere = !is_flock && self.forget_owner(handle, owner);
        if !had_any && !had_elsewhere {
            return Ok(());
        }
        self.release_locks((handle.file.inode, is_flock), owner, None)
    }

    /// fcntl locks belong to process and inode, so a lock taken through one descriptor falls with the close of another; tells whether
    /// there may be one.
    ///
    /// ORDER: before the locks are dropped. A lock that the owner takes meanwhile may fall with them, and then its owner is known in vain.
    fn forget_owner(&self, handle: &Handle, owner: LockOwner) -> bool {
        handle.file.state.lock().lock_owners.remove(&owner).is_some()
    }

    /// Locks owned by the open file description itself (`F_OFD_SETLK`) end with it; the kernel leaves that to the file system. Another
    /// description may have its address, and hence locks under the same name, at any moment of this.
    pub(crate) fn drop_description_locks(&self, handle: &Handle) {
        handle.file.state.lock().flocks.retain(|_, number| *number != handle.number);
        let owners = std::mem::take(&mut *handle.lock_owners.lock());
        for (owner, is_flock) in owners {
            if !is_flock {
                forget_handle(handle, owner);
            }
            let (inode, through) = (handle.file.inode, Some(DescriptionId(handle.number)));
            if let Err(errno) = self.release_locks((inode, is_flock), owner, through) {
                tracing::warn!(%errno, inode = %handle.file.inode, "could not drop the locks of a closed file");
            }
        }
    }

    /// The request with its owner; what a description at the same address had locked before is dropped.
    fn owned(&self, handle: &Handle, request: LockRequest) -> LockRequest {
        let told = request.owner;
        let request = LockRequest { owner: owner(handle, told, request.is_flock), ..request };
        if !request.is_flock || request.kind == LockKind::Unlock {
            return request;
        }
        let before = handle.file.state.lock().flocks.insert(told, handle.number);
        if let Some(gone) = before.filter(|number| *number != handle.number) {
            let (inode, owner) = (handle.file.inode, LockOwner(gone));
            // If it fails the session is gone, and the locks with it.
            let _ = self.release_locks((inode, true), owner, None);
        }
        request
    }
}

/// Notes that `handle` may have a lock, so that its end drops it.
pub(crate) fn note_lock(handle: &Handle, request: &LockRequest) {
    if request.kind == LockKind::Unlock {
        return;
    }
    let mut owners = handle.lock_owners.lock();
    if !owners.contains(&(request.owner, request.is_flock)) {
        owners.push((request.owner, request.is_flock));
    }
    drop(owners);
    if !request.is_flock {
        let mut state = handle.file.state.lock();
        let handles = state.lock_owners.entry(request.owner).or_default();
        if !handles.contains(&handle.number) {
            handles.push(handle.number);
        }
    }
}

/// The owner of a lock, which the kernel calls `told`.
fn owner(handle: &Handle, told: LockOwner, is_flock: bool) -> LockOwner {
    if is_flock { LockOwner(handle.number) } else { told }
}

/// Takes `handle` off those through which `owner` has locked.
fn forget_handle(handle: &Handle, owner: LockOwner) {
    let owners = &mut handle.file.state.lock().lock_owners;
    if let Some(handles) = owners.get_mut(&owner) {
        handles.retain(|number| *number != handle.number);
        if handles.is_empty() {
            owners.remove(&owner);
        }
    }
}
