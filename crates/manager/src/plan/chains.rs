//! Who is to have one more copy of the chunks of a chain that lacks one, as a pure function of the map, of what was heard, and of what is remembered of the chain.
//!
//! Who has just fallen out is given its copy again as soon as it is there, because what it lacks is noted, and is little. Another one is given all of it if nobody has come back for
//! [`REBUILD_AFTER`]; at once if nobody can: the target was removed, or is drained.

use super::{Sizes, place_copies};
use ashlar_types::map::{Chain, ChainCopies, Target, TargetState};
use ashlar_types::membership::{Change, MEMBERS_MAX};
use ashlar_types::message::TargetReport;
use ashlar_types::{ChainId, ClusterMap, NodeId, TargetId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// For how long those that had a copy are waited for before another target is given all of it.
pub const REBUILD_AFTER: Duration = Duration::from_secs(10 * 60);
/// How long after it failed to be brought up to date a target is given that copy again; longer each time.
const REST: Duration = Duration::from_secs(10);
/// The longest such time.
const REST_MAX: Duration = Duration::from_secs(60 * 60);
/// A target that has failed so often in turn is not waited for: another one is given the copy.
const FAILURES_MAX: u8 = 2;
// LIMIT: clients are served beside it, and their changes wait for all that are being brought up to date.
/// Chains that one target is given all of at a time.
const WHOLE_PER_TARGET: usize = 4;
/// The same of chains that it had before: they lack what has changed since.
const RETURNS_PER_TARGET: usize = 32;
/// A target that has less of its space left gets nothing, parts of a hundred.
const FREE_LEAST_PERCENT: u64 = 3;

/// What was heard of targets.
pub struct Heard {
    /// Targets that have told of themselves lately, and when their servers said last that they are there.
    pub last: BTreeMap<TargetId, Instant>,
    /// Targets that are not served, or whose servers have been silent for some seconds.
    pub away: BTreeSet<TargetId>,
    /// What targets have told of themselves.
    pub reports: BTreeMap<TargetId, TargetReport>,
    /// Whether all would have been heard that are there.
    pub is_complete: bool,
    /// When.
    pub now: Instant,
}

/// What a manager remembers of chains that lack a copy, or have tried to get one in vain.
#[derive(Clone, Default)]
pub struct Lacks(
    // LIMIT: as chains of the map.
    BTreeMap<ChainId, Lack>,
);

#[derive(Clone)]
struct Lack {
    /// Since when fewer have all of it than are to.
    since: Option<Instant>,
    /// When one that had all of it was last found to be gone: what was heard of it before does not count.
    fell: Instant,
    /// As it was seen last.
    in_sync: SmallVec<[TargetId; 3]>,
    /// As it was seen last.
    catching_up: SmallVec<[TargetId; 2]>,
    /// Targets that were not brought up to date in the end: how often in turn, and when last.
    failures: SmallVec<[(TargetId, u8, Instant); 2]>,
}

impl Lack {
    fn look(&mut self, chain: &Chain, copies: &ChainCopies, now: Instant) {
        for &target in &self.catching_up {
            let known = self.failures.iter().position(|(known, ..)| *known == target);
            let failures = known.map_or(0, |at| self.failures[at].1);
            if !chain.is_member(target) {
                if let Some(at) = known {
                    self.failures.remove(at);
                }
                self.failures.push((target, failures.saturating_add(1), now));
            }
        }
        let has_all = |target: &TargetId| chain.targets.contains(target);
        self.failures.retain(|(target, _, at)| !has_all(target) && now.duration_since(*at) < REST_MAX);
        if !self.in_sync.iter().all(has_all) {
            self.fell = now;
        }
        self.since = if chain.is_short() { Some(self.since.unwrap_or(now)) } else { None };
        self.in_sync = chain.targets.clone();
        self.catching_up = copies.catching_up.clone();
    }

    fn is_over(&self) -> bool {
        self.since.is_none() && self.catching_up.is_empty() && self.failures.is_empty()
    }

    fn failures(&self, target: TargetId) -> u8 {
        self.failures.iter().find(|(known, ..)| *known == target).map_or(0, |(_, failures, _)| *failures)
    }

    /// Whether it is too early to give `target` the copy again.
    fn is_resting(&self, target: TargetId, now: Instant) -> bool {
        let rest = |failures: u8| (REST * (1 << u32::from(failures.min(12)))).min(REST_MAX);
        let is_early = |(known, failures, at): &(TargetId, u8, Instant)| {
            *known == target && now.duration_since(*at) < rest(*failures)
        };
        self.failures.iter().any(is_early)
    }
}

impl Lacks {
    /// Looks what has become of chains. To be called with every newer map, and again and again.
    pub fn look(&mut self, map: &ClusterMap, now: Instant) {
        for (chain, copies) in map.chains_of_copies() {
            if chain.is_short() || !copies.catching_up.is_empty() {
                let (in_sync, catching_up) = (chain.targets.clone(), copies.catching_up.clone());
                let new = Lack { since: None, fell: now, in_sync, catching_up, failures: SmallVec::new() };
                self.0.entry(chain.id).or_insert(new);
            }
            if let Some(lack) = self.0.get_mut(&chain.id) {
                lack.look(chain, copies, now);
            }
        }
        self.0.retain(|_, lack| !lack.is_over());
    }
}

/// What a target has to do, and is about to.
#[derive(Clone, Copy, Default)]
struct Load {
    /// Chains of several copies that it is in.
    chains: usize,
    /// Those that it is being given all of.
    whole: usize,
    /// Those that it comes back to.
    returns: usize,
}

/// How a target gets a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Returns,
    Whole,
}

