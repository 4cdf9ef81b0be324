//! The metadata service for clients that must not change anything, whatever their mounts say: a remount may make a mount writable again.

use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest};
use ashlar_types::{Errno, SessionId};
use std::sync::Arc;

/// Answers `EROFS` to what would change something.
pub struct ReadOnlyMeta(pub Arc<dyn MetaCalls>);

impl MetaCalls for ReadOnlyMeta {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.0.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.0.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if is_change(&request) { Err(Errno::EROFS) } else { self.0.call(caller, request) }
    }
}

/// Every request is named, so that a new one is thought about.
fn is_change(request: &MetaRequest<'_>) -> bool {
    match request {
        MetaRequest::Setattr { .. }
        | MetaRequest::Create { .. }
        | MetaRequest::Mkdir { .. }
        | MetaRequest::Mknod { .. }
        | MetaRequest::Symlink { .. }
        | MetaRequest::Link { .. }
        | MetaRequest::Unlink { .. }
        | MetaRequest::Rmdir { .. }
        | MetaRequest::Rename { .. }
        | MetaRequest::Tmpfile { .. }
        | MetaRequest::Setxattr { .. }
        | MetaRequest::Removexattr { .. }
        | MetaRequest::WriteInline { .. }
        | MetaRequest::AllocateInline { .. }
        | MetaRequest::ProposeLayout { .. }
        | MetaRequest::SetLayout { .. }
        | MetaRequest::LayoutSet { .. }
        | MetaRequest::WithdrawLayout { .. }
        | MetaRequest::MakeRoom => true,
        MetaRequest::Open { write, truncate, .. } => *write || *truncate,
        MetaRequest::AcquireData { write, .. } => *write,
        MetaRequest::Lookup { .. }
        | MetaRequest::Getattr { .. }
        | MetaRequest::Release { .. }
        | MetaRequest::Readlink { .. }
        | MetaRequest::Readdir { .. }
        | MetaRequest::Access { .. }
        | MetaRequest::Getxattr { .. }
        | MetaRequest::Listxattr { .. }
        | MetaRequest::Statfs
        | MetaRequest::ReadInline { .. }
        // Without WRITE there is only a time of access in it.
        | MetaRequest::CommitWrite { .. }
        | MetaRequest::Sync(_)
        | MetaRequest::Lock { .. }
        | MetaRequest::LockWait { .. }
        | MetaRequest::LockCancel { .. }
        | MetaRequest::LockTest(_)
        | MetaRequest::LockRelease { .. }
        | MetaRequest::LayoutShow { .. }
        | MetaRequest::RecallDone { .. }
        | MetaRequest::SetattrRemoved { .. }
        // No session outlives this service.
        | MetaRequest::Reclaim { .. } => false,
    }
}
