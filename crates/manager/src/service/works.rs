//! How far what is drained and rebalanced is: noted with the state, so that it goes on being told after a manager was started anew, and by any of them.

use super::ManagerService;
use crate::ManagerError;
use crate::plan::chains::waits;
use crate::plan::{Sizes, excess};
use crate::state::{ClusterState, WorkRecord};
use ashlar_types::message::{CopyWork, ManagerReply, MoveWork, TargetReport};
use ashlar_types::{ChainId, ClusterMap, PoolId, TargetId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Notes what has begun to be drained or rebalanced, and forgets what is not any more.
pub(super) fn note(state: &mut ClusterState, now_s: u64) {
    let ClusterState { map, moves, .. } = state;
    let drained = map.targets.iter().filter(|target| target.is_draining);
    let drained = drained.map(|target| (Some(target.id), target.pool));
    let wanted: Vec<(Option<TargetId>, PoolId)> =
        drained.chain(map.moves.rebalancing.iter().map(|pool| (None, *pool))).collect();
    let of = |work: &WorkRecord| (work.target, work.pool);
    moves.works.retain(|work| wanted.contains(&of(work)));
    for (target, pool) in wanted {
        if !moves.works.iter().any(|work| of(work) == (target, pool)) {
            moves.works.push(WorkRecord { target, pool, since_s: now_s, chains_done: 0, bytes_done: 0 });
        }
    }
}

/// Notes that `chain` has gone from the target `from`, as it was to.
pub(super) fn note_gone(
    state: &mut ClusterState,
    (chain, from): (ChainId, TargetId),
    reports: &BTreeMap<TargetId, TargetReport>,
) {
    let Some(source) = state.map.target(from) else { return };
    let (is_drained, pool) = (source.is_draining, source.pool);
    let is_meant = |work: &&mut WorkRecord| match work.target {
        Some(target) => target == from,
        None => work.pool == pool && !is_drained,
    };
    let bytes = reports.get(&from).map_or(0, |report| bytes_of(report, |known| known == chain));
    for work in state.moves.works.iter_mut().filter(is_meant) {
        work.chains_done = work.chains_done.saturating_add(1);
        work.bytes_done = work.bytes_done.saturating_add(bytes);
    }
}

fn bytes_of(report: &TargetReport, is_meant: impl Fn(ChainId) -> bool) -> u64 {
    let meant = report.bytes_by_chain.iter().filter(|(chain, _)| is_meant(*chain));
    // A server may tell of a chain as often as it wants.
    meant.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
}

/// What is left to be done of `work`.
fn left(
    map: &ClusterMap,
    work: &WorkRecord,
    reports: &BTreeMap<TargetId, TargetReport>,
) -> (u64, Option<u64>) {
    let Some(target) = work.target else {
        let excess = excess(map, work.pool, reports, &Sizes::told_in(reports));
        return (excess.map_or(0, |(chains, _)| chains), excess.map(|(_, bytes)| bytes));
    };
    let is_here = |chain| map.chain(chain).is_some_and(|chain| chain.is_member(target));
    let bytes = reports.get(&target).map(|report| bytes_of(report, is_here));
    (map.chains_with(target).count() as u64, bytes)
}

impl ManagerService {
    /// How far everything is that is drained or rebalanced.
    pub fn works(&self) -> Vec<MoveWork> {
        let (reports, mut noted) = (self.current_reports(), self.manager.state());
        // Begun by a manager that noted nothing.
        note(&mut noted, self.now_s());
        let told = |work: &WorkRecord| {
            let (chains_left, bytes_left) = left(&noted.map, work, &reports);
            let WorkRecord { target, pool, since_s, chains_done, bytes_done } = *work;
            let is_estimated = target.is_none();
            MoveWork { target, pool, since_s, chains_done, bytes_done, chains_left, bytes_left, is_estimated }
        };
        noted.moves.works.iter().map(told).collect()
    }

    /// Which chains lack copies, and how much that is.
    pub fn copy_works(&self) -> Vec<CopyWork> {
        let map = self.map().read().clone();
        if !map.chains_of_copies().any(|(chain, _)| chain.is_short()) {
            return Vec::new();
        }
        let (heard, lacks) = (self.heard_of_targets(&map), self.lacks.lock().clone());
        let (waits, sizes) = (waits(&map, &heard, &lacks), Sizes::told_in(&heard.reports));
        let mut works: BTreeMap<PoolId, CopyWork> = BTreeMap::new();
        for (chain, copies) in map.chains_of_copies().filter(|(chain, _)| chain.is_short()) {
            let none = CopyWork {
                pool: chain.pool,
                chains_short: 0,
                chains_under_way: 0,
                bytes_lacking: 0,
                chains_untold: 0,
                waits_s: None,
            };
            let work = works.entry(chain.pool).or_insert(none);
            work.chains_short += 1;
            work.chains_under_way += u64::from(!copies.catching_up.is_empty());
            work.waits_s = work.waits_s.max(waits.get(&chain.id).map(Duration::as_secs));
            let lacking = usize::from(copies.wanted).saturating_sub(chain.targets.len()) as u64;
            match chain.targets.iter().any(|target| heard.reports.contains_key(target)) {
                true => {
                    let bytes = sizes.told(chain.id).saturating_mul(lacking);
                    work.bytes_lacking = work.bytes_lacking.saturating_add(bytes);
                }
                false => work.chains_untold += 1,
            }
        }
        works.into_values().collect()
    }

    pub(super) fn set_shard_moves(&self, is_paused: bool) -> Result<ManagerReply, ManagerError> {
        self.manager.change(|state| {
            state.moves.are_shards_paused = is_paused;
            Ok(())
        })?;
        tracing::info!(is_paused, "moves of shards were paused, or are to go on");
        Ok(ManagerReply::Done)
    }

    pub(super) fn shard_moves(&self) -> ManagerReply {
        ManagerReply::ShardMoves { is_paused: self.manager.with_state(|state| state.moves.are_shards_paused) }
    }
}
