//! A client and what it does: draws operations that collide with those of others, carries them out, and has the answers judged.

use crate::model::{Actor, Kind, Model, Op, Outcome, ROOT, View};
use crate::watch::Shared;
use ashlar_client::{AllocateMode, Client, Handle, OpenFlags, Who, WriteFlags, Written};
use ashlar_env::Entropy;
use ashlar_env::sim::SimEntropy;
use ashlar_types::message::{DirEntry, RenameFlags, SetAttr};
use ashlar_types::{Attr, Errno, InodeId, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Handles an actor has at most.
const HANDLES_MAX: usize = 5;

/// Slices of a directory that is split.
const SLICES: u16 = 3;

/// What a workload prefers.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Of 100 operations so many are about content.
    pub data_percent: u64,
    /// Of 100 operations so many make something durable.
    pub sync_percent: u64,
    /// Longest write, bytes.
    pub write_max: u64,
    /// Highest offset, bytes.
    pub offset_max: u64,
    /// Of 100 operations so many are followed by a rest.
    pub rest_percent: u64,
    /// Of 100 operations so many prefer the content of the one file that everybody has.
    pub hot_percent: u64,
    /// Of 100 operations on names so many split a directory. Then no directory is listed while others change it: a listing of one that is split is of
    /// several moments, as `readdir(3)` may be.
    pub split_percent: u64,
    /// Of 100 handles so many go past the page cache, if any do; then the others, too, write beside each other where they can.
    pub share_percent: u64,
}

/// See the module.
pub struct Worker {
    pub actor: Actor,
    pub client: Arc<Client>,
    pub shared: Arc<Shared>,
    pub random: SimEntropy,
    pub mix: Mix,
    /// Every acknowledged operation is durable.
    pub is_durable: bool,
    /// How files are opened; drawn, if nothing is said.
    pub flags: Option<OpenFlags>,
    handles: Vec<(u64, Arc<Handle>)>,
}

fn who() -> Who {
    Who::system()
}

fn view(attr: &Attr) -> View {
    View { inode: attr.inode.0, mode: attr.mode, nlink: attr.nlink, size: attr.size }
}

fn outcome<T>(result: Result<T, Errno>, good: impl FnOnce(T) -> Outcome) -> Outcome {
    match result {
        Ok(value) => good(value),
        Err(Errno::ENOENT | Errno::ESTALE) => Outcome::Gone,
        Err(errno) => Outcome::Err(errno),
    }
}

impl Worker {
    pub fn new(
        actor: Actor,
        client: Arc<Client>,
        shared: Arc<Shared>,
        seed: u64,
        (mix, is_durable): (Mix, bool),
    ) -> Worker {
        Worker {
            actor,
            client,
            shared,
            random: SimEntropy::new(seed),
            mix,
            is_durable,
            flags: None,
            handles: Vec::new(),
        }
    }

    /// Carries out `count` operations, fewer if the machine stops or the session ends.
    pub fn work(&mut self, count: usize) {
        for _ in 0..count {
            self.shared.scheduler.pause();
            if self.shared.is_off() || !self.shared.oracle.lock().failures.is_empty() {
                return;
            }
            let op = match self.mix.share_percent > 0 && self.handles.is_empty() {
                true => self.draw_common(),
                false => self.draw(),
            };
            let outcome = self.perform(op);
            if self.shared.is_off() || self.shared.oracle.lock().is_excused(self.actor) && is_lost(&outcome) {
                return;
            }
            if self.random.below(100) < self.mix.rest_percent {
                let rest_ms = 1 << self.random.below(12);
                self.shared.scheduler.sleep(Duration::from_millis(rest_ms));
            }
        }
    }

    /// The inodes of what it has open, the oldest first.
    pub fn opened(&self) -> Vec<u64> {
        self.handles.iter().map(|(inode, _)| *inode).collect()
    }

