//! `ashlar-torture share`: threads on several mounts write, map, truncate and empty a few files, and each checks what it wrote itself
//! through any of them.
//!
//! A third of the steps are such checks: what a thread has just written in its own part of a shared file, or in its own file, is read
//! through one of the mounts, its own included, while the others are at the same files. Half of the writes go through descriptors that cannot
//! read, which write past the page cache. In the end all mounts must show the same bytes everywhere.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;

use crate::race::{Course, Race, Wrong};
use crate::report::Report;
use crate::rng::{Rng, pattern};
use crate::sys::attr;
use crate::sys::data::{self, CWD};
use crate::sys::map::Mapping;
use crate::sys::{SysResult, name};

/// Write few files through several mounts at once, and check that each mount shows what the others wrote.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    course: Course,
    /// Threads; at most 64.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: u64,
    /// Files of each sort; with one of them the mounts meet most often.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// A shared mapping of a file that another mount writes may be refused (ENODEV, Linux before 6.6).
    #[arg(long)]
    mappings_may_be_refused: bool,
    /// Seconds a single step may take.
    #[arg(long, default_value_t = 10)]
    stall_seconds: u64,
}

/// What a race may answer: a name that another thread has taken away or made, a mapped page behind the end.
const EXPECTED: &[i32] = &[libc::ENOENT, libc::EEXIST, libc::EFAULT];

/// The same where the kernel may refuse mappings.
const EXPECTED_WITHOUT_MAPPINGS: &[i32] = &[libc::ENOENT, libc::EEXIST, libc::EFAULT, libc::ENODEV];

/// LIMIT: each has its own part of the first page of a file.
const THREADS_MAX: u64 = 64;

/// Bytes of that part.
const PART_BYTES: u64 = PAGE_BYTES / THREADS_MAX;

/// How late a write may be seen on another mount that stores into a mapping of the same page: of two such writers one goes first, and the kernel of the other
/// shows what it had until its own write has ended (ADR 0026). What only one mount writes is seen at once.
const LATE_MAX: Duration = Duration::from_secs(1);

/// What is not seen until then is lost.
const LOST_AFTER: Duration = Duration::from_secs(8);

/// Bytes of a page: stores into one page through two mounts may lose one of them, as on any network file system.
const PAGE_BYTES: u64 = 4096;

/// Runs the command.
///
/// # Errors
/// When the working directory or its files cannot be made, or not removed.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let mut report = Report::new();
    for round in 0..arguments.course.rounds() {
        let folder = format!("share-{}-{round}", std::process::id());
        let roots = arguments.course.roots(&folder);
        let first = &roots[0];
        make_files(first, arguments).with_context(|| format!("make the files in {}", first.display()))?;
        let race = Race {
            threads: arguments.threads,
            end: arguments.course.end_of_round(),
            steps_max: arguments.course.steps_of_round(arguments.threads),
            stall: Duration::from_secs(arguments.stall_seconds),
            expected: if arguments.mappings_may_be_refused { EXPECTED_WITHOUT_MAPPINGS } else { EXPECTED },
        };
        let sharer = |thread: u64| {
            let rng = arguments.course.rng(round, thread);
            let mut sharer = Sharer::new(&roots, thread, arguments, rng);
            move || sharer.timed_step()
        };
        let is_over = race.run(round, sharer, &mut report);
        if is_over && report.failed() == 0 {
            compare(&roots, &mut report)?;
        }
        if report.failed() > 0 {
            report.fail(format!(
                "seed {}, round {round}; what is left is in {}",
                arguments.course.seed,
                first.display()
            ));
            break;
        }
        fs::remove_dir_all(first).with_context(|| format!("remove {}", first.display()))?;
    }
    Ok(report)
}

fn make_files(folder: &Path, arguments: &Arguments) -> std::io::Result<()> {
    fs::create_dir(folder)?;
    for file in 0..arguments.files {
        fs::write(folder.join(format!("kept{file}")), [0; PAGE_BYTES as usize])?;
    }
    Ok(())
}

/// Compares the bytes of every file in all of `roots`.
fn compare(roots: &[PathBuf], report: &mut Report) -> anyhow::Result<()> {
    let (first, others) = roots.split_first().context("no mount")?;
    for entry in fs::read_dir(first)? {
        let name = entry?.file_name();
        let bytes = fs::read(first.join(&name));
        for other in others {
            let seen = fs::read(other.join(&name));
            report.check(matches!((&bytes, &seen), (Ok(bytes), Ok(seen)) if bytes == seen), || {
                let told = |read: &std::io::Result<Vec<u8>>| match read {
                    Ok(bytes) => format!("{} bytes", bytes.len()),
                    Err(error) => error.to_string(),
                };
                let (here, there) = (first.join(&name), other.join(&name));
                format!("{} ({}) is not {} ({})", here.display(), told(&bytes), there.display(), told(&seen))
            });
        }
    }
    Ok(())
}

