//! Messages about sessions, as they travel: the traits of this crate as values.

use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SessionEvent, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    Attr, Credentials, Epoch, Errno, GrantedCapability, InodeId, NodeId, OpId, OpenProof, Rights,
    SealedCapability, SessionId, ShardId, ShardSet, TargetId,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// For how long leases of a session are good that its holder has not renewed. Its holder counts from when it asked, the service from when
/// it was asked.
pub const LEASE_TERM: Duration = Duration::from_secs(15);
/// After how long without renewal a session is ended.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Bits by which numbers of events and recalls count within a start of the service; above them is the number of the start. So those of a later start are
/// higher, also after a trillion.
pub const COUNT_BITS: u32 = 40;

/// What any server is asked about itself. For administrators and consoles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessCall {
    /// What it counts, in the text format of Prometheus: the same that its port for metrics shows.
    Metrics,
}

/// The answer of a server about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessAnswer {
    /// What it counts.
    Metrics(String),
}

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
    /// A capability for one storage server, in place of one that is not good there any more, or was not given with the file.
    Capability(CapabilityWanted),
    /// Give shards that this server has to another one. Only for administrators.
    MoveShards {
        /// Which; none: this server is to take none by itself any more.
        shards: Vec<ShardId>,
        /// Whose they are to be.
        to: NodeId,
    },
    /// Which shards are being given to others. Only for administrators.
    Moves,
    /// A step of a backup. Only for administrators.
    Backup {
        /// Which backup, drawn at random.
        backup: u64,
        /// Which step.
        step: BackupStep,
    },
    /// Do not give shards away that are to be. Only for administrators.
    WithdrawMoves {
        /// Which; none: all.
        shards: Vec<ShardId>,
    },
    /// As [`MetaCall::Call`], of a write while which the session answers recalls ([`crate::Caller::yields`]).
    CallYielding {
        /// Which.
        op: OpId,
        /// On whose behalf.
        creds: Credentials,
        /// As of a `Call`.
        slot: Option<u16>,
        /// What.
        #[serde(borrow)]
        request: MetaRequest<'a>,
    },
    /// As [`MetaCall::Call`], of a change of a name whose caller wants to be told of the directory ([`crate::Caller::directory`]).
    CallInDirectory {
        /// Which.
        op: OpId,
        /// On whose behalf.
        creds: Credentials,
        /// As of a `Call`.
        slot: Option<u16>,
        /// What.
        #[serde(borrow)]
        request: MetaRequest<'a>,
    },
    /// As [`MetaCall::Open`], of a session by whose number ([`SessionId::durability`]) its changes are durable before they are answered. A server of a version that does not heed that refuses it.
    OpenSync(SessionId),
}

/// What a metadata server does for a backup, in this order. All of them are closed at the same moment, for what was answered to be in it and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackupStep {
    /// Do beforehand what need not be done while nobody is served.
    Prepare,
    /// Let nobody in any more, and keep what there is once everybody has left.
    Close,
    /// All others were closed as well: go on. Without this one it goes on by itself after [`CLOSED_MAX`].
    Open,
    /// Tell what was kept, from this key on.
    Pairs(Vec<u8>),
    /// Forget what was kept.
    End,
}

/// For how long a metadata server is closed at the most.
pub const CLOSED_MAX: Duration = Duration::from_secs(2);

/// The answer to a [`BackupStep`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackupTold {
    /// It is done.
    Done,
    /// It cannot be done now, and why: try again in a moment.
    NotNow(String),
    /// Closed. So many starts the server has had, it has these shards, and by this key it hashes names.
    Closed {
        /// The number of the start.
        incarnation: u64,
        /// Shards.
        shards: ShardSet,
        /// Of the hash of names.
        name_hash_key: [u8; 16],
    },
    /// Whether it was closed until now.
    Opened(bool),
    /// Pairs of keys and values, and whether these were the last.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>, bool),
}

/// Which capability a session wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilityWanted {
    /// The session. It must have the file open.
    pub session: SessionId,
    /// The file.
    pub inode: InodeId,
    /// The generation of its chunks, or one that was proposed to the session.
    pub generation: u32,
    /// The storage server.
    pub server: NodeId,
    /// Standing and time of the seal that the server has refused a moment ago: the same is not to be given once more.
    pub refused: Option<(u64, u64)>,
}

/// For how long a storage server heeds capabilities of a metadata server that it does not hear of, by its own clock.
pub const HEED_TERM: Duration = Duration::from_secs(15);

/// A call to a storage server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "nearly all are of the large one, and none is kept")]
pub enum StorageCall {
    /// To one of its targets.
    Call {
        /// What lets the caller do it.
        under: Under,
        /// What.
        request: StorageRequest,
    },
    /// A metadata server is there. Only for these.
    Attend(Attend),
    /// Take a directory of the server's machine into service as a target. For administrators; the answer is a [`TakenTarget`].
    TakeTarget(TargetPlace),
    /// As [`StorageCall::Attend`], of a metadata server that several machines can serve, one at a time. From the answer on nothing is carried out for any process of its that was started
    /// before. Errors: `EACCES` when another process was started later, `EAGAIN` when something of an earlier one is under way: it is to be said again.
    AttendAs {
        /// Number of the start: larger than all before, wherever those were. Each start is a process, or an instance of a caller, of its own.
        start: u64,
        /// What it says.
        attend: Attend,
    },
}

