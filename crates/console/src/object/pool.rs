//! Pools of targets.

use super::away::Away;
use super::target::{self, Space};
use super::with;
use ashlar_types::map::Pool;
use ashlar_types::{ClusterMap, PoolId, TargetId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The name of the pool; empty where it is none (any more).
pub fn name(map: &ClusterMap, id: PoolId) -> &str {
    map.pools.iter().find(|pool| pool.id == id).map_or("", |pool| pool.name.as_str())
}

/// The numbers of its targets.
pub fn targets(map: &ClusterMap, pool: &Pool) -> Vec<u32> {
    map.targets.iter().filter(|target| target.pool == pool.id).map(|target| target.id.0).collect()
}

/// How many chains it has.
pub fn chains(map: &ClusterMap, pool: &Pool) -> usize {
    map.chains.iter().filter(|chain| chain.pool == pool.id).count()
}

/// Chains of a pool that are to have the same number of copies.
pub struct Set {
    /// How many copies.
    pub copies: u8,
    /// How many chains.
    pub chains: usize,
    /// How many of them have fewer copies.
    pub short: usize,
}

/// Its chains by how many copies they are to have.
pub fn by_copies(map: &ClusterMap, pool: &Pool) -> Vec<Set> {
    let mut sets: BTreeMap<u8, Set> = BTreeMap::new();
    for chain in map.chains.iter().filter(|chain| chain.pool == pool.id) {
        let copies = chain.copies_wanted();
        let set = sets.entry(copies).or_insert(Set { copies, chains: 0, short: 0 });
        set.chains += 1;
        set.short += usize::from(chain.is_short());
    }
    sets.into_values().collect()
}

/// How many of them are moving.
pub fn moving(map: &ClusterMap, pool: &Pool) -> usize {
    map.chains.iter().filter(|chain| chain.pool == pool.id && chain.moving.is_some()).count()
}

/// What targets have together.
pub fn total<'s>(spaces: impl IntoIterator<Item = &'s Space>) -> Space {
    spaces
        .into_iter()
        .fold((0, 0), |(total, free), space| (total.saturating_add(space.0), free.saturating_add(space.1)))
}

/// A pool as [`object`] has it, how many of its chains are moving, its space as far as servers have told it, and its targets.
pub fn object_with_members(
    map: &ClusterMap,
    pool: &Pool,
    away: &Away,
    spaces: &BTreeMap<TargetId, Space>,
) -> Value {
    let members = || map.targets.iter().filter(|target| target.pool == pool.id);
    let told: Vec<&Space> = members().filter_map(|target| spaces.get(&target.id)).collect();
    let (bytes_total, bytes_free) = total(told.iter().copied());
    let members: Vec<Value> =
        members().map(|target| target::object(map, target, away, spaces.get(&target.id))).collect();
    with(
        object(map, pool),
        json!({
            "chains_moving": moving(map, pool),
            "targets_told": told.len(),
            "bytes_total": bytes_total,
            "bytes_used": bytes_total.saturating_sub(bytes_free),
            "bytes_free": bytes_free,
            "members": members,
        }),
    )
}

/// A pool: `id`, `name`, `targets`, `chains`, `chains_by_copies`, `is_rebalancing`.
pub fn object(map: &ClusterMap, pool: &Pool) -> Value {
    let by_copies = by_copies(map, pool);
    let set = |set: &Set| json!({ "copies": set.copies, "chains": set.chains, "short": set.short });
    json!({
        "id": pool.id.0,
        "name": pool.name,
        "targets": targets(map, pool),
        "chains": chains(map, pool),
        "chains_by_copies": by_copies.iter().map(set).collect::<Vec<_>>(),
        "is_rebalancing": map.moves.rebalancing.contains(&pool.id),
    })
}
