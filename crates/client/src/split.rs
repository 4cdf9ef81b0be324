//! Directories that are split. Users name the directory; metadata has its entries in slices, each with a range of the hashes of names, perhaps at other servers.
//! A call with a name goes straight to the slice that has it; what is asked of the directory as a whole is put together here; and what a server takes back of a
//! slice is taken back of the directory.
//!
//! A directory is split once, and its slices are its slices until it is removed, so what was learnt of one stays right: there is nothing to be recalled. Who
//! has not learnt it yet is told `EREMOTE`, and asks.
//!
//! While a directory is being split, names go to slices in the order of their hashes. Up to where they have gone is learnt with the slices: the border. It
//! grows only. So names below what is known of it are in slices, and will be; of the others the directory itself either has them, or says `EREMOTE`, and
//! then it is asked how far it is by now. A slice is never asked for a name that it does not have yet.

use crate::ahead::changes_something;
use crate::call::Who;
use crate::client::Client;
use crate::names::Found;
use ashlar_types::message::{LeaseSet, MetaReply, MetaRequest, SplitDirectory};
use ashlar_types::{Attr, Credentials, Errno, InodeId, Name, NameHash, SessionId};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Split directories that are remembered.
// LIMIT: with `SLICES_MAX` slices each about 13 KiB, so 52 MiB; a tenth of that with as many as are usual. Past it those that are new are asked about for each
// call, and nothing of them is cached.
const DIRECTORIES_MAX: usize = 1 << 12;

/// How often the slices of a directory are asked until what they tell is of one moment.
const GATHER_MAX: u32 = 8;

/// How often a call is made to where its name is by now.
// LIMIT: it changes when a directory is split, and when it is removed.
const TRIES_MAX: usize = 6;

/// See the module.
#[derive(Default)]
pub(crate) struct SplitDirectories {
    is_any: AtomicBool,
    table: RwLock<Table>,
    /// Of this client, ended; removals of directories count.
    renames: AtomicU64,
}

#[derive(Default)]
struct Table {
    by_directory: FxHashMap<InodeId, Arc<Known>>,
    by_slice: FxHashMap<InodeId, InodeId>,
}

/// A directory that is split.
#[derive(Debug)]
pub(crate) struct Known {
    directory: InodeId,
    split: SplitDirectory,
    /// The largest that was told.
    border: AtomicU64,
    told: Mutex<Told>,
}

/// What was told under leases, of the directory itself and then of each slice, and has not been taken back.
#[derive(Debug)]
struct Told {
    parts: Vec<Option<Part>>,
    /// Grows whenever something is taken back.
    changes: u64,
}

/// Attributes of a part of a directory.
#[derive(Clone, Debug)]
struct Part {
    attr: Attr,
    asked: Asked,
}

/// When something was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// By the monotonic clock.
    at: Duration,
    /// The client's.
    era: u64,
    /// Renames and removals of this client that had ended: of a directory that one moves or removes the change is not taken back.
    renames: u64,
}

impl Known {
    fn new(directory: InodeId, split: SplitDirectory) -> Known {
        let parts = vec![None; split.slices.len() + 1];
        let border = AtomicU64::new(split.border);
        Known { directory, split, border, told: Mutex::new(Told { parts, changes: 0 }) }
    }

    /// How it is split, as far as is known.
    pub(crate) fn split(&self) -> SplitDirectory {
        SplitDirectory { border: self.border.load(SeqCst), ..self.split.clone() }
    }

    /// Whether another answer is about the same slices; then the border is that of the newer one.
    fn learn(&self, told: &SplitDirectory) -> bool {
        let is_same = self.split.slices == told.slices;
        if is_same {
            self.border.fetch_max(told.border, SeqCst);
        }
        is_same
    }

    /// The part that has `name`: a slice, or, while it is being split, perhaps the directory itself.
    fn holder(&self, name: Name<'_>) -> InodeId {
        let hash = NameHash::of(name, &self.split.hash_key);
        let slice = self.split.slices.get(hash.slice(self.split.slices.len()));
        slice.filter(|_| hash.0 < self.border.load(SeqCst)).copied().unwrap_or(self.directory)
    }

    /// All parts, in their order.
    fn inodes(&self) -> impl Iterator<Item = InodeId> {
        std::iter::once(self.directory).chain(self.split.slices.iter().copied())
    }

