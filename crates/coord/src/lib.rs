//! Agreement on the cluster's state by compare-and-set (`design.md` D2).
//!
//! [`Coord`] holds one small value with a revision; a change names the revision it was made from and is refused if another
//! change came first. On a single machine the value is a file ([`local_file::LocalFile`]); in a cluster it is a key in etcd
//! ([`etcd::EtcdCoord`]).
//!
//! What this crate is not: it knows nothing of what the value means.

pub mod etcd;
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
        /// The operating system's answer, or what etcd's members answered.
        source: std::io::Error,
    },
    /// The stored bytes are not what was written.
    #[error("{what}")]
    Corrupt {
        /// Which file or key, what is wrong, and the way out.
        what: String,
    },
    /// The store cannot be used as it was told to.
    #[error("{what}")]
    Settings {
        /// Which setting, what is wrong with it, and what to give instead; no secrets.
        what: String,
    },
    /// The value is larger than the store takes; nothing was sent.
    #[error("{what}")]
    TooLarge {
        /// Its size and the limit, bytes, and where the limit comes from.
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
    /// [`CoordError::Conflict`] when the revision has moved on; [`CoordError::TooLarge`]; [`CoordError::Io`] when it is unknown
    /// whether it was stored.
    fn compare_and_set(&self, expected: u64, value: &[u8]) -> Result<u64, CoordError>;

    /// Whether processes on other machines can use the same value.
    fn is_shared(&self) -> bool {
        false
    }

    /// The value and its revision if that is not `revision`: for those who look again and again. A lower revision than before
    /// is told like a higher one; it means that the store was put back to an older state.
    ///
    /// # Errors
    /// Those of [`Coord::load`].
    fn changed_since(&self, revision: u64) -> Result<Option<(u64, Vec<u8>)>, CoordError> {
        let (found, value) = self.load()?;
        Ok((found != revision).then_some((found, value)))
    }
}
