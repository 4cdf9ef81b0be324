//! The calls, by family; this file holds the table.

mod attrs;
mod data;
mod files;
mod in_directory;
mod locks;
mod names;
mod xattrs;

pub(crate) use files::{Creation, Opening};
pub(crate) use in_directory::InDirectory;

use crate::MetaService;
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{Addressee, MetaReply, MetaRequest};
use ashlar_types::{Errno, SessionId};
use std::sync::Arc;

/// Numbers of the verbs in log frames. They are part of the log format: never reused, only added.
pub(crate) mod verb {
    pub(crate) const BOOTSTRAP: u8 = 1;
    pub(crate) const CREATE: u8 = 2;
    pub(crate) const MKDIR: u8 = 3;
    pub(crate) const MKNOD: u8 = 4;
    pub(crate) const SYMLINK: u8 = 5;
    pub(crate) const LINK: u8 = 6;
    pub(crate) const UNLINK: u8 = 7;
    pub(crate) const RMDIR: u8 = 8;
    pub(crate) const RENAME: u8 = 9;
    pub(crate) const TMPFILE: u8 = 10;
    pub(crate) const OPEN: u8 = 11;
    pub(crate) const RELEASE: u8 = 12;
    pub(crate) const SETATTR: u8 = 13;
    pub(crate) const SETXATTR: u8 = 14;
    pub(crate) const REMOVEXATTR: u8 = 15;
    pub(crate) const WRITE_INLINE: u8 = 16;
    pub(crate) const ALLOCATE_INLINE: u8 = 17;
    pub(crate) const PROPOSE_LAYOUT: u8 = 18;
    pub(crate) const SET_LAYOUT: u8 = 19;
    pub(crate) const BEGIN_WRITE: u8 = 20;
    pub(crate) const COMMIT_WRITE: u8 = 21;
    pub(crate) const COLLECTED: u8 = 22;
    pub(crate) const LAYOUT_SET: u8 = 23;
    pub(crate) const REAP: u8 = 24;
    pub(crate) const SKIP_INODE_IDS: u8 = 25;
    /// The SETATTR that a write into chunks begins with, to clear set-id bits.
    pub(crate) const CLEAR_SET_ID: u8 = 26;
    pub(crate) const OPEN_SESSION: u8 = 27;
    pub(crate) const CLOSE_SESSION: u8 = 28;
    pub(crate) const RESERVE_INODE_IDS: u8 = 29;
    /// A part of another server's transaction is locked.
    pub(crate) const PREPARE: u8 = 30;
    /// It is carried out, or dropped.
    pub(crate) const FINISH: u8 = 31;
    /// All participants know of a decision.
    pub(crate) const FORGET: u8 = 32;
    /// Something of a shard has come, or is noted of one.
    pub(crate) const TAKE_SHARDS: u8 = 33;
    /// Something of a shard that is not here goes.
    pub(crate) const CLEAR_SHARD: u8 = 34;
    pub(crate) const SET_FILESET: u8 = 35;
    /// A directory is split, or is to have directories split that are made in it.
    pub(crate) const SPLIT: u8 = 36;
    /// A part of the entries of a directory that is being split goes to a slice.
    pub(crate) const SPLIT_STEP: u8 = 37;
}

impl MetaCalls for MetaService {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.session_open(None, None, events)
    }

    fn close_session(&self, session: SessionId) {
        self.session_end(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        if !self.sessions.has(caller.op.session) {
            return Err(Errno::ENOTCONN);
        }
        let _inside = match request.addressee() {
            Addressee::Home(inode) => Some(self.enter(inode.home())?),
            _ => None,
        };
        if let Some(reply) = self.kept_reply(caller, &request)? {
            return Ok(reply);
        }
        match request {
            MetaRequest::Lookup { .. }
            | MetaRequest::Mkdir { .. }
            | MetaRequest::Mknod { .. }
            | MetaRequest::Symlink { .. }
            | MetaRequest::Link { .. }
            | MetaRequest::Unlink { .. }
            | MetaRequest::Rmdir { .. }
            | MetaRequest::Rename { .. }
            | MetaRequest::Readdir { .. } => self.call_on_names(caller, request),
            MetaRequest::Create { .. }
            | MetaRequest::Tmpfile { .. }
            | MetaRequest::Open { .. }
            | MetaRequest::Release { .. }
            | MetaRequest::Closes { .. } => self.call_on_files(caller, request),
            MetaRequest::Getxattr { .. }
            | MetaRequest::Listxattr { .. }
            | MetaRequest::Setxattr { .. }
            | MetaRequest::Removexattr { .. } => self.call_on_xattrs(caller, request),
            MetaRequest::ReadInline { .. }
            | MetaRequest::WriteInline { .. }
            | MetaRequest::AllocateInline { .. }
            | MetaRequest::ProposeLayout { .. }
            | MetaRequest::SetLayout { .. }
            | MetaRequest::WithdrawLayout { .. }
            | MetaRequest::AcquireData { .. }
            | MetaRequest::AcquireShared { .. }
            | MetaRequest::CommitWrite { .. } => self.call_on_data(caller, request),
            MetaRequest::Lock { .. }
            | MetaRequest::LockWait { .. }
            | MetaRequest::LockCancel { .. }
            | MetaRequest::LockTest(_)
            | MetaRequest::LockRelease { .. } => self.call_on_locks(caller, &request),
            MetaRequest::RecallDone { inode, id } => {
                self.recall_done(id, caller.op.session, inode);
                Ok(MetaReply::Done)
            }
            MetaRequest::Reclaim { part, .. } => self.reclaim(caller.op.session, part),
            MetaRequest::MakeRoom => {
                self.make_room();
                Ok(MetaReply::Done)
            }
            other => self.call_on_attrs(caller, other),
        }
    }
}