    /// What was told of `inode`, a slice or the directory itself, may be different from now on. A change of the directory itself may be one of all slices.
    fn note_change(&self, inode: InodeId) {
        let mut told = self.told.lock();
        told.changes += 1;
        for (part, its) in told.parts.iter_mut().zip(self.inodes()) {
            if its == inode || inode == self.directory {
                *part = None;
            }
        }
    }

    fn changes(&self) -> u64 {
        self.told.lock().changes
    }

    /// Keeps what was told of a part, unless something was taken back since there were `before` changes.
    fn keep(&self, at: usize, before: u64, part: Part) {
        let mut told = self.told.lock();
        // ORDER: looked at under the lock under which it is taken back.
        if told.changes == before {
            told.parts[at] = Some(part);
        }
    }
}

/// What one call has learnt itself.
type Learnt = SmallVec<[Arc<Known>; 2]>;

impl SplitDirectories {
    pub(crate) fn find(&self, directory: InodeId) -> Option<Arc<Known>> {
        // Most file systems have none.
        if !self.is_any.load(SeqCst) {
            return None;
        }
        self.table.read().by_directory.get(&directory).cloned()
    }

    /// The directory that users see where a server speaks of `inode`.
    pub(crate) fn shown(&self, inode: InodeId) -> InodeId {
        if !self.is_any.load(SeqCst) {
            return inode;
        }
        self.table.read().by_slice.get(&inode).copied().unwrap_or(inode)
    }

    /// Remembers how `directory` is split; not when there are too many.
    fn note(&self, known: &Arc<Known>) -> bool {
        let directory = known.directory;
        let mut table = self.table.write();
        if table.by_directory.get(&directory).is_some_and(|before| !before.learn(&known.split))
            && let Some(before) = table.by_directory.remove(&directory)
        {
            // A power cut has taken its split back, and it was split anew.
            for slice in &before.split.slices {
                table.by_slice.remove(slice);
            }
        }
        if table.by_directory.len() >= DIRECTORIES_MAX && !table.by_directory.contains_key(&directory) {
            return false;
        }
        table.by_slice.extend(known.split.slices.iter().map(|slice| (*slice, directory)));
        // Another thread that has just learnt it, too, may be counting changes.
        table.by_directory.entry(directory).or_insert_with(|| known.clone());
        // ORDER: before anything is asked of a slice, so that what is told of it can be taken back.
        self.is_any.store(true, SeqCst);
        true
    }

    /// Forgets a directory that may have been removed.
    pub(crate) fn forget(&self, directory: InodeId) {
        if !self.is_any.load(SeqCst) {
            return;
        }
        let mut table = self.table.write();
        if let Some(known) = table.by_directory.remove(&directory) {
            for slice in &known.split.slices {
                table.by_slice.remove(slice);
            }
        }
    }

    /// Notes that something which was told of `inode`, a split directory or a slice, may be different from now on.
    pub(crate) fn note_change(&self, inode: InodeId) {
        if let Some(known) = self.find(self.shown(inode)) {
            known.note_change(inode);
        }
    }

    /// Makes a call one for the parts that have its names; these, and the directories.
    fn route(&self, request: &mut MetaRequest<'_>, learnt: &Learnt) -> SmallVec<[(InodeId, Arc<Known>); 2]> {
        let mut routed = SmallVec::new();
        for (parent, name) in request.places().into_iter().flatten() {
            let just_learnt = || learnt.iter().find(|known| known.directory == *parent).cloned();
            let Some(known) = self.find(*parent).or_else(just_learnt) else { continue };
            *parent = known.holder(name);
            routed.push((*parent, known));
        }
        routed
    }
}

