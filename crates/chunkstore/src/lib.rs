//! The chunk store: the chunks of files on one target, a directory on a local file system.
//!
//! A chunk lives in a slot of a slab file, behind a header that names it and holds a checksum for every 4 KiB block. An index
//! (a lane of the key-value layer) says which slot. Writing into a chunk that is here changes data and checksums in place; two
//! tables of the index tell recovery where the two may disagree: fresh slots and dirty regions.
//!
//! What this crate is not: it knows no file, no capability, no network and no replica; it starts no thread (see
//! [`ChunkStore::background_tick`]; the index may run two of its own) and touches the disk and the clock only through `ashlar-env`.
//!
//! Invariants:
//! - A killed process loses nothing that was acknowledged; a power cut nothing that was acknowledged before a
//!   [`ChunkStore::sync`] that returned, and it never turns such a block into an error.
//! - Bytes whose checksum does not match are never returned. Outside fresh slots and dirty regions a mismatch is damage,
//!   always.
//! - Bytes of a chunk never show up in another one, whatever stops when.
//! - The first failed write or sync stops the store for good.
//!
//! Formats: `docs/formats/target.md`. Tests: inline for the parts, `tests/` for behaviour, crashes and faults.

mod alloc;
mod block;
mod cache;
mod change;
mod checksum;
mod config;
mod counters;
mod dirty;
mod error;
mod fresh;
mod geometry;
mod header;
mod index;
mod key;
mod loss_marks;
mod lost;
mod open;
mod piece;
mod rebuild;
mod recover;
mod scrub;
mod shape;
mod slab;
mod space;
mod stop;
mod store;
mod suspects;
mod sync;
mod target;
mod tick;
mod verb;

pub use checksum::{BLOCK_BYTES, SUM_HOLE, SUM_RESERVED, seal, sum_of};
pub use config::{Config, RESERVE_PART};
pub use counters::StoreStats;
pub use error::ChunkError;
pub use open::{ENGINE_DIR, INDEX_DIR, TargetLock};
pub use rebuild::RebuildReport;
pub use recover::RecoveryReport;
pub use scrub::{Finding, ScrubCursor, Scrubbed};
pub use shape::Shape;
pub use store::ChunkStore;
pub use target::{FORMAT, TargetHeader, TargetIdentity, TargetUuid};
pub use tick::{TargetSpace, TickReport};
pub use verb::{
    BlockSum, ChainNote, ChainPage, ChunkMap, ChunkPage, Damage, Deleted, DeletedOfChain, Digest, Extent,
    Lack, LackNotes, ListedChunk, Run, SuspectPage, Written,
};
