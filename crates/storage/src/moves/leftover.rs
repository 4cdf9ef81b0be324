//! Chunks of chains that have gone, or did not come after all: they are deleted.

use super::at_target::note_of;
use super::{Moves, Place};
use ashlar_chunkstore::{ChainNote, ChunkError, ChunkStore};
use ashlar_replication::hand_over::chain::{self, Seen};
use ashlar_types::{ChainId, ClusterMap, TargetId};
use std::collections::BTreeMap;

/// Whether chunks of a chain have no business on a target, by a map that may be old.
fn is_left_over(
    map: &ClusterMap,
    (target, chain): Place,
    notes: &BTreeMap<ChainId, ChainNote>,
    is_coming: bool,
) -> bool {
    if map.is_copied(chain) {
        return map.chain(chain).is_some_and(|known| !known.is_kept_at(target));
    }
    let note = notes.get(&chain).copied().map(note_of);
    Seen::of(map, chain).is_some_and(|seen| chain::is_left_over(seen, target, note, is_coming))
}

impl Moves {
    /// Deletes chunks that are left over on a target.
    pub(super) fn remove_leftovers(&self, target: TargetId, store: &ChunkStore) {
        // INVARIANT: by a map that the next start has, too. By an older one it would serve what is deleted here.
        let map = self.map();
        if !(self.outside.is_kept)(map.epoch) {
            return self.note_leftovers(target);
        }
        if let Err(error) = self.remove_leftovers_of(target, store, &map) {
            tracing::warn!(%error, %target, "chunks of chains that have gone are still there");
            self.note_leftovers(target);
        }
    }

    fn remove_leftovers_of(
        &self,
        target: TargetId,
        store: &ChunkStore,
        map: &ClusterMap,
    ) -> Result<(), ChunkError> {
        let (at_target, bytes) = (self.at(target), store.bytes_by_chain()?);
        let notes = store.chain_notes()?;
        let is_left = |chain: ChainId, notes: &BTreeMap<ChainId, ChainNote>| {
            is_left_over(map, (target, chain), notes, self.is_coming((target, chain)))
        };
        let found: Vec<ChainId> =
            bytes.keys().flatten().copied().filter(|chain| is_left(*chain, &notes)).collect();
        let (mut at, mut chunks) = (None, 0);
        while !found.is_empty() && !self.is_stopping() {
            let deleted = {
                // ORDER: no move begins between the look and the deletion.
                let coming = at_target.incoming.lock();
                let is_meant = |chain: ChainId| {
                    // By that map, which is kept, and by the newest: a chain may be on its way here again.
                    let is_left = |map: &ClusterMap| {
                        is_left_over(map, (target, chain), &notes, coming.contains_key(&chain))
                    };
                    is_left(map) && is_left(&self.map())
                };
                store.delete_of_chain(at, &is_meant)?
            };
            chunks += deleted.chunks;
            at = deleted.next;
            if at.is_none() {
                break;
            }
        }
        if self.is_stopping() {
            return Ok(());
        }
        if chunks > 0 {
            tracing::info!(%target, chunks, "deleted chunks of chains that are on other targets now");
        }
        store.sync()?;
        // ORDER: the chunks are gone, durably, before the note that kept an old map from serving them.
        let _alone = at_target.noting.lock();
        let notes = store.chain_notes()?;
        for chain in notes.keys().filter(|chain| is_left(**chain, &notes)) {
            store.note_chain(*chain, None)?;
        }
        Ok(())
    }
}
