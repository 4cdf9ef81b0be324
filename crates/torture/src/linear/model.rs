//! A directory tree of few names, and what each step of a call does to it.

use std::collections::BTreeMap;

use super::{Answer, Attributes, Call, Path, Verb};
use crate::sys::Errno;

/// A file or directory, by the call that made it; 0 is the folder of the history.
pub type Node = u16;

/// The folder of the history.
const ROOT: Node = 0;

/// Permissions that files and directories are made with: none of them are taken away by any mask in use.
pub const MODE_OF_FILES: u32 = 0o600;
/// See [`MODE_OF_FILES`].
pub const MODE_OF_DIRECTORIES: u32 = 0o700;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    node: Node,
    is_directory: bool,
}

/// The tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    entries: BTreeMap<(Node, u8), Entry>,
    /// Of whatever has a name.
    attributes: BTreeMap<Node, Attributes>,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    steps: u8,
    parents: [Node; 2],
    source: Option<Entry>,
}

impl Progress {
    /// What the first path was found to name: the node, and whether it is a directory.
    #[must_use]
    pub fn found(&self) -> Option<(Node, bool)> {
        self.source.map(|source| (source.node, source.is_directory))
    }
}

/// What one step leads to.
#[derive(Clone, Debug)]
pub enum Next {
    /// There is more to do.
    More(Progress),
    /// There is more to do, and the tree is another one.
    Touched(Model, Progress),
    /// The call is over: the tree then, and the answer.
    Over(Model, Answer),
}

/// The steps of a call.
#[derive(Clone, Copy)]
enum Step {
    /// Follow the directory of the first or second path.
    Follow(usize),
    /// Look at what the first path names.
    Source,
    /// Look at what the second path names.
    Target,
    /// Change the time of what the first path names.
    Touch,
    /// Do it.
    Act,
}

/// As Linux does them: `rename` follows both paths before it looks at the names, `link` looks at the first before it follows the second. File systems do not change
/// size and time at one moment.
fn steps(verb: Verb) -> &'static [Step] {
    match verb {
        Verb::Rename(..) => &[Step::Follow(0), Step::Follow(1), Step::Source, Step::Target, Step::Act],
        Verb::Link(..) => &[Step::Follow(0), Step::Source, Step::Follow(1), Step::Target, Step::Act],
        Verb::Stat(_) | Verb::Chmod(..) | Verb::Chown(..) | Verb::Utimes(..) => {
            &[Step::Follow(0), Step::Source, Step::Act]
        }
        Verb::Truncate(..) => &[Step::Follow(0), Step::Source, Step::Touch, Step::Act],
        Verb::Create(_) | Verb::Mkdir(_) | Verb::Unlink(_) | Verb::Rmdir(_) => &[Step::Follow(0), Step::Act],
    }
}

fn paths(verb: Verb) -> [Path; 2] {
    match verb {
        Verb::Create(path)
        | Verb::Mkdir(path)
        | Verb::Unlink(path)
        | Verb::Rmdir(path)
        | Verb::Stat(path)
        | Verb::Chmod(path, _)
        | Verb::Chown(path, _)
        | Verb::Utimes(path, _)
        | Verb::Truncate(path, _) => [path, path],
        Verb::Rename(from, to) | Verb::Link(from, to) => [from, to],
    }
}

fn failed(errno: i32) -> Answer {
    Answer::Failed(Errno(errno))
}

impl Model {
    fn at(&self, parent: Node, name: u8) -> Option<Entry> {
        self.entries.get(&(parent, name)).copied()
    }

    fn has_name(&self, node: Node) -> bool {
        node == ROOT || self.entries.values().any(|entry| entry.node == node)
    }

    fn is_empty(&self, node: Node) -> bool {
        !self.entries.keys().any(|(parent, _)| *parent == node)
    }