struct Planner<'a> {
    map: &'a ClusterMap,
    heard: &'a Heard,
    lacks: &'a Lacks,
    sizes: Sizes,
    loads: BTreeMap<TargetId, Load>,
}

/// Changes that are due, no more than one of each chain. Chains that are nearest to losing their last copy come first.
pub fn changes(map: &ClusterMap, heard: &Heard, lacks: &Lacks) -> Vec<(ChainId, Change<TargetId>)> {
    let mut planner = Planner::new(map, heard, lacks);
    let mut copied: Vec<(&Chain, &ChainCopies)> = map.chains_of_copies().collect();
    copied.sort_by_key(|(chain, _)| chain.targets.len());
    let mut due = Vec::new();
    for (chain, copies) in copied {
        if let Some(gone) = copies.catching_up.iter().find(|target| heard.away.contains(target)) {
            due.push((chain.id, Change::Remove(*gone)));
        } else if let Some((target, how)) = planner.next_member(chain, copies) {
            planner.note(target, how);
            due.push((chain.id, Change::Admit(target)));
        }
    }
    due
}

/// Chains that lack a copy, and wait for a target that had one: for how long yet, at the most, before another one is given all of it.
pub fn waits(map: &ClusterMap, heard: &Heard, lacks: &Lacks) -> BTreeMap<ChainId, Duration> {
    let planner = Planner::new(map, heard, lacks);
    let waiting = map.chains_of_copies().filter(|(chain, copies)| {
        // One that is there waits for its turn, and nobody for it.
        let is_there = |target: &TargetId| heard.last.contains_key(target);
        let is_waiting =
            chain.is_short() && copies.catching_up.is_empty() && !copies.former.iter().any(is_there);
        is_waiting && planner.can_be_given(chain) && {
            let may_have = planner.may_have(chain, &planner.staying(chain, copies));
            let may_return = |target: &TargetId| map.target(*target).is_some_and(&may_have);
            matches!(planner.returning(chain, copies, &may_return), Returning::Later)
        }
    });
    waiting.map(|(chain, _)| (chain.id, REBUILD_AFTER.saturating_sub(planner.waited(chain.id)))).collect()
}