/// A directory that is to be a target, for an administrator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetPlace {
    /// Its whole path on the machine of the server.
    pub dir: String,
    /// The pool that it is to be in if it is none yet; empty: the first one.
    pub pool: String,
    /// Addresses of the server at which it is reached best; none: as it follows from where its disk is.
    pub listen: Vec<SocketAddr>,
    /// The NUMA node that is to serve it, if not the one that follows from where its disk is.
    pub numa: Option<u32>,
}

/// The target that a directory is from now on, or why it is none, for a person.
pub type TakenTarget = Result<TargetId, String>;

/// [`StorageCall::Call`] of what is borrowed.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) enum StorageCallOf<'a> {
    Call { under: &'a Under, request: &'a StorageRequest },
}

/// A storage server has as much to do for the target as it keeps: nothing was done, and the caller asks again. Said from this protocol on.
pub(crate) const AGAIN: Errno = Errno::EBUSY;
pub(crate) const AGAIN_SINCE: u16 = 4;

/// The protocol from which on storage servers tell clients and metadata servers what may have been lost ([`ashlar_types::message::LossMark`]).
pub(crate) const MARKS_SINCE: u16 = 6;

/// What lets the caller of a storage server do what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Under {
    /// Its role.
    Role,
    /// The capability that it has shown before, of this session for this file.
    Session(SessionId),
    /// This capability, which is remembered for later calls.
    Capability(Box<SealedCapability>),
    /// The attempt of a storage server to move a chain, by which it tells its calls from those of earlier ones.
    Move(u64),
    /// The place of a target in front in a chain of several copies.
    Copy(CopyUnder),
}

/// What a target passes on in a chain of several copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyUnder {
    /// The target that passes it on.
    pub from: TargetId,
    /// The epoch of the chain's group.
    pub epoch: Epoch,
    /// What is passed on, or sent whole, later has a greater one: by that a call is known that arrives when it was given up.
    pub turn: u64,
    /// The place in the chain of the target that gets it, from 1; 0 for what passes nothing on itself. Those with one place never wait for others with the same.
    pub place: u8,
    /// It is a piece of a chunk that is sent whole.
    pub is_piece: bool,
}

impl CopyUnder {
    /// Of a call that is about no chain alone.
    pub fn between_servers(from: TargetId, place: u8) -> CopyUnder {
        CopyUnder { from, epoch: Epoch(0), turn: 0, place, is_piece: false }
    }
}

/// What a metadata server says to a storage server every few seconds, and at once when a session is to be fenced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attend {
    /// Standing and clock as the storage server told them last. Its capabilities are heeded for [`HEED_TERM`] from that time of the storage server's clock on.
    pub echo: Option<(u64, u64)>,
    /// Sessions that are over. Nothing of them is carried out from the answer on.
    pub fences: Vec<SessionId>,
}

/// The answer to [`Attend`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attended {
    /// The number under which the storage server heeds the caller. It is another one than before if capabilities from before are worth nothing.
    pub standing: u64,
    /// The clock of the storage server, milliseconds.
    pub now_ms: u64,
    /// The oldest and the newest epoch of keys that it has.
    pub epochs: (u64, u64),
    /// Sessions of the question of which nothing is under way any more. The others are to be asked about once more.
    pub fenced: Vec<SessionId>,
}

/// A shard that goes to another server, for an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveInfo {
    /// Which.
    pub shard: ShardId,
    /// Whose it is to be.
    pub to: NodeId,
    /// How far it is.
    pub state: MoveState,
    /// Keys that were sent, those that have changed meanwhile more than once.
    pub sent: u64,
    /// Keys that there were when it began; 0 before that is known.
    pub total: u64,
}

/// How far a shard is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveState {
    /// Others come first.
    Waiting,
    /// It is copied, and served meanwhile.
    Copying,
    /// The rest is sent, and the map is changed. Calls for it come again.
    Deciding,
    /// It could not be moved, and why; it is served as before.
    Failed(String),
    /// It is copied, and served meanwhile, but its receiver has not answered for a while, in words.
    Stalled(String),
}

