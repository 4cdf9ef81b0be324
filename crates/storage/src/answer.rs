//! The one place where a failure of a chunk store becomes an errno, and is logged.

use ashlar_chunkstore::ChunkError;
use ashlar_types::{Errno, TargetId};

/// The errno for `error` of `target`.
pub(crate) fn answer(target: TargetId, error: &ChunkError) -> Errno {
    match error {
        ChunkError::NotFound(_) => Errno::ENOENT,
        ChunkError::NoSpace { .. } => Errno::ENOSPC,
        ChunkError::Busy { .. } => Errno::ETIMEDOUT,
        ChunkError::BadRequest(what) => {
            tracing::error!(%target, what, "a storage request was malformed");
            Errno::EINVAL
        }
        ChunkError::Stopped { .. } => Errno::EIO,
        other => {
            tracing::error!(%target, error = %other, "the target could not do what was asked");
            Errno::EIO
        }
    }
}
