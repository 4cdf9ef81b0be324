//! What metadata servers say to each other (`docs/formats/wire.md`, "Between metadata servers").

use ashlar_kv::Key;
use ashlar_namespace::lock::{LockHeld, LockWaiting};
use ashlar_namespace::{Intent, ShardChange};
use ashlar_replication::transaction::{Message, Ticket};
use ashlar_types::message::LeaseSet;
use ashlar_types::node::SessionOwner;
use ashlar_types::{DescriptionId, Epoch, Errno, InodeId, NodeId, SessionId, ShardId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// To the server that has a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Say {
    /// Tell values, for a call of `session`, which may keep what it has cached.
    Read {
        /// Whose call it is.
        session: SessionId,
        /// Of one shard.
        keys: Vec<(Key, Intent)>,
        /// All pairs whose keys begin so.
        prefixes: Vec<Key>,
    },
    /// Give inode ids of a shard away.
    Reserve {
        /// Which.
        shard: ShardId,
        /// How many.
        count: u64,
    },
    /// Send empty shards to a server that has just joined.
    Give {
        /// Which.
        to: NodeId,
        /// How many at the most.
        count: u64,
    },
    /// Something about a shard that goes from the server that says it to the one that hears it.
    Move {
        /// Which.
        shard: ShardId,
        /// Names the attempt, drawn at random.
        attempt: u64,
        /// What.
        what: Moving,
    },
    /// Does the server that hears it still send this one a shard?
    IsSending {
        /// Which.
        shard: ShardId,
        /// Which attempt.
        attempt: u64,
    },
    /// Something about a transaction, to the machine of `shard` from that of `from`; a part is for a call of `session`.
    Transaction {
        /// Whose call it is.
        session: SessionId,
        /// Which machine is meant.
        shard: ShardId,
        /// Which one says it.
        from: ShardId,
        /// What.
        message: Message<Key, ShardChange>,
    },
    /// Does a session have an inode open, that the server has which hears it?
    IsOpen {
        /// Which session.
        session: SessionId,
        /// What.
        inode: InodeId,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The values asked for, in their order, and which of the inodes among them somebody has open.
    Values {
        /// Of keys.
        values: Vec<Option<Bytes>>,
        /// Of prefixes.
        pairs: Vec<Vec<(Bytes, Bytes)>>,
        /// Inodes.
        open: Vec<InodeId>,
    },
    /// Ids from this one on.
    Reserved(InodeId),
    /// So many shards are on their way.
    Given(u64),
    /// What was said about a shard is done; or it is still being sent; or an inode is open.
    Done,
    /// There is no such attempt (any more), as of the map of this epoch.
    NoSuchMove(Epoch),
    /// What the machine says to that, if anything.
    Messages(Vec<Message<Key, ShardChange>>),
    /// A part was not locked.
    No(Refusal),
    /// It could not be done.
    Failed(Errno),
    /// The shard is not here, or this server is not ready: ask again later.
    Later,
    /// What the machine says to a part.
    Prepared {
        /// The vote.
        messages: Vec<Message<Key, ShardChange>>,
        /// Whether the session has leases on names in all directories that the part changes.
        keeps_entries: bool,
    },
}

/// What a server says to the one that is to have a shard next, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Moving {
    /// The shard is about to be sent.
    Begin {
        /// By whom.
        from: NodeId,
        /// Of the sender's map, by which it has the shard.
        epoch: Epoch,
    },
    /// Sessions that there are, and that may have something in the shard. They are there at this moment.
    Sessions(Vec<(SessionId, SessionOwner)>),
    /// Keys with their values: of the shard, and answers that are kept.
    Pairs {
        /// Counts these messages from 0: one that comes late or twice must not bring an old value back.
        number: u64,
        /// In any order, each key once. Nothing: it is removed.
        pairs: Vec<(Key, Option<Bytes>)>,
    },
    /// What the sender has in memory.
    Holds {
        /// Counts these messages from 0.
        number: u64,
        /// Some of it.
        holds: Vec<Hold>,
    },
    /// That was all: have it durably.
    Whole {
        /// Of the receiver's machine for transactions of the shard: above those of all before.
        life: u64,
        /// The newest recall of the sender.
        recall_mark: u64,
        /// The number of starts that the sender has noted.
        starts: u64,
    },
    /// Is all of it still there?
    IsWhole,
    /// It stays where it is.
    GiveUp,
}

/// Something of a shard that a server has only in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hold {
    /// A session has an inode open.
    Open(SessionId, InodeId, DescriptionId, bool),
    /// A session may cache.
    Lease(InodeId, SessionId, LeaseSet),
    /// A lock.
    Lock(LockHeld),
    /// A request that waits for one.
    LockWait(LockWaiting),
    /// A layout that was proposed to a session.
    Proposal(SessionId, InodeId, u32),
    /// A file of which nobody knows the length, the generation of its chunks, and what a target has answered.
    Unsettled(InodeId, u32, Errno),
}

/// Why a part was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// A key is held by another transaction.
    Held,
    /// Something that was read is not so any more.
    Changed,
    /// Somebody has cached what is to change.
    Leases,
}

/// A part that is held, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreparedRecord {
    pub ticket: Ticket,
    pub part: ShardChange,
}

#[cfg(test)]
mod tests {
    use super::{Answer, Say};
    use ashlar_types::testing::schema::{Schema, require_written_down};

    /// As `crates/rpc/tests/messages_keep_their_form.rs` for all others.
    #[test]
    fn messages_have_the_form_that_is_written_down() {
        let mut schema = Schema::default();
        schema.add::<Say>();
        schema.add::<Answer>();
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/messages-of-metadata-servers.txt");
        require_written_down(&schema, path, "protocol 1 to 1");
    }
}
