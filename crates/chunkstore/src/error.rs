//! Why a call failed. The variants are decisions: each asks something else of the caller.

use ashlar_kv::KvError;
use ashlar_types::ChunkId;
use std::io::{self, ErrorKind};

/// The error of every call of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The chunk is not on this target.
    #[error("chunk {0} is not here")]
    NotFound(ChunkId),
    /// Stored data is not what was written. The bytes are not returned; another copy may have them.
    #[error("chunk {chunk}: checksum of block {block} is {got:#010x}, {expected:#010x} was written")]
    Checksum {
        /// The chunk.
        chunk: ChunkId,
        /// The 4 KiB block inside the chunk.
        block: u32,
        /// The sealed checksum in the slot header.
        expected: u32,
        /// The sealed checksum of the bytes that were read.
        got: u32,
    },
    /// The data of a write is not what its sender made the checksum of. Nothing was stored; sending again helps.
    #[error("chunk {chunk}: data of block {block} changed on the way here")]
    InTransit {
        /// The chunk.
        chunk: ChunkId,
        /// The 4 KiB block inside the chunk.
        block: u32,
    },
    /// Free space is below the reserve, or the local file system refused the space. What was stored stays readable.
    #[error("no space on the target: {what}")]
    NoSpace {
        /// What was refused, with the numbers.
        what: String,
    },
    /// The index takes changes more slowly than they come; nothing was changed. Trying again later helps.
    #[error("the target is busy: {what}")]
    Busy {
        /// What was waited for.
        what: String,
    },
    /// A read, or the opening of a file, failed; nothing was changed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the file's path.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A write or a sync failed earlier, so the target is out of service until it is opened again (`design.md` D13).
    #[error("the target stopped after an error: {what}")]
    Stopped {
        /// The first error.
        what: String,
    },
    /// A file or record is damaged. It is left as it is.
    #[error("{file} is corrupt: {what}")]
    Corrupt {
        /// The file, with the place inside it where that is known.
        file: String,
        /// What does not hold.
        what: String,
    },
    /// The files belong to another file system, target or format than was asked for.
    #[error("{file} is not ours: {what}")]
    Foreign {
        /// The file.
        file: String,
        /// What it carries and what was expected.
        what: String,
    },
    /// The files are of another format than this software knows, most likely a newer one; the release that made them opens them.
    #[error("{file} has format {found}, this software knows format {known}")]
    Newer {
        /// The file.
        file: String,
        /// Its format version.
        found: u16,
        /// The newest format this software knows.
        known: u16,
    },
    /// Another process has the target open.
    #[error("{file} is locked by {holder}")]
    Locked {
        /// The lock file.
        file: String,
        /// What the holder wrote into it.
        holder: String,
    },
    /// The caller broke the contract of the call; trying again does not help.
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

impl ChunkError {
    /// An error of the local file system in a call that changed nothing.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> ChunkError {
        ChunkError::Io { what: what.into(), source }
    }
}

/// Whether the local file system said that it, or a quota on it, is full. Asked by kind: the engine wraps what it was answered.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl From<KvError> for ChunkError {
    fn from(error: KvError) -> ChunkError {
        match error {
            KvError::Io { what, source } => ChunkError::Stopped { what: format!("index: {what}: {source}") },
            KvError::Corrupt { what } => ChunkError::Corrupt { file: "index".into(), what },
            KvError::NoSpace { what } => ChunkError::NoSpace { what },
            KvError::Stopped { what } => ChunkError::Stopped { what: format!("index: {what}") },
            // INVARIANT: groups made by this crate keep the limits of the log; one that does not must not be acknowledged.
            KvError::Invalid { what } => ChunkError::Stopped { what: format!("index: {what}") },
            KvError::Stalled { what } | KvError::NotPrimary { what } => ChunkError::Busy { what },
            KvError::Foreign { what } => ChunkError::Foreign { file: "index".into(), what },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_under_the_engine_is_not_taken_for_a_damaged_index() {
        for code in [libc::ENOSPC, libc::EDQUOT] {
            let plain = io::Error::from_raw_os_error(code);
            let wrapped = io::Error::new(plain.kind(), format!("{plain} at path \"keyspaces/1/.tmp\""));
            assert!(is_no_space(&plain) && is_no_space(&wrapped), "{wrapped}");
        }
        assert!(!is_no_space(&io::Error::from_raw_os_error(libc::EIO)));
    }
}
