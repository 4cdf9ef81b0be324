//! Which targets new chains of several copies begin with.
//!
//! All copies of a chain are on different servers, and in different failure domains where there are enough. Each target is at the head of about as many chains as any other, and
//! shares chains with as many others as it can: so what a dead one leaves is served, and copied anew, by many.

use super::place_copies;
use ashlar_types::map::TargetState;
use ashlar_types::{ClusterMap, NodeId, PoolId, TargetId};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;

/// The targets of one chain, head first.
pub type Group = SmallVec<[TargetId; 3]>;

/// What targets are in already, of the chains of a pool that keep as many copies.
pub struct Spread<'m> {
    map: &'m ClusterMap,
    copies: usize,
    /// Those that can be in a new chain, by id.
    targets: Vec<TargetId>,
    /// Chains that each is at the head of.
    heads: Vec<u32>,
    /// Chains that each is in.
    chains: Vec<u32>,
    /// Chains that each shares with each other one.
    shared: Vec<u32>,
}

impl<'m> Spread<'m> {
    /// Of the chains of `pool` with `copies` copies.
    pub fn of(map: &'m ClusterMap, pool: PoolId, copies: u8) -> Spread<'m> {
        let takes = map.targets.iter().filter(|target| {
            target.pool == pool && target.state == TargetState::Online && !target.is_draining
        });
        let targets: Vec<TargetId> = takes.map(|target| target.id).collect();
        let count = targets.len();
        let mut spread = Spread {
            map,
            copies: copies.into(),
            targets,
            heads: vec![0; count],
            chains: vec![0; count],
            shared: vec![0; count * count],
        };
        for chain in map.chains.iter().filter(|chain| chain.pool == pool && chain.copies_wanted() == copies) {
            spread.note(&chain.targets);
        }
        spread
    }

    /// The servers of the targets that can be in a chain.
    pub fn servers(&self) -> BTreeSet<NodeId> {
        self.targets.iter().filter_map(|target| self.node(*target)).collect()
    }

    /// Groups of a pool that has none yet: as many that each target is in about [`ClusterMap::CHAINS_PER_TARGET`]. None where there are fewer servers than copies.
    pub fn whole_set(mut self) -> Vec<Group> {
        if self.servers().len() < self.copies {
            return Vec::new();
        }
        let per_target = ClusterMap::CHAINS_PER_TARGET as usize;
        let count = (self.targets.len() * per_target).div_ceil(self.copies).max(per_target);
        let mut groups = Vec::new();
        for _ in 0..count {
            let by_heads = |at: &usize| (self.heads[*at], self.chains[*at], *at);
            let Some(head) = (0..self.targets.len()).min_by_key(by_heads) else { break };
            let group = self.group_with(self.targets[head]);
            self.note(&group);
            groups.push(group);
        }
        groups
    }

    /// Groups that `newcomer` is in, at the head of its share of them. None where there are fewer servers than copies.
    pub fn set_with(mut self, newcomer: TargetId) -> Vec<Group> {
        if self.servers().len() < self.copies || !self.targets.contains(&newcomer) {
            return Vec::new();
        }
        let mut groups = Vec::new();
        for number in 0..ClusterMap::CHAINS_PER_TARGET as usize {
            let mut group = self.group_with(newcomer);
            if !number.is_multiple_of(self.copies) {
                let by_heads = |at: &usize| self.at(group[*at]).map(|at| self.heads[at]);
                let head = (1..group.len()).min_by_key(by_heads).unwrap_or_default();
                group.swap(0, head);
            }
            self.note(&group);
            groups.push(group);
        }
        groups
    }

    /// `first`, and those that are best with it.
    fn group_with(&self, first: TargetId) -> Group {
        let mut group: Group = smallvec![first];
        while group.len() < self.copies {
            let taken: Vec<NodeId> = group.iter().filter_map(|target| self.node(*target)).collect();
            let is_apart = |target: &TargetId| self.node(*target).is_some_and(|node| !taken.contains(&node));
            let mut candidates: Vec<TargetId> = self.targets.iter().copied().filter(is_apart).collect();
            candidates.sort_by_cached_key(|target| (self.cost(*target, &group), *target));
            let Some(next) = place_copies(self.map, &candidates, &group, 1).pop() else { break };
            group.push(next);
        }
        group
    }

    /// How much a target is used already, and used with those of `group`: of two that are in as many chains the one that shares fewer. Both count alike: on the average a
    /// target shares one of so many chains with a certain other one.
    fn cost(&self, target: TargetId, group: &[TargetId]) -> usize {
        let count = self.targets.len();
        let Some(at) = self.at(target) else { return usize::MAX };
        let others = group.iter().filter_map(|other| self.at(*other));
        let shared: usize = others.map(|other| self.shared[at * count + other] as usize).sum();
        self.chains[at] as usize + shared * count / group.len().max(1)
    }

    fn note(&mut self, group: &[TargetId]) {
        let count = self.targets.len();
        if let Some(head) = group.first().and_then(|head| self.at(*head)) {
            self.heads[head] += 1;
        }
        let known: SmallVec<[usize; 4]> = group.iter().filter_map(|target| self.at(*target)).collect();
        for &at in &known {
            self.chains[at] += 1;
            for &other in known.iter().filter(|other| **other != at) {
                self.shared[at * count + other] += 1;
            }
        }
    }

    fn at(&self, target: TargetId) -> Option<usize> {
        self.targets.binary_search(&target).ok()
    }

    fn node(&self, target: TargetId) -> Option<NodeId> {
        self.map.target(target).map(|known| known.node)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::testing::map_in_domains;
    use std::collections::BTreeMap;

    fn eight() -> ClusterMap {
        map_in_domains(&[0, 1, 2, 3, 4, 5, 6, 7], &[""; 8])
    }

    /// The least and the most of what is counted.
    fn range<K>(counts: &BTreeMap<K, u32>) -> (u32, u32) {
        (*counts.values().min().unwrap(), *counts.values().max().unwrap())
    }

    #[track_caller]
    fn check(map: &ClusterMap, groups: &[Group], copies: usize) {
        let mut chains: BTreeMap<TargetId, u32> = BTreeMap::new();
        for group in groups {
            let nodes: BTreeSet<_> = group.iter().map(|target| map.target(*target).unwrap().node).collect();
            assert_eq!((group.len(), nodes.len()), (copies, copies), "{group:?} is not on different servers");
            group.iter().for_each(|target| *chains.entry(*target).or_default() += 1);
        }
        let (least, most) = range(&chains);
        assert!(least >= 95 && most <= 105, "targets are in {least} to {most} chains");
    }

    #[test]
    fn what_a_dead_target_leaves_is_spread_over_all_others() {
        let map = eight();
        for copies in [2, 3] {
            let groups = Spread::of(&map, PoolId(0), copies).whole_set();
            assert_eq!(groups.len(), 800usize.div_ceil(copies.into()));
            check(&map, &groups, copies.into());
            let (mut heads, mut shared) = (BTreeMap::new(), BTreeMap::new());
            for group in &groups {
                *heads.entry(group[0]).or_insert(0) += 1;
                for (one, other) in group.iter().flat_map(|one| group.iter().map(move |other| (*one, *other)))
                {
                    *shared.entry((one, other)).or_insert(0) += u32::from(one != other);
                }
            }
            shared.retain(|(one, other), _| one != other);
            let (least, most) = range(&heads);
            assert!(most - least <= 1, "{copies} copies: at the head of {least} to {most}");
            assert_eq!(shared.len(), 8 * 7, "everybody shares with everybody");
            let ((least, most), mean) = (range(&shared), 100 * (u32::from(copies) - 1) / 7);
            assert!(
                least + 3 >= mean && most <= mean + 4,
                "{copies} copies: shares {least} to {most}, {mean} on the average"
            );
        }
    }

    #[test]
    fn copies_are_on_different_servers_and_in_different_domains() {
        // Servers of several disks each, in three racks.
        let nodes: Vec<u32> = (0..12).map(|target| target / 2).collect();
        let map = map_in_domains(&nodes, &["a", "a", "b", "b", "c", "c"]);
        for copies in [2, 3] {
            let groups = Spread::of(&map, PoolId(0), copies).whole_set();
            check(&map, &groups, copies.into());
            for group in &groups {
                let domains: BTreeSet<_> = group.iter().map(|target| map.domain_of(*target)).collect();
                assert_eq!(domains.len(), group.len(), "{group:?}");
            }
        }
        let one = map_in_domains(&[0, 0, 0], &["a"]);
        assert!(Spread::of(&one, PoolId(0), 2).whole_set().is_empty(), "all on one server");
        let two = map_in_domains(&[0, 0, 1], &["", ""]);
        assert!(Spread::of(&two, PoolId(0), 3).whole_set().is_empty());
        assert_eq!(Spread::of(&two, PoolId(0), 2).whole_set().len(), 150, "the one that is alone is in all");
    }

    #[test]
    fn targets_that_are_drained_or_not_served_get_none() {
        let mut map = eight();
        map.targets[2].is_draining = true;
        map.targets[5].state = TargetState::Offline;
        map.targets[7].pool = PoolId(1);
        let groups = Spread::of(&map, PoolId(0), 2).whole_set();
        assert_eq!(groups.len(), 250);
        let used: BTreeSet<u32> = groups.iter().flatten().map(|target| target.0).collect();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), [0, 1, 3, 4, 6]);
    }

    #[test]
    fn a_target_that_comes_later_is_in_as_many_chains_with_everybody_and_at_the_head_of_its_share() {
        let map = eight();
        for copies in [2u8, 3] {
            let newcomer = TargetId(7);
            let groups = Spread::of(&map, PoolId(0), copies).set_with(newcomer);
            assert_eq!(groups.len(), 100);
            assert!(groups.iter().all(|group| group.contains(&newcomer)));
            let heads = groups.iter().filter(|group| group[0] == newcomer).count();
            assert_eq!(heads, 100usize.div_ceil(copies.into()));
            let partners = groups.iter().flatten().filter(|target| **target != newcomer);
            let mut counts = BTreeMap::new();
            partners.for_each(|target| *counts.entry(*target).or_insert(0) += 1);
            let (least, most) = range(&counts);
            assert!(counts.len() == 7 && most - least <= 2, "{counts:?}");
        }
    }
}
