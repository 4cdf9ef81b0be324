//! A data test of single files: random reads, writes, mappings, size and space changes against a model in memory.
//!
//! Each thread has a file of its own and a `Vec<u8>` that says what the file must hold. Reads check a range, reopening checks
//! everything. With `direct`, the file is reopened with `O_DIRECT` now and then, so that direct and cached I/O meet.
//! With several mounts of one file system each operation goes through any of them, and must see what those through the others have done.

pub mod aligned;
pub mod exercise;
