//! Which chains are to move where next, as a pure function of the map and of what targets have told.
//!
//! Targets that are drained give up all their chains. In pools that are rebalanced, chains go from the fullest target to the emptiest until that
//! makes no difference any more. Chains of several copies do not move: they are given another member in time ([`chains`]). A chain goes to another failure domain only if that makes a difference: files have their chains in several, and keep them so.

pub mod chain_sets;
pub mod chains;
mod copies;

pub use copies::place_copies;

use ashlar_types::map::{Chain, Target, TargetState};
use ashlar_types::message::TargetReport;
use ashlar_types::{ChainId, ClusterMap, PoolId, TargetId};
use std::collections::BTreeMap;

/// Moves from and to one target at a time.
// LIMIT: so that a drain is no more than this many streams on either side, and clients are served beside it.
const MOVES_PER_TARGET: usize = 2;
/// Parts of a thousand by which two targets may differ in how full they are.
const SPREAD_PERMILLE: u64 = 20;
/// Parts of a thousand by which a target of the same failure domain may be fuller than one of another, and gets the chain all the same.
const DOMAIN_PERMILLE: u64 = 100;
/// Bytes that a chain counts for where nobody knows better, or has nothing yet: so that empty chains are spread, too.
const CHAIN_BYTES_LEAST: u64 = 1 << 20;

/// What is to be done next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Chains, and where they are to go.
    pub moves: Vec<(ChainId, TargetId)>,
    /// Pools whose targets are as equally full as moves of chains can make them.
    pub balanced: Vec<PoolId>,
}

/// A target that a chain is not to go to: the move was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Avoidance {
    /// Not for now.
    Entirely,
    /// Not while there is another one to go to. A move is given up as well because a server was killed in the middle of it, which says nothing of where it was to go.
    UnlessAlone,
}

/// Targets that chains are not to go to, of those that were tried.
pub type Avoided = BTreeMap<(ChainId, TargetId), Avoidance>;

/// How full a target is, and going to be.
struct Load<'m> {
    target: &'m Target,
    bytes_total: u64,
    bytes: u64,
    moves: usize,
}

impl Load<'_> {
    /// How full it is with `more` bytes, in parts of a thousand.
    fn permille(&self, more: u64) -> u64 {
        let parts = u128::from(self.bytes.saturating_add(more)) * 1000 / u128::from(self.bytes_total.max(1));
        // Something is added to it.
        u64::try_from(parts).unwrap_or(u64::MAX).min(u64::MAX / 2)
    }

    fn has_room(&self, more: u64) -> bool {
        self.bytes.saturating_add(more) < self.bytes_total / 100 * 97
    }
}

/// The loads of the targets of a pool, with moves under way counted where they go.
fn loads<'m>(
    map: &'m ClusterMap,
    pool: PoolId,
    reports: &BTreeMap<TargetId, TargetReport>,
    sizes: &Sizes,
) -> BTreeMap<TargetId, Load<'m>> {
    let mut loads = BTreeMap::new();
    for target in map.targets.iter().filter(|target| target.pool == pool) {
        let report = reports.get(&target.id);
        // By the map, not by the report: chains may have moved since.
        let bytes = sizes.at(map, target.id);
        // One that has told nothing has no room.
        let bytes_total = report.map_or(0, |report| report.bytes_total);
        loads.insert(target.id, Load { target, bytes_total, bytes, moves: 0 });
    }
    for (chain, moving) in map.chains.iter().filter_map(|chain| Some((chain, chain.moving?))) {
        let Some(&from) = chain.targets.first() else { continue };
        let bytes = sizes.of(chain.id);
        if let Some(load) = loads.get_mut(&from) {
            load.moves += 1;
            load.bytes = load.bytes.saturating_sub(bytes);
        }
        if let Some(load) = loads.get_mut(&moving.to) {
            load.moves += 1;
            load.bytes = load.bytes.saturating_add(bytes);
        }
    }
    loads
}