/// What has become of a move that was to be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Withdrawal {
    /// The shard stays.
    Withdrawn,
    /// It is being handed over: it goes, or comes back by itself.
    TooLate,
    /// It is not on its way.
    NotMoving,
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
    /// Of a call, with a capability for the chunks it tells of.
    Granted(MetaReply, GrantedCapability),
    /// A capability.
    Capability(GrantedCapability),
    /// The session is renewed, if its holder knows the map of this epoch and is at all servers that have been given shards by it.
    Renewed(Epoch),
    /// Shards that go to other servers.
    Moves(Vec<MoveInfo>),
    /// Of a step of a backup.
    Backup(BackupTold),
    /// What has become of moves that were to be withdrawn, and where each was to go.
    Withdrawn(Vec<(ShardId, Option<NodeId>, Withdrawal)>),
    /// Of a call that has opened something, with the proof of it, and with a capability for the chunks if it has any.
    Opened(MetaReply, OpenProof, Option<GrantedCapability>),
    /// Of a [`MetaCall::CallInDirectory`]: as `Reply`, `Granted` or `Opened`, with the attributes of the directory and what of them may be cached.
    InDirectory(MetaReply, Option<OpenProof>, Option<GrantedCapability>, Attr, LeaseSet),
}

/// What a client must have a capability for to make a call: file, generation, rights. Every request is named, so that a new one is thought about.
pub fn needed(request: &StorageRequest) -> Option<(InodeId, u32, Rights)> {
    match request {
        StorageRequest::Write { chunk, .. }
        | StorageRequest::Truncate { chunk, .. }
        | StorageRequest::Punch { chunk, .. }
        | StorageRequest::Allocate { chunk, .. } => Some((chunk.inode, chunk.generation, Rights::WRITE)),
        StorageRequest::Read { chunk, .. } | StorageRequest::Seek { chunk, .. } => {
            Some((chunk.inode, chunk.generation, Rights::READ))
        }
        StorageRequest::NextChunk { inode, generation, .. }
        | StorageRequest::Extent { inode, generation, .. } => Some((*inode, *generation, Rights::READ)),
        StorageRequest::DeleteGeneration { inode, generation, .. } => {
            Some((*inode, *generation, Rights::WRITE))
        }
        // Of no file: what may be asked for says the role.
        StorageRequest::Sync { .. }
        | StorageRequest::Space { .. }
        | StorageRequest::GiveBack { .. }
        | StorageRequest::Suspects { .. }
        | StorageRequest::Files { .. }
        | StorageRequest::Scrub { .. }
        | StorageRequest::Confirm { .. }
        | StorageRequest::MoveBegin { .. }
        | StorageRequest::MoveSeal { .. }
        | StorageRequest::Moves { .. }
        | StorageRequest::CopyBeacon { .. }
        | StorageRequest::CopyCompare { .. }
        | StorageRequest::CopyEmpty { .. }
        | StorageRequest::CopySettled { .. }
        | StorageRequest::CopyBlocks { .. }
        | StorageRequest::CopyAgain { .. }
        | StorageRequest::CopyLost { .. }
        | StorageRequest::CopyDigests { .. }
        | StorageRequest::TakeLossMark { .. }
        | StorageRequest::GoOnWithout { .. }
        | StorageRequest::MoveRate { .. } => None,
    }
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
        | MetaRequest::Slices { .. }
        | MetaRequest::SetattrRemoved { .. }
        | MetaRequest::MakeRoom
        | MetaRequest::RecallDone { .. }
        | MetaRequest::Reclaim { .. } => Repetition::Harmless,
        MetaRequest::Open { truncate: false, .. }
        | MetaRequest::Release { .. }
        | MetaRequest::Closes { .. }
        // But for a file that was empty: that has its chunks by the first, and `EAGAIN` says so. The answer is not kept, as a proposal does not outlive the server.
        | MetaRequest::ProposeLayout { .. }
        | MetaRequest::WithdrawLayout { .. }
        | MetaRequest::AcquireData { .. }
        | MetaRequest::AcquireShared { .. }
        | MetaRequest::Lock { .. }
        | MetaRequest::LockWait { .. }
        | MetaRequest::LockCancel { .. }
        | MetaRequest::LockRelease { .. }
        | MetaRequest::SetFileset { .. } => Repetition::Same,
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
        | MetaRequest::LayoutSet { .. }
        | MetaRequest::Split { .. } => Repetition::Other,
    }
}

/// Whether others may be waiting for a call to be carried out: it must not wait behind theirs.
pub fn frees_others(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::RecallDone { .. }
            | MetaRequest::CommitWrite { .. }
            | MetaRequest::Release { .. }
            | MetaRequest::Closes { .. }
            | MetaRequest::LockRelease { .. }
            | MetaRequest::LockCancel { .. }
            | MetaRequest::WithdrawLayout { .. }
            | MetaRequest::Reclaim { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::TargetId;
    use ashlar_types::codec::encode;

    #[test]
    fn a_borrowed_call_is_sent_as_one_that_is_not() {
        let (under, request) = (
            Under::Session(SessionId(7)),
            StorageRequest::Sync { target: TargetId(3), chains: ashlar_types::OfChains::All },
        );
        let borrowed = encode(&StorageCallOf::Call { under: &under, request: &request });
        assert_eq!(borrowed, encode(&StorageCall::Call { under, request }));
    }
}
