//! What a file system answers: typed values, and the buffers that replies of variable size are written into.

mod attr;
mod buffer;
mod directory;
mod entry;
mod open;
mod statfs;
mod statx;
mod xattr;

pub use attr::{Attr, AttrReply, FileKind, Timestamp};
pub use buffer::ReplyBuffer;
pub use directory::{DirBuffer, DirEntry, DirPlusBuffer};
pub use entry::Entry;
pub use open::{BackingId, Created, Opened};
pub use statfs::Statfs;
pub use statx::StatxReply;
pub use xattr::XattrBuffer;

pub(crate) mod fixed;

use std::time::Duration;

/// A lifetime as the protocol carries it: seconds and nanoseconds.
pub(crate) fn lifetime_parts(lifetime: Duration) -> (u64, u32) {
    // The kernel keeps seconds in a signed integer: a larger number would be a lifetime in the past.
    const LIFETIME_MAX: Duration = Duration::from_secs(u32::MAX as u64);
    let lifetime = lifetime.min(LIFETIME_MAX);
    (lifetime.as_secs(), lifetime.subsec_nanos())
}
