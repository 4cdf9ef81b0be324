//! The vocabulary of Ashlar: ids and quantities as newtypes, errno, times, attributes, layouts, the cluster
//! map, and every message that crosses a role boundary, with their codec.
//!
//! What this crate is not: it does no I/O, reads no clock, starts no thread, and knows no transport. Everything here
//! is a value. It may depend on nothing of Ashlar; every other crate may depend on it.
//!
//! Invariants:
//! - Encoded forms are versioned by their container (log frame, message frame, file header), never by guessing.
//! - Decoding arbitrary bytes never panics and never allocates more than a constant factor of the input.

pub mod attr;
pub mod block_sum;
pub mod codec;
pub mod creds;
pub mod errno;
pub mod id;
pub mod layout;
pub mod map;
pub mod membership;
pub mod message;
pub mod name;
pub mod node;
pub mod policy;
pub mod shard_set;
pub mod start;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;

pub use attr::{Attr, FileType, StatFs};
pub use creds::{Capabilities, Credentials};
pub use errno::Errno;
pub use id::{
    ChainId, ChunkId, ClusterId, DescriptionId, Epoch, FilesetId, InodeId, LockOwner, NodeId, OpId, PoolId,
    SessionId, ShardId, TargetId,
};
pub use layout::{Durability, FileLayout, LayoutPolicy, TargetChoice};
pub use map::ClusterMap;
pub use membership::Membership;
pub use name::{NAME_BYTES_MAX, Name, PATH_BYTES_MAX};
pub use node::{Node, PeerId, Role, Roles};
pub use policy::NodePolicy;
pub use shard_set::ShardSet;
pub use start::{Start, Starts, TargetStarts};
pub use time::Timespec;
