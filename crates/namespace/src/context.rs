//! What a verb is told about the world: everything that is not in the store and not an argument.

use ashlar_types::{ChainId, Credentials, InodeId, LayoutPolicy, SessionId, ShardId, Timespec};
use smallvec::SmallVec;

/// Placement decisions, made by the primary before the outcome is logged.
pub trait Placement {
    /// The shard whose turn it is, for a new directory in `parent`.
    fn shard_for_directory(&self, parent: InodeId) -> ShardId;
    /// Different shards for up to `count` slices of a directory, on different servers as far as that goes, and none of them `but`, which has the directory. As
    /// many as there are; none at all where they are not to be spread.
    fn shards_for_slices(&self, _but: ShardId, _count: u16) -> Vec<ShardId> {
        Vec::new()
    }
    /// The stripe for a file that outgrows its inode: one to 256 distinct chains of the policy's pool, at most as many as asked
    /// for; empty when the pool has no usable target.
    fn chains_for_file(&self, policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]>;
    /// The least generation that chunks may get by now: above those that were given out and forgotten, as the end of a log that was lost had them. A target may have such chunks yet.
    fn first_generation(&self) -> u32 {
        0
    }
}

/// The setting in which one call is decided.
pub struct OpContext<'a> {
    /// The time to stamp.
    pub now: Timespec,
    /// Who asks.
    pub creds: &'a Credentials,
    /// The session that asks.
    pub session: SessionId,
    /// The key of the name hash, drawn per file system.
    pub hash_key: &'a [u8; 16],
    /// Placement decisions.
    pub placement: &'a dyn Placement,
    /// Sessions that hold `inode` open now (an unlinked file lives on for them).
    pub open_in: &'a dyn Fn(InodeId) -> SmallVec<[SessionId; 2]>,
}
