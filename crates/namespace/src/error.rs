//! Why a verb did not do what was asked.

use ashlar_kv::KvError;
use ashlar_types::Errno;
use ashlar_types::codec::CodecError;

/// The two kinds of failure: an answer that POSIX defines, or a store that cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum NsError {
    /// A defined answer to the caller.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// The store failed; the service logs it and answers EIO (or ENOSPC).
    #[error(transparent)]
    Kv(#[from] KvError),
    /// Another server has to be asked first; what for was noted ([`crate::Elsewhere`]).
    #[error("another server has to be asked first")]
    Elsewhere,
}

impl From<CodecError> for NsError {
    fn from(error: CodecError) -> NsError {
        NsError::Kv(KvError::Corrupt { what: error.to_string() })
    }
}

impl NsError {
    /// The errno a caller sees.
    pub fn errno(&self) -> Errno {
        match self {
            NsError::Errno(errno) => *errno,
            NsError::Kv(KvError::NoSpace { .. }) => Errno::ENOSPC,
            NsError::Kv(KvError::NotPrimary { .. }) => Errno::EHOSTDOWN,
            NsError::Kv(_) | NsError::Elsewhere => Errno::EIO,
        }
    }
}