    fn chance(&self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// As [`Worker::chance`], and no choice where there is none.
    fn chance_of(&self, percent: u64) -> bool {
        percent > 0 && self.chance(percent)
    }

    fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize].clone()
    }

    fn name(&self) -> String {
        self.pick(&NAMES).to_owned()
    }

    /// An inode of the model that satisfies `fits`, the root if none does.
    fn inode(&self, model: &Model, fits: impl Fn(&crate::model::Node) -> bool) -> u64 {
        let all: Vec<u64> = model.nodes.iter().filter(|(_, node)| fits(node)).map(|(at, _)| *at).collect();
        if all.is_empty() { ROOT } else { self.pick(&all) }
    }

    /// Opens the file that everybody has.
    fn draw_common(&self) -> Op {
        Op::Create { parent: ROOT, name: NAMES[0].to_owned(), exclusive: false, truncate: false }
    }

    fn draw(&self) -> Op {
        let model = self.shared.oracle.lock().model.clone();
        if self.chance(self.mix.sync_percent) {
            return match self.handles.is_empty() || self.chance(30) {
                true => Op::Sync,
                false => Op::Fsync { inode: self.pick(&self.handles).0 },
            };
        }
        // The kernel keeps pipes to itself: only files are read and written.
        let is_file = |inode: &u64| model.content(*inode).is_some();
        let files: Vec<u64> = self.handles.iter().map(|(inode, _)| *inode).filter(is_file).collect();
        let is_data = self.chance(self.mix.data_percent) && !files.is_empty();
        if is_data { self.draw_data(&files) } else { self.draw_name(&model) }
    }

    fn offset(&self) -> u64 {
        let offset = self.random.below(self.mix.offset_max);
        match self.random.below(4) {
            0 => offset / 4096 * 4096,
            1 => 0,
            2 => offset / (64 << 10) * (64 << 10),
            _ => offset,
        }
    }

    fn draw_data(&self, files: &[u64]) -> Op {
        let shares = self.mix.share_percent > 0;
        let hot = if shares { files.first() } else { files.iter().min() }.copied().unwrap_or(ROOT);
        let inode = if self.chance(self.mix.hot_percent) { hot } else { self.pick(files) };
        let (offset, len) = (self.offset(), 1 + self.random.below(self.mix.write_max));
        // A cut ends what is written beside others for a while.
        let kind = match self.random.below(20) {
            14..18 if shares && self.chance(75) => 0,
            kind => kind,
        };
        match kind {
            0..8 => {
                let fill = self.random.next_u64() as u8 | 1;
                let data: Vec<u8> = (0..len).map(|at| fill.wrapping_add((at / 512) as u8)).collect();
                let (append, is_beside) = self.way_of_write(inode);
                Op::Write { inode, offset, data: Arc::new(data), append, is_beside }
            }
            8..14 if self.reader(inode).is_some() => Op::Read { inode, offset, len },
            8..14 => Op::Getattr { inode },
            14 => Op::Truncate { inode, size: self.pick(&[0, offset, offset + len, 1]), by_handle: true },
            15 => Op::Truncate { inode, size: self.pick(&[0, offset]), by_handle: false },
            16 | 17 => {
                let modes = [
                    AllocateMode::Allocate,
                    AllocateMode::KeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroRangeKeepSize,
                ];
                Op::Allocate { inode, mode: self.pick(&modes), offset, len }
            }
            _ => Op::Getattr { inode },
        }
    }

    fn draw_name(&self, model: &Model) -> Op {
        let parent = self.inode(model, crate::model::Node::is_dir);
        let any = self.inode(model, |_| true);
        let name = self.name();
        if self.mix.split_percent > 0 && self.chance(self.mix.split_percent) {
            return Op::Split { inode: parent, of_new: self.chance(50) };
        }
        match self.draw_plain_name(parent, any, name, model) {
            Op::Readdir { inode } if self.mix.split_percent > 0 => Op::Getattr { inode },
            op => op,
        }
    }

    fn draw_plain_name(&self, parent: u64, any: u64, name: String, model: &Model) -> Op {
        match self.random.below(32) {
            0..6 if self.handles.len() < HANDLES_MAX => {
                Op::Create { parent, name, exclusive: self.chance(20), truncate: self.chance(20) }
            }
            6..9 if self.handles.len() < HANDLES_MAX => {
                let is_file =
                    |node: &crate::model::Node| matches!(node.kind, Kind::File(_)) && node.nlink > 0;
                let first = model.nodes.iter().find(|(_, node)| is_file(node)).map(|(inode, _)| *inode);
                let inode = match first {
                    // One that everybody has.
                    Some(first) if self.chance_of(self.mix.share_percent) => first,
                    _ => self.inode(model, is_file),
                };
                Op::Open { inode, truncate: self.chance(15) }
            }
            9 if self.handles.len() < HANDLES_MAX => Op::Tmpfile { parent },
            10..13 if !self.handles.is_empty() => Op::Close { inode: self.pick(&self.handles).0 },
            13 | 14 => Op::Unlink { parent, name },
            15 => Op::Mkdir { parent, name },
            16 => Op::Rmdir { parent, name },
            17 | 18 => {
                let to = (self.inode(model, crate::model::Node::is_dir), self.name());
                let flags = self.pick(&[
                    RenameFlags::Replace,
                    RenameFlags::Replace,
                    RenameFlags::NoReplace,
                    RenameFlags::Exchange,
                ]);
                Op::Rename { from: (parent, name), to, flags }
            }
            19 => Op::Link { inode: any, parent, name },
            20 => Op::Symlink { parent, name, target: self.name() },
            21 => Op::Mknod { parent, name },
            22 => Op::Chmod { inode: any, mode: self.random.below(0o1000) as u32 },
            23 => Op::Setxattr {
                inode: any,
                name: format!("user.{name}"),
                value: vec![self.random.next_u64() as u8; 9],
            },
            24 => Op::Getxattr { inode: any, name: format!("user.{name}") },
            25 => Op::Removexattr { inode: any, name: format!("user.{name}") },
            26 | 27 => Op::Readdir { inode: parent },
            28 => Op::Readlink { inode: any },
            29 => Op::Getattr { inode: any },
            _ => Op::Lookup { parent, name },
        }
    }

    /// Whether a write of `inode` goes to the end, and whether beside those of others.
    fn way_of_write(&self, inode: u64) -> (bool, bool) {
        let Some(handle) = self.handle(inode) else { return (false, false) };
        let append = handle.flags.append;
        let may_share = self.mix.share_percent > 0 && !append;
        (append, may_share && (handle.is_shared || self.client.goes_beside(&handle, false)))
    }

    /// A handle that `inode` can be read through.
    fn reader(&self, inode: u64) -> Option<Arc<Handle>> {
        let is_one = |(known, handle): &&(u64, Arc<Handle>)| *known == inode && handle.flags.read;
        self.handles.iter().find(is_one).map(|(_, handle)| handle.clone())
    }

    fn handle(&self, inode: u64) -> Option<Arc<Handle>> {
        self.handles.iter().find(|(known, _)| *known == inode).map(|(_, handle)| handle.clone())
    }

    /// Carries out one operation and has the answer judged.
    pub fn perform(&mut self, op: Op) -> Outcome {
        let shared = self.shared.clone();
        let begun = self.shared.scheduler.now();
        shared.scheduler.note(&|| format!("BEGIN {}", op.brief()));
        shared.oracle.lock().invoke(self.actor, op.clone());
        let outcome = self.carry_out(&op);
        shared.scheduler.note(&|| match &outcome {
            Outcome::Bytes(bytes) => format!("END {}: {} bytes", op.brief(), bytes.len()),
            other => format!("END {}: {other:?}", op.brief()),
        });
        if !shared.is_off() {
            let by_flag =
                matches!(op, Op::Write { inode, .. } if self.handle(inode).is_some_and(|it| it.flags.sync));
            let mut oracle = shared.oracle.lock();
            oracle.answered(self.actor, &outcome, self.is_durable || by_flag);
            if let (Op::Write { inode, .. }, Outcome::Done) = (&op, &outcome) {
                oracle.note_write_time(*inode, begun);
            }
        }
        outcome
    }

    fn carry_out(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Create { .. } | Op::Tmpfile { .. } | Op::Open { .. } | Op::Close { .. } => {
                self.open_or_close(op)
            }
            Op::Truncate { .. }
            | Op::Write { .. }
            | Op::Read { .. }
            | Op::Allocate { .. }
            | Op::Fsync { .. } => self.carry_out_data(op),
            Op::Chmod { inode, mode } => {
                let changes = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                let changed = self.client.setattr(&who(), InodeId(*inode), None, changes);
                outcome(changed, |found| Outcome::Attr(view(&found.attr)))
            }
            Op::Split { inode, of_new } => {
                let split = self.client.split(&who(), InodeId(*inode), SLICES, *of_new);
                outcome(split, |()| Outcome::Done)
            }
            Op::Setxattr { inode, name, value } => {
                let pair = (name.as_bytes(), value.as_slice());
                let set = self.client.setxattr(&who(), InodeId(*inode), pair, (false, false), false);
                outcome(set, |()| Outcome::Done)
            }
            Op::Getxattr { inode, name } => {
                let got = self.client.getxattr(&who(), InodeId(*inode), name.as_bytes());
                outcome(got, |bytes| Outcome::Bytes(bytes.to_vec()))
            }
            Op::Removexattr { inode, name } => {
                let removed = self.client.removexattr(&who(), InodeId(*inode), name.as_bytes());
                outcome(removed, |()| Outcome::Done)
            }
            Op::Sync => outcome(self.client.sync(), |()| Outcome::Done),
            Op::Getattr { inode } => self.getattr(*inode),
            other => carry_out_name(&self.client, other),
        }
    }

    fn open_or_close(&mut self, op: &Op) -> Outcome {
        let past_cache = self.chance_of(self.mix.share_percent);
        let drawn = |truncate| OpenFlags {
            read: !past_cache || self.chance(70),
            write: true,
            append: self.random.below(5) == 0,
            truncate,
            sync: self.random.below(12) == 0,
            past_cache,
            ..OpenFlags::default()
        };
        let flags =
            |truncate| self.flags.map_or_else(|| drawn(truncate), |flags| OpenFlags { truncate, ..flags });
        let opened = match op {
            Op::Create { parent, name, exclusive, truncate } => {
                let Ok(checked) = Name::new(name.as_bytes()) else { return Outcome::Err(Errno::EINVAL) };
                let place = (InodeId(*parent), checked);
                self.client.create(&who(), place, (0o644, 0), *exclusive, flags(*truncate))
            }
            Op::Tmpfile { parent } => self.client.tmpfile(&who(), InodeId(*parent), (0o644, 0), flags(false)),
            Op::Open { inode, truncate } => self.client.open(&who(), InodeId(*inode), flags(*truncate)),
            Op::Close { inode } => {
                let Some(at) = self.handles.iter().position(|(known, _)| known == inode) else {
                    return Outcome::Done;
                };
                let (_, handle) = self.handles.remove(at);
                let flushed = self.client.flush(&handle);
                self.client.release(&handle);
                return outcome(flushed, |()| Outcome::Done);
            }
            _ => unreachable!("an operation that opens or closes"),
        };
        outcome(opened, |opened| {
            self.handles.push((opened.found.attr.inode.0, opened.handle));
            Outcome::Opened(view(&opened.found.attr), opened.created)
        })
    }

    /// As a program does: a write that was cut short goes on where it ended.
    fn write_all(
        &self,
        handle: &Handle,
        (mut offset, mut data): (u64, &[u8]),
        is_beside: bool,
    ) -> Result<(), Errno> {
        while !data.is_empty() {
            let taken = match is_beside {
                true => self.write_beside(handle, offset, data)?,
                false => self.client.write(handle, offset, data, WriteFlags::default())?,
            };
            (offset, data) = (offset + taken as u64, &data[taken..]);
        }
        Ok(())
    }

    /// As a mount does of what the kernel has no pages of, or will not have in a moment.
    fn write_beside(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let mut taken = Err(Errno::EIO);
        if !handle.is_shared {
            let flags = WriteFlags::default();
            self.client.write_beside(&who(), handle, (offset, data), flags, None, |answer, _| taken = answer);
            return Ok(taken?.bytes);
        }
        let flags = WriteFlags { is_past_cache: true, ..WriteFlags::default() };
        match self.client.write_as(&who(), handle, offset, data, flags)? {
            Written::Done(taken, left) => {
                if left.sync {
                    self.client.fsync(handle)?;
                }
                Ok(taken.bytes)
            }
            Written::MeetsPages => {
                let client = &self.client;
                client.write_over_pages(&who(), handle, offset, data, flags, |answer| taken = answer);
                Ok(taken?.bytes)
            }
        }
    }

    /// A stat(2), of which the time is judged here.
    fn getattr(&self, inode: u64) -> Outcome {
        let known = self.shared.oracle.lock().known_change(inode);
        let found = self.client.getattr(&who(), InodeId(inode));
        if let Ok(found) = &found
            && !self.shared.is_off()
        {
            self.shared.oracle.lock().judge_time(self.actor, known, found.attr.mtime);
        }
        made(found)
    }

    fn carry_out_data(&self, op: &Op) -> Outcome {
        let Some(inode) = op.inode() else { return Outcome::Done };
        let handle = self.handle(inode);
        if let Op::Truncate { size, by_handle, .. } = op {
            let changes = SetAttr { size: Some(*size), ..SetAttr::default() };
            let handle = handle.filter(|_| *by_handle);
            let changed = self.client.setattr(&who(), InodeId(inode), handle.as_deref(), changes);
            return outcome(changed, |found| Outcome::Attr(view(&found.attr)));
        }
        let Some(handle) = handle else { return Outcome::Err(Errno::EBADF) };
        match op {
            Op::Write { offset, data, is_beside, .. } => {
                outcome(self.write_all(&handle, (*offset, data), *is_beside), |()| Outcome::Done)
            }
            Op::Read { inode, offset, len } => {
                let handle = self.reader(*inode).unwrap_or(handle);
                let mut out = vec![0xEE; *len as usize];
                let got = match handle.is_shared && self.mix.share_percent > 0 {
                    true => self.client.read_past_cache(&handle, *offset, &mut out),
                    false => self.client.read(&handle, *offset, &mut out),
                };
                outcome(got, |got| Outcome::Bytes(out[..got].to_vec()))
            }
            Op::Allocate { mode, offset, len, .. } => {
                outcome(self.client.fallocate(&Who::system(), &handle, *mode, (*offset, *len)), |()| {
                    Outcome::Done
                })
            }
            _ => outcome(self.client.fsync(&handle), |()| Outcome::Done),
        }
    }
}

