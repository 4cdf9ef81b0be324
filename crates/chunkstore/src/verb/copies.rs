//! Notes about chains that have copies on other targets: what this one is among them, and what they may lack of it, or it of them.
//!
//! They are there for the next process, so they are not flushed: what a power cut takes of them, it may take of the content, too, and whoever has lost content trusts none of them
//! ([`ChunkStore::has_lost`]). Only the membership is durable at once.

use crate::error::ChunkError;
use crate::index::Verb;
use crate::key::{self, CopyKey};
use crate::store::ChunkStore;
use ashlar_kv::Urgency;
use ashlar_types::{ChainId, ChunkId, TargetId};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Memberships noted by one commit.
const NOTED_AT_ONCE: usize = 128;
/// Notes removed by one commit.
const REMOVED_AT_ONCE: usize = 256;

/// Something that another target lacks of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// A chunk was changed.
    Chunk(ChunkId),
    /// Chunks of the generation of its file were deleted, from this one on.
    Deletion(ChunkId),
}

/// What is noted of the lack of one target of one chain: whoever notes it knows what it means.
pub type LackNotes = BTreeMap<(ChainId, TargetId), Bytes>;

impl ChunkStore {
    /// Notes what this target is in the group of `chain`, in place of what was noted before; `None` forgets it. Durable when it returns.
    ///
    /// # Errors
    /// Those of the index.
    pub fn note_copy(&self, chain: ChainId, note: Option<Bytes>) -> Result<(), ChunkError> {
        self.note_copies(vec![(chain, note)])
    }

    /// As [`ChunkStore::note_copy`], of many chains, with one wait for the disk.
    ///
    /// # Errors
    /// Those of the index.
    pub fn note_copies(&self, notes: Vec<(ChainId, Option<Bytes>)>) -> Result<(), ChunkError> {
        self.check()?;
        let mut notes = notes.into_iter().peekable();
        let mut newest = None;
        while notes.peek().is_some() {
            let some = notes.by_ref().take(NOTED_AT_ONCE);
            newest = Some(self.index.commit(Verb::NoteCopy, Urgency::FreesSpace, |changes| {
                changes.extend(some.map(|(chain, note)| (CopyKey::Membership.of(chain), note)));
            })?);
        }
        newest.map_or(Ok(()), |position| self.index.flush(position))
    }

    /// All that [`ChunkStore::note_copy`] has noted.
    ///
    /// # Errors
    /// Those of the index.
    pub fn copy_notes(&self) -> Result<BTreeMap<ChainId, Bytes>, ChunkError> {
        self.check()?;
        // LIMIT: one per chain of the file system.
        let mut notes = BTreeMap::new();
        self.for_each_note(&mut |chain, what, value| {
            if what == CopyKey::Membership {
                notes.insert(chain, value.clone());
            }
        })?;
        Ok(notes)
    }

    /// Notes that other targets may not have what is, or is about to be, here of a chunk.
    ///
    /// # Errors
    /// Those of the index; `NoSpace` when it is full.
    pub fn note_uncertain(&self, chain: ChainId, chunk: ChunkId) -> Result<(), ChunkError> {
        self.check()?;
        let note = |changes: &mut crate::index::Changes| {
            changes.insert(CopyKey::Uncertain(chunk).of(chain), Some(Bytes::new()));
        };
        self.index.commit(Verb::NoteCopy, Urgency::Normal, note).map(drop)
    }

    /// Forgets notes of [`ChunkStore::note_uncertain`].
    ///
    /// # Errors
    /// Those of the index.
    pub fn forget_uncertain(&self, chunks: &[(ChainId, ChunkId)]) -> Result<(), ChunkError> {
        self.check()?;
        for some in chunks.chunks(REMOVED_AT_ONCE) {
            self.index.commit(Verb::NoteCopy, Urgency::FreesSpace, |changes| {
                changes
                    .extend(some.iter().map(|(chain, chunk)| (CopyKey::Uncertain(*chunk).of(*chain), None)));
            })?;
        }
        Ok(())
    }

    /// All chunks of [`ChunkStore::note_uncertain`], ascending.
    ///
    /// # Errors
    /// Those of the index.
    pub fn uncertain(&self) -> Result<Vec<(ChainId, ChunkId)>, ChunkError> {
        self.check()?;
        // LIMIT: as are under way, and were when others were lost.
        let mut all = Vec::new();
        self.for_each_note(&mut |chain, what, _| {
            if let CopyKey::Uncertain(chunk) = what {
                all.push((chain, chunk));
            }
        })?;
        Ok(all)
    }

