//! The operations of the differential test. A step is plain data: it can be written to a trace and applied again.

use serde::{Deserialize, Serialize};

use super::path::BytePath;
use crate::sys::attr::{Follow, TimeArgument};
use crate::sys::lock::{LockOwner, Range};

/// An index into the table of open files each side keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot(pub u8);

/// How many files may be open at once per side.
pub const SLOTS: u8 = 6;

/// One operation and who does it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Index into the table of users; 0 is root.
    pub user: u8,
    /// Also compare which times of the touched objects changed. Off for some steps, because looking warms caches.
    pub watch: bool,
    /// What to do.
    pub op: Op,
}

/// An access-control-list entry: tag, permissions, id (`u32::MAX` where the tag takes none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclEntry {
    /// `ACL_USER_OBJ` and its like.
    pub tag: u16,
    /// `rwx` bits.
    pub perm: u16,
    /// User or group id.
    pub id: u32,
}

/// One operation. Offsets and lengths are in bytes; `fill` seeds the content written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are the arguments of the system call the variant is named after
pub enum Op {
    Open { slot: Slot, path: BytePath, flags: i32, mode: u32 },
    OpenTmpfile { slot: Slot, dir: BytePath, flags: i32, mode: u32 },
    LinkFd { slot: Slot, path: BytePath },
    Close { slot: Slot },
    Read { slot: Slot, len: u32 },
    Write { slot: Slot, fill: u64, len: u32 },
    Pread { slot: Slot, offset: i64, len: u32 },
    Pwrite { slot: Slot, offset: i64, fill: u64, len: u32 },
    Writev { slot: Slot, fill: u64, lens: Vec<u32> },
    Lseek { slot: Slot, offset: i64, whence: i32 },
    DataMap { slot: Slot },
    Ftruncate { slot: Slot, len: i64 },
    Truncate { path: BytePath, len: i64 },
    Fallocate { slot: Slot, mode: i32, offset: i64, len: i64 },
    CopyFileRange { from: Slot, from_offset: i64, to: Slot, to_offset: i64, len: u32 },
    Fsync { slot: Slot, data_only: bool },
    Fstat { slot: Slot },
    MapWrite { slot: Slot, page: i64, at: u32, fill: u64, len: u32 },
    MapRead { slot: Slot, page: i64, len: u32 },
    Mkdir { path: BytePath, mode: u32 },
    Rmdir { path: BytePath },
    Unlink { path: BytePath },
    Rename { from: BytePath, to: BytePath, flags: u32 },
    Link { from: BytePath, to: BytePath, flags: i32 },
    Symlink { target: BytePath, path: BytePath },
    Readlink { path: BytePath },
    Mknod { path: BytePath, mode: u32, device: u64 },
    Stat { path: BytePath, follow: Follow },
    Chmod { path: BytePath, mode: u32 },
    Fchmod { slot: Slot, mode: u32 },
    Chown { path: BytePath, uid: u32, gid: u32, follow: Follow },
    Fchown { slot: Slot, uid: u32, gid: u32 },
    Utimens { path: BytePath, atime: TimeArgument, mtime: TimeArgument, follow: Follow },
    Futimens { slot: Slot, atime: TimeArgument, mtime: TimeArgument },
    Setxattr { path: BytePath, name: BytePath, fill: u64, len: u32, flags: i32, follow: Follow },
    Getxattr { path: BytePath, name: BytePath, room: u32, follow: Follow },
    Listxattr { path: BytePath, follow: Follow },
    Removexattr { path: BytePath, name: BytePath, follow: Follow },
    SetAcl { path: BytePath, default: bool, entries: Vec<AclEntry> },
    Access { path: BytePath, mode: i32, flags: i32 },
    Umask { mask: u32 },
    Statfs { path: BytePath },
    Flock { slot: Slot, operation: i32 },
    Setlk { slot: Slot, owner: LockOwner, range: Range },
    Getlk { slot: Slot, owner: LockOwner, range: Range },
    SetlkAsChild { slot: Slot, range: Range },
    Readdir { path: BytePath },
    ReaddirWhileModifying { path: BytePath, entries: u16, room: u16, fill: u64 },
    Seekdir { path: BytePath, fill: u64 },
}

