//! Clients that make calls on few names, and write down what they did.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::model::{MODE_OF_DIRECTORIES, MODE_OF_FILES};
use super::{Answer, Attributes, Call, Path, Verb};
use crate::rng::Rng;
use crate::sys::attr::{Follow, Stat, TimeArgument};
use crate::sys::data::{self, CWD};
use crate::sys::{Errno, SysResult, attr, cred, name};

/// Errors that do not tell whether the call was done: the server was not reached in time; a name had changed under the kernel, which
/// begins again by itself once and then says so.
const UNKNOWN: [i32; 2] = [libc::ETIMEDOUT, libc::ESTALE];

/// Where files are, and where they can be put.
const FILES: [Path; 5] = [
    Path { dir: None, name: b'a' },
    Path { dir: None, name: b'b' },
    Path { dir: Some(b'd'), name: b'a' },
    Path { dir: Some(b'e'), name: b'a' },
    Path { dir: Some(b'd'), name: b'b' },
];

/// Names that are directories at times.
const DIRECTORIES: [Path; 2] = [Path { dir: None, name: b'd' }, Path { dir: None, name: b'e' }];

/// All names directly in the folder of a history.
pub const NAMES_OF_FOLDER: [&str; 4] = ["a", "b", "d", "e"];

/// Sizes of truncated files: within what some file systems keep beside the attributes, and beyond.
const SIZES: [i64; 5] = [0, 1, 60, 5000, 300_000];

/// The caller's identity, which is written down as owner 0.
fn own_id() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// A change of attributes, of a file or directory. Whoever runs this may do anything with either afterwards.
fn draw_change(rng: &mut Rng, path: Path) -> Verb {
    match rng.below(4) {
        0 => Verb::Chmod(path, MODE_OF_DIRECTORIES | rng.below(8) as u32),
        1 if cred::can_switch() => Verb::Chown(path, rng.below(4) as u32),
        2 => Verb::Utimes(path, 1 + rng.below(8) as i64),
        _ => Verb::Truncate(path, *rng.pick(&SIZES)),
    }
}

/// Draws a call. Directories stay in the folder of the history, so that none is in another.
fn draw(rng: &mut Rng) -> Verb {
    let file = *rng.pick(&FILES);
    let directory = *rng.pick(&DIRECTORIES);
    match rng.below(140) {
        0..18 => Verb::Create(file),
        18..30 => Verb::Mkdir(directory),
        30..44 => Verb::Unlink(file),
        44..46 => Verb::Unlink(directory),
        46..54 => Verb::Rmdir(directory),
        54..66 => Verb::Rename(file, *rng.pick(&FILES)),
        66..69 if file.dir.is_none() => Verb::Rename(file, directory),
        69..75 => Verb::Rename(directory, *rng.pick(&DIRECTORIES)),
        75..84 => Verb::Link(file, *rng.pick(&FILES)),
        84..86 => Verb::Link(directory, file),
        86..95 => Verb::Stat(file),
        95..100 => Verb::Stat(directory),
        100..116 => draw_change(rng, file),
        116..122 => draw_change(rng, directory),
        122..135 => Verb::Stat(file),
        _ => Verb::Stat(directory),
    }
}

fn seen(stat: &Stat) -> Answer {
    let owner = if stat.uid == own_id() { 0 } else { stat.uid };
    let attributes =
        Attributes { mode: stat.mode & 0o7777, owner, size: stat.size, mtime: Some(stat.mtime.0) };
    if stat.kind() == libc::S_IFDIR {
        Answer::DirectoryWith(attributes)
    } else {
        Answer::FileWith(stat.ino, attributes)
    }
}

fn carry_out(root: &std::path::Path, verb: Verb) -> Answer {
    let path = |path: Path| root.join(path.to_string()).as_os_str().as_bytes().to_vec();
    let done = |result: SysResult<()>| result.map(|()| Answer::Done);
    let result = match verb {
        Verb::Create(file) => {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDONLY;
            data::openat(CWD, &path(file), flags, MODE_OF_FILES)
                .and_then(|file| attr::fstat(file.as_fd()))
                .map(|stat| Answer::File(stat.ino))
        }
        Verb::Mkdir(directory) => done(name::mkdirat(CWD, &path(directory), MODE_OF_DIRECTORIES)),
        Verb::Unlink(file) => done(name::unlinkat(CWD, &path(file), 0)),
        Verb::Rmdir(directory) => done(name::unlinkat(CWD, &path(directory), libc::AT_REMOVEDIR)),
        Verb::Rename(from, to) => done(name::renameat2(CWD, &path(from), &path(to), 0)),
        Verb::Link(from, to) => done(name::linkat(CWD, &path(from), &path(to), 0)),
        Verb::Stat(file) => {
            attr::fstatat(CWD, &path(file), libc::AT_SYMLINK_NOFOLLOW).map(|stat| seen(&stat))
        }
        Verb::Chmod(file, mode) => done(attr::fchmodat(CWD, &path(file), mode)),
        Verb::Chown(file, owner) => {
            let owner = if owner == 0 { own_id() } else { owner };
            done(attr::fchownat(CWD, &path(file), owner, u32::MAX, libc::AT_SYMLINK_NOFOLLOW))
        }
        Verb::Utimes(file, time) => {
            let time = TimeArgument::At(time, 0);
            done(attr::utimensat(CWD, &path(file), time, time, libc::AT_SYMLINK_NOFOLLOW))
        }
        Verb::Truncate(file, size) => done(data::truncate(&path(file), size)),
    };
    match result {
        Ok(answer) => answer,
        Err(Errno(errno)) if UNKNOWN.contains(&errno) => Answer::Unknown(Errno(errno)),
        Err(errno) => Answer::Failed(errno),
    }
}

