//! Calls to the metadata service.

use crate::{
    Attr, DescriptionId, Durability, FileLayout, FileType, FilesetId, InodeId, LayoutPolicy, LockOwner, Name,
    NameHash, NodeId, OpenProof, SessionId, StatFs, Timespec,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a session may cache about one inode. Bits combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseSet(pub u8);

/// Names of the lease bits.
pub type Lease = LeaseSet;

impl LeaseSet {
    /// Attributes.
    pub const ATTR: LeaseSet = LeaseSet(1);
    /// Entries of a directory, the absent ones included.
    pub const ENTRIES: LeaseSet = LeaseSet(2);
    /// Content of a file.
    pub const READ: LeaseSet = LeaseSet(4);
    /// Content, size and times of a file: the sole writer, whose own knowledge of size is the authority.
    pub const WRITE: LeaseSet = LeaseSet(8);
    /// Content of a file past every cache, beside other sessions that do the same: size and times are what all of them report.
    pub const SHARE: LeaseSet = LeaseSet(16);
    /// READ and WRITE: what is given back with the kernel's pages of a file.
    pub const PAGES: LeaseSet = LeaseSet::READ.with(LeaseSet::WRITE);
    /// Everything that lets a session read or write.
    pub const CONTENT: LeaseSet = LeaseSet::PAGES.with(LeaseSet::SHARE);
    /// WRITE and SHARE: what lets a session write, and makes it know of size and times what nobody else does.
    pub const WRITING: LeaseSet = LeaseSet::WRITE.with(LeaseSet::SHARE);
    /// Nothing.
    pub const NONE: LeaseSet = LeaseSet(0);

    /// Whether any bit is in both.
    pub fn meets(self, other: LeaseSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all bits of `other` are held.
    pub fn has(self, other: LeaseSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// All bits of both.
    #[must_use]
    pub const fn with(self, other: LeaseSet) -> LeaseSet {
        LeaseSet(self.0 | other.0)
    }

    /// The bits of `self` that are not in `other`.
    #[must_use]
    pub fn without(self, other: LeaseSet) -> LeaseSet {
        LeaseSet(self.0 & !other.0)
    }

    /// The bits in both.
    #[must_use]
    pub fn and(self, other: LeaseSet) -> LeaseSet {
        LeaseSet(self.0 & other.0)
    }
}

/// Sent by the metadata service to a session: give back, then acknowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// Names the recall in its acknowledgement.
    pub id: u64,
    /// The inode.
    pub inode: InodeId,
    /// What must be given back.
    pub leases: LeaseSet,
    /// Whether a WRITE lease may be kept once size and times have been reported (somebody wants to stat).
    pub flush_only: bool,
}

/// How `setattr` sets a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeSet {
    /// To the server's current time.
    Now,
    /// To this time.
    At(Timespec),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeSet>,
    /// Last change of the content.
    pub mtime: Option<TimeSet>,
    /// Whether set-id bits are to be cleared as by a write, or, without a handle, as by `chown(path, -1, -1)`.
    pub kill_set_id: bool,
    /// Whether the caller holds the file open for writing (no permission check for a size change or for what a write clears).
    pub has_handle: bool,
}

/// Flags of `renameat2(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameFlags {
    /// Replace what is there.
    #[default]
    Replace,
    /// Fail with EEXIST if the target exists.
    NoReplace,
    /// Exchange the two.
    Exchange,
    /// Replace what is there, and leave a whiteout of overlayfs under the old name.
    Whiteout,
    /// The same, but fail with EEXIST if the target exists.
    WhiteoutNoReplace,
}

impl RenameFlags {
    /// Whether a target that exists is left alone.
    pub fn spares_target(self) -> bool {
        matches!(self, RenameFlags::NoReplace | RenameFlags::WhiteoutNoReplace)
    }

    /// Whether the old name becomes that of a whiteout.
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameFlags::Whiteout | RenameFlags::WhiteoutNoReplace)
    }
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// Release.
    Unlock,
}

/// An inclusive byte range; `end` of `u64::MAX >> 1` means to the end of the file, wherever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

/// A lock call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    /// The file.
    pub inode: InodeId,
    /// Who locks, inside the session.
    pub owner: LockOwner,
    /// The process, for F_GETLK.
    pub pid: u32,
    /// What.
    pub kind: LockKind,
    /// Where.
    pub range: LockRange,
    /// Whether it is a `flock(2)` lock (they do not meet `fcntl(2)` locks).
    pub is_flock: bool,
}

