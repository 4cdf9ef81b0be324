//! Linearizability of recorded histories of names: is there an order of all calls in which each had its effect at one moment between its
//! begin and its end, and in which every answer is right?
//!
//! [`record`] has clients make calls on few names through their mounts and notes when each began and ended and what it answered. [`model`] is a
//! small model of a directory tree. [`check`] searches for an order, as Wing and Gong do, and remembers what it has tried, as Lowe and
//! the checker porcupine do.
//!
//! POSIX promises no moment for a call as a whole: a path is followed name by name, and the two names of a rename are looked at one after the
//! other before the rename itself. So a call is a few steps, and each of them has its moment, in their order. The last step of a call that changes names is the change.
//! `stat`, `chmod`, `chown`, `utimensat` and `truncate` find a file by its name, and look at it or change it afterwards, whatever its name is by then.
//!
//! Times that follow from other changes have no promised moment: nothing is said of the modification time of a directory, nor of that of a file that was truncated
//! after it had been set.

pub mod check;
pub mod model;
pub mod record;

use std::fmt;

use crate::sys::Errno;

/// A name directly in the folder of the history, or in a directory there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The directory, if there is one.
    pub dir: Option<u8>,
    /// The name.
    pub name: u8,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(dir) = self.dir {
            write!(f, "{}/", char::from(dir))?;
        }
        write!(f, "{}", char::from(self.name))
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `open` with `O_CREAT` and `O_EXCL`.
    Create(Path),
    /// `mkdir`.
    Mkdir(Path),
    /// `unlink`.
    Unlink(Path),
    /// `rmdir`.
    Rmdir(Path),
    /// `rename`.
    Rename(Path, Path),
    /// `link`.
    Link(Path, Path),
    /// `stat`: what the name is.
    Stat(Path),
    /// `chmod`.
    Chmod(Path, u32),
    /// `chown`; 0 is whoever runs this.
    Chown(Path, u32),
    /// `utimensat`: the time of the last change, s.
    Utimes(Path, i64),
    /// `truncate`, to so many bytes.
    Truncate(Path, i64),
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verb::Create(path) => write!(f, "create {path}"),
            Verb::Mkdir(path) => write!(f, "mkdir {path}"),
            Verb::Unlink(path) => write!(f, "unlink {path}"),
            Verb::Rmdir(path) => write!(f, "rmdir {path}"),
            Verb::Rename(from, to) => write!(f, "rename {from} {to}"),
            Verb::Link(from, to) => write!(f, "link {from} {to}"),
            Verb::Stat(path) => write!(f, "stat {path}"),
            Verb::Chmod(path, mode) => write!(f, "chmod {path} {mode:o}"),
            Verb::Chown(path, owner) => write!(f, "chown {path} {owner}"),
            Verb::Utimes(path, time) => write!(f, "utimes {path} {time}"),
            Verb::Truncate(path, size) => write!(f, "truncate {path} {size}"),
        }
    }
}

/// Attributes, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Permissions.
    pub mode: u32,
    /// The owner; 0 is whoever runs this.
    pub owner: u32,
    /// Bytes.
    pub size: i64,
    /// When it was changed, s; `None`: nobody can tell.
    pub mtime: Option<i64>,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// A file, by its inode number: made, or found.
    File(u64),
    /// A directory was found.
    Directory,
    /// A file was found by `stat`, and its attributes.
    FileWith(u64, Attributes),
    /// A directory was found by `stat`, and its attributes.
    DirectoryWith(Attributes),
    /// Refused.
    Failed(Errno),
    /// Nobody knows whether it was done: the call failed for a reason that says nothing of it.
    Unknown(Errno),
}

/// One call of a history.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Who made it.
    pub client: usize,
    /// What was asked for.
    pub verb: Verb,
    /// When it began, ns after the history did.
    pub begin: u64,
    /// When it ended, likewise.
    pub end: u64,
    /// What came back.
    pub answer: Answer,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |at: u64| at as f64 / 1000.0;
        let (begin, end) = (micros(self.begin), micros(self.end));
        let verb = self.verb.to_string();
        write!(f, "{begin:10.1} - {end:10.1} us  client {}  {verb:16} {:?}", self.client, self.answer)
    }
}
