//! The stateful differential test: the same random operations on two directories, every answer and the trees compared.
//!
//! ```text
//! Generator (seed) -> Step -> Side left  (a thread confined to its directory) -> Observation \
//!                          -> Side right (another one)                        -> Observation -> compare
//! every K steps and at the end of an epoch: walk both trees side by side
//! ```
//!
//! A run is cut into epochs. Each starts with empty directories and a seed of its own, so that a failure replays
//! quickly (`--seed` and `--ops` are printed) and is shrunk by leaving steps out. One side is the reference (ext4), the other the file
//! system under test. What may differ is listed in `allowed.rs`, with reasons, and nowhere else.

pub mod allowed;
pub mod apply;
pub mod generate;
pub mod names;
pub mod observe;
pub mod op;
pub mod path;
pub mod readdir;
pub mod run;
pub mod shrink;
pub mod side;
pub mod tree;
