//! A seeded, simulated environment: a clock that stands still until it is set, random numbers from a seed, and a disk
//! in memory that loses what was not synced.
//!
//! Everything a simulated disk decides by chance comes from the seed of the call that asked for it, so a run repeats
//! exactly. The disk is harsher than real ones: nothing unsynced is kept in order, and directory changes that were not
//! synced come back one by one.

mod clock;
mod content;
mod disk;
mod entropy;
mod faults;
mod tree;

pub use clock::SimClock;
pub use disk::{SimDisk, SimFile};
pub use entropy::SimEntropy;
pub use faults::{DiskCounts, FaultOp};

/// Bytes of the blocks that a power cut keeps, loses or tears one by one.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes that a torn block keeps or loses at a time.
pub const SECTOR_BYTES: usize = 512;
