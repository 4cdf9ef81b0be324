//! Changes of the cluster map, as pure functions from one map to the next.

use crate::ManagerError;
use crate::plan::chain_sets::{Group, Spread};
use ashlar_types::map::{Chain, ChainCopies, MovePolicy, Pool, Shard, Target, TargetState};
use ashlar_types::{
    ChainId, ClusterId, ClusterMap, Epoch, Node, NodeId, NodePolicy, PoolId, Role, ShardId, TargetId,
};
use smallvec::{SmallVec, smallvec};

/// Most chains of several copies.
// LIMIT: some 20 bytes each, and an etcd takes 1 MiB for everything.
pub(crate) const CHAINS_OF_COPIES_MAX: usize = 20_000;

/// A target directory that was found at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its id, from its header.
    pub id: TargetId,
    /// Its uuid, from its header.
    pub uuid: [u8; 16],
    /// Where it is.
    pub path: String,
}

/// The map of a new file system.
pub(crate) fn first_map(cluster: ClusterId, node: NodeId) -> ClusterMap {
    ClusterMap {
        cluster,
        epoch: Epoch(1),
        pools: vec![Pool { id: PoolId(0), name: "default".to_owned() }],
        targets: Vec::new(),
        chains: Vec::new(),
        shards: (0..ShardId::COUNT_DEFAULT).map(|id| Shard { id: ShardId(id), primary: node }).collect(),
        nodes: vec![first_node(node)],
        moves: MovePolicy::default(),
        filesets: Vec::new(),
    }
}

/// The machine that a file system begins on.
pub(crate) fn first_node(id: NodeId) -> Node {
    Node {
        id,
        name: "first".to_owned(),
        roles: Role::OF_FIRST_NODE.into_iter().collect(),
        listening: Vec::new(),
        policy: NodePolicy::trusting(),
        domain: String::new(),
    }
}

/// `map` with exactly the `found` targets of `node` online; unchanged (epoch too) if it says so already.
///
/// A target that the map does not know gets the chains behind the last one, so that a map which has lost its latest targets (it
/// came from a backup) gets them back with the chains they had. That needs them in the order of their ids without a gap.
pub(crate) fn with_targets(
    map: &ClusterMap,
    found: &[FoundTarget],
    node: NodeId,
) -> Result<ClusterMap, ManagerError> {
    let is_new = |new: &&FoundTarget| !map.targets.iter().any(|known| known.uuid == new.uuid);
    let mut added: Vec<&FoundTarget> = found.iter().filter(is_new).collect();
    added.sort_by_key(|found| found.id);
    let first = map.targets.iter().map(|target| target.id.0 + 1).max().unwrap_or(1);
    for (expected, new) in (first..).map(TargetId).zip(added) {
        let is_taken = map.targets.iter().any(|known| known.id == new.id);
        if new.id != expected && !is_taken {
            return Err(ManagerError::Invalid(format!(
                "{} is {}, but the cluster map ends before {expected}: list the data directory of {expected} too (the map may \
                 have come from a backup that is older than these targets)",
                new.path, new.id
            )));
        }
    }
    with_targets_of_any_id(map, found, node, (&|_| PoolId(0), &|_| false))
}

/// In which pool a new target is to be.
type PoolOf<'a> = dyn Fn(TargetId) -> PoolId + 'a;
/// Whether the node holds the last start of the target of this uuid.
type Holds<'a> = dyn Fn([u8; 16]) -> bool + 'a;

