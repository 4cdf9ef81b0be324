//! Delete: one chunk, or those of a generation from an index on.

use crate::alloc::Freed;
use crate::cache::{Chunk, Entry, State};
use crate::checksum::BLOCK_BYTES;
use crate::error::ChunkError;
use crate::geometry::Slot;
use crate::index::{Changes, Verb};
use crate::key::{self, Placement};
use crate::store::ChunkStore;
use ashlar_kv::{Position, Urgency};
use ashlar_types::{ChainId, ChunkId, InodeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Chunks removed by one call of [`ChunkStore::delete_generation`] at the most.
pub(crate) const DELETE_BATCH: usize = 256;

/// What a call of [`ChunkStore::delete_generation`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Space freed, in units of 512 bytes.
    pub blocks: u64,
    /// Chunks removed.
    pub chunks: u64,
    /// Call again from this chunk index; `None` when nothing is left.
    pub next: Option<u64>,
}

/// A chunk on its way out: where it is, and what it held.
pub(crate) struct Leaving {
    pub(crate) id: ChunkId,
    pub(crate) slot: Slot,
    pub(crate) generation: u64,
    blocks_held: u64,
}

impl ChunkStore {
    /// Removes a chunk; the caller's own record of that must be durable already. Returns the space freed in units of 512 bytes,
    /// 0 for a chunk that is not here. The slot is used again once the removal is durable.
    ///
    /// # Errors
    /// [`ChunkError::Stopped`], [`ChunkError::Busy`], [`ChunkError::NoSpace`] when not even the record of the removal can be written.
    pub fn delete(&self, id: ChunkId) -> Result<u64, ChunkError> {
        self.check()?;
        let entry = self.cache.entry(id);
        let mut state = entry.state.write();
        let Some(leaving) = self.leaving(id, &state)? else { return Ok(0) };
        let blocks = leaving.blocks_held;
        self.remove(&[leaving])?;
        *state = State::Absent;
        self.cache.recharge(&entry, &state);
        Ok(blocks * (BLOCK_BYTES as u64 / 512))
    }

    /// Removes up to 256 chunks of one generation of a file, from chunk index `from` on, as [`ChunkStore::delete`] does.
    ///
    /// # Errors
    /// As [`ChunkStore::delete`].
    pub fn delete_generation(
        &self,
        inode: InodeId,
        generation: u32,
        from: u64,
    ) -> Result<Deleted, ChunkError> {
        self.delete_generation_of(inode, generation, from, &|_| true)
    }

    /// As [`ChunkStore::delete_generation`], chunks of those chains alone that `is_meant` says; it is asked with `None` for a chunk whose
    /// chain is not known.
    ///
    /// # Errors
    /// As [`ChunkStore::delete`].
    pub fn delete_generation_of(
        &self,
        inode: InodeId,
        generation: u32,
        from: u64,
        is_meant: &dyn Fn(Option<ChainId>) -> bool,
    ) -> Result<Deleted, ChunkError> {
        self.check()?;
        let end = key::generation_end(inode, generation);
        let mut from = Some(from);
        // Callers begin anew where they began: whoever is told that more is left has had something deleted.
        while let Some(index) = from {
            let pairs =
                self.index.page(&key::chunk(ChunkId { inode, generation, index }), &end, DELETE_BATCH)?;
            let mut found = Vec::with_capacity(pairs.len());
            for (key, value) in &pairs {
                if is_meant(Placement::decode(value)?.chain) {
                    found.push(key::decode_chunk(key)?);
                }
            }
            let last = pairs.last().filter(|_| pairs.len() == DELETE_BATCH);
            let last = last.map(|(key, _)| key::decode_chunk(key)).transpose()?;
            from = last.and_then(|id| id.index.checked_add(1));
            if !found.is_empty() {
                return Ok(Deleted { next: from, ..self.delete_all(&found)? });
            }
        }
        Ok(Deleted::default())
    }