/// Bytes that chains have, as whoever had them told last.
pub struct Sizes(BTreeMap<ChainId, u64>);

impl Sizes {
    /// As `reports` have them.
    pub fn told_in(reports: &BTreeMap<TargetId, TargetReport>) -> Sizes {
        let mut sizes = BTreeMap::new();
        for (chain, bytes) in reports.values().flat_map(|report| &report.bytes_by_chain) {
            let known: &mut u64 = sizes.entry(*chain).or_insert(0);
            *known = (*known).max(*bytes);
        }
        Sizes(sizes)
    }

    fn of(&self, chain: ChainId) -> u64 {
        self.told(chain).saturating_add(CHAIN_BYTES_LEAST)
    }

    /// What was told, bytes; nothing of a chain without chunks, or if nobody has told.
    pub fn told(&self, chain: ChainId) -> u64 {
        self.0.get(&chain).copied().unwrap_or(0)
    }

    /// What all chains at a target have, by the map. No number that a server tells is too large for it.
    fn at(&self, map: &ClusterMap, target: TargetId) -> u64 {
        map.chains_with(target).fold(0, |sum: u64, chain| sum.saturating_add(self.of(chain.id)))
    }
}

/// What the targets of `pool` have that is more than their share: about what is to go elsewhere until they are equally full, as chains and bytes. Nothing while one has
/// not told.
pub fn excess(
    map: &ClusterMap,
    pool: PoolId,
    reports: &BTreeMap<TargetId, TargetReport>,
    sizes: &Sizes,
) -> Option<(u64, u64)> {
    let loads = loads(map, pool, reports, sizes);
    let takes_part = |load: &&Load<'_>| load.target.state == TargetState::Online && !load.target.is_draining;
    let all: Vec<&Load<'_>> = loads.values().filter(takes_part).collect();
    if all.iter().any(|load| !reports.contains_key(&load.target.id)) {
        return None;
    }
    let sum = |of: fn(&Load<'_>) -> u64| all.iter().map(|load| u128::from(of(load))).sum::<u128>();
    let (bytes, space) = (sum(|load| load.bytes), sum(|load| load.bytes_total).max(1));
    // A chain that is on its way counts where it goes; its target has it yet.
    let over = |load: &&Load<'_>| {
        let share = bytes.saturating_mul(u128::from(load.bytes_total)) / space;
        sizes.at(map, load.target.id).saturating_sub(u64::try_from(share).unwrap_or(u64::MAX))
    };
    let excess = all.iter().map(over).fold(0, u64::saturating_add);
    let count: usize = all.iter().map(|load| map.chains_with(load.target.id).count()).sum();
    let bytes_of_one = u64::try_from(bytes / (count as u128).max(1)).unwrap_or(u64::MAX).max(1);
    Some((excess.div_ceil(bytes_of_one), excess))
}

/// The plan for `map`. A target that has told nothing is drained all the same, and gets nothing; nothing is rebalanced with it.
pub fn plan(map: &ClusterMap, reports: &BTreeMap<TargetId, TargetReport>, avoided: &Avoided) -> Plan {
    let mut plan = Plan::default();
    if map.moves.is_paused {
        return plan;
    }
    let sizes = Sizes::told_in(reports);
    for pool in &map.pools {
        let mut loads = loads(map, pool.id, reports, &sizes);
        drain(map, (&sizes, avoided), &mut loads, &mut plan);
        let is_wanted = map.moves.rebalancing.contains(&pool.id);
        if is_wanted && !rebalance(map, reports, (&sizes, avoided), &mut loads, &mut plan) {
            plan.balanced.push(pool.id);
        }
    }
    plan
}

