//! The storage service: calls on targets, each served by its chunk store.
//!
//! In a cluster a chain can move from one target to another while it is used: see [`moves`].
//!
//! What this crate is not: it knows no file and no permission. Who is let at what is decided at the edge, behind the network (`ashlar_rpc::serve`).

mod answer;
mod call;
mod copies;
pub mod moves;
mod pace;
mod piece;
mod share;
mod throttle;

pub use moves::{Moves, Outside};

use ashlar_chunkstore::{ChunkError, ChunkStore, TargetSpace};
use ashlar_rpc::Reports;
use ashlar_types::{EventKind, TargetId};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// A target in service.
struct Served {
    store: Arc<ChunkStore>,
    /// The local file system it is on, where that is known.
    file_system: Option<u64>,
    /// Cloned by whoever uses the store for a call.
    calls: Arc<()>,
    /// Changes are answered when they are durable.
    is_durable: bool,
}

/// A target that a call uses, for as long as this lives.
struct InUse {
    store: Arc<ChunkStore>,
    is_durable: bool,
    _call: Arc<()>,
}

/// A target that was taken out of service.
pub struct Retired {
    /// What is to be closed.
    pub store: Arc<ChunkStore>,
    calls: Arc<()>,
}

impl Retired {
    /// Whether a call is under way that came before: closed now, it would be told so.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.calls) > 1
    }
}

/// Targets that may come here, or come back: who asks for one that is not here is to ask again.
#[derive(Default)]
struct Awaited {
    /// Nobody has told yet which those are.
    are_unknown: bool,
    // LIMIT: as disks that other servers reach as well.
    targets: BTreeSet<TargetId>,
}

/// Targets of one server.
#[derive(Default)]
pub struct StorageService {
    targets: RwLock<BTreeMap<TargetId, Served>>,
    moves: Option<Arc<Moves>>,
    reports: OnceLock<Arc<dyn Reports>>,
    awaited: RwLock<Awaited>,
    /// Targets whose changes are answered when they are durable.
    // LIMIT: as disks that other servers reach as well.
    durable: RwLock<BTreeSet<TargetId>>,
}

impl StorageService {
    /// A service without targets.
    pub fn new() -> StorageService {
        StorageService::default()
    }

    /// A service whose chains are where the map of `moves` says, and can move.
    pub fn with_moves(moves: Arc<Moves>) -> StorageService {
        StorageService { moves: Some(moves), ..StorageService::default() }
    }

    /// Has damage told to `reports`. Only the first one that is given counts.
    pub fn report_to(&self, reports: Arc<dyn Reports>) {
        if let Some(moves) = &self.moves {
            moves.copies.report_to(reports.clone());
        }
        let _ = self.reports.set(reports);
    }

    /// Tells administrators of an error that is damage.
    pub(crate) fn report(&self, target: TargetId, error: &ChunkError) {
        if let (Some(reports), ChunkError::Checksum { .. } | ChunkError::Corrupt { .. }) =
            (self.reports.get(), error)
        {
            reports.report(EventKind::DamageFound, &target.to_string(), &error.to_string());
        }
    }

    /// Tells administrators of damage that was looked for.
    fn report_damage(&self, target: TargetId, what: &str) {
        if let Some(reports) = self.reports.get() {
            reports.report(EventKind::DamageFound, &target.to_string(), what);
        }
    }

    /// Takes a target into service.
    pub fn add_target(&self, id: TargetId, store: Arc<ChunkStore>) {
        // A disk that does not answer now is counted as one of its own; its errors show with the first request.
        let file_system = store.space().ok().and_then(|space| space.file_system);
        let is_durable = self.durable.read().contains(&id);
        let served = Served { store, file_system, calls: Arc::default(), is_durable };
        self.targets.write().insert(id, served);
    }

    /// Takes a target out of service, if it is there: who asks for it from now on hears that it is not here. Calls under way go on; what is returned tells whether there are any.
    pub fn retire_target(&self, id: TargetId) -> Option<Retired> {
        let Served { store, calls, .. } = self.targets.write().remove(&id)?;
        Some(Retired { store, calls })
    }

    /// Has who asks for a target that is not in service here ask again: any, or those of `targets`. It may be on its way, on a disk that another server has.
    pub fn await_targets(&self, are_unknown: bool, targets: BTreeSet<TargetId>) {
        *self.awaited.write() = Awaited { are_unknown, targets };
    }

    /// Has each change of the target `id` be durable before it is answered, from when it is taken into service the next time: another server may go on with its disk at any moment, and not with
    /// the memory of this one.
    pub fn answer_when_durable(&self, id: TargetId) {
        self.durable.write().insert(id);
    }

    /// The target `id` for a call.
    fn target_for_call(&self, id: TargetId) -> Option<InUse> {
        let targets = self.targets.read();
        let Served { store, calls, is_durable, .. } = targets.get(&id)?;
        Some(InUse { store: store.clone(), is_durable: *is_durable, _call: calls.clone() })
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
