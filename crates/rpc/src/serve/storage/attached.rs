//! The capabilities that were shown, by file.

use super::gate::Gate;
use super::standing::Standing;
use ashlar_types::node::SessionOwner;
use ashlar_types::{Errno, InodeId, Rights, SealedCapability, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Parts of the table, so that calls for different files do not wait for each other.
const PARTS: usize = 64;
/// Files and capabilities of a part; when there are more, those of it are to be shown again.
// LIMIT: of a part.
const FILES_MAX: usize = 8192;
const SHOWN_MAX: usize = 16_384;

/// What a call wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub inode: InodeId,
    pub generation: u32,
    pub rights: Rights,
}

/// A capability that was shown and was good.
#[derive(Clone)]
pub(super) struct Attached {
    pub owner: SessionOwner,
    pub shown: SealedCapability,
    pub expires_ms: u64,
    pub standing: Arc<Standing>,
    pub gate: Arc<Gate>,
}

#[derive(Default)]
struct File {
    /// The generation that is current, and when that was told, on this server's clock.
    generation: u32,
    told_ms: u64,
    shown: FxHashMap<SessionId, Attached>,
}

#[derive(Default)]
struct Part {
    files: FxHashMap<InodeId, File>,
    count: usize,
}

/// See the module.
pub(super) struct AttachedTable {
    parts: Vec<Mutex<Part>>,
}

impl Default for AttachedTable {
    fn default() -> AttachedTable {
        AttachedTable { parts: (0..PARTS).map(|_| Mutex::default()).collect() }
    }
}

impl AttachedTable {
    fn part(&self, inode: InodeId) -> &Mutex<Part> {
        // Counters of a shard are given out one after the other.
        &self.parts[(inode.0 ^ inode.0 >> InodeId::COUNTER_BITS) as usize % PARTS]
    }

    /// Remembers `attached`.
    ///
    /// # Errors
    /// `EACCES` when the file has a newer generation than it is for.
    pub fn attach(&self, attached: Attached, now_ms: u64) -> Result<(), Errno> {
        let (capability, since_ms) = (attached.shown.capability, attached.shown.seal.since_ms);
        let mut part = self.part(capability.inode).lock();
        part.make_room(now_ms);
        let file = part.files.entry(capability.inode).or_default();
        // An older generation can be current again: after a power cut metadata may have lost that there was a newer one. What it says since counts.
        if capability.generation < file.generation && since_ms <= file.told_ms {
            return Err(Errno::EACCES);
        }
        let told_ms = if capability.generation == file.generation { file.told_ms } else { 0 };
        (file.generation, file.told_ms) = (capability.generation, told_ms.max(since_ms));
        if file.shown.insert(capability.session, attached).is_none() {
            part.count += 1;
        }
        Ok(())
    }

    /// What `session` of `owner` has shown that allows what `need` says.
    ///
    /// # Errors
    /// `EACCES` when there is nothing.
    pub fn find(
        &self,
        session: SessionId,
        owner: SessionOwner,
        need: &Need,
        (now_ms, oldest_key): (u64, u64),
    ) -> Result<Attached, Errno> {
        let part = self.part(need.inode).lock();
        let file = part.files.get(&need.inode).ok_or(Errno::EACCES)?;
        let attached = file.shown.get(&session).ok_or(Errno::EACCES)?;
        let SealedCapability { capability, seal } = &attached.shown;
        let is_good = attached.owner == owner
            && capability.generation == need.generation
            && file.generation == need.generation
            && capability.rights.has(need.rights)
            && now_ms < attached.expires_ms
            && seal.key_epoch >= oldest_key;
        if is_good { Ok(attached.clone()) } else { Err(Errno::EACCES) }
    }

    /// Metadata has chunks of this generation deleted: whoever was let at them by what it said before is not any more.
    pub fn deleted(&self, inode: InodeId, generation: u32, now_ms: u64) {
        let mut part = self.part(inode).lock();
        part.make_room(now_ms);
        let file = part.files.entry(inode).or_default();
        if file.generation <= generation {
            (file.generation, file.told_ms) = (generation.saturating_add(1), now_ms);
            let gone = std::mem::take(&mut file.shown).len();
            part.count -= gone;
        }
    }
}

impl Part {
    /// Makes room for one more.
    fn make_room(&mut self, now_ms: u64) {
        if self.files.len() < FILES_MAX && self.count < SHOWN_MAX {
            return;
        }
        for file in self.files.values_mut() {
            file.shown.retain(|_, attached| now_ms < attached.expires_ms);
        }
        self.files.retain(|_, file| !file.shown.is_empty());
        self.count = self.files.values().map(|file| file.shown.len()).sum();
        if self.files.len() >= FILES_MAX || self.count >= SHOWN_MAX {
            (self.files, self.count) = (FxHashMap::default(), 0);
        }
    }
}