/// An extended attribute that somebody sets on directories while clients are at work, for what a file system does about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disturbance {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl std::str::FromStr for Disturbance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once('=').ok_or("an extended attribute is NAME=VALUE, as user.mark=yes")?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

/// Answers to setting it that a directory gives which somebody has removed, replaced by a file or moved meanwhile.
const GONE: [i32; 3] = [libc::ENOENT, libc::ENOTDIR, libc::ESTALE];

impl Disturbance {
    /// Sets it on directories of the history at `root` until all have been tried, at moments that are drawn; also on the folder itself if it `is_wide`. Tells how often it was set.
    fn set(&self, root: &std::path::Path, is_wide: bool, rng: &mut Rng) -> anyhow::Result<u64> {
        let mut set = 0;
        for turn in 0..4 {
            std::thread::sleep(Duration::from_micros(rng.below(8000)));
            let path = match turn {
                1 if is_wide => root.to_owned(),
                _ => root.join(rng.pick(&DIRECTORIES).to_string()),
            };
            let bytes = path.as_os_str().as_bytes();
            // A file may have the name now.
            if attr::fstatat(CWD, bytes, libc::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.kind() != libc::S_IFDIR)
            {
                continue;
            }
            match attr::setxattr(bytes, Follow::Link, self.name.as_bytes(), self.value.as_bytes(), 0) {
                Ok(()) => set += 1,
                Err(Errno(errno)) if GONE.contains(&errno) => {}
                Err(errno) => {
                    anyhow::bail!("set {} on {}: {errno:?}", self.name, path.display());
                }
            }
        }
        Ok(set)
    }
}

/// What clients have done, and what has happened to them.
#[derive(Debug)]
pub struct Recorded {
    /// In the order in which they began.
    pub calls: Vec<Call>,
    /// So often directories were disturbed.
    pub disturbed: u64,
}

/// Has a client at each of `roots`, which are one directory with none of the names in it, make so many calls; all begin together. With them begins whoever disturbs
/// them, if somebody is to: at the last root, also the folder itself if the boolean says so.
///
/// # Errors
/// When a client panics, or a directory cannot be disturbed.
pub fn record(
    roots: &[PathBuf],
    calls_each: usize,
    disturbance: Option<(&Disturbance, bool)>,
    rng: &mut Rng,
) -> anyhow::Result<Recorded> {
    let start = Instant::now();
    let together = Arc::new(Barrier::new(roots.len() + usize::from(disturbance.is_some())));
    let client_at = |(client, root): (usize, PathBuf)| {
        let (mut rng, together) = (Rng::new(rng.next_u64()), together.clone());
        std::thread::spawn(move || {
            together.wait();
            let now = || start.elapsed().as_nanos() as u64;
            let call = |_| {
                if rng.percent(20) {
                    std::thread::sleep(Duration::from_micros(rng.below(500)));
                }
                let verb = draw(&mut rng);
                let begin = now();
                let answer = carry_out(&root, verb);
                Call { client, verb, begin, end: now(), answer }
            };
            (0..calls_each).map(call).collect::<Vec<Call>>()
        })
    };
    let clients: Vec<_> = roots.iter().cloned().enumerate().map(client_at).collect();
    let disturbed = match (disturbance, roots.last()) {
        (Some((disturbance, is_wide)), Some(root)) => {
            together.wait();
            disturbance.set(root, is_wide, rng)
        }
        _ => Ok(0),
    };
    let mut calls = Vec::new();
    for client in clients {
        calls.extend(client.join().ok().context("a client panicked")?);
    }
    calls.sort_by_key(|call| call.begin);
    Ok(Recorded { calls, disturbed: disturbed? })
}
