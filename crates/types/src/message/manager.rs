//! Calls to the manager.

use crate::membership::Change;
use crate::{
    ChainId, ClusterId, ClusterMap, CopyHost, CopyNotes, DiskId, DiskOrder, DiskWord, Epoch, Event,
    FilesetId, Happening, Holding, InodeId, KeySet, Membership, NodeId, NodePolicy, PoolId, Role, Roles,
    SecretKey, ShardId, SharedDisk, Start, TargetId,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A call to the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerRequest {
    /// Become a node. Only for who has a token that was not used.
    Join {
        /// The name the node is to have.
        name: String,
        /// Its public key (ECDSA P-256, the uncompressed point, 65 bytes).
        public_key: Vec<u8>,
    },
    /// A new certificate for the caller, with the roles it has.
    Renew {
        /// Its public key, as in `Join`.
        public_key: Vec<u8>,
    },
    /// The map, as soon as there is a newer one than that of `have`; after a while the same once more.
    Map {
        /// What the caller has; epoch 0: nothing.
        have: Epoch,
    },
    /// Where the caller listens from now on.
    Listen {
        /// As what.
        role: Role,
        /// Its addresses, the preferred one first.
        addresses: Vec<SocketAddr>,
    },
    /// An id for a target that the caller is about to make.
    NewTarget {
        /// What it was drawn to be known by.
        uuid: [u8; 16],
        /// Its directory.
        path: String,
        /// The name of the pool it is to be in; empty: the first one.
        pool: String,
    },
    /// The targets that the caller serves from now on; others of the same node are offline.
    Serve {
        /// Id, uuid and directory of each.
        targets: Vec<(TargetId, [u8; 16], String)>,
    },
    /// What a metadata server needs to know of the file system. The first one that asks is the one that makes it.
    MetaIdentity {
        /// What its directory was drawn to be known by.
        uuid: [u8; 16],
        /// Its directory.
        path: String,
    },
    /// Shards go from one metadata server, the caller, to another.
    TransferShards {
        /// Which.
        shards: Vec<ShardId>,
        /// Who has them.
        from: NodeId,
        /// Who is to have them.
        to: NodeId,
        /// The map by which the caller asks. Another one is refused: whoever has been started since then, and so has forgotten what was agreed on,
        /// has had it changed.
        seen: Epoch,
    },
    /// A token by which a machine can become a node.
    NewToken {
        /// What the node may be.
        roles: Roles,
        /// For how long it can be used, seconds.
        valid_s: u32,
        /// What the node may do as a client.
        policy: NodePolicy,
    },
    /// Take a node out of the file system: its certificate is worth nothing from now on.
    RemoveNode {
        /// Which.
        node: NodeId,
        /// Also if it is the one that asks.
        is_own_meant: bool,
    },
    /// Change what a node may do as a client.
    SetPolicy {
        /// Which.
        node: NodeId,
        /// What the caller has seen; if it is another one by now, nothing is changed.
        seen: NodePolicy,
        /// What is to be.
        policy: NodePolicy,
    },
    /// Whether targets are to give their chains to others.
    SetDraining {
        /// Which.
        targets: Vec<TargetId>,
        /// Whether they are to.
        is_draining: bool,
    },
    /// Take a target that has no chain any more out of the file system.
    RemoveTarget {
        /// Which.
        target: TargetId,
    },
    /// Make a pool.
    NewPool {
        /// Its name.
        name: String,
    },
    /// Take a pool out of the file system that has neither targets nor chains.
    RemovePool {
        /// Its name.
        name: String,
    },
    /// Change how chains are moved; what is `None` stays.
    SetMoves {
        /// Whether nothing is copied for now.
        is_paused: Option<bool>,
        /// Bytes that a server may send, MiB per second; 0: as many as it can.
        rate_mib_s: Option<u32>,
        /// A pool, and whether its targets are to be equally full.
        rebalancing: Option<(PoolId, bool)>,
    },
    /// A move of a chain ends: all of it is at the target that it goes to, durably, and the caller does not serve it any more; or it is given up.
    EndMove {
        /// The chain.
        chain: ChainId,
        /// The target of the caller that has it.
        from: TargetId,
        /// The move.
        since: Epoch,
        /// Whether it is given up, if it has not been finished before.
        is_given_up: bool,
    },
    /// What the caller's targets have.
    ReportTargets {
        /// Each of them.
        targets: Vec<TargetReport>,
    },
    /// The keys by which a metadata server makes the keys of all storage servers, to seal capabilities.
    SealingKeys,
    /// The keys by which the caller, a storage server, checks capabilities.
    CheckingKeys,
    /// Begin the next epoch of keys.
    RotateKeys,
    /// What has happened at the caller, a server, for the event log.
    Report {
        /// The oldest first.
        what: Vec<Happening>,
    },
    /// What has happened to the file system.
    Events {
        /// The number of the newest event that the caller has; 0: all that are kept.
        after: u64,
    },
    /// As `Listen`, where not all addresses are for the same.
    ListenApart {
        /// As what.
        role: Role,
        /// For everybody, the preferred one first.
        addresses: Vec<SocketAddr>,
        /// For management alone.
        management: Vec<SocketAddr>,
        /// Those of `addresses` at which a target is reached best.
        targets: Vec<(TargetId, Vec<SocketAddr>)>,
    },
    /// A fileset for a directory: the one it has, or a new one.
    NewFileset {
        /// The directory.
        root: InodeId,
        /// The fileset of the directory above it.
        parent: FilesetId,
    },
    /// A fileset is inside of another one from now on, which is inside of the one that it was in.
    EncloseFileset {
        /// Which.
        fileset: FilesetId,
        /// The one that it is inside of now.
        parent: FilesetId,
    },
    /// Say what a node can fail together with.
    SetDomain {
        /// Which.
        node: NodeId,
        /// The name of what it shares with others; empty: it fails alone.
        domain: String,
    },
    /// The caller, a server, is there. Said to every manager every few seconds.
    Present {
        /// As what.
        role: Role,
    },
    /// Which servers are there, as far as the manager knows that is asked.
    Presence,
    /// The metadata of the whole file system is that of a backup from now on: no directory but those that were made of it may serve any more.
    RestoreMetadata {
        /// Which backup.
        set: [u8; 16],
        /// What the caller's directory is known by that was made of it.
        uuid: [u8; 16],
        /// The map when it was made: nothing may have changed since, unless others that were made of the same backup serve already, and this one is awaited.
        seen: Epoch,
        /// The node that is lost, whose shards are the caller's from now on.
        instead_of: Option<NodeId>,
    },
    /// The caller, a server, is about to serve a directory, and asks for the next start of it. Nothing has changed until the directory says that start, and the
    /// caller that it holds it.
    ClaimStart {
        /// As what: metadata or storage.
        role: Role,
        /// The directory as it is.
        found: Holding,
        /// The tag of the next start, drawn at random.
        tag: u64,
        /// An administrator wants it although it is an older copy.
        is_older_accepted: bool,
        /// An administrator knows that whoever has it does not serve it any more.
        is_taking_over: bool,
    },
    /// The starts that the caller, a server, has noted in its directories and serves them in. Said to every manager every few seconds.
    HoldStarts {
        /// As what.
        role: Role,
        /// The directories.
        held: Vec<Holding>,
        /// It has stopped serving them.
        is_ending: bool,
    },
    /// The key by which metadata servers prove to clients, and to one another, what these have open.
    OpenKey,
    /// Whether shards that are to be moved stay where they are for now.
    SetShardMoves {
        /// Whether they do.
        is_paused: bool,
    },
    /// How shards are moved.
    ShardMoves,
    /// How far what is drained and rebalanced is.
    MoveWorks,
    /// The copies of metadata servers.
    Copies,
    /// How many copies of a metadata server there are to be.
    SetCopies {
        /// The metadata server.
        server: NodeId,
        /// How many.
        wanted: u8,
    },
    /// The caller, a metadata server, can keep copies of others. Said to every manager every few seconds.
    HostCopies {
        /// Where other copies reach it.
        addresses: Vec<SocketAddr>,
    },
    /// The log of the caller, a metadata server, can be copied from now on: it keeps the first copy.
    FoundCopies {
        /// What its directory is known by.
        uuid: [u8; 16],
    },
    /// A change of who keeps copies of a metadata server, by one who does, or was invited to.
    ChangeCopies {
        /// The metadata server.
        server: NodeId,
        /// The epoch of the membership that is to be changed.
        expected: Epoch,
        /// The change.
        change: Change<NodeId>,
    },
    /// The caller, the first of those who keep copies of a metadata server, is about to begin its service; answered as `MetaIdentity`.
    BeginService {
        /// The metadata server.
        server: NodeId,
        /// The epoch of the membership that says so.
        epoch: Epoch,
    },
    /// The service that was begun listens.
    ServeCopy {
        /// The metadata server.
        server: NodeId,
        /// The epoch at which it was begun.
        epoch: Epoch,
        /// For everybody, the preferred one first.
        addresses: Vec<SocketAddr>,
        /// For management alone.
        management: Vec<SocketAddr>,
    },
    /// A certificate of a metadata server of which the caller keeps a copy, as metadata server alone.
    CertifyServer {
        /// The metadata server.
        server: NodeId,
        /// The public key that it is for, as in `Join`.
        public_key: Vec<u8>,
    },
    /// Changes of the groups of chains, by a target of the caller, a storage server, that is in them. Those that cannot be made (any more) are left out: the map says which were.
    ChangeChains {
        /// The target that asks for them.
        by: TargetId,
        /// The changes, each of another chain.
        // LIMIT: [`ChainChange::AT_ONCE_MAX`].
        changes: Vec<ChainChange>,
    },
    /// Have a pool keep chains with so many copies, for directories whose files are to have as many.
    CopyPool {
        /// Its name.
        pool: String,
        /// How many copies, 2 or 3.
        copies: u8,
    },
    /// What the caller, a storage server, does with disks that others reach as well. Said to every manager every second.
    ShareDisks {
        /// Each of them.
        // LIMIT: [`SharedDisk::AT_SERVER_MAX`].
        words: Vec<DiskWord>,
    },
    /// The caller, a storage server, is about to mount a disk that others reach as well.
    UseDisk {
        /// Which.
        disk: DiskId,
    },
    /// Disks that several storage servers reach.
    SharedDisks,
    /// Have another server use a disk.
    MoveDisk {
        /// Which.
        disk: DiskId,
        /// The server.
        to: NodeId,
    },
    /// An administrator vouches for it that a server is switched off, and cannot write to any disk before it is started anew.
    ConfirmFenced {
        /// Which.
        node: NodeId,
    },
    /// Which chains lack copies, and how much that is.
    CopyWorks,
}

/// A change of the group that keeps a chain's chunks. Who may ask for it and when: `ashlar_replication::membership::plan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainChange {
    /// Which chain.
    pub chain: ChainId,
    /// The epoch of the group that is to be changed.
    pub expected: Epoch,
    /// The change.
    #[serde(with = "ChangeOfChain")]
    pub change: Change<TargetId>,
}

