//! The answer to OPEN, OPENDIR, CREATE and TMPFILE.

use super::Entry;
use crate::id::FileHandle;
use crate::protocol::{OpenReplyFlags, wire};

/// The kernel's name for a local file that serves reads and writes of an open file (passthrough).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId(pub(crate) i32);

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opened {
    /// Repeated by the kernel in every request through this open.
    pub fh: FileHandle,
    /// How the kernel shall treat it.
    pub flags: OpenReplyFlags,
    /// The backing file; sets `PASSTHROUGH`.
    pub backing: Option<BackingId>,
}

impl Opened {
    pub(crate) fn to_wire(self) -> wire::OpenOut {
        let passthrough = OpenReplyFlags::when(OpenReplyFlags::PASSTHROUGH, self.backing.is_some());
        wire::OpenOut {
            fh: self.fh.0,
            open_flags: (self.flags | passthrough).bits(),
            backing_id: self.backing.map_or(0, |id| id.0),
        }
    }
}

/// A new file, open.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The node.
    pub entry: Entry,
    /// The open file.
    pub opened: Opened,
}