/// A call to the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // The fields are those of the verb's function in `namespace`, under the same names.
pub enum MetaRequest<'a> {
    /// One step of path resolution.
    Lookup {
        parent: InodeId,
        #[serde(borrow)]
        name: Name<'a>,
    },
    /// Attributes.
    Getattr { inode: InodeId },
    /// Change attributes.
    Setattr { inode: InodeId, changes: SetAttr },
    /// Make (or find) a regular file and open it.
    Create {
        parent: InodeId,
        name: Name<'a>,
        mode: u32,
        umask: u32,
        exclusive: bool,
        read: bool,
        write: bool,
        truncate: bool,
        handle: DescriptionId,
    },
    /// Make a directory.
    Mkdir { parent: InodeId, name: Name<'a>, mode: u32, umask: u32 },
    /// Make a node.
    Mknod { parent: InodeId, name: Name<'a>, mode: u32, umask: u32, rdev: u32 },
    /// Make a symbolic link.
    Symlink {
        parent: InodeId,
        name: Name<'a>,
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
    },
    /// Add a name.
    Link { inode: InodeId, parent: InodeId, name: Name<'a> },
    /// Remove a name.
    Unlink { parent: InodeId, name: Name<'a> },
    /// Remove an empty directory.
    Rmdir { parent: InodeId, name: Name<'a> },
    /// Move a name.
    Rename {
        from_parent: InodeId,
        from_name: Name<'a>,
        to_parent: InodeId,
        to_name: Name<'a>,
        flags: RenameFlags,
    },
    /// Make an unnamed file and open it.
    Tmpfile { parent: InodeId, mode: u32, umask: u32, handle: DescriptionId },
    /// Open a file, as the description `handle`. Opening it once more under the same is the same.
    Open { inode: InodeId, read: bool, write: bool, truncate: bool, handle: DescriptionId },
    /// Close of an open file description.
    Release { inode: InodeId, handle: DescriptionId },
    /// Target of a symbolic link.
    Readlink { inode: InodeId },
    /// Entries behind `after` (a cookie, 0 to begin), up to about `bytes_max` of names and attributes.
    Readdir { directory: InodeId, after: u64, bytes_max: u32, with_attributes: bool },
    /// Permission check by real ids (`access(2)`), mask of 4 read, 2 write, 1 execute.
    Access { inode: InodeId, mask: u32 },
    /// One extended attribute.
    Getxattr {
        inode: InodeId,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Names of extended attributes, each with a NUL behind it.
    Listxattr { inode: InodeId },
    /// Set an extended attribute.
    Setxattr {
        inode: InodeId,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
        create: bool,
        replace: bool,
        kill_setgid: bool,
    },
    /// Remove an extended attribute.
    Removexattr {
        inode: InodeId,
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Space and inodes.
    Statfs,
    /// Content of an inline file.
    ReadInline { inode: InodeId, offset: u64, len: u32 },
    /// Write into an inline file; answers `NeedsChunks` when it would outgrow the threshold.
    WriteInline {
        inode: InodeId,
        offset: u64,
        #[serde(with = "serde_bytes")]
        data: &'a [u8],
        append: bool,
        kill_set_id: bool,
        /// Pages of a mapping, which take no privileges away.
        is_writeback: bool,
    },
    /// `fallocate(2)` on an inline file: `mode` as in that call.
    AllocateInline { inode: InodeId, mode: u32, offset: u64, len: u64 },
    /// Ask for a layout for a file that outgrows its inode. Where it has no bytes it is bound at once.
    ProposeLayout { inode: InodeId },
    /// Bind the layout after the old bytes have been written to the chunks. If they were not made durable there, and somebody may have
    /// been promised that they are, the answer is `EAGAIN`.
    SetLayout { inode: InodeId, layout: FileLayout, blocks: u64, is_synced: bool },
    /// Become reader (READ) or sole writer (WRITE) of a file; a writer for the kernel's pages of a mapping takes no privileges away.
    AcquireData { inode: InodeId, write: bool, is_writeback: bool },
    /// Report what a writer knows; `done` gives the WRITE lease back.
    CommitWrite {
        inode: InodeId,
        generation: Option<u32>,
        size_at_least: u64,
        blocks_delta: i64,
        mtime: Option<Timespec>,
        atime: Option<Timespec>,
        kill_set_id: bool,
        keeps_capability: bool,
        done: bool,
    },
    /// Make every acknowledged change of metadata durable.
    Sync(SyncScope),
    /// A lock without waiting, or an unlock.
    Lock { request: LockRequest, through: DescriptionId },
    /// A lock with waiting: answered `LockQueued`, and later announced to the session under this ticket.
    LockWait { request: LockRequest, through: DescriptionId, ticket: u64 },
    /// Give up waiting.
    LockCancel { inode: InodeId, ticket: u64 },
    /// Which lock would prevent this one.
    LockTest(LockRequest),
    /// Drop the locks of an owner on an inode: all (close of a descriptor), or those taken through one description (its end).
    LockRelease { inode: InodeId, owner: LockOwner, through: Option<DescriptionId>, is_flock: bool },
    /// Layout settings of a directory, or layout of a file.
    LayoutShow { inode: InodeId },
    /// Change layout settings of a directory.
    LayoutSet { inode: InodeId, policy: LayoutPolicy },
    /// A recall has been carried out.
    RecallDone { inode: InodeId, id: u64 },
    /// A proposed layout will not be bound: writing the old bytes there failed.
    WithdrawLayout { inode: InodeId, generation: u32 },
    /// A target had no space: answered when chunks of removed files have made some, or none can be made, or after a bounded time.
    MakeRoom,
    /// What a change of attributes makes of the last attributes of an inode that is gone. Nothing is stored.
    SetattrRemoved { last: Attr, changes: SetAttr },
    /// What the session has of the shards of `server`, told to that server, which has been started anew and does not know; `incarnation`: which start it
    /// is told for, 0 for the newest that the session knows of. Whatever it has not told when it says that this was all is not held.
    Reclaim { server: NodeId, incarnation: u64, part: Reclaim },
    /// Become a writer past every cache: the sole one (WRITE), or where others write the file, too, one beside them (SHARE).
    AcquireShared { inode: InodeId },
    /// Take an inode out of the fileset `from` into another one; of a directory, whose `slices` slices the caller has taken before: `EAGAIN` if it has another
    /// number of them. Only for administrators.
    SetFileset { inode: InodeId, from: FilesetId, fileset: FilesetId, slices: u16 },
    /// The slices of a directory. Who calls with a name in a directory that is split is told `EREMOTE`, and to ask this: calls with a name are for the slice
    /// that has its hash.
    Slices { directory: InodeId },
    /// Split a directory into so many slices, or, `of_new`, have directories that are made in it from now on made with so many (0: not split).
    Split { directory: InodeId, slices: u16, of_new: bool },
    /// Closes of open file descriptions, all of inodes of one shard, and when each was read.
    Closes { of: Vec<ToldClose> },
}

/// The close of an open file description that is told with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldClose {
    /// Of which inode.
    pub inode: InodeId,
    /// Which description.
    pub handle: DescriptionId,
    /// When the inode was read last; noted unless somebody has changed it since.
    pub atime: Option<Timespec>,
}

/// Which metadata server a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The one that has this inode.
    Home(InodeId),
    /// This one.
    Server(NodeId),
    /// All of them.
    All,
    /// Any.
    Any,
}

impl MetaRequest<'_> {
    /// Whether it changes anything that others can see, or is about to. Every request is named, so that a new one is thought about.
    pub fn is_change(&self) -> bool {
        match self {
            MetaRequest::Create { .. }
            | MetaRequest::Mkdir { .. }
            | MetaRequest::Mknod { .. }
            | MetaRequest::Symlink { .. }
            | MetaRequest::Link { .. }
            | MetaRequest::Unlink { .. }
            | MetaRequest::Rmdir { .. }
            | MetaRequest::Rename { .. }
            | MetaRequest::Tmpfile { .. }
            | MetaRequest::Setattr { .. }
            | MetaRequest::SetattrRemoved { .. }
            | MetaRequest::Setxattr { .. }
            | MetaRequest::Removexattr { .. }
            | MetaRequest::WriteInline { .. }
            | MetaRequest::AllocateInline { .. }
            | MetaRequest::ProposeLayout { .. }
            | MetaRequest::SetLayout { .. }
            | MetaRequest::LayoutSet { .. }
            | MetaRequest::AcquireShared { .. }
            | MetaRequest::SetFileset { .. }
            | MetaRequest::Split { .. } => true,
            MetaRequest::Open { write, truncate, .. } => *write || *truncate,
            MetaRequest::AcquireData { write, .. } => *write,
            // Without these it tells when a file was read, or gives a lease back.
            MetaRequest::CommitWrite { size_at_least, blocks_delta, mtime, .. } => {
                *size_at_least > 0 || *blocks_delta != 0 || mtime.is_some()
            }
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
            | MetaRequest::Sync(_)
            | MetaRequest::Lock { .. }
            | MetaRequest::LockWait { .. }
            | MetaRequest::LockCancel { .. }
            | MetaRequest::LockTest(_)
            | MetaRequest::LockRelease { .. }
            | MetaRequest::LayoutShow { .. }
            | MetaRequest::RecallDone { .. }
            | MetaRequest::WithdrawLayout { .. }
            | MetaRequest::MakeRoom
            | MetaRequest::Reclaim { .. }
            | MetaRequest::Slices { .. }
            | MetaRequest::Closes { .. } => false,
        }
    }

    /// Which server it is for. Of several inodes it names, the one whose entries are changed.
    pub fn addressee(&self) -> Addressee {
        match self {
            MetaRequest::Lookup { parent, .. }
            | MetaRequest::Create { parent, .. }
            | MetaRequest::Mkdir { parent, .. }
            | MetaRequest::Mknod { parent, .. }
            | MetaRequest::Symlink { parent, .. }
            | MetaRequest::Link { parent, .. }
            | MetaRequest::Unlink { parent, .. }
            | MetaRequest::Rmdir { parent, .. }
            | MetaRequest::Tmpfile { parent, .. }
            | MetaRequest::Rename { from_parent: parent, .. } => Addressee::Home(*parent),
            MetaRequest::Getattr { inode }
            | MetaRequest::Setattr { inode, .. }
            | MetaRequest::Open { inode, .. }
            | MetaRequest::Release { inode, .. }
            | MetaRequest::Readlink { inode }
            | MetaRequest::Readdir { directory: inode, .. }
            | MetaRequest::Access { inode, .. }
            | MetaRequest::Getxattr { inode, .. }
            | MetaRequest::Listxattr { inode }
            | MetaRequest::Setxattr { inode, .. }
            | MetaRequest::Removexattr { inode, .. }
            | MetaRequest::ReadInline { inode, .. }
            | MetaRequest::WriteInline { inode, .. }
            | MetaRequest::AllocateInline { inode, .. }
            | MetaRequest::ProposeLayout { inode }
            | MetaRequest::SetLayout { inode, .. }
            | MetaRequest::WithdrawLayout { inode, .. }
            | MetaRequest::AcquireData { inode, .. }
            | MetaRequest::AcquireShared { inode }
            | MetaRequest::CommitWrite { inode, .. }
            | MetaRequest::Lock { request: LockRequest { inode, .. }, .. }
            | MetaRequest::LockWait { request: LockRequest { inode, .. }, .. }
            | MetaRequest::LockCancel { inode, .. }
            | MetaRequest::LockTest(LockRequest { inode, .. })
            | MetaRequest::LockRelease { inode, .. }
            | MetaRequest::LayoutShow { inode }
            | MetaRequest::LayoutSet { inode, .. }
            | MetaRequest::SetFileset { inode, .. }
            | MetaRequest::RecallDone { inode, .. }
            | MetaRequest::Slices { directory: inode }
            | MetaRequest::Split { directory: inode, .. } => Addressee::Home(*inode),
            MetaRequest::Sync(SyncScope::File { inode, .. }) => Addressee::Home(*inode),
            MetaRequest::Reclaim { server, .. } => Addressee::Server(*server),
            MetaRequest::Statfs
            | MetaRequest::Sync(SyncScope::Names | SyncScope::All)
            | MetaRequest::MakeRoom => Addressee::All,
            MetaRequest::Closes { of } => {
                of.first().map_or(Addressee::Any, |close| Addressee::Home(close.inode))
            }
            MetaRequest::SetattrRemoved { .. } => Addressee::Any,
        }
    }

    /// The directories in which it names something, with the names. Where one is split, the call is for a slice of it.
    pub fn places(&mut self) -> [Option<(&mut InodeId, Name<'_>)>; 2] {
        match self {
            MetaRequest::Lookup { parent, name }
            | MetaRequest::Create { parent, name, .. }
            | MetaRequest::Mkdir { parent, name, .. }
            | MetaRequest::Mknod { parent, name, .. }
            | MetaRequest::Symlink { parent, name, .. }
            | MetaRequest::Link { parent, name, .. }
            | MetaRequest::Unlink { parent, name }
            | MetaRequest::Rmdir { parent, name } => [Some((parent, *name)), None],
            MetaRequest::Rename { from_parent, from_name, to_parent, to_name, .. } => {
                [Some((from_parent, *from_name)), Some((to_parent, *to_name))]
            }
            _ => [None, None],
        }
    }
}

/// A directory that is split, as whoever calls with names in it has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitDirectory {
    /// Its slices, in the order of the hashes they have. None: it is not split.
    pub slices: Vec<InodeId>,
    /// How many slices directories get that are made in it; 0: they are not split.
    pub of_new: u16,
    /// While it is being split: names whose hashes are below are in the slices, the others still in the directory itself. It grows only, and what is told
    /// survives a power cut. [`NameHash::END`] when all are in the slices.
    pub border: u64,
    /// The key of the name hash.
    pub hash_key: [u8; 16],
}

impl SplitDirectory {
    /// The slice that has names with this hash; `None` where the directory itself does.
    pub fn slice_of(&self, hash: NameHash) -> Option<InodeId> {
        (hash.0 < self.border).then(|| self.slices.get(hash.slice(self.slices.len())).copied()).flatten()
    }

    /// Whether all names are in the slices.
    pub fn is_whole(&self) -> bool {
        self.border >= NameHash::END.0
    }
}

/// A part of what a session has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reclaim {
    /// Open files; answered by as many [`Reclaimed`].
    Files(Vec<ReclaimedFile>),
    /// Locks, each with the description it was taken through.
    Locks(Vec<(LockRequest, DescriptionId)>),
    /// That was all, and no attributes or names from before are cached any more.
    Done,
    /// Nothing is told: asks, before anything else, whether what the server had answered to the session before may be lost; answered by [`MetaReply::LostSince`].
    Losses,
}

/// What a session has of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimedFile {
    /// Which.
    pub inode: InodeId,
    /// Its open descriptions, and whether each is for writing.
    pub handles: Vec<(DescriptionId, bool)>,
    /// READ and WRITE as held.
    pub leases: LeaseSet,
    /// That a server has let the machine open it, for as much as is told here.
    pub proof: Option<OpenProof>,
}

/// What the service says to [`ReclaimedFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// What of the leases is held from now on.
    pub leases: LeaseSet,
    /// Length in bytes as metadata knows it.
    pub size: u64,
    /// Generation of its chunks; `None` while its content is with the inode.
    pub generation: Option<u32>,
}