impl<'a> Planner<'a> {
    fn new(map: &'a ClusterMap, heard: &'a Heard, lacks: &'a Lacks) -> Planner<'a> {
        let sizes = Sizes::told_in(&heard.reports);
        let mut planner = Planner { map, heard, lacks, sizes, loads: BTreeMap::new() };
        for (chain, copies) in map.chains_of_copies() {
            chain.targets.iter().for_each(|target| planner.load(*target).chains += 1);
            for &target in &copies.catching_up {
                planner.note(target, if copies.former.contains(&target) { How::Returns } else { How::Whole });
            }
        }
        planner
    }

    fn load(&mut self, target: TargetId) -> &mut Load {
        self.loads.entry(target).or_default()
    }

    fn note(&mut self, target: TargetId, how: How) {
        let load = self.load(target);
        load.chains += 1;
        match how {
            How::Returns => load.returns += 1,
            How::Whole => load.whole += 1,
        }
    }

    fn load_of(&self, target: TargetId) -> Load {
        self.loads.get(&target).copied().unwrap_or_default()
    }

    /// Who is to be brought up to date next.
    fn next_member(&self, chain: &Chain, copies: &ChainCopies) -> Option<(TargetId, How)> {
        let (map, heard, wanted) = (self.map, self.heard, usize::from(copies.wanted));
        let (staying, count) = (self.staying(chain, copies), chain.targets.len() + copies.catching_up.len());
        if staying.len() >= wanted || count >= MEMBERS_MAX || !self.can_be_given(chain) {
            return None;
        }
        let is_lost = count < wanted;
        if !is_lost && map.moves.is_paused {
            return None;
        }
        let may_have = self.may_have(chain, &staying);
        let may_return = |target: &TargetId| map.target(*target).is_some_and(&may_have);
        match self.returning(chain, copies, &may_return) {
            Returning::Now(target) => return Some((target, How::Returns)),
            Returning::Later if is_lost => return None,
            Returning::Later | Returning::Nobody => {}
        }
        if !heard.is_complete {
            return None;
        }
        let lack = self.lacks.0.get(&chain.id);
        let is_resting = |target| lack.is_some_and(|lack| lack.is_resting(target, heard.now));
        let takes = map.targets.iter().filter(|target| {
            may_have(target)
                && target.state == TargetState::Online
                && heard.last.contains_key(&target.id)
                && !is_resting(target.id)
                && self.has_room(target.id, chain.id)
                && self.load_of(target.id).whole < WHOLE_PER_TARGET
        });
        let mut candidates: Vec<TargetId> = takes.map(|target| target.id).collect();
        candidates.sort_by_key(|target| (self.load_of(*target).chains, *target));
        place_copies(map, &candidates, &staying, 1).pop().map(|target| (target, How::Whole))
    }

    /// Members of the chain that are to stay.
    fn staying(&self, chain: &Chain, copies: &ChainCopies) -> Vec<TargetId> {
        let stays = |target: &TargetId| self.map.target(*target).is_some_and(|known| !known.is_draining);
        chain.targets.iter().chain(&copies.catching_up).copied().filter(stays).collect()
    }

    /// Whether somebody is there who has all of it: nobody else can give anybody a copy.
    fn can_be_given(&self, chain: &Chain) -> bool {
        chain.targets.iter().any(|target| self.heard.last.contains_key(target))
    }

    /// Who may be given a copy of the chain, beside those that stay.
    fn may_have<'c>(&self, chain: &'c Chain, staying: &[TargetId]) -> impl Fn(&Target) -> bool + use<'c> {
        let nodes = staying.iter().filter_map(|id| self.map.target(*id)).map(|on| on.node);
        let nodes: Vec<NodeId> = nodes.collect();
        move |target| {
            target.pool == chain.pool
                && !target.is_draining
                && !chain.is_member(target.id)
                && !nodes.contains(&target.node)
        }
    }

    /// For how long the chain has lacked a copy.
    fn waited(&self, chain: ChainId) -> Duration {
        let since = self.lacks.0.get(&chain).and_then(|lack| lack.since);
        since.map_or(Duration::ZERO, |since| self.heard.now.duration_since(since))
    }

    /// Who has fallen out and comes back.
    fn returning(
        &self,
        chain: &Chain,
        copies: &ChainCopies,
        may_return: &dyn Fn(&TargetId) -> bool,
    ) -> Returning {
        let (heard, lack) = (self.heard, self.lacks.0.get(&chain.id));
        let is_asked_elsewhere =
            |target: TargetId| lack.is_some_and(|lack| lack.failures(target) >= FAILURES_MAX);
        let can_return = |target: &&TargetId| may_return(target) && !is_asked_elsewhere(**target);
        let waited = self.waited(chain.id);
        let mut returning = Returning::Nobody;
        // The newest lacks least.
        for &target in copies.former.iter().rev().filter(can_return) {
            let is_online = self.map.target(target).is_some_and(|on| on.state == TargetState::Online);
            let is_heard = heard.last.get(&target).is_some_and(|at| lack.is_none_or(|lack| *at > lack.fell));
            let is_resting = lack.is_some_and(|lack| lack.is_resting(target, heard.now));
            if is_online && is_heard && !is_resting && self.load_of(target).returns < RETURNS_PER_TARGET {
                return Returning::Now(target);
            }
            if waited < REBUILD_AFTER {
                returning = Returning::Later;
            }
        }
        returning
    }

    fn has_room(&self, target: TargetId, chain: ChainId) -> bool {
        self.heard.reports.get(&target).is_some_and(|report| {
            let least = report.bytes_total / 100 * FREE_LEAST_PERCENT;
            report.bytes_free > self.sizes.of(chain).saturating_add(least)
        })
    }
}