/// As [`Change`], under a name of its own: in the description of messages a name stands for one type.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Change<TargetId>", rename = "ChangeOfChain")]
enum ChangeOfChain {
    Admit(TargetId),
    Promote(TargetId),
    Remove(TargetId),
    Renew,
}

impl ChainChange {
    /// Most changes of one call.
    pub const AT_ONCE_MAX: usize = 1024;
}

/// Chains that go from a target that is drained, or within a pool that is rebalanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveWork {
    /// The target that is drained; `None`: the pool is rebalanced.
    pub target: Option<TargetId>,
    /// The pool, or that of the target.
    pub pool: PoolId,
    /// Since when, seconds since 1970.
    pub since_s: u64,
    /// Chains that have gone since then.
    pub chains_done: u64,
    /// What they had by the last count before they went, bytes.
    pub bytes_done: u64,
    /// Chains that are to go yet.
    pub chains_left: u64,
    /// What those have by the last count, bytes; `None` while a target has not told.
    pub bytes_left: Option<u64>,
    /// What is left is estimated. Else it is counted, at most half a minute ago.
    pub is_estimated: bool,
}

/// Chains of a pool that have fewer copies than they are to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyWork {
    /// The pool.
    pub pool: PoolId,
    /// How many.
    pub chains_short: u64,
    /// Those among them of which a target is being given all that it lacks.
    pub chains_under_way: u64,
    /// What the chains have by the last count, bytes, as often as copies are lacking. Who has had a copy before may lack less.
    pub bytes_lacking: u64,
    /// Chains that are not in that, as no target that has them tells: it is away, or has just started.
    pub chains_untold: u64,
    /// For how long those that had a copy are waited for, at the most, before others are given it, seconds; `None` where nobody is.
    pub waits_s: Option<u64>,
}

