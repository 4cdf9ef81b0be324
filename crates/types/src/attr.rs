//! What `stat(2)` and `statfs(2)` tell.

use crate::{FilesetId, InodeId, Timespec};
use serde::{Deserialize, Serialize};

/// The type bits of a mode (`inode(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileType {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Unix domain socket.
    Socket = 12,
}

/// Mask of the type bits in a mode.
pub const MODE_TYPE_MASK: u32 = 0o170000;
/// Mask of permission, set-id and sticky bits in a mode.
pub const MODE_PERMISSION_MASK: u32 = 0o7777;
/// Set-user-id bit.
pub const MODE_SETUID: u32 = 0o4000;
/// Set-group-id bit.
pub const MODE_SETGID: u32 = 0o2000;
/// Sticky bit.
pub const MODE_STICKY: u32 = 0o1000;

impl FileType {
    /// The type in the high bits of `mode`; zero type bits mean a regular file, as in `mknod(2)`.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match (mode & MODE_TYPE_MASK) >> 12 {
            1 => FileType::Fifo,
            2 => FileType::CharDevice,
            4 => FileType::Directory,
            6 => FileType::BlockDevice,
            0 | 8 => FileType::Regular,
            10 => FileType::Symlink,
            12 => FileType::Socket,
            _ => return None,
        })
    }

    /// The type bits of a mode.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// The attributes of an inode, as `statx(2)` reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode.
    pub inode: InodeId,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node (Linux `makedev` encoding).
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// The fileset it is accounted to.
    pub fileset: FilesetId,
}

impl Attr {
    /// The type bits; an inode on disk always has a valid type.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }
}

/// Space and inode figures of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Total bytes.
    pub bytes_total: u64,
    /// Free bytes, including what is reserved for the administrator.
    pub bytes_free: u64,
    /// Bytes an ordinary user may still write.
    pub bytes_available: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Estimate of the inodes that can still be created.
    pub inodes_free: u64,
}