/// As [`with_targets`], where ids are given out before targets are made, and some never are. A new target is in the pool that `pool_of` says. One that another node
/// serves is refused, but if the node `holds` the last start of it.
pub(crate) fn with_targets_of_any_id(
    map: &ClusterMap,
    found: &[FoundTarget],
    node: NodeId,
    (pool_of, holds): (&PoolOf<'_>, &Holds<'_>),
) -> Result<ClusterMap, ManagerError> {
    for new in found {
        let taken = map.targets.iter().find(|known| known.id == new.id && known.uuid != new.uuid);
        if let Some(taken) = taken {
            return Err(ManagerError::Invalid(format!(
                "{} says it is {}, but that is another one, last seen at {}",
                new.path, new.id, taken.path
            )));
        }
    }
    let mut next = map.clone();
    for target in next.targets.iter_mut().filter(|target| target.node == node) {
        if !found.iter().any(|found| found.uuid == target.uuid) {
            target.state = TargetState::Offline;
        }
    }
    for target in &mut next.targets {
        let Some(found) = found.iter().find(|found| found.uuid == target.uuid) else { continue };
        if target.node != node && target.state == TargetState::Online && !holds(target.uuid) {
            return Err(ManagerError::Invalid(format!(
                "{} at {} is served by {} at {}: one of the two is a copy, or its disk is attached to both; stop one of them",
                target.id, found.path, target.node, target.path
            )));
        }
        (target.state, target.path, target.node) = (TargetState::Online, found.path.clone(), node);
    }
    let is_known = |found: &FoundTarget| map.targets.iter().any(|known| known.uuid == found.uuid);
    let mut added: Vec<&FoundTarget> = found.iter().filter(|found| !is_known(found)).collect();
    added.sort_by_key(|found| found.id);
    for new in added {
        let id = new.id;
        let (pool, state, path) = (pool_of(id), TargetState::Online, new.path.clone());
        let at = next.targets.partition_point(|target| target.id < id);
        next.targets.insert(at, Target { id, uuid: new.uuid, node, pool, state, path, is_draining: false });
        let first = next.chains.len() as u32;
        let chains = (first..first + ClusterMap::CHAINS_PER_TARGET).map(|chain| Chain {
            id: ChainId(chain),
            pool,
            targets: smallvec![id],
            moving: None,
            copies: None,
        });
        next.chains.extend(chains);
        take_into_chains_of_copies(&mut next, id, pool);
    }
    Ok(next)
}

/// Has a new target take its part where its pool has chains of several copies. Without enough servers it has none yet.
fn take_into_chains_of_copies(map: &mut ClusterMap, newcomer: TargetId, pool: PoolId) {
    for copies in 2..=ChainCopies::COPIES_MAX {
        if !map.chains.iter().any(|chain| chain.pool == pool && chain.copies_wanted() == copies) {
            continue;
        }
        let groups = Spread::of(map, pool, copies).set_with(newcomer);
        let known = map.chains_of_copies().count();
        // Those that there are take it in where one is missing.
        if known + groups.len() <= CHAINS_OF_COPIES_MAX {
            push_chains(map, (pool, copies), groups);
        }
    }
}

/// Adds chains of several copies to a map that is about to be the next one.
pub(crate) fn push_chains(map: &mut ClusterMap, (pool, wanted): (PoolId, u8), groups: Vec<Group>) {
    let (first, changed) = (map.chains.len() as u32, Epoch(map.epoch.0 + 1));
    let chains = (first..).map(ChainId).zip(groups).map(|(id, targets)| {
        let (catching_up, former) = (SmallVec::new(), SmallVec::new());
        let copies = Some(ChainCopies { wanted, changed, catching_up, former });
        Chain { id, pool, targets, moving: None, copies }
    });
    map.chains.extend(chains);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(n: u8) -> FoundTarget {
        FoundTarget { id: TargetId(u32::from(n)), uuid: [n; 16], path: format!("/data{n}") }
    }

    #[test]
    fn a_target_keeps_its_id_and_chains_wherever_it_is_found() {
        let empty = first_map(ClusterId([9; 16]), NodeId(1));
        let with = |map: &ClusterMap, found: &[FoundTarget]| with_targets(map, found, NodeId(1)).unwrap();
        let two = with(&empty, &[found(1), found(2)]);
        assert_eq!((two.targets.len(), two.chains.len()), (2, 200));
        assert_eq!(with(&two, &[found(2), found(1)]), two, "another order changes nothing");
        let missing = with(&two, &[found(2)]);
        assert_eq!(missing.targets[0].state, TargetState::Offline);
        assert_eq!(missing.chains_of(PoolId(0), 1).count(), 100);
        let third = with(&missing, &[found(1), found(2), found(3)]);
        assert_eq!(third.targets[2].id, TargetId(3));
        assert!(third.chains[..200] == two.chains[..]);
    }

    #[test]
    fn a_map_from_an_old_backup_gives_newer_targets_the_chains_they_had_or_refuses() {
        let one = with_targets(&first_map(ClusterId([9; 16]), NodeId(1)), &[found(1)], NodeId(1)).unwrap();
        let three = with_targets(&one, &[found(1), found(2), found(3)], NodeId(1)).unwrap();
        let again = with_targets(&one, &[found(3), found(1), found(2)], NodeId(1)).unwrap();
        assert_eq!(again.chains, three.chains, "in whatever order they are listed");
        let refused = with_targets(&one, &[found(1), found(3)], NodeId(1)).unwrap_err().to_string();
        assert!(refused.contains("target-2"), "{refused}");
    }
}