impl Op {
    /// The name of the operation.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Op::Open { .. } => "Open",
            Op::OpenTmpfile { .. } => "OpenTmpfile",
            Op::LinkFd { .. } => "LinkFd",
            Op::Close { .. } => "Close",
            Op::Read { .. } => "Read",
            Op::Write { .. } => "Write",
            Op::Pread { .. } => "Pread",
            Op::Pwrite { .. } => "Pwrite",
            Op::Writev { .. } => "Writev",
            Op::Lseek { .. } => "Lseek",
            Op::DataMap { .. } => "DataMap",
            Op::Ftruncate { .. } => "Ftruncate",
            Op::Truncate { .. } => "Truncate",
            Op::Fallocate { .. } => "Fallocate",
            Op::CopyFileRange { .. } => "CopyFileRange",
            Op::Fsync { .. } => "Fsync",
            Op::Fstat { .. } => "Fstat",
            Op::MapWrite { .. } => "MapWrite",
            Op::MapRead { .. } => "MapRead",
            Op::Mkdir { .. } => "Mkdir",
            Op::Rmdir { .. } => "Rmdir",
            Op::Unlink { .. } => "Unlink",
            Op::Rename { .. } => "Rename",
            Op::Link { .. } => "Link",
            Op::Symlink { .. } => "Symlink",
            Op::Readlink { .. } => "Readlink",
            Op::Mknod { .. } => "Mknod",
            Op::Stat { .. } => "Stat",
            Op::Chmod { .. } => "Chmod",
            Op::Fchmod { .. } => "Fchmod",
            Op::Chown { .. } => "Chown",
            Op::Fchown { .. } => "Fchown",
            Op::Utimens { .. } => "Utimens",
            Op::Futimens { .. } => "Futimens",
            Op::Setxattr { .. } => "Setxattr",
            Op::Getxattr { .. } => "Getxattr",
            Op::Listxattr { .. } => "Listxattr",
            Op::Removexattr { .. } => "Removexattr",
            Op::SetAcl { .. } => "SetAcl",
            Op::Access { .. } => "Access",
            Op::Umask { .. } => "Umask",
            Op::Statfs { .. } => "Statfs",
            Op::Flock { .. } => "Flock",
            Op::Setlk { .. } => "Setlk",
            Op::Getlk { .. } => "Getlk",
            Op::SetlkAsChild { .. } => "SetlkAsChild",
            Op::Readdir { .. } => "Readdir",
            Op::ReaddirWhileModifying { .. } => "ReaddirWhileModifying",
            Op::Seekdir { .. } => "Seekdir",
        }
    }

    /// The same with record locks of the open file description instead of the process: a process that has a file open on two mounts is two
    /// owners, which exclude each other.
    #[must_use]
    pub fn with_locks_of_descriptions(mut self) -> Self {
        if let Op::Setlk { owner, .. } | Op::Getlk { owner, .. } = &mut self {
            *owner = LockOwner::Description;
        }
        self
    }

    /// The paths whose existence and times are looked at before and after a watched step, without following links.
    #[must_use]
    pub fn touched(&self) -> Vec<BytePath> {
        match self {
            Op::Open { path, .. }
            | Op::LinkFd { path, .. }
            | Op::Truncate { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Rmdir { path }
            | Op::Unlink { path }
            | Op::Symlink { path, .. }
            | Op::Mknod { path, .. }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Utimens { path, .. }
            | Op::Setxattr { path, .. }
            | Op::Removexattr { path, .. }
            | Op::SetAcl { path, .. } => vec![path.parent(), path.clone()],
            Op::Rename { from, to, .. } | Op::Link { from, to, .. } => {
                vec![from.parent(), from.clone(), to.parent(), to.clone()]
            }
            _ => Vec::new(),
        }
    }

    /// The open files whose times are looked at before and after a watched step.
    #[must_use]
    pub fn touched_slots(&self) -> Vec<Slot> {
        match self {
            Op::Write { slot, .. }
            | Op::Pwrite { slot, .. }
            | Op::Writev { slot, .. }
            | Op::Pread { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::MapWrite { slot, .. }
            | Op::Fchmod { slot, .. }
            | Op::Fchown { slot, .. }
            | Op::Futimens { slot, .. }
            | Op::LinkFd { slot, .. } => vec![*slot],
            Op::CopyFileRange { from, to, .. } => vec![*from, *to],
            _ => Vec::new(),
        }
    }
}
