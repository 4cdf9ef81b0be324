//! Ordered key-value transactions with one durable log (`design.md` D3, "the log alone is durable").
//!
//! A [`Lane`] is a log, an in-memory overlay and an embedded engine. A change is a [`Frame`] group: it is appended to
//! the log, then enters the overlay, which reads consult before the engine. Checkpoints apply the overlay to the engine,
//! sorted and in one large batch, and then drop the log segments behind them.
//!
//! What this crate is not: it knows no inode, no POSIX, and no replication; it stores keys and values and keeps the order
//! of frames. Conflict handling is simple by design: a lane has one writer at a time.
//!
//! Invariants, each with a test in `tests/` named after it: a recovered lane holds a prefix of its commits that is not
//! older than its last flush; damage to durable records is an error, a torn tail is not; a commit is one write and no
//! sync; an error in writing or syncing is final, a full disk is not. Bytes: `docs/formats/log.md`. Why this engine:
//! `docs/adr/0002-embedded-engine.md`.

mod copies;
mod engine;
mod lane;
mod log;
mod overlay;

pub use copies::{Copies, Group};
pub use engine::{
    Changes as EngineChanges, Engine, EngineReport, FjallEngine, FjallOptions, LastingSnapshot, MemoryEngine,
};
pub use lane::{
    Background, Export, GroupCursor, Import, Lane, LaneConfig, LaneReader, LaneStats, LaneWriter, LogRuns,
    Urgency,
};
pub use log::format;

use ashlar_types::{Epoch, OpId, ShardId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::io::ErrorKind;
use std::ops::ControlFlow;

/// A key: at most [`KEY_BYTES_MAX`] bytes; the first two are the shard, big-endian.
pub type Key = SmallVec<[u8; 40]>;

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Why a read or a change failed.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The log, the engine or a checkpoint could not read or write. After an error in writing or syncing the lane is
    /// stopped: every later call fails the same way until it is opened again (`design.md` D13).
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the file's path.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Stored bytes are not what was written: the file is named, with the way out.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which file or key, and what does not match.
        what: String,
    },
    /// Space for the log or the engine has fallen below the reserve; only frames marked as freeing space are taken.
    #[error("no space for metadata: {what}")]
    NoSpace {
        /// Which file system, with its free and needed bytes.
        what: String,
    },
    /// The lane was stopped by an earlier error, named here.
    #[error("stopped after an earlier error: {what}")]
    Stopped {
        /// The first error.
        what: String,
    },
    /// This machine does not decide what comes next in the log, or its copies do not answer: whoever asked asks again, here or elsewhere. Of a change it
    /// says that it was not made, of a wait for copies nothing.
    #[error("not decided here: {what}")]
    NotPrimary {
        /// Who decides, or what was waited for.
        what: String,
    },
    /// Files are of another file system, or of a newer format than this software knows.
    #[error("{what}")]
    Foreign {
        /// Which file, what it carries and what was expected.
        what: String,
    },
    /// A group breaks a limit of this crate or the order of its keys: the caller's fault, nothing was changed.
    #[error("invalid group: {what}")]
    Invalid {
        /// Which limit, with the number that breaks it.
        what: String,
    },
    /// Changes come in faster than checkpoints take them, for longer than [`LaneConfig::stall_max`]; nothing was changed.
    #[error("stalled: {what}")]
    Stalled {
        /// What was waited for, and how long.
        what: String,
    },
}

impl KvError {
    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> KvError {
        KvError::Io { what: what.into(), source }
    }

    /// What [`KvError::Io`] says of a sync.
    pub(crate) fn of_sync(what: &str, source: std::io::Error) -> KvError {
        KvError::io(format!("{SYNC} {what}"), source)
    }

    /// Whether a read that failed so says that what is stored is damaged, or cannot be read from the disk.
    pub fn is_damage(&self) -> bool {
        match self {
            KvError::Corrupt { .. } => true,
            KvError::Io { source, .. } => {
                let unreadable = [libc::EIO, libc::ENODATA, libc::EBADMSG, libc::EUCLEAN, libc::EREMOTEIO];
                source.raw_os_error().is_some_and(|errno| unreadable.contains(&errno))
            }
            _ => false,
        }
    }

    /// Whether what was written before may be gone: the disk has failed. Not what is refused before anything is done, for want of room, files, threads or rights; but of a sync that fails
    /// everything is to be feared.
    pub(crate) fn may_have_lost(&self) -> bool {
        let KvError::Io { what, source } = self else { return false };
        let is_refused = matches!(
            source.kind(),
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::WouldBlock
                | ErrorKind::PermissionDenied
                | ErrorKind::NotFound
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::OutOfMemory
        ) || matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        !is_refused || what.starts_with(SYNC)
    }
}

/// What errors of a sync begin with.
const SYNC: &str = "sync";

/// Looks at the pairs of a scan, a key and its value at a time, until it breaks.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Something that answers reads at one moment.
pub trait Snapshot {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`KvError::Io`] or [`KvError::Corrupt`].
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError>;

    /// Calls `visit` with each pair whose key is in `[from, to)`, in ascending key order, until it breaks.
    ///
    /// # Errors
    /// [`KvError::Io`] or [`KvError::Corrupt`].
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), KvError>;
}

/// The changes of one operation in one shard: ascending keys, `None` deletes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteSet(pub Vec<(Key, Option<Bytes>)>);

/// One operation's outcome in one shard, as it is logged and (later) replicated: not what was asked but what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The shard; all keys of the write set begin with it.
    pub shard: ShardId,
    /// The configuration epoch under which it was decided.
    pub epoch: Epoch,
    /// The call.
    pub op: OpId,
    /// The verb, for people who read logs; numbers are given in `namespace`.
    pub verb: u8,
    /// The changes.
    pub writes: WriteSet,
    /// The encoded reply for a retried call; empty where a retry cannot happen.
    pub reply: Bytes,
}

/// Names a group in the log of a lane, in all copies of the log: groups are counted, and the epoch tells apart two that were written under one number by
/// servers that did not know of each other. The default is the place before the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupNumber {
    /// How many groups there are up to and with it.
    pub sequence: u64,
    /// The epoch at which it was decided.
    pub epoch: Epoch,
}

impl GroupNumber {
    /// That of the next group, whose frames say `epochs`: in a log they ascend, whatever they go by.
    pub(crate) fn next(self, epochs: impl Iterator<Item = Epoch>) -> GroupNumber {
        GroupNumber { sequence: self.sequence + 1, epoch: epochs.fold(self.epoch, Epoch::max) }
    }
}

/// Where a frame group ends in a lane's log; grows with every commit. Flushing up to it makes the group durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);
