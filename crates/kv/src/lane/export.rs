//! All of a lane, for a copy that lacks too much to be sent groups.

use super::Lane;
use super::note::Note;
use crate::engine::{Engine, LastingSnapshot};
use crate::log::format::LogIdentity;
use crate::{GroupNumber, KEY_BYTES_MAX, Key, KvError, Position, VALUE_BYTES_MAX};
use ashlar_types::{ClusterId, ShardId};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// The note of an engine that does not have everything yet: no lane opens it.
const CUT_SHORT: &[u8] = &[0];

/// A lane at its last checkpoint.
pub struct Export {
    /// What it holds; to be dropped before the lane is closed.
    pub content: LastingSnapshot,
    /// After which group.
    pub last: GroupNumber,
    /// The number of the last frame of each shard.
    // LIMIT: as shards.
    pub sequences: Vec<(ShardId, u64)>,
}

/// What belongs to a copy besides its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// As [`Export::last`].
    pub last: GroupNumber,
    /// As [`Export::sequences`].
    pub sequences: Vec<(ShardId, u64)>,
}

impl Lane {
    /// The lane as the last checkpoint has it: so all of it is committed, and the log has what came since. Nobody waits for whoever reads it.
    ///
    /// # Errors
    /// As [`Lane::snapshot`].
    pub fn export(&self) -> Result<Export, KvError> {
        self.shared.between_checkpoints(|| {
            self.shared.health.check()?;
            let note = self.shared.checkpoint_note()?;
            let content = self.shared.engine.snapshot()?;
            let (last, sequences) = note.map(|note| (note.last, note.sequences)).unwrap_or_default();
            let mut sequences: Vec<(ShardId, u64)> = sequences.into_iter().collect();
            sequences.sort_unstable();
            Ok(Export { content, last, sequences })
        })
    }
}

impl Import {
    /// Adds pairs, in ascending order, to an `engine` that is being filled.
    ///
    /// # Errors
    /// [`KvError::Invalid`] for pairs that are none; as [`Engine::apply`].
    pub fn add(engine: &dyn Engine, pairs: &[(Key, Bytes)]) -> Result<(), KvError> {
        let is_sound =
            |(key, value): &(Key, Bytes)| key.len() <= KEY_BYTES_MAX && value.len() <= VALUE_BYTES_MAX;
        let is_ascending = pairs.windows(2).all(|two| two[0].0 < two[1].0);
        if !is_ascending || !pairs.iter().all(is_sound) {
            return Err(KvError::Invalid { what: "pairs of a copy are out of order or too long".to_owned() });
        }
        engine.apply(&mut pairs.iter().map(|(key, value)| (key, Some(value))), CUT_SHORT)
    }

    /// Makes of an `engine` that has all pairs that of lane number `lane` of the file system `cluster`. Until then no lane opens it.
    ///
    /// # Errors
    /// As [`Engine::apply`].
    pub fn finish(&self, engine: &dyn Engine, cluster: ClusterId, lane: u32) -> Result<(), KvError> {
        let sequences: FxHashMap<ShardId, u64> = self.sequences.iter().copied().collect();
        let identity = LogIdentity { cluster, lane };
        let note = Note { identity, applied: Position(0), last: self.last, sequences };
        engine.apply(&mut std::iter::empty(), &note.encode())
    }
}
