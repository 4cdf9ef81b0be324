//! Which servers are away, as a manager has it.

use ashlar_types::message::ServerPresence;
use ashlar_types::{NodeId, Role};
use std::collections::BTreeMap;

/// Servers that are away, and for how many seconds at least.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Away(BTreeMap<(NodeId, Role), u64>);

impl Away {
    /// Those of `servers` that are away, of whom a manager has told `age_s` seconds ago.
    pub fn among(servers: &[ServerPresence], age_s: u64) -> Away {
        let away = servers.iter().filter(|server| server.is_away);
        Away(away.map(|server| ((server.node, server.role), server.silent_ms / 1000 + age_s)).collect())
    }

    /// For how many seconds nothing was heard of a server, if it is away.
    pub fn seconds(&self, node: NodeId, role: Role) -> Option<u64> {
        self.0.get(&(node, role)).copied()
    }

    /// The same for people, with a comma before.
    pub fn note(&self, node: NodeId, role: Role) -> String {
        self.seconds(node, role).map_or(String::new(), |seconds| format!(", away since {seconds} s"))
    }
}
