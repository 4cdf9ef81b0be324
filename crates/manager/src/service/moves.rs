//! Moves of chains between targets: who is to be drained, what targets have told, which moves begin and end.

use super::chains::{forget_former, without_taker};
use super::{ManagerService, refused, works};
use crate::ManagerError;
use crate::plan::{Avoidance, Avoided, Plan, plan};
use ashlar_replication::hand_over::chain::{Ending, end};
use ashlar_types::map::{Move, TargetState};
use ashlar_types::message::{ManagerReply, TargetReport};
use ashlar_types::{ChainId, ClusterMap, Epoch, NodeId, PoolId, Role, TargetId};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// For how long what a target has told is gone by.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// For how long a chain does not go where it did not get while there is another target for it, and if there is none.
const AVOIDED_FOR: Duration = Duration::from_secs(60);
const AVOIDED_ALONE: Duration = Duration::from_secs(3);

/// What targets have told of themselves, in memory: it is old soon.
#[derive(Default)]
pub(super) struct Reports {
    // LIMIT: as targets of the map.
    by_target: Mutex<BTreeMap<TargetId, (Instant, TargetReport)>>,
    /// Since when this manager knows that pools are to be rebalanced.
    // LIMIT: as pools.
    rebalancing_since: Mutex<BTreeMap<PoolId, Instant>>,
    /// Moves that were given up, and when.
    // LIMIT: as chains, for as long as they are avoided.
    given_up: Mutex<BTreeMap<(ChainId, TargetId), Instant>>,
}

impl Reports {
    /// Reports that are not old; of pools that are rebalanced those alone that were made since that was asked for: by older ones a pool could seem to
    /// be balanced.
    fn current(&self, map: &ClusterMap) -> BTreeMap<TargetId, TargetReport> {
        let mut rebalancing_since = self.rebalancing_since.lock();
        rebalancing_since.retain(|pool, _| map.moves.rebalancing.contains(pool));
        for pool in &map.moves.rebalancing {
            rebalancing_since.entry(*pool).or_insert_with(Instant::now);
        }
        let mut by_target = self.by_target.lock();
        by_target.retain(|_, (told, _)| told.elapsed() < REPORT_MAX);
        let is_new = |(target, (told, _)): &(&TargetId, &(Instant, TargetReport))| {
            let since = map.target(**target).and_then(|target| rebalancing_since.get(&target.pool));
            since.is_none_or(|since| told > since)
        };
        let current = by_target.iter().filter(is_new);
        current.map(|(target, (_, report))| (*target, report.clone())).collect()
    }
}

impl Reports {
    fn avoided(&self) -> Avoided {
        let mut given_up = self.given_up.lock();
        given_up.retain(|_, when| when.elapsed() < AVOIDED_FOR);
        let avoidance = |when: &Instant| match when.elapsed() < AVOIDED_ALONE {
            true => Avoidance::Entirely,
            false => Avoidance::UnlessAlone,
        };
        given_up.iter().map(|(place, when)| (*place, avoidance(when))).collect()
    }
}

/// Most that a chain on a target is believed to have, bytes.
// LIMIT: so that sums over all chains stay in range, whatever a server says.
const CHAIN_BYTES_MAX: u64 = 1 << 44;

fn no_target(id: TargetId) -> ManagerError {
    refused(format!("there is no {id}; `ashlar target list` shows all"))
}

/// "1 chain leads", "2 chains lead".
fn leading(chains: usize) -> String {
    if chains == 1 { "1 chain leads".to_owned() } else { format!("{chains} chains lead") }
}

impl ManagerService {
    /// Whether somebody can take chains from `targets`, if they are all drained.
    fn require_takers(&self, map: &ClusterMap, targets: &[TargetId]) -> Result<(), ManagerError> {
        for &id in targets {
            let target = map.target(id).ok_or_else(|| no_target(id))?;
            let others = map.targets.iter().filter(|other| {
                other.pool == target.pool
                    && !other.is_draining
                    && other.state == TargetState::Online
                    && !targets.contains(&other.id)
            });
            let (away, there): (Vec<_>, Vec<_>) =
                others.partition(|other| self.away_for(other.node, Role::Storage).is_some());
            let is_led_to = map.chains_at(id).any(|chain| chain.copies.is_none());
            let stuck = without_taker(map, id, (&there, targets));
            if (!there.is_empty() || !is_led_to) && stuck == 0 {
                continue;
            }
            let pool = map.pools.iter().find(|pool| pool.id == target.pool).map_or("", |pool| &pool.name);
            let mut silent: Vec<NodeId> = away.iter().map(|other| other.node).collect();
            silent.sort();
            silent.dedup();
            let silent: Vec<String> =
                silent.into_iter().map(|node| self.silence_text(map, node, Role::Storage)).collect();
            if !there.is_empty() {
                return Err(refused(format!(
                    "nobody in the pool {pool} can keep the copies of {} that are on {id}: the others are on servers that keep one of the same already{}; add a target on another server first (`ashlar storage --pool {pool}` there)",
                    if stuck == 1 { "1 chain".to_owned() } else { format!("{stuck} chains") },
                    silent.iter().map(|text| format!(", or {text}")).collect::<String>()
                )));
            }
            return Err(refused(match silent.is_empty() {
                true => format!(
                    "no other target of the pool {pool} is there to take what is on {id}: add one first (`ashlar storage --pool {pool}` on a machine with a free disk)"
                ),
                false => format!(
                    "no other target of the pool {pool} is there to take what is on {id}: {}; start a server again, or add a target, first",
                    silent.join("; ")
                ),
            }));
        }
        Ok(())
    }

