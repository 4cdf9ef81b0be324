//! Why something was not measured.

use std::io;
use std::path::{Path, PathBuf};

/// See the module. Every message names the place and, where there is one, the remedy. It has the answer of a call in it, which is thus no
/// `source`: whoever prints a chain of errors would print it twice.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A call failed.
    #[error("{what} {}: {answer}", path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The answer.
        answer: io::Error,
    },
    /// A read or write moved less than it was asked to.
    #[error("{}: only {moved} of {wanted} bytes at {offset}", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Where in it, bytes.
        offset: u64,
        /// Bytes that were moved.
        moved: u64,
        /// Bytes that should have been.
        wanted: u64,
    },
    /// The kernel refuses threads.
    #[error(
        "cannot start {threads} threads: {answer}; measure with fewer (--threads), or let this user have more (ulimit -u, TasksMax= of its service)"
    )]
    Threads {
        /// How many were to run on this machine.
        threads: usize,
        /// The answer.
        answer: io::Error,
    },
    /// What is read is not what was written: no figure is told of such a file system.
    #[error("{}: wrong content at {offset}: the file system does not return what was written", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where in it, bytes.
        offset: u64,
    },
    /// The place holds something already.
    #[error("{} is not empty ({}): name an empty directory, or say --beside-others to measure next to what is there", path.display(), entry.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of its entries.
        entry: PathBuf,
    },
    /// The data does not fit.
    #[error(
        "{}: {wanted_bytes} bytes are needed, with 5 % to spare, and {free_bytes} are free: ask for less data or fewer threads",
        path.display()
    )]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// What the plan writes.
        wanted_bytes: u64,
        /// What the file system has.
        free_bytes: u64,
    },
    /// The file system has no inodes for so many files.
    #[error(
        "{}: {wanted} files are to be made, with 5 % to spare, and {free} are free (inodes): ask for fewer (--files)",
        path.display()
    )]
    NoFiles {
        /// The directory.
        path: PathBuf,
        /// What the plan makes.
        wanted: u64,
        /// What the file system has.
        free: u64,
    },
    /// The file system does not do direct I/O.
    #[error("{}: this file system does not do direct I/O (O_DIRECT): {answer}; measure without --direct", path.display())]
    NoDirect {
        /// The file.
        path: PathBuf,
        /// The answer to the open.
        answer: io::Error,
    },
    /// Agents look at different directories.
    #[error(
        "{} does not show here what the first agent made there: name a directory of one file system that is mounted on every machine",
        path.display()
    )]
    NotShared {
        /// The directory.
        path: PathBuf,
    },
    /// An agent, or the coordinator, cannot do its part.
    #[error("{name}: {text}")]
    Elsewhere {
        /// Which.
        name: String,
        /// What it says.
        text: String,
    },
    /// An agent, or the coordinator, is gone.
    #[error("{name} was lost while {during}: {text}")]
    Lost {
        /// Which.
        name: String,
        /// What was going on.
        during: String,
        /// By what it was noticed.
        text: String,
    },
    /// Both have to be the same program.
    #[error("this is ashlar {here}, and {name} is ashlar {there}: start the same version on every machine")]
    Version {
        /// The version here.
        here: String,
        /// Who is of another one.
        name: String,
        /// Which.
        there: String,
    },
    /// It is not done, and why.
    #[error("{0}")]
    Refused(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Plan(String),
    /// A journal, a report or a program is not what is needed: which one, why, and the way out.
    #[error("{0}")]
    Unfit(String),
    /// Another thread failed, or somebody asked to stop.
    #[error("stopped")]
    Stopped,
    /// A thread ended without a result.
    #[error("a thread of the measurement panicked")]
    Panicked,
}

impl BenchError {
    /// What to give to `map_err` for a call on `path`.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BenchError {
        let path = path.to_owned();
        move |answer| BenchError::Io { what, path, answer }
    }

    /// The same for what rustix answers.
    pub(crate) fn errno(what: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> BenchError {
        let told = BenchError::io(what, path);
        move |errno| told(errno.into())
    }
}
