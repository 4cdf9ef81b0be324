//! `skip_inode_ids`: no inode id is given out twice, whatever a power cut took from the end of the log.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::{InodeId, ShardId};

/// Ids left out. A power cut loses at most what was allotted between two flushes of the log (one second, and the time of a sync), far fewer
/// than 2^20; and 2^28 starts use up a shard.
pub const INODE_IDS_SKIPPED: u64 = 1 << 20;

/// Moves the inode counter of `shard` beyond every id that a part of the log which is lost may have given out. Ids matter outside of the log:
/// chunks carry them, and a target that is missing now may bring some back later.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn skip_inode_ids(txn: &mut Txn<'_>, shard: ShardId) -> Result<(), NsError> {
    let counter_key = key::counter(shard);
    let last: u64 = txn.get_record(&counter_key, "inode counter")?.unwrap_or(1);
    txn.mark_frees_space();
    // A shard that is almost used up keeps its last ids: to refuse all creates is worse.
    if let Some(skipped) = last.checked_add(INODE_IDS_SKIPPED).filter(|next| *next <= InodeId::COUNTER_MAX) {
        txn.put_record(counter_key, &skipped);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    #[test]
    fn ids_that_a_power_cut_took_back_are_not_given_out_again() {
        let mut world = World::new();
        let before = world.make_file(InodeId::ROOT, "before");
        world.as_root(|txn, _| skip_inode_ids(txn, ShardId(0))).unwrap();
        let after = world.make_file(InodeId::ROOT, "after");
        assert_eq!(after.counter(), before.counter() + INODE_IDS_SKIPPED + 1);
    }

    #[test]
    fn a_shard_that_is_almost_used_up_keeps_its_last_ids() {
        let mut world = World::new();
        let almost = InodeId::COUNTER_MAX - 10;
        world
            .as_root(|txn, _| {
                txn.put_record(key::counter(ShardId(0)), &almost);
                skip_inode_ids(txn, ShardId(0))
            })
            .unwrap();
        assert_eq!(world.make_file(InodeId::ROOT, "last").counter(), almost + 1);
    }
}
