//! The reference: a naive file system in memory that does one operation after the other. Everybody is root.

use crate::content::Content;
use ashlar_client::AllocateMode;
use ashlar_types::message::RenameFlags;
use ashlar_types::{Errno, InodeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The root directory.
pub const ROOT: u64 = InodeId::ROOT.0;

/// A client of the simulation.
pub type Actor = usize;

/// What an actor asks for. Inodes are numbers as clients know them; they may be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Lookup {
        parent: u64,
        name: String,
    },
    Getattr {
        inode: u64,
    },
    Readdir {
        inode: u64,
    },
    Readlink {
        inode: u64,
    },
    Mkdir {
        parent: u64,
        name: String,
    },
    Mknod {
        parent: u64,
        name: String,
    },
    Symlink {
        parent: u64,
        name: String,
        target: String,
    },
    Create {
        parent: u64,
        name: String,
        exclusive: bool,
        truncate: bool,
    },
    Tmpfile {
        parent: u64,
    },
    Link {
        inode: u64,
        parent: u64,
        name: String,
    },
    Unlink {
        parent: u64,
        name: String,
    },
    Rmdir {
        parent: u64,
        name: String,
    },
    Rename {
        from: (u64, String),
        to: (u64, String),
        flags: RenameFlags,
    },
    Open {
        inode: u64,
        truncate: bool,
    },
    Close {
        inode: u64,
    },
    Chmod {
        inode: u64,
        mode: u32,
    },
    Truncate {
        inode: u64,
        size: u64,
        by_handle: bool,
    },
    Setxattr {
        inode: u64,
        name: String,
        value: Vec<u8>,
    },
    Getxattr {
        inode: u64,
        name: String,
    },
    Removexattr {
        inode: u64,
        name: String,
    },
    Write {
        inode: u64,
        offset: u64,
        data: Arc<Vec<u8>>,
        append: bool,
        /// Past every cache, so that others may be writing as well.
        is_beside: bool,
    },
    Read {
        inode: u64,
        offset: u64,
        len: u64,
    },
    Allocate {
        inode: u64,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    },
    Fsync {
        inode: u64,
    },
    Sync,
    /// A directory gets slices, or, `of_new`, those that are made in it do. Nobody sees that.
    Split {
        inode: u64,
        of_new: bool,
    },
}

/// What is seen of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct View {
    pub inode: u64,
    pub mode: u32,
    pub nlink: u32,
    /// Of a directory the number of its entries.
    pub size: u64,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is no such name, or no such inode.
    Gone,
    Err(Errno),
    Attr(View),
    Opened(View, bool),
    Entries(Vec<(String, u64)>),
    Bytes(Vec<u8>),
    Done,
}

/// What kind of inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory(BTreeMap<String, u64>),
    File(Content),
    Symlink(String),
    Special,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub nlink: u32,
    pub parent: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Handles by actor.
    pub opens: BTreeMap<Actor, u32>,
    /// Made without a name and not named yet.
    pub is_linkable: bool,
    /// A write failed in the middle: content and length are not known.
    pub is_uncertain: bool,
    /// Besides, something was appended since, where nobody can tell.
    pub is_unknown: bool,
    /// It has, or had, data on a target that is missing.
    pub is_hidden: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub nodes: BTreeMap<u64, Arc<Node>>,
}

const DIR_MODE: u32 = 0o040_755;
const FILE_MODE: u32 = 0o100_644;

type Answer<T> = Result<T, Outcome>;

fn err<T>(errno: Errno) -> Answer<T> {
    Err(Outcome::Err(errno))
}

impl Node {
    pub fn new(kind: Kind, mode: u32, parent: u64) -> Node {
        let nlink = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        Node {
            kind,
            mode,
            nlink,
            parent,
            xattrs: BTreeMap::new(),
            opens: BTreeMap::new(),
            is_linkable: false,
            is_uncertain: false,
            is_unknown: false,
            is_hidden: false,
        }
    }

    /// It was emptied.
    fn note_emptied(&mut self) {
        (self.is_uncertain, self.is_unknown, self.is_hidden) = (false, false, false);
    }

    pub fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }
}

impl Model {
    /// A root directory.
    pub fn new() -> Model {
        let root = Node::new(Kind::Directory(BTreeMap::new()), DIR_MODE, ROOT);
        Model { nodes: BTreeMap::from([(ROOT, Arc::new(root))]) }
    }

