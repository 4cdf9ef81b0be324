//! What the generator believes to exist, learned from the steps that succeeded.
//!
//! It may be wrong (symbolic links on the way are not followed); it only has to be right often enough that most steps hit
//! something.

use std::collections::BTreeMap;

use super::op::Op;
use super::path::BytePath;
use crate::rng::Rng;

/// The believed tree: path to "is a directory".
#[derive(Debug, Default)]
pub struct Names {
    entries: BTreeMap<Vec<u8>, bool>,
}

/// LIMIT: paths believed in; steps beyond it are not recorded.
const ENTRIES_MAX: usize = 200;

impl Names {
    /// A random path that is believed to be a directory, or anything else.
    pub fn pick(&self, rng: &mut Rng, directory: bool) -> Option<BytePath> {
        let count = self.entries.values().filter(|is| **is == directory).count();
        let at = rng.index(count);
        let found = self.entries.iter().filter(|(_, is)| **is == directory).nth(at)?;
        Some(BytePath(found.0.clone()))
    }

    /// Records the effect of a step that succeeded.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { path, flags, .. } if flags & libc::O_CREAT != 0 => self.add(&path.0, false),
            Op::LinkFd { path, .. } | Op::Symlink { path, .. } | Op::Mknod { path, .. } => {
                self.add(&path.0, false)
            }
            Op::Link { from, to, .. } if self.entries.get(&from.0) == Some(&false) => self.add(&to.0, false),
            Op::Mkdir { path, .. } => self.add(&path.0, true),
            Op::Unlink { path } if self.entries.get(&path.0) == Some(&false) => {
                self.entries.remove(&path.0);
            }
            Op::Rmdir { path } if self.entries.get(&path.0) == Some(&true) && !self.has_children(&path.0) => {
                self.entries.remove(&path.0);
            }
            Op::Rename { from, to, flags } => self.rename(&from.0, &to.0, *flags),
            _ => {}
        }
    }

    fn add(&mut self, path: &[u8], directory: bool) {
        let plain = !path.is_empty() && !path.starts_with(b"/") && !path.ends_with(b"/");
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if !plain || last == b"." || last == b".." || last.len() > 255 || self.entries.len() >= ENTRIES_MAX {
            return;
        }
        if self.parent_exists(path) && !self.entries.contains_key(path) {
            self.entries.insert(path.to_vec(), directory);
        }
    }

    fn parent_exists(&self, path: &[u8]) -> bool {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => self.entries.get(&path[..at]) == Some(&true),
            None => true,
        }
    }

    fn has_children(&self, path: &[u8]) -> bool {
        let prefix = [path, b"/"].concat();
        self.entries.range(prefix.clone()..).next().is_some_and(|(name, _)| name.starts_with(&prefix))
    }

    fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let prefix = [path, b"/"].concat();
        let below = |name: &Vec<u8>| name.as_slice() == path || name.starts_with(&prefix);
        let names: Vec<Vec<u8>> = self.entries.keys().filter(|name| below(name)).cloned().collect();
        names
            .into_iter()
            .filter_map(|name| self.entries.remove(&name).map(|is| (name[path.len()..].to_vec(), is)))
            .collect()
    }

    fn give(&mut self, path: &[u8], taken: Vec<(Vec<u8>, bool)>) {
        for (rest, is) in taken {
            self.entries.insert([path, rest.as_slice()].concat(), is);
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8], flags: u32) {
        let inside = |inner: &[u8], outer: &[u8]| inner.starts_with(&[outer, b"/"].concat());
        let Some(source) = self.entries.get(from).copied() else { return };
        if from == to || inside(to, from) || inside(from, to) || !self.parent_exists(to) {
            return;
        }
        let target = self.entries.get(to).copied();
        match flags {
            libc::RENAME_EXCHANGE if target.is_some() => {
                let (first, second) = (self.take(from), self.take(to));
                self.give(to, first);
                self.give(from, second);
            }
            libc::RENAME_NOREPLACE if target.is_some() => {}
            0 | libc::RENAME_NOREPLACE
                if target.is_none_or(|target| target == source && !self.has_children(to)) =>
            {
                let taken = self.take(from);
                self.give(to, taken);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> BytePath {
        BytePath(text.as_bytes().to_vec())
    }

    #[test]
    fn a_moved_directory_takes_its_children_along() {
        let mut names = Names::default();
        names.apply(&Op::Mkdir { path: path("d0"), mode: 0 });
        names.apply(&Op::Mkdir { path: path("d0/d1"), mode: 0 });
        names.apply(&Op::Mknod { path: path("d0/d1/f"), mode: 0, device: 0 });
        names.apply(&Op::Mknod { path: path("missing/f"), mode: 0, device: 0 });
        names.apply(&Op::Rename { from: path("d0"), to: path("d0/d1/x"), flags: 0 });
        names.apply(&Op::Rename { from: path("d0"), to: path("d2"), flags: 0 });
        names.apply(&Op::Rmdir { path: path("d2") });
        let known: Vec<&[u8]> = names.entries.keys().map(Vec::as_slice).collect();
        assert_eq!(known, [b"d2".as_slice(), b"d2/d1", b"d2/d1/f"]);
        names.apply(&Op::Unlink { path: path("d2/d1/f") });
        names.apply(&Op::Rmdir { path: path("d2/d1") });
        assert_eq!(names.entries.len(), 1);
    }
}
