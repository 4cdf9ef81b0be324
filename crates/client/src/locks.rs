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
mod wait;

pub(crate) use held::HeldLocks;
pub(crate) use starts::LockStarts;
pub(crate) use wait::LockWaits;

use crate::call::{Who, unexpected};
use crate::client::Client;
use crate::file::Handle;
use ashlar_types::message::{LockKind, LockRange, LockRequest, MetaReply, MetaRequest};
use ashlar_types::{DescriptionId, Errno, InodeId, LockOwner};

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
            let before = self.lock_time(request.inode);
            self.held_locks.note_before(&request, through);
            self.call_done(&Who::system(), MetaRequest::Lock { request, through })?;
            // What was told of by a service that has ended, after the next one was told what this client has, only that one knows.
            let is_still = || self.is_still(&before, request.inode);
            let is_done = if request.kind == LockKind::Unlock {
                self.held_locks.note(&request, through);
                is_still()
            } else {
                self.held_locks.note_while(&request, through, is_still)
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
        // LIMIT: a turn per start of the service, and per session.
        loop {
            let before = self.lock_time(inode);
            // ORDER: before, as in `HeldLocks::note_before`; and once more, as one may have been granted just before.
            self.held_locks.release((inode, is_flock), owner, through);
            let request = MetaRequest::LockRelease { inode, owner, through, is_flock };
            let outcome = self.call_done(&Who::system(), request);
            self.held_locks.release((inode, is_flock), owner, through);
            if outcome.is_err() || self.is_still(&before, inode) {
                return outcome;
            }
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
