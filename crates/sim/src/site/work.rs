//! What a mount does: names, links and files of its own in directories that all mounts use, so that it knows what each answer must be; and locks that the others want, too.

use super::mount::{Failed, Mount};
use super::sweep::{Named, Step};
use super::{DIRECTORIES, LOCK_FILES};
use ashlar_env::sim::SimEntropy;
use ashlar_types::message::{LockKind, LockRange, LockRequest, MetaReply, MetaRequest, RenameFlags, SetAttr};
use ashlar_types::{DescriptionId, Errno, InodeId, LockOwner, Name, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Names of each kind that a mount uses in a directory.
const NAMES: u64 = 3;

/// A name: the directory's number, and what it is called there.
type Place = (usize, String);

/// What a mount expects.
#[derive(Clone, Debug, Default, PartialEq)]
struct Expected {
    files: BTreeMap<Place, InodeId>,
    trees: BTreeMap<Place, InodeId>,
    modes: BTreeMap<InodeId, u32>,
}

impl Expected {
    fn links(&self, inode: InodeId) -> u32 {
        self.files.values().filter(|known| **known == inode).count() as u32
    }
}

/// See the module.
pub(super) struct Work {
    mount: Arc<Mount>,
    dice: SimEntropy,
    directories: Vec<InodeId>,
    lock_files: Vec<(InodeId, DescriptionId)>,
    expected: Expected,
    locks: Vec<(LockRequest, DescriptionId)>,
}

fn named(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap_or_else(|_| Name::new(b"bad").expect("it is a name"))
}

fn failed(reply: Result<MetaReply, Failed>) -> Result<Result<MetaReply, Errno>, ()> {
    match reply {
        Ok(reply) => Ok(Ok(reply)),
        Err(Failed::Errno(errno)) => Ok(Err(errno)),
        Err(Failed::Unknown) => Err(()),
    }
}

impl Work {
    pub fn new(mount: Arc<Mount>) -> Work {
        let dice = SimEntropy::new(mount.site.dice.below(u64::MAX));
        let (directories, lock_files, expected, locks) = Default::default();
        Work { mount, dice, directories, lock_files, expected, locks }
    }

    fn fail(&self, what: &str) {
        self.mount.site.fail(format!("mount {}: {what}", self.mount.number));
    }

    fn number(&self) -> DescriptionId {
        DescriptionId((self.mount.number as u64 + 1) << 32 | self.mount.next_number())
    }

    fn note_checked(&self) {
        self.mount.site.checked.fetch_add(1, SeqCst);
    }

    /// Makes what all mounts use, or finds it.
    pub fn set_up(&mut self) {
        for at in 0..DIRECTORIES {
            let name = format!("d{at}");
            let made = self.mount.call(MetaRequest::Mkdir {
                parent: InodeId::ROOT,
                name: named(&name),
                mode: 0o755,
                umask: 0,
            });
            let inode = match made {
                Ok(MetaReply::Attr { attr, .. }) => attr.inode,
                Err(Failed::Errno(Errno::EEXIST)) => match self.find(InodeId::ROOT, &name) {
                    Some(Ok(inode)) => inode,
                    other => return self.fail(&format!("{name} is {other:?}")),
                },
                other => return self.fail(&format!("{name} cannot be made: {other:?}")),
            };
            self.directories.push(inode);
        }
        for at in 0..LOCK_FILES {
            let (name, handle) = (format!("lock{at}"), self.number());
            let parent = self.directories[at];
            match self.create(parent, &name, handle, false) {
                Ok(Ok(inode)) => self.lock_files.push((inode, handle)),
                other => return self.fail(&format!("{name} cannot be opened: {other:?}")),
            }
        }
        self.mount.note_ready();
    }

    fn create(
        &self,
        parent: InodeId,
        name: &str,
        handle: DescriptionId,
        exclusive: bool,
    ) -> Result<Result<InodeId, Errno>, ()> {
        let request = MetaRequest::Create {
            parent,
            name: named(name),
            mode: 0o644,
            umask: 0,
            exclusive,
            read: true,
            write: true,
            truncate: false,
            handle,
        };
        Ok(match failed(self.mount.call(request))? {
            Ok(MetaReply::Opened { open, .. }) => Ok(open.attr.inode),
            Ok(MetaReply::Elsewhere { inode, .. }) => {
                let open = MetaRequest::Open { inode, read: true, write: true, truncate: false, handle };
                failed(self.mount.call(open))?.map(|_| inode)
            }
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        })
    }

    /// What a name stands for; nothing when nobody knows.
    fn find(&self, parent: InodeId, name: &str) -> Option<Result<InodeId, Errno>> {
        match failed(self.mount.call(MetaRequest::Lookup { parent, name: named(name) })).ok()? {
            Ok(MetaReply::Attr { attr, .. }) => Some(Ok(attr.inode)),
            Ok(MetaReply::Elsewhere { inode, .. }) => Some(Ok(inode)),
            Ok(_) => Some(Err(Errno::ENOENT)),
            Err(errno) => Some(Err(errno)),
        }
    }

    fn place(&self, kind: &str) -> Place {
        let directory = self.dice.below(DIRECTORIES as u64) as usize;
        (directory, format!("m{}{kind}{}", self.mount.number, self.dice.below(NAMES)))
    }

    fn some_open(&self) -> Option<(InodeId, DescriptionId)> {
        let files = self.mount.files();
        let all: Vec<_> = files
            .iter()
            .filter(|(inode, _)| self.lock_files.iter().all(|(lock, _)| lock != *inode))
            .flat_map(|(inode, open)| open.handles.iter().map(|(handle, _)| (*inode, *handle)))
            .collect();
        (!all.is_empty()).then(|| all[self.dice.below(all.len() as u64) as usize])
    }

    pub fn carry_out(&mut self) {
        let site = self.mount.site.clone();
        for _ in 0..site.plan.operations {
            if site.has_failed() {
                return;
            }
            site.sleep_ms(self.dice.below(site.plan.pause_ms));
            match self.dice.below(20) {
                0..3 => {
                    let handle = self.make_file(self.place("f"));
                    let is_closed = handle.filter(|_| self.dice.below(2) == 0);
                    is_closed.into_iter().for_each(|(inode, handle)| self.mount.release(inode, handle));
                }
                3..5 => self.unlink(self.place("f")),
                5..8 => self.rename_any("f"),
                8 | 9 => self.rename_any("t"),
                10 => {
                    let from = self.place("f");
                    self.link(from, self.place("f"));
                }
                11 => self.make_directory(self.place("t")),
                12 => self.remove_directory(self.place("t")),
                13 => self.open_or_close(),
                14 => self.change_mode(),
                15 => self.make_unnamed(),
                16 | 17 => self.lock_or_unlock(),
                18 if site.plan.splits => self.split(),
                _ => self.look(),
            }
        }
    }

    fn rename_any(&mut self, kind: &str) {
        let (from, to) = (self.place(kind), self.place(kind));
        let flags =
            [RenameFlags::Replace, RenameFlags::Replace, RenameFlags::Exchange, RenameFlags::NoReplace]
                [self.dice.below(4) as usize];
        self.rename(from, to, flags);
    }

    /// The place of a name in the first of the directories that are on server `side`.
    fn place_on(&self, Named(side, kind, number): Named) -> Option<Place> {
        let map = self.mount.map.read().clone();
        let is_there = |directory: &InodeId| map.primary(directory.home()) == Some(NodeId(1 + side as u32));
        let at = self.directories.iter().position(is_there)?;
        Some((at, format!("m{}{kind}{number}", self.mount.number)))
    }

    /// Takes steps of a case; each must be there to be taken.
    pub fn follow(&mut self, steps: &[Step]) {
        for step in steps {
            let names = match *step {
                Step::Rename(from, to, _) | Step::Link(from, to) => [from, to],
                Step::MakeFile(name)
                | Step::KeepFile(name)
                | Step::Unlink(name)
                | Step::MakeDirectory(name)
                | Step::RemoveDirectory(name) => [name, name],
            };
            let [Some(place), Some(other)] = names.map(|name| self.place_on(name)) else {
                return self.fail("all directories are on one server");
            };
            match *step {
                Step::MakeFile(_) => {
                    if let Some((inode, handle)) = self.make_file(place) {
                        self.mount.release(inode, handle);
                    }
                }
                Step::KeepFile(name) => {
                    if self.make_file(place).is_none() {
                        self.fail(&format!("{name:?} is not open"));
                    }
                }
                Step::Unlink(_) => self.unlink(place),
                Step::Rename(.., flags) => self.rename(place, other, flags),
                Step::Link(..) => self.link(place, other),
                Step::MakeDirectory(_) => self.make_directory(place),
                Step::RemoveDirectory(_) => self.remove_directory(place),
            }
        }
    }

    /// What becomes of a change: `after`, if it was carried out, and the answer must be `answer`.
    fn settle(
        &mut self,
        what: &str,
        told: Result<Result<(), Errno>, ()>,
        wanted: Result<(), Errno>,
        after: Expected,
    ) {
        match told {
            Ok(told) if told == wanted => {
                self.note_checked();
                if told.is_ok() {
                    self.expected = after;
                }
            }
            Ok(told) => self.fail(&format!("{what} is answered {told:?}, not {wanted:?}")),
            // Whoever is away is back in a moment, and everybody is heard of.
            Err(()) if self.mount.site.sweep.is_some() => self.fail(&format!("{what} has no answer")),
            Err(()) => self.find_out(what, after),
        }
    }

    /// The session ended in the middle of it: it has happened or not.
    fn find_out(&mut self, what: &str, after: Expected) {
        self.mount.site.sleep_ms(8000);
        let before = self.expected.clone();
        let places = |one: &Expected| {
            one.files
                .iter()
                .chain(&one.trees)
                .map(|(place, inode)| (place.clone(), *inode))
                .collect::<BTreeMap<_, _>>()
        };
        let (old, new) = (places(&before), places(&after));
        let changed: Vec<Place> =
            old.keys().chain(new.keys()).filter(|place| old.get(place) != new.get(place)).cloned().collect();
        let mut found = BTreeMap::new();
        for place in changed {
            // Ended once more: asked once more.
            loop {
                match self.find(self.directories[place.0], &place.1) {
                    Some(Ok(inode)) => drop(found.insert(place, Some(inode))),
                    Some(Err(_)) => drop(found.insert(place, None)),
                    None => continue,
                }
                break;
            }
        }
        let is = |all: &BTreeMap<Place, InodeId>| {
            // What was made nobody knows the number of.
            found.iter().all(|(place, inode)| match (all.get(place), inode) {
                (Some(InodeId(0)), Some(_)) => true,
                (known, found) => known == found.as_ref(),
            })
        };
        if is(&new) {
            self.expected = after;
            for (place, inode) in found {
                let Some(inode) = inode else { continue };
                let known = self.expected.files.get_mut(&place).or(self.expected.trees.get_mut(&place));
                if let Some(known) = known {
                    *known = inode;
                }
            }
        } else if !is(&old) {
            self.fail(&format!("{what} has happened by half: {found:?}, before {old:?}, after {new:?}"));
        }
        // It was never told what it is.
        let made: Vec<InodeId> = self.expected.files.values().copied().collect();
        made.into_iter().for_each(|inode| {
            self.expected.modes.entry(inode).or_insert(0o644);
        });
    }

    /// What it is and is open through, if it was made.
    fn make_file(&mut self, place: Place) -> Option<(InodeId, DescriptionId)> {
        let handle = self.number();
        let told = self.create(self.directories[place.0], &place.1, handle, true);
        let mut after = self.expected.clone();
        let wanted = if after.files.contains_key(&place) { Err(Errno::EEXIST) } else { Ok(()) };
        let inode = if let Ok(Ok(inode)) = told { inode } else { InodeId(0) };
        if wanted.is_ok() {
            after.files.insert(place.clone(), inode);
            if inode != InodeId(0) {
                after.modes.insert(inode, 0o644);
            }
        }
        self.settle(&format!("making {place:?}"), told.map(|told| told.map(drop)), wanted, after);
        (inode != InodeId(0)).then_some((inode, handle))
    }

    fn make_unnamed(&mut self) {
        let (parent, handle) = (self.directories[self.place("f").0], self.number());
        match self.mount.call(MetaRequest::Tmpfile { parent, mode: 0o644, umask: 0, handle }) {
            Ok(MetaReply::Opened { open, .. }) => drop(self.expected.modes.insert(open.attr.inode, 0o644)),
            Err(Failed::Unknown) => {}
            other => self.fail(&format!("a file without a name is answered {other:?}")),
        }
    }

    fn unlink(&mut self, place: Place) {
        let request = MetaRequest::Unlink { parent: self.directories[place.0], name: named(&place.1) };
        let told = failed(self.mount.call(request)).map(|told| told.map(drop));
        let mut after = self.expected.clone();
        let wanted = after.files.remove(&place).map(drop).ok_or(Errno::ENOENT);
        self.settle(&format!("removing {place:?}"), told, wanted, after);
    }

    /// Both are names of files, or both of directories.
    fn rename(&mut self, from: Place, to: Place, flags: RenameFlags) {
        let is_tree = from.1.contains('t');
        let request = MetaRequest::Rename {
            from_parent: self.directories[from.0],
            from_name: named(&from.1),
            to_parent: self.directories[to.0],
            to_name: named(&to.1),
            flags,
        };
        let told = failed(self.mount.call(request)).map(|told| told.map(drop));
        let mut after = self.expected.clone();
        let names = if is_tree { &mut after.trees } else { &mut after.files };
        let (source, target) = (names.get(&from).copied(), names.get(&to).copied());
        let wanted = match (source, target, flags) {
            (None, _, _) => Err(Errno::ENOENT),
            (Some(_), None, RenameFlags::Exchange) => Err(Errno::ENOENT),
            (Some(_), Some(_), RenameFlags::NoReplace) => Err(Errno::EEXIST),
            // Two names of one file: nothing is done.
            (Some(source), Some(target), _) if source == target => Ok(()),
            (Some(source), Some(target), RenameFlags::Exchange) => {
                names.insert(from.clone(), target);
                names.insert(to.clone(), source);
                Ok(())
            }
            (Some(source), _, _) => {
                names.remove(&from);
                names.insert(to.clone(), source);
                Ok(())
            }
        };
        self.settle(&format!("renaming {from:?} to {to:?}, {flags:?}"), told, wanted, after);
    }

    fn link(&mut self, from: Place, to: Place) {
        let Some(&inode) = self.expected.files.get(&from) else { return };
        let request = MetaRequest::Link { inode, parent: self.directories[to.0], name: named(&to.1) };
        let told = failed(self.mount.call(request)).map(|told| told.map(drop));
        let mut after = self.expected.clone();
        let wanted = if after.files.contains_key(&to) { Err(Errno::EEXIST) } else { Ok(()) };
        if wanted.is_ok() {
            after.files.insert(to.clone(), inode);
        }
        self.settle(&format!("linking {from:?} as {to:?}"), told, wanted, after);
    }

    fn make_directory(&mut self, place: Place) {
        let parent = self.directories[place.0];
        let request = MetaRequest::Mkdir { parent, name: named(&place.1), mode: 0o755, umask: 0 };
        let told = failed(self.mount.call(request));
        let mut after = self.expected.clone();
        let wanted = if after.trees.contains_key(&place) { Err(Errno::EEXIST) } else { Ok(()) };
        let inode = match &told {
            Ok(Ok(MetaReply::Attr { attr, .. })) => attr.inode,
            Ok(Ok(MetaReply::Elsewhere { inode, .. })) => *inode,
            _ => InodeId(0),
        };
        if wanted.is_ok() {
            after.trees.insert(place.clone(), inode);
        }
        self.settle(&format!("making {place:?}"), told.map(|told| told.map(drop)), wanted, after);
    }

    fn remove_directory(&mut self, place: Place) {
        let request = MetaRequest::Rmdir { parent: self.directories[place.0], name: named(&place.1) };
        let told = failed(self.mount.call(request)).map(|told| told.map(drop));
        let mut after = self.expected.clone();
        let wanted = after.trees.remove(&place).map(drop).ok_or(Errno::ENOENT);
        self.settle(&format!("removing {place:?}"), told, wanted, after);
    }

    fn open_or_close(&mut self) {
        let place = self.place("f");
        if let (Some((inode, handle)), true) = (self.some_open(), self.dice.below(2) == 0) {
            return self.mount.release(inode, handle);
        }
        let Some(&inode) = self.expected.files.get(&place) else { return };
        let (handle, write) = (self.number(), self.dice.below(2) == 0);
        let told = self.mount.call(MetaRequest::Open { inode, read: true, write, truncate: false, handle });
        if let Err(Failed::Errno(errno)) = told {
            self.fail(&format!("opening {place:?} is answered {errno:?}"));
        }
    }

    fn change_mode(&mut self) {
        let Some((inode, _)) = self.some_open() else { return };
        let mode = 0o600 + self.dice.below(64) as u32;
        let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
        match failed(self.mount.call(MetaRequest::Setattr { inode, changes })) {
            Ok(Ok(_)) => drop(self.expected.modes.insert(inode, mode)),
            Ok(Err(errno)) => {
                self.fail(&format!("a change of {inode}, which is open, is answered {errno:?}"))
            }
            // The next look shows it, whichever it is.
            Err(()) => drop(self.expected.modes.remove(&inode)),
        }
    }

    fn lock_or_unlock(&mut self) {
        // Those of a session that has ended are gone.
        let session = self.mount.session();
        self.locks.retain(|(lock, _)| lock.pid == session.0 as u32);
        if !self.locks.is_empty() && self.dice.below(2) == 0 {
            let at = self.dice.below(self.locks.len() as u64) as usize;
            let (request, through) = self.locks.swap_remove(at);
            return self.mount.unlock(request, through);
        }
        let (inode, through) = self.lock_files[self.dice.below(LOCK_FILES as u64) as usize];
        let start = 10 * self.dice.below(3);
        let range = LockRange { start, end: start + 9 };
        if self.locks.iter().any(|(held, _)| (held.inode, held.range) == (inode, range)) {
            return;
        }
        let kind = if self.dice.below(3) == 0 { LockKind::Read } else { LockKind::Write };
        let owner = LockOwner(self.mount.number as u64);
        let request = LockRequest { inode, owner, pid: session.0 as u32, kind, range, is_flock: false };
        if self.mount.lock(request, through) {
            self.locks.push((request, through));
        }
    }

    fn split(&mut self) {
        let place = self.place("t");
        let inode = self.expected.trees.get(&place).copied().filter(|_| self.dice.below(3) == 0);
        let directory = inode.unwrap_or(self.directories[place.0]);
        let _ = self.mount.call(MetaRequest::Split { directory, slices: 3, of_new: self.dice.below(3) == 0 });
    }

    fn look(&mut self) {
        let place = self.place(if self.dice.below(3) == 0 { "t" } else { "f" });
        self.check_name(&place);
        if let Some((inode, _)) = self.some_open() {
            self.check_open(inode);
        }
    }

    fn check_name(&mut self, place: &Place) {
        let expected = self.expected.files.get(place).or(self.expected.trees.get(place)).copied();
        let Some(found) = self.find(self.directories[place.0], &place.1) else { return };
        self.note_checked();
        if found != expected.ok_or(Errno::ENOENT) {
            self.fail(&format!("{place:?} is {found:?}, not {expected:?}"));
        }
    }

    /// What is open is there, with as many names as it has.
    fn check_open(&mut self, inode: InodeId) {
        let told = failed(self.mount.call(MetaRequest::Getattr { inode }));
        let links = self.expected.links(inode);
        match told {
            Err(()) => {}
            Ok(Ok(MetaReply::Attr { attr, .. })) => {
                self.note_checked();
                let mode = *self.expected.modes.entry(inode).or_insert(attr.mode & 0o7777);
                let is_lock_file = self.lock_files.iter().any(|(lock, _)| *lock == inode);
                if !is_lock_file && (attr.nlink, attr.mode & 0o7777) != (links, mode) {
                    self.fail(&format!(
                        "{inode} has {} names, not {links}; mode {:o}, not {mode:o}",
                        attr.nlink, attr.mode
                    ));
                }
            }
            // It was lost with a session that has ended meanwhile.
            Ok(_) if !self.mount.files().contains_key(&inode) => {}
            Ok(other) => self.fail(&format!("{inode} is open, has {links} names, and is answered {other:?}")),
        }
    }

    pub fn check_everything(&mut self) {
        for directory in 0..DIRECTORIES {
            for (kind, number) in
                ["f", "t"].into_iter().flat_map(|kind| (0..NAMES).map(move |number| (kind, number)))
            {
                self.check_name(&(directory, format!("m{}{kind}{number}", self.mount.number)));
            }
        }
        for inode in self.mount.files().into_keys() {
            self.check_open(inode);
        }
    }

    pub fn close_everything(&mut self) {
        for (request, through) in std::mem::take(&mut self.locks) {
            self.mount.unlock(request, through);
        }
        for (inode, open) in self.mount.files() {
            open.handles.into_iter().for_each(|(handle, _)| self.mount.release(inode, handle));
        }
    }
}
