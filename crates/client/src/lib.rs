//! The client library: what a mount, a gateway or a program uses to reach the file system.
//!
//! It holds a session, keeps what its leases allow, computes where chunks are, and gives leases back when asked. It is
//! written against the traits of `rpc`, so it does not know whether the services are in this process.
//!
//! What this crate is not: it knows no FUSE. The kernel's caches are behind [`KernelCache`].
//!
//! Locking: [`file::File`] has one lock, never held during a call to a service or to the kernel. A recall runs on the
//! session's own event thread, which holds no lock while it invalidates.

mod adopt;
mod ahead;
mod attr;
mod call;
mod client;
mod close_to_open;
mod closes;
mod come_back;
mod data;
mod directory;
mod events;
mod fan;
pub mod file;
mod io;
mod layout_text;
mod listed;
mod locks;
mod names;
mod pages;
mod reclaim;
mod remains;
mod reports;
mod split;
mod through;
mod told;
mod unsynced;
mod unsynced_meta;
mod untold;
mod xattr;

pub use adopt::Adopted;
pub use call::{ResolveCredentials, Who};
pub use client::{Client, ClientConfig, WAIT_MIN};
pub use closes::NoteGone;
pub use directory::Listing;
pub use events::{Dropping, KernelCache};
pub use file::{Handle, OpenFlags};
pub use io::{AllocateMode, Left, Seek, Taken, WriteFlags, Written};
pub use layout_text::LAYOUT_ATTRIBUTE;
pub use names::{Found, Opened};
pub use remains::{Remains, UnsyncedLeft};
pub use through::{ThroughPages, ToDrop};
pub use unsynced_meta::UnsyncedInode;
