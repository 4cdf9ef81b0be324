//! What metadata servers say to each other (`docs/formats/wire.md`, "Between metadata servers").

use ashlar_kv::Key;
use ashlar_namespace::{Intent, ShardChange};
use ashlar_replication::transaction::{Message, Ticket};
use ashlar_types::{Epoch, Errno, InodeId, SessionId, ShardId};
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
    /// Offer shards that are empty.
    Give {
        /// How many at the most.
        count: u64,
    },
    /// The map of this epoch, or a newer one, gives a shard to the caller: tell what there is of it.
    HandOver {
        /// Which.
        shard: ShardId,
        /// Of the map.
        epoch: Epoch,
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
    /// Empty shards, in which nothing is made for a while.
    Offered(Vec<ShardId>),
    /// The shard is not served any more, and is empty.
    HandedOver {
        /// The newest inode id that was given out.
        counter: u64,
    },
    /// It is not empty.
    NotEmpty,
    /// What the machine says to that, if anything.
    Messages(Vec<Message<Key, ShardChange>>),
    /// A part was not locked.
    No(Refusal),
    /// It could not be done.
    Failed(Errno),
    /// The shard is not here, or this server is not ready: ask again later.
    Later,
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
