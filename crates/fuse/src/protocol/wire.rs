//! The messages of `include/uapi/linux/fuse.h`, protocol 7.45, byte for byte.
//!
//! Sizes are asserted at compile time, and deriving `IntoBytes` refuses a struct with implicit padding, so that no
//! uninitialised byte can reach the kernel. All integers are in native order, as the interface defines them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident [$size:literal] { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    InHeader [40] { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    OutHeader [16] { len: u32, error: i32, unique: u64 }
    AttrOut [104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    Attr [88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut [128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    SxTime [16] { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx [256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxIn [24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxOut [288] { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    Kstatfs [80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    FileLock [24] { start: u64, end: u64, kind: u32, pid: u32 }
    ForgetIn [8] { nlookup: u64 }
    ForgetOne [16] { nodeid: u64, nlookup: u64 }
    BatchForgetIn [8] { count: u32, dummy: u32 }
    GetattrIn [16] { getattr_flags: u32, dummy: u32, fh: u64 }
    SetattrIn [88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn [16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn [8] { mode: u32, umask: u32 }
    RenameIn [8] { newdir: u64 }
    Rename2In [16] { newdir: u64, flags: u32, padding: u32 }
    LinkIn [8] { oldnodeid: u64 }
    OpenIn [8] { flags: u32, open_flags: u32 }
    CreateIn [16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut [16] { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn [24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn [24] { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// Also the argument of READDIR and READDIRPLUS.
    ReadIn [40] { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn [40] { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut [8] { size: u32, padding: u32 }
    FsyncIn [16] { fh: u64, fsync_flags: u32, padding: u32 }
    /// The part of `SetxattrIn` that kernels send when `SETXATTR_EXT` was not granted.
    SetxattrInCompat [8] { size: u32, flags: u32 }
    SetxattrIn [16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn [8] { size: u32, padding: u32 }
    GetxattrOut [8] { size: u32, padding: u32 }
    LkIn [48] { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut [24] { lk: FileLock }
    AccessIn [8] { mask: u32, padding: u32 }
    /// What kernels before 5.17 send; the fields every kernel has.
    InitInCompat [16] { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitIn [64] { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    InterruptIn [8] { unique: u64 }
    BmapIn [16] { block: u64, blocksize: u32, padding: u32 }
    BmapOut [8] { block: u64 }
    IoctlIn [32] { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut [16] { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollIn [24] { fh: u64, kh: u64, flags: u32, events: u32 }
    PollOut [8] { revents: u32, padding: u32 }
    FallocateIn [32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn [24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut [8] { offset: u64 }
    CopyFileRangeIn [56] { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    CopyFileRangeOut [8] { bytes_copied: u64 }
    Dirent [24] { ino: u64, off: u64, namelen: u32, kind: u32 }
    ExtHeader [8] { size: u32, kind: u32 }
    Secctx [8] { size: u32, padding: u32 }
    NotifyPollWakeupOut [8] { kh: u64 }
    NotifyInvalInodeOut [24] { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut [16] { parent: u64, namelen: u32, flags: u32 }
    NotifyDeleteOut [24] { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStoreOut [24] { nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveOut [32] { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveIn [40] { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64 }
    NotifyPruneOut [16] { count: u32, padding: u32, spare: u64 }
    BackingMap [16] { fd: i32, flags: u32, padding: u64 }
    /// `fuse_uring_ent_in_out`: the trailer of a ring entry's header area.
    RingEntInOut [32] { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// `fuse_uring_cmd_req`: the start of the 80-byte command area of a submission.
    RingCmdReq [24] { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// `fuse_uring_req_header`: what a ring entry's header buffer holds.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct RingReqHeader {
    /// A `InHeader` from the kernel, a `OutHeader` back.
    pub(crate) in_out: [u8; 128],
    /// The fixed-size argument of the operation.
    pub(crate) op_in: [u8; 128],
    pub(crate) ent: RingEntInOut,
}
const _: () = assert!(size_of::<RingReqHeader>() == 288);

/// Valid bits of `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flag bits of single requests.
pub(crate) mod flag {
    pub(crate) const GETATTR_FH: u32 = 1 << 0;
    pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
    pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
    pub(crate) const LK_FLOCK: u32 = 1 << 0;
    pub(crate) const WRITE_CACHE: u32 = 1 << 0;
    pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
    pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
    pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
    pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
    pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
    pub(crate) const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
    pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;
}
