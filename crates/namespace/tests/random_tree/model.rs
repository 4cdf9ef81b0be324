//! A naive POSIX tree: nodes in a vector, directories as maps from names to nodes, permissions by mode alone. Slow and simple on purpose;
//! every rule is written out from the manual pages and the order of checks of Linux, not from the code under test.

use ashlar_types::message::RenameFlags;
use ashlar_types::{Capabilities, Credentials, DirectoryChoice, Errno, FileType, InodeId, Timespec};
use std::collections::{BTreeMap, BTreeSet};

/// Index of a node in the model.
pub type NodeIndex = usize;

/// The root's index.
pub const ROOT: NodeIndex = 0;

/// A file or directory of the model.
#[derive(Clone, Debug)]
pub struct Node {
    /// The inode it stands for; learned when it is made.
    pub id: InodeId,
    pub file_type: FileType,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub mtime: Timespec,
    pub ctime: Timespec,
    pub entries: BTreeMap<String, NodeIndex>,
    pub parent: NodeIndex,
    /// Sessions that have it open.
    pub open: BTreeSet<u64>,
    /// Made by tmpfile and not yet named.
    pub is_linkable: bool,
    /// Length of a symbolic link's target.
    pub target_bytes: u64,
    pub is_alive: bool,
    /// Where directories go that are made in it, and in those.
    pub directories: DirectoryChoice,
}

impl Node {
    pub fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }
}

/// See the module.
pub struct Model {
    pub nodes: Vec<Node>,
}

/// What a call makes.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    pub file_type: FileType,
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    pub target_bytes: u64,
}

type Answer<T> = Result<T, Errno>;

impl Model {
    pub fn new(now: Timespec) -> Model {
        let root = Node {
            id: InodeId::ROOT,
            file_type: FileType::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            mtime: now,
            ctime: now,
            entries: BTreeMap::new(),
            parent: ROOT,
            open: BTreeSet::new(),
            is_linkable: false,
            target_bytes: 0,
            is_alive: true,
            directories: DirectoryChoice::RoundRobin,
        };
        Model { nodes: vec![root] }
    }

    pub fn may(&self, creds: &Credentials, node: NodeIndex, wanted: u32) -> bool {
        let node = &self.nodes[node];
        let shift = match () {
            () if creds.uid == node.uid => 6,
            () if creds.in_group(node.gid) => 3,
            () => 0,
        };
        let granted = node.mode >> shift & 7;
        let overrides = creds.caps.has(Capabilities::DAC_OVERRIDE)
            && (node.is_directory() || wanted & 1 == 0 || node.mode & 0o111 != 0);
        granted & wanted == wanted || overrides
    }

    /// The entry of a searchable directory.
    fn step(&self, creds: &Credentials, parent: NodeIndex, name: &str) -> Answer<Option<NodeIndex>> {
        if !self.nodes[parent].is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if !self.may(creds, parent, 1) {
            return Err(Errno::EACCES);
        }
        Ok(self.nodes[parent].entries.get(name).copied())
    }

