//! What a checkpoint leaves in the engine besides the changes: whose they are and where the log goes on.

use crate::log::format::LogIdentity;
use crate::{GroupNumber, KvError, Position};
use ashlar_types::{ClusterId, Epoch, ShardId};
use rustc_hash::FxHashMap;

const VERSION: u8 = 2;
/// Before groups were counted.
const VERSION_1: u8 = 1;
/// Bytes before the shards.
const FIXED: usize = 49;
const FIXED_1: usize = 33;
/// Bytes of a shard.
const PER_SHARD: usize = 10;

/// The state of the log at a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) identity: LogIdentity,
    /// Everything before this is in the engine.
    pub(super) applied: Position,
    /// The last group before it.
    pub(super) last: GroupNumber,
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
        out.extend_from_slice(&self.last.sequence.to_le_bytes());
        out.extend_from_slice(&self.last.epoch.0.to_le_bytes());
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
        let fixed_bytes = match bytes.first() {
            Some(&VERSION) => FIXED,
            Some(&VERSION_1) => FIXED_1,
            version => {
                let what = format!(
                    "the engine's checkpoint note has version {version:?}, this software knows 1 and 2"
                );
                return Err(KvError::Foreign { what });
            }
        };
        let malformed = || KvError::Corrupt { what: "the engine's checkpoint note is malformed".to_owned() };
        let (fixed, shards) = bytes.split_at_checked(fixed_bytes).ok_or_else(malformed)?;
        let read_u32 = |at: usize| fixed[at..at + 4].try_into().map(u32::from_le_bytes);
        let read_u64 = |at: usize| fixed[at..at + 8].try_into().map(u64::from_le_bytes);
        let cluster: [u8; 16] = fixed[1..17].try_into().map_err(|_| malformed())?;
        let lane = read_u32(17).map_err(|_| malformed())?;
        let applied = read_u64(21).map_err(|_| malformed())?;
        let count = read_u32(fixed_bytes - 4).map_err(|_| malformed())?;
        if shards.len() != count as usize * PER_SHARD {
            return Err(malformed());
        }
        let mut sequences = FxHashMap::default();
        for (shard, sequence) in shards.chunks_exact(PER_SHARD).map(|entry| entry.split_at(2)) {
            let shard = shard.try_into().map(u16::from_le_bytes).map_err(|_| malformed())?;
            let sequence = sequence.try_into().map(u64::from_le_bytes).map_err(|_| malformed())?;
            sequences.insert(ShardId(shard), sequence);
        }
        let last = if fixed_bytes == FIXED {
            let sequence = read_u64(29).map_err(|_| malformed())?;
            GroupNumber { sequence, epoch: Epoch(read_u64(37).map_err(|_| malformed())?) }
        } else {
            // No group has no frame: larger than the true number, and not that of a log with nothing in it.
            GroupNumber {
                sequence: sequences.values().fold(0, |sum: u64, n| sum.saturating_add(*n)),
                epoch: Epoch(0),
            }
        };
        let identity = LogIdentity { cluster: ClusterId(cluster), lane };
        Ok(Note { identity, applied: Position(applied), last, sequences })
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
            last: GroupNumber { sequence: 9, epoch: Epoch(4) },
            sequences: [(ShardId(1), 5), (ShardId(65_535), u64::MAX)].into_iter().collect(),
        };
        let bytes = note.encode();
        assert_eq!(Note::decode(&bytes).unwrap(), note);
        for len in 0..bytes.len() {
            assert!(Note::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(matches!(Note::decode(&[3]), Err(KvError::Foreign { .. })));
    }

    #[test]
    fn a_note_from_before_groups_were_counted_is_not_that_of_an_empty_log() {
        let note = Note {
            identity: LogIdentity { cluster: ClusterId([7; 16]), lane: 3 },
            applied: Position(800),
            last: GroupNumber { sequence: 12, epoch: Epoch(0) },
            sequences: [(ShardId(1), 5), (ShardId(2), 7)].into_iter().collect(),
        };
        let mut earlier = note.encode();
        earlier[0] = VERSION_1;
        earlier.drain(29..45);
        assert_eq!(Note::decode(&earlier).unwrap(), note);
        for len in 0..earlier.len() {
            assert!(Note::decode(&earlier[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn ten_thousand_notes_with_other_fields_are_refused_or_read() {
        let sequences = (0..5u16).map(|shard| (ShardId(shard), 7)).collect();
        let identity = LogIdentity { cluster: ClusterId([7; 16]), lane: 3 };
        let last = GroupNumber { sequence: 9, epoch: Epoch(4) };
        let good = Note { identity, applied: Position(1 << 40), last, sequences }.encode();
        let random = ashlar_env::sim::SimEntropy::new(9);
        let mut read = 0;
        for _ in 0..10_000 {
            let mut bytes = good.clone();
            let (at, len) = [(0, 1), (1, 16), (17, 4), (21, 8), (29, 16), (45, 4), (49, 2), (59, 2)]
                [random.below(8) as usize];
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
