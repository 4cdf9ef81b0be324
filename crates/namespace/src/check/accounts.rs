//! Stage 1: accounting counters against the sum over the inodes of their shard.

use super::{Checker, Finding, Stop};
use crate::key;
use crate::record::{self, Account, Inode};
use ashlar_types::{FilesetId, ShardId, codec};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Fileset, user, group, month: the order of the keys.
type Owner = (FilesetId, u32, u32, u16);

const FIRST: Owner = (FilesetId(0), 0, 0, 0);

/// Compares the counters of one shard, as many per pass as fit.
pub(super) fn check_shard(checker: &mut Checker<'_>, shard: ShardId) -> Result<(), Stop> {
    let mut from = Some(FIRST);
    while let Some(start) = from {
        let (sums, next) = sum(checker, shard, start)?;
        compare(checker, shard, (start, next), sums)?;
        from = next;
    }
    Ok(())
}

/// Sums of the first counters from `start` on, and the first one that did not fit.
fn sum(
    checker: &mut Checker<'_>,
    shard: ShardId,
    start: Owner,
) -> Result<(BTreeMap<Owner, Account>, Option<Owner>), Stop> {
    let (from, to) = key::table_range(shard, b'I');
    let fit = checker.args.accounts_per_pass.max(1);
    let mut sums: BTreeMap<Owner, Account> = BTreeMap::new();
    let mut next: Option<Owner> = None;
    checker.scan(&from, &to, &mut |_, _, value| {
        // Inodes that do not decode are told in stage 2; no counter can be right for them.
        let Ok(inode) = codec::decode::<Inode>(value, "inode record") else {
            return Ok(ControlFlow::Continue(()));
        };
        let owner = (inode.fileset, inode.uid, inode.gid, record::month(inode.mtime));
        if owner < start || next.is_some_and(|next| owner >= next) {
            return Ok(ControlFlow::Continue(()));
        }
        let account = sums.entry(owner).or_default();
        account.inodes += 1;
        // As in `Txn::account`.
        account.bytes = account.bytes.wrapping_add(if inode.is_directory() { 0 } else { inode.size });
        account.blocks = account.blocks.saturating_add(inode.blocks);
        if sums.len() > fit {
            next = sums.pop_last().map(|(owner, _)| owner);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((sums, next))
}

/// Compares the stored counters in `[from, to)` with the sums, which have all of that range.
fn compare(
    checker: &mut Checker<'_>,
    shard: ShardId,
    (from, to): (Owner, Option<Owner>),
    mut sums: BTreeMap<Owner, Account>,
) -> Result<(), Stop> {
    let account_key = |owner: Owner| key::account(shard, owner.0, owner.1, owner.2, owner.3);
    let end = to.map_or_else(|| key::table_range(shard, b'A').1, account_key);
    let is_first = from == FIRST;
    let start = if is_first { key::table_range(shard, b'A').0 } else { account_key(from) };
    checker.scan(&start, &end, &mut |checker, record_key, value| {
        let Some(owner) = owner_of(record_key) else {
            checker.found(Finding::KeyMalformed { key: record_key.into() })?;
            return Ok(ControlFlow::Continue(()));
        };
        let stored: Option<Account> = codec::decode(value, "account").ok();
        let summed = sums.remove(&owner).unwrap_or_default();
        if stored != Some(summed) {
            checker.found(Finding::Account { shard, owner, stored, summed })?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (owner, summed) in sums {
        checker.found(Finding::Account { shard, owner, stored: Some(Account::default()), summed })?;
    }
    Ok(())
}

fn owner_of(record_key: &[u8]) -> Option<Owner> {
    let rest = record_key.get(3..).filter(|rest| rest.len() == 14)?;
    let u32_at = |at: usize| Some(u32::from_be_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let month = u16::from_be_bytes(rest.get(12..14)?.try_into().ok()?);
    Some((FilesetId(u32_at(0)?), u32_at(4)?, u32_at(8)?, month))
}
