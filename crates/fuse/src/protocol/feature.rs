//! Feature bits of the INIT negotiation and flag bits of an open reply.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

macro_rules! bits {
    ($(#[$doc:meta])* $name:ident($raw:ty) { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($raw);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*
            /// No bit set.
            pub const EMPTY: Self = Self(0);

            /// The bits as the kernel sees them.
            pub const fn bits(self) -> $raw { self.0 }

            /// From the kernel's bits; unknown ones are kept.
            pub const fn from_bits(bits: $raw) -> Self { Self(bits) }

            /// The flag of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $(stringify!($flag) => Some(Self::$flag),)* _ => None }
            }

            /// Whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool { self.0 & other.0 == other.0 }

            /// Both sets together.
            pub const fn union(self, other: Self) -> Self { Self(self.0 | other.0) }

            /// This set without the bits of `other`.
            pub const fn without(self, other: Self) -> Self { Self(self.0 & !other.0) }

            /// `flag` when `condition` holds, nothing otherwise.
            pub const fn when(flag: Self, condition: bool) -> Self { if condition { flag } else { Self::EMPTY } }
        }

        impl BitOr for $name { type Output = Self; fn bitor(self, other: Self) -> Self { self.union(other) } }
        impl BitOrAssign for $name { fn bitor_assign(&mut self, other: Self) { *self = self.union(other); } }
        impl BitAnd for $name { type Output = Self; fn bitand(self, other: Self) -> Self { Self(self.0 & other.0) } }
        impl Not for $name { type Output = Self; fn not(self) -> Self { Self(!self.0) } }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut rest = self.0;
                let mut list = f.debug_set();
                $(if self.contains(Self::$flag) { rest &= !Self::$flag.0; list.entry(&format_args!(stringify!($flag))); })*
                if rest != 0 { list.entry(&format_args!("{rest:#x}")); }
                list.finish()
            }
        }
    };
}

bits! {
    /// Features of the kernel interface (`FUSE_*` bits of INIT). What a mount asks for is `MountOptions::features`; what
    /// it got is `Negotiated::features`.
    Features(u64) {
        /// Several reads of one file at a time.
        ASYNC_READ = 0;
        /// POSIX (fcntl) locks are the file system's; without it they are local to this kernel.
        POSIX_LOCKS = 1;
        /// `O_TRUNC` arrives with the open instead of a SETATTR before it.
        ATOMIC_O_TRUNC = 3;
        /// Lookups of `.` and `..` work, so that the mount can be exported over NFS.
        EXPORT_SUPPORT = 4;
        /// Writes larger than one page.
        BIG_WRITES = 5;
        /// The file system applies the umask (needed for default ACLs).
        DONT_MASK = 6;
        /// flock(2) locks are the file system's.
        FLOCK_LOCKS = 10;
        /// ioctl(2) on directories.
        HAS_IOCTL_DIR = 11;
        /// The kernel drops cached pages when it sees another mtime or size.
        AUTO_INVAL_DATA = 12;
        /// READDIRPLUS instead of READDIR.
        DO_READDIRPLUS = 13;
        /// The kernel chooses READDIRPLUS only where attributes get used.
        READDIRPLUS_AUTO = 14;
        /// Direct I/O in parallel.
        ASYNC_DIO = 15;
        /// Dirty pages stay in the kernel; not used by Ashlar (it is slower for streams and needs exclusive files).
        WRITEBACK_CACHE = 16;
        /// ENOSYS to OPEN stops OPEN requests for good.
        NO_OPEN_SUPPORT = 17;
        /// Lookups and readdirs of one directory in parallel.
        PARALLEL_DIROPS = 18;
        /// The file system clears set-id bits and capabilities (first form).
        HANDLE_KILLPRIV = 19;
        /// POSIX ACLs are stored by the file system and checked by the kernel.
        POSIX_ACL = 20;
        /// After an abort, reading the device says ECONNABORTED instead of ENODEV.
        ABORT_ERROR = 21;
        /// Requests larger than 128 KiB.
        MAX_PAGES = 22;
        /// Symbolic links are cached.
        CACHE_SYMLINKS = 23;
        /// ENOSYS to OPENDIR stops OPENDIR requests for good.
        NO_OPENDIR_SUPPORT = 24;
        /// Pages are dropped only when the file system says so.
        EXPLICIT_INVAL_DATA = 25;
        /// The file system clears set-id bits where POSIX says so; the kernel marks the requests.
        HANDLE_KILLPRIV_V2 = 28;
        /// SETXATTR carries flags.
        SETXATTR_EXT = 29;
        /// INIT has a second word of flags.
        INIT_EXT = 30;
        /// Creating requests carry the security label.
        SECURITY_CTX = 32;
        /// Creating requests carry the parent's group if the caller is a member.
        CREATE_SUPP_GROUP = 34;
        /// An entry can be expired without being dropped.
        HAS_EXPIRE_ONLY = 35;
        /// Shared mappings of files opened for direct I/O.
        DIRECT_IO_ALLOW_MMAP = 36;
        /// Reads and writes of an open file go straight to a local file.
        PASSTHROUGH = 37;
        /// Export over NFS is refused.
        NO_EXPORT_SUPPORT = 38;
        /// Requests in flight can be asked for again.
        HAS_RESEND = 39;
        /// The mount may be id-mapped.
        ALLOW_IDMAP = 40;
        /// Requests may travel over io_uring; offered only where the administrator enabled it.
        OVER_IO_URING = 41;
        /// Requests time out in the kernel.
        REQUEST_TIMEOUT = 42;
    }
}

bits! {
    /// How the kernel shall treat an open file (`FOPEN_*`).
    OpenReplyFlags(u32) {
        /// Bypass the page cache.
        DIRECT_IO = 0;
        /// Keep the pages cached from earlier opens.
        KEEP_CACHE = 1;
        /// lseek(2) fails.
        NONSEEKABLE = 2;
        /// Cache the entries of this directory.
        CACHE_DIR = 3;
        /// No file position at all.
        STREAM = 4;
        /// No FLUSH at close(2); only where no fcntl lock can exist, since FLUSH is what drops them.
        NOFLUSH = 5;
        /// Direct writes to one file in parallel.
        PARALLEL_DIRECT_WRITES = 6;
        /// Reads and writes go to the backing file of the reply.
        PASSTHROUGH = 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_set_prints_its_names_and_the_bits_it_does_not_know() {
        let set = Features::ASYNC_READ | Features::OVER_IO_URING | Features::from_bits(1 << 60);
        assert_eq!(format!("{set:?}"), "{ASYNC_READ, OVER_IO_URING, 0x1000000000000000}");
        assert!(set.contains(Features::ASYNC_READ));
        assert!(!set.without(Features::ASYNC_READ).contains(Features::ASYNC_READ));
    }
}