/// The session is gone, or the disk below.
pub fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Err(Errno::ENOTCONN | Errno::EIO))
}

fn made(result: Result<ashlar_client::Found, Errno>) -> Outcome {
    outcome(result, |found| Outcome::Attr(view(&found.attr)))
}

fn carry_out_name(client: &Client, op: &Op) -> Outcome {
    let name = |name: &'_ str| Name::new(name.as_bytes()).map(|name| name.as_bytes().to_vec());
    let with = |text: &str, run: &dyn Fn(Name<'_>) -> Outcome| match name(text) {
        Ok(bytes) => Name::new(&bytes).map_or(Outcome::Err(Errno::EINVAL), run),
        Err(errno) => Outcome::Err(errno),
    };
    match op {
        Op::Lookup { parent, name } => with(name, &|name| {
            outcome(client.lookup(&who(), InodeId(*parent), name), |found| match found {
                Ok(found) => Outcome::Attr(view(&found.attr)),
                Err(_) => Outcome::Gone,
            })
        }),
        Op::Readdir { inode } => outcome(list(client, InodeId(*inode)), Outcome::Entries),
        Op::Readlink { inode } => {
            outcome(client.readlink(&who(), InodeId(*inode)), |target| Outcome::Bytes(target.to_vec()))
        }
        Op::Mkdir { parent, name } => {
            with(name, &|name| made(client.mkdir(&who(), InodeId(*parent), name, 0o755, 0)))
        }
        Op::Mknod { parent, name } => {
            with(name, &|name| made(client.mknod(&who(), (InodeId(*parent), name), 0o010_644, 0, 0)))
        }
        Op::Symlink { parent, name, target } => {
            with(name, &|name| made(client.symlink(&who(), InodeId(*parent), name, target.as_bytes())))
        }
        Op::Link { inode, parent, name } => {
            with(name, &|name| made(client.link(&who(), InodeId(*inode), InodeId(*parent), name)))
        }
        Op::Unlink { parent, name } => {
            with(name, &|name| outcome(client.unlink(&who(), InodeId(*parent), name), |_| Outcome::Done))
        }
        Op::Rmdir { parent, name } => {
            with(name, &|name| outcome(client.rmdir(&who(), InodeId(*parent), name), |_| Outcome::Done))
        }
        Op::Rename { from, to, flags } => with(&from.1, &|from_name| {
            with(&to.1, &|to_name| {
                let (from, to) = ((InodeId(from.0), from_name), (InodeId(to.0), to_name));
                outcome(client.rename(&who(), from, to, *flags), |_| Outcome::Done)
            })
        }),
        _ => Outcome::Err(Errno::EPROTO),
    }
}

