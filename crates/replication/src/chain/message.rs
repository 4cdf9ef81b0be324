//! What replicas of a chain say to each other, and what they want done.

use super::{ChunkVersion, Holding};
use crate::membership;
use ashlar_types::{ChunkId, Epoch};
use serde::{Deserialize, Serialize};

/// From replica to replica. Bytes travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message<R> {
    /// To the successor: the bytes of a write.
    Write {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which chunk.
        chunk: ChunkId,
        /// The version it makes.
        version: ChunkVersion,
        /// The version it is made from; the receiver must have it.
        previous: ChunkVersion,
    },
    /// To the successor: the whole chunk.
    Copy {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which chunk.
        chunk: ChunkId,
        /// Its version.
        version: ChunkVersion,
    },
    /// To the predecessor: the sender and all behind it have this version.
    Applied {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which chunk.
        chunk: ChunkId,
        /// Its version.
        version: ChunkVersion,
    },
    /// To the successor: all have this version.
    Committed {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which chunk.
        chunk: ChunkId,
        /// Its version.
        version: ChunkVersion,
    },
    /// To the predecessor, when an epoch begins: uncertain chunks; of a replica that is catching up, all.
    Inventory {
        /// The sender's epoch.
        epoch: Epoch,
        /// What it has.
        // LIMIT: a sender splits its chains so that this fits a message; see ADR 0009 on paging.
        holdings: Vec<Holding>,
    },
    /// To the successor: its inventory was received.
    Compared {
        /// The sender's epoch.
        epoch: Epoch,
    },
    /// To the head: a replica that was catching up has everything.
    CaughtUp {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which replica.
        replica: R,
    },
}

impl<R> Message<R> {
    /// The sender's epoch.
    pub fn epoch(&self) -> Epoch {
        match self {
            Message::Write { epoch, .. }
            | Message::Copy { epoch, .. }
            | Message::Applied { epoch, .. }
            | Message::Committed { epoch, .. }
            | Message::Inventory { epoch, .. }
            | Message::Compared { epoch }
            | Message::CaughtUp { epoch, .. } => *epoch,
        }
    }
}

/// What a replica wants done. Commands about one chunk are carried out in their order; `Write` to a successor need not wait for the
/// `Apply` before it, a `Copy` reads the chunk after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<R> {
    /// For the membership.
    Member(membership::Command<R>),
    /// Send `message` to `to`: a `Write` with the bytes of the write in hand, a `Copy` with the whole chunk, read now.
    Send {
        /// To whom.
        to: R,
        /// What.
        message: Message<R>,
    },
    /// Write the bytes in hand, then report `applied`.
    // ORDER: the chunk is marked uncertain, with this version, durably and before the first byte changes.
    Apply {
        /// Which chunk.
        chunk: ChunkId,
        /// The version it becomes.
        version: ChunkVersion,
    },
    /// Put the copy in hand in the chunk's place, all or nothing, uncertain and with this version; then report `applied`.
    Replace {
        /// Which chunk.
        chunk: ChunkId,
        /// The version it becomes.
        version: ChunkVersion,
    },
    /// Give the chunk this version as it is, uncertain; then report `applied`.
    Restamp {
        /// Which chunk.
        chunk: ChunkId,
        /// The version it becomes.
        version: ChunkVersion,
    },
    /// The chunk is certain: its mark may go, now or later.
    Settle {
        /// Which chunk.
        chunk: ChunkId,
        /// The version that is committed.
        version: ChunkVersion,
    },
    /// The write that made this version, and those before it, are committed: their callers may be answered, if
    /// [`crate::membership::Member::may_acknowledge`] says so at that moment.
    Acknowledge {
        /// Which chunk.
        chunk: ChunkId,
        /// Its version.
        version: ChunkVersion,
    },
}

impl<R> From<membership::Command<R>> for Command<R> {
    fn from(command: membership::Command<R>) -> Command<R> {
        Command::Member(command)
    }
}
