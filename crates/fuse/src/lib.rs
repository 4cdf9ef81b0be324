//! FUSE without a FUSE library: the kernel protocol, two transports, mounting, and (in `adaptor`) the client library
//! behind it.
//!
//! What it is: a thin layer. [`Filesystem`] has one method per kind of request; [`Session::mount`] puts one behind a
//! directory. A request costs no allocation and takes no lock shared between workers; reads are filled into the buffer that goes
//! to the kernel, write data is borrowed from the buffer it came in.
//!
//! What it is not: a cache, a handle table, a path layer. It knows nothing about Ashlar below `adaptor`.
//!
//! ```text
//! kernel --/dev/fuse or io_uring--> transport --> protocol::parse --> service --> Filesystem
//!        <------------------------- transport <-------- reply ------- service <--/
//! ```
//!
//! Invariants:
//! 1. Parsing is total: no input panics; what is not whole is answered EIO.
//! 2. Every request gets exactly one reply (or none where the kernel wants none): a panic in a handler is EIO, a dropped
//!    [`Replier`] is EIO.
//! 3. Replies of a request go out on the transport it came in; notifications go to /dev/fuse from the caller's thread.
//! 4. No bit of a newer kernel is required: Linux 5.4 (protocol 7.31) is enough.
//! 5. The kernel's io_uring switch is read, never written.
//!
//! Tests: `tests/` mounts for real (root and /dev/fuse needed, otherwise skipped with a message); `examples/ceiling.rs` is
//! the in-memory server other benchmarks compare to.

pub mod adaptor;
mod backing;
mod deferral;
mod errno;
mod filesystem;
mod id;
mod kernel_mask;
mod mount;
mod negotiation;
mod notify;
mod options;
pub mod protocol;
mod reply;
mod request;
mod request_counts;
mod service;
mod session;
mod transport;

pub use deferral::{Deferral, Ended, Replier, Written};
pub use errno::Errno;
pub use filesystem::Filesystem;
pub use id::{FileHandle, LockOwner, NodeId, Unique};
pub use kernel_mask::KernelMask;
pub use mount::{
    Connection, ConnectionEnd, ListedMount, MountError, UnmountError, UnmountOutcome, abort_connection,
    check_mountpoint, connection_at, file_system_type_at, give_up, give_up_later, mount_points,
    mount_user_at, mounts_of_type, table_path, users_of,
};
pub use negotiation::{Negotiated, NegotiationError};
pub use notify::{Delivery, Notifier, NotifyError};
pub use options::{MountOptions, MountVia, TransportChoice};
pub use protocol::{Features, OpenReplyFlags};
pub use reply::{
    Attr, AttrReply, BackingId, Created, DirBuffer, DirEntry, DirPlusBuffer, Entry, FileKind, Opened,
    ReplyBuffer, Statfs, StatxReply, Timestamp, XattrBuffer,
};
pub use request::Request;
pub use request_counts::RequestCounts;
pub use session::{JoinTimeout, Kept, Session};
pub use transport::Transport;
