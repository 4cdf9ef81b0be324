//! The typed form of every request: what the kernel asks for, borrowed from the transport's buffer.

use super::wire;
use crate::id::{FileHandle, LockOwner, NodeId, Unique};
use crate::reply::Timestamp;
use zerocopy::FromBytes;

/// One parsed request. Names carry no NUL; the node it applies to is in the request, not here.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "the variants are the opcodes, documented there; their content has types of its own"
)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget(Forgets<'a>),
    Getattr {
        fh: Option<FileHandle>,
    },
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod(Mknod<'a>),
    Mkdir(Mkdir<'a>),
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    Link(Link<'a>),
    Open(Open),
    Read(Read),
    Write(Write<'a>),
    Statfs,
    Release(Release),
    Fsync(Fsync),
    Setxattr(SetXattr<'a>),
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush(Flush),
    Init,
    Opendir(Open),
    Readdir(ReadDir),
    Readdirplus(ReadDir),
    Releasedir(Release),
    Fsyncdir(Fsync),
    Getlk(LockRequest),
    Setlk(LockRequest),
    Setlkw(LockRequest),
    Access {
        mask: u32,
    },
    Create(Create<'a>),
    Tmpfile(Create<'a>),
    Interrupt {
        unique: Unique,
    },
    Bmap {
        block: u64,
        block_size: u32,
    },
    Destroy,
    Ioctl(Ioctl<'a>),
    Poll(Poll),
    NotifyReply(RetrieveReply<'a>),
    Fallocate(Fallocate),
    Lseek(Lseek),
    CopyFileRange(CopyFileRange),
    CopyFileRange64(CopyFileRange),
    Syncfs,
    Statx(StatxQuery),
    /// An operation this layer always answers with ENOSYS (DAX mappings).
    Unsupported,
}

/// Nodes whose lookup counts the kernel gives back, one or many in one request.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a> {
    pub(crate) one: Option<(NodeId, u64)>,
    /// Whole `ForgetOne` records.
    pub(crate) batch: &'a [u8],
}

impl<'a> Forgets<'a> {
    /// Each node with the number of lookups to subtract.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + use<'a> {
        let batch = self.batch.chunks_exact(size_of::<wire::ForgetOne>());
        self.one.into_iter().chain(
            batch
                .filter_map(|bytes| wire::ForgetOne::read_from_bytes(bytes).ok())
                .map(|one| (NodeId(one.nodeid), one.nlookup)),
        )
    }

    /// How many nodes it names.
    pub fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.batch.len() / size_of::<wire::ForgetOne>()
    }

    /// Whether it names none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the server.
    Now,
    /// This time.
    At(Timestamp),
}

/// SETATTR: chmod, chown, truncate, utimens in one; only what is `Some` changes.
#[derive(Clone, Copy, Debug)]
pub struct SetAttr {
    /// The open file, where the call came through one.
    pub fh: Option<FileHandle>,
    /// Permission bits (with the file type bits).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (only sent with the writeback cache).
    pub ctime: Option<Timestamp>,
    /// Lock owner of a truncating caller.
    pub lock_owner: Option<LockOwner>,
    /// Clear set-id bits as POSIX demands (`HANDLE_KILLPRIV_V2`).
    pub kill_suid_gid: bool,
}

/// MKNOD.
#[derive(Clone, Copy, Debug)]
pub struct Mknod<'a> {
    /// Name in the parent (the request's node).
    pub name: &'a [u8],
    /// File type and permission bits.
    pub mode: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// The caller's umask; to apply only if `DONT_MASK` was granted.
    pub umask: u32,
}

/// MKDIR.
#[derive(Clone, Copy, Debug)]
pub struct Mkdir<'a> {
    /// Name in the parent (the request's node).
    pub name: &'a [u8],
    /// Permission bits.
    pub mode: u32,
    /// The caller's umask; to apply only if `DONT_MASK` was granted.
    pub umask: u32,
}

/// RENAME and RENAME2.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// Name in the old parent (the request's node).
    pub name: &'a [u8],
    /// Directory to move to.
    pub new_parent: NodeId,
    /// Name there.
    pub new_name: &'a [u8],
    /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT` of renameat2(2).
    pub flags: u32,
}

/// LINK; the request's node is the directory.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The node that gets another name.
    pub node: NodeId,
    /// The name.
    pub new_name: &'a [u8],
}

/// OPEN and OPENDIR.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Flags of open(2), without `O_CREAT`, `O_EXCL`, `O_NOCTTY`.
    pub flags: u32,
    /// Clear set-id bits if this open truncates (`HANDLE_KILLPRIV_V2`).
    pub kill_suid_gid: bool,
}

/// READ.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The open file.
    pub fh: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted; the reply buffer holds no more. Fewer means end of file.
    pub size: u32,
    /// Set where mandatory locks are checked.
    pub lock_owner: Option<LockOwner>,
    /// Flags of the open file.
    pub flags: u32,
}

/// WRITE.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The open file.
    pub fh: FileHandle,
    /// First byte.
    pub offset: u64,
    /// The data, in the transport's buffer (page-aligned on both transports).
    pub data: &'a [u8],
    /// Set where mandatory locks are checked.
    pub lock_owner: Option<LockOwner>,
    /// Flags of the open file.
    pub flags: u32,
    /// Written back from the page cache: uid, gid, pid and handle may not be the writer's.
    pub from_cache: bool,
    /// Clear set-id bits (`HANDLE_KILLPRIV_V2`).
    pub kill_suid_gid: bool,
}

/// RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The handle that ends.
    pub fh: FileHandle,
    /// Flags of the open file.
    pub flags: u32,
    /// Flush first.
    pub flush: bool,
    /// Drop this owner's flock(2) locks.
    pub flock_unlock: Option<LockOwner>,
}

/// FSYNC and FSYNCDIR.
#[derive(Clone, Copy, Debug)]
pub struct Fsync {
    /// The open file.
    pub fh: FileHandle,
    /// fdatasync(2): attributes not needed to read the data may stay volatile.
    pub datasync: bool,
}

/// SETXATTR.
#[derive(Clone, Copy, Debug)]
pub struct SetXattr<'a> {
    /// Attribute name.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
    /// `XATTR_CREATE` or `XATTR_REPLACE`.
    pub flags: u32,
    /// Clear the set-group-id bit while setting an ACL.
    pub kill_sgid: bool,
}

/// FLUSH: one close(2) of a file that may be open elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Flush {
    /// The open file.
    pub fh: FileHandle,
    /// Whose POSIX locks end.
    pub lock_owner: LockOwner,
}

/// READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug)]
pub struct ReadDir {
    /// The open directory.
    pub fh: FileHandle,
    /// 0, or the `next_offset` of the last entry the kernel took.
    pub offset: u64,
    /// Bytes of the reply; the reply buffer holds no more.
    pub size: u32,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: unlock, or "nothing in the way" in a GETLK reply.
    Unlock,
}

/// A byte range and the lock on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` as u64 (or more) means to the end of file.
    pub end: u64,
    /// The kind of lock.
    pub kind: LockKind,
    /// Process id of the holder, as seen from the mount's namespace.
    pub pid: u32,
}

impl FileLock {
    pub(crate) fn to_wire(self) -> wire::LkOut {
        let kind = match self.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        wire::LkOut {
            lk: wire::FileLock { start: self.start, end: self.end, kind: kind as u32, pid: self.pid },
        }
    }
}

/// GETLK, SETLK, SETLKW.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// The open file.
    pub fh: FileHandle,
    /// Who asks.
    pub owner: LockOwner,
    /// What for.
    pub lock: FileLock,
    /// flock(2) rather than fcntl(2): the range is the whole file and the owner is the open file.
    pub is_flock: bool,
}

/// CREATE and TMPFILE.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// Name in the parent (the request's node); meaningless for TMPFILE.
    pub name: &'a [u8],
    /// File type and permission bits.
    pub mode: u32,
    /// The caller's umask; to apply only if `DONT_MASK` was granted.
    pub umask: u32,
    /// Flags of open(2).
    pub flags: u32,
    /// Clear set-id bits if this open truncates (`HANDLE_KILLPRIV_V2`).
    pub kill_suid_gid: bool,
}

/// IOCTL (restricted form: the kernel copied the data the command number declares).
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// The open file.
    pub fh: FileHandle,
    /// `FUSE_IOCTL_*` bits.
    pub flags: u32,
    /// Command number.
    pub cmd: u32,
    /// The caller's argument (a pointer of its own, not to be followed).
    pub arg: u64,
    /// Data from the caller.
    pub input: &'a [u8],
    /// Bytes the caller has room for.
    pub output_len: u32,
}

