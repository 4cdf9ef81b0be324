//! Machines.

use super::away::Away;
use super::with;
use ashlar_types::policy::{IdMap, Outside, Squash};
use ashlar_types::{ClusterMap, Node, NodeId, NodePolicy, Role};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// A node as other objects refer to it: its number, and its name, null for one that was removed.
pub fn reference(map: &ClusterMap, node: NodeId) -> Value {
    json!({ "id": node.0, "name": map.node(node).map(|known| known.name.as_str()) })
}

/// The name of a node, for people.
pub fn name(map: &ClusterMap, node: NodeId) -> String {
    map.node(node).map_or_else(|| node.to_string(), |known| known.name.clone())
}

/// A machine: `id`, `name`, `roles`, `listening` and `management` (addresses by role, for everybody and for management alone), `away_s` (seconds by role, of those that
/// are away), `domain` and `policy`.
pub fn object(node: &Node, away: &Away) -> Value {
    let by_role = |of: fn(&Node, Role) -> &[SocketAddr]| -> Map<String, Value> {
        let listens = Role::ALL.into_iter().filter(|role| !of(node, *role).is_empty());
        listens.map(|role| (role.to_string(), json!(of(node, role)))).collect()
    };
    let away =
        node.roles.iter().filter_map(|role| Some((role.to_string(), away.seconds(node.id, role)?.into())));
    let away: Map<String, Value> = away.collect();
    let roles: Vec<&str> = node.roles.iter().map(Role::name).collect();
    json!({
        "id": node.id.0,
        "name": node.name,
        "roles": roles,
        "listening": by_role(Node::addresses),
        "management": by_role(Node::management),
        "away_s": away,
        "domain": domain(node),
        "policy": policy_object(&node.policy),
    })
}

/// A machine as [`object`] has it, and which targets and shards it serves.
pub fn object_with_holdings(map: &ClusterMap, node: &Node, away: &Away) -> Value {
    let targets = map.targets.iter().filter(|target| target.node == node.id).map(|target| target.id.0);
    let shards = map.shards.iter().filter(|shard| shard.primary == node.id).map(|shard| shard.id.0);
    let (targets, shards): (Vec<u32>, Vec<u16>) = (targets.collect(), shards.collect());
    with(object(node, away), json!({ "targets": targets, "shards": shards }))
}

/// The failure domain of a node, if it is in one.
pub fn domain(node: &Node) -> Option<&str> {
    Some(node.domain.as_str()).filter(|domain| !domain.is_empty())
}

/// What a machine may do as a client.
pub fn policy_object(policy: &NodePolicy) -> Value {
    let ranges = |map: &IdMap| -> Vec<Value> {
        map.0
            .iter()
            .map(|range| json!({ "first": range.first, "last": range.last, "server": range.server }))
            .collect()
    };
    json!({
        "squash": match policy.squash {
            Squash::Root => "root",
            Squash::All => "all",
            Squash::Nobody => "none",
        },
        "anonymous": { "uid": policy.anonymous.uid, "gid": policy.anonymous.gid },
        "map_uid": ranges(&policy.uids),
        "map_gid": ranges(&policy.gids),
        "outside": match policy.outside {
            Outside::Refuse => "refuse",
            Outside::Squash => "squash",
        },
        "read_only": policy.read_only,
        "subtree": policy.subtree.as_ref().map(|shown| json!({
            "path": shown.path, "inode": shown.root.0, "fileset": shown.fileset.0,
        })),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ashlar_types::message::ServerPresence;
    use ashlar_types::{Places, Roles, TargetId};

    #[test]
    fn addresses_are_told_by_what_they_are_for_and_marks_of_the_map_are_not() {
        let at = |text: &str| text.parse().unwrap();
        let places = Places {
            addresses: vec![at("10.0.0.1:1"), at("10.0.1.1:1")],
            management: vec![at("192.168.0.1:1")],
            targets: vec![(TargetId(7), vec![at("10.0.1.1:1")])],
        };
        let node = Node {
            id: NodeId(3),
            name: "oss".into(),
            roles: Roles::default().with(Role::Storage),
            listening: places.entries(Role::Storage),
            policy: NodePolicy::default(),
            domain: "rack1".into(),
        };
        let server = |node, is_away| ServerPresence {
            node: NodeId(node),
            role: Role::Storage,
            silent_ms: 34_500,
            is_away,
        };
        assert_eq!(object(&node, &Away::among(&[server(3, false), server(4, true)], 0))["away_s"], json!({}));
        let object = object(&node, &Away::among(&[server(3, true)], 2));
        assert_eq!((&object["away_s"], &object["domain"]), (&json!({ "storage": 36 }), &json!("rack1")));
        assert_eq!(object["listening"], json!({ "storage": ["10.0.0.1:1", "10.0.1.1:1"] }));
        assert_eq!(object["management"], json!({ "storage": ["192.168.0.1:1"] }));
    }
}
