//! Rebuild: makes the index anew from the slot headers, for the consistency check, on a target nobody has open.

use crate::alloc::Allocator;
use crate::cache::Chunk;
use crate::config::Config;
use crate::error::ChunkError;
use crate::geometry::{Class, GROUP_SLOTS, SlabId, Slot};
use crate::header::{self, Identity, Owner, SlotContent, SlotHeader};
use crate::index::{Changes, Index, Verb};
use crate::key::{self, Mark, Placement};
use crate::open::{Opening, opens_of, stored_opens};
use crate::slab::Slabs;
use crate::store::ChunkStore;
use crate::target::TargetIdentity;
use ashlar_env::{Disk, Env};
use ashlar_kv::{Engine, Key, KvError, Urgency};
use ashlar_types::ChunkId;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// LIMIT: places of damaged headers named in a report; more are only counted.
const DAMAGED_NAMES_MAX: usize = 1000;
/// Records removed by one commit.
const REMOVE_BATCH: usize = 512;

/// What [`ChunkStore::rebuild_index`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Chunks in the new index.
    pub chunks: u64,
    /// Older slots of a chunk that has a newer one.
    pub superseded: u64,
    /// Damaged headers; their slots count as free, and what was in them is lost unless there is another copy.
    pub damaged: u64,
    /// Where the first 1,000 of them are.
    pub damaged_places: Vec<String>,
}

struct Rebuild {
    index: Index,
    slabs: Slabs,
    alloc: Allocator,
    owner: Owner,
    mark: Mark,
    newest_generation: u64,
    report: RebuildReport,
}

impl ChunkStore {
    /// Throws the records of the index away and makes them anew from the headers of all slots. An index that cannot even be
    /// opened must be moved away first.
    ///
    /// The headers do not know of deletions of the last moments, nor where an unclean stop left data and checksums apart: some
    /// deleted chunks may come back (the consistency check with the metadata removes them), and a block that was being
    /// overwritten may show as damaged.
    ///
    /// # Errors
    /// As [`ChunkStore::open`]. Interrupted, it begins anew.
    pub fn rebuild_index(
        disk: Arc<dyn Disk>,
        engine: impl FnOnce() -> Result<Box<dyn Engine>, KvError>,
        env: &Env,
        expected: &TargetIdentity,
        config: &Config,
    ) -> Result<RebuildReport, ChunkError> {
        let Opening { index, stop, lock: _lock, header, .. } =
            Opening::start(&disk, engine, env, expected, config)?;
        let mut rebuild = Rebuild {
            index,
            slabs: Slabs::new(disk, stop, config.open_slabs_max),
            alloc: Allocator::new(),
            owner: Owner { cluster: expected.cluster, target: expected.target },
            mark: Mark { uuid: expected.uuid, start: header.start, before: header.start },
            newest_generation: 0,
            report: RebuildReport::default(),
        };
        for table in [key::CHUNKS, key::GROUPS, key::FRESH, key::DIRTY] {
            rebuild.clear_table(table)?;
        }
        for class in Class::all() {
            for number in rebuild.slabs.list(class)? {
                rebuild.scan_slab(SlabId { class, number })?;
            }
        }
        rebuild.finish()
    }
}

impl Rebuild {
    fn clear_table(&self, table: u8) -> Result<(), ChunkError> {
        let (from, to) = key::table_range(table);
        loop {
            let pairs = self.index.page(&from, &to, REMOVE_BATCH)?;
            if pairs.is_empty() {
                return Ok(());
            }
            self.index.commit(Verb::Rebuild, Urgency::FreesSpace, |changes| {
                changes.extend(pairs.iter().map(|(key, _)| (key.clone(), None)));
            })?;
        }
    }

    fn scan_slab(&mut self, id: SlabId) -> Result<(), ChunkError> {
        self.slabs.check_file(id).or_else(|error| match error {
            // A slab that was never finished holds nothing yet.
            ChunkError::Corrupt { .. } => self.slabs.create(id),
            other => Err(other),
        })?;
        self.alloc.add_found_slab(id);
        for group in 0..id.class.groups_per_slab() {
            let mut found: FxHashMap<ChunkId, Placement> = FxHashMap::default();
            let mut superseded = Vec::new();
            for number in group * GROUP_SLOTS..(group + 1) * GROUP_SLOTS {
                let slot = Slot { slab: id, number };
                if let Some(header) = self.read(slot)? {
                    self.choose(slot, header, &mut found, &mut superseded)?;
                }
            }
            self.commit_group(&found, &superseded)?;
        }
        Ok(())
    }

