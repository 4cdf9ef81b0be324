//! Pools of targets.

use ashlar_types::ClusterMap;
use ashlar_types::map::Pool;
use serde_json::{Value, json};

/// The numbers of its targets.
pub fn targets(map: &ClusterMap, pool: &Pool) -> Vec<u32> {
    map.targets.iter().filter(|target| target.pool == pool.id).map(|target| target.id.0).collect()
}

/// How many chains it has.
pub fn chains(map: &ClusterMap, pool: &Pool) -> usize {
    map.chains.iter().filter(|chain| chain.pool == pool.id).count()
}

/// A pool: `id`, `name`, `targets`, `chains`, `is_rebalancing`.
pub fn object(map: &ClusterMap, pool: &Pool) -> Value {
    json!({
        "id": pool.id.0,
        "name": pool.name,
        "targets": targets(map, pool),
        "chains": chains(map, pool),
        "is_rebalancing": map.moves.rebalancing.contains(&pool.id),
    })
}
