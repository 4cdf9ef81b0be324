//! `skip_inode_ids`: no inode id is given out twice, whatever a power cut took from the end of the log.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_types::{InodeId, ShardId};
use std::ops::ControlFlow;

/// Ids left out. A power cut loses at most what was allotted between two flushes of the log (one second, and the time of a sync), far fewer
/// than 2^20; and 2^28 starts use up a shard.
pub const INODE_IDS_SKIPPED: u64 = 1 << 20;

/// Moves the inode counter of `shard` beyond every id that a part of the log which is lost may have given out. Ids matter outside of the log:
/// chunks carry them, and a target that is missing now may bring some back later. A counter that is damaged, below an id in use, is
/// raised above it first: a new file would take the place of another one.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn skip_inode_ids(txn: &mut Txn<'_>, shard: ShardId) -> Result<(), NsError> {
    let counter_key = key::counter(shard);
    let stored: u64 = txn.get_record(&counter_key, "inode counter")?.unwrap_or(1);
    let last = last_id_above(txn, shard, stored)?.unwrap_or(stored);
    txn.mark_frees_space();
    if last > stored {
        txn.put_record(counter_key.clone(), &last);
    }
    // A shard that is almost used up keeps its last ids: to refuse all creates is worse.
    if let Some(skipped) = last.checked_add(INODE_IDS_SKIPPED).filter(|next| *next <= InodeId::COUNTER_MAX) {
        txn.put_record(counter_key, &skipped);
    }
    Ok(())
}

/// Stores the counter of a shard of which no id was given out yet: what it would be taken for without.
///
/// # Errors
/// `EIO` from the store.
pub fn begin_inode_ids(txn: &mut Txn<'_>, shard: ShardId) -> Result<(), NsError> {
    if txn.get_record::<u64>(&key::counter(shard), "inode counter")?.is_none() {
        txn.put_record(key::counter(shard), &1u64);
    }
    Ok(())
}

/// The last id in use above `counter`; there is none in a sound shard.
fn last_id_above(txn: &Txn<'_>, shard: ShardId, counter: u64) -> Result<Option<u64>, NsError> {
    let Some(first) = counter.checked_add(1).and_then(|next| InodeId::new(shard, next)) else {
        return Ok(None);
    };
    let (_, end) = key::table_range(shard, b'I');
    let mut last = None;
    txn.scan(&key::inode(first), &end, &mut |key, _| {
        last = key::inode_of(key).map(InodeId::counter).or(last);
        ControlFlow::Continue(())
    })?;
    Ok(last)
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
    fn a_counter_below_an_id_in_use_is_raised_above_it() {
        let mut world = World::new();
        let files: Vec<InodeId> =
            ["a", "b", "c"].iter().map(|name| world.make_file(InodeId::ROOT, name)).collect();
        world
            .as_root(|txn, _| {
                txn.put_record(key::counter(ShardId(0)), &2u64);
                Ok(())
            })
            .unwrap();
        world.as_root(|txn, _| skip_inode_ids(txn, ShardId(0))).unwrap();
        let last = files.iter().filter(|id| id.home() == ShardId(0)).map(|id| id.counter()).max().unwrap();
        assert_eq!(world.make_file(InodeId::ROOT, "d").counter(), last + INODE_IDS_SKIPPED + 1);
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
