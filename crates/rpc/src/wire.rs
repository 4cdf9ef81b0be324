//! Messages about sessions, as they travel: the traits of this crate as values.

use ashlar_types::message::{MetaReply, MetaRequest, SessionEvent};
use ashlar_types::node::SessionOwner;
use ashlar_types::{Credentials, Errno, InodeId, OpId, SessionId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// For how long leases of a session are good that its holder has not renewed. Its holder counts from when it asked, the service from when
/// it was asked.
pub const LEASE_TERM: Duration = Duration::from_secs(15);
/// After how long without renewal a session is ended.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Bits by which numbers of events and recalls count within a start of the service; above them is the number of the start. So those of a later start are
/// higher, also after a trillion.
pub const COUNT_BITS: u32 = 40;

/// A call to a metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "nearly all are of the large one, and none is kept")]
pub enum MetaCall<'a> {
    /// Open a session: this one, which the same caller has opened at another server, or a new one.
    Open(Option<SessionId>),
    /// End one.
    Close(SessionId),
    /// A call of a session.
    Call {
        /// Which.
        op: OpId,
        /// On whose behalf.
        creds: Credentials,
        /// Where its answer is kept until its caller has it; nothing for a call that may be carried out twice.
        slot: Option<u16>,
        /// What.
        #[serde(borrow)]
        request: MetaRequest<'a>,
    },
    /// What the service has to tell the session behind event `seen`, as soon as there is something.
    Events {
        /// The session.
        session: SessionId,
        /// The newest event it has.
        seen: u64,
    },
    /// The session is there; it is at work on the recalls of `busy`, and waits for a disk.
    Renew {
        /// The session.
        session: SessionId,
        /// Files.
        busy: Vec<InodeId>,
    },
    /// Which sessions there are. Only for administrators.
    Sessions,
    /// End a session as if it had fallen silent: it is told at once, and what it has goes to others when its leases have run out. Only for
    /// administrators.
    EndSession(SessionId),
    /// What another metadata server says. Only for these.
    Peer(&'a [u8]),
}

/// A session, for an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Which.
    pub session: SessionId,
    /// Whose.
    pub owner: SessionOwner,
    /// Since when this start of the service knows it, seconds since 1970.
    pub since_s: u64,
    /// How long ago it was last heard of, milliseconds.
    pub heard_ms: u64,
    /// Inodes it has a lease on.
    pub leases: u64,
    /// Inodes it has open.
    pub opens: u64,
    /// Files it holds locks on or waits for them, each counted once per owner of locks.
    pub locks: u64,
    /// It is about to be ended.
    pub is_ending: bool,
}

/// The answer of a metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaAnswer {
    /// Done.
    Done,
    /// A session, of the service's so many-th start.
    Session(SessionId, u64),
    /// Of a call.
    Reply(MetaReply),
    /// It failed.
    Failed(Errno),
    /// Events with their numbers, ascending.
    Events(Vec<(u64, SessionEvent)>),
    /// The service was started anew, for the `.0`th time: it does not know what the session has, and is to be told before anything else.
    MustReclaim(u64),
    /// The service waits for other sessions to tell what they have. Nothing was done; ask again in a moment.
    Later,
    /// All sessions, by id.
    Sessions(Vec<SessionInfo>),
    /// The answer to another metadata server.
    Peer(Vec<u8>),
    /// Another server has the shard. Nothing was done; the map says which one, or will in a moment.
    NotHere,
}

/// What it means to carry a call out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// Nothing: it changes nothing.
    Harmless,
    /// The same: it says what is to be, and not what is to happen. But not after other calls that came between.
    Same,
    /// Something else: the answer is kept with what the call changes.
    Other,
}

/// Every request is named, so that a new one is thought about.
pub fn repetition(request: &MetaRequest<'_>) -> Repetition {
    match request {
        MetaRequest::Lookup { .. }
        | MetaRequest::Getattr { .. }
        | MetaRequest::Readlink { .. }
        | MetaRequest::Readdir { .. }
        | MetaRequest::Access { .. }
        | MetaRequest::Getxattr { .. }
        | MetaRequest::Listxattr { .. }
        | MetaRequest::Statfs
        | MetaRequest::ReadInline { .. }
        | MetaRequest::Sync(_)
        | MetaRequest::LockTest(_)
        | MetaRequest::LayoutShow { .. }
        | MetaRequest::SetattrRemoved { .. }
        | MetaRequest::MakeRoom
        | MetaRequest::RecallDone { .. }
        | MetaRequest::Reclaim { .. } => Repetition::Harmless,
        MetaRequest::Open { truncate: false, .. }
        | MetaRequest::Release { .. }
        | MetaRequest::ProposeLayout { .. }
        | MetaRequest::WithdrawLayout { .. }
        | MetaRequest::AcquireData { .. }
        | MetaRequest::Lock { .. }
        | MetaRequest::LockWait { .. }
        | MetaRequest::LockCancel { .. }
        | MetaRequest::LockRelease { .. } => Repetition::Same,
        MetaRequest::Open { truncate: true, .. }
        | MetaRequest::Create { .. }
        | MetaRequest::Mkdir { .. }
        | MetaRequest::Mknod { .. }
        | MetaRequest::Symlink { .. }
        | MetaRequest::Link { .. }
        | MetaRequest::Unlink { .. }
        | MetaRequest::Rmdir { .. }
        | MetaRequest::Rename { .. }
        | MetaRequest::Tmpfile { .. }
        | MetaRequest::Setattr { .. }
        | MetaRequest::Setxattr { .. }
        | MetaRequest::Removexattr { .. }
        | MetaRequest::WriteInline { .. }
        | MetaRequest::AllocateInline { .. }
        | MetaRequest::SetLayout { .. }
        | MetaRequest::CommitWrite { .. }
        | MetaRequest::LayoutSet { .. } => Repetition::Other,
    }
}

/// Whether others may be waiting for a call to be carried out: it must not wait behind theirs.
pub fn frees_others(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::RecallDone { .. }
            | MetaRequest::CommitWrite { .. }
            | MetaRequest::Release { .. }
            | MetaRequest::LockRelease { .. }
            | MetaRequest::LockCancel { .. }
            | MetaRequest::WithdrawLayout { .. }
            | MetaRequest::Reclaim { .. }
    )
}
