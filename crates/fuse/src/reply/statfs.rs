//! The answer to STATFS.

use crate::protocol::wire;

/// Totals of the file system, as statvfs(3) shows them. Block counts are in units of `fragment_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statfs {
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_len_max: u32,
    /// The unit of the block counts, in bytes.
    pub fragment_size: u32,
}

impl Statfs {
    pub(crate) fn to_wire(self) -> wire::Kstatfs {
        wire::Kstatfs {
            blocks: self.blocks,
            bfree: self.blocks_free,
            bavail: self.blocks_available,
            files: self.files,
            ffree: self.files_free,
            bsize: self.block_size,
            namelen: self.name_len_max,
            frsize: self.fragment_size,
            ..Default::default()
        }
    }
}
