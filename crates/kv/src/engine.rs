//! The embedded engine behind a lane: a sorted map on disk that takes large sorted batches, whole or not at all.
//!
//! The engine is never written by a commit, only by checkpoints, one at a time; the lane's log holds what it has not
//! taken yet. It needs no log of its own.

mod fjall;
mod memory;
pub mod sealed;

pub use fjall::{FjallEngine, FjallOptions};
pub use memory::MemoryEngine;

use crate::{Key, KvError, Snapshot};
use bytes::Bytes;

/// What an engine or a lane held at one moment. It stays so for as long as it lives, whatever changes; meanwhile nothing of it is freed.
pub type LastingSnapshot = Box<dyn Snapshot + Send + Sync>;

/// The changes of a checkpoint, in ascending key order; `None` deletes.
pub type Changes<'a> = dyn Iterator<Item = (&'a Key, Option<&'a Bytes>)> + 'a;

/// What [`Engine::verify`] read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineReport {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// A sorted map on disk.
///
/// All calls may come from several threads at once, except that there is one `apply` at a time.
pub trait Engine: Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`KvError::Io`], or [`KvError::Corrupt`] when what is stored is not what was written.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// Calls `visit` with each pair whose key is in `[from, to)`, in ascending order, until it breaks; all as of one moment.
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut crate::Visit<'_>) -> Result<(), KvError>;

    /// What it holds now. To be dropped before [`Engine::close`].
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn snapshot(&self) -> Result<LastingSnapshot, KvError>;

    /// Takes `changes` and replaces the note by `note`, atomically and durably: after a crash at any moment all of it is
    /// there or nothing, and all of it once this has returned.
    ///
    /// # Errors
    /// [`KvError::Io`]; nothing or everything was applied then, and the engine takes no further changes.
    fn apply(&self, changes: &mut Changes<'_>, note: &[u8]) -> Result<(), KvError>;

    /// The note of the last [`Engine::apply`].
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn note(&self) -> Result<Option<Bytes>, KvError>;

    /// Reads everything and checks every checksum.
    ///
    /// # Errors
    /// The first fault found, as [`Engine::get`].
    fn verify(&self) -> Result<EngineReport, KvError>;

    /// Bytes on disk.
    fn bytes_used(&self) -> u64;

    /// Free space that merging may take for a while, before it gives back at least as much, bytes.
    fn merge_bytes(&self) -> u64 {
        0
    }

    /// Gives back what files hold that nobody reads any more, and what deleted pairs hold, if that is much and `bytes_free` of the disk are enough to do so; tells whether it did: then there may be more. It may take long; everything
    /// else goes on meanwhile.
    ///
    /// # Errors
    /// [`KvError::NoSpace`]: others have taken the space meanwhile. No pair has changed, but files that nobody needs may take space until the engine is opened again. [`KvError::Io`], [`KvError::Corrupt`].
    fn give_back(&self, bytes_free: u64) -> Result<bool, KvError> {
        let _ = bytes_free;
        Ok(false)
    }

    /// Stops background work and lets go of files; later calls may fail.
    ///
    /// # Errors
    /// [`KvError::Io`].
    fn close(&self) -> Result<(), KvError>;
}