impl Client {
    /// A call with names, to where these are.
    pub(crate) fn call_with_names(
        &self,
        session: SessionId,
        creds: &Credentials,
        request: MetaRequest<'_>,
    ) -> Result<MetaReply, Errno> {
        let mut learnt = Learnt::new();
        for _ in 0..TRIES_MAX {
            let mut routed = request.clone();
            let split = self.split_directories.route(&mut routed, &learnt);
            let note = || {
                // Its own changes nobody takes back from this session.
                for (slice, known) in split.iter().filter(|_| changes_something(&request)) {
                    known.note_change(*slice);
                }
            };
            note();
            let changed: SmallVec<[InodeId; 2]> = match changes_something(&request) {
                true => routed.places().into_iter().flatten().map(|(parent, _)| *parent).collect(),
                false => SmallVec::new(),
            };
            let answer = self.call_directly(session, creds, routed);
            note();
            // Somebody may have learnt meanwhile that a directory is being split, and what it was like before this call.
            changed.iter().for_each(|parent| self.split_directories.note_change(*parent));
            if matches!(request, MetaRequest::Rename { .. } | MetaRequest::Rmdir { .. }) {
                self.split_directories.renames.fetch_add(1, SeqCst);
            }
            match answer {
                Err(Errno::EREMOTE) => learnt = self.learn_slices(session, creds, request.clone())?,
                // With the directory its slices go. What is so then the server of the directory knows; if it is there, something else was meant.
                Err(Errno::ESTALE) if split.iter().any(|(part, known)| *part != known.directory) => {
                    return match self.call_directly(session, creds, request) {
                        // It is there, and something else was meant; or its split was taken back by a power cut.
                        Err(Errno::EREMOTE) => Err(Errno::ESTALE),
                        told => {
                            split
                                .iter()
                                .for_each(|(_, known)| self.split_directories.forget(known.directory));
                            told
                        }
                    };
                }
                other => return other,
            }
        }
        Err(Errno::ESTALE)
    }

