//! Notes about chains that come or go, for the next start: by an old map a chain could be served, or thrown away, by who must not.

use crate::error::ChunkError;
use crate::index::Verb;
use crate::key;
use crate::store::ChunkStore;
use ashlar_kv::Urgency;
use ashlar_types::{ChainId, Epoch};
use std::collections::BTreeMap;

/// What is noted of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainNote {
    /// It may have become another target's by the move of that epoch: it is not served here before a manager has said that it has not.
    Leaving {
        /// The move.
        since: Epoch,
    },
    /// All of it is here by the move of that epoch: it is not thrown away because of a map that knows nothing of the move.
    Arrived {
        /// The move.
        since: Epoch,
    },
}

impl ChunkStore {
    /// Notes something of `chain`, in place of what was noted before; `None` forgets it. Durable when it returns.
    ///
    /// # Errors
    /// Those of the index.
    pub fn note_chain(&self, chain: ChainId, note: Option<ChainNote>) -> Result<(), ChunkError> {
        self.check()?;
        let position = self.index.commit(Verb::NoteChain, Urgency::FreesSpace, |changes| {
            changes.insert(key::chain_note(chain), note.map(ChainNote::encode));
        })?;
        self.index.flush(position)
    }

    /// All that is noted of chains.
    ///
    /// # Errors
    /// Those of the index.
    pub fn chain_notes(&self) -> Result<BTreeMap<ChainId, ChainNote>, ChunkError> {
        self.check()?;
        let (from, to) = key::table_range(key::CHAIN_NOTES);
        // LIMIT: one per chain of the file system.
        let mut notes = BTreeMap::new();
        self.index.for_each(&from, &to, |key, value| {
            notes.insert(key::decode_chain_note(key)?, ChainNote::decode(value)?);
            Ok(())
        })?;
        Ok(notes)
    }
}
