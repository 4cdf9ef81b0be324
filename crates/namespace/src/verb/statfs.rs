//! `statfs`: how much is stored, from the accounting counters alone.

use crate::context::OpContext;
use crate::error::NsError;
use crate::key;
use crate::record::Account;
use crate::txn::Txn;
use ashlar_types::{ShardId, codec};
use std::ops::ControlFlow;

/// The sum of all accounting counters of `shards`. Its cost grows with the number of counters, not of files.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer or a counter does not decode.
pub fn statfs(txn: &Txn<'_>, _context: &OpContext<'_>, shards: &[ShardId]) -> Result<Account, NsError> {
    let mut sum = Account::default();
    for &shard in shards {
        let (from, to) = key::table_range(shard, b'A');
        let mut damage = None;
        txn.scan(&from, &to, &mut |_, value| match codec::decode::<Account>(value, "account") {
            Ok(account) => {
                sum.inodes = sum.inodes.saturating_add(account.inodes);
                sum.bytes = sum.bytes.saturating_add(account.bytes);
                sum.blocks = sum.blocks.saturating_add(account.blocks);
                ControlFlow::Continue(())
            }
            Err(error) => {
                damage = Some(error);
                ControlFlow::Break(())
            }
        })?;
        if let Some(error) = damage {
            return Err(error.into());
        }
    }
    Ok(sum)
}
