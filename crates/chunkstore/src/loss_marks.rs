//! What is told with each change, so that whoever has it made durable later learns whether it may have been lost meanwhile.
//!
//! A target has a mark of its own, which is another one after each open that finds that the power may have been cut. A chain that has come from another target keeps the mark that it had there, for as long as
//! this target loses nothing: so who has changed it hears the same mark before and after it has moved, or is read from another copy.

use crate::error::ChunkError;
use crate::index::{Index, Verb};
use crate::key;
use crate::store::ChunkStore;
use crate::target::TargetUuid;
use ashlar_kv::Urgency;
use ashlar_types::message::LossMark;
use ashlar_types::{ChainId, Timespec};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The target's own mark, as the index has it.
pub(crate) struct OwnMark {
    pub mark: LossMark,
    /// The open that has stored it: one by software that knows nothing of it counts opens all the same.
    pub opens: u64,
}

impl OwnMark {
    /// The mark from the open with this number on: that of the open before, if nothing is lost and that is known. Else another one than all before: also than those of an index that is
    /// lost, or of a copy of the target.
    pub fn of_open(
        index: &Index,
        opens: u64,
        has_lost: bool,
        (uuid, now): (TargetUuid, Timespec),
    ) -> Result<OwnMark, ChunkError> {
        let before = index.get(&key::loss_mark())?.map(|value| decode(&value)).transpose()?;
        let mark = match before {
            Some((mark, at)) if !has_lost && at + 1 == opens => mark,
            _ => {
                let mut hasher = DefaultHasher::new();
                (uuid.0, opens, now.secs, now.nanos).hash(&mut hasher);
                LossMark(hasher.finish().max(1))
            }
        };
        Ok(OwnMark { mark, opens })
    }

    pub fn encode(&self) -> Bytes {
        encode(self.mark, self.opens)
    }
}

/// Marks of a target and its chains.
pub(crate) struct LossMarks {
    own: LossMark,
    // LIMIT: one per chain of the file system.
    of_chains: RwLock<FxHashMap<ChainId, LossMark>>,
    /// Held by whoever takes one.
    taking: Mutex<()>,
}

impl LossMarks {
    /// Reads what the index has of chains, where the target's own mark is `own` from now on.
    pub fn load(index: &Index, own: LossMark) -> Result<LossMarks, ChunkError> {
        let (from, to) = key::chain_marks();
        let mut of_chains = FxHashMap::default();
        index.for_each(&from, &to, |key, value| {
            let (mark, under) = decode(value)?;
            // What was taken under another mark of the target may be lost with the rest.
            if under == own.0 {
                of_chains.insert(key::decode_chain_mark(key)?, mark);
            }
            Ok(())
        })?;
        Ok(LossMarks { own, of_chains: RwLock::new(of_chains), taking: Mutex::new(()) })
    }
}

/// A mark, and what it is good for: another mark, or the number of an open.
fn encode(mark: LossMark, by: u64) -> Bytes {
    [mark.0.to_le_bytes(), by.to_le_bytes()].concat().into()
}

fn decode(value: &[u8]) -> Result<(LossMark, u64), ChunkError> {
    let corrupt =
        || ChunkError::Corrupt { file: "index".into(), what: "a mark of losses is malformed".into() };
    let (mark, by) = value.split_first_chunk::<8>().ok_or_else(corrupt)?;
    let by: &[u8; 8] = by.try_into().map_err(|_| corrupt())?;
    Ok((LossMark(u64::from_le_bytes(*mark)), u64::from_le_bytes(*by)))
}

impl ChunkStore {
    /// What is told with changes of `chain`.
    pub fn loss_mark(&self, chain: ChainId) -> LossMark {
        let LossMarks { own, of_chains, .. } = &self.loss_marks;
        of_chains.read().get(&chain).copied().unwrap_or(*own)
    }

    /// Has `mark` be told with changes of `chain` from now on, until this target loses something; `None`: its own one. It outlives the process; what a power cut takes with it is of no
    /// use any more.
    ///
    /// # Errors
    /// Those of the index.
    pub fn take_loss_mark(&self, chain: ChainId, mark: Option<LossMark>) -> Result<(), ChunkError> {
        self.check()?;
        let LossMarks { own, of_chains, taking } = &self.loss_marks;
        let mark = mark.filter(|mark| mark != own);
        let _alone = taking.lock();
        if of_chains.read().get(&chain).copied() == mark {
            return Ok(());
        }
        // Those who tell marks do not wait for it.
        self.index.commit(Verb::NoteChain, Urgency::FreesSpace, |changes| {
            changes.insert(key::chain_mark(chain), mark.map(|mark| encode(mark, own.0)));
        })?;
        let mut of_chains = of_chains.write();
        match mark {
            Some(mark) => of_chains.insert(chain, mark),
            None => of_chains.remove(&chain),
        };
        Ok(())
    }
}