/// Whose content a sync of metadata promises to be durable, so that what is with an inode is not moved to chunks carelessly afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncScope {
    /// Nobody's: only names and attributes.
    Names,
    /// That of one file. The caller has synced its chunks of this generation (`None`: it has none); if it has others, the answer is
    /// `EAGAIN` and nothing is promised.
    #[allow(missing_docs)]
    File { inode: InodeId, generation: Option<u32> },
    /// That of every file.
    All,
}

/// An entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Where to continue behind this entry.
    pub cookie: u64,
    /// What it points to.
    pub inode: InodeId,
    /// Its type.
    pub file_type: FileType,
    /// Its name.
    pub name: Bytes,
    /// Its attributes, if they were asked for.
    pub attr: Option<Attr>,
    /// What may be cached of the attributes.
    pub leases: LeaseSet,
}

/// Where a file's content is, told to somebody who may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataGrant {
    /// With the inode. The content comes along when it is small.
    Inline {
        /// All of it, or `None` when it must be read with `ReadInline`.
        body: Option<Bytes>,
    },
    /// In chunks.
    Chunks {
        /// Where.
        layout: FileLayout,
    },
}

/// A file was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenReply {
    /// Its attributes.
    pub attr: Attr,
    /// Where its content is.
    pub data: DataGrant,
    /// Bytes up to which a file of its settings lives with its inode: a longer write need not be tried there.
    pub inline_bytes: u64,
    /// READ, WRITE or nothing on the content; ATTR on the attributes; for `Create`, ENTRIES on the parent.
    pub leases: LeaseSet,
    /// The newest recall when `leases` was granted: a later one may overtake this reply, and then nothing is held.
    pub recall_mark: u64,
    /// Whether the file is shared with a writer in another session: the kernel must not cache its pages for this handle.
    pub is_shared: bool,
    /// Whether the session has held READ since it last had the file open, so that cached pages are still good.
    pub kept_read: bool,
    /// How durable an acknowledged write is to be.
    pub durability: Durability,
    /// What the client shows a server that does not know of the open; nothing inside one process. It travels beside this, as an answer that is kept for a call which is sent
    /// again has none in the log.
    #[serde(skip)]
    pub proof: Option<OpenProof>,
}

