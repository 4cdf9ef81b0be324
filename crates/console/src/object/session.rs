//! Sessions of mounts.

use super::node;
use ashlar_rpc::wire::SessionInfo;
use ashlar_types::{ClusterMap, NodeId};
use serde_json::{Value, json};

/// A session as the metadata server on `server` has it.
pub fn object(map: &ClusterMap, server: NodeId, info: &SessionInfo) -> Value {
    json!({
        "id": info.session.0,
        "id_text": info.session.0.to_string(),
        "server": node::reference(map, server),
        "node": node::reference(map, info.owner.node),
        "since": info.since_s,
        "heard_ms": info.heard_ms,
        "leases": info.leases,
        "opens": info.opens,
        "locks": info.locks,
        "is_ending": info.is_ending,
    })
}