enum Returning {
    Now(TargetId),
    /// There is somebody to wait for.
    Later,
    Nobody,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_replication::membership::{Proposer, plan};
    use ashlar_types::testing::map_in_domains;
    use ashlar_types::{Epoch, PoolId};
    use smallvec::smallvec;
    use std::iter::once;

    /// A site with a target on each server, a clock, and who is there.
    struct Site {
        map: ClusterMap,
        heard: Heard,
        lacks: Lacks,
    }

    impl Site {
        /// With these chains, which are to have as many copies as they have now.
        fn with(domains: &[&str], chains: &[&[u32]]) -> Site {
            let nodes: Vec<u32> = (0..domains.len() as u32).collect();
            let mut map = map_in_domains(&nodes, domains);
            let chain = |(id, targets): (u32, &&[u32])| {
                let copies = ChainCopies {
                    wanted: targets.len() as u8,
                    changed: Epoch(1),
                    catching_up: smallvec![],
                    former: smallvec![],
                };
                let targets = targets.iter().copied().map(TargetId).collect();
                Chain { id: ChainId(id), pool: PoolId(0), targets, moving: None, copies: Some(copies) }
            };
            map.chains = (0..).zip(chains).map(chain).collect();
            let now = Instant::now();
            let (last, away, reports) = Default::default();
            let mut site = Site {
                map,
                heard: Heard { last, away, reports, is_complete: true, now },
                lacks: Lacks::default(),
            };
            site.hear(&nodes);
            site
        }

        /// So many seconds later those alone are heard, and the others not for as long.
        fn pass(&mut self, secs: u64, there: &[u32]) -> Vec<(u32, Change<u32>)> {
            self.heard.now += Duration::from_secs(secs);
            self.hear(there);
            self.lacks.look(&self.map, self.heard.now);
            self.due()
        }

        fn hear(&mut self, there: &[u32]) {
            self.heard.last = there.iter().map(|target| (TargetId(*target), self.heard.now)).collect();
            let all = self.map.targets.iter().map(|target| target.id);
            self.heard.away = all.filter(|target| !self.heard.last.contains_key(target)).collect();
            let report = |target| TargetReport {
                target,
                bytes_total: 1 << 40,
                bytes_free: 1 << 39,
                bytes_by_chain: Vec::new(),
            };
            let reports = self.heard.last.keys().map(|target| (*target, report(*target)));
            self.heard.reports = reports.collect();
        }

        fn due(&self) -> Vec<(u32, Change<u32>)> {
            let plain = |change| match change {
                Change::Admit(TargetId(target)) => Change::Admit(target),
                Change::Remove(TargetId(target)) => Change::Remove(target),
                other => panic!("{other:?}"),
            };
            let due = changes(&self.map, &self.heard, &self.lacks);
            due.into_iter().map(|(chain, change)| (chain.0, plain(change))).collect()
        }

        /// Changes a chain as whoever may, and has it be seen.
        fn change(&mut self, chain: u32, by: Option<u32>, change: Change<u32>) {
            let change = match change {
                Change::Admit(target) => Change::Admit(TargetId(target)),
                Change::Promote(target) => Change::Promote(TargetId(target)),
                Change::Remove(target) => Change::Remove(TargetId(target)),
                Change::Renew => Change::Renew,
            };
            let by = by.map_or(Proposer::Operator, |by| Proposer::Replica(TargetId(by)));
            let chain = &mut self.map.chains[chain as usize];
            let group = chain.group().unwrap();
            let next = Epoch(group.epoch.0 + 1);
            chain.set_group(&plan(&group, group.epoch, by, change, next).unwrap());
            self.lacks.look(&self.map, self.heard.now);
        }
    }

