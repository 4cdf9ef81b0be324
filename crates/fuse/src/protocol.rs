//! The FUSE kernel protocol: message types and bounded parsing. No I/O, no state, nothing that can panic on input.
//!
//! ```text
//! /dev/fuse:  | InHeader | fixed argument | names, data, extensions |
//! io_uring:   header area: InHeader, fixed argument      payload area: names, data, extensions
//! ```
//!
//! Both transports bring a request to the same three parts; [`Operation`] is the typed, borrowed result.
//! Source: `include/uapi/linux/fuse.h`, protocol 7.45 (Linux 6.18).

mod extension;
mod feature;
mod fields;
mod opcode;
mod operation;
mod parse;
pub(crate) mod wire;

pub use extension::{Extensions, SecurityContext};
pub use feature::{Features, OpenReplyFlags};
pub use opcode::Opcode;
pub use operation::{
    CopyFileRange, Create, Fallocate, FileLock, Flush, Forgets, Fsync, Ioctl, Link, LockKind, LockRequest,
    Lseek, Mkdir, Mknod, Open, Operation, Poll, Read, ReadDir, Release, Rename, RetrieveReply, SetAttr,
    SetTime, SetXattr, StatxQuery, Write,
};
pub(crate) use parse::parse;
pub use parse::{Dialect, Message, Parts};

/// Protocol major version.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version this crate speaks (Linux 6.18).
pub(crate) const MINOR_NEWEST: u32 = 45;
/// The oldest minor version it accepts: Linux 5.4. Everything later is optional.
pub(crate) const MINOR_OLDEST: u32 = 31;

/// Why a request could not be understood. The caller gets EIO where a reply is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its kind of request must be.
    #[error("request shorter than its kind requires")]
    Truncated,
    /// The header's length is not the length that arrived.
    #[error("length in the header differs from what arrived")]
    Length,
    /// A name without its terminating NUL.
    #[error("name without an end")]
    UnterminatedName,
    /// Extensions whose sizes do not add up.
    #[error("extension sizes do not add up")]
    Extension,
    /// A field with a value the protocol does not define.
    #[error("field with an undefined value")]
    Value,
    /// An opcode this crate does not know; answered with ENOSYS.
    #[error("unknown opcode {0}")]
    UnknownOpcode(u32),
}