    /// Begins to note what `target` lacks of `chain`: `note`, in place of an earlier one, and `chunks`. What was noted before stays.
    ///
    /// # Errors
    /// Those of the index; `NoSpace` when it is full.
    pub fn begin_lacks(
        &self,
        (chain, target): (ChainId, TargetId),
        note: Bytes,
        chunks: &[ChunkId],
    ) -> Result<(), ChunkError> {
        self.check()?;
        let lacks = chunks.iter().map(|chunk| CopyKey::Lacks(target, Lack::Chunk(*chunk)).of(chain));
        let note_all = |changes: &mut crate::index::Changes| {
            changes.extend(lacks.map(|key| (key, Some(Bytes::new()))));
            changes.insert(CopyKey::Lacking(target).of(chain), Some(note));
        };
        self.index.commit(Verb::NoteCopy, Urgency::Normal, note_all).map(drop)
    }

    /// Notes one thing more that each of `targets` lacks of `chain`.
    ///
    /// # Errors
    /// Those of the index; `NoSpace` when it is full.
    pub fn note_lack(&self, chain: ChainId, targets: &[TargetId], lack: Lack) -> Result<(), ChunkError> {
        self.check()?;
        let note = |changes: &mut crate::index::Changes| {
            let keys = targets.iter().map(|target| CopyKey::Lacks(*target, lack).of(chain));
            changes.extend(keys.map(|key| (key, Some(Bytes::new()))));
        };
        self.index.commit(Verb::NoteCopy, Urgency::Normal, note).map(drop)
    }

    /// Who lacks something, with what is noted of it.
    ///
    /// # Errors
    /// Those of the index.
    pub fn lack_notes(&self) -> Result<LackNotes, ChunkError> {
        self.check()?;
        let mut notes = LackNotes::new();
        self.for_each_note(&mut |chain, what, value| {
            if let CopyKey::Lacking(target) = what {
                notes.insert((chain, target), value.clone());
            }
        })?;
        Ok(notes)
    }

    /// What `target` lacks of `chain`, from `after` on, without that one: chunks first, then deletions; up to 512, none only at the end.
    ///
    /// # Errors
    /// Those of the index.
    pub fn lacks(
        &self,
        (chain, target): (ChainId, TargetId),
        after: Option<Lack>,
    ) -> Result<Vec<Lack>, ChunkError> {
        self.check()?;
        let (first, end) = key::lacks_range(chain, target);
        let from = after.map_or(first, |after| {
            let mut key = CopyKey::Lacks(target, after).of(chain);
            key.push(0);
            key
        });
        let pairs = self.index.page(&from, &end, usize::MAX)?;
        let lack = |key: &[u8]| match key::decode_copy(key)? {
            (_, CopyKey::Lacks(_, lack)) => Ok(lack),
            _ => Err(key::corrupt_copy()),
        };
        pairs.iter().map(|(key, _)| lack(key)).collect()
    }

    /// Forgets all that is noted of what `target` lacks of `chain`.
    ///
    /// # Errors
    /// Those of the index.
    pub fn end_lacks(&self, place @ (chain, target): (ChainId, TargetId)) -> Result<(), ChunkError> {
        // ORDER: first the note, by which the rest counts.
        self.check()?;
        self.index.commit(Verb::NoteCopy, Urgency::FreesSpace, |changes| {
            changes.insert(CopyKey::Lacking(target).of(chain), None);
        })?;
        loop {
            let some = self.lacks(place, None)?;
            if some.is_empty() {
                return Ok(());
            }
            self.index.commit(Verb::NoteCopy, Urgency::FreesSpace, |changes| {
                changes.extend(some.iter().map(|lack| (CopyKey::Lacks(target, *lack).of(chain), None)));
            })?;
        }
    }

    fn for_each_note(&self, visit: &mut dyn FnMut(ChainId, CopyKey, &Bytes)) -> Result<(), ChunkError> {
        let (from, to) = key::table_range(key::COPIES);
        self.index.for_each(&from, &to, |key, value| {
            let (chain, what) = key::decode_copy(key)?;
            visit(chain, what, value);
            Ok(())
        })
    }
}
