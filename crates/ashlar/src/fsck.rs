//! The consistency check of a stopped file system, and its repair (`ashlar fsck`).
//!
//! Stages, each a file, in an order in which a later one may rely on what an earlier one has put right:
//! 1. [`targets`]: headers, indexes, and (unless quick) every block against its checksum;
//! 2. [`settle`]: with repair, what a start does after a stop that was not clean;
//! 3. [`tree`]: the namespace and its accounting, by the check of crate `namespace`;
//! 4. [`chunks`]: every chunk on every target belongs to a file or is known garbage;
//! 5. [`files`]: what files say they have against what the targets hold.
//!
//! Of a file system of many servers the metadata of all is looked at as one ([`whole`]), which [`servers`] opens.
//!
//! Memory is bounded in every stage; damage beyond the bounds is counted and not named.

mod chunks;
mod files;
mod journal;
mod names;
mod problem;
mod remote;
mod restored;
mod run;
mod servers;
mod settle;
mod targets;
mod tree;
mod whole;

pub use restored::remove_newer_chunks;
pub use run::{Options, Place, run};

/// Verb number of what a repair commits, for people who read logs.
const VERB_REPAIR: u8 = 100;