    const ALL: &[u32] = &[0, 1, 2, 3];
    /// Without the one that fails.
    const OTHERS: &[u32] = &[0, 2, 3];

    fn site() -> Site {
        Site::with(&[""; 4], &[&[0, 1]])
    }

    #[test]
    fn who_comes_back_has_its_copy_at_once_and_nobody_else_for_ten_minutes() {
        let mut site = site();
        assert_eq!(site.pass(1, ALL), [], "it has all");
        site.change(0, Some(0), Change::Remove(1));
        assert_eq!(site.due(), [], "what was heard of it before it fell out does not count");
        assert_eq!(site.pass(1, OTHERS), []);
        assert_eq!(site.pass(REBUILD_AFTER.as_secs() - 2, OTHERS), [], "it is waited for");
        assert_eq!(site.pass(0, ALL), [(0, Change::Admit(1))]);
        assert_eq!(site.pass(1, OTHERS), [(0, Change::Admit(2))]);
    }

    #[test]
    fn who_is_waited_for_and_for_how_long_is_told() {
        let told = |site: &Site| {
            let waits = waits(&site.map, &site.heard, &site.lacks);
            waits.into_iter().map(|(chain, left)| (chain.0, left.as_secs())).collect::<Vec<_>>()
        };
        let mut site = site();
        assert_eq!(told(&site), []);
        site.change(0, Some(0), Change::Remove(1));
        site.pass(2, OTHERS);
        assert_eq!(site.pass(100, OTHERS), []);
        assert_eq!(told(&site), [(0, REBUILD_AFTER.as_secs() - 102)]);
        // It is there, and will be asked: nobody waits for it.
        site.pass(0, ALL);
        assert_eq!(told(&site), []);
        site.pass(1, OTHERS);
        site.map.targets[1].is_draining = true;
        assert_eq!(told(&site), [], "it is given to another one at once");
        site.map.targets[1].is_draining = false;
        site.pass(0, &[2]);
        assert_eq!(told(&site), [], "nobody is there who could give it to anybody");
    }

    #[test]
    fn somebody_else_is_given_all_of_it_at_once_if_nobody_can_come_back() {
        for gone in ["removed", "drained", "of another pool"] {
            let mut site = site();
            site.change(0, Some(0), Change::Remove(1));
            match gone {
                "removed" => site.map.targets.retain(|target| target.id != TargetId(1)),
                "drained" => site.map.targets[1].is_draining = true,
                _ => site.map.targets[1].pool = PoolId(3),
            }
            assert_eq!(site.pass(1, ALL), [(0, Change::Admit(2))], "{gone}");
        }
    }

    #[test]
    fn who_is_not_brought_up_to_date_rests_and_after_two_attempts_another_one_is_asked() {
        let mut site = site();
        site.change(0, Some(0), Change::Remove(1));
        assert_eq!(site.pass(1, ALL), [(0, Change::Admit(1))]);
        site.change(0, None, Change::Admit(1));
        assert_eq!(site.pass(5, ALL), [], "it is being brought up to date");
        assert_eq!(site.pass(5, OTHERS), [(0, Change::Remove(1))], "nothing is heard of it");
        site.change(0, None, Change::Remove(1));
        assert_eq!(site.pass(1, ALL), [], "it rests");
        assert_eq!(site.pass(19, ALL), [(0, Change::Admit(1))]);
        site.change(0, None, Change::Admit(1));
        site.change(0, Some(0), Change::Remove(1));
        assert_eq!(site.pass(1, ALL), [(0, Change::Admit(2))], "it is not waited for any more");
        // With nobody else there it is asked again, later.
        assert_eq!(site.pass(30, &[0, 1]), []);
        assert_eq!(site.pass(10, &[0, 1]), [(0, Change::Admit(1))]);
        site.change(0, None, Change::Admit(1));
        site.change(0, Some(0), Change::Promote(1));
        assert!(site.lacks.0.is_empty(), "what it has failed is forgotten");
    }