    /// What `actor` sees of `inode`: with a name or opened by it, the inode is certainly there.
    fn node(&self, inode: u64) -> Answer<&Node> {
        self.nodes.get(&inode).map(|node| &**node).ok_or(Outcome::Gone)
    }

    pub fn change(&mut self, inode: u64) -> &mut Node {
        let node = self.nodes.entry(inode).or_insert_with(|| Arc::new(Node::new(Kind::Special, 0, 0)));
        Arc::make_mut(node)
    }

    fn dir(&self, inode: u64) -> Answer<&BTreeMap<String, u64>> {
        match &self.node(inode)?.kind {
            Kind::Directory(entries) => Ok(entries),
            _ => err(Errno::ENOTDIR),
        }
    }

    fn dir_mut(&mut self, inode: u64) -> &mut BTreeMap<String, u64> {
        match &mut self.change(inode).kind {
            Kind::Directory(entries) => entries,
            _ => unreachable!("checked to be a directory"),
        }
    }

    fn file(&self, inode: u64) -> Answer<&Content> {
        match &self.node(inode)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => err(Errno::EISDIR),
            _ => err(Errno::EINVAL),
        }
    }

    /// What `name` stands for in `parent`.
    pub fn child(&self, parent: u64, name: &str) -> Option<u64> {
        self.dir(parent).ok()?.get(name).copied()
    }

    /// The content of a file, if it is one.
    pub fn content(&self, inode: u64) -> Option<&Content> {
        self.file(inode).ok()
    }

    /// The content of a file, to be changed.
    pub fn content_mut(&mut self, inode: u64) -> Option<&mut Content> {
        match &mut Arc::make_mut(self.nodes.get_mut(&inode)?).kind {
            Kind::File(content) => Some(content),
            _ => None,
        }
    }

    pub fn view(&self, inode: u64) -> Answer<View> {
        let node = self.node(inode)?;
        let size = match &node.kind {
            Kind::Directory(entries) => entries.len() as u64,
            Kind::File(content) => content.size(),
            Kind::Symlink(target) => target.len() as u64,
            Kind::Special => 0,
        };
        Ok(View { inode, mode: node.mode, nlink: node.nlink, size })
    }

    /// Whether others may see `inode` or not, depending on who is quicker.
    fn is_fading(&self, actor: Actor, inode: u64) -> bool {
        self.nodes.get(&inode).is_some_and(|node| node.nlink == 0 && !node.opens.contains_key(&actor))
    }

    /// The inodes an operation names.
    fn names(op: &Op) -> Vec<u64> {
        match op {
            Op::Rename { from, to, .. } => vec![from.0, to.0],
            Op::Link { inode, parent, .. } => vec![*inode, *parent],
            Op::Lookup { parent, .. }
            | Op::Mkdir { parent, .. }
            | Op::Mknod { parent, .. }
            | Op::Symlink { parent, .. }
            | Op::Create { parent, .. }
            | Op::Tmpfile { parent }
            | Op::Unlink { parent, .. }
            | Op::Rmdir { parent, .. } => vec![*parent],
            Op::Sync => Vec::new(),
            other => other.inode().into_iter().collect(),
        }
    }

    /// Whether `op` is about content that may be on a missing target.
    pub fn is_about_hidden(&self, op: &Op) -> bool {
        let is_hidden = |inode: u64| self.nodes.get(&inode).is_some_and(|node| node.is_hidden);
        match op {
            Op::Create { parent, name, .. } => self.child(*parent, name).is_some_and(is_hidden),
            Op::Sync => self.nodes.values().any(|node| node.is_hidden),
            op => op.inode().is_some_and(is_hidden),
        }
    }

    /// Whether any outcome of `op` that says that something is gone is as good as the one evaluated.
    pub fn may_be_gone(&self, actor: Actor, op: &Op) -> bool {
        Model::names(op).into_iter().any(|inode| self.is_fading(actor, inode))
    }

    /// Carries out `op`; what is made gets number `new`.
    pub fn run(&mut self, actor: Actor, op: &Op, new: u64) -> Outcome {
        match self.try_run(actor, op, new) {
            Ok(outcome) | Err(outcome) => outcome,
        }
    }

    fn try_run(&mut self, actor: Actor, op: &Op, new: u64) -> Answer<Outcome> {
        match op {
            Op::Lookup { parent, name } => {
                let inode = *self.dir(*parent)?.get(name).ok_or(Outcome::Gone)?;
                Ok(Outcome::Attr(self.view(inode)?))
            }
            Op::Getattr { inode } => Ok(Outcome::Attr(self.view(*inode)?)),
            Op::Readdir { inode } => {
                let entries = self.dir(*inode)?;
                Ok(Outcome::Entries(entries.iter().map(|(name, inode)| (name.clone(), *inode)).collect()))
            }
            Op::Readlink { inode } => match &self.node(*inode)?.kind {
                Kind::Symlink(target) => Ok(Outcome::Bytes(target.clone().into_bytes())),
                _ => err(Errno::EINVAL),
            },
            Op::Mkdir { parent, name } => self.make(
                (*parent, name),
                new,
                Node::new(Kind::Directory(BTreeMap::new()), DIR_MODE, *parent),
            ),
            Op::Mknod { parent, name } => {
                self.make((*parent, name), new, Node::new(Kind::Special, 0o010_644, *parent))
            }
            Op::Symlink { parent, name, target } => {
                self.make((*parent, name), new, Node::new(Kind::Symlink(target.clone()), 0o120_777, *parent))
            }
            Op::Create { .. } | Op::Tmpfile { .. } | Op::Open { .. } => self.run_open(actor, op, new),
            Op::Close { inode } => {
                let opens = &mut self.change(*inode).opens;
                match opens.get_mut(&actor) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => {
                        opens.remove(&actor);
                    }
                }
                Ok(Outcome::Done)
            }
            Op::Link { .. } | Op::Unlink { .. } | Op::Rmdir { .. } => self.run_link(op),
            Op::Rename { from, to, flags } => {
                self.rename((from.0, &from.1), (to.0, &to.1), *flags).map(|()| Outcome::Done)
            }
            Op::Split { inode, .. } => {
                self.dir(*inode)?;
                Ok(Outcome::Done)
            }
            Op::Chmod { inode, mode } => {
                if matches!(self.node(*inode)?.kind, Kind::Symlink(_)) {
                    return err(Errno::EOPNOTSUPP);
                }
                let node = self.change(*inode);
                node.mode = node.mode & 0o170_000 | mode & 0o777;
                Ok(Outcome::Attr(self.view(*inode)?))
            }
            Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Removexattr { .. } => self.run_xattr(op),
            Op::Fsync { .. } | Op::Sync => Ok(Outcome::Done),
            Op::Truncate { .. } | Op::Write { .. } | Op::Read { .. } | Op::Allocate { .. } => {
                self.run_data(op)
            }
        }
    }

    fn make(&mut self, (parent, name): (u64, &str), new: u64, node: Node) -> Answer<Outcome> {
        let entries = self.dir(parent)?;
        if entries.contains_key(name) {
            return err(Errno::EEXIST);
        }
        if self.node(parent)?.nlink == 0 {
            return Err(Outcome::Gone);
        }
        let is_dir = node.is_dir();
        self.nodes.insert(new, Arc::new(node));
        self.dir_mut(parent).insert(name.to_owned(), new);
        if is_dir {
            self.change(parent).nlink += 1;
        }
        Ok(Outcome::Attr(self.view(new)?))
    }

    fn run_open(&mut self, actor: Actor, op: &Op, new: u64) -> Answer<Outcome> {
        let (inode, truncate, created) = match op {
            Op::Create { parent, name, exclusive, truncate } => match self.dir(*parent)?.get(name).copied() {
                Some(_) if *exclusive => return err(Errno::EEXIST),
                Some(inode) if self.node(inode)?.is_dir() => return err(Errno::EISDIR),
                Some(inode) => (inode, *truncate, false),
                None => {
                    let node = Node::new(Kind::File(Content::default()), FILE_MODE, *parent);
                    self.make((*parent, name), new, node)?;
                    (new, false, true)
                }
            },
            Op::Tmpfile { parent } => {
                self.dir(*parent)?;
                let mut node = Node::new(Kind::File(Content::default()), FILE_MODE, *parent);
                (node.nlink, node.is_linkable) = (0, true);
                self.nodes.insert(new, Arc::new(node));
                (new, false, true)
            }
            Op::Open { inode, truncate } => (*inode, *truncate, false),
            _ => unreachable!("an operation that opens"),
        };
        match &self.node(inode)?.kind {
            Kind::Symlink(_) => return err(Errno::ELOOP),
            Kind::Directory(_) => return err(Errno::EISDIR),
            _ => {}
        }
        if truncate && let Some(content) = self.content_mut(inode) {
            content.set_size(0);
            self.change(inode).note_emptied();
        }
        *self.change(inode).opens.entry(actor).or_insert(0) += 1;
        Ok(Outcome::Opened(self.view(inode)?, created))
    }

    fn run_link(&mut self, op: &Op) -> Answer<Outcome> {
        match op {
            Op::Link { inode, parent, name } => {
                if self.dir(*parent)?.contains_key(name) {
                    return err(Errno::EEXIST);
                }
                if self.node(*parent)?.nlink == 0 {
                    return Err(Outcome::Gone);
                }
                let node = self.node(*inode)?;
                if node.is_dir() {
                    return err(Errno::EPERM);
                }
                if node.nlink == 0 && !node.is_linkable {
                    return Err(Outcome::Gone);
                }
                let node = self.change(*inode);
                node.nlink += 1;
                node.is_linkable = false;
                self.dir_mut(*parent).insert(name.clone(), *inode);
                Ok(Outcome::Attr(self.view(*inode)?))
            }
            Op::Unlink { parent, name } => {
                let inode = *self.dir(*parent)?.get(name).ok_or(Outcome::Gone)?;
                if self.node(inode)?.is_dir() {
                    return err(Errno::EISDIR);
                }
                self.dir_mut(*parent).remove(name);
                self.change(inode).nlink -= 1;
                Ok(Outcome::Done)
            }
            Op::Rmdir { parent, name } => {
                let inode = *self.dir(*parent)?.get(name).ok_or(Outcome::Gone)?;
                if !self.dir(inode)?.is_empty() {
                    return err(Errno::ENOTEMPTY);
                }
                self.dir_mut(*parent).remove(name);
                self.change(*parent).nlink -= 1;
                self.change(inode).nlink = 0;
                Ok(Outcome::Done)
            }
            _ => unreachable!("an operation on links"),
        }
    }

    fn is_same_or_below(&self, directory: u64, ancestor: u64) -> bool {
        let mut at = directory;
        while at != ancestor && at != ROOT {
            match self.nodes.get(&at) {
                Some(node) => at = node.parent,
                None => return false,
            }
        }
        at == ancestor
    }

    fn rename(&mut self, from: (u64, &str), to: (u64, &str), flags: RenameFlags) -> Answer<()> {
        let moved = self.dir(from.0)?.get(from.1).copied();
        let replaced = self.dir(to.0)?.get(to.1).copied();
        let moved = moved.ok_or(Outcome::Gone)?;
        match (flags, replaced) {
            (RenameFlags::NoReplace, Some(_)) => return err(Errno::EEXIST),
            (RenameFlags::Exchange, None) => return Err(Outcome::Gone),
            _ => {}
        }
        let (is_dir, is_exchange) = (self.node(moved)?.is_dir(), flags == RenameFlags::Exchange);
        if from.0 != to.0 {
            if is_dir && self.is_same_or_below(to.0, moved) {
                return err(Errno::EINVAL);
            }
            if let Some(replaced) = replaced.filter(|replaced| self.nodes[replaced].is_dir())
                && self.is_same_or_below(from.0, replaced)
            {
                return err(if is_exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        if self.node(to.0)?.nlink == 0 && replaced.is_none() {
            return Err(Outcome::Gone);
        }
        let replaced_is_dir = replaced.map(|replaced| self.nodes[&replaced].is_dir());
        match replaced_is_dir {
            Some(theirs) if !is_exchange && theirs && !is_dir => return err(Errno::EISDIR),
            Some(theirs) if !is_exchange && !theirs && is_dir => return err(Errno::ENOTDIR),
            _ => {}
        }
        if let Some(replaced) = replaced.filter(|_| !is_exchange && is_dir)
            && !self.dir(replaced)?.is_empty()
        {
            return err(Errno::ENOTEMPTY);
        }
        self.dir_mut(from.0).remove(from.1);
        self.dir_mut(to.0).insert(to.1.to_owned(), moved);
        if is_dir {
            self.change(from.0).nlink -= 1;
            self.change(to.0).nlink += 1;
            self.change(moved).parent = to.0;
        }
        if let Some(replaced) = replaced {
            let is_dir = replaced_is_dir == Some(true);
            self.change(to.0).nlink -= u32::from(is_dir);
            if is_exchange {
                self.dir_mut(from.0).insert(from.1.to_owned(), replaced);
                self.change(from.0).nlink += u32::from(is_dir);
                self.change(replaced).parent = from.0;
            } else {
                let node = self.change(replaced);
                node.nlink = if is_dir { 0 } else { node.nlink - 1 };
            }
        }
        Ok(())
    }

    fn run_xattr(&mut self, op: &Op) -> Answer<Outcome> {
        let inode = op.inode().unwrap_or(ROOT);
        if matches!(self.node(inode)?.kind, Kind::Symlink(_) | Kind::Special) {
            return err(if matches!(op, Op::Getxattr { .. }) { Errno::ENODATA } else { Errno::EPERM });
        }
        match op {
            Op::Setxattr { name, value, .. } => {
                self.change(inode).xattrs.insert(name.clone(), value.clone());
                Ok(Outcome::Done)
            }
            Op::Getxattr { name, .. } => match self.node(inode)?.xattrs.get(name) {
                Some(value) => Ok(Outcome::Bytes(value.clone())),
                None => err(Errno::ENODATA),
            },
            Op::Removexattr { name, .. } => match self.change(inode).xattrs.remove(name) {
                Some(_) => Ok(Outcome::Done),
                None => err(Errno::ENODATA),
            },
            _ => unreachable!("an operation on extended attributes"),
        }
    }

    fn run_data(&mut self, op: &Op) -> Answer<Outcome> {
        let inode = op.inode().unwrap_or(ROOT);
        let content = self.file(inode)?;
        match op {
            Op::Read { offset, len, .. } => Ok(Outcome::Bytes(content.read(*offset, *len))),
            Op::Truncate { size, .. } => {
                if let Some(content) = self.content_mut(inode) {
                    content.set_size(*size);
                }
                if *size == 0 {
                    self.change(inode).note_emptied();
                }
                Ok(Outcome::Attr(self.view(inode)?))
            }
            Op::Write { offset, data, append, .. } => {
                let offset = if *append { content.size() } else { *offset };
                if *append && self.node(inode)?.is_uncertain {
                    self.change(inode).is_unknown = true;
                }
                if let Some(content) = self.content_mut(inode) {
                    content.write(offset, data);
                }
                Ok(Outcome::Done)
            }
            Op::Allocate { mode, offset, len, .. } => {
                let (zeroes, extends) = match mode {
                    AllocateMode::Allocate => (false, true),
                    AllocateMode::KeepSize => (false, false),
                    AllocateMode::PunchHole | AllocateMode::ZeroRangeKeepSize => (true, false),
                    AllocateMode::ZeroRange => (true, true),
                };
                if let Some(content) = self.content_mut(inode) {
                    if zeroes {
                        content.zero(*offset, *len);
                    }
                    if extends {
                        content.grow(offset + len);
                    }
                }
                Ok(Outcome::Done)
            }
            _ => unreachable!("an operation on content"),
        }
    }

    /// Forgets an actor: its handles are gone.
    pub fn forget_actor(&mut self, actor: Actor) {
        let opened: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.opens.contains_key(&actor))
            .map(|(at, _)| *at)
            .collect();
        for inode in opened {
            self.change(inode).opens.remove(&actor);
        }
    }
}

impl Op {
    /// The inode whose content or attributes it is about.
    pub fn inode(&self) -> Option<u64> {
        match self {
            Op::Getattr { inode }
            | Op::Readdir { inode }
            | Op::Readlink { inode }
            | Op::Open { inode, .. }
            | Op::Close { inode }
            | Op::Chmod { inode, .. }
            | Op::Split { inode, .. }
            | Op::Truncate { inode, .. }
            | Op::Setxattr { inode, .. }
            | Op::Getxattr { inode, .. }
            | Op::Removexattr { inode, .. }
            | Op::Write { inode, .. }
            | Op::Read { inode, .. }
            | Op::Allocate { inode, .. }
            | Op::Link { inode, .. }
            | Op::Fsync { inode } => Some(*inode),
            _ => None,
        }
    }

    /// Whether it changes the content through storage, under a lease.
    pub fn is_write(&self) -> bool {
        matches!(self, Op::Write { .. } | Op::Allocate { .. })
    }

    /// Whether it is a write that others may go on beside.
    pub fn is_beside(&self) -> bool {
        matches!(self, Op::Write { is_beside: true, .. })
    }

    /// A short form for the trace.
    pub fn brief(&self) -> String {
        match self {
            Op::Write { inode, offset, data, append, is_beside } => {
                let (len, how) = (data.len(), if *append { " append" } else { "" });
                let beside = if *is_beside { " beside others" } else { "" };
                format!("Write {inode:x} at {offset} {len} bytes{how}{beside}")
            }
            other => format!("{other:?}"),
        }
    }
}
