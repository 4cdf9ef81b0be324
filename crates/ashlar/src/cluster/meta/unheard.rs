//! What a metadata service does without that has just taken over: answers of storage servers that have not heard of it yet, as those that died together with the last one have not.

use ashlar_types::map::{Target, TargetState};
use ashlar_types::message::StorageRequest;
use ashlar_types::{ClusterMap, Errno, NodeId};

/// What is answered in place of the target of `request` if its server has not heard of the service, which has all that was acknowledged: `ENODEV` where the next look does, and `EBUSY`
/// for its space, which is no answer and makes it no missing one. `None`: it is to be asked, and waited for.
pub fn answer(
    request: &StorageRequest,
    map: &ClusterMap,
    is_unheard: &dyn Fn(NodeId) -> bool,
) -> Option<Errno> {
    let is_space = matches!(request, StorageRequest::Space { .. });
    if !is_space && !matches!(request, StorageRequest::Suspects { .. } | StorageRequest::GiveBack { .. }) {
        return None;
    }
    let target = map.target(request.target()).filter(|target| is_unheard(target.node))?;
    if !is_space {
        return Some(Errno::ENODEV);
    }
    // Where nobody else of a pool takes anything, whoever makes a file waits.
    let mut others = map.targets.iter().filter(|other| other.pool == target.pool);
    let takes =
        |other: &Target| other.state == TargetState::Online && !other.is_draining && !is_unheard(other.node);
    let has_copies = map.chains_of_copies().next().is_some();
    // It is not known to be missing: who cuts a file of it asks it, and waits.
    (has_copies && others.any(takes)).then_some(Errno::EBUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::map::{Chain, ChainCopies};
    use ashlar_types::testing::map_in_domains;
    use ashlar_types::{ChainId, OfChains, PoolId, ShardSet, TargetId};

    const SILENT: NodeId = NodeId(1);

    /// Targets 0 and 1 on servers of that number, with a chain of two copies or without one.
    fn map(has_copies: bool) -> ClusterMap {
        let mut map = map_in_domains(&[0, 1], &["", ""]);
        let (changed, catching_up, former) = Default::default();
        let copies = ChainCopies { wanted: 2, changed, catching_up, former };
        if has_copies {
            map.chains.push(Chain {
                id: ChainId(0),
                pool: PoolId(0),
                targets: [TargetId(0), TargetId(1)].into_iter().collect(),
                moving: None,
                copies: Some(copies),
            });
        }
        map
    }

    fn asked(request: &StorageRequest, map: &ClusterMap) -> Option<Errno> {
        answer(request, map, &|node| node == SILENT)
    }

    #[test]
    fn what_can_be_done_without_is_not_waited_for() {
        let of = |target: u32| {
            let (target, after, shards) = (TargetId(target), None, ShardSet::below(1));
            [
                StorageRequest::Suspects { target, after, limit: 1, shards },
                StorageRequest::GiveBack { target },
                StorageRequest::Space { target },
            ]
        };
        let map = map(true);
        let expected = [Some(Errno::ENODEV), Some(Errno::ENODEV), Some(Errno::EBUSY)];
        assert_eq!(of(1).map(|request| asked(&request, &map)), expected);
        assert_eq!(of(0).map(|request| asked(&request, &map)), [None; 3], "of one that has heard");
        // What files have is asked, however long that takes.
        let sync = StorageRequest::Sync { target: TargetId(1), chains: OfChains::All };
        assert_eq!(asked(&sync, &map), None);
    }

    #[test]
    fn space_is_waited_for_where_nobody_else_takes_anything() {
        let space = StorageRequest::Space { target: TargetId(1) };
        assert_eq!(asked(&space, &map(false)), None, "without copies what is there is all there is");
        let mut drained = map(true);
        drained.targets[0].is_draining = true;
        assert_eq!(asked(&space, &drained), None);
        let mut away = map(true);
        away.targets[0].state = TargetState::Offline;
        assert_eq!(asked(&space, &away), None);
        let mut elsewhere = map(true);
        elsewhere.targets[0].pool = PoolId(1);
        assert_eq!(asked(&space, &elsewhere), None, "of another pool");
    }
}
