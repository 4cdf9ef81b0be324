//! `ashlar-torture racer`: threads that race on few names, then a check that the tree is still a tree.
//!
//! While they race, calls may fail for any reason another thread explains, never with EIO and its like. Afterwards every entry must
//! exist, every link count must equal the names found, no directory may be reachable twice, all mounts must show the same, and
//! everything must be removable.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::race::{Course, Race, Wrong};
use crate::report::Report;
use crate::rng::{Rng, pattern};
use crate::sys::attr::{self, Follow, Stat};
use crate::sys::data::{self, CWD};
use crate::sys::dir::read_all;
use crate::sys::{Errno, SysResult, name};

/// Race many threads on few names and check the consistency of what is left.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    course: Course,
    /// Threads.
    #[arg(long, default_value_t = 8)]
    threads: u64,
    /// Seconds a single operation may take.
    #[arg(long, default_value_t = 60)]
    stall_seconds: u64,
    /// Leave the tree of the last round where it is.
    #[arg(long)]
    keep: bool,
}

/// What a race may answer.
const EXPECTED: &[i32] = &[
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTEMPTY,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::EINVAL,
    libc::ELOOP,
    libc::EBUSY,
    libc::EPERM,
    libc::ENODATA,
    libc::EMLINK,
];

/// Runs the command.
///
/// # Errors
/// When the working directory cannot be made or removed.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let mut report = Report::new();
    for round in 0..arguments.course.rounds() {
        let folder = format!("racer-{}-{round}", std::process::id());
        let roots = arguments.course.roots(&folder);
        let first = &roots[0];
        fs::create_dir(first).with_context(|| format!("create {}", first.display()))?;
        if !race(arguments, round, &roots, &mut report) {
            report.fail(format!(
                "seed {}, round {round}; what is left is in {}",
                arguments.course.seed,
                first.display()
            ));
            break;
        }
        let mut views = Vec::new();
        for root in &roots {
            views.push(check(root, &mut report));
        }
        report.check(views.windows(2).all(|pair| pair[0] == pair[1]), || {
            format!("round {round}: the mounts show different trees")
        });
        let is_kept = arguments.keep && round + 1 == arguments.course.rounds();
        match if is_kept { Ok(()) } else { fs::remove_dir_all(first) } {
            Ok(()) => report.pass(),
            Err(error) => report.fail(format!("round {round}: remove {}: {error}", first.display())),
        }
        if report.failed() > 0 {
            report.fail(format!("seed {}, round {round}", arguments.course.seed));
            break;
        }
    }
    Ok(report)
}

/// Races; true if all threads ended in time.
fn race(arguments: &Arguments, round: u64, roots: &[PathBuf], report: &mut Report) -> bool {
    let race = Race {
        threads: arguments.threads,
        end: arguments.course.end_of_round(),
        steps_max: arguments.course.steps_of_round(arguments.threads),
        stall: Duration::from_secs(arguments.stall_seconds),
        expected: EXPECTED,
    };
    let racer = |thread: u64| {
        let root = roots[thread as usize % roots.len()].clone();
        let mut racer = Racer { root, rng: arguments.course.rng(round, thread) };
        move || {
            let (what, result) = racer.step();
            (what, result.map_err(Wrong::from))
        }
    };
    race.run(round, racer, report)
}

struct Racer {
    root: PathBuf,
    rng: Rng,
}

impl Racer {
    fn path(&mut self) -> Vec<u8> {
        let mut path = self.root.clone();
        let depth = self.rng.below(3);
        for _ in 0..depth {
            path.push(format!("d{}", self.rng.below(3)));
        }
        let last = if self.rng.percent(40) { "d" } else { "f" };
        path.push(format!("{last}{}", self.rng.below(if last == "d" { 3 } else { 6 })));
        path.as_os_str().as_bytes().to_vec()
    }

    fn step(&mut self) -> (String, SysResult<()>) {
        let (mut path, mut other) = (self.path(), self.path());
        // Mostly upwards, or directories moved into each other would nest without end.
        if path.len() < other.len() && self.rng.percent(75) {
            std::mem::swap(&mut path, &mut other);
        }
        let flags = libc::O_CREAT | libc::O_RDWR | libc::O_NONBLOCK;
        let (verb, result) = match self.rng.below(100) {
            0..14 => ("create and write", self.write(&path, flags)),
            14..18 => ("create exclusively", data::openat(CWD, &path, flags | libc::O_EXCL, 0o644).map(drop)),
            18..32 => ("mkdir", name::mkdirat(CWD, &path, 0o755)),
            32..50 => ("rename", name::renameat2(CWD, &path, &other, 0)),
            50..54 => ("exchange", name::renameat2(CWD, &path, &other, libc::RENAME_EXCHANGE)),
            54..64 => ("link", name::linkat(CWD, &path, &other, 0)),
            64..74 => ("unlink", name::unlinkat(CWD, &path, 0)),
            74..80 => ("rmdir", name::unlinkat(CWD, &path, libc::AT_REMOVEDIR)),
            80..84 => ("symlink", name::symlinkat(b"f1", CWD, &path)),
            84..88 => ("truncate", data::truncate(&path, self.rng.below(100_000) as i64)),
            88..91 => ("setxattr", attr::setxattr(&path, Follow::Link, b"user.racer", b"value", 0)),
            91..93 => ("removexattr", attr::removexattr(&path, Follow::Link, b"user.racer")),
            93..95 => ("chmod", attr::fchmodat(CWD, &path, 0o755)),
            95..98 => ("readdir", list(&path).map(drop)),
            _ => ("stat", attr::fstatat(CWD, &path, libc::AT_SYMLINK_NOFOLLOW).map(drop)),
        };
        (format!("{verb} {}", String::from_utf8_lossy(&path)), result)
    }

