//! Chains of several copies.

use super::node;
use ashlar_types::map::{Chain, ChainCopies};
use ashlar_types::message::MoveProgress;
use ashlar_types::{ClusterMap, PoolId, TargetId};
use serde_json::{Value, json};

/// Chains of several copies, of one pool or of all, with the rest of their groups.
pub fn copied(map: &ClusterMap, pool: Option<PoolId>) -> impl Iterator<Item = (&Chain, &ChainCopies)> {
    map.chains_of_copies().filter(move |(chain, _)| pool.is_none_or(|pool| chain.pool == pool))
}

/// The name of its pool.
pub fn pool<'m>(map: &'m ClusterMap, chain: &Chain) -> &'m str {
    super::pool::name(map, chain.pool)
}

/// A chain: `id`, `pool`, `wanted`, `in_sync`, `catching_up`, `former` (each a list of `id`, `node`), `is_short`, `epoch` and `progress` (null, or how far the one is that is being brought up
/// to date, as its server tells: `to`, `chunks_done`, `bytes_done`, `bytes_total` and `obstacle`, null while it goes on).
pub fn object(
    map: &ClusterMap,
    chain: &Chain,
    copies: &ChainCopies,
    progress: Option<&MoveProgress>,
) -> Value {
    let progress = progress.map(|progress| {
        json!({
            "to": progress.to.0,
            "chunks_done": progress.chunks_done,
            "bytes_done": progress.bytes_done,
            "bytes_total": progress.bytes_total,
            "obstacle": Some(progress.obstacle.as_str()).filter(|text| !text.is_empty()),
        })
    });
    let of = |targets: &[TargetId]| -> Vec<Value> {
        let node = |target: TargetId| map.target(target).map(|known| node::reference(map, known.node));
        targets.iter().map(|target| json!({ "id": target.0, "node": node(*target) })).collect()
    };
    json!({
        "id": chain.id.0,
        "pool": pool(map, chain),
        "wanted": copies.wanted,
        "in_sync": of(&chain.targets),
        "catching_up": of(&copies.catching_up),
        "former": of(&copies.former),
        "is_short": chain.is_short(),
        "epoch": copies.changed.0,
        "progress": progress,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_types::testing::map_in_domains;
    use ashlar_types::{ChainId, Epoch};

    #[test]
    fn a_chain_tells_who_keeps_it_on_which_server() {
        let mut map = map_in_domains(&[0, 1, 2], &["", "", ""]);
        let [catching_up, former] = [2, 1].map(|target| [TargetId(target)].into_iter().collect());
        let copies = ChainCopies { wanted: 2, changed: Epoch(7), catching_up, former };
        let targets = [TargetId(0)].into_iter().collect();
        map.chains.push(Chain {
            id: ChainId(0),
            pool: PoolId(0),
            targets,
            moving: None,
            copies: Some(copies),
        });
        let progress = MoveProgress {
            chain: ChainId(0),
            to: TargetId(2),
            chunks_done: 3,
            bytes_done: 5,
            bytes_total: 9,
            obstacle: String::new(),
        };
        let told: Vec<Value> = copied(&map, Some(PoolId(0)))
            .map(|(chain, copies)| object(&map, chain, copies, Some(&progress)))
            .collect();
        let on = |target: u32| json!([{ "id": target, "node": node::reference(&map, ashlar_types::NodeId(target)) }]);
        let expected = json!({
            "id": 0, "pool": "", "wanted": 2, "in_sync": on(0), "catching_up": on(2), "former": on(1), "is_short": true, "epoch": 7,
            "progress": { "to": 2, "chunks_done": 3, "bytes_done": 5, "bytes_total": 9, "obstacle": null },
        });
        assert_eq!(told, [expected]);
        assert_eq!(copied(&map, Some(PoolId(1))).count(), 0);
    }
}
