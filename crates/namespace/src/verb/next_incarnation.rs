//! `next_incarnation`: numbers the starts of the service, so that what sessions have from before can be told from what they got since.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;
use ashlar_kv::Key;
use ashlar_types::{SessionId, ShardId};
use std::ops::ControlFlow;

/// The highest number of a start.
// LIMIT: numbers of recalls and events begin with it, and leave it 23 bits.
pub const INCARNATION_MAX: u64 = 0x7f_ffff;

/// The number of the start after the one numbered `last`. The first start of all, which makes the root, is 0 and has no record.
pub fn incarnation_after(last: Option<u64>) -> u64 {
    last.unwrap_or(0).wrapping_add(1) & INCARNATION_MAX
}

/// Notes that there were so many starts, all of which have noted which sessions are unmet.
pub fn count_starts(txn: &mut Txn<'_>, count: u64) {
    txn.put_record(key::incarnation(), &count);
    txn.put_record(key::unmet(SessionId(0)), &count);
}

/// Every session is one whose holder may have been here.
fn forget_hearsay(txn: &mut Txn<'_>) -> Result<(), NsError> {
    let (from, to) = key::table_range(ShardId(0), b'K');
    // LIMIT: as sessions.
    let mut unmet = Vec::new();
    txn.scan(&from, &to, &mut |record_key, _| {
        unmet.push(Key::from_slice(record_key));
        ControlFlow::Continue(())
    })?;
    unmet.into_iter().for_each(|record_key| txn.delete(record_key));
    Ok(())
}

/// Notes one more start, and whether something that was acknowledged before may have been lost; tells its number.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn next_incarnation(txn: &mut Txn<'_>, has_lost: bool) -> Result<u64, NsError> {
    let next = incarnation_after(txn.get_record(&key::incarnation(), "number of starts")?);
    // A start of an earlier version was in between: it does not note whose holders have come.
    if txn.get(&key::unmet(SessionId(0)))? != txn.get(&key::incarnation())? {
        forget_hearsay(txn)?;
    }
    count_starts(txn, next);
    if has_lost {
        txn.put_record(key::last_loss(), &next);
    }
    txn.mark_frees_space();
    Ok(next)
}
