//! Chains of several copies: that a pool has some, who keeps them, who is to keep one more.
//!
//! What a membership becomes says `ashlar_replication::membership::plan`, and nothing else. Here is who may ask for it, and what managers ask for themselves.

use super::{ManagerService, pools, refused, works};
use crate::ManagerError;
use crate::map_change::{CHAINS_OF_COPIES_MAX, push_chains};
use crate::plan::chain_sets::Spread;
use crate::plan::chains::{Heard, Lacks, changes};
use ashlar_replication::membership::{Proposer, plan};
use ashlar_types::map::{Chain, ChainCopies, Target, TargetState};
use ashlar_types::membership::{Change, Membership};
use ashlar_types::message::{ChainChange, ManagerReply};
use ashlar_types::{ChainId, ClusterMap, Epoch, NodeId, Role, TargetId};
use std::collections::BTreeSet;
use std::time::Instant;

impl ManagerService {
    /// Has a pool keep chains with so many copies.
    pub(super) fn copy_pool(&self, name: &str, copies: u8) -> Result<ManagerReply, ManagerError> {
        let most = ChainCopies::COPIES_MAX;
        if !(2..=most).contains(&copies) {
            return Err(refused(format!(
                "{copies} copies: a pool keeps chains with 2 to {most} copies beside those with one, which it has always"
            )));
        }
        self.manager.change(|state| {
            let map = &mut state.map;
            let pool = pools::find(map, name)?.id;
            if map.chains.iter().any(|chain| chain.pool == pool && chain.copies_wanted() == copies) {
                return Ok(());
            }
            let spread = Spread::of(map, pool, copies);
            let servers = spread.servers();
            if servers.len() < usize::from(copies) {
                return Err(refused(too_few_servers(map, &servers, (name, copies))));
            }
            let groups = spread.whole_set();
            let known = map.chains_of_copies().count();
            if known + groups.len() > CHAINS_OF_COPIES_MAX {
                return Err(refused(format!(
                    "{} chains of several copies are too many for a file system that has {} of them: {CHAINS_OF_COPIES_MAX} at the most",
                    groups.len(),
                    known
                )));
            }
            push_chains(map, (pool, copies), groups);
            Ok(())
        })?;
        tracing::info!(pool = name, copies, "a pool keeps chains of several copies");
        Ok(ManagerReply::Done)
    }

