//! The namespace: the check of crate `namespace`, its findings as problems, its repairs committed one by one.

use super::VERB_REPAIR;
use super::problem::{Class, Ledger, NAMED_MAX, Problem, State};
use crate::node;
use anyhow::{Context, Result};
use ashlar_kv::{Frame, Lane, Urgency};
use ashlar_namespace::check::{CheckArgs, CheckReport, Finding, check};
use ashlar_namespace::{NsError, OpContext, Placement, Txn, verb};
use ashlar_types::{ChainId, Credentials, InodeId, LayoutPolicy, OpId, SessionId, ShardId};
use smallvec::SmallVec;
use std::ops::ControlFlow;

/// Rounds of check and repair.
// LIMIT: a repair may uncover something; nothing is known that takes more than three rounds.
const ROUNDS_MAX: usize = 16;

/// Checks the tree and, with repair, puts right what can be put right without a person.
///
/// # Errors
/// When the metadata cannot be read or written.
pub fn check_tree(state: &node::State, lane: &Lane, ledger: &mut Ledger) -> Result<CheckReport> {
    let shards: Vec<ShardId> = state.manager.map().read().shards.iter().map(|shard| shard.id).collect();
    let mut round = 0;
    loop {
        round += 1;
        let (report, findings) = find(state, lane)?;
        let mut repaired = Vec::with_capacity(findings.len());
        // Named before it is repaired: afterwards an entry may be gone.
        let problems: Vec<Problem> = findings.iter().map(problem).collect();
        for finding in &findings {
            repaired.push(
                ledger.is_repairing
                    && repair(state, lane, finding).unwrap_or_else(|error| {
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
        ledger.print(Some((&lane.read(), &shards)))?;
        if is_last {
            return Ok(report);
        }
    }
}

fn find(state: &node::State, lane: &Lane) -> Result<(CheckReport, Vec<Finding>)> {
    let identity = state.manager.identity();
    let shard_count = u16::try_from(state.manager.map().read().shards.len()).unwrap_or(u16::MAX);
    let args = CheckArgs::new(shard_count, &identity.name_hash_key);
    let mut findings = Vec::new();
    let report = check(&lane.read(), &args, &mut |finding| {
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
        | F::Unreachable { inode }
        | F::Forgotten { inode } => (Some(*inode), None),
        F::BucketMalformed { directory, .. } => (Some(*directory), None),
        F::EntryMisplaced { entry }
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

/// Where repairs put what they make: in the shard of the parent, and nothing into chunks.
struct NoPlacement;

impl Placement for NoPlacement {
    fn shard_for_directory(&self, parent: InodeId) -> ShardId {
        parent.home()
    }

    fn chains_for_file(&self, _policy: &LayoutPolicy) -> SmallVec<[ChainId; 4]> {
        SmallVec::new()
    }
}

fn repair(state: &node::State, lane: &Lane, finding: &Finding) -> Result<bool> {
    change(state, lane, |txn, context| verb::repair(txn, context, finding))
}

/// Decides and commits one change of a repair; it may be written on a full disk too. Tells what `decide` told.
///
/// # Errors
/// What `decide` answers, with nothing changed, and what the log answers.
pub fn change(
    state: &node::State,
    lane: &Lane,
    decide: impl FnOnce(&mut Txn<'_>, &OpContext<'_>) -> Result<bool, NsError>,
) -> Result<bool> {
    let creds = Credentials::root();
    let context = OpContext {
        now: state.env.clock.now(),
        creds: &creds,
        session: SessionId(0),
        hash_key: &state.manager.identity().name_hash_key,
        placement: &NoPlacement,
        open_in: &|_| SmallVec::new(),
    };
    let epoch = state.manager.map().read().epoch;
    let mut writer = lane.write();
    let mut txn = Txn::new(&writer);
    let is_changed = decide(&mut txn, &context)?;
    let outcome = txn.finish()?;
    let frame = |(shard, writes)| Frame {
        shard,
        epoch,
        op: OpId::default(),
        verb: VERB_REPAIR,
        writes,
        reply: bytes::Bytes::new(),
    };
    let frames = outcome.writes.into_iter().map(frame).collect();
    writer.commit(frames, Urgency::FreesSpace).context("cannot write the metadata log")?;
    Ok(is_changed)
}
