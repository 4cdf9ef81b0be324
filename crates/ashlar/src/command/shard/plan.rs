//! Which shards are to go where.

use ashlar_types::{ClusterMap, NodeId, Role, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// A shard, and whose it is to be.
pub type Wanted = (ShardId, NodeId);

/// All of `shards` to one server.
pub fn to_one(shards: &[ShardId], to: NodeId) -> Vec<Wanted> {
    shards.iter().map(|shard| (*shard, to)).collect()
}

/// How many shards each metadata server has, but those `without`.
fn counts(map: &ClusterMap, without: &BTreeSet<NodeId>) -> BTreeMap<NodeId, usize> {
    let servers = map.listening(Role::Meta).map(|node| node.id).filter(|node| !without.contains(node));
    let count = |node: NodeId| map.shards.iter().filter(|shard| shard.primary == node).count();
    servers.map(|node| (node, count(node))).collect()
}

fn fewest(counts: &BTreeMap<NodeId, usize>) -> Option<NodeId> {
    counts.iter().min_by_key(|(_, count)| **count).map(|(node, _)| *node)
}

/// All shards of `from` to the others but those `left_out`, each to whoever has fewest then. `None` when there are no others.
pub fn drain(map: &ClusterMap, from: NodeId, left_out: &BTreeSet<NodeId>) -> Option<Vec<Wanted>> {
    let mut without = left_out.clone();
    without.insert(from);
    let mut counts = counts(map, &without);
    let mut wanted = Vec::new();
    for shard in map.shards.iter().filter(|shard| shard.primary == from) {
        let to = fewest(&counts)?;
        *counts.entry(to).or_default() += 1;
        wanted.push((shard.id, to));
    }
    Some(wanted)
}

/// As few shards as it takes for no server to have two more than another, of those that are not `left_out`.
pub fn balance(map: &ClusterMap, left_out: &BTreeSet<NodeId>) -> Vec<Wanted> {
    let mut counts = counts(map, left_out);
    let mut primaries: BTreeMap<ShardId, NodeId> =
        map.shards.iter().map(|shard| (shard.id, shard.primary)).collect();
    let mut wanted = Vec::new();
    // LIMIT: each turn moves a shard that no turn before has moved.
    loop {
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(node, count)| (*node, *count));
        let (Some((from, most)), Some(to)) = (most, fewest(&counts)) else { return wanted };
        let least = counts.get(&to).copied().unwrap_or_default();
        // The last ones first: those before are used first.
        let next = primaries.iter().rev().find(|(_, primary)| **primary == from).map(|(shard, _)| *shard);
        let Some(shard) = next.filter(|_| most > least + 1) else { return wanted };
        primaries.remove(&shard);
        counts.insert(from, most - 1);
        counts.insert(to, least + 1);
        wanted.push((shard, to));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::testing::map_of_shards as map;

    fn counts_after(map: &ClusterMap, wanted: &[Wanted]) -> Vec<usize> {
        let mut after = map.clone();
        for (shard, to) in wanted {
            let shard = &mut after.shards[usize::from(shard.0)];
            assert_ne!(shard.primary, *to, "a move to where it is");
            shard.primary = *to;
        }
        counts(&after, &BTreeSet::new()).into_values().collect()
    }

    #[test]
    fn a_server_that_is_drained_has_nothing_and_the_others_as_much_as_each_other() {
        let none = BTreeSet::new();
        let uneven: Vec<u32> = (0..64).map(|at| if at < 10 { 1 } else { 2 + at % 2 }).collect();
        let map = map(&uneven, &[1, 2, 3]);
        let wanted = drain(&map, NodeId(2), &none).unwrap();
        assert_eq!(wanted.len(), 27);
        assert_eq!(counts_after(&map, &wanted), [32, 0, 32]);
        assert_eq!(drain(&self::map(&[1; 4], &[1]), NodeId(1), &none), None, "to whom?");
        assert_eq!(drain(&map, NodeId(9), &none), Some(Vec::new()), "who has nothing is drained");
    }

    #[test]
    fn balancing_moves_no_more_than_it_must() {
        let none = BTreeSet::new();
        let map1 = map(&[1; 64], &[1, 2, 3]);
        let wanted = balance(&map1, &none);
        assert_eq!(wanted.len(), 42);
        let after = counts_after(&map1, &wanted);
        assert!(after.iter().all(|count| (21..=22).contains(count)), "{after:?}");
        let even: Vec<u32> = (0..64).map(|at| 1 + at % 3).collect();
        assert!(balance(&map(&even, &[1, 2, 3]), &none).is_empty());
        assert!(balance(&map(&even, &[]), &none).is_empty(), "nobody listens");
    }

    #[test]
    fn who_is_left_out_gets_nothing_and_gives_nothing() {
        let left_out = BTreeSet::from([NodeId(3)]);
        let map = map(&[[1; 20], [3; 20]].concat(), &[1, 2, 3]);
        let wanted = balance(&map, &left_out);
        assert_eq!(counts_after(&map, &wanted), [10, 10, 20]);
        let drained = drain(&map, NodeId(1), &left_out).unwrap();
        assert_eq!(counts_after(&map, &drained), [0, 20, 20]);
        assert_eq!(drain(&map, NodeId(1), &BTreeSet::from([NodeId(2), NodeId(3)])), None);
    }
}
