//! Targets.

use super::away::Away;
use super::node;
use ashlar_types::map::{Chain, Target, TargetState};
use ashlar_types::{ClusterMap, Role, TargetId};
use serde_json::{Value, json};

/// Total and free bytes.
pub type Space = (u64, u64);

/// How many chains a target has all of, the copies of several among them.
pub fn chains(map: &ClusterMap, target: TargetId) -> usize {
    map.chains.iter().filter(|chain| chain.targets.contains(&target)).count()
}

/// Chains that are just moving from it.
pub fn leaving(map: &ClusterMap, target: TargetId) -> usize {
    map.chains_at(target).filter(|chain| chain.moving.is_some()).count()
}

/// Chains that are just moving to it, or of which it is being given a copy.
pub fn coming(map: &ClusterMap, target: TargetId) -> usize {
    let comes = |chain: &&Chain| {
        let is_catching_up = chain.copies.as_ref().is_some_and(|copies| copies.catching_up.contains(&target));
        is_catching_up || chain.moving.is_some_and(|moving| moving.to == target)
    };
    map.chains.iter().filter(comes).count()
}

/// The name of the pool of a target.
pub fn pool<'m>(map: &'m ClusterMap, target: &Target) -> &'m str {
    super::pool::name(map, target.pool)
}

/// Whether it serves, in a word.
pub fn state(target: &Target) -> &'static str {
    match target.state {
        TargetState::Online => "online",
        TargetState::Offline => "offline",
    }
}

/// A target; for how long its server is away (`away_s`, null when it is not), its failure domain, its space, if its server has told it.
pub fn object(map: &ClusterMap, target: &Target, away: &Away, space: Option<&Space>) -> Value {
    json!({
        "id": target.id.0,
        "state": state(target),
        "away_s": away.seconds(target.node, Role::Storage),
        "domain": map.node(target.node).and_then(node::domain),
        "is_draining": target.is_draining,
        "node": node::reference(map, target.node),
        "path": target.path,
        "pool": pool(map, target),
        "chains": chains(map, target.id),
        "chains_leaving": leaving(map, target.id),
        "chains_coming": coming(map, target.id),
        "bytes_total": space.map(|(total, _)| total),
        "bytes_used": space.map(|(total, free)| total.saturating_sub(*free)),
        "bytes_free": space.map(|(_, free)| free),
    })
}
