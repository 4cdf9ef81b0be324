//! The log: the only thing a commit waits for.
//!
//! A lane's log is one stream of bytes, cut into segment files of equal size. A [`crate::Position`] is an offset in that
//! stream, so a file's name (its first position) and a position give the place on disk. Each commit appends one record,
//! a group of frames, in one write. The byte-exact format is in `docs/formats/log.md`; [`mod@format`] implements it.
//!
//! - [`mod@format`]: records and headers to bytes and back. No I/O.
//! - [`writer`]: appends, rolls to the next segment, recycles old ones.
//! - [`replay`]: reads what a crash left, and tells a torn tail from a damaged log.

pub mod format;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod writer;
