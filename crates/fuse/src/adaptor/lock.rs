//! Requests on locks.

use super::Adaptor;
use crate::errno::Errno;
use crate::protocol::{FileLock, LockKind, LockRequest};
use crate::request::Request;
use crate::{Deferral, Ended};
use ashlar_types::message;

fn kind(kind: LockKind) -> message::LockKind {
    match kind {
        LockKind::Read => message::LockKind::Read,
        LockKind::Write => message::LockKind::Write,
        LockKind::Unlock => message::LockKind::Unlock,
    }
}

impl Adaptor {
    fn lock_request(&self, request: &Request<'_>, lock: &LockRequest) -> message::LockRequest {
        message::LockRequest {
            inode: self.inode(request.node),
            owner: ashlar_types::LockOwner(lock.owner.0),
            pid: lock.lock.pid,
            kind: kind(lock.lock.kind),
            range: message::LockRange { start: lock.lock.start, end: lock.lock.end },
            is_flock: lock.is_flock,
        }
    }

    pub(super) fn on_getlk(&self, request: &Request<'_>, lock: &LockRequest) -> Result<FileLock, Errno> {
        let free = FileLock { kind: LockKind::Unlock, ..lock.lock };
        Ok(self.client.lock_test(self.lock_request(request, lock))?.map_or(free, |(kind, range, pid)| {
            FileLock {
                start: range.start,
                end: range.end,
                kind: if kind == message::LockKind::Read { LockKind::Read } else { LockKind::Write },
                pid,
            }
        }))
    }

    pub(super) fn on_setlk(&self, request: &Request<'_>, lock: &LockRequest) -> Result<(), Errno> {
        let handle = self.handles.find(lock.fh)?;
        self.note_locked(lock, true);
        self.client.lock(&handle, self.lock_request(request, lock))?;
        self.note_locked(lock, false);
        Ok(())
    }

    /// Notes a lock before it is taken, and that there is none after all are dropped.
    fn note_locked(&self, lock: &LockRequest, is_before: bool) {
        let is_unlock = lock.lock.kind == LockKind::Unlock;
        let is_all = lock.is_flock || lock.lock.start == 0 && lock.lock.end >= i64::MAX as u64;
        if is_unlock != is_before && (!is_unlock || is_all) {
            self.handles.note_locked(lock.fh, !is_unlock);
        }
    }

    pub(super) fn on_setlkw(
        &self,
        request: &Request<'_>,
        lock: &LockRequest,
        deferral: &Deferral<'_>,
    ) -> Result<Ended, Errno> {
        let handle = self.handles.find(lock.fh)?;
        let wanted = self.lock_request(request, lock);
        self.note_locked(lock, true);
        // Most blocking calls find the lock free; only those that do not are parked.
        match self.client.lock(&handle, wanted) {
            Err(ashlar_types::Errno::EAGAIN) => {}
            other => {
                other?;
                // flock(2) asks to unlock like this, too.
                self.note_locked(lock, false);
                return Ok(Ended::Now);
            }
        }
        let replier = deferral.defer()?;
        let answer = Box::new(move |outcome: Result<(), ashlar_types::Errno>| {
            replier.reply(outcome.map_err(Errno::from));
        });
        self.client.lock_wait_deferred(&handle, wanted, request.unique.0, answer);
        Ok(Ended::Deferred)
    }
}
