//! Transactions that need or change what other servers have (`design.md` D3, cross-shard operations).
//!
//! A transaction is decided on one server, against its own store and what it has been told of other shards. What it has not been told ends the
//! decision with [`NsError::Elsewhere`]; the service asks for it, and decides anew. The outcome has a [`ShardChange`] for each shard that
//! another server has: it is carried out there if what was read is still so, by two-phase commit.

use crate::context::OpContext;
use crate::error::NsError;
use crate::key::{inode_of, moves, shard_of};
use crate::record::Account;
use crate::txn::Txn;
use crate::verb::drop_link;
use crate::{Bucket, Inode};
use ashlar_kv::{KEY_BYTES_MAX, Key, VALUE_BYTES_MAX};
use ashlar_types::codec::decode;
use ashlar_types::{InodeId, NAME_BYTES_MAX, ShardId, Timespec};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Tables of inodes that operations across shards read and change ([`crate::key`]).
const TABLES_ACROSS: &[u8] = b"BDGHILOWX";

/// Why a value of another server is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Intent {
    /// To look at it.
    Look,
    /// Probably to change it: what others have cached of it can go at once.
    Change,
}

/// What a transaction knows of shards that other servers have. Every question that cannot be answered yet is noted, and answered
/// [`NsError::Elsewhere`].
pub trait Elsewhere {
    /// Whether `shard` is another server's.
    fn has(&self, shard: ShardId) -> bool;
    /// The value of a key there.
    ///
    /// # Errors
    /// [`NsError::Elsewhere`].
    fn value(&self, key: &[u8], intent: Intent) -> Result<Option<Bytes>, NsError>;
    /// The pairs there whose keys begin with `prefix`, a table and an inode.
    ///
    /// # Errors
    /// [`NsError::Elsewhere`].
    fn pairs(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, NsError>;
    /// Whether any session had `inode` open there when it was read.
    fn is_open(&self, inode: InodeId) -> bool;
    /// A fresh inode id of the shard, given out there or here. It is lost if the transaction is given up.
    ///
    /// # Errors
    /// [`NsError::Elsewhere`].
    fn new_inode_id(&self, shard: ShardId) -> Result<InodeId, NsError>;
}

/// What one inode adds to an account, or takes from it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Charge {
    /// Of the account.
    pub key: Key,
    /// How much.
    pub amount: Account,
    /// Or it is taken away.
    pub is_added: bool,
}

/// What a transaction that was decided elsewhere does in one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardChange {
    /// Keys that were read there, and their values. If one has another value by now, the decision was made on something that is no more.
    pub reads: Vec<(Key, Option<Bytes>)>,
    /// What is written, by ascending key.
    pub writes: Vec<(Key, Option<Bytes>)>,
    /// What accounts gain and lose: added up where they are, so that they need not be locked.
    pub charges: Vec<Charge>,
    /// Inodes of which one name's link is dropped. What becomes of them depends on who has them open there.
    pub drops: Vec<InodeId>,
    /// Inodes whose record changes.
    pub changed: Vec<InodeId>,
    /// Names that change, with their directories.
    pub entries: Vec<(InodeId, Vec<u8>)>,
    /// The time of the change.
    pub now: Timespec,
}

impl ShardChange {
    /// Keys that nobody else may read or write until it is decided what becomes of the transaction.
    pub fn locks(&self) -> Vec<Key> {
        let inodes = self.drops.iter().map(|inode| crate::key::inode(*inode));
        let named = self.reads.iter().chain(&self.writes).map(|(key, _)| key.clone());
        let mut keys: Vec<Key> = named.chain(inodes).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Whether all of it is of `shard`, is something that operations across shards change, and can be read again.
    pub fn is_of(&self, shard: ShardId) -> bool {
        let is_of_shard = |key: &Key| (3..=KEY_BYTES_MAX).contains(&key.len()) && shard_of(key) == shard;
        let is_changed_across = |key: &Key| {
            is_of_shard(key)
                && match key[2] {
                    b'A' => true,
                    b'M' => *key == moves(),
                    table => {
                        TABLES_ACROSS.contains(&table)
                            && inode_of(key).is_some_and(|inode| inode.home() == shard)
                    }
                }
        };
        let is_record = |(key, value): &(Key, Option<Bytes>)| match (key.get(2), value) {
            (Some(b'I'), Some(value)) => decode::<Inode>(value, "inode record").is_ok(),
            (Some(b'D'), Some(value)) => decode::<Bucket>(value, "bucket").is_ok(),
            (Some(b'M'), Some(value)) => decode::<u64>(value, "number of moves").is_ok(),
            // What accounts gain and lose is told apart: several add to one at the same time.
            (Some(b'A'), _) => false,
            (_, Some(value)) => value.len() <= VALUE_BYTES_MAX,
            (_, None) => true,
        };
        self.reads.iter().all(|(key, _)| is_changed_across(key))
            && self.writes.iter().all(|write| is_changed_across(&write.0) && is_record(write))
            && self.charges.iter().all(|charge| is_of_shard(&charge.key) && charge.key[2] == b'A')
            && self.drops.iter().chain(&self.changed).all(|inode| inode.home() == shard)
            && self
                .entries
                .iter()
                .all(|(directory, name)| directory.home() == shard && name.len() <= NAME_BYTES_MAX)
    }

    /// Carries it out in `txn`.
    ///
    /// # Errors
    /// [`NsError::Kv`] when the store cannot answer; `ESTALE` for a link that is dropped from an inode that is not there.
    pub fn apply(&self, txn: &mut Txn<'_>, context: &OpContext<'_>) -> Result<(), NsError> {
        for (key, value) in &self.writes {
            match value {
                Some(value) => txn.put(key.clone(), value.clone()),
                None => txn.delete(key.clone()),
            }
        }
        for charge in &self.charges {
            txn.charge(charge)?;
        }
        let context = OpContext { now: self.now, ..*context };
        for &inode in &self.drops {
            drop_link(txn, &context, inode)?;
            txn.mark_frees_space();
        }
        self.changed.iter().for_each(|&inode| txn.touch(inode));
        Ok(())
    }
}