    /// What the next step of `call` may lead to; `node` is what it makes, if it makes something.
    #[must_use]
    pub fn step(&self, call: &Call, node: Node, progress: Progress) -> Vec<Next> {
        let mut after = progress;
        after.steps += 1;
        let over = |answer: Answer| vec![Next::Over(self.clone(), answer)];
        let paths = paths(call.verb);
        let Some(step) = steps(call.verb).get(usize::from(progress.steps)) else { return Vec::new() };
        match step {
            Step::Follow(which) => {
                let Some(dir) = paths[*which].dir else { return self.step(call, node, after) };
                match self.at(ROOT, dir) {
                    None => return over(failed(libc::ENOENT)),
                    Some(entry) if !entry.is_directory => return over(failed(libc::ENOTDIR)),
                    Some(entry) => after.parents[*which] = entry.node,
                }
            }
            Step::Source => match self.at(progress.parents[0], paths[0].name) {
                None => return over(failed(libc::ENOENT)),
                entry => after.source = entry,
            },
            Step::Target => {
                let target = self.at(progress.parents[1], paths[1].name);
                if let Some(answer) = refused_for_target(call.verb, progress.source, target) {
                    return over(answer);
                }
            }
            Step::Touch => {
                let mut touched = self.clone();
                let source = progress.source.filter(|source| !source.is_directory);
                if let Some(found) = source.and_then(|source| touched.attributes.get_mut(&source.node)) {
                    found.mtime = None;
                }
                return vec![Next::Touched(touched, after)];
            }
            Step::Act => match call.verb {
                Verb::Stat(_) | Verb::Chmod(..) | Verb::Chown(..) | Verb::Utimes(..) | Verb::Truncate(..) => {
                    return self.act_on_found(call.verb, progress.source);
                }
                _ => return self.act(call, node, progress),
            },
        }
        vec![Next::More(after)]
    }

    /// The last step: done, or refused for any of the reasons there are.
    fn act(&self, call: &Call, node: Node, progress: Progress) -> Vec<Next> {
        let [from, to] = paths(call.verb);
        let [parent, to_parent] = progress.parents;
        let found = self.at(parent, from.name);
        let refusals = match call.verb {
            Verb::Create(_) | Verb::Mkdir(_) => {
                vec![(!self.has_name(parent), libc::ENOENT), (found.is_some(), libc::EEXIST)]
            }
            Verb::Unlink(_) => vec![
                (found.is_none(), libc::ENOENT),
                (found.is_some_and(|found| found.is_directory), libc::EISDIR),
            ],
            Verb::Rmdir(_) => vec![
                (found.is_none(), libc::ENOENT),
                (found.is_some_and(|found| !found.is_directory), libc::ENOTDIR),
                (found.is_some_and(|found| !self.is_empty(found.node)), libc::ENOTEMPTY),
            ],
            Verb::Rename(..) => self.refusals_of_rename(found, self.at(to_parent, to.name), to_parent),
            Verb::Link(..) => vec![
                (!self.has_name(to_parent), libc::ENOENT),
                (progress.source.is_none_or(|source| !self.has_name(source.node)), libc::ENOENT),
                (progress.source.is_some_and(|source| source.is_directory), libc::EPERM),
                (self.at(to_parent, to.name).is_some(), libc::EEXIST),
            ],
            // These act on what was found.
            Verb::Stat(_) | Verb::Chmod(..) | Verb::Chown(..) | Verb::Utimes(..) | Verb::Truncate(..) => {
                Vec::new()
            }
        };
        let reasons: Vec<Next> = refusals
            .into_iter()
            .filter(|(applies, _)| *applies)
            .map(|(_, errno)| Next::Over(self.clone(), failed(errno)))
            .collect();
        if !reasons.is_empty() {
            return reasons;
        }
        let mut after = self.clone();
        let answer = after.change(call, node, progress);
        vec![Next::Over(after, answer)]
    }

    /// The last step of a call that looks at what it has found, or changes that. If it has lost its last name meanwhile, it is there no more for file systems of several machines,
    /// and still is on one machine.
    fn act_on_found(&self, verb: Verb, found: Option<Entry>) -> Vec<Next> {
        let refused = |errno: i32| Next::Over(self.clone(), failed(errno));
        let Some(found) = found else { return vec![refused(libc::ENOENT)] };
        if found.is_directory && matches!(verb, Verb::Truncate(..)) {
            return vec![refused(libc::EISDIR)];
        }
        let mut after = self.clone();
        let Some(attributes) = after.attributes.get_mut(&found.node) else {
            return vec![Next::Over(after, Answer::Done), refused(libc::ENOENT)];
        };
        match verb {
            Verb::Chmod(_, mode) => attributes.mode = mode,
            Verb::Chown(_, owner) => attributes.owner = owner,
            // Changes of what is in a directory change its time, whenever.
            Verb::Utimes(_, time) if !found.is_directory => attributes.mtime = Some(time),
            Verb::Truncate(_, size) => attributes.size = size,
            _ => {}
        }
        vec![Next::Over(after, Answer::Done)]
    }

