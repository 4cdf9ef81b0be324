//! Where copies of one thing are to be, so that as little as possible of them fails at once.

use ashlar_types::{ClusterMap, Domain, NodeId, TargetId};
use std::collections::BTreeSet;

/// Up to `count` of the `candidates`, for copies of a chain besides those at `present`. Each further one is in a failure domain that has none yet, as long as there
/// is such a domain; else on a node that has none yet; else on any target that has none. Among equals the first candidate is taken, so the caller has them in the order of his liking, such as the
/// emptiest first. The same arguments give the same places.
pub fn place_copies(
    map: &ClusterMap,
    candidates: &[TargetId],
    present: &[TargetId],
    count: usize,
) -> Vec<TargetId> {
    let node_of = |target: TargetId| map.target(target).map(|known| known.node);
    let mut taken: BTreeSet<TargetId> = present.iter().copied().collect();
    let mut nodes: BTreeSet<NodeId> = present.iter().filter_map(|target| node_of(*target)).collect();
    let mut domains: BTreeSet<Domain<'_>> =
        present.iter().filter_map(|target| map.domain_of(*target)).collect();
    let mut places = Vec::new();
    while places.len() < count {
        let closeness = |target: TargetId| {
            let (node, domain) = (node_of(target)?, map.domain_of(target)?);
            let is_near = (domains.contains(&domain), nodes.contains(&node));
            (!taken.contains(&target)).then_some((is_near, target, node, domain))
        };
        let best = candidates.iter().filter_map(|target| closeness(*target)).min_by_key(|found| found.0);
        let Some((_, target, node, domain)) = best else { break };
        taken.insert(target);
        nodes.insert(node);
        domains.insert(domain);
        places.push(target);
    }
    places
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::testing::map_in_domains as map;

    fn ids(ids: &[u32]) -> Vec<TargetId> {
        ids.iter().copied().map(TargetId).collect()
    }

    #[test]
    fn copies_are_in_different_racks_then_on_different_servers_then_anywhere() {
        // Servers 0 and 1 in rack a, 2 in rack b; two targets each.
        let map = map(&[0, 0, 1, 1, 2, 2], &["a", "a", "b"]);
        let all = ids(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(place_copies(&map, &all, &[], 2), ids(&[0, 4]));
        assert_eq!(place_copies(&map, &all, &ids(&[5]), 1), ids(&[0]));
        assert_eq!(
            place_copies(&map, &all, &[], 3),
            ids(&[0, 4, 2]),
            "the third on another server of rack a"
        );
        assert_eq!(place_copies(&map, &all, &[], 9).len(), 6, "each target once");
        assert_eq!(place_copies(&map, &ids(&[0, 1]), &ids(&[0]), 2), ids(&[1]));
        assert_eq!(place_copies(&map, &[], &[], 2), []);
    }

    /// Of many maps, drawn from numbers: no other choice has its copies in more domains, or on more servers.
    #[test]
    fn no_choice_is_spread_wider() {
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let domains: Vec<&str> =
                (0..1 + draw(6)).map(|_| ["", "a", "b", "c"][draw(4) as usize]).collect();
            let nodes: Vec<u32> = (0..1 + draw(10)).map(|_| draw(domains.len() as u64) as u32).collect();
            let map = map(&nodes, &domains);
            let all = ids(&(0..nodes.len() as u32).collect::<Vec<_>>());
            let (present, candidates) = all.split_at(draw(all.len() as u64 + 1).min(2) as usize);
            let count = draw(5) as usize;
            let placed = place_copies(&map, candidates, present, count);
            assert_eq!(placed, place_copies(&map, candidates, present, count), "the same again");
            assert_eq!(placed.len(), count.min(candidates.len()));
            let copies: Vec<TargetId> = present.iter().chain(&placed).copied().collect();
            assert_eq!(copies.iter().collect::<BTreeSet<_>>().len(), copies.len(), "on different targets");
            let width = |copies: &[TargetId]| {
                let domains: BTreeSet<_> = copies.iter().map(|target| map.domain_of(*target)).collect();
                let nodes: BTreeSet<_> =
                    copies.iter().map(|target| map.target(*target).unwrap().node).collect();
                (domains.len(), nodes.len())
            };
            // LIMIT: 2^10 subsets.
            for subset in 0u32..1 << candidates.len() {
                if subset.count_ones() as usize != placed.len() {
                    continue;
                }
                let chosen = (0..).zip(candidates).filter(|(at, _)| subset & 1 << at != 0);
                let other: Vec<TargetId> = present.iter().copied().chain(chosen.map(|(_, id)| *id)).collect();
                assert!(
                    width(&other) <= width(&copies),
                    "{other:?} is wider than {copies:?}: {nodes:?} {domains:?}"
                );
            }
        }
    }
}
