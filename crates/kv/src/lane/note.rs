//! What a checkpoint leaves in the engine besides the changes: whose they are and where the log goes on.

use crate::log::format::LogIdentity;
use crate::{KvError, Position};
use ashlar_types::{ClusterId, ShardId};
use rustc_hash::FxHashMap;

const VERSION: u8 = 1;
/// Bytes before the shards.
const FIXED: usize = 33;
/// Bytes of a shard.
const PER_SHARD: usize = 10;

/// The state of the log at a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) identity: LogIdentity,
    /// Everything before this is in the engine.
    pub(super) applied: Position,
    /// The last frame's number in each shard.
    pub(super) sequences: FxHashMap<ShardId, u64>,
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + PER_SHARD * self.sequences.len());
        out.push(VERSION);
        out.extend_from_slice(&self.identity.cluster.0);
        out.extend_from_slice(&self.identity.lane.to_le_bytes());
        out.extend_from_slice(&self.applied.0.to_le_bytes());
        out.extend_from_slice(&(self.sequences.len() as u32).to_le_bytes());
        let mut sequences: Vec<_> = self.sequences.iter().collect();
        sequences.sort_unstable();
        for (shard, sequence) in sequences {
            out.extend_from_slice(&shard.0.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
        out
    }

    /// Reads a note; its bytes were checked by the engine.
    pub(super) fn decode(bytes: &[u8]) -> Result<Note, KvError> {
        match bytes.first() {
            Some(&VERSION) => {}
            version => {
                let what =
                    format!("the engine's checkpoint note has version {version:?}, this software knows 1");
                return Err(KvError::Foreign { what });
            }
        }
        let malformed = || KvError::Corrupt { what: "the engine's checkpoint note is malformed".to_owned() };
        let (fixed, shards) = bytes.split_at_checked(FIXED).ok_or_else(malformed)?;
        let read_u32 = |at: usize| fixed[at..at + 4].try_into().map(u32::from_le_bytes);
        let cluster: [u8; 16] = fixed[1..17].try_into().map_err(|_| malformed())?;
        let lane = read_u32(17).map_err(|_| malformed())?;
        let applied = fixed[21..29].try_into().map(u64::from_le_bytes).map_err(|_| malformed())?;
        let count = read_u32(29).map_err(|_| malformed())?;
        if shards.len() != count as usize * PER_SHARD {
            return Err(malformed());
        }
        let mut sequences = FxHashMap::default();
        for (shard, sequence) in shards.chunks_exact(PER_SHARD).map(|entry| entry.split_at(2)) {
            let shard = shard.try_into().map(u16::from_le_bytes).map_err(|_| malformed())?;
            let sequence = sequence.try_into().map(u64::from_le_bytes).map_err(|_| malformed())?;
            sequences.insert(ShardId(shard), sequence);
        }
        let identity = LogIdentity { cluster: ClusterId(cluster), lane };
        Ok(Note { identity, applied: Position(applied), sequences })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_its_encoding_and_nothing_shorter_does() {
        let note = Note {
            identity: LogIdentity { cluster: ClusterId([7; 16]), lane: 3 },
            applied: Position(1 << 40),
            sequences: [(ShardId(1), 5), (ShardId(65_535), u64::MAX)].into_iter().collect(),
        };
        let bytes = note.encode();
        assert_eq!(Note::decode(&bytes).unwrap(), note);
        for len in 0..bytes.len() {
            assert!(Note::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(matches!(Note::decode(&[2]), Err(KvError::Foreign { .. })));
    }

    #[test]
    fn ten_thousand_notes_with_other_fields_are_refused_or_read() {
        let sequences = (0..5u16).map(|shard| (ShardId(shard), 7)).collect();
        let identity = LogIdentity { cluster: ClusterId([7; 16]), lane: 3 };
        let good = Note { identity, applied: Position(1 << 40), sequences }.encode();
        let random = ashlar_env::sim::SimEntropy::new(9);
        let mut read = 0;
        for _ in 0..10_000 {
            let mut bytes = good.clone();
            let (at, len) =
                [(0, 1), (1, 16), (17, 4), (21, 8), (29, 4), (33, 2), (43, 2)][random.below(7) as usize];
            bytes[at..at + len].iter_mut().for_each(|byte| *byte = random.below(4) as u8 * 85);
            if random.below(5) == 0 {
                bytes.resize(random.below(120) as usize, 0);
            }
            if let Ok(note) = Note::decode(&bytes) {
                read += 1;
                assert_eq!(Note::decode(&note.encode()).unwrap(), note);
            }
        }
        assert!(read > 1000, "{read} read");
    }
}
