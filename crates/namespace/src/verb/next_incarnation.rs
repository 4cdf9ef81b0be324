//! `next_incarnation`: numbers the starts of the service, so that what sessions have from before can be told from what they got since.

use crate::error::NsError;
use crate::key;
use crate::txn::Txn;

/// The highest number of a start.
// LIMIT: numbers of recalls and events begin with it, and leave it 23 bits.
pub const INCARNATION_MAX: u64 = 0x7f_ffff;

/// The number of the start after the one numbered `last`. The first start of all, which makes the root, is 0 and has no record.
pub fn incarnation_after(last: Option<u64>) -> u64 {
    last.unwrap_or(0).wrapping_add(1) & INCARNATION_MAX
}

/// Notes one more start, and whether something that was acknowledged before may have been lost; tells its number.
///
/// # Errors
/// [`NsError::Kv`] when the store cannot answer.
pub fn next_incarnation(txn: &mut Txn<'_>, has_lost: bool) -> Result<u64, NsError> {
    let next = incarnation_after(txn.get_record(&key::incarnation(), "number of starts")?);
    txn.put_record(key::incarnation(), &next);
    if has_lost {
        txn.put_record(key::last_loss(), &next);
    }
    txn.mark_frees_space();
    Ok(next)
}