    /// What targets have told whose servers are there: nothing is moved to others.
    pub(super) fn current_reports(&self) -> BTreeMap<TargetId, TargetReport> {
        let map = self.map().read().clone();
        let mut reports = self.reports.current(&map);
        reports.retain(|id, _| {
            map.target(*id).is_some_and(|target| self.away_for(target.node, Role::Storage).is_none())
        });
        reports
    }

    pub(super) fn set_draining(
        &self,
        targets: &[TargetId],
        is_draining: bool,
    ) -> Result<ManagerReply, ManagerError> {
        let now_s = self.now_s();
        self.manager.change(|state| {
            let map = &mut state.map;
            if let Some(unknown) = targets.iter().find(|id| map.target(**id).is_none()) {
                return Err(no_target(*unknown));
            }
            let is_so =
                |id: &&TargetId| map.target(**id).is_some_and(|target| target.is_draining == is_draining);
            if targets.iter().all(|id| is_so(&id)) {
                return Ok(());
            }
            if is_draining {
                self.require_takers(map, targets)?;
            }
            for target in map.targets.iter_mut().filter(|target| targets.contains(&target.id)) {
                target.is_draining = is_draining;
            }
            for chain in &mut map.chains {
                let (head, to) = (chain.targets.first().copied(), chain.moving.map(|moving| moving.to));
                let is_named = |target: Option<TargetId>| target.is_some_and(|id| targets.contains(&id));
                // What is to stay does not go, and what is drained gets nothing more.
                if is_named(if is_draining { to } else { head }) {
                    chain.moving = None;
                }
            }
            works::note(state, now_s);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn remove_target(&self, id: TargetId) -> Result<ManagerReply, ManagerError> {
        let now_s = self.now_s();
        self.manager.change(|state| {
            let map = &mut state.map;
            let target = map.target(id).ok_or_else(|| no_target(id))?;
            let chains = map.chains_with(id).count();
            if chains > 0 {
                let leading = leading(chains);
                return Err(refused(match (target.is_draining, map.moves.is_paused) {
                    (false, _) => format!(
                        "{leading} to {id}: `ashlar target drain {}` moves what is on it to others first",
                        id.0
                    ),
                    (true, true) => format!(
                        "{id} is being drained, {leading} to it, and moves are paused: `ashlar target moves --resume` has them go on"
                    ),
                    (true, false) => format!(
                        "{id} is being drained, and {leading} to it yet: `ashlar target moves` shows how far that is"
                    ),
                }));
            }
            for chain in &mut map.chains {
                if chain.moving.is_some_and(|moving| moving.to == id) {
                    chain.moving = None;
                }
            }
            forget_former(map, id);
            map.targets.retain(|target| target.id != id);
            works::note(state, now_s);
            Ok(())
        })?;
        tracing::info!(target = %id, "a target was taken out of the file system");
        Ok(ManagerReply::Done)
    }

    pub(super) fn set_moves(
        &self,
        is_paused: Option<bool>,
        rate_mib_s: Option<u32>,
        rebalancing: Option<(PoolId, bool)>,
    ) -> Result<ManagerReply, ManagerError> {
        let now_s = self.now_s();
        self.manager.change(|state| {
            let map = &mut state.map;
            let moves = &mut map.moves;
            moves.is_paused = is_paused.unwrap_or(moves.is_paused);
            moves.rate_mib_s = rate_mib_s.unwrap_or(moves.rate_mib_s);
            let Some((pool, is_wanted)) = rebalancing else { return Ok(()) };
            if !map.pools.iter().any(|known| known.id == pool) {
                return Err(refused(format!("there is no {pool}")));
            }
            moves.rebalancing.retain(|known| *known != pool);
            if is_wanted {
                moves.rebalancing.push(pool);
                works::note(state, now_s);
                return Ok(());
            }
            // Moves that only balance end with it.
            let stays =
                |id: TargetId| map.targets.iter().any(|target| target.id == id && !target.is_draining);
            for chain in map.chains.iter_mut().filter(|chain| chain.pool == pool) {
                if chain.targets.first().is_some_and(|head| stays(*head)) {
                    chain.moving = None;
                }
            }
            works::note(state, now_s);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn report_targets(
        &self,
        node: NodeId,
        targets: Vec<TargetReport>,
    ) -> Result<ManagerReply, ManagerError> {
        let map = self.map().read().clone();
        let mut by_target = self.reports.by_target.lock();
        for mut report in targets {
            for (_, bytes) in &mut report.bytes_by_chain {
                *bytes = (*bytes).min(CHAIN_BYTES_MAX);
            }
            if map.target(report.target).is_some_and(|target| target.node == node) {
                by_target.insert(report.target, (Instant::now(), report));
            }
        }
        Ok(ManagerReply::Done)
    }

    /// Gives a chain to the target that has all of it, or gives the move up. What it tells is certain, also that it did not happen: the caller serves
    /// the chain again then.
    pub(super) fn end_move(
        &self,
        node: NodeId,
        id: ChainId,
        (from, since): (TargetId, Epoch),
        is_given_up: bool,
    ) -> Result<ManagerReply, ManagerError> {
        let (reports, avoided) = (self.current_reports(), self.reports.avoided());
        let (mut given_up, now_s) = (None, self.now_s());
        let is_finished = self.manager.change_and_prove(|state| {
            let map = &mut state.map;
            // Whoever says what is not so has no part in it.
            if map.target(from).is_none_or(|target| target.node != node) {
                return Err(refused(format!("{from} is no target of {node}")));
            }
            let chain = map.chains.get_mut(id.0 as usize).filter(|chain| chain.id == id);
            let chain = chain.ok_or_else(|| refused(format!("there is no {id}")))?;
            let mut has_gone = false;
            match end(&chain.targets, chain.moving, (from, since), is_given_up) {
                Ending::Finish(to) => {
                    (chain.targets, chain.moving) = (smallvec![to], None);
                    has_gone = true;
                }
                Ending::GiveUp(to) => {
                    chain.moving = None;
                    given_up = Some((id, to));
                }
                Ending::Nothing => {}
            }
            // Asked again, after the answer was lost: it was finished if the chain is not where it was.
            let is_finished = !chain.targets.contains(&from);
            // The next one in its place, at once.
            let mut avoided = avoided.clone();
            avoided.extend(given_up.map(|place| (place, Avoidance::Entirely)));
            if has_gone {
                works::note_gone(state, (id, from), &reports);
            }
            begin(&mut state.map, &reports, &avoided);
            works::note(state, now_s);
            Ok(is_finished)
        })?;
        if let Some(avoided) = given_up {
            self.reports.given_up.lock().insert(avoided, Instant::now());
        }
        Ok(ManagerReply::MoveEnded { is_finished })
    }

    /// Begins the moves that are due. To be called every second or so, by every manager: what two of them begin at the same time is begun once.
    ///
    /// # Errors
    /// [`ManagerError`].
    pub fn plan_moves(&self) -> Result<(), ManagerError> {
        let map = self.map().read().clone();
        let reports = self.current_reports();
        let avoided = self.reports.avoided();
        if plan(&map, &reports, &avoided) == Plan::default() && strays(&map).next().is_none() {
            return Ok(());
        }
        let now_s = self.now_s();
        self.manager.change(|state| {
            begin(&mut state.map, &reports, &avoided);
            works::note(state, now_s);
            Ok(())
        })
    }
}

/// Chains on their way to a target that does not serve.
fn strays(map: &ClusterMap) -> impl Iterator<Item = ChainId> {
    let serves = |id: TargetId| map.target(id).is_some_and(|target| target.state == TargetState::Online);
    map.chains
        .iter()
        .filter(move |chain| chain.moving.is_some_and(|moving| !serves(moving.to)))
        .map(|chain| chain.id)
}

/// Begins the moves that are due in a map that is about to be the next one.
fn begin(map: &mut ClusterMap, reports: &BTreeMap<TargetId, TargetReport>, avoided: &Avoided) {
    let strays: Vec<ChainId> = strays(map).collect();
    for id in strays {
        if let Some(chain) = map.chains.get_mut(id.0 as usize) {
            chain.moving = None;
        }
    }
    let plan = plan(map, reports, avoided);
    let since = Epoch(map.epoch.0 + 1);
    for (id, to) in plan.moves {
        if let Some(chain) = map.chains.get_mut(id.0 as usize) {
            chain.moving = Some(Move { to, since });
        }
    }
    map.moves.rebalancing.retain(|pool| !plan.balanced.contains(pool));
}