/// POLL.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    /// The open file.
    pub fh: FileHandle,
    /// To pass to `Notifier::poll_wakeup` when the state changes, if asked for.
    pub wakeup: Option<u64>,
    /// Events asked for, `POLL*`.
    pub events: u32,
}

/// The answer to `Notifier::retrieve`.
#[derive(Clone, Copy, Debug)]
pub struct RetrieveReply<'a> {
    /// What `Notifier::retrieve` was called with.
    pub tag: u32,
    /// First byte.
    pub offset: u64,
    /// What the page cache held there.
    pub data: &'a [u8],
}

/// FALLOCATE.
#[derive(Clone, Copy, Debug)]
pub struct Fallocate {
    /// The open file.
    pub fh: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `FALLOC_FL_*`.
    pub mode: u32,
}

/// LSEEK with `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Copy, Debug)]
pub struct Lseek {
    /// The open file.
    pub fh: FileHandle,
    /// Where to start.
    pub offset: u64,
    /// `SEEK_DATA` or `SEEK_HOLE`.
    pub whence: u32,
}

/// COPY_FILE_RANGE; the source is the request's node.
#[derive(Clone, Copy, Debug)]
pub struct CopyFileRange {
    /// Source handle.
    pub fh_in: FileHandle,
    /// First byte read.
    pub offset_in: u64,
    /// Destination node.
    pub node_out: NodeId,
    /// Destination handle.
    pub fh_out: FileHandle,
    /// First byte written.
    pub offset_out: u64,
    /// Bytes to copy; already limited to what the reply can express.
    pub length: u64,
    /// Flags of copy_file_range(2).
    pub flags: u64,
}

/// STATX.
#[derive(Clone, Copy, Debug)]
pub struct StatxQuery {
    /// The open file, where the call came through one.
    pub fh: Option<FileHandle>,
    /// `AT_STATX_*`.
    pub flags: u32,
    /// `STATX_*` fields wanted.
    pub mask: u32,
}
