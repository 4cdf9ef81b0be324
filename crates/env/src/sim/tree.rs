//! The names of a simulated disk: what lookups see, what a power cut leaves, and the changes between the two.

use super::entropy::split_mix;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    /// The file with this number.
    File(u64),
}

/// One directory change; all of it happens or none.
#[derive(Clone, Debug)]
enum Change {
    Create { path: String, node: Node },
    Remove { path: String, node: Node },
    Rename { from: String, to: String, node: Node },
}

/// The directory a path is in; `""` is the root.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl Change {
    fn node(&self) -> Node {
        match self {
            Change::Create { node, .. } | Change::Remove { node, .. } | Change::Rename { node, .. } => *node,
        }
    }

    fn is_in(&self, dir: &str) -> bool {
        match self {
            Change::Create { path, .. } | Change::Remove { path, .. } => parent(path) == dir,
            Change::Rename { from, to, .. } => parent(from) == dir || parent(to) == dir,
        }
    }

    fn apply(self, names: &mut BTreeMap<String, Node>) {
        let (removed, added) = match self {
            Change::Create { path, node } => (None, Some((path, node))),
            Change::Remove { path, node } => (Some((path, node)), None),
            Change::Rename { from, to, node } => (Some((from, node)), Some((to, node))),
        };
        if let Some((path, node)) = removed
            && names.get(&path) == Some(&node)
        {
            names.remove(&path);
        }
        if let Some((path, node)) = added {
            let mut dir = parent(&path);
            while !dir.is_empty() {
                names.insert(dir.to_owned(), Node::Dir);
                dir = parent(dir);
            }
            names.insert(path, node);
        }
    }
}

/// All names of a disk.
#[derive(Debug, Default)]
pub(super) struct Tree {
    live: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    /// Changes since the last `sync_dir` of their directory, in order.
    pending: Vec<Change>,
}

fn not_found(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no such file or directory: {path}"))
}

impl Tree {
    pub(super) fn get(&self, path: &str) -> Option<Node> {
        if path.is_empty() { Some(Node::Dir) } else { self.live.get(path).copied() }
    }

    fn require_dir(&self, path: &str) -> io::Result<()> {
        match self.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            None => Err(not_found(path)),
        }
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.live);
        self.pending.push(change);
    }

    pub(super) fn create_file(&mut self, path: &str, file: u64) -> io::Result<()> {
        self.require_dir(parent(path))?;
        self.change(Change::Create { path: path.to_owned(), node: Node::File(file) });
        Ok(())
    }

    pub(super) fn create_dir(&mut self, path: &str) -> io::Result<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for dir in ends.map(|end| &path[..end]) {
            match self.get(dir) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(io::Error::from_raw_os_error(libc::EEXIST)),
                None => self.change(Change::Create { path: dir.to_owned(), node: Node::Dir }),
            }
        }
        Ok(())
    }

    pub(super) fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.require_dir(dir)?;
        let names = self.live.keys().filter(|path| !path.is_empty() && parent(path) == dir);
        Ok(names.map(|path| path.rsplit('/').next().unwrap_or(path).to_owned()).collect())
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<()> {
        match self.get(path) {
            Some(node @ Node::File(_)) => self.change(Change::Remove { path: path.to_owned(), node }),
            Some(Node::Dir) => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            None => return Err(not_found(path)),
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let node = self.get(from).ok_or_else(|| not_found(from))?;
        self.require_dir(parent(to))?;
        if node == Node::Dir || self.get(to) == Some(Node::Dir) {
            let what = "the simulated disk renames files only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        if from != to {
            self.change(Change::Rename { from: from.to_owned(), to: to.to_owned(), node });
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &str) -> io::Result<()> {
        self.require_dir(dir)?;
        let (synced, rest) = std::mem::take(&mut self.pending).into_iter().partition(|c| c.is_in(dir));
        self.pending = rest;
        for change in synced {
            change.apply(&mut self.durable);
        }
        Ok(())
    }

    /// Makes all of them durable.
    pub(super) fn sync_all(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.durable);
        }
    }

    /// A power cut: every pending change is kept or lost. One that is kept brings the earlier changes of its file along, as
    /// the journals of real file systems do: a file never ends up under two names because of a lost rename.
    pub(super) fn crash(&mut self, random: &mut u64) {
        let pending = std::mem::take(&mut self.pending);
        let mut kept: Vec<bool> = pending.iter().map(|_| split_mix(random).is_multiple_of(2)).collect();
        let mut kept_files = BTreeSet::new();
        for (change, kept) in pending.iter().zip(&mut kept).rev() {
            if let Node::File(file) = change.node() {
                *kept |= kept_files.contains(&file);
                if *kept {
                    kept_files.insert(file);
                }
            }
        }
        for (change, _) in pending.into_iter().zip(kept).filter(|(_, kept)| *kept) {
            change.apply(&mut self.durable);
        }
        self.live = self.durable.clone();
    }

    /// Files that a lookup finds.
    pub(super) fn files_live(&self) -> BTreeSet<u64> {
        self.live
            .values()
            .filter_map(|node| if let Node::File(file) = node { Some(*file) } else { None })
            .collect()
    }

    /// Files that a lookup finds, or may find after a power cut.
    pub(super) fn files_reachable(&self) -> BTreeSet<u64> {
        let pending = self.pending.iter().map(Change::node);
        let nodes = self.live.values().chain(self.durable.values()).copied().chain(pending);
        nodes.filter_map(|node| if let Node::File(file) = node { Some(file) } else { None }).collect()
    }
}