/// What a target has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Which.
    pub target: TargetId,
    /// Its size, bytes.
    pub bytes_total: u64,
    /// What of that is free.
    pub bytes_free: u64,
    /// What the chunks of each chain on it have by their sizes, bytes.
    // LIMIT: as chains of the file system.
    pub bytes_by_chain: Vec<(ChainId, u64)>,
}

impl ManagerRequest {
    /// Most events in one `Report`.
    // LIMIT: of what one call may bring.
    pub const REPORTS_MAX: usize = 64;
}

/// Whether a server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPresence {
    /// The node.
    pub node: NodeId,
    /// As what.
    pub role: Role,
    /// For how long nothing was heard of it, milliseconds; if nothing ever was, since the manager was started.
    pub silent_ms: u64,
    /// That is so long that it counts as away.
    pub is_away: bool,
}

/// What a manager needs besides its certificate. Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerPapers {
    /// The secrets of the file system, the authority's key among them, as managers keep them.
    pub secrets: Vec<u8>,
    /// Where the state of the file system is: JSON, see `docs/formats/cluster-state.md`.
    pub store: String,
}

// No secret in a log.
impl std::fmt::Debug for ManagerPapers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ManagerPapers(..)")
    }
}

/// The answer of the manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManagerReply {
    /// Done; nothing to tell.
    Done,
    /// The caller is a node now.
    Joined {
        /// The file system.
        cluster: ClusterId,
        /// Its id.
        node: NodeId,
        /// What it may be.
        roles: Roles,
        /// Its certificate, PEM.
        certificate: String,
        /// The certificate of the authority, PEM.
        authority: String,
        /// Where managers are.
        managers: Vec<SocketAddr>,
        /// For one that may be a manager.
        manager: Option<ManagerPapers>,
    },
    /// A certificate, PEM.
    Certificate(String),
    /// The map.
    Map(Box<ClusterMap>),
    /// The id of a new target.
    Target(TargetId),
    /// What a metadata server needs to know.
    MetaIdentity {
        /// Key of the directory name hash.
        name_hash_key: [u8; 16],
        /// Of the map that says which shards it has.
        epoch: Epoch,
    },
    /// A token, as people pass it on.
    Token(String),
    /// Keys for capabilities. Secret.
    Keys(KeySet),
    /// It cannot be done; why, and what to do, for a person.
    Refused(String),
    /// Whether the chain is the other target's now. If not, it is certain that it is not, and will not be by this move.
    MoveEnded {
        /// Whether it is.
        is_finished: bool,
    },
    /// What has happened.
    Events {
        /// The oldest first.
        events: Vec<Event>,
        /// Why some of them may be missing; empty when none are.
        trouble: String,
    },
    /// Shards are where they were to go, or why they are not, and will not be by the same question.
    Transferred(Result<(), String>),
    /// A fileset, and the epoch of the map that has it.
    Fileset(FilesetId, Epoch),
    /// Each server but the manager that answers.
    Presence(Vec<ServerPresence>),
    /// The start that the directory may begin.
    StartClaimed {
        /// Which.
        start: Start,
        /// It is an older copy, which was accepted.
        is_older: bool,
    },
    /// Somebody else serves the directory, or did a moment ago, in words. Asking again in a while may have another answer.
    StartTaken(String),
    /// The state of the file system cannot be changed for now: nobody can tell whether the directory may be served, in words.
    StartUnknown(String),
    /// Which of the starts that were said are none any more, each with why: those directories are not to be served.
    StartsHeld {
        /// What they are known by, and words for people.
        lost: Vec<([u8; 16], String)>,
    },
    /// The key of what is open. Secret.
    OpenKey(SecretKey),
    /// How shards are moved.
    ShardMoves {
        /// They stay where they are for now.
        is_paused: bool,
    },
    /// What is drained and rebalanced.
    MoveWorks(Vec<MoveWork>),
    /// Copies of metadata servers.
    Copies {
        /// Of the map to which this belongs.
        epoch: Epoch,
        /// All of them.
        notes: CopyNotes,
        /// Machines that can keep some, as far as the manager has heard of them.
        // LIMIT: as metadata servers.
        hosts: Vec<CopyHost>,
        /// Those that the caller is to keep copies of, and does not yet.
        invited: Vec<NodeId>,
    },
    /// Who keeps copies from now on.
    CopiesChanged(Membership<NodeId>),
    /// What is so with each disk that the caller has spoken of.
    DiskOrders(Vec<DiskOrder>),
    /// The caller may mount the disk, which is this one now.
    DiskGranted(SharedDisk),
    /// All disks that several storage servers reach.
    SharedDisks(Vec<SharedDisk>),
    /// Of each pool that has some, the chains that lack copies.
    CopyWorks(Vec<CopyWork>),
}
