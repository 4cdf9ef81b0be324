//! Who asks: user, groups and the capabilities that bear on file access.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// The capabilities of `capabilities(7)` that file permission checks ask for, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capabilities(pub u8);

impl Capabilities {
    /// `CAP_CHOWN`: change owner and group freely.
    pub const CHOWN: Capabilities = Capabilities(1);
    /// `CAP_DAC_OVERRIDE`: skip read, write and execute checks.
    pub const DAC_OVERRIDE: Capabilities = Capabilities(2);
    /// `CAP_DAC_READ_SEARCH`: skip read checks, and search checks on directories.
    pub const DAC_READ_SEARCH: Capabilities = Capabilities(4);
    /// `CAP_FOWNER`: act as the owner of any file.
    pub const FOWNER: Capabilities = Capabilities(8);
    /// `CAP_FSETID`: keep set-id bits on write and chmod.
    pub const FSETID: Capabilities = Capabilities(16);
    /// `CAP_MKNOD`: make device nodes.
    pub const MKNOD: Capabilities = Capabilities(32);
    /// `CAP_SYS_ADMIN`: trusted.* attributes.
    pub const SYS_ADMIN: Capabilities = Capabilities(64);
    /// `CAP_SYS_RESOURCE`: use the blocks reserved for the administrator.
    pub const SYS_RESOURCE: Capabilities = Capabilities(128);
    /// All of the above: what root has by default.
    pub const ALL: Capabilities = Capabilities(255);

    /// Whether every capability of `wanted` is held.
    pub fn has(self, wanted: Capabilities) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Both sets together.
    pub fn with(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 | other.0)
    }
}

/// The identity of a caller as the client asserts it, within what node policy allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Supplementary groups, as far as the client has resolved them (see [`Credentials::complete`]).
    pub groups: SmallVec<[u32; 8]>,
    /// Capabilities that bear on files.
    pub caps: Capabilities,
    /// Whether `groups` and `caps` are known to be whole. A client first asks with what costs nothing (uid and gid);
    /// when the answer is EACCES or EPERM and this is false, it reads the rest from the kernel and asks once more.
    pub complete: bool,
}

impl Credentials {
    /// Root with every capability.
    pub fn root() -> Credentials {
        Credentials { caps: Capabilities::ALL, complete: true, ..Credentials::default() }
    }

    /// A caller with one group; capabilities as the kernel gives them by default: all to uid 0, none to others.
    pub fn user(uid: u32, gid: u32) -> Credentials {
        let caps = if uid == 0 { Capabilities::ALL } else { Capabilities::default() };
        Credentials { uid, gid, groups: SmallVec::new(), caps, complete: false }
    }

    /// Whether the caller is in group `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