/// One thread, at home on one of the mounts.
struct Sharer {
    roots: Vec<PathBuf>,
    home: usize,
    thread: u64,
    threads: u64,
    files: u64,
    stall: Duration,
    rng: Rng,
    /// Counts what was written to the own parts of files.
    count: u64,
    /// What the own file must hold.
    own: Vec<u8>,
}

impl Sharer {
    fn new(roots: &[PathBuf], thread: u64, arguments: &Arguments, rng: Rng) -> Self {
        Self {
            roots: roots.to_vec(),
            home: thread as usize % roots.len(),
            thread,
            threads: arguments.threads,
            files: arguments.files,
            stall: Duration::from_secs(arguments.stall_seconds),
            rng,
            count: 0,
            own: Vec::new(),
        }
    }

    fn timed_step(&mut self) -> (String, Result<(), Wrong>) {
        let begin = Instant::now();
        let (what, result) = self.step();
        let took = begin.elapsed();
        let slow = || Err(Wrong::Told(format!("took {:.1} s", took.as_secs_f64())));
        (what.to_owned(), result.and_then(|()| if took > self.stall { slow() } else { Ok(()) }))
    }

    fn step(&mut self) -> (&'static str, Result<(), Wrong>) {
        match self.rng.below(100) {
            0..20 => ("check its part of a shared file", self.check_part()),
            20..35 => ("check its own file", self.check_own()),
            35..60 => ("disturb a shared file", self.disturb_kept()),
            60..90 => ("disturb a file that comes and goes", self.disturb_free().map_err(Wrong::from)),
            _ => ("disturb a file of another", self.disturb_other().map_err(Wrong::from)),
        }
    }

    fn path(&self, root: usize, file: &str) -> Vec<u8> {
        self.roots[root].join(file).as_os_str().as_bytes().to_vec()
    }

    fn open(&self, root: usize, file: &str, flags: i32) -> SysResult<OwnedFd> {
        data::openat(CWD, &self.path(root, file), flags, 0o644)
    }

    /// Any mount, the own included.
    fn any(&mut self) -> usize {
        self.rng.index(self.roots.len())
    }

    /// How a file is opened to be written.
    fn for_writing(&mut self) -> i32 {
        if self.rng.percent(50) { libc::O_WRONLY } else { libc::O_RDWR }
    }

    /// Writes the own part of a shared file, and reads it through one of the mounts.
    fn check_part(&mut self) -> Result<(), Wrong> {
        let file = format!("kept{}", self.rng.below(self.files));
        self.count += 1;
        let wanted = pattern(self.count, PART_BYTES as usize);
        let at = (self.thread * PART_BYTES) as i64;
        let flags = self.for_writing();
        let writer = self.open(self.home, &file, flags)?;
        data::pwrite_all(writer.as_fd(), &wanted, at)?;
        let mount = self.any();
        let reader = self.open(mount, &file, libc::O_RDONLY)?;
        let what = format!("write {} of it through mount {} and mount {mount}", self.count, self.home);
        let begin = Instant::now();
        let mut late = Duration::ZERO;
        loop {
            let seen = data::pread(reader.as_fd(), PART_BYTES as usize, at)?;
            if seen == wanted && late < LATE_MAX {
                return Ok(());
            }
            // Late or lost: two different defects.
            if seen == wanted {
                return Err(Wrong::Told(format!("{what}: not seen for {:.1} s", late.as_secs_f64())));
            }
            // A read that takes long and shows it is not late.
            late = begin.elapsed();
            if late >= LOST_AFTER {
                let (first, len) = (seen.iter().zip(&wanted).position(|(a, b)| a != b), seen.len());
                return Err(Wrong::Told(format!(
                    "{what}: never seen, {len} bytes, the first other one at {first:?}; {}",
                    self.who_has(&file, &wanted, at)
                )));
            }
        }
    }

    /// Which mounts have `wanted`, past the kernel's pages and in them: whether a write is lost, or old pages are still there.
    fn who_has(&self, file: &str, wanted: &[u8], at: i64) -> String {
        let has = |root: usize, flags: i32| {
            let opened = self.open(root, file, libc::O_RDONLY | flags)?;
            data::pread(opened.as_fd(), wanted.len(), at).map(|seen| seen == wanted)
        };
        let told = |root: usize| {
            let (past, through) = (has(root, libc::O_DIRECT), has(root, 0));
            format!("mount {root} has it past the cache: {past:?}, opened anew: {through:?}")
        };
        (0..self.roots.len()).map(told).collect::<Vec<_>>().join("; ")
    }

