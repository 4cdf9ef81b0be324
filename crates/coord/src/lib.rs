//! Agreement on the cluster's state by compare-and-set (`design.md` D2).
//!
//! [`Coord`] holds one small value with a revision; a change names the revision it was made from and is refused if another
//! change came first. On a single machine the value is a file ([`local_file::LocalFile`]); in a cluster it is etcd's.
//!
//! What this crate is not: it knows nothing of what the value means.

pub mod local_file;

/// Why the value could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CoordError {
    /// Somebody else changed the value first.
    #[error("the cluster state is at revision {found}, not {expected}")]
    Conflict {
        /// The revision the change was made from.
        expected: u64,
        /// The revision that is there.
        found: u64,
    },
    /// The store could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the file's path.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The stored bytes are not what was written.
    #[error("{what}")]
    Corrupt {
        /// Which file, what is wrong, and the way out.
        what: String,
    },
}

/// One value under compare-and-set.
pub trait Coord: Send + Sync {
    /// The value and its revision (0 and empty before the first change).
    ///
    /// # Errors
    /// [`CoordError::Io`] and [`CoordError::Corrupt`].
    fn load(&self) -> Result<(u64, Vec<u8>), CoordError>;

    /// Replaces the value made from revision `expected`; it is durable on return. Tells the new revision.
    ///
    /// # Errors
    /// [`CoordError::Conflict`] when the revision has moved on; [`CoordError::Io`] when it is unknown whether it was stored.
    fn compare_and_set(&self, expected: u64, value: &[u8]) -> Result<u64, CoordError>;
}
