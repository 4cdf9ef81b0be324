//! Operation codes of the FUSE protocol and the size of each one's fixed argument.

use super::wire;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $arg:expr;)*) => {
        /// An operation the kernel may ask for (`enum fuse_opcode`, Linux 6.18).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$doc])* $name = $value),* }

        impl Opcode {
            /// Every opcode this crate knows, in numeric order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// The opcode numbered `value`, if this crate knows it.
            pub const fn from_raw(value: u32) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }

            /// Bytes of the fixed-size argument that follows the header (or fills `op_in` of a ring entry). INIT is the
            /// size every kernel sends; newer ones append to it.
            pub(crate) const fn argument_len(self) -> usize {
                match self { $(Self::$name => $arg),* }
            }
        }
    };
}

opcodes! {
    /// Find a name in a directory.
    Lookup = 1, 0;
    /// Drop lookup counts of one node; has no reply.
    Forget = 2, size_of::<wire::ForgetIn>();
    /// Read attributes.
    Getattr = 3, size_of::<wire::GetattrIn>();
    /// Change attributes.
    Setattr = 4, size_of::<wire::SetattrIn>();
    /// Read a symbolic link.
    Readlink = 5, 0;
    /// Make a symbolic link.
    Symlink = 6, 0;
    /// Make a file, fifo, socket or device node.
    Mknod = 8, size_of::<wire::MknodIn>();
    /// Make a directory.
    Mkdir = 9, size_of::<wire::MkdirIn>();
    /// Remove a name of a non-directory.
    Unlink = 10, 0;
    /// Remove an empty directory.
    Rmdir = 11, 0;
    /// Rename without flags.
    Rename = 12, size_of::<wire::RenameIn>();
    /// Add a name to a node.
    Link = 13, size_of::<wire::LinkIn>();
    /// Open a file.
    Open = 14, size_of::<wire::OpenIn>();
    /// Read data.
    Read = 15, size_of::<wire::ReadIn>();
    /// Write data.
    Write = 16, size_of::<wire::WriteIn>();
    /// File-system totals.
    Statfs = 17, 0;
    /// Last close of an open file.
    Release = 18, size_of::<wire::ReleaseIn>();
    /// Make a file durable.
    Fsync = 20, size_of::<wire::FsyncIn>();
    /// Set an extended attribute.
    Setxattr = 21, size_of::<wire::SetxattrInCompat>();
    /// Read an extended attribute.
    Getxattr = 22, size_of::<wire::GetxattrIn>();
    /// List extended attributes.
    Listxattr = 23, size_of::<wire::GetxattrIn>();
    /// Remove an extended attribute.
    Removexattr = 24, 0;
    /// One close(2) of an open file.
    Flush = 25, size_of::<wire::FlushIn>();
    /// Version and feature negotiation, once.
    Init = 26, size_of::<wire::InitInCompat>();
    /// Open a directory.
    Opendir = 27, size_of::<wire::OpenIn>();
    /// Read directory entries.
    Readdir = 28, size_of::<wire::ReadIn>();
    /// Last close of an open directory.
    Releasedir = 29, size_of::<wire::ReleaseIn>();
    /// Make a directory durable.
    Fsyncdir = 30, size_of::<wire::FsyncIn>();
    /// Test for a conflicting lock.
    Getlk = 31, size_of::<wire::LkIn>();
    /// Set or clear a lock without waiting.
    Setlk = 32, size_of::<wire::LkIn>();
    /// Set a lock, waiting for it.
    Setlkw = 33, size_of::<wire::LkIn>();
    /// access(2), where the mount has no `default_permissions`.
    Access = 34, size_of::<wire::AccessIn>();
    /// Create and open a file.
    Create = 35, size_of::<wire::CreateIn>();
    /// The caller of an earlier request got a signal.
    Interrupt = 36, size_of::<wire::InterruptIn>();
    /// Block number of a file offset.
    Bmap = 37, size_of::<wire::BmapIn>();
    /// The mount is going away.
    Destroy = 38, 0;
    /// ioctl(2).
    Ioctl = 39, size_of::<wire::IoctlIn>();
    /// poll(2).
    Poll = 40, size_of::<wire::PollIn>();
    /// Data asked for with a retrieve notification.
    NotifyReply = 41, size_of::<wire::NotifyRetrieveIn>();
    /// Drop lookup counts of many nodes; has no reply.
    BatchForget = 42, size_of::<wire::BatchForgetIn>();
    /// fallocate(2).
    Fallocate = 43, size_of::<wire::FallocateIn>();
    /// Read directory entries with their attributes.
    Readdirplus = 44, size_of::<wire::ReadIn>();
    /// Rename with flags.
    Rename2 = 45, size_of::<wire::Rename2In>();
    /// `SEEK_DATA` and `SEEK_HOLE`.
    Lseek = 46, size_of::<wire::LseekIn>();
    /// copy_file_range(2), up to 4 GiB.
    CopyFileRange = 47, size_of::<wire::CopyFileRangeIn>();
    /// DAX (virtiofs only).
    Setupmapping = 48, 40;
    /// DAX (virtiofs only).
    Removemapping = 49, 4;
    /// syncfs(2).
    Syncfs = 50, 8;
    /// Create and open a file without a name.
    Tmpfile = 51, size_of::<wire::CreateIn>();
    /// statx(2) with fields beyond the attributes.
    Statx = 52, size_of::<wire::StatxIn>();
    /// copy_file_range(2) with a 64-bit result.
    CopyFileRange64 = 53, size_of::<wire::CopyFileRangeIn>();
}

impl Opcode {
    /// Whether the kernel expects no reply to this operation.
    pub const fn is_one_way(self) -> bool {
        matches!(self, Self::Forget | Self::BatchForget | Self::NotifyReply | Self::Interrupt)
    }

    /// Whether the reply is data of variable size, filled by the file system into a buffer the transport owns.
    pub(crate) const fn replies_with_buffer(self) -> bool {
        matches!(
            self,
            Self::Read
                | Self::Readdir
                | Self::Readdirplus
                | Self::Readlink
                | Self::Getxattr
                | Self::Listxattr
                | Self::Ioctl
        )
    }
}
