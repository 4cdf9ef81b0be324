//! What is told with each change, so that whoever has it made durable later learns whether it may have been lost meanwhile.
//!
//! A target has a mark of its own, which is another one after each open that finds that the power may have been cut. A chain that has come from another target keeps the mark that it had there, for as long as
//! this target loses nothing: so who has changed it hears the same mark before and after it has moved, or is read from another copy.

use crate::error::ChunkError;
use crate::index::{Index, Verb};
use crate::key;
use crate::open::stored_open;
use crate::store::ChunkStore;
use crate::target::TargetUuid;
use ashlar_kv::Urgency;
use ashlar_types::ChainId;
use ashlar_types::codec::crc32c;
use ashlar_types::message::LossMark;
use bytes::Bytes;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// Marks of a target and its chains.
pub(crate) struct LossMarks {
    own: LossMark,
    // LIMIT: one per chain of the file system.
    of_chains: RwLock<FxHashMap<ChainId, LossMark>>,
}

impl LossMarks {
    /// Reads what the index has, after it was noted whether this open finds something lost.
    pub(crate) fn load(index: &Index, uuid: TargetUuid) -> Result<LossMarks, ChunkError> {
        let lost_before = stored_open(index, &key::lost_before())?;
        // Never that of another target, and never `NONE`.
        let own = LossMark((u64::from(crc32c(0, &uuid.0)) << 32) | u64::from(lost_before as u32) | 1 << 31);
        let (from, to) = key::chain_marks();
        let mut of_chains = FxHashMap::default();
        index.for_each(&from, &to, |key, value| {
            // What was taken under another mark of the target may be lost with the rest.
            if let Some(mark) = decode(value)?.filter(|(_, under)| *under == own).map(|(mark, _)| mark) {
                of_chains.insert(key::decode_chain_mark(key)?, mark);
            }
            Ok(())
        })?;
        Ok(LossMarks { own, of_chains: RwLock::new(of_chains) })
    }
}

/// The mark of a chain, and that of the target when it was taken.
fn decode(value: &[u8]) -> Result<Option<(LossMark, LossMark)>, ChunkError> {
    let corrupt =
        || ChunkError::Corrupt { file: "index".into(), what: "a mark of a chain is malformed".into() };
    let value: &[u8; 16] = value.try_into().map_err(|_| corrupt())?;
    let (mark, under) = value.split_at(8);
    let number = |raw: &[u8]| raw.try_into().ok().map(u64::from_le_bytes).map(LossMark);
    Ok(number(mark).zip(number(under)))
}

impl ChunkStore {
    /// What is told with changes of `chain`.
    pub fn loss_mark(&self, chain: ChainId) -> LossMark {
        let LossMarks { own, of_chains } = &self.loss_marks;
        of_chains.read().get(&chain).copied().unwrap_or(*own)
    }

    /// Has `mark` be told with changes of `chain` from now on, until this target loses something; `None`: its own one. It outlives the process; what a power cut takes with it is of no
    /// use any more.
    ///
    /// # Errors
    /// Those of the index.
    pub fn take_loss_mark(&self, chain: ChainId, mark: Option<LossMark>) -> Result<(), ChunkError> {
        self.check()?;
        let LossMarks { own, of_chains } = &self.loss_marks;
        let mark = mark.filter(|mark| mark != own);
        if of_chains.read().get(&chain).copied() == mark {
            return Ok(());
        }
        let mut of_chains = of_chains.write();
        let value = |mark: LossMark| Bytes::from([mark.0.to_le_bytes(), own.0.to_le_bytes()].concat());
        self.index.commit(Verb::NoteChain, Urgency::FreesSpace, |changes| {
            changes.insert(key::chain_mark(chain), mark.map(value));
        })?;
        match mark {
            Some(mark) => of_chains.insert(chain, mark),
            None => of_chains.remove(&chain),
        };
        Ok(())
    }
}
