//! Identities the kernel and the file system exchange: opaque 64-bit numbers that must not be mixed up.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

id! {
    /// The file system's name for an inode, as the kernel repeats it in every request. Chosen by the file system, 1 is the
    /// root; it must stay valid until it was forgotten as often as it was given out.
    NodeId
}
id! {
    /// The file system's name for one open file or directory; returned by open and create, repeated until release.
    FileHandle
}
id! {
    /// The kernel's name for one request; an interrupt refers to it.
    Unique
}
id! {
    /// The kernel's name for the owner of POSIX or flock locks (a scrambled pointer, not a process id).
    LockOwner
}

impl NodeId {
    /// The root directory of the mount.
    pub const ROOT: Self = Self(1);
}

impl Unique {
    /// Set by the kernel on requests it sends a second time after `Notifier::resend`.
    const RESEND: u64 = 1 << 63;

    /// Whether the kernel sent this request before (it may have been executed already).
    pub fn is_resent(self) -> bool {
        self.0 & Self::RESEND != 0
    }
}