/// The answer of the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // Named as in the requests.
pub enum MetaReply {
    /// Done; nothing to tell.
    Done,
    /// Attributes, with what may be cached: ATTR, and ENTRIES on the parent for calls with a name.
    Attr { attr: Attr, leases: LeaseSet },
    /// A name was removed or moved, or a description closed; the last attributes of the inode that is gone with it, if one is.
    /// ENTRIES says that names may stay cached in directories that got one: the session has a lease on them.
    Removed { last: Option<Attr>, leases: LeaseSet },
    /// There is no such entry; ENTRIES on the parent says whether that may be cached.
    NoEntry { leases: LeaseSet },
    /// Opened; `created` tells whether a new file was made.
    Opened { open: OpenReply, created: bool },
    /// A data lease and the state it covers; `recall_mark` as in [`OpenReply`].
    Granted { attr: Attr, data: DataGrant, leases: LeaseSet, recall_mark: u64 },
    /// Bytes: link target, xattr, list, inline content.
    Bytes(Bytes),
    /// A listing; `is_end` when nothing follows.
    Entries { entries: Vec<DirEntry>, is_end: bool },
    /// Written inline at `offset`.
    WrittenInline { attr: Attr, offset: u64 },
    /// The file must get chunks first.
    NeedsChunks,
    /// A layout to write the old bytes to; there are none if it is bound.
    Layout { layout: FileLayout, is_bound: bool },
    /// Settings of a directory or file.
    Policy { policy: LayoutPolicy, layout: Option<FileLayout> },
    /// Space and inodes.
    StatFs(StatFs),
    /// Waiting; the session is told when the lock is granted.
    LockQueued,
    /// The lock that is in the way, or none.
    LockConflict { conflict: Option<(LockKind, LockRange, u32)> },
    /// There is such an entry, of something that another server has, to be asked there; `leases`: ENTRIES on the parent.
    Elsewhere { inode: InodeId, leases: LeaseSet },
    /// What became of each file: `ESTALE` for one that is gone, or that was not proven to be open.
    Reclaimed { files: Vec<Result<Reclaimed, crate::Errno>> },
    /// How a directory is split.
    Slices(SplitDirectory),
    /// Closed; the last attributes of inodes that are gone with that.
    Closed { gone: Vec<Attr> },
    /// The number of the last start of the server after which something that was answered before, and not synced, may have been lost; 0: none.
    LostSince(u64),
}

/// Sent to a session without being asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEvent {
    /// Give leases back.
    Recall(Recall),
    /// A waiting lock was granted (`true`) or ended with an error.
    LockDone {
        /// The ticket it was asked under.
        ticket: u64,
        /// Whether it was granted; else the errno.
        outcome: Result<(), crate::Errno>,
    },
    /// The session was ended by the service; it must open a new one.
    Evicted {
        /// The session.
        session: SessionId,
    },
    /// Nothing that was told is good any more, and no lease is held: the service has not been reached for as long as leases are good without it, or
    /// the policy of the node has changed. In the first case it is made on the session's side.
    Expired,
    /// The service was started anew: the session is to tell what it has ([`MetaRequest::Reclaim`]). Made by whoever finds that out on the session's
    /// side; no service sends it.
    Reclaim {
        /// Which server.
        server: NodeId,
        /// Which start of the service.
        incarnation: u64,
    },
}