    fn refusals_of_rename(
        &self,
        found: Option<Entry>,
        target: Option<Entry>,
        to_parent: Node,
    ) -> Vec<(bool, i32)> {
        let (Some(found), target) = (found, target) else { return vec![(true, libc::ENOENT)] };
        let other = target.filter(|target| target.node != found.node);
        let hits = |is_directory: bool| other.is_some_and(|other| other.is_directory == is_directory);
        vec![
            (!self.has_name(to_parent), libc::ENOENT),
            (found.is_directory && hits(false), libc::ENOTDIR),
            (!found.is_directory && hits(true), libc::EISDIR),
            (other.is_some_and(|other| !self.is_empty(other.node)), libc::ENOTEMPTY),
        ]
    }

    /// Makes a change that nothing forbids.
    fn change(&mut self, call: &Call, node: Node, progress: Progress) -> Answer {
        let [from, to] = paths(call.verb);
        let [parent, to_parent] = progress.parents;
        match call.verb {
            Verb::Create(_) => {
                self.make((parent, from.name), Entry { node, is_directory: false });
                // Which number it got the answer alone tells.
                match call.answer {
                    Answer::File(ino) => return Answer::File(ino),
                    _ => return Answer::Done,
                }
            }
            Verb::Mkdir(_) => {
                self.make((parent, from.name), Entry { node, is_directory: true });
            }
            Verb::Unlink(_) | Verb::Rmdir(_) => {
                self.entries.remove(&(parent, from.name));
            }
            Verb::Stat(_) | Verb::Chmod(..) | Verb::Chown(..) | Verb::Utimes(..) | Verb::Truncate(..) => {}
            Verb::Rename(..) => {
                let found = self.at(parent, from.name);
                let target = self.at(to_parent, to.name);
                if let Some(found) = found
                    && target.map(|target| target.node) != Some(found.node)
                {
                    self.entries.remove(&(parent, from.name));
                    self.entries.insert((to_parent, to.name), found);
                }
            }
            Verb::Link(..) => {
                if let Some(source) = progress.source {
                    self.entries.insert((to_parent, to.name), source);
                }
            }
        }
        let entries = &self.entries;
        self.attributes.retain(|node, _| entries.values().any(|entry| entry.node == *node));
        Answer::Done
    }

    fn make(&mut self, name: (Node, u8), entry: Entry) {
        let mode = if entry.is_directory { MODE_OF_DIRECTORIES } else { MODE_OF_FILES };
        self.entries.insert(name, entry);
        self.attributes.insert(entry.node, Attributes { mode, owner: 0, size: 0, mtime: None });
    }

    /// Whether `stat` may show these of a node. What has no name may show any.
    #[must_use]
    pub fn may_show(&self, node: Node, seen: &Attributes, is_directory: bool) -> bool {
        let Some(known) = self.attributes.get(&node) else { return true };
        let is_of_both = (seen.mode, seen.owner) == (known.mode, known.owner);
        // Each file system has its own idea of how large a directory is.
        let is_of_file = seen.size == known.size && (known.mtime.is_none() || seen.mtime == known.mtime);
        is_of_both && (is_directory || is_of_file)
    }
}

/// What the kernel answers by itself when it has looked at both names.
fn refused_for_target(verb: Verb, source: Option<Entry>, target: Option<Entry>) -> Option<Answer> {
    let (source, target) = (source?, target?);
    match verb {
        Verb::Link(..) => Some(failed(libc::EEXIST)),
        _ if source.node == target.node => Some(Answer::Done),
        _ if source.is_directory && !target.is_directory => Some(failed(libc::ENOTDIR)),
        _ if !source.is_directory && target.is_directory => Some(failed(libc::EISDIR)),
        _ => None,
    }
}
