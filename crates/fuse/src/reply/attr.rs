//! Attributes of a node, as stat(2) shows them.

use super::lifetime_parts;
use crate::protocol::wire;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time, seconds since the epoch (negative before it) and nanoseconds within the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded towards the past.
    pub secs: i64,
    /// 0..1_000_000_000.
    pub nanos: u32,
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self { secs: after.as_secs() as i64, nanos: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let borrow = i64::from(before.subsec_nanos() != 0);
                let nanos = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
                Self { secs: -(before.as_secs() as i64) - borrow, nanos }
            }
        }
    }
}

/// The type of a file, as the top bits of its mode say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FileKind {
    /// FIFO.
    Fifo = libc::S_IFIFO,
    /// Character device.
    CharDevice = libc::S_IFCHR,
    /// Directory.
    Directory = libc::S_IFDIR,
    /// Block device.
    BlockDevice = libc::S_IFBLK,
    /// Regular file.
    Regular = libc::S_IFREG,
    /// Symbolic link.
    Symlink = libc::S_IFLNK,
    /// Unix socket.
    Socket = libc::S_IFSOCK,
}

impl FileKind {
    /// The kind in the type bits of `mode`, if they are one.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFBLK => Self::BlockDevice,
            libc::S_IFREG => Self::Regular,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFSOCK => Self::Socket,
            _ => return None,
        })
    }

    /// The type bits of a mode.
    pub const fn mode_bits(self) -> u32 {
        self as u32
    }

    /// The `DT_*` number of readdir(3).
    pub(crate) const fn dirent_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// Attributes of a node. Sizes are in bytes, `blocks` in units of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attr {
    /// Inode number shown to users.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// File type and permission bits.
    pub mode: u32,
    /// Names of the node (2 + subdirectories for a directory).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
}

impl Attr {
    pub(crate) fn to_wire(self) -> wire::Attr {
        wire::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.secs as u64,
            mtime: self.mtime.secs as u64,
            ctime: self.ctime.secs as u64,
            atimensec: self.atime.nanos,
            mtimensec: self.mtime.nanos,
            ctimensec: self.ctime.nanos,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// Attributes, and how long the kernel may believe them.
#[derive(Clone, Copy, Debug)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// For how long, from the moment the kernel gets the reply; zero means not at all.
    pub lifetime: Duration,
}

impl AttrReply {
    pub(crate) fn to_wire(self) -> wire::AttrOut {
        let (attr_valid, attr_valid_nsec) = lifetime_parts(self.lifetime);
        wire::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: self.attr.to_wire() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_round_towards_the_past() {
        let at = |time: SystemTime| Timestamp::from(time);
        assert_eq!(at(UNIX_EPOCH - Duration::from_millis(1500)), Timestamp { secs: -2, nanos: 500_000_000 });
        assert_eq!(at(UNIX_EPOCH - Duration::from_secs(3)), Timestamp { secs: -3, nanos: 0 });
        assert_eq!(at(UNIX_EPOCH + Duration::from_nanos(7)), Timestamp { secs: 0, nanos: 7 });
    }
}
