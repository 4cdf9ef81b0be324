//! What each client has asked of a server: counters for whoever watches a file system.

use ashlar_types::{ClusterMap, NodeId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Clients that are counted by themselves.
// LIMIT: of a server; those that come later are not.
const CLIENTS_MAX: usize = 4096;

/// What one client has asked for since the server was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCount {
    /// Calls.
    pub calls: u64,
    /// Content that it has read, bytes.
    pub read: u64,
    /// Content that it has written, bytes.
    pub written: u64,
}

#[derive(Default)]
struct Counters {
    calls: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
}

/// See the module.
#[derive(Default)]
pub struct ClientCounts {
    clients: RwLock<FxHashMap<NodeId, Arc<Counters>>>,
}

impl ClientCounts {
    /// Counts a call of `node`.
    pub(super) fn note(&self, node: NodeId, read: usize, written: usize) {
        let known = self.clients.read().get(&node).cloned();
        let Some(counters) = known.or_else(|| self.add(node)) else { return };
        counters.calls.fetch_add(1, Relaxed);
        if read > 0 {
            counters.read.fetch_add(read as u64, Relaxed);
        }
        if written > 0 {
            counters.written.fetch_add(written as u64, Relaxed);
        }
    }

    fn add(&self, node: NodeId) -> Option<Arc<Counters>> {
        let mut clients = self.clients.write();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&node) {
            return None;
        }
        Some(clients.entry(node).or_default().clone())
    }

    /// All that are in `map`, by name; the others are forgotten.
    pub fn all(&self, map: &ClusterMap) -> Vec<(String, ClientCount)> {
        self.clients.write().retain(|node, _| map.node(*node).is_some());
        let mut all: Vec<(String, ClientCount)> = self
            .clients
            .read()
            .iter()
            .filter_map(|(node, counters)| {
                let count = ClientCount {
                    calls: counters.calls.load(Relaxed),
                    read: counters.read.load(Relaxed),
                    written: counters.written.load(Relaxed),
                };
                Some((map.node(*node)?.name.clone(), count))
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_clients_are_kept_than_may_be() {
        let counts = ClientCounts::default();
        (0..CLIENTS_MAX as u32 + 10).for_each(|node| counts.note(NodeId(node), 1, 2));
        assert_eq!(counts.clients.read().len(), CLIENTS_MAX);
        counts.note(NodeId(0), 0, 5);
        let first = counts.clients.read().get(&NodeId(0)).cloned();
        assert!(
            first.is_some_and(|first| first.calls.load(Relaxed) == 2 && first.written.load(Relaxed) == 7)
        );
    }
}