/// All entries of a directory, sorted by name; of one that is not split read in one call, so that they are those of one moment.
pub fn list(client: &Client, directory: InodeId) -> Result<Vec<(String, u64)>, Errno> {
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map_or(0, |last: &DirEntry| last.cookie);
        let listing = client.readdir(&who(), directory, after, 64 << 10, false)?;
        listed.extend(listing.entries);
        if listing.is_end {
            break;
        }
    }
    let mut entries: Vec<(String, u64)> = listed
        .iter()
        .filter(|entry| !matches!(&*entry.name, b"." | b".."))
        .map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.inode.0))
        .collect();
    entries.sort();
    Ok(entries)
}

/// Reads everything there is into a model, but the content of files that are `hidden`.
///
/// # Errors
/// The first call that fails, with what it was about.
pub fn read_back(client: &Client, hidden: &BTreeSet<u64>) -> Result<Model, String> {
    let mut model = Model { nodes: BTreeMap::new() };
    let mut to_visit = vec![(ROOT, ROOT)];
    while let Some((inode, parent)) = to_visit.pop() {
        if model.nodes.contains_key(&inode) {
            continue;
        }
        let failed = |what: &str, errno: Errno| format!("{what} {inode:x} answers {errno:?} after recovery");
        let attr = client.getattr(&who(), InodeId(inode)).map_err(|errno| failed("getattr", errno))?.attr;
        let kind = match attr.mode & 0o170_000 {
            0o040_000 => {
                let entries = list(client, InodeId(inode)).map_err(|errno| failed("readdir", errno))?;
                to_visit.extend(entries.iter().map(|(_, child)| (*child, inode)));
                Kind::Directory(entries.into_iter().collect())
            }
            // Its length alone can be told.
            0o100_000 if hidden.contains(&inode) => {
                let mut content = crate::content::Content::default();
                content.set_size(attr.size);
                Kind::File(content)
            }
            0o100_000 => {
                let flags = OpenFlags { read: true, ..OpenFlags::default() };
                let opened =
                    client.open(&who(), InodeId(inode), flags).map_err(|errno| failed("open", errno))?;
                let mut out = vec![0xEE; attr.size as usize];
                let got = client.read(&opened.handle, 0, &mut out).map_err(|errno| failed("read", errno))?;
                client.release(&opened.handle);
                if got != out.len() {
                    return Err(format!("file {inode:x} of {} bytes reads only {got}", out.len()));
                }
                let mut content = crate::content::Content::default();
                content.write(0, &out);
                Kind::File(content)
            }
            0o120_000 => {
                let target =
                    client.readlink(&who(), InodeId(inode)).map_err(|errno| failed("readlink", errno))?;
                Kind::Symlink(String::from_utf8_lossy(&target).into_owned())
            }
            _ => Kind::Special,
        };
        let mut node = crate::model::Node::new(kind, attr.mode, parent);
        node.nlink = attr.nlink;
        let names = client.listxattr(&who(), InodeId(inode)).unwrap_or_default();
        for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
            if let Ok(value) = client.getxattr(&who(), InodeId(inode), name) {
                node.xattrs.insert(String::from_utf8_lossy(name).into_owned(), value.to_vec());
            }
        }
        model.nodes.insert(inode, Arc::new(node));
    }
    Ok(model)
}
