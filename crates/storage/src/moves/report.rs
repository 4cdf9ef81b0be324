//! What targets tell managers of themselves.

use super::Moves;
use crate::StorageService;
use ashlar_chunkstore::ChunkError;
use ashlar_types::TargetId;
use ashlar_types::message::TargetReport;
use std::time::Duration;

/// Time between two reports, if counting does not take long.
pub const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The same however long counting takes: less than managers go by a report.
pub const REPORT_SELDOM: Duration = Duration::from_secs(30);

impl Moves {
    /// Counts what `target` has; nothing where it does not tell. Looks at all of its index.
    pub fn count(&self, service: &StorageService, target: TargetId) -> Option<TargetReport> {
        let store = service.target(target)?;
        if self.copies.is_target_out(target) {
            // Managers are to give it nothing.
            return None;
        }
        let count =
            || Ok::<_, ChunkError>((store.bytes_by_chain()?, store.chain_notes()?, service.space(target)?));
        let (bytes, notes, space) = match count() {
            Ok((bytes, notes, space)) => (bytes, notes, space?),
            Err(error) => {
                tracing::debug!(%error, %target, "a target does not tell what it has");
                return None;
            }
        };
        let map = self.map();
        let bytes: Vec<_> = bytes.into_iter().filter_map(|(chain, bytes)| Some((chain?, bytes))).collect();
        {
            let mut counted = self.counted.lock();
            counted.retain(|(known, _), _| *known != target);
            counted.extend(bytes.iter().map(|(chain, bytes)| ((target, *chain), *bytes)));
        }
        let is_here = |chain| map.chain(chain).is_some_and(|known| known.is_kept_at(target));
        let is_noted_elsewhere = notes.into_keys().any(|chain| !is_here(chain));
        if is_noted_elsewhere || bytes.iter().any(|(chain, _)| !is_here(*chain)) {
            self.note_leftovers(target);
        }
        let bytes_by_chain = bytes.into_iter().filter(|(chain, _)| is_here(*chain)).collect();
        let (bytes_total, bytes_free) = (space.bytes_total, space.bytes_free);
        Some(TargetReport { target, bytes_total, bytes_free, bytes_by_chain })
    }
}
