//! The first start after a restore, or with a target that the metadata has never seen: targets are newer than the metadata.
//!
//! Chunks of files made since the backup belong to nobody now, and must go before the metadata gives their numbers to new files: else
//! old bytes would show in those.

use super::chunks;
use super::files::{Stores, Targets, check_files};
use super::problem::Ledger;
use super::whole::Whole;
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
    let whole = Whole::of_one(state, lane);
    let map = whole.map.clone();
    for (id, store) in stores {
        chunks::check_target(&whole.snapshot()?, &map, (*id, store), &mut ledger)?;
    }
    // Also after mounts that had not ended: it leaves out the files they wrote, which the rest of the start settles.
    let all: Stores = stores.iter().cloned().collect();
    check_files(&whole, &Targets { stores: &all, remote: None }, &mut ledger)?;
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
