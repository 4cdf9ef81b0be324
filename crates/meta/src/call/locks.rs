//! Calls on locks.

use crate::MetaService;
use ashlar_namespace::lock::{LockFrom, LockGrant, LockWait, WaitArgs};
use ashlar_rpc::Caller;
use ashlar_types::message::{LockKind, LockRequest, MetaReply, MetaRequest, SessionEvent};
use ashlar_types::{DescriptionId, Errno, InodeId, SessionId};

impl MetaService {
    pub(super) fn call_on_locks(
        &self,
        caller: Caller<'_>,
        request: &MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let session = caller.op.session;
        if let MetaRequest::Lock { request: LockRequest { inode, .. }, .. }
        | MetaRequest::LockRelease { inode, .. } = request
        {
            // ORDER: before the lock is let go. Who gets it next is to see what was written under it.
            self.leases.lock().forget_asked(*inode);
        }
        let mut grants = Vec::new();
        let reply = {
            let mut locks = self.locks.lock();
            // ORDER: asked again under the lock of the table. A session is taken off the list before its locks are dropped; what a call that
            // was under way then got after that, nobody would drop.
            if takes_a_lock(request) && !self.sessions.has(session) {
                return Err(Errno::ENOTCONN);
            }
            match request {
                MetaRequest::Lock { request, through } => {
                    let from = LockFrom { session, through: *through };
                    locks.lock(from, request, &mut grants).map(|()| MetaReply::Done)
                }
                // Asked again, because the answer was lost.
                MetaRequest::LockWait { ticket, .. } if locks.waits(session, *ticket) => {
                    Ok(MetaReply::LockQueued)
                }
                MetaRequest::LockWait { request, through, ticket } => {
                    let from = LockFrom { session, through: *through };
                    // The kernel does not tell descriptor-owned locks from process-owned ones; both are watched for deadlock.
                    let now = self.env.clock.monotonic();
                    let wait = WaitArgs { ticket: *ticket, is_ofd: false, now };
                    locks.lock_wait(from, request, wait, &mut grants).map(|outcome| match outcome {
                        LockWait::Granted => MetaReply::Done,
                        LockWait::Queued => MetaReply::LockQueued,
                    })
                }
                MetaRequest::LockCancel { ticket, .. } => {
                    if locks.cancel(session, *ticket) {
                        Ok(MetaReply::Done)
                    } else {
                        Err(Errno::ENOENT)
                    }
                }
                MetaRequest::LockTest(request) => locks.test(session, request).map(|conflict| {
                    let conflict = conflict.map(|found| (found.kind, found.range, found.pid));
                    MetaReply::LockConflict { conflict }
                }),
                MetaRequest::LockRelease { inode, owner, through, is_flock } => {
                    locks.release(session, (*owner, *through), (*inode, *is_flock), &mut grants);
                    Ok(MetaReply::Done)
                }
                _ => Err(Errno::EPROTO),
            }
        };
        self.announce_locks(grants);
        reply
    }

    /// Drops locks that a description which has ended still has: a call that was to drop them has failed, or one was granted to somebody who had been told that it was not.
    pub(super) fn drop_locks_of(&self, session: SessionId, through: DescriptionId, inode: InodeId) {
        if !self.locks.lock().has_description(session, through, inode) {
            return;
        }
        // ORDER: as above.
        self.leases.lock().forget_asked(inode);
        let mut grants = Vec::new();
        self.locks.lock().release_description(session, through, inode, &mut grants);
        tracing::info!(%session, %inode, "locks of a file that was closed were still held, and are dropped");
        self.announce_locks(grants);
    }

    /// Ends lock calls that have turned out to wait for themselves.
    pub(crate) fn end_deadlocks(&self) {
        let mut grants = Vec::new();
        self.locks.lock().end_deadlocks(self.env.clock.monotonic(), &mut grants);
        self.announce_locks(grants);
    }

    /// Tells sessions that their waits are over.
    pub(crate) fn announce_locks(&self, grants: Vec<LockGrant>) {
        for grant in grants {
            let event = SessionEvent::LockDone { ticket: grant.wait.ticket, outcome: grant.outcome };
            self.sessions.deliver(grant.wait.session, event);
        }
    }
}

fn takes_a_lock(request: &MetaRequest<'_>) -> bool {
    match request {
        MetaRequest::Lock { request, .. } => request.kind != LockKind::Unlock,
        MetaRequest::LockWait { .. } => true,
        _ => false,
    }
}