    /// Changes who keeps the chunks of chains, for the target `by` of the caller, which is in them.
    pub(super) fn change_chains(
        &self,
        node: NodeId,
        by: TargetId,
        changes: &[ChainChange],
    ) -> Result<ManagerReply, ManagerError> {
        if changes.len() > ChainChange::AT_ONCE_MAX {
            return Err(refused(format!("more than {} changes at once", ChainChange::AT_ONCE_MAX)));
        }
        let reports = self.current_reports();
        self.change_or_look(|state| {
            let is_served = |target: &Target| target.node == node && target.state == TargetState::Online;
            // What it may ask for it may not in the place of whoever serves it by now.
            if !state.map.target(by).is_some_and(is_served) {
                return Err(refused(format!("{by} is not served by {node}")));
            }
            for ChainChange { chain, expected, change } in changes {
                let is_made =
                    change_chain(&mut state.map, (*chain, *expected), Proposer::Replica(by), *change);
                let gone = match change {
                    Change::Remove(target) if is_made => *target,
                    _ => continue,
                };
                if state.map.target(gone).is_some_and(|target| target.is_draining) {
                    works::note_gone(state, (*chain, gone), &reports);
                }
            }
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    /// Has copies be given to those that are to have one more, and taken from those that are being given one in vain. To be called every second or so, by every manager: what two
    /// of them ask for at the same time is done once.
    ///
    /// # Errors
    /// [`ManagerError`].
    pub fn plan_chain_copies(&self) -> Result<(), ManagerError> {
        let map = self.map().read().clone();
        if map.chains_of_copies().next().is_none() {
            return Ok(());
        }
        let heard = self.heard_of_targets(&map);
        let lacks = {
            let mut lacks = self.lacks.lock();
            lacks.look(&map, heard.now);
            lacks.clone()
        };
        if changes(&map, &heard, &lacks).is_empty() {
            return Ok(());
        }
        self.manager.change(|state| {
            for (chain, change) in changes(&state.map, &heard, &lacks) {
                let group = state.map.chain(chain).and_then(|chain| chain.group());
                let Some(Membership { epoch, .. }) = group else { continue };
                change_chain(&mut state.map, (chain, epoch), Proposer::Operator, change);
            }
            Ok(())
        })
    }

    pub(super) fn heard_of_targets(&self, map: &ClusterMap) -> Heard {
        let reports = self.current_reports();
        let last = reports.keys().filter_map(|target| {
            let node = map.target(*target)?.node;
            Some((*target, self.last_word(node, Role::Storage)?))
        });
        let is_away = |target: &&Target| {
            target.state == TargetState::Offline || self.away_for(target.node, Role::Storage).is_some()
        };
        let away = map.targets.iter().filter(is_away).map(|target| target.id).collect();
        let (last, is_complete) = (last.collect(), self.presences.can_tell());
        Heard { last, away, reports, is_complete, now: Instant::now() }
    }
}

/// What a manager remembers of chains that lack a copy.
pub(super) type Remembered = parking_lot::Mutex<Lacks>;

fn too_few_servers(map: &ClusterMap, servers: &BTreeSet<NodeId>, (pool, copies): (&str, u8)) -> String {
    let names: Vec<&str> =
        servers.iter().filter_map(|node| map.node(*node)).map(|node| node.name.as_str()).collect();
    let there = match names.as_slice() {
        [] => "no server has a target that takes part".to_owned(),
        names => format!("targets that take part are on {} only", names.join(" and ")),
    };
    format!(
        "{copies} copies are kept on {copies} different servers, and in the pool {pool} {there}: add targets on other servers first (`ashlar storage --pool {pool}` on a machine with a free disk)"
    )
}

/// Makes a change in a map that is about to be the next one, if the rules allow it. A chain is changed once on the way from one map to the next: the change says of which group it is.
fn change_chain(
    map: &mut ClusterMap,
    (id, expected): (ChainId, Epoch),
    by: Proposer<TargetId>,
    change: Change<TargetId>,
) -> bool {
    let next = Epoch(map.epoch.0 + 1);
    let chain = map.chains.get_mut(id.0 as usize).filter(|chain| chain.id == id);
    let Some((chain, group)) = chain.and_then(|chain| chain.group().map(|group| (chain, group))) else {
        return false;
    };
    if group.epoch >= next {
        return false;
    }
    match plan(&group, expected, by, change, next) {
        Ok(changed) => chain.set_group(&changed),
        Err(refusal) => {
            tracing::debug!(chain = %id, ?by, ?change, %refusal, "a chain is not changed");
            return false;
        }
    }
    true
}

/// Takes `target`, which leaves the file system, from those that chains wait for.
pub(super) fn forget_former(map: &mut ClusterMap, target: TargetId) {
    for copies in map.chains.iter_mut().filter_map(|chain| chain.copies.as_mut()) {
        copies.former.retain(|former| *former != target);
    }
}

/// Chains of several copies with `target` whose copy nobody of `takers` could have in its place, once all of `leaving` are drained: on another server than those that stay.
pub(super) fn without_taker(
    map: &ClusterMap,
    target: TargetId,
    (takers, leaving): (&[&Target], &[TargetId]),
) -> usize {
    let servers: BTreeSet<NodeId> = takers.iter().map(|taker| taker.node).collect();
    let stays = |member: &TargetId| {
        let is_draining = map.target(*member).is_none_or(|known| known.is_draining);
        !is_draining && !leaving.contains(member)
    };
    let is_stuck = |staying: &[NodeId]| servers.iter().all(|server| staying.contains(server));
    let staying_of = |chain: &Chain, copies: &ChainCopies| {
        let members = chain.targets.iter().chain(&copies.catching_up).filter(|member| stays(member));
        members.filter_map(|member| map.target(*member)).map(|known| known.node).collect::<Vec<_>>()
    };
    let copied = map.chains_with(target).filter_map(|chain| Some((chain, chain.copies.as_ref()?)));
    let staying = copied.map(|(chain, copies)| (staying_of(chain, copies), usize::from(copies.wanted)));
    staying.filter(|(staying, wanted)| staying.len() < *wanted && is_stuck(staying)).count()
}