    fn write(&mut self, path: &[u8], flags: i32) -> SysResult<()> {
        let file = data::openat(CWD, path, flags, 0o644)?;
        let len = self.rng.below(20_000) as usize;
        data::pwrite(file.as_fd(), &pattern(len as u64, len), self.rng.below(50_000) as i64)?;
        data::close(file)
    }
}

fn list(path: &[u8]) -> SysResult<Vec<(Vec<u8>, u8)>> {
    let dir = data::openat(CWD, path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    Ok(read_all(dir.as_fd())?.into_iter().map(|entry| (entry.name, entry.kind)).collect())
}

/// What a check saw of one name: enough to compare two mounts.
type View = BTreeMap<PathBuf, (u32, u64, u64, i64)>;

fn check(root: &Path, report: &mut Report) -> View {
    let mut checker =
        Checker { report, view: View::new(), links: HashMap::new(), directories: HashMap::new() };
    checker.directory(root, 0);
    let links = std::mem::take(&mut checker.links);
    for (ino, (stat, paths)) in links {
        checker.report.check(stat.nlink == paths.len() as u64, || {
            format!("inode {ino}: link count {}, but its names are {paths:?}", stat.nlink)
        });
    }
    checker.view
}

struct Checker<'a> {
    report: &'a mut Report,
    view: View,
    links: HashMap<u64, (Stat, Vec<PathBuf>)>,
    directories: HashMap<u64, PathBuf>,
}

impl Checker<'_> {
    /// Checks a directory and what is below it.
    fn directory(&mut self, path: &Path, depth: usize) {
        // LIMIT: depth, so that paths stay below PATH_MAX. Renames can build any depth; a loop shows as a directory seen twice.
        if depth > 1000 {
            return self.report.fail(format!("{} directories deep, too many to check", depth));
        }
        let entries = match list(path.as_os_str().as_bytes()) {
            Ok(entries) => entries,
            Err(errno) => return self.report.fail(format!("read directory {}: {errno}", path.display())),
        };
        let mut names: Vec<&[u8]> = entries.iter().map(|(name, _)| name.as_slice()).collect();
        names.sort_unstable();
        self.report.check(names.windows(2).all(|pair| pair[0] != pair[1]), || {
            format!("{} lists a name twice", path.display())
        });
        let mut below = 0;
        for (name, kind) in entries.iter().filter(|(name, _)| name != b"." && name != b"..") {
            let child = path.join(std::ffi::OsStr::from_bytes(name));
            below += u64::from(self.entry(&child, *kind, depth));
        }
        match attr::fstatat(CWD, path.as_os_str().as_bytes(), 0) {
            Ok(stat) => self.report.check(stat.nlink == 2 + below, || {
                format!("{}: link count {} with {below} directories in it", path.display(), stat.nlink)
            }),
            Err(errno) => self.report.fail(format!("stat {}: {errno}", path.display())),
        }
    }

    /// Checks one entry; true if it is a directory.
    fn entry(&mut self, path: &Path, kind: u8, depth: usize) -> bool {
        let bytes = path.as_os_str().as_bytes();
        let stat = match attr::fstatat(CWD, bytes, libc::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => {
                self.report.fail(format!("{} is listed but stat fails: {errno}", path.display()));
                return false;
            }
        };
        let right_kind = kind == libc::DT_UNKNOWN || u32::from(kind) == stat.kind() >> 12;
        self.report.check(right_kind, || format!("{} is listed with type {kind}", path.display()));
        let directory = stat.kind() == libc::S_IFDIR;
        if directory {
            if let Some(first) = self.directories.insert(stat.ino, path.to_owned()) {
                self.report.fail(format!("one directory at {} and {}", first.display(), path.display()));
                return true;
            }
            self.directory(path, depth + 1);
        } else {
            if stat.kind() == libc::S_IFREG
                && let Err(errno) = read_through(bytes)
            {
                self.report.fail(format!("read {}: {errno}", path.display()));
            }
            self.links.entry(stat.ino).or_insert_with(|| (stat.clone(), Vec::new())).1.push(path.to_owned());
        }
        let size = if directory { 0 } else { stat.size };
        self.view.insert(relative(path, depth), (stat.mode, stat.ino, stat.nlink, size));
        directory
    }
}

/// The last `depth + 1` components: the path below the root of the check, which differs between mounts.
fn relative(path: &Path, depth: usize) -> PathBuf {
    let parts: Vec<_> = path.components().rev().take(depth + 1).collect();
    parts.into_iter().rev().collect()
}

fn read_through(path: &[u8]) -> Result<(), Errno> {
    let file = data::openat(CWD, path, libc::O_RDONLY | libc::O_NOFOLLOW, 0)?;
    let mut at = 0;
    loop {
        match data::pread(file.as_fd(), 1 << 17, at)?.len() {
            0 => return Ok(()),
            got => at += got as i64,
        }
    }
}
