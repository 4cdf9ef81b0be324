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
pub mod capability;
pub mod chain;
pub mod codec;
pub mod coherence;
pub mod copies;
pub mod creds;
pub mod domain;
pub mod errno;
pub mod event;
pub mod fileset;
pub mod id;
pub mod layout;
pub mod map;
pub mod membership;
pub mod message;
pub mod name;
pub mod name_hash;
pub mod node;
pub mod of_chains;
pub mod open_proof;
pub mod places;
pub mod policy;
pub mod session_number;
pub mod shard_set;
pub mod shared_disk;
pub mod start;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;

pub use attr::{Attr, FileType, StatFs};
pub use capability::{Capability, GrantedCapability, KeySet, Rights, Seal, SealedCapability, SecretKey};
pub use coherence::Coherence;
pub use copies::{CopyGroup, CopyHost, CopyNotes};
pub use creds::{Capabilities, Credentials};
pub use domain::Domain;
pub use errno::Errno;
pub use event::{Event, EventKind, Happening};
pub use fileset::{Fileset, Reach};
pub use id::{
    ChainId, ChunkId, ClusterId, DescriptionId, Epoch, FilesetId, InodeId, LockOwner, NodeId, OpId, PoolId,
    SessionId, ShardId, TargetId,
};
pub use layout::{DirectoryChoice, Durability, FileLayout, LayoutPolicy, TargetChoice};
pub use map::ClusterMap;
pub use membership::Membership;
pub use name::{NAME_BYTES_MAX, Name, PATH_BYTES_MAX};
pub use name_hash::{Cookie, NameHash, SLICES_MAX};
pub use node::{Node, PeerId, Role, Roles};
pub use of_chains::OfChains;
pub use open_proof::{OpenProof, ProvenOpen};
pub use places::Places;
pub use policy::NodePolicy;
pub use shard_set::ShardSet;
pub use shared_disk::{DiskId, DiskOrder, DiskState, DiskWord, SharedDisk};
pub use start::{Holding, Start, StartPlace, Starts, TargetStarts};
pub use time::Timespec;
