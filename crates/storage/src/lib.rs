//! The storage service: calls on targets, each served by its chunk store.
//!
//! What this crate is not: it knows no file and no permission yet; capabilities join it with the network.

mod answer;
mod call;
mod share;

use ashlar_chunkstore::{ChunkError, ChunkStore, TargetSpace};
use ashlar_types::TargetId;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A target in service.
struct Served {
    store: Arc<ChunkStore>,
    /// The local file system it is on, where that is known.
    file_system: Option<u64>,
}

/// Targets of one server.
#[derive(Default)]
pub struct StorageService {
    targets: RwLock<BTreeMap<TargetId, Served>>,
}

impl StorageService {
    /// A service without targets.
    pub fn new() -> StorageService {
        StorageService::default()
    }

    /// Takes a target into service.
    pub fn add_target(&self, id: TargetId, store: Arc<ChunkStore>) {
        // A disk that does not answer now is counted as one of its own; its errors show with the first request.
        let file_system = store.space().ok().and_then(|space| space.file_system);
        self.targets.write().insert(id, Served { store, file_system });
    }

    /// The target `id`, if it is in service here.
    pub fn target(&self, id: TargetId) -> Option<Arc<ChunkStore>> {
        self.targets.read().get(&id).map(|served| served.store.clone())
    }

    /// All targets in service here.
    pub fn targets(&self) -> Vec<(TargetId, Arc<ChunkStore>)> {
        self.targets.read().iter().map(|(id, served)| (*id, served.store.clone())).collect()
    }

    /// Space of target `id`, where it shares its local file system with others: its share; `None` if it is not in service here.
    ///
    /// # Errors
    /// As [`ChunkStore::space`].
    pub fn space(&self, id: TargetId) -> Result<Option<TargetSpace>, ChunkError> {
        let Some(store) = self.target(id) else { return Ok(None) };
        Ok(Some(self.share_of(store.space()?)))
    }

    fn share_of(&self, space: TargetSpace) -> TargetSpace {
        let targets = self.targets.read();
        let is_beside = |served: &&Served| served.file_system == space.file_system;
        let sharing =
            if space.file_system.is_some() { targets.values().filter(is_beside).count() } else { 1 };
        share::among(&space, sharing as u64)
    }
}
