//! Shards of metadata.

use super::away::Away;
use super::{node, with};
use ashlar_rpc::wire::{MoveInfo, MoveState};
use ashlar_types::map::Shard;
use ashlar_types::{ClusterMap, Role};
use serde_json::{Value, json};

/// A shard, for how long its server is away (`away_s`, null when it is not), and how far it is if it goes to another server.
pub fn object(map: &ClusterMap, shard: &Shard, away: &Away, moving: Option<&MoveInfo>) -> Value {
    let moving = moving.map(|info| move_object(map, info));
    let (node, away_s) = (node::reference(map, shard.primary), away.seconds(shard.primary, Role::Meta));
    json!({ "id": shard.id.0, "node": node, "away_s": away_s, "moving": moving })
}

/// A shard as [`object`] has it, where its server listens, and the epoch of the map that says all this.
pub fn object_with_place(map: &ClusterMap, shard: &Shard, away: &Away, moving: Option<&MoveInfo>) -> Value {
    let addresses = map.node(shard.primary).map(|node| node.addresses(Role::Meta)).unwrap_or_default();
    with(object(map, shard, away, moving), json!({ "addresses": addresses, "epoch": map.epoch.0 }))
}

/// How far a shard is that goes to another server: `to`, `state`, `sent` and `total` keys, and `reason`, if it does not get there.
pub fn move_object(map: &ClusterMap, info: &MoveInfo) -> Value {
    let (state, reason) = match &info.state {
        MoveState::Waiting => ("waiting", None),
        MoveState::Copying => ("copying", None),
        MoveState::Deciding => ("deciding", None),
        MoveState::Failed(why) => ("failed", Some(why)),
        MoveState::Stalled(why) => ("stalled", Some(why)),
    };
    let to = node::reference(map, info.to);
    json!({ "to": to, "state": state, "sent": info.sent, "total": info.total, "reason": reason })
}