    fn may_add(&self, creds: &Credentials, parent: NodeIndex) -> Answer<()> {
        if self.nodes[parent].nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if self.may(creds, parent, 3) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn may_take(
        &self,
        creds: &Credentials,
        parent: NodeIndex,
        victim: NodeIndex,
        as_directory: bool,
    ) -> Answer<()> {
        if !self.may(creds, parent, 3) {
            return Err(Errno::EACCES);
        }
        let owners = [self.nodes[parent].uid, self.nodes[victim].uid];
        let is_sticky = self.nodes[parent].mode & 0o1000 != 0;
        if is_sticky && !owners.contains(&creds.uid) && !creds.caps.has(Capabilities::FOWNER) {
            return Err(Errno::EPERM);
        }
        match (as_directory, self.nodes[victim].is_directory()) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    fn stamp(&mut self, directory: NodeIndex, now: Timespec) {
        (self.nodes[directory].mtime, self.nodes[directory].ctime) = (now, now);
    }

    fn add_node(
        &mut self,
        creds: &Credentials,
        parent: NodeIndex,
        making: Making,
        now: Timespec,
    ) -> NodeIndex {
        let directory = &self.nodes[parent];
        let gives_group = directory.mode & 0o2000 != 0;
        let gid = if gives_group { directory.gid } else { creds.gid };
        let mut mode = making.mode & 0o7777;
        match making.file_type {
            FileType::Symlink => mode = 0o777,
            FileType::Directory => {
                mode = mode & 0o1777 & !making.umask | if gives_group { 0o2000 } else { 0 };
            }
            _ => {
                let is_member = creds.in_group(gid) || creds.caps.has(Capabilities::FSETID);
                if gives_group && mode & 0o2010 == 0o2010 && !is_member {
                    mode &= !0o2000;
                }
                mode &= !making.umask;
            }
        }
        let nlink = if making.file_type == FileType::Directory { 2 } else { 1 };
        let directories = directory.directories;
        self.nodes.push(Node {
            id: InodeId(0),
            file_type: making.file_type,
            mode,
            uid: creds.uid,
            gid,
            nlink,
            mtime: now,
            ctime: now,
            entries: BTreeMap::new(),
            parent,
            open: BTreeSet::new(),
            is_linkable: false,
            target_bytes: making.target_bytes,
            is_alive: true,
            directories,
        });
        self.nodes.len() - 1
    }

    /// create, mkdir, mknod, symlink: the new node, or with `is_exclusive` unset the one that is there.
    pub fn make(
        &mut self,
        creds: &Credentials,
        (parent, name): (NodeIndex, &str),
        making: Making,
        is_exclusive: bool,
        now: Timespec,
    ) -> Answer<NodeIndex> {
        if let Some(existing) = self.step(creds, parent, name)? {
            return match () {
                () if is_exclusive => Err(Errno::EEXIST),
                () if self.nodes[existing].is_directory() => Err(Errno::EISDIR),
                () => Ok(existing),
            };
        }
        self.may_add(creds, parent)?;
        let is_device = matches!(making.file_type, FileType::CharDevice | FileType::BlockDevice);
        let is_whiteout = making.file_type == FileType::CharDevice && making.rdev == 0;
        if is_device && !is_whiteout && !creds.caps.has(Capabilities::MKNOD) {
            return Err(Errno::EPERM);
        }
        let node = self.add_node(creds, parent, making, now);
        self.nodes[parent].entries.insert(name.to_owned(), node);
        self.nodes[parent].nlink += u32::from(self.nodes[node].is_directory());
        self.stamp(parent, now);
        Ok(node)
    }

    pub fn tmpfile(
        &mut self,
        creds: &Credentials,
        parent: NodeIndex,
        making: Making,
        session: u64,
        now: Timespec,
    ) -> Answer<NodeIndex> {
        if !self.nodes[parent].is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if !self.may(creds, parent, 3) {
            return Err(Errno::EACCES);
        }
        if self.nodes[parent].nlink == 0 {
            return Err(Errno::EPERM);
        }
        let node = self.add_node(creds, parent, making, now);
        (self.nodes[node].nlink, self.nodes[node].is_linkable) = (0, true);
        self.nodes[node].open.insert(session);
        Ok(node)
    }

    pub fn link(
        &mut self,
        creds: &Credentials,
        node: NodeIndex,
        (parent, name): (NodeIndex, &str),
        now: Timespec,
    ) -> Answer<NodeIndex> {
        if self.step(creds, parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.may_add(creds, parent)?;
        if !self.nodes[node].is_alive {
            return Err(Errno::ESTALE);
        }
        if self.nodes[node].is_directory() {
            return Err(Errno::EPERM);
        }
        if self.nodes[node].nlink == 0 && !self.nodes[node].is_linkable {
            return Err(Errno::ENOENT);
        }
        self.nodes[node].is_linkable = false;
        self.nodes[node].nlink += 1;
        self.nodes[node].ctime = now;
        self.nodes[parent].entries.insert(name.to_owned(), node);
        self.stamp(parent, now);
        Ok(node)
    }

    fn drop_name(&mut self, node: NodeIndex, now: Timespec) {
        let node = &mut self.nodes[node];
        node.nlink = if node.is_directory() { 0 } else { node.nlink - 1 };
        node.ctime = now;
        node.is_alive = node.nlink > 0 || !node.open.is_empty();
    }

    pub fn remove(
        &mut self,
        creds: &Credentials,
        (parent, name): (NodeIndex, &str),
        as_directory: bool,
        now: Timespec,
    ) -> Answer<NodeIndex> {
        let node = self.step(creds, parent, name)?.ok_or(Errno::ENOENT)?;
        self.may_take(creds, parent, node, as_directory)?;
        if !self.nodes[node].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.nodes[parent].entries.remove(name);
        self.nodes[parent].nlink -= u32::from(as_directory);
        self.stamp(parent, now);
        self.drop_name(node, now);
        Ok(node)
    }

    /// Whether `directory` is `ancestor` or below it, by looking downwards.
    fn contains(&self, ancestor: NodeIndex, directory: NodeIndex) -> bool {
        // One that has been removed, and is open, is still below where it was last, as on Linux.
        let last = &self.nodes[directory];
        let is_kept = last.nlink == 0 && last.is_directory() && self.nodes[last.parent].is_alive;
        ancestor == directory
            || self.has_below(ancestor, directory)
            || is_kept && self.contains(ancestor, last.parent)
    }

    fn has_below(&self, ancestor: NodeIndex, directory: NodeIndex) -> bool {
        self.nodes[ancestor]
            .entries
            .values()
            .any(|&node| node == directory || self.has_below(node, directory))
    }

    pub fn rename(
        &mut self,
        creds: &Credentials,
        (from, from_name): (NodeIndex, &str),
        (to, to_name): (NodeIndex, &str),
        flags: RenameFlags,
        now: Timespec,
    ) -> Answer<NodeIndex> {
        let source = self.step(creds, from, from_name)?;
        let target = self.step(creds, to, to_name)?;
        let source = source.ok_or(Errno::ENOENT)?;
        let is_exchange = flags == RenameFlags::Exchange;
        match (flags, target) {
            (RenameFlags::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameFlags::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if from != to && self.contains(source, to) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target
            && from != to
            && self.contains(target, from)
        {
            return Err(if is_exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(source);
        }
        let source_is_directory = self.nodes[source].is_directory();
        self.may_take(creds, from, source, source_is_directory)?;
        match target {
            None => self.may_add(creds, to)?,
            Some(target) if is_exchange => {
                self.may_take(creds, to, target, self.nodes[target].is_directory())?;
            }
            Some(target) => self.may_take(creds, to, target, source_is_directory)?,
        }
        let mut turned: Vec<NodeIndex> = vec![source];
        turned.extend(target.filter(|_| is_exchange));
        turned.retain(|&node| from != to && self.nodes[node].is_directory());
        if turned.iter().any(|&node| !self.may(creds, node, 2)) {
            return Err(Errno::EACCES);
        }
        if let Some(target) = target.filter(|_| !is_exchange) {
            if !self.nodes[target].entries.is_empty() {
                return Err(Errno::ENOTEMPTY);
            }
            self.drop_name(target, now);
        }
        self.nodes[from].entries.remove(from_name);
        self.nodes[to].entries.insert(to_name.to_owned(), source);
        (self.nodes[source].ctime, self.nodes[source].parent) = (now, to);
        if let Some(target) = target.filter(|_| is_exchange) {
            self.nodes[from].entries.insert(from_name.to_owned(), target);
            (self.nodes[target].ctime, self.nodes[target].parent) = (now, from);
        }
        for directory in [from, to] {
            self.stamp(directory, now);
            let below =
                self.nodes[directory].entries.values().filter(|&&node| self.nodes[node].is_directory());
            self.nodes[directory].nlink = 2 + below.count() as u32;
        }
        Ok(source)
    }

    pub fn close(&mut self, node: NodeIndex, session: u64) {
        let node = &mut self.nodes[node];
        node.open.remove(&session);
        node.is_alive = node.nlink > 0 || !node.open.is_empty();
    }

    /// Names of a readable directory.
    pub fn list(&self, creds: &Credentials, directory: NodeIndex) -> Answer<BTreeSet<String>> {
        if !self.nodes[directory].is_directory() {
            return Err(Errno::ENOTDIR);
        }
        if !self.may(creds, directory, 4) && !self.nodes[directory].open.contains(&1) {
            return Err(Errno::EACCES);
        }
        Ok(self.nodes[directory].entries.keys().cloned().chain([".".to_owned(), "..".to_owned()]).collect())
    }
}