    /// Changes the own file, and reads all of it through one of the mounts.
    fn check_own(&mut self) -> Result<(), Wrong> {
        let file = format!("own{}", self.thread);
        let is_emptied = self.rng.percent(15);
        let flags = self.for_writing() | libc::O_CREAT | if is_emptied { libc::O_TRUNC } else { 0 };
        let writer = self.open(self.home, &file, flags)?;
        if is_emptied {
            self.own.clear();
        }
        self.count += 1;
        if self.rng.percent(30) {
            let len = *self.rng.pick(&[0, 100, 5000, 16_384, 30_000, 100_000]);
            data::ftruncate(writer.as_fd(), len as i64)?;
            self.own.resize(len, 0);
        } else {
            let at = *self.rng.pick(&[0, 100, 4096, 15_000, 40_000]);
            let bytes = pattern(self.count, *self.rng.pick(&[10, 500, 4096, 9000, 70_000]));
            data::pwrite_all(writer.as_fd(), &bytes, at as i64)?;
            self.own.resize(self.own.len().max(at + bytes.len()), 0);
            self.own[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let mount = self.any();
        let size = attr::fstatat(CWD, &self.path(mount, &file), 0)?.size;
        let reader = self.open(mount, &file, libc::O_RDONLY)?;
        let mut seen = vec![0; self.own.len() + 1];
        let len = data::pread_full(reader.as_fd(), &mut seen, 0)?;
        if size == self.own.len() as i64 && seen[..len] == self.own {
            return Ok(());
        }
        let first = seen.iter().zip(&self.own).position(|(a, b)| a != b);
        Err(Wrong::Told(format!(
            "change {} of it is not seen by mount {mount}: size {size} and {len} bytes instead of {}, the first other one at {first:?}",
            self.count,
            self.own.len()
        )))
    }

    /// Does anything to a shared file but to its first page.
    fn disturb_kept(&mut self) -> Result<(), Wrong> {
        let file = format!("kept{}", self.rng.below(self.files));
        let opened = self.open(self.home, &file, libc::O_RDWR)?;
        self.disturb(&opened, PAGE_BYTES)?;
        Ok(())
    }

    /// Does anything at all to a file that may not be there, its names included.
    fn disturb_free(&mut self) -> SysResult<()> {
        let file = format!("free{}", self.rng.below(self.files));
        let path = self.path(self.home, &file);
        match self.rng.below(20) {
            0 => return name::unlinkat(CWD, &path, 0),
            1 => {
                let link = self.path(self.home, &format!("{file}-link"));
                return name::linkat(CWD, &path, &link, 0).or_else(|_| name::renameat2(CWD, &link, &path, 0));
            }
            _ => {}
        }
        let more = *self.rng.pick(&[0, 0, libc::O_TRUNC, libc::O_APPEND]);
        let opened = self.open(self.home, &file, libc::O_RDWR | libc::O_CREAT | more)?;
        self.disturb(&opened, 0)
    }

    /// Reads a file that only its owner changes, so that pages and leases of it are everywhere.
    fn disturb_other(&mut self) -> SysResult<()> {
        let file = format!("own{}", self.rng.below(self.threads));
        let opened = self.open(self.home, &file, libc::O_RDWR)?;
        match self.rng.below(4) {
            0 => data::fsync(opened.as_fd(), false),
            1 => {
                let mapping = Mapping::new(opened.as_fd(), 0, PAGE_BYTES as usize, false)?;
                let nowhere = self.open(self.home, "nowhere", libc::O_RDWR | libc::O_CREAT)?;
                mapping.write_to(nowhere.as_fd(), 0, 64).map(drop)
            }
            2 => attr::fstatat(CWD, &self.path(self.home, &file), 0).map(drop),
            _ => data::pread(opened.as_fd(), 20_000, *self.rng.pick(&[0, 4096, 15_000])).map(drop),
        }
    }

    /// One call on an open file that changes nothing before `from`.
    fn disturb(&mut self, opened: &OwnedFd, from: u64) -> SysResult<()> {
        let opened = opened.as_fd();
        let len = *self.rng.pick(&[10, 500, 4096, 9000, 20_000, 70_000]);
        let at = (from + self.rng.pick(&[0, 0, 100, 4096, 15_000, 40_000])) as i64;
        match self.rng.below(9) {
            0 | 1 => data::pwrite_all(opened, &pattern(len as u64, len), at),
            2 => data::pread(opened, len, at).map(drop),
            3 | 4 => {
                let mut mapping = Mapping::new(opened, from as i64, PAGE_BYTES as usize, true)?;
                let zeros = data::openat(CWD, b"/dev/zero", libc::O_RDONLY, 0)?;
                mapping.read_from(zeros.as_fd(), 0, 64)?;
                mapping.sync()
            }
            5 | 6 => data::ftruncate(opened, (from + self.rng.pick(&[0, 100, 5000, 16_384, 100_000])) as i64),
            7 => data::fsync(opened, self.rng.percent(50)),
            _ => data::fallocate(opened, 0, at, len as i64),
        }
    }
}