/// Where `bytes` of a chain may go, best first: the emptiest target of its failure domain, if that is not much fuller than the emptiest of all, and that one.
fn destinations(
    map: &ClusterMap,
    loads: &BTreeMap<TargetId, Load<'_>>,
    avoided: &Avoided,
    (chain, from): (ChainId, TargetId),
    bytes: u64,
) -> Vec<TargetId> {
    let could_take = || {
        loads
            .values()
            .filter(|load| load.target.state == TargetState::Online && !load.target.is_draining)
            .filter(|load| load.target.id != from && load.has_room(bytes))
    };
    let avoidance = |load: &Load<'_>| avoided.get(&(chain, load.target.id)).copied();
    // Also one that is busy: it is waited for.
    let has_other = could_take().any(|load| avoidance(load).is_none());
    let takers = || {
        could_take()
            .filter(|load| load.moves < MOVES_PER_TARGET)
            .filter(|load| match avoidance(load) {
                None => true,
                Some(Avoidance::UnlessAlone) => !has_other,
                Some(Avoidance::Entirely) => false,
            })
            // Of those that are equally full the one with least to do.
            .map(|load| (load.permille(bytes), load.moves, load.target.id))
    };
    let Some(emptiest) = takers().min() else { return Vec::new() };
    let domain = map.domain_of(from);
    let near = takers().filter(|(.., target)| map.domain_of(*target) == domain).min();
    let near = near.filter(|(permille, ..)| *permille <= emptiest.0 + DOMAIN_PERMILLE);
    near.into_iter().chain([emptiest]).map(|(.., target)| target).collect()
}

/// Whether a chain can be sent elsewhere now.
fn can_move(chain: &Chain) -> bool {
    chain.moving.is_none() && chain.copies.is_none()
}

fn note(loads: &mut BTreeMap<TargetId, Load<'_>>, from: TargetId, to: TargetId, bytes: u64) {
    if let Some(load) = loads.get_mut(&from) {
        load.moves += 1;
        load.bytes = load.bytes.saturating_sub(bytes);
    }
    if let Some(load) = loads.get_mut(&to) {
        load.moves += 1;
        load.bytes = load.bytes.saturating_add(bytes);
    }
}

fn drain(
    map: &ClusterMap,
    (sizes, avoided): (&Sizes, &Avoided),
    loads: &mut BTreeMap<TargetId, Load<'_>>,
    plan: &mut Plan,
) {
    let draining: Vec<TargetId> = loads
        .values()
        .filter(|load| load.target.is_draining && load.target.state == TargetState::Online)
        .map(|load| load.target.id)
        .collect();
    for from in draining {
        for chain in map.chains_at(from).filter(|chain| can_move(chain)) {
            if loads.get(&from).is_none_or(|load| load.moves >= MOVES_PER_TARGET) {
                break;
            }
            let bytes = sizes.of(chain.id);
            let to = destinations(map, loads, avoided, (chain.id, from), bytes).first().copied();
            let Some(to) = to else { continue };
            note(loads, from, to, bytes);
            plan.moves.push((chain.id, to));
        }
    }
}

