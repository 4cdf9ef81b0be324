//! The capabilities that were shown, by file.

use super::gate::Gate;
use super::standing::Standing;
use ashlar_types::node::SessionOwner;
use ashlar_types::{Capability, Errno, InodeId, Rights, SealedCapability, SessionId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Parts of the table, so that calls for different files do not wait for each other.
const PARTS: usize = 64;
/// Files and capabilities of a part; when there are more, those of it are to be shown again.
// LIMIT: of a part.
const FILES_MAX: usize = 8192;
const SHOWN_MAX: usize = 16_384;
/// For how long it counts that a generation was deleted: whatever was sealed before has run out then, milliseconds.
const TERM_MS: u64 = Capability::TERM.as_millis() as u64;

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
    /// When the last of its generations was deleted; 0: none was.
    deleted_ms: u64,
    shown: FxHashMap<SessionId, Attached>,
}

#[derive(Default)]
struct Part {
    files: FxHashMap<InodeId, File>,
    count: usize,
    /// Of files that are not known any more, generations may have been deleted up to here: what was sealed by then may be for one of those, milliseconds.
    floor_ms: u64,
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
        // Whoever is refused is given one that was sealed since.
        if since_ms <= part.floor_ms && !part.files.contains_key(&capability.inode) {
            return Err(Errno::EACCES);
        }
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
            file.deleted_ms = now_ms;
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
        let is_marked = |file: &File| file.deleted_ms > 0 && now_ms < file.deleted_ms.saturating_add(TERM_MS);
        self.files.retain(|_, file| !file.shown.is_empty() || is_marked(file));
        self.count = self.files.values().map(|file| file.shown.len()).sum();
        if self.files.len() >= FILES_MAX || self.count >= SHOWN_MAX {
            self.files.values_mut().for_each(|file| file.shown = FxHashMap::default());
            self.files.retain(|_, file| is_marked(file));
            self.count = 0;
        }
        if self.files.len() >= FILES_MAX {
            self.forget_older_half();
        }
    }

    /// Forgets files of which a generation was deleted the longest ago: the floor stands for all of them.
    fn forget_older_half(&mut self) {
        let mut deleted: Vec<u64> = self.files.values().map(|file| file.deleted_ms).collect();
        let (_, median, _) = deleted.select_nth_unstable(FILES_MAX / 2);
        self.floor_ms = self.floor_ms.max(*median);
        self.files.retain(|_, file| file.deleted_ms > self.floor_ms);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use ashlar_types::{ClusterId, NodeId, Rights, Seal};

    const S: SessionId = SessionId(7);

    fn shown(inode: InodeId, generation: u32, since_ms: u64) -> Attached {
        let owner = SessionOwner { node: NodeId(3), instance: [1; 16] };
        let capability = Capability {
            cluster: ClusterId([1; 16]),
            granter: NodeId(1),
            session: S,
            owner,
            inode,
            generation,
            rights: Rights::WRITE,
            term_s: Capability::TERM.as_secs() as u32,
        };
        let seal = Seal { server: NodeId(2), standing: 1, since_ms, key_epoch: 1, mac: [0; 32] };
        Attached {
            owner,
            shown: SealedCapability { capability, seal },
            expires_ms: since_ms + TERM_MS,
            standing: Arc::default(),
            gate: Arc::default(),
        }
    }

    /// Inodes of one part, the first of them that of the test.
    fn inodes_of_a_part() -> impl Iterator<Item = InodeId> {
        (0..).map(|number| InodeId(number * PARTS as u64))
    }

    #[test]
    fn what_was_deleted_stays_so_however_many_files_come_after_it() {
        for crowd in [FILES_MAX / 2, FILES_MAX, 5 * FILES_MAX] {
            let table = AttachedTable::default();
            let file = InodeId(0);
            let (before_ms, now_ms) = (1_000, 2_000);
            table.deleted(file, 4, now_ms);
            for (at, other) in inodes_of_a_part().skip(1).take(crowd).enumerate() {
                let at_ms = now_ms + 1 + at as u64 / 100;
                if at % 2 == 0 {
                    table.deleted(other, 0, at_ms);
                } else {
                    table.attach(shown(other, 0, at_ms), at_ms).unwrap();
                }
            }
            let late_ms = now_ms + 1 + crowd as u64 / 100;
            assert_eq!(
                table.attach(shown(file, 4, before_ms), late_ms),
                Err(Errno::EACCES),
                "{crowd} files later"
            );
            assert!(table.part(file).lock().files.len() <= FILES_MAX);
            // What is sealed by now is good: the next generation, and those of others.
            table.attach(shown(file, 5, late_ms), late_ms).unwrap();
            let need = Need { inode: file, generation: 5, rights: Rights::WRITE };
            let owner = SessionOwner { node: NodeId(3), instance: [1; 16] };
            assert!(table.find(S, owner, &need, (late_ms, 1)).is_ok());
        }
    }

    #[test]
    fn what_was_deleted_a_term_ago_is_forgotten_and_nothing_is_refused_for_it() {
        let table = AttachedTable::default();
        let mut inodes = inodes_of_a_part();
        inodes.by_ref().take(FILES_MAX).for_each(|inode| table.deleted(inode, 0, 1_000));
        let late_ms = 1_000 + TERM_MS;
        // Sealed before the newest of them was deleted, and of a file of which nothing was.
        let other = inodes.next().unwrap();
        table.attach(shown(other, 0, 900), late_ms).unwrap();
        let part = table.part(other).lock();
        assert_eq!((part.files.len(), part.floor_ms), (1, 0));
    }

    #[test]
    fn more_sessions_than_there_is_room_for_have_to_show_again_and_no_more() {
        let table = AttachedTable::default();
        let file = InodeId(0);
        for number in 0..=SHOWN_MAX as u64 {
            let mut one = shown(file, 4, 1_000);
            one.shown.capability.session = SessionId(number);
            table.attach(one, 1_000).unwrap();
        }
        assert!(table.part(file).lock().count <= SHOWN_MAX);
        table.attach(shown(file, 4, 1_000), 1_000).unwrap();
        assert_eq!(table.attach(shown(file, 3, 1_000), 1_000), Err(Errno::EACCES), "an older generation");
    }
}