    /// The header of a slot in use.
    fn read(&mut self, slot: Slot) -> Result<Option<SlotHeader>, ChunkError> {
        let mut bytes = vec![0; slot.slab.class.header_bytes() as usize];
        self.slabs.read(&self.slabs.slab(slot.slab), slot.offset(), &mut bytes)?;
        let place = || format!("{} slot {}", self.slabs.describe(slot.slab), slot.number);
        match SlotHeader::decode(&bytes, self.owner, slot) {
            SlotContent::Used(header) => Ok(Some(header)),
            SlotContent::Blank | SlotContent::Freed => Ok(None),
            SlotContent::Newer(found) => {
                Err(ChunkError::Newer { file: place(), found, known: header::FORMAT })
            }
            SlotContent::Damaged(what) => {
                tracing::error!(place = place(), what, "damaged header");
                self.report.damaged += 1;
                if self.report.damaged_places.len() < DAMAGED_NAMES_MAX {
                    self.report.damaged_places.push(format!("{}: {what}", place()));
                }
                Ok(None)
            }
        }
    }

    /// Of several slots of one chunk the newest counts.
    fn choose(
        &mut self,
        slot: Slot,
        header: SlotHeader,
        found: &mut FxHashMap<ChunkId, Placement>,
        superseded: &mut Vec<Slot>,
    ) -> Result<(), ChunkError> {
        let Identity { chunk: id, generation, chain } = header.identity;
        self.newest_generation = self.newest_generation.max(generation);
        let is_full = Chunk::new(self.slabs.slab(slot.slab), slot, header, false).is_full();
        let new = Placement { slot, generation, is_full, chain };
        let old = match found.get(&id) {
            Some(old) => Some(*old),
            None => self.index.placement(id)?,
        };
        match old {
            Some(old) if old.generation > generation => self.report.superseded += 1,
            Some(old) => {
                self.report.superseded += 1;
                superseded.push(old.slot);
                found.insert(id, new);
            }
            None => {
                self.report.chunks += 1;
                found.insert(id, new);
            }
        }
        Ok(())
    }

    fn commit_group(
        &self,
        found: &FxHashMap<ChunkId, Placement>,
        superseded: &[Slot],
    ) -> Result<(), ChunkError> {
        let slots: Vec<Slot> = found.values().map(|placement| placement.slot).collect();
        let plan = |changes: &mut Changes| {
            changes.extend(found.iter().map(|(id, at)| (key::chunk(*id), Some(at.encode()))));
            // Chunks that were deleted may be back, and bytes that were cut off. Whoever made the index anew compares them with metadata;
            // should that be cut short, the next start does.
            let file = |id: &ChunkId| key::suspect((id.inode, id.generation));
            changes.extend(found.keys().map(|id| (file(id), Some(key::encode_round(0)))));
            self.alloc.mark_used(superseded, false, changes);
            self.alloc.mark_used(&slots, true, changes);
        };
        self.index.commit(Verb::Rebuild, Urgency::FreesSpace, plan).map(|_| ())
    }

    fn finish(self) -> Result<RebuildReport, ChunkError> {
        let opens = stored_opens(&self.index)?.max(opens_of(self.newest_generation));
        let key: Key = key::opens();
        self.index.commit(Verb::Rebuild, Urgency::FreesSpace, |changes| {
            changes.insert(key, Some(Bytes::copy_from_slice(&opens.to_le_bytes())));
            // With the last commit: an index that was not made to its end stays refused.
            changes.insert(key::mark(), Some(self.mark.encode()));
            // What was damaged is missing, and what was deleted may be back: no copy of anything can be told by it.
            changes.insert(key::loss(), Some(Bytes::new()));
            // The next open draws another one.
            changes.insert(key::loss_mark(), None);
        })?;
        self.index.close()?;
        tracing::info!(report = ?self.report, "index rebuilt");
        Ok(self.report)
    }
}
