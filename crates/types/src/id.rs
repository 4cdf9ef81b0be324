//! Identifiers. Each is a newtype, so that two integers of different meaning never change places unnoticed.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! integer_id {
    ($(#[$doc:meta])* $name:ident, $int:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

integer_id!(
    /// A logical metadata shard; a file system has a fixed number of them ([`ShardId::COUNT_DEFAULT`]).
    ShardId, u16, "shard-"
);
integer_id!(
    /// A virtual replication chain. File layouts name chains; only the cluster map knows a chain's targets.
    ChainId, u32, "chain-"
);
integer_id!(
    /// A storage target: one data directory on one local file system.
    TargetId, u32, "target-"
);
integer_id!(
    /// A server (a machine running at least one role). Never used for an inode.
    NodeId, u32, "node-"
);
integer_id!(
    /// A pool of targets of one kind ("default", "flash", ...).
    PoolId, u16, "pool-"
);
integer_id!(
    /// A fileset: the unit of accounting and quota. Every inode belongs to exactly one.
    FilesetId, u32, "fileset-"
);
integer_id!(
    /// A configuration epoch. Whatever carries an older epoch than the receiver's is refused.
    Epoch, u64, "epoch-"
);
integer_id!(
    /// One client's session with the metadata service. Never reused within a file system.
    SessionId, u64, "session-"
);
integer_id!(
    /// The owner of a lock inside a session, as the kernel names it.
    LockOwner, u64, "owner-"
);
integer_id!(
    /// An open file description inside a session, as the client counts them: unlike a [`LockOwner`] it never names another one later.
    DescriptionId, u64, "description-"
);

impl ShardId {
    /// Shards of a new file system (`design.md` D3).
    pub const COUNT_DEFAULT: u16 = 64;
}

/// An inode id: home shard in the top 16 bits, a counter below. It never changes, is never reused, and is the
/// FUSE node id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The root directory: shard 0, counter 1 (`FUSE_ROOT_ID`).
    pub const ROOT: InodeId = InodeId(1);
    /// Bits of the counter.
    pub const COUNTER_BITS: u32 = 48;
    /// Largest counter of a shard.
    pub const COUNTER_MAX: u64 = (1 << Self::COUNTER_BITS) - 1;

    /// The id with counter `counter` in `shard`; `None` when the counter does not fit 48 bits.
    pub fn new(shard: ShardId, counter: u64) -> Option<InodeId> {
        (counter <= Self::COUNTER_MAX).then_some(InodeId(u64::from(shard.0) << Self::COUNTER_BITS | counter))
    }

    /// The shard that holds this inode's record.
    pub fn home(self) -> ShardId {
        ShardId((self.0 >> Self::COUNTER_BITS) as u16)
    }

    /// The counter inside the home shard.
    pub fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }
}

impl fmt::Debug for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InodeId({}:{})", self.home().0, self.counter())
    }
}

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.home().0, self.counter())
    }
}

/// The identity of a file system, drawn at random by its first `ashlar up`. It is in every header on disk and on the
/// wire, so that parts of two file systems never mix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl ClusterId {
    /// Reads what [`fmt::Display`] wrote, and nothing else.
    pub fn parse(text: &str) -> Option<ClusterId> {
        let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b'-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 32 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        let id = ClusterId(bytes);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// Names one call of one session: a retried mutating call carries the same id and has the effect of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId {
    /// The calling session.
    pub session: SessionId,
    /// Position in the session's sequence of calls, from 1. 0 marks an internal operation.
    pub sequence: u64,
}

/// Names one chunk of one file. The generation changes when a file is emptied, so that the old chunks can be
/// dropped later without touching the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    /// The file.
    pub inode: InodeId,
    /// The generation of the file's data ([`crate::FileLayout::generation`]).
    pub generation: u32,
    /// Position of the chunk in the file: byte offset / chunk size.
    pub index: u64,
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.inode, self.generation, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_id_keeps_shard_and_counter_apart() {
        let id = InodeId::new(ShardId(63), InodeId::COUNTER_MAX).unwrap();
        assert_eq!((id.home(), id.counter()), (ShardId(63), InodeId::COUNTER_MAX));
        assert_eq!(InodeId::new(ShardId(0), InodeId::COUNTER_MAX + 1), None);
        assert_eq!(InodeId::ROOT.home(), ShardId(0));
    }
}
