//! `ashlar-torture pass-locks`: record locks that are held, waited for and passed on between mounts.
//!
//! Threads on all mounts take locks on few counters in turn, count up while they have one's lock, and see that nobody else is there. One more lock is held the
//! whole time: nobody may get it, and one who waits for it has it once it is let go.
//!
//! Some counters have files of their own; others share one, so that several mounts write in a file at the same time, each elsewhere: who gets a lock reads what its last holder wrote also
//! where his mount is just waiting to write something else there. Half of the turns write without having read, so that pages of both kinds wait: those that were in the cache before, and those that
//! were not.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::report::Report;
use crate::rng::Rng;
use crate::sys::data::{pread_full, pwrite_all};
use crate::sys::lock::{LockOwner, Range, getlk, setlk, setlkw};
use crate::sys::{Errno, SysResult};

/// Bytes of a counter.
const COUNTER_BYTES: usize = 8;
/// Counters that are locked in turn: the number of the file that has each, and where. The last three share a page, the four before are in different ones, or in two.
const PLACES: [(usize, i64); 9] =
    [(0, 0), (1, 0), (3, 0), (3, 5_000), (3, 2 * PAGE_BYTES - 4), (3, 300_000), (2, 0), (2, 8), (2, 520)];
const PAGE_BYTES: i64 = 4096;
/// The number of the file that is locked the whole time.
const KEPT: usize = 4;

/// Hold record locks and pass them on between mounts, and check that each has one holder.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A directory on the file system under test.
    #[arg(long)]
    dir: PathBuf,
    /// The same directory through another mount.
    #[arg(long)]
    also_dir: Vec<PathBuf>,
    /// How often each thread takes a lock.
    #[arg(long, default_value_t = 200)]
    turns: u64,
    /// Threads on each mount.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    threads: u64,
    /// The seed that fixes which lock is taken when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A counter, as its holders see it.
#[derive(Default)]
struct Counter {
    is_held: AtomicBool,
    count: AtomicU64,
}

fn range(kind: i32, at: i64) -> Range {
    Range { kind, start: at, len: COUNTER_BYTES as i64 }
}

/// All files, through one mount, with open file descriptions of their own.
fn open(folder: &Path) -> anyhow::Result<Vec<File>> {
    let open = |number: usize| {
        let path = folder.join(number.to_string());
        // Through the others they are there already, unless they are something else.
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        opened.with_context(|| format!("open {}", path.display()))
    };
    (0..=KEPT).map(open).collect()
}

fn take(file: &File) -> SysResult<()> {
    setlk(file.as_fd(), LockOwner::Description, range(libc::F_WRLCK, 0))
}

fn let_go(file: &File, at: i64) -> anyhow::Result<()> {
    setlk(file.as_fd(), LockOwner::Description, range(libc::F_UNLCK, at)).context("let a lock go")
}

/// Runs the command. Each lock that is taken is one check.
///
/// # Errors
/// When the files cannot be made or removed.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let name = format!("locks-{}", std::process::id());
    let dirs = std::iter::once(&arguments.dir).chain(&arguments.also_dir);
    let folders: Vec<PathBuf> = dirs.map(|dir| dir.join(&name)).collect();
    for folder in &folders {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let kept = open(&folders[0])?.swap_remove(KEPT);
    take(&kept).context("take a lock that nobody has")?;
    let mut report = Report::new();
    let (counters, is_let_go): ([Counter; PLACES.len()], _) = (Default::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_kept(&folders[folders.len() - 1], &is_let_go));
        let start = |thread: u64| {
            let (folder, counters) = (&folders[thread as usize % folders.len()], &counters);
            let mut rng = Rng::derive(arguments.seed, thread);
            scope.spawn(move || {
                let files = open(folder)?;
                (0..arguments.turns).try_for_each(|_| take_turn(&files, counters, &mut rng))
            })
        };
        let threads: Vec<_> = (0..arguments.threads * folders.len() as u64).map(start).collect();
        for thread in threads {
            note(&mut report, thread.join(), arguments.turns);
        }
        is_let_go.store(true, SeqCst);
        note(&mut report, Ok(let_go(&kept, 0)), 0);
        note(&mut report, waiter.join(), 1);
    });
    for folder in folders.iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(report)
}

fn note(report: &mut Report, ended: std::thread::Result<anyhow::Result<()>>, checks: u64) {
    match ended {
        Ok(Ok(())) => report.pass_many(checks),
        Ok(Err(error)) => report.fail(format!("{error:#}")),
        Err(_) => report.fail("a thread panicked"),
    }
}

/// Takes a lock, counts up, and lets it go; then looks whether the one that is kept is kept.
fn take_turn(files: &[File], counters: &[Counter; PLACES.len()], rng: &mut Rng) -> anyhow::Result<()> {
    let number = rng.index(PLACES.len());
    let ((of, at), counter) = (PLACES[number], &counters[number]);
    let (file, kept) = (&files[of], &files[KEPT]);
    setlkw(file.as_fd(), range(libc::F_WRLCK, at)).context("wait for a lock")?;
    ensure!(!counter.is_held.swap(true, SeqCst), "two have the lock at {at} in file {of}");
    let wanted = counter.count.load(SeqCst);
    if rng.percent(50) {
        let mut bytes = [0; COUNTER_BYTES];
        pread_full(file.as_fd(), &mut bytes, at).context("read a counter")?;
        let found = u64::from_le_bytes(bytes);
        ensure!(
            found == wanted,
            "the counter at {at} in file {of} is {found} and not {wanted}, which its last holder wrote"
        );
    }
    pwrite_all(file.as_fd(), &(wanted + 1).to_le_bytes(), at).context("write a counter")?;
    counter.count.store(wanted + 1, SeqCst);
    counter.is_held.store(false, SeqCst);
    let_go(file, at)?;
    match take(kept) {
        Err(Errno(libc::EAGAIN | libc::EACCES)) => {}
        Ok(()) => bail!("the lock that is kept was given to somebody else"),
        Err(error) => return Err(error).context("try a lock that is held"),
    }
    let asked = range(libc::F_WRLCK, 0);
    let seen = getlk(kept.as_fd(), LockOwner::Description, asked).context("ask for a lock")?;
    ensure!(seen.is_some(), "the lock that is kept is not seen");
    Ok(())
}

/// Waits for the lock that is kept, which is there when it is let go and not before.
fn wait_for_kept(folder: &Path, is_let_go: &AtomicBool) -> anyhow::Result<()> {
    let kept = open(folder)?.swap_remove(KEPT);
    setlkw(kept.as_fd(), range(libc::F_WRLCK, 0)).context("wait for the lock that is kept")?;
    ensure!(is_let_go.load(SeqCst), "the lock that is kept was passed on before it was let go");
    Ok(())
}
