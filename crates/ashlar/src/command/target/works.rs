//! How far what is drained and rebalanced is: what managers have noted and counted, and how fast servers say that they send.

use super::ask_each;
use crate::cluster::Member;
use ashlar_console::object::rebuild::Rebuild;
use ashlar_console::object::work::Work;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::{Chain, ChainCopies, Target};
use ashlar_types::message::{
    CopyWork, ManagerReply, ManagerRequest, MoveProgress, MoveWork, StorageReply, StorageRequest,
};
use ashlar_types::{ChainId, ClusterMap, PoolId, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// LIMIT: for how long a manager is waited for; what else is known is shown without it.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// How far everything is that is drained or rebalanced. Nothing where no manager tells, as those of earlier versions.
pub fn all(member: &Member, map: &ClusterMap) -> Vec<Work> {
    let is_any = map.targets.iter().any(|target| target.is_draining) || !map.moves.rebalancing.is_empty();
    if !is_any {
        return Vec::new();
    }
    let told = member.managers.call(&ManagerRequest::MoveWorks, Instant::now() + ANSWER_MAX);
    let works = match told {
        Ok(ManagerReply::MoveWorks(works)) => works,
        Ok(_) => return Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "no manager tells how far drains and rebalancing are");
            return Vec::new();
        }
    };
    let sources = sources(map);
    let under_way = progress(member, &sources);
    let rates = rates(member, &sources);
    let of = |work: MoveWork| {
        let is_meant = |id: &TargetId| match (work.target, map.target(*id)) {
            (Some(target), _) => *id == target,
            (None, Some(source)) => source.pool == work.pool && !source.is_draining,
            (None, None) => false,
        };
        let copied = under_way.iter().filter(|(id, _)| is_meant(id)).flat_map(|(_, moves)| moves);
        let bytes_copied = copied.fold(0, |sum: u64, progress| sum.saturating_add(progress.bytes_done));
        // Where nothing moves just now, nothing is fast; a server that did not tell leaves it unknown.
        let from: Vec<&Target> = sources.iter().filter(|source| is_meant(&source.id)).collect();
        let bytes_per_s = from
            .iter()
            .map(|source| rates.get(&source.id).copied())
            .try_fold(0, |sum: u64, rate| Some(sum.saturating_add(rate?)));
        Work { work, bytes_copied, bytes_per_s, is_paused: map.moves.is_paused }
    };
    works.into_iter().map(of).collect()
}

/// How far it is that lost copies are made good: of each pool that lacks some, or of `pool` alone, and of each chain that is under way. Nothing where no manager tells, as those of earlier
/// versions.
pub fn rebuilds(
    member: &Member,
    map: &ClusterMap,
    pool: Option<PoolId>,
) -> (Vec<Rebuild>, BTreeMap<ChainId, MoveProgress>) {
    let under_way = |(chain, copies): &(&Chain, &ChainCopies)| {
        pool.is_none_or(|pool| chain.pool == pool) && !copies.catching_up.is_empty()
    };
    // The last one that has all of it sends.
    let sends = |(chain, _): (&Chain, &ChainCopies)| chain.targets.last().copied();
    let senders: BTreeSet<TargetId> = map.chains_of_copies().filter(under_way).filter_map(sends).collect();
    let senders: Vec<Target> = senders.iter().filter_map(|id| map.target(*id)).cloned().collect();
    let progress = progress(member, &senders).into_values().flatten();
    let progress: BTreeMap<ChainId, MoveProgress> = progress
        .filter(|progress| map.is_copied(progress.chain))
        .map(|progress| (progress.chain, progress))
        .collect();
    let works =
        if map.chains_of_copies().any(|(chain, _)| chain.is_short()) { lacking(member) } else { Vec::new() };
    let rates = if works.is_empty() { BTreeMap::new() } else { rates(member, &senders) };
    let of = |work: CopyWork| {
        let is_meant = |chain: &Chain| chain.pool == work.pool && chain.is_short();
        let meant = || map.chains_of_copies().filter(under_way).filter(|(chain, _)| is_meant(chain));
        let copied = meant().filter_map(|(chain, _)| progress.get(&chain.id));
        let bytes_copied = copied.fold(0, |sum: u64, progress| sum.saturating_add(progress.bytes_done));
        let from: BTreeSet<TargetId> = meant().filter_map(sends).collect();
        let bytes_per_s = from
            .iter()
            .map(|sender| rates.get(sender).copied())
            .try_fold(0, |sum: u64, rate| Some(sum.saturating_add(rate?)));
        Rebuild { work, bytes_copied, bytes_per_s }
    };
    let works = works.into_iter().filter(|work| pool.is_none_or(|pool| work.pool == pool));
    (works.map(of).collect(), progress)
}

/// Chains that lack copies, as a manager has them.
fn lacking(member: &Member) -> Vec<CopyWork> {
    match member.managers.call(&ManagerRequest::CopyWorks, Instant::now() + ANSWER_MAX) {
        Ok(ManagerReply::CopyWorks(works)) => works,
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "no manager tells which copies are lacking");
            Vec::new()
        }
    }
}

/// How fast each of these targets is copied from whose server tells, bytes in a second.
fn rates(member: &Member, sources: &[Target]) -> BTreeMap<TargetId, u64> {
    ask_each(member, sources, |storage, target| {
        match storage.call(&StorageRequest::MoveRate { target }, Payload::None) {
            Ok(StorageReply::MoveRate(bytes_per_s)) => Some(bytes_per_s),
            _ => None,
        }
    })
}

/// Targets that chains are just moving from.
pub fn sources(map: &ClusterMap) -> Vec<Target> {
    let leaves = |target: &&Target| map.chains_at(target.id).any(|chain| chain.moving.is_some());
    map.targets.iter().filter(leaves).cloned().collect()
}

/// How far the moves from each of these targets are whose server tells.
pub fn progress(member: &Member, sources: &[Target]) -> BTreeMap<TargetId, Vec<MoveProgress>> {
    ask_each(member, sources, |storage, target| {
        match storage.call(&StorageRequest::Moves { target }, Payload::None) {
            Ok(StorageReply::Moves(moves)) => Some(moves),
            _ => None,
        }
    })
}
