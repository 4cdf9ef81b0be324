//! How far what is drained and rebalanced is: what managers have noted and counted, and how fast servers say that they send.

use super::ask_each;
use crate::cluster::Member;
use ashlar_console::object::rebuild::Rebuild;
use ashlar_console::object::work::Work;
use ashlar_rpc::{Payload, StorageCalls};
use ashlar_types::map::Target;
use ashlar_types::message::{
    CopyWork, ManagerReply, ManagerRequest, MoveProgress, MoveWork, StorageReply, StorageRequest,
};
use ashlar_types::{ChainId, ClusterMap, TargetId};
use std::collections::BTreeMap;
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

/// How far it is that lost copies are made good, of each pool that lacks some, and of each chain that is under way. Nothing where no manager tells, as those of earlier versions.
pub fn rebuilds(member: &Member, map: &ClusterMap) -> (Vec<Rebuild>, BTreeMap<ChainId, MoveProgress>) {
    if !map.chains_of_copies().any(|(chain, copies)| chain.is_short() || !copies.catching_up.is_empty()) {
        return Default::default();
    }
    let told = member.managers.call(&ManagerRequest::CopyWorks, Instant::now() + ANSWER_MAX);
    let works = match told {
        Ok(ManagerReply::CopyWorks(works)) => works,
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "no manager tells which copies are lacking");
            Vec::new()
        }
    };
    let sends = |target: &&Target| {
        let mut under_way = map.chains_of_copies().filter(|(_, copies)| !copies.catching_up.is_empty());
        under_way.any(|(chain, _)| chain.targets.contains(&target.id))
    };
    let senders: Vec<Target> = map.targets.iter().filter(sends).cloned().collect();
    let rates = rates(member, &senders);
    let progress = progress(member, &senders).into_values().flatten();
    let progress: BTreeMap<ChainId, MoveProgress> = progress
        .filter(|progress| map.is_copied(progress.chain))
        .map(|progress| (progress.chain, progress))
        .collect();
    let of = |work: CopyWork| {
        let is_meant = |chain: ChainId| {
            map.chain(chain).is_some_and(|chain| chain.pool == work.pool && chain.is_short())
        };
        let copied = progress.values().filter(|progress| is_meant(progress.chain));
        let bytes_copied = copied.fold(0, |sum: u64, progress| sum.saturating_add(progress.bytes_done));
        let from = senders.iter().filter(|sender| sender.pool == work.pool);
        let bytes_per_s = from
            .map(|sender| rates.get(&sender.id).copied())
            .try_fold(0, |sum: u64, rate| Some(sum.saturating_add(rate?)));
        Rebuild { work, bytes_copied, bytes_per_s }
    };
    (works.into_iter().map(of).collect(), progress)
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
