//! Calls between roles, above any transport.
//!
//! [`MetaCalls`] and [`StorageCalls`] are what a client sees of the services. On one machine the services implement them
//! and are called directly: no serialization, no socket, no copy. [`forced_codec`] wraps them so that every
//! message passes through its encoding both ways, which keeps the codecs honest. In a cluster [`serve`] puts the services behind the
//! network ([`net`]), and [`remote`] is what a client is given in their place.
//!
//! The one retry layer is in [`net`]: a call whose connection broke is sent again, and carried out once.

use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SessionEvent, StorageReply, StorageRequest};
use ashlar_types::node::SessionOwner;
use ashlar_types::{
    Attr, Credentials, Epoch, Errno, EventKind, FilesetId, InodeId, NodeId, OpId, Reach, SessionId, ShardId,
    Timespec,
};
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::{BackupStep, BackupTold, CopyUnder, MoveInfo, TakenTarget, TargetPlace, Withdrawal};

pub mod capability;
pub mod forced_codec;
pub mod net;
pub mod placed;
pub mod remote;
pub mod serve;
pub mod wire;

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The session and the number of the call in it.
    pub op: OpId,
    /// The user on whose behalf.
    pub creds: &'a Credentials,
    /// Where the service is to keep the answer, durably with what the call changes, so that it is carried out once although it is sent to the
    /// service again after that was started anew. No two calls of a session under way have the same.
    pub slot: Option<u16>,
    /// Outside of this there are no inodes for it; nothing: it may name all.
    pub reach: Option<Reach<'a>>,
    /// It writes, and its session answers recalls of the file's content while this call waits. Where a session does not, because its kernel has pages locked that it has to
    /// drop, two such writers would wait for each other if none went ahead of the other's answer.
    pub yields: bool,
    /// Where it is put what the call has made of the directory in which it changes a name, and what of that may be cached: the caller would ask next. Nothing there: it does not want to know.
    pub directory: Option<&'a OnceLock<(Attr, LeaseSet)>>,
}

impl<'a> Caller<'a> {
    /// A caller who asks once.
    pub fn new(op: OpId, creds: &'a Credentials) -> Caller<'a> {
        Caller { op, creds, slot: None, reach: None, yields: false, directory: None }
    }

    /// The same, not to be told of the directory.
    #[must_use]
    pub fn alone(self) -> Caller<'a> {
        Caller { directory: None, ..self }
    }
}

/// A session as the metadata service granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    /// Its id.
    pub session: SessionId,
    /// For how long a lease is good without renewal. In one process the holder cannot be cut off from the service, so it is long.
    pub lease_term: Duration,
    /// The server that granted it; 0 where there is only one.
    pub server: NodeId,
    /// Which start of the service granted it ([`LastingSessions::incarnation`]).
    pub incarnation: u64,
}

/// Receives what the metadata service sends unasked. Must return at once: work goes to a thread of the receiver.
pub trait SessionEvents: Send + Sync {
    /// One event; events of a session arrive in order.
    fn deliver(&self, event: SessionEvent);

    /// Whether the session is at work on the answer to a recall of `inode`: a read, write or report of it is under way and waits for a
    /// disk. Asked when the answer is late, before the session is ended; must return at once.
    fn is_busy(&self, inode: InodeId) -> bool {
        let _ = inode;
        false
    }

    /// The session is to be ended, and its leases are not renewed any more. For how long its holder may still rely on them; until then nobody
    /// else may get what he has.
    fn revoke(&self) -> Duration {
        Duration::ZERO
    }

    /// A shard has come in which the session has something: if nothing was heard of its holder before, he is to be heard from now on. See [`LastingSessions::unmet`].
    fn met(&self) {}
}

/// The metadata service as its clients see it.
pub trait MetaCalls: Send + Sync {
    /// Opens a session.
    ///
    /// # Errors
    /// `EAGAIN` when the service has as many sessions as it can.
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno>;

    /// Ends a session: its leases, locks and orphans are gone.
    fn close_session(&self, session: SessionId);

    /// One call.
    ///
    /// # Errors
    /// What the verb answers; `ENOTCONN` when the session is not known (any more).
    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno>;

    /// A start of `server`, counted from 1: whatever it answers `session` from now on is of this one or a later one. 0 where that is not known, and inside one process.
    fn start_of(&self, _session: SessionId, _server: NodeId) -> u64 {
        0
    }
}

/// What is told once everything that a metadata server has decided so far is in all copies that count; false: not told here, ask again.
/// It may be sent together with others.
pub type DeliverOnce = Box<dyn FnOnce(bool, &mut net::Answers) + Send>;

/// Holds back what a metadata server answers, where its log has copies on other machines.
pub trait HoldsBack: Send + Sync {
    /// Calls `deliver`, now or later, from this thread or another one.
    fn hold(&self, deliver: DeliverOnce);
}

/// Other metadata servers, as one of them sees them. What they say to each other is theirs alone, and bytes here.
pub trait MetaPeers: Send + Sync {
    /// Says `message` to `server`; its answer. What others may be waiting for is urgent.
    ///
    /// # Errors
    /// `EHOSTDOWN` when there is none within `wait`; it may have been heard all the same.
    fn ask(&self, server: NodeId, message: &[u8], is_urgent: bool, wait: Duration) -> Result<Vec<u8>, Errno>;
}

