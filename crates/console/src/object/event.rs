//! What has happened.

use super::node;
use ashlar_types::{ClusterMap, Event};
use serde_json::{Value, json};

/// An event: `number`, `time`, `node`, `kind`, `subject`, `text`.
pub fn object(map: &ClusterMap, event: &Event) -> Value {
    json!({
        "number": event.number,
        "time": event.what.at.utc(),
        "node": node::reference(map, event.node),
        "kind": event.what.kind.name(),
        "subject": event.what.subject,
        "text": event.what.text,
    })
}
