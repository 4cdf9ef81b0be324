//! What replicas of a log say to each other, and what they want done.

use super::{EntryRuns, LogPosition, Sequence};
use crate::membership::{self, Stored};
use ashlar_types::Epoch;
use serde::{Deserialize, Serialize};

/// From replica to replica. Entries and checkpoints travel beside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Primary to the others: the entries after `previous`.
    Prepare {
        /// The primary's epoch.
        epoch: Epoch,
        /// The end of the primary's log when the epoch began. What others have behind it from older epochs is not its.
        base: Sequence,
        /// The entry before the first; the receiver must have it.
        previous: LogPosition,
        /// Which entries come with this.
        entries: EntryRuns,
        /// What the primary knows to be committed.
        committed: Sequence,
    },
    /// The sender has the primary's log up to here, as durable as the setting asks.
    Prepared {
        /// The epoch of the `Prepare`.
        epoch: Epoch,
        /// Up to where.
        through: Sequence,
    },
    /// The sender does not have what a `Prepare` builds on.
    Mismatch {
        /// The epoch of the `Prepare`.
        epoch: Epoch,
        /// What it is sure to have in common with the primary.
        committed: Sequence,
    },
    /// Primary to one that is too far behind: the state after entry `at`.
    Checkpoint {
        /// The primary's epoch.
        epoch: Epoch,
        /// As in `Prepare`.
        base: Sequence,
        /// What the state covers; all of it is committed.
        at: LogPosition,
    },
}

impl Message {
    /// The sender's epoch.
    pub fn epoch(&self) -> Epoch {
        match self {
            Message::Prepare { epoch, .. }
            | Message::Prepared { epoch, .. }
            | Message::Mismatch { epoch, .. }
            | Message::Checkpoint { epoch, .. } => *epoch,
        }
    }
}

/// What a replica wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<R> {
    /// For the membership.
    Member(membership::Command<R>),
    /// Send `message` to `to`: with the entries it names, read from the log now, or with the newest checkpoint, whose end it names.
    Send {
        /// To whom.
        to: R,
        /// What.
        message: Message,
    },
    /// Drop the entries after `after` from the log.
    // ORDER: before the appends that follow.
    Truncate {
        /// The last that stays.
        after: Sequence,
    },
    /// Drop state and log: they have what was committed and is lost where it counts. What comes next begins with the first entry or a checkpoint.
    Discard,
    /// Append the entries that came with the message in hand but for the first `skip`; then report `stored`.
    Append {
        /// Entries that are there already.
        skip: u64,
    },
    /// Replace state and log by the checkpoint that came with the message in hand; then report `installed`.
    Install {
        /// What it covers.
        at: LogPosition,
    },
    /// Entries up to `through` are committed and this is the primary: their callers may be answered, if
    /// [`crate::membership::Member::may_acknowledge`] says so at that moment.
    Acknowledge {
        /// Up to where.
        through: Sequence,
    },
    /// Entries up to `through` are committed and this is not the primary: they may enter a checkpoint.
    Commit {
        /// Up to where.
        through: Sequence,
    },
}

impl<R> From<membership::Command<R>> for Command<R> {
    fn from(command: membership::Command<R>) -> Command<R> {
        Command::Member(command)
    }
}

impl<R> Command<R> {
    /// What is to be stored of the membership, if that is what it asks for.
    pub fn to_store(&self) -> Option<&Stored<R>> {
        match self {
            Command::Member(membership::Command::Store(stored)) => Some(stored),
            _ => None,
        }
    }
}