/// Where sessions are heard at this server.
pub trait SessionHosts {
    /// Where `session` of `owner` is heard, which another server has opened and which is there at this moment.
    fn host(&self, session: SessionId, owner: SessionOwner) -> Hosted;
}

/// Where a session is heard that comes along with a shard.
pub enum Hosted {
    /// What is told to it goes there.
    At(Arc<dyn SessionEvents>),
    /// It was ended here, and its holder is about to hear of that.
    Ended,
    /// It is just being forgotten here: to be asked for again.
    Later,
}

/// Who takes further directories into service on a storage server that runs.
pub trait TakesTargets: Send + Sync {
    /// Takes `place` into service, as an administrator on the node `who` has asked. Returns at once: `done` hears, from a thread of this one, what has become of it.
    fn take(&self, who: NodeId, place: TargetPlace, done: Box<dyn FnOnce(TakenTarget) + Send>);
}

/// Where a service tells what administrators should know of: the event log of the file system.
pub trait Reports: Send + Sync {
    /// Something has happened to `subject`. Returns at once, and may drop it when too much happens.
    fn report(&self, kind: EventKind, subject: &str, text: &str);
}

/// How much a session has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionHolds {
    /// Inodes it has a lease on.
    pub leases: u64,
    /// Inodes it has open.
    pub opens: u64,
    /// Files it holds locks on or waits for them, each counted once per owner of locks.
    pub locks: u64,
}

/// Sessions that outlive the metadata service: it is started anew, and they go on.
pub trait LastingSessions: MetaCalls {
    /// Opens a session that the service remembers when it is started anew; `session`: one that another server knows already.
    ///
    /// # Errors
    /// As [`MetaCalls::open_session`], and `EIO` or `ENOSPC` from the log.
    fn open_lasting(
        &self,
        session: Option<SessionId>,
        owner: SessionOwner,
        events: Arc<dyn SessionEvents>,
    ) -> Result<SessionGrant, Errno>;

    /// Sessions that have come along with shards, have nothing here, and of whose holders nothing was heard ([`LastingSessions::meet`]).
    fn unmet(&self) -> Vec<(SessionId, SessionOwner)> {
        Vec::new()
    }

    /// The holder of a session that was unmet is here: from now on it is waited for after a start. Durable when it returns.
    ///
    /// # Errors
    /// `EIO` or `ENOSPC` from the log.
    fn meet(&self, _session: SessionId) -> Result<(), Errno> {
        Ok(())
    }

    /// Since when, by the clock of the service, shards have been on their way here, in which sessions that come along with them may have something.
    fn takes_shards_since(&self) -> Option<Duration> {
        None
    }

    /// Sessions from before the service was started, of which it does not know yet what they have.
    fn awaited(&self) -> Vec<(SessionId, SessionOwner)>;

    /// Has events of an awaited or unmet session go to `events`. An awaited one counts as that until it has told everything.
    fn adopt(&self, session: SessionId, events: Arc<dyn SessionEvents>);

    /// Whether nothing may be carried out yet because sessions are awaited, but [`MetaRequest::Reclaim`], and [`MetaRequest::RecallDone`] and [`MetaRequest::CommitWrite`], with which
    /// recalls are answered.
    fn is_awaiting(&self) -> bool;

    /// Sessions that are about to be ended tell nothing any more: what waits for them alone goes on.
    fn give_up_on(&self, sessions: &[SessionId]);

    /// Whether `session` is one of them.
    fn is_awaited(&self, session: SessionId) -> bool;

    /// Grows with every start of the service.
    fn incarnation(&self) -> u64;

    /// Whether this server answers for `inode`.
    fn has_home_of(&self, inode: InodeId) -> bool;

    /// Answers what another metadata server says ([`MetaPeers::ask`]). Sessions that come along with a shard are heard at `hosts` from then on.
    ///
    /// # Errors
    /// `EPROTO` where there are none.
    fn hear(&self, message: &[u8], hosts: &dyn SessionHosts) -> Result<Vec<u8>, Errno>;

    /// The epoch of the map that whoever renews his leases must know of: since then shards may have other servers, at which he has to be, too. `None`: nothing
    /// is renewed at this moment, as it is being decided where a shard is.
    fn map_to_renew_by(&self) -> Option<Epoch>;

    /// Has shards be given to the metadata server on another node, one after the other, as the process `asker` wants: again to be asked for where it finds them neither on
    /// their way nor there, but not what was withdrawn since it asked. None named: this server takes none by itself any more, as one that has just joined does.
    ///
    /// # Errors
    /// `ENODEV` when there is no such server, `EHOSTDOWN` when one of them is not here.
    fn move_shards(&self, shards: &[ShardId], to: NodeId, asker: SessionOwner) -> Result<(), Errno>;

    /// Shards that are being given away, are to be, or could not be.
    fn moves(&self) -> Vec<MoveInfo>;

