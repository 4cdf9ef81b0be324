//! `ashlar-torture pass-locks`: record locks that are held, waited for and passed on between mounts.
//!
//! Threads on all mounts take locks on few files in turn, count up what is in a file while they have its lock, and see that nobody else is there. One more lock is held the
//! whole time: nobody may get it, and one who waits for it has it once it is let go.
//!
//! Counters are in files of their own: while a mount waits to write in a file, others on it may still read there what somebody else has just overwritten elsewhere in it
//! (ADR 0006), whoever has which lock.

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

/// Files that are locked in turn, each with a counter.
const FILES: usize = 3;
/// The number of the file that is locked the whole time.
const KEPT: usize = FILES;
/// Bytes of a counter.
const COUNTER_BYTES: usize = 8;

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

fn range(kind: i32) -> Range {
    Range { kind, start: 0, len: COUNTER_BYTES as i64 }
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
    setlk(file.as_fd(), LockOwner::Description, range(libc::F_WRLCK))
}

fn let_go(file: &File) -> anyhow::Result<()> {
    setlk(file.as_fd(), LockOwner::Description, range(libc::F_UNLCK)).context("let a lock go")
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
    let (counters, is_let_go): ([Counter; FILES], _) = (Default::default(), AtomicBool::new(false));
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
        note(&mut report, Ok(let_go(&kept)), 0);
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
fn take_turn(files: &[File], counters: &[Counter; FILES], rng: &mut Rng) -> anyhow::Result<()> {
    let at = rng.index(FILES);
    let (file, kept, counter) = (&files[at], &files[KEPT], &counters[at]);
    setlkw(file.as_fd(), range(libc::F_WRLCK)).context("wait for a lock")?;
    ensure!(!counter.is_held.swap(true, SeqCst), "two have the lock on file {at}");
    let mut bytes = [0; COUNTER_BYTES];
    pread_full(file.as_fd(), &mut bytes, 0).context("read a counter")?;
    let (found, wanted) = (u64::from_le_bytes(bytes), counter.count.load(SeqCst));
    ensure!(
        found == wanted,
        "the counter in file {at} is {found} and not {wanted}, which its last holder wrote"
    );
    pwrite_all(file.as_fd(), &(wanted + 1).to_le_bytes(), 0).context("write a counter")?;
    counter.count.store(wanted + 1, SeqCst);
    counter.is_held.store(false, SeqCst);
    let_go(file)?;
    match take(kept) {
        Err(Errno(libc::EAGAIN | libc::EACCES)) => {}
        Ok(()) => bail!("the lock that is kept was given to somebody else"),
        Err(error) => return Err(error).context("try a lock that is held"),
    }
    let seen = getlk(kept.as_fd(), LockOwner::Description, range(libc::F_WRLCK)).context("ask for a lock")?;
    ensure!(seen.is_some(), "the lock that is kept is not seen");
    Ok(())
}

/// Waits for the lock that is kept, which is there when it is let go and not before.
fn wait_for_kept(folder: &Path, is_let_go: &AtomicBool) -> anyhow::Result<()> {
    let kept = open(folder)?.swap_remove(KEPT);
    setlkw(kept.as_fd(), range(libc::F_WRLCK)).context("wait for the lock that is kept")?;
    ensure!(is_let_go.load(SeqCst), "the lock that is kept was passed on before it was let go");
    Ok(())
}