    /// Asks how the directories are split in which `request` names something.
    fn learn_slices(
        &self,
        session: SessionId,
        creds: &Credentials,
        mut request: MetaRequest<'_>,
    ) -> Result<Learnt, Errno> {
        let mut learnt = Learnt::new();
        for (parent, _) in request.places().into_iter().flatten() {
            match self.ask_slices(session, creds, *parent) {
                Ok(Some(known)) => learnt.push(known),
                // The call itself tells what is wrong with that one.
                Ok(None) | Err(Errno::ESTALE | Errno::ENOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(learnt)
    }

    /// How `directory` is split, if it is, by what it says now.
    pub(crate) fn ask_slices(
        &self,
        session: SessionId,
        creds: &Credentials,
        directory: InodeId,
    ) -> Result<Option<Arc<Known>>, Errno> {
        match self.call_directly(session, creds, MetaRequest::Slices { directory })? {
            MetaReply::Slices(split) if split.slices.is_empty() => Ok(None),
            MetaReply::Slices(split) => {
                let known = Arc::new(Known::new(directory, split));
                self.split_directories.note(&known);
                Ok(Some(self.split_directories.find(directory).unwrap_or(known)))
            }
            other => Err(crate::call::unexpected(&other)),
        }
    }

    /// How `directory` is split, as it is known here, or asked for.
    pub(crate) fn split_of(&self, directory: InodeId) -> Result<Option<Arc<Known>>, Errno> {
        match self.split_directories.find(directory) {
            Some(known) => Ok(Some(known)),
            None => self.ask_slices(self.session(), &Credentials::root(), directory),
        }
    }

    fn asked_now(&self) -> Asked {
        let renames = self.split_directories.renames.load(SeqCst);
        Asked { at: self.env.clock.monotonic(), era: self.era(), renames }
    }

    /// For how much longer part `at` is good that was told under a lease.
    fn good_for(&self, (at, part): (usize, &Part), now: Asked) -> Option<Duration> {
        // A slice has no name that anybody could move.
        let is_same = part.asked.era == now.era && (at > 0 || part.asked.renames == now.renames);
        let left = part.asked.at.saturating_add(self.lease_term).saturating_sub(now.at);
        (is_same && !left.is_zero()).then_some(left)
    }

    /// What is told of part `at` of a directory, kept if that is under a lease.
    fn ask_part(&self, who: &Who, known: &Known, (at, inode): (usize, InodeId)) -> Result<Attr, Errno> {
        let (before, asked) = (known.changes(), self.asked_now());
        let (attr, leases) = match self.call(who, MetaRequest::Getattr { inode })? {
            MetaReply::Attr { attr, leases } => (attr, leases),
            other => return Err(crate::call::unexpected(&other)),
        };
        let is_known = self.split_directories.find(known.directory).is_some();
        if leases.has(LeaseSet::ATTR) && is_known && (at > 0 || attr.slices() > 0) {
            known.keep(at, before, Part { attr: attr.clone(), asked });
        }
        Ok(attr)
    }

    /// Attributes of a split directory for a kernel that looks whether somebody may pass through it: without what slices know, and for this once. The kernel looks
    /// anew after each name that it has made or removed there, so this is asked for once for all of them, until somebody changes the directory itself.
    pub(crate) fn getattr_in_part(&self, who: &Who, known: &Known) -> Result<Found, Errno> {
        let now = self.asked_now();
        let kept = known.told.lock().parts[0].clone().filter(|part| self.good_for((0, part), now).is_some());
        let attr = match kept {
            Some(part) => part.attr,
            None => self.ask_part(who, known, (0, known.directory))?,
        };
        Ok(self.found_attr(attr, LeaseSet::NONE))
    }

    /// Attributes of a split directory, all its slices included. Who was not told of a part, or from whom it was taken back, asks for that part.
    pub(crate) fn getattr_whole(&self, who: &Who, known: &Known) -> Result<Found, Errno> {
        let mut latest: Vec<Option<Attr>> = vec![None; known.split.slices.len() + 1];
        for turn in 1.. {
            for (at, inode) in known.inodes().enumerate() {
                let now = self.asked_now();
                let kept = known.told.lock().parts[at].clone();
                latest[at] = match kept.filter(|part| self.good_for((at, part), now).is_some()) {
                    Some(part) => Some(part.attr),
                    None => match self.ask_part(who, known, (at, inode)) {
                        // It has been removed meanwhile, and was empty then.
                        Err(Errno::ESTALE) if at > 0 => {
                            self.split_directories.forget(known.directory);
                            let head = latest.swap_remove(0).ok_or(Errno::ESTALE)?;
                            return Ok(self.found_attr(head, LeaseSet::NONE));
                        }
                        Ok(attr) if at == 0 && attr.slices() == 0 => {
                            return Ok(self.found_attr(attr, LeaseSet::NONE));
                        }
                        told => Some(told?),
                    },
                };
            }
            // LIMIT: past it the parts are of different moments, each of them while this went on.
            let is_last = turn >= GATHER_MAX || self.is_close_to_open();
            if let Some((attr, left)) = self.whole_of(known) {
                let found = self.found_attr(attr, LeaseSet::ATTR);
                return Ok(Found { attr_valid: found.attr_valid.min(left), ..found });
            }
            if is_last {
                let mut parts = latest.into_iter().flatten();
                let head = parts.next().ok_or(Errno::ESTALE)?;
                let slices: Vec<Attr> = parts.collect();
                return Ok(self.found_attr(head.of_whole(&slices), LeaseSet::NONE));
            }
        }
        unreachable!("the last turn returns")
    }

    /// The sum of all parts, if all are as they were told: at this moment, as what others change is taken back first. And for how long that is good.
    fn whole_of(&self, known: &Known) -> Option<(Attr, Duration)> {
        let told = known.told.lock();
        let now = self.asked_now();
        let mut left = self.lease_term;
        let mut attrs = Vec::with_capacity(told.parts.len());
        for (at, part) in told.parts.iter().enumerate() {
            let part = part.as_ref()?;
            left = left.min(self.good_for((at, part), now)?);
            attrs.push(part.attr.clone());
        }
        let head = attrs.remove(0);
        Some((head.of_whole(&attrs), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(parent: u64, name: &[u8]) -> MetaRequest<'_> {
        MetaRequest::Lookup { parent: InodeId(parent), name: Name::new(name).unwrap() }
    }

    fn split(directory: u64, slices: &[u64]) -> Arc<Known> {
        let slices = slices.iter().map(|id| InodeId(*id)).collect();
        let split = SplitDirectory { slices, of_new: 0, border: NameHash::END.0, hash_key: [1; 16] };
        Arc::new(Known::new(InodeId(directory), split))
    }

    fn told(known: &Known) -> Vec<bool> {
        known.told.lock().parts.iter().map(Option::is_some).collect()
    }

    fn part() -> Part {
        let time = ashlar_types::Timespec::default();
        let attr = Attr {
            inode: InodeId(7),
            mode: 0o040_755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            block_size: 4096,
            fileset: ashlar_types::FilesetId(0),
        };
        Part { attr, asked: Asked { at: Duration::ZERO, era: 0, renames: 0 } }
    }

    #[test]
    fn names_go_to_the_slice_of_their_hash_and_others_stay() {
        let known = SplitDirectories::default();
        assert!(known.note(&split(7, &[20, 21, 22])));
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..64 {
            let text = format!("n{number}");
            let mut request = lookup(7, text.as_bytes());
            let routed = known.route(&mut request, &Learnt::new());
            let MetaRequest::Lookup { parent, .. } = request else { panic!() };
            assert_eq!((routed[0].0, routed[0].1.directory), (parent, InodeId(7)));
            let hash = NameHash::of(Name::new(text.as_bytes()).unwrap(), &[1; 16]);
            assert_eq!(parent.0, 20 + hash.slice(3) as u64);
            seen.insert(parent);
        }
        assert_eq!(seen.len(), 3);
        let mut other = lookup(8, b"x");
        assert!(known.route(&mut other, &Learnt::new()).is_empty());
        assert_eq!(other, lookup(8, b"x"));
    }

    #[test]
    fn names_behind_the_border_stay_until_it_is_known_to_have_passed_them() {
        let known = SplitDirectories::default();
        let with_border = |border: u64| {
            let split = SplitDirectory { border, ..split(7, &[20, 21]).split() };
            Arc::new(Known::new(InodeId(7), split))
        };
        let parent_of = |text: &str| {
            let mut request = lookup(7, text.as_bytes());
            let routed = known.route(&mut request, &Learnt::new());
            let MetaRequest::Lookup { parent, .. } = request else { panic!() };
            assert_eq!(routed[0].0, parent, "what changes in it is noted, wherever it is");
            parent.0
        };
        let hash = |text: &str| NameHash::of(Name::new(text.as_bytes()).unwrap(), &[1; 16]);
        let mut names: Vec<String> = (0..64).map(|number| format!("n{number}")).collect();
        names.sort_by_key(|text| hash(text));
        for at in [0, 20, 10, 63] {
            assert!(known.note(&with_border(hash(&names[at]).0)));
            // A later answer to an earlier question takes nothing back.
            let border = if at == 10 { 20 } else { at };
            for (number, text) in names.iter().enumerate() {
                let slice = 20 + hash(text).slice(2) as u64;
                assert_eq!(parent_of(text), if number < border { slice } else { 7 }, "{number} at {border}");
            }
        }
        let other =
            Arc::new(Known::new(InodeId(7), SplitDirectory { border: 0, ..split(7, &[30, 31]).split() }));
        assert!(known.note(&other));
        assert_eq!(
            (parent_of(&names[0]), known.shown(InodeId(20)), known.shown(InodeId(31))),
            (7, InodeId(20), InodeId(7))
        );
    }

    #[test]
    fn what_is_told_of_a_slice_is_told_of_its_directory_until_it_is_forgotten() {
        let known = SplitDirectories::default();
        assert_eq!(known.shown(InodeId(20)), InodeId(20));
        assert!(known.note(&split(7, &[20, 21])));
        assert_eq!((known.shown(InodeId(21)), known.shown(InodeId(7))), (InodeId(7), InodeId(7)));
        let of_it = known.find(InodeId(7)).unwrap();
        let keep_all = || (0..3).for_each(|at| of_it.keep(at, of_it.changes(), part()));
        keep_all();
        known.note_change(InodeId(20));
        assert_eq!(told(&of_it), [true, false, true], "that slice");
        of_it.keep(1, of_it.changes() - 1, part());
        assert!(!told(&of_it)[1], "asked for before it was taken back");
        known.note_change(InodeId(8));
        assert_eq!(told(&of_it), [true, false, true], "of another directory");
        keep_all();
        known.note_change(InodeId(7));
        assert_eq!(told(&of_it), [false; 3], "a change of the directory may be one of all slices");
        known.forget(InodeId(7));
        assert_eq!(known.shown(InodeId(21)), InodeId(21));
        assert!(known.find(InodeId(7)).is_none());
    }

    #[test]
    fn no_more_are_remembered_than_fit() {
        let known = SplitDirectories::default();
        let number = DIRECTORIES_MAX as u64;
        assert!((0..number).all(|id| known.note(&split(id, &[number + id]))));
        assert!(!known.note(&split(3 * number, &[5 * number])));
        let learnt = Learnt::from_iter([split(3 * number, &[9])]);
        let mut request = lookup(3 * number, b"x");
        assert_eq!(known.route(&mut request, &learnt).len(), 1, "by what was just learnt");
    }
}