    /// Has shards stay that are to be given away, all of them if none is named; tells what has become of each, and where it was to go.
    fn withdraw_moves(&self, shards: &[ShardId]) -> Vec<(ShardId, Option<NodeId>, Withdrawal)>;

    /// The fileset of an inode that this server answers for; nothing when there is no such inode.
    ///
    /// # Errors
    /// `EIO` when that cannot be read.
    fn fileset_of(&self, inode: InodeId) -> Result<Option<FilesetId>, Errno>;

    /// When an inode was made that this server answers for; nothing when there is no such inode.
    ///
    /// # Errors
    /// `EIO` when that cannot be read.
    fn born(&self, inode: InodeId) -> Result<Option<Timespec>, Errno>;

    /// A step of a backup.
    ///
    /// # Errors
    /// `ENOENT` when the backup is not known (any more), `EIO` when something cannot be read.
    fn backup(&self, backup: u64, step: BackupStep) -> Result<BackupTold, Errno>;

    /// The answer that is kept to a call which was carried out before the service was started, if it was.
    ///
    /// # Errors
    /// `EIO` when that cannot be read.
    fn kept(&self, caller: Caller<'_>, request: &MetaRequest<'_>) -> Result<Option<MetaReply>, Errno>;

    /// Whether the session has the inode open, and if so, whether for writing.
    fn opened(&self, session: SessionId, inode: InodeId) -> Option<bool>;

    /// Whether the session may use chunks of this generation of the inode, and if so, whether it may write.
    ///
    /// # Errors
    /// `EBADF` when it does not have the inode open, `ESTALE` when the inode is gone or has another generation, `EIO` when that cannot be read.
    fn may_use(&self, session: SessionId, inode: InodeId, generation: u32) -> Result<bool, Errno>;

    /// How much each session has; one that is not named has nothing.
    fn holds(&self) -> FxHashMap<SessionId, SessionHolds> {
        FxHashMap::default()
    }
}

/// Bulk data beside a storage message.
pub enum Payload<'a> {
    /// None.
    None,
    /// To be written.
    Write(&'a [u8]),
    /// To be filled.
    Read(&'a mut [u8]),
}

/// The storage services as their clients see them; the request names the target.
pub trait StorageCalls: Send + Sync {
    /// One call.
    ///
    /// # Errors
    /// `ENODEV` for a target that is not in service, `EIO` for damage or a failed device, `ENOSPC` when full, `EREMCHG` when it does not have a
    /// chain that the call is about: the map says where it is.
    fn call(&self, request: &StorageRequest, payload: Payload<'_>) -> Result<StorageReply, Errno>;

    /// One call that belongs to `session`: where sessions can end, it is carried out for this one or not at all.
    ///
    /// # Errors
    /// As [`StorageCalls::call`]; `EIO` when the session has ended.
    fn call_in(
        &self,
        session: SessionId,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno> {
        let _ = session;
        self.call(request, payload)
    }
}

/// Who copies a chain to another target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveAttempt {
    /// The process.
    pub owner: SessionOwner,
    /// Its attempt: later ones have larger numbers. A call of an earlier one can arrive late.
    pub number: u64,
}

/// Other storage servers, as one of them sees them that gives them a chain.
pub trait OtherTargets: Send + Sync {
    /// One call about a chain that moves, of the attempt `number`, which waits for at most `wait`.
    ///
    /// # Errors
    /// As [`StoragePeers::call_of_peer`], and `ETIMEDOUT`.
    fn call_in_attempt(
        &self,
        number: u64,
        request: &StorageRequest,
        payload: Payload<'_>,
        wait: Duration,
    ) -> Result<StorageReply, Errno>;

    /// One call to another target that keeps copies of the same chain, which waits for at most `wait`. It may be carried out later than that, but not twice.
    ///
    /// # Errors
    /// As [`StoragePeers::call_of_copy`], and `ETIMEDOUT`; `EOPNOTSUPP` where no chain has copies.
    fn call_of_copy(
        &self,
        _under: CopyUnder,
        _request: &StorageRequest,
        _payload: Payload<'_>,
        _wait: Duration,
    ) -> Result<StorageReply, Errno> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// The storage services as other storage servers see them, which give them chains.
pub trait StoragePeers: Send + Sync {
    /// One call of a process of another server, or of this one, about a chain that moves to a target here.
    ///
    /// # Errors
    /// As [`StorageCalls::call`]; `EREMCHG` when the map here does not say yet that the chain moves, `ENOTCONN` when the move has not begun, or
    /// another process has begun it anew.
    fn call_of_peer(
        &self,
        from: MoveAttempt,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno>;

    /// One call of the server `node` for one of its targets, which keeps copies of the same chain as a target here.
    ///
    /// # Errors
    /// As [`StorageCalls::call`]; `EREMCHG` when it is of another epoch than the one here, `EACCES` when it is not that server's to ask.
    fn call_of_copy(
        &self,
        node: NodeId,
        under: CopyUnder,
        request: &StorageRequest,
        payload: Payload<'_>,
    ) -> Result<StorageReply, Errno>;
}
