//! Cluster-wide `fcntl(2)` and `flock(2)` locks.

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_types::message::{LockKind, LockRange, LockRequest, MetaReply, MetaRequest};
use ashlar_types::{Errno, LockOwner};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// Lock calls that wait, by ticket.
#[derive(Default)]
pub(crate) struct LockWaits {
    // LIMIT: the service bounds waiting locks (ENOLCK).
    waiting: Mutex<FxHashMap<u64, Answer>>,
}

impl LockWaits {
    pub(crate) fn finish(&self, ticket: u64, outcome: Result<(), Errno>) {
        let answer = self.waiting.lock().remove(&ticket);
        if let Some(answer) = answer {
            answer(outcome);
        }
    }

    pub(crate) fn fail_all(&self) {
        let all: Vec<Answer> = self.waiting.lock().drain().map(|(_, answer)| answer).collect();
        all.into_iter().for_each(|answer| answer(Err(Errno::EIO)));
    }
}

impl Client {
    /// Takes or drops a lock without waiting (`F_SETLK`, `LOCK_NB`).
    ///
    /// # Errors
    /// `EAGAIN` when another holds a conflicting lock, `ENOLCK` when there are too many.
    pub fn lock(&self, handle: &Handle, request: LockRequest) -> Result<(), Errno> {
        self.note_lock(handle, &request);
        self.call_done(&Who::system(), MetaRequest::Lock(request))
    }

    /// Takes a lock, waiting for it (`F_SETLKW`). `answer` is called exactly once when the wait is over, perhaps before this returns.
    pub fn lock_wait_deferred(
        &self,
        handle: &Handle,
        request: LockRequest,
        ticket: u64,
        answer: Box<dyn FnOnce(Result<(), Errno>) + Send>,
    ) {
        self.note_lock(handle, &request);
        // ORDER: the waiter is known before the service can announce the lock.
        self.lock_waits.waiting.lock().insert(ticket, answer);
        let outcome = match self.call(&Who::system(), MetaRequest::LockWait { request, ticket }) {
            Ok(MetaReply::LockQueued) => return,
            Ok(MetaReply::Done) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            Err(errno) => Err(errno),
        };
        self.lock_waits.finish(ticket, outcome);
    }

    /// Ends a wait early, as a signal does: the answer is `EINTR` unless the lock was granted before.
    pub fn lock_cancel(&self, ticket: u64) {
        if !self.lock_waits.waiting.lock().contains_key(&ticket) {
            return;
        }
        // The service answers a cancelled wait itself; if the call fails the session is gone and so is the lock.
        if self.call_done(&Who::system(), MetaRequest::LockCancel { ticket }).is_ok() {
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

    /// Drops the locks of `owner` taken through `handle`, as closing a descriptor does. Costs nothing if it took none.
    ///
    /// # Errors
    /// `ENOTCONN` when the session is gone (and the locks with it).
    pub fn lock_release(&self, handle: &Handle, owner: LockOwner, is_flock: bool) -> Result<(), Errno> {
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
        self.call_done(&Who::system(), MetaRequest::LockRelease { inode: handle.file.inode, owner, is_flock })
    }

    /// fcntl locks belong to process and inode, so a lock taken through one descriptor falls with the close of another; tells whether
    /// there may be one.
    ///
    /// ORDER: before the locks are dropped. A lock that the owner takes meanwhile may fall with them, and then its owner is known in vain.
    fn forget_owner(&self, handle: &Handle, owner: LockOwner) -> bool {
        handle.file.state.lock().lock_owners.remove(&owner)
    }

    /// Locks owned by the open file description itself (`F_OFD_SETLK`) end with it; the kernel leaves that to the file system.
    pub(crate) fn drop_description_locks(&self, handle: &Handle) {
        let owners = std::mem::take(&mut *handle.lock_owners.lock());
        for (owner, is_flock) in owners {
            let request = MetaRequest::LockRelease { inode: handle.file.inode, owner, is_flock };
            if let Err(errno) = self.call_done(&Who::system(), request) {
                tracing::warn!(%errno, inode = %handle.file.inode, "could not drop the locks of a closed file");
            }
        }
    }

    fn note_lock(&self, handle: &Handle, request: &LockRequest) {
        if request.kind == LockKind::Unlock {
            return;
        }
        let mut owners = handle.lock_owners.lock();
        if !owners.contains(&(request.owner, request.is_flock)) {
            owners.push((request.owner, request.is_flock));
        }
        drop(owners);
        let mut state = handle.file.state.lock();
        if !request.is_flock {
            state.lock_owners.insert(request.owner);
        }
    }
}
