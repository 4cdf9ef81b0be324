//! Chains that go to other targets.

use ashlar_types::message::MoveProgress;
use ashlar_types::{ChainId, ClusterMap, TargetId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Chains on their way: which, from where, to where.
pub fn moving(map: &ClusterMap) -> Vec<(ChainId, TargetId, TargetId)> {
    map.chains
        .iter()
        .filter_map(|chain| Some((chain.id, chain.targets.first().copied()?, chain.moving?.to)))
        .collect()
}

/// How chains are moved, and which are, with how far they are as far as their servers have told.
pub fn object(map: &ClusterMap, progress: &BTreeMap<ChainId, MoveProgress>) -> Value {
    let one = |(chain, from, to): &(ChainId, TargetId, TargetId)| {
        let progress = progress.get(chain);
        json!({
            "chain": chain.0,
            "from": from.0,
            "to": to.0,
            "chunks_done": progress.map(|progress| progress.chunks_done),
            "bytes_done": progress.map(|progress| progress.bytes_done),
            "bytes_total": progress.map(|progress| progress.bytes_total),
            "obstacle": progress.map(|progress| progress.obstacle.as_str()).filter(|text| !text.is_empty()),
        })
    };
    let rebalancing: Vec<&str> = map
        .pools
        .iter()
        .filter(|pool| map.moves.rebalancing.contains(&pool.id))
        .map(|pool| pool.name.as_str())
        .collect();
    let moves: Vec<Value> = moving(map).iter().map(one).collect();
    json!({
        "is_paused": map.moves.is_paused,
        "rate_mib_s": map.moves.rate_mib_s,
        "rebalancing": rebalancing,
        "moves": moves,
    })
}
