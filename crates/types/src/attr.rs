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
    /// Device number of a device node (Linux `makedev` encoding). Of a directory that is split, in what metadata tells clients: how many slices it has
    /// ([`Attr::slices`]); no program is told that.
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

    /// How many slices a directory has of which these are the attributes as metadata tells them: then they are without what its slices count, and without
    /// the times of changes of names. 0 for anything else.
    pub fn slices(&self) -> u32 {
        if self.file_type() == FileType::Directory { self.rdev & !Attr::CHANGED_ITSELF } else { 0 }
    }

    /// In `rdev` beside the number of slices: the directory is being split, and its own modification time is that of a change of names which it has
    /// itself, not one that was set.
    pub const CHANGED_ITSELF: u32 = 1 << 31;

    /// As a program is told it, where [`Attr::slices`] may have said something.
    #[must_use]
    pub fn for_programs(self) -> Attr {
        let rdev = if self.file_type() == FileType::Directory { 0 } else { self.rdev };
        Attr { rdev, ..self }
    }

    /// The attributes of a directory that is split, given those of all its slices.
    #[must_use]
    pub fn of_whole(self, slices: &[Attr]) -> Attr {
        let mut whole = self.clone().for_programs();
        // A time that was set is in all of them, and says nothing once a change of names has stamped a slice, not even one that is later.
        let stamped = slices.iter().map(|slice| slice.mtime).filter(|mtime| *mtime != whole.mtime).max();
        whole.mtime = match stamped {
            // Or its own change is later.
            Some(stamped) if self.rdev & Attr::CHANGED_ITSELF != 0 => whole.mtime.max(stamped),
            stamped => stamped.unwrap_or(whole.mtime),
        };
        for slice in slices {
            whole.size = whole.size.saturating_add(slice.size);
            whole.nlink = whole.nlink.saturating_add(slice.nlink.saturating_sub(2));
            whole.ctime = whole.ctime.max(slice.ctime);
        }
        whole
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

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(mtime: i64, size: u64, nlink: u32) -> Attr {
        let at = |secs| Timespec { secs, nanos: 0 };
        Attr {
            inode: InodeId::ROOT,
            mode: 0o040_755,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 2,
            size,
            blocks: 0,
            atime: at(0),
            mtime: at(mtime),
            ctime: at(mtime),
            btime: at(0),
            block_size: 4096,
            fileset: FilesetId(0),
        }
    }

    #[test]
    fn a_split_directory_is_the_sum_of_its_slices() {
        let whole = directory(5, 0, 2).of_whole(&[directory(5, 3, 4), directory(9, 2, 2)]);
        assert_eq!((whole.size, whole.nlink, whole.rdev), (5, 4, 0));
        assert_eq!((whole.mtime.secs, whole.ctime.secs), (9, 9));
    }

    #[test]
    fn of_a_directory_that_is_being_split_a_change_of_its_own_counts_as_well() {
        let itself = |mtime| Attr { rdev: 2 | Attr::CHANGED_ITSELF, ..directory(mtime, 4, 3) };
        let later = itself(9).of_whole(&[directory(5, 3, 4), directory(7, 2, 2)]);
        assert_eq!((later.mtime.secs, later.size, later.nlink, later.rdev), (9, 9, 5, 0));
        assert_eq!(itself(6).of_whole(&[directory(5, 0, 2), directory(7, 1, 2)]).mtime.secs, 7);
        assert_eq!((itself(9).slices(), directory(9, 0, 2).slices()), (2, 2));
    }

    #[test]
    fn a_change_of_names_takes_the_place_of_a_later_time_that_was_set() {
        let unchanged = directory(90, 0, 2).of_whole(&[directory(90, 0, 2), directory(90, 0, 2)]);
        assert_eq!(unchanged.mtime.secs, 90);
        let changed = directory(90, 0, 2).of_whole(&[directory(90, 0, 2), directory(7, 1, 2)]);
        assert_eq!(changed.mtime.secs, 7);
    }
}