/// Plans moves from the fullest to the emptiest; whether there is anything left to do.
fn rebalance(
    map: &ClusterMap,
    reports: &BTreeMap<TargetId, TargetReport>,
    (sizes, avoided): (&Sizes, &Avoided),
    loads: &mut BTreeMap<TargetId, Load<'_>>,
    plan: &mut Plan,
) -> bool {
    let takes_part = |load: &&Load<'_>| load.target.state == TargetState::Online && !load.target.is_draining;
    if loads.values().filter(takes_part).any(|load| !reports.contains_key(&load.target.id)) {
        return true;
    }
    loop {
        let fullest = loads.values().filter(takes_part).max_by_key(|load| load.permille(0));
        let Some(from) = fullest.map(|load| load.target.id) else { return false };
        let (full, busy) = (loads[&from].permille(0), loads[&from].moves >= MOVES_PER_TARGET);
        // The largest chain that does not make the other one the fuller of the two.
        let mut candidates: Vec<(u64, ChainId)> = map
            .chains_at(from)
            .filter(|chain| can_move(chain) && !plan.moves.iter().any(|(known, _)| *known == chain.id))
            .map(|chain| (sizes.of(chain.id), chain.id))
            .collect();
        candidates.sort_by(|a, b| b.cmp(a));
        let fits = |(bytes, chain): &(u64, ChainId)| {
            let is_better = |to: &TargetId| loads[to].permille(*bytes) + SPREAD_PERMILLE / 2 <= full;
            let to = destinations(map, loads, avoided, (*chain, from), *bytes).into_iter().find(is_better)?;
            Some((*chain, to, *bytes))
        };
        let any_moves = loads.values().any(|load| load.moves > 0);
        if busy {
            return true;
        }
        match candidates.iter().find_map(fits) {
            Some((chain, to, bytes)) => {
                note(loads, from, to, bytes);
                plan.moves.push((chain, to));
            }
            None => return any_moves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FoundTarget;
    use crate::map_change::{first_map, with_targets};
    use ashlar_types::map::Move;
    use ashlar_types::{ClusterId, Epoch, NodeId};

    /// Three targets of 1 GiB; the chunks of each chain of target `i` have `mib[i]` MiB.
    fn three(mib: [u64; 3]) -> (ClusterMap, BTreeMap<TargetId, TargetReport>) {
        let found = |n: u8| FoundTarget { id: TargetId(u32::from(n)), uuid: [n; 16], path: format!("/{n}") };
        let map = first_map(ClusterId([9; 16]), NodeId(1));
        let map = with_targets(&map, &[found(1), found(2), found(3)], NodeId(1)).unwrap();
        let reports = map.targets.iter().zip(mib).map(|(target, mib)| {
            let bytes_by_chain = map.chains_at(target.id).map(|chain| (chain.id, mib << 20)).collect();
            let (target, bytes_total) = (target.id, 1 << 30);
            (target, TargetReport { target, bytes_total, bytes_free: bytes_total, bytes_by_chain })
        });
        let reports = reports.collect();
        (map, reports)
    }

    /// As [`three`], each target on a node of its own in the given failure domain.
    fn three_in(domains: [&str; 3], mib: [u64; 3]) -> (ClusterMap, BTreeMap<TargetId, TargetReport>) {
        let (mut map, reports) = three(mib);
        for (at, domain) in domains.into_iter().enumerate() {
            let id = NodeId(10 + at as u32);
            let (name, domain) = (format!("oss{at}"), domain.to_owned());
            let (roles, listening, policy) = Default::default();
            map.nodes.push(ashlar_types::Node { id, name, roles, listening, policy, domain });
            map.targets[at].node = id;
        }
        map.check().unwrap();
        (map, reports)
    }

    #[test]
    fn a_chain_that_is_drained_stays_in_its_failure_domain_unless_that_is_much_fuller() {
        for (mib, expected) in [([1, 2, 1], 2), ([1, 4, 1], 3)] {
            let (mut map, reports) = three_in(["rack1", "rack1", "rack2"], mib);
            map.targets[0].is_draining = true;
            let plan = plan(&map, &reports, &Avoided::new());
            assert!(plan.moves.iter().all(|(_, to)| *to == TargetId(expected)), "{mib:?}: {plan:?}");
            assert_eq!(plan.moves.len(), MOVES_PER_TARGET);
        }
    }

    #[test]
    fn targets_that_are_equally_full_share_what_is_drained() {
        // A few bytes are no part of a large disk.
        let (mut map, reports) = three([0, 0, 0]);
        map.targets[0].is_draining = true;
        let moves = plan(&map, &reports, &Avoided::new()).moves;
        let to = |target: u32| moves.iter().filter(|(_, to)| *to == TargetId(target)).count();
        assert_eq!((to(2), to(3)), (1, 1), "{moves:?}");
    }

    #[test]
    fn a_pool_over_several_domains_is_rebalanced_as_one_in_a_single_domain() {
        for domains in [["a", "a", "b"], ["a", "b", "b"], ["", "", ""], ["a", "b", "c"]] {
            for mib in [[6, 0, 0], [6, 5, 0], [0, 3, 6]] {
                let (mut map, mut reports) = three_in(domains, mib);
                map.moves.rebalancing = vec![PoolId(0)];
                settle(&mut map, &mut reports);
                let parts: Vec<u64> = reports
                    .values()
                    .map(|report| {
                        report.bytes_by_chain.iter().map(|(_, bytes)| bytes).sum::<u64>() * 1000
                            / report.bytes_total
                    })
                    .collect();
                let spread = parts.iter().max().unwrap() - parts.iter().min().unwrap();
                assert!(spread <= 120, "{domains:?} {mib:?}: {parts:?}");
                assert!(map.moves.rebalancing.is_empty(), "it says that it is done");
            }
        }
    }

    /// Carries plans out until there is nothing left to do; the number of moves.
    fn settle(map: &mut ClusterMap, reports: &mut BTreeMap<TargetId, TargetReport>) -> usize {
        let mut count = 0;
        loop {
            let plan = plan(map, reports, &Avoided::new());
            for pool in &plan.balanced {
                map.moves.rebalancing.retain(|known| known != pool);
            }
            if plan.moves.is_empty() {
                return count;
            }
            for (chain, to) in plan.moves {
                count += 1;
                assert!(count < 1000, "it comes to an end");
                let from = map.head(chain).unwrap();
                let report = reports.get_mut(&from).unwrap();
                let at = report.bytes_by_chain.iter().position(|(known, _)| *known == chain).unwrap();
                let moved = report.bytes_by_chain.remove(at);
                reports.get_mut(&to).unwrap().bytes_by_chain.push(moved);
                map.chains[chain.0 as usize].targets[0] = to;
            }
        }
    }

    #[test]
    fn a_target_that_is_drained_gives_all_its_chains_to_the_emptiest_a_few_at_a_time() {
        let (mut map, mut reports) = three([1, 4, 2]);
        map.targets[0].is_draining = true;
        let first = plan(&map, &reports, &Avoided::new());
        assert_eq!(first.moves.len(), MOVES_PER_TARGET);
        assert!(first.moves.iter().all(|(_, to)| *to == TargetId(3)), "{first:?}");
        map.chains[0].moving = Some(Move { to: TargetId(3), since: Epoch(5) });
        assert_eq!(
            plan(&map, &reports, &Avoided::new()).moves.len(),
            MOVES_PER_TARGET - 1,
            "one is under way"
        );
        map.chains[0].moving = None;
        // What was tried in vain is not tried again at once.
        for avoidance in [Avoidance::Entirely, Avoidance::UnlessAlone] {
            let avoided = map.chains.iter().map(|chain| ((chain.id, TargetId(3)), avoidance)).collect();
            let moves = plan(&map, &reports, &avoided).moves;
            assert!(moves.len() == MOVES_PER_TARGET && moves.iter().all(|(_, to)| *to == TargetId(2)));
        }
        assert_eq!(settle(&mut map, &mut reports), 100);
        assert_eq!(map.chains_at(TargetId(1)).count(), 0);
        let counts = [TargetId(2), TargetId(3)].map(|target| map.chains_at(target).count());
        assert!(counts[1] > counts[0], "{counts:?}");
    }

    #[test]
    fn a_chain_goes_where_it_did_not_get_once_there_is_no_other_target() {
        let (mut map, reports) = three([1, 1, 1]);
        map.targets[0].is_draining = true;
        let avoided = |avoidance| -> Avoided {
            map.chains.iter().map(|chain| ((chain.id, TargetId(3)), avoidance)).collect()
        };
        let (entirely, unless_alone) = (avoided(Avoidance::Entirely), avoided(Avoidance::UnlessAlone));
        // The other one is busy: it is waited for.
        let mut busy = map.clone();
        for at in 0..MOVES_PER_TARGET {
            let of_third = map.chains_at(TargetId(3)).nth(at).unwrap().id;
            busy.chains[of_third.0 as usize].moving = Some(Move { to: TargetId(2), since: Epoch(5) });
        }
        assert_eq!(plan(&busy, &reports, &unless_alone), Plan::default());
        // It is drained as well.
        map.targets[1].is_draining = true;
        assert_eq!(plan(&map, &reports, &entirely), Plan::default());
        let moves = plan(&map, &reports, &unless_alone).moves;
        assert!(
            moves.len() == MOVES_PER_TARGET && moves.iter().all(|(_, to)| *to == TargetId(3)),
            "{moves:?}"
        );
    }

    #[test]
    fn nothing_moves_while_moves_are_paused_or_there_is_nowhere_to_go() {
        let (mut map, reports) = three([1, 1, 1]);
        map.targets[0].is_draining = true;
        map.moves.is_paused = true;
        assert_eq!(plan(&map, &reports, &Avoided::new()), Plan::default());
        map.moves.is_paused = false;
        for target in &mut map.targets {
            target.is_draining = true;
        }
        assert_eq!(plan(&map, &reports, &Avoided::new()), Plan::default());
    }

    #[test]
    fn a_pool_is_rebalanced_until_its_targets_are_equally_full() {
        let (mut map, mut reports) = three([6, 0, 0]);
        map.moves.rebalancing = vec![PoolId(0)];
        let moves = settle(&mut map, &mut reports);
        assert!((40..200).contains(&moves), "{moves}");
        let bytes = |target: &TargetReport| target.bytes_by_chain.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let parts: Vec<u64> =
            reports.values().map(|report| bytes(report) * 1000 / report.bytes_total).collect();
        let spread = parts.iter().max().unwrap() - parts.iter().min().unwrap();
        assert!(spread <= 120, "{parts:?}");
        assert!(map.moves.rebalancing.is_empty(), "it says that it is done");
    }

    #[test]
    fn what_is_left_of_rebalancing_is_about_what_then_moves() {
        let (mut map, mut reports) = three([6, 0, 0]);
        map.moves.rebalancing = vec![PoolId(0)];
        let told = |map: &ClusterMap, reports: &BTreeMap<TargetId, TargetReport>| {
            excess(map, PoolId(0), reports, &Sizes::told_in(reports)).unwrap()
        };
        let (chains, bytes) = told(&map, &reports);
        // 700 MiB of 900 with the least that a chain counts, of which a third stays.
        assert_eq!(bytes >> 20, 400, "of {chains} chains");
        let moved = settle(&mut map, &mut reports);
        let (left, _) = told(&map, &reports);
        assert!(left < chains / 8, "{left} of {chains} chains are left after {moved} have moved");
        reports.remove(&TargetId(2));
        assert_eq!(excess(&map, PoolId(0), &reports, &Sizes::told_in(&reports)), None);
    }

    #[test]
    fn no_number_that_a_server_tells_is_too_large_to_plan_with() {
        let (mut map, mut reports) = three([6, 0, 0]);
        map.moves.rebalancing = vec![PoolId(0)];
        for report in reports.values_mut() {
            report.bytes_total = u64::MAX;
            report.bytes_by_chain.iter_mut().for_each(|(_, bytes)| *bytes = u64::MAX);
        }
        assert!(excess(&map, PoolId(0), &reports, &Sizes::told_in(&reports)).is_some());
        plan(&map, &reports, &Avoided::new());
        map.targets[0].is_draining = true;
        plan(&map, &reports, &Avoided::new());
        reports.values_mut().for_each(|report| report.bytes_total = 1);
        map.targets[0].is_draining = false;
        plan(&map, &reports, &Avoided::new());
    }

    #[test]
    fn a_target_that_has_told_nothing_keeps_the_pool_from_being_rebalanced_and_is_not_declared_balanced() {
        let (mut map, mut reports) = three([6, 0, 0]);
        map.moves.rebalancing = vec![PoolId(0)];
        reports.remove(&TargetId(3));
        assert_eq!(plan(&map, &reports, &Avoided::new()), Plan::default());
    }
}
