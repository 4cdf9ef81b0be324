//! The storage service: calls on targets, each served by its chunk store.
//!
//! What this crate is not: it knows no file and no permission yet; capabilities join it with the network.

mod answer;
mod call;

use ashlar_chunkstore::ChunkStore;
use ashlar_types::TargetId;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Targets of one server.
#[derive(Default)]
pub struct StorageService {
    targets: RwLock<BTreeMap<TargetId, Arc<ChunkStore>>>,
}

impl StorageService {
    /// A service without targets.
    pub fn new() -> StorageService {
        StorageService::default()
    }

    /// Takes a target into service.
    pub fn add_target(&self, id: TargetId, store: Arc<ChunkStore>) {
        self.targets.write().insert(id, store);
    }

    /// The target `id`, if it is in service here.
    pub fn target(&self, id: TargetId) -> Option<Arc<ChunkStore>> {
        self.targets.read().get(&id).cloned()
    }

    /// All targets in service here.
    pub fn targets(&self) -> Vec<(TargetId, Arc<ChunkStore>)> {
        self.targets.read().iter().map(|(id, store)| (*id, store.clone())).collect()
    }
}
