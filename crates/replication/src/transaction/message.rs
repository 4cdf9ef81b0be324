//! What shards say to each other about a transaction, and what they write to their logs.

use ashlar_types::ShardId;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Names one attempt at an operation; another attempt has another id, also if the caller's operation id is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId {
    /// The shard that decides.
    pub coordinator: ShardId,
    /// The life of the coordinator's machine that began it: grows with every take-over and every restart.
    pub era: u64,
    /// Counts transactions of that life.
    pub number: u64,
}

/// Names one time that a participant has locked a part: a `Prepare` that arrives again later may lock it once more, for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The life of the participant's machine.
    pub era: u64,
    /// Counts tickets of that life.
    pub number: u64,
}

/// What a transaction does in one shard: `K` is a key, `W` a write set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Part<K, W> {
    /// Keys that are read or written; nobody else may until it is decided.
    pub keys: Vec<K>,
    /// What is written if it is committed.
    pub writes: W,
}

/// Shards that have voted for a transaction, with their tickets.
pub type Participants = SmallVec<[(ShardId, Ticket); 2]>;

/// An entry in a shard's log. Those with writes change the shard's state by them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Record<K, W> {
    /// A participant has locked its part.
    Prepared {
        /// Which transaction.
        id: TransactionId,
        /// For the decision to name.
        ticket: Ticket,
        /// What is locked, and what may be written.
        part: Part<K, W>,
    },
    /// The coordinator has committed it.
    Decided {
        /// Which transaction.
        id: TransactionId,
        /// Who has to be told, with the tickets of their votes.
        participants: Participants,
        /// The coordinator's own writes.
        writes: W,
    },
    /// A participant was told: it is committed with these writes, or aborted without.
    Finished {
        /// Which transaction.
        id: TransactionId,
        /// The ticket that it ends.
        ticket: Ticket,
        /// The writes of its part.
        writes: Option<W>,
    },
    /// Every participant was told.
    Forgotten {
        /// Which transaction.
        id: TransactionId,
    },
}

impl<K, W> Record<K, W> {
    /// What the entry writes.
    pub fn writes(&self) -> Option<&W> {
        match self {
            Record::Decided { writes, .. } => Some(writes),
            Record::Finished { writes, .. } => writes.as_ref(),
            Record::Prepared { .. } | Record::Forgotten { .. } => None,
        }
    }
}

/// From shard to shard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message<K, W> {
    /// Coordinator to participant: can you do this part?
    Prepare {
        /// Which transaction.
        id: TransactionId,
        /// The part.
        part: Part<K, W>,
    },
    /// Participant to coordinator: its part is locked, and will be done if so decided; or it is not.
    Vote {
        /// Which transaction.
        id: TransactionId,
        /// If it is.
        ticket: Option<Ticket>,
    },
    /// Coordinator to participant: it has happened.
    Commit {
        /// Which transaction.
        id: TransactionId,
        /// The vote that counted.
        ticket: Ticket,
    },
    /// Coordinator to participant: it never will happen.
    Abort {
        /// Which transaction.
        id: TransactionId,
        /// Only for this vote, which did not count; else for all.
        ticket: Option<Ticket>,
    },
    /// Participant to coordinator: I know, durably.
    Finished {
        /// Which transaction.
        id: TransactionId,
        /// The vote that counted.
        ticket: Ticket,
    },
    /// Participant to coordinator: what came of it?
    Ask {
        /// Which transaction.
        id: TransactionId,
        /// Its vote.
        ticket: Ticket,
    },
}

/// What a shard's machine wants done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command<K, W> {
    /// Append the record to the shard's log; report `logged` when it is committed.
    // ORDER: nothing is said about it before.
    Append(Record<K, W>),
    /// Send to the primary of `to`.
    Send {
        /// Which shard.
        to: ShardId,
        /// What.
        message: Message<K, W>,
    },
    /// Every part is locked: commit or abort.
    Ready(TransactionId),
    /// It did not happen, and will not under this id.
    Aborted(TransactionId),
}
