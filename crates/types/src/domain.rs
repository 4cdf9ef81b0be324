//! Failure domains: what can fail at once, such as the servers of a rack (`design.md` D6). A node that is in none fails alone.

use crate::{ClusterMap, NodeId, TargetId};

/// What a target fails with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain<'a> {
    /// The nodes of this name.
    Named(&'a str),
    /// This node alone.
    Alone(NodeId),
}

impl ClusterMap {
    /// The failure domain of a node.
    pub fn domain_of_node(&self, node: NodeId) -> Domain<'_> {
        match self.node(node).map(|known| known.domain.as_str()) {
            Some(name) if !name.is_empty() => Domain::Named(name),
            _ => Domain::Alone(node),
        }
    }

    /// The failure domain of a target; nothing for one that the map does not have.
    pub fn domain_of(&self, target: TargetId) -> Option<Domain<'_>> {
        self.target(target).map(|known| self.domain_of_node(known.node))
    }

    /// `targets` in an order in which failure domains alternate: as long as there are targets of all domains left, no domain is ahead of another by more than one.
    /// Domains, and the targets of one, keep their order.
    pub fn spread_over_domains(&self, targets: &[TargetId]) -> Vec<TargetId> {
        let mut by_domain: Vec<(Option<Domain<'_>>, Vec<TargetId>)> = Vec::new();
        for &target in targets {
            let domain = self.domain_of(target);
            match by_domain.iter_mut().find(|(known, _)| *known == domain) {
                Some((_, same)) => same.push(target),
                None => by_domain.push((domain, vec![target])),
            }
        }
        let longest = by_domain.iter().map(|(_, same)| same.len()).max().unwrap_or(0);
        let turn = |at: usize| by_domain.iter().filter_map(move |(_, same)| same.get(at).copied());
        (0..longest).flat_map(turn).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::testing::map_in_domains as map;
    use std::collections::BTreeMap;

    fn ids(ids: &[u32]) -> Vec<TargetId> {
        ids.iter().copied().map(TargetId).collect()
    }

    #[test]
    fn nodes_without_a_domain_are_one_each() {
        let map = map(&[0, 0, 1, 1], &["", ""]);
        assert_eq!(map.spread_over_domains(&ids(&[0, 1, 2, 3])), ids(&[0, 2, 1, 3]));
        assert_eq!(map.domain_of(TargetId(2)), Some(Domain::Alone(NodeId(1))));
        assert_eq!(map.domain_of(TargetId(9)), None);
    }

    #[test]
    fn nodes_of_one_domain_count_as_one() {
        let map = map(&[0, 1, 2, 3], &["a", "a", "b", ""]);
        assert_eq!(map.spread_over_domains(&ids(&[0, 1, 2, 3])), ids(&[0, 2, 3, 1]));
        assert_eq!(map.spread_over_domains(&ids(&[1, 0, 3, 2])), ids(&[1, 3, 2, 0]));
    }

    /// Of many maps, drawn from numbers.
    #[test]
    fn every_beginning_is_as_even_as_the_targets_allow() {
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let domains: Vec<&str> =
                (0..1 + draw(6)).map(|_| ["", "a", "b", "c"][draw(4) as usize]).collect();
            let nodes: Vec<u32> = (0..1 + draw(24)).map(|_| draw(domains.len() as u64) as u32).collect();
            let map = map(&nodes, &domains);
            let mut given = ids(&(0..nodes.len() as u32).collect::<Vec<_>>());
            for at in (1..given.len()).rev() {
                given.swap(at, draw(at as u64 + 1) as usize);
            }
            let spread = map.spread_over_domains(&given);
            let mut sorted = spread.clone();
            sorted.sort();
            assert_eq!(sorted, ids(&(0..nodes.len() as u32).collect::<Vec<_>>()), "each once");
            let mut left: BTreeMap<Domain<'_>, usize> = BTreeMap::new();
            for target in &given {
                *left.entry(map.domain_of(*target).unwrap()).or_default() += 1;
            }
            let mut taken: BTreeMap<Domain<'_>, usize> = left.keys().map(|domain| (*domain, 0)).collect();
            for target in &spread {
                let domain = map.domain_of(*target).unwrap();
                *taken.get_mut(&domain).unwrap() += 1;
                *left.get_mut(&domain).unwrap() -= 1;
                let behind = taken.iter().filter(|(other, _)| left[other] > 0).map(|(_, count)| *count).min();
                assert!(behind.is_none_or(|behind| taken[&domain] <= behind + 1), "{spread:?}");
            }
            assert_eq!(map.spread_over_domains(&spread), spread, "what is spread stays as it is");
        }
    }
}