    /// Removes chunks, ascending, in one commit.
    pub(crate) fn delete_all(&self, found: &[ChunkId]) -> Result<Deleted, ChunkError> {
        let entries: Vec<Arc<Entry>> = found.iter().map(|id| self.cache.entry(*id)).collect();
        // Locks of several chunks are taken in ascending order only, and only here.
        let mut states: Vec<_> = entries.iter().map(|entry| entry.state.write()).collect();
        let mut leaving = Vec::with_capacity(found.len());
        for (entry, state) in entries.iter().zip(&states) {
            leaving.extend(self.leaving(entry.id, state)?);
        }
        let blocks: u64 = leaving.iter().map(|leaving| leaving.blocks_held).sum();
        self.remove(&leaving)?;
        for (entry, state) in entries.iter().zip(&mut states) {
            **state = State::Absent;
            self.cache.recharge(entry, state);
        }
        Ok(Deleted { blocks: blocks * (BLOCK_BYTES as u64 / 512), chunks: leaving.len() as u64, next: None })
    }

    /// What has to go for a chunk; `None` when it is not here. A damaged header does not keep a chunk alive: it then counts
    /// as holding nothing.
    pub(crate) fn leaving(&self, id: ChunkId, state: &State) -> Result<Option<Leaving>, ChunkError> {
        let placement = match state {
            State::Absent => return Ok(None),
            State::Present(chunk) => {
                let (slot, blocks_held) = (chunk.slot, u64::from(chunk.blocks_held));
                return Ok(Some(Leaving { id, slot, generation: chunk.identity.generation, blocks_held }));
            }
            State::Unknown => match self.index.placement(id)? {
                None => return Ok(None),
                Some(placement) => placement,
            },
        };
        let Placement { slot, generation, .. } = placement;
        let blocks_held = match self.held_blocks(id, placement) {
            Ok((_, blocks)) => u64::from(blocks),
            Err(error @ (ChunkError::Corrupt { .. } | ChunkError::Io { .. })) => {
                tracing::warn!(%error, chunk = %id, "a damaged chunk is deleted");
                0
            }
            Err(error) => return Err(error),
        };
        Ok(Some(Leaving { id, slot, generation, blocks_held }))
    }

    /// Length and held blocks of a chunk at `placement`; full chunks need no look at the header.
    pub(crate) fn held_blocks(&self, id: ChunkId, placement: Placement) -> Result<(u32, u32), ChunkError> {
        let class = placement.slot.slab.class;
        if placement.is_full {
            return Ok((class.chunk_bytes(), class.blocks()));
        }
        let chunk: Chunk = self.load(id, placement)?;
        Ok((chunk.len, chunk.blocks_held))
    }

    fn remove(&self, leaving: &[Leaving]) -> Result<(), ChunkError> {
        if leaving.is_empty() {
            return Ok(());
        }
        let slots: Vec<Slot> = leaving.iter().map(|leaving| leaving.slot).collect();
        let mut lost = Vec::new();
        for leaving in leaving {
            lost.extend(self.has_lost_record(leaving.id)?.then(|| key::lost(leaving.id)));
        }
        let gone = lost.len();
        let plan = |changes: &mut Changes| {
            for leaving in leaving {
                changes.insert(key::chunk(leaving.id), None);
                changes.insert(key::fresh(leaving.generation), None);
            }
            changes.extend(lost.into_iter().map(|key| (key, None)));
            self.alloc.mark_used(&slots, false, changes);
        };
        let undo = || self.alloc.unmark(&slots, false);
        let position = self.index.commit_or(Verb::Delete, Urgency::FreesSpace, plan, undo)?;
        self.lost.gone(gone);
        self.counters.chunks_deleted.fetch_add(leaving.len() as u64, Ordering::Relaxed);
        self.have_left(leaving, position)
    }

    /// Gives the slots back of chunks that the index does not have any more, as of `position`.
    pub(crate) fn have_left(&self, leaving: &[Leaving], position: Position) -> Result<(), ChunkError> {
        leaving.iter().for_each(|leaving| self.fresh.remove(leaving.generation));
        // ORDER: the slots wait until the deletion is durable; else a power cut could bring the old chunk back and find
        // another one's data in its slot.
        let freed = leaving.iter().map(|leaving| Freed {
            slot: leaving.slot,
            was_full: leaving.blocks_held == u64::from(leaving.slot.slab.class.blocks()),
        });
        if !self.alloc.freed(freed, position) {
            self.index.flush(position)?;
        }
        Ok(())
    }
}
