//! The first start after a restore, or with a target that the metadata has never seen: targets are newer than the metadata.
//!
//! Chunks of files made since the backup belong to nobody now, and must go before the metadata gives their numbers to new files: else
//! old bytes would show in those.

use super::chunks;
use super::files::{Stores, check_files};
use super::problem::Ledger;
use crate::node;
use anyhow::Result;
use ashlar_chunkstore::ChunkStore;
use ashlar_kv::Lane;
use ashlar_types::TargetId;
use std::sync::Arc;

/// Removes from `stores` what the restored metadata does not know, and sets the space of files to what is there, and says so. The
/// note that this is to be done goes once every target of the map has been looked at.
///
/// # Errors
/// When target or metadata cannot be read or written; the next start begins anew.
pub fn remove_newer_chunks(
    state: &node::State,
    lane: &Lane,
    stores: &[(TargetId, Arc<ChunkStore>)],
) -> Result<()> {
    let mut ledger = Ledger { is_repairing: true, is_silent: true, ..Ledger::default() };
    let map = state.manager.map().read().clone();
    for (id, store) in stores {
        chunks::check_target(&lane.read(), &map, (*id, store), &mut ledger)?;
    }
    // Also after mounts that had not ended: it leaves out the files they wrote, which the rest of the start settles.
    let all: Stores = stores.iter().cloned().collect();
    check_files(state, lane, &all, &mut ledger)?;
    eprintln!(
        "ashlar: first start after a restore, or with a target that the metadata did not know: {} differences between targets and metadata \
         were settled in favour of the metadata",
        ledger.repaired
    );
    // ORDER: what was removed is durable before the note goes.
    lane.flush_all()?;
    if map.targets.iter().all(|target| stores.iter().any(|(id, _)| *id == target.id)) {
        state.forget_restored()?;
    }
    Ok(())
}