    #[test]
    fn a_target_that_is_drained_is_replaced_before_it_leaves() {
        let mut site = site();
        site.map.targets[1].is_draining = true;
        assert_eq!(site.pass(1, ALL), [(0, Change::Admit(2))]);
        site.map.moves.is_paused = true;
        assert_eq!(site.pass(1, ALL), [], "nothing is moved for now");
        site.map.moves.is_paused = false;
        site.change(0, None, Change::Admit(2));
        assert_eq!(site.pass(1, ALL), [], "one for it is enough");
        site.change(0, Some(1), Change::Promote(2));
        assert_eq!(site.pass(1, ALL), []);
        site.change(0, Some(1), Change::Remove(1));
        assert_eq!(site.pass(1, ALL), [], "it does not come back");
        // What is lost is made good also while moves are paused.
        site.map.moves.is_paused = true;
        site.change(0, Some(0), Change::Remove(2));
        assert_eq!(site.pass(1, ALL), [(0, Change::Admit(2))]);
    }

    #[test]
    fn a_disk_is_replaced_by_another_one_of_the_same_server() {
        let mut site = Site::with(&["", ""], &[&[0, 1]]);
        let other = Target { id: TargetId(2), node: NodeId(1), ..site.map.targets[1].clone() };
        site.map.targets.push(other);
        site.map.targets[1].is_draining = true;
        assert_eq!(site.pass(1, &[0, 1, 2]), [(0, Change::Admit(2))]);
        site.map.targets[1].is_draining = false;
        site.map.targets[0].is_draining = true;
        assert_eq!(site.pass(1, &[0, 1, 2]), [], "both copies would be on one server");
    }

    #[test]
    fn the_copy_goes_to_another_failure_domain_and_to_who_has_least() {
        // The chain is in racks a and b.
        let mut site = Site::with(&["a", "b", "a", "b", "c", "c"], &[&[0, 1], &[4, 2], &[4, 2]]);
        site.change(0, Some(0), Change::Remove(1));
        site.map.targets[1].is_draining = true;
        let there = |site: &mut Site, there: &[u32]| site.pass(1, there);
        assert_eq!(there(&mut site, &[0, 2, 3, 4, 5]), [(0, Change::Admit(3))], "it is in none");
        assert_eq!(there(&mut site, &[0, 2, 4, 5]), [(0, Change::Admit(5))]);
        assert_eq!(there(&mut site, &[0, 2, 4]), [(0, Change::Admit(4))]);
        assert_eq!(there(&mut site, &[0, 2]), [(0, Change::Admit(2))], "better than none");
        assert_eq!(there(&mut site, &[2, 3, 4, 5]), [], "nobody is there to copy from");
        site.pass(1, &[0, 3]);
        site.heard.reports.get_mut(&TargetId(3)).unwrap().bytes_free = 1 << 30;
        assert_eq!(site.due(), [], "it has no room");
        site.pass(1, &[0, 3]);
        site.heard.is_complete = false;
        assert_eq!(site.due(), [], "this manager may not have heard of better ones yet");
    }

    #[test]
    fn a_few_are_copied_at_a_time_and_first_those_that_have_least() {
        let chains: Vec<&[u32]> =
            (0..39).map(|_| [0, 1].as_slice()).chain(once([0, 1, 2].as_slice())).collect();
        let mut site = Site::with(&[""; 4], &chains);
        (0..40).for_each(|chain| site.change(chain, Some(0), Change::Remove(1)));
        let due = site.pass(1, ALL);
        assert_eq!(due.len(), RETURNS_PER_TARGET);
        assert!(due.iter().all(|(chain, change)| *chain < 39 && *change == Change::Admit(1)));
        site.map.targets[1].is_draining = true;
        let due = site.pass(1, ALL);
        assert_eq!(due.len(), 2 * WHOLE_PER_TARGET, "{due:?}");
        for (chain, change) in due {
            site.change(chain, None, change);
        }
        assert_eq!(site.pass(1, ALL), [], "they have enough to do");
    }

    #[test]
    fn two_copies_that_are_missing_are_made_at_the_same_time() {
        let mut site = Site::with(&[""; 5], &[&[0, 1, 2]]);
        site.change(0, Some(0), Change::Remove(1));
        site.change(0, Some(0), Change::Remove(2));
        for expected in [2, 1] {
            let due = site.pass(1, &[0, 1, 2, 3, 4]);
            assert_eq!(due, [(0, Change::Admit(expected))], "who fell out last lacks least");
            site.change(0, None, due[0].1);
        }
        assert_eq!(site.pass(1, &[0, 1, 2, 3, 4]), []);
    }
}
