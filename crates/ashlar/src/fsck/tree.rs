//! The namespace: the check of crate `namespace`, its findings as problems, its repairs committed one by one.

use super::problem::{Class, Ledger, NAMED_MAX, Problem, State};
use super::whole::Whole;
use anyhow::{Context, Result};
use ashlar_namespace::check::{CheckArgs, CheckReport, Finding, check};
use ashlar_namespace::verb;
use std::ops::ControlFlow;

/// Rounds of check and repair.
// LIMIT: a repair may uncover something; nothing is known that takes more than three rounds.
const ROUNDS_MAX: usize = 16;

/// Checks the tree and, with repair, puts right what can be put right without a person.
///
/// # Errors
/// When the metadata cannot be read or written.
pub fn check_tree(whole: &Whole<'_>, ledger: &mut Ledger) -> Result<CheckReport> {
    let shards = whole.shards();
    let mut round = 0;
    loop {
        round += 1;
        let (report, findings) = find(whole)?;
        let mut repaired = Vec::with_capacity(findings.len());
        // Named before it is repaired: afterwards an entry may be gone.
        let problems: Vec<Problem> = findings.iter().map(problem).collect();
        for finding in &findings {
            repaired.push(
                ledger.is_repairing
                    && repair(whole, finding).unwrap_or_else(|error| {
                        tracing::error!(%finding, "could not be repaired: {error:#}");
                        false
                    }),
            );
        }
        let is_last = !repaired.contains(&true) || round >= ROUNDS_MAX;
        for (mut problem, was_repaired) in problems.into_iter().zip(repaired) {
            // What is still there will be found again in the next round.
            if was_repaired || is_last {
                if problem.state == State::Repairable {
                    problem.state = ledger.state_after(was_repaired);
                }
                ledger.add(problem);
            }
        }
        ledger.print(Some((&whole.snapshot()?, &shards)))?;
        if is_last {
            return Ok(report);
        }
    }
}

fn find(whole: &Whole<'_>) -> Result<(CheckReport, Vec<Finding>)> {
    let shard_count = u16::try_from(whole.map.shards.len()).unwrap_or(u16::MAX);
    let args = CheckArgs::new(shard_count, &whole.hash_key);
    let (mut findings, snapshot) = (Vec::new(), whole.snapshot()?);
    let report = check(&snapshot, &args, &mut |finding| {
        findings.push(finding);
        if findings.len() < NAMED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .context("cannot read the metadata")?;
    Ok((report, findings))
}

fn problem(finding: &Finding) -> Problem {
    use Finding as F;
    let (inode, name) = match finding {
        F::InodeMalformed { inode, .. }
        | F::DirectorySize { inode, .. }
        | F::Nlink { inode, .. }
        | F::Blocks { inode, .. }
        | F::BodyBeyondEnd { inode, .. }
        | F::LinkSize { inode, .. }
        | F::XattrFlag { inode, .. }
        | F::OrphanNamed { inode, .. }
        | F::GarbageLive { inode, .. }
        | F::GarbageAhead { inode, .. }
        | F::Parent { inode, .. }
        | F::Loop { inode }
        | F::SliceStray { inode, .. }
        | F::SplitForgotten { inode }
        | F::SliceMissing { directory: inode, .. }
        | F::SliceRules { directory: inode, .. }
        | F::Unreachable { inode }
        | F::Forgotten { inode } => (Some(*inode), None),
        F::BucketMalformed { directory, .. } => (Some(*directory), None),
        F::EntryMisplaced { entry }
        | F::EntryOutside { entry }
        | F::EntryDangling { entry, .. }
        | F::EntryType { entry, .. }
        | F::EntryExtra { entry, .. } => (Some(entry.directory), Some(entry.name.to_vec())),
        F::KeyMalformed { key } | F::ValueMalformed { key } | F::RecordStray { key } => {
            (ashlar_namespace::key::inode_of(key), None)
        }
        F::Account { .. } | F::CounterLow { .. } => (None, None),
    };
    let class = if matches!(finding, F::Account { .. } | F::CounterLow { .. }) {
        Class::Accounting
    } else {
        Class::Tree
    };
    let (state, remedy) = match finding.remedy() {
        Some(remedy) => (State::Repairable, remedy),
        None => (State::Left, "restore the metadata from a backup, or live without it"),
    };
    Problem { class, inode, name, what: finding.to_string(), remedy: remedy.to_owned(), state }
}

fn repair(whole: &Whole<'_>, finding: &Finding) -> Result<bool> {
    whole.change(|txn, context| verb::repair(txn, context, finding))
}
