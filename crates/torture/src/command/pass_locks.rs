//! `ashlar-torture pass-locks`: record locks that are held, waited for and passed on between mounts.
//!
//! Threads on all mounts take locks on parts of one file in turn, count up what is in a part while they have it, and see that nobody else is there. One more lock is held
//! the whole time: nobody may get it, and one who waits for it has it once it is let go.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::report::Report;
use crate::rng::Rng;
use crate::sys::Errno;
use crate::sys::data::{pread_full, pwrite_all};
use crate::sys::lock::{LockOwner, Range, getlk, setlk, setlkw};

/// Parts of the file that are locked in turn.
const PARTS: usize = 3;
/// Bytes of one: a counter.
const PART_BYTES: i64 = 8;
/// The part behind them, which is locked the whole time.
const KEPT: i64 = PARTS as i64;

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

/// A part, as its holders see it.
#[derive(Default)]
struct Part {
    is_held: AtomicBool,
    count: AtomicU64,
}

fn range(kind: i32, part: i64) -> Range {
    Range { kind, start: part * PART_BYTES, len: PART_BYTES }
}

/// Runs the command. Each lock that is taken is one check.
///
/// # Errors
/// When the file cannot be made or removed.
pub fn run(arguments: &Arguments) -> anyhow::Result<Report> {
    let name = format!("locks-{}", std::process::id());
    let dirs = std::iter::once(&arguments.dir).chain(&arguments.also_dir);
    let paths: Vec<PathBuf> = dirs.map(|dir| dir.join(&name)).collect();
    let open = |path: &PathBuf| {
        // Through the others it is there already, unless they are something else.
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
        opened.with_context(|| format!("open {}", path.display()))
    };
    let keeper = open(&paths[0])?;
    pwrite_all(keeper.as_fd(), &[0; PARTS * PART_BYTES as usize], 0).context("write counters")?;
    setlk(keeper.as_fd(), LockOwner::Description, range(libc::F_WRLCK, KEPT)).context("take a lock")?;
    let mut report = Report::new();
    let (parts, is_let_go): ([Part; PARTS], _) = (Default::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_kept(&open(&paths[paths.len() - 1])?, &is_let_go));
        let threads: Vec<_> = (0..arguments.threads * paths.len() as u64)
            .map(|thread| {
                let (path, parts, open) = (&paths[thread as usize % paths.len()], &parts, &open);
                let mut rng = Rng::derive(arguments.seed, thread);
                scope.spawn(move || {
                    let file = open(path)?;
                    (0..arguments.turns).try_for_each(|_| take_turn(&file, parts, &mut rng))
                })
            })
            .collect();
        for thread in threads {
            note(&mut report, thread.join(), arguments.turns);
        }
        is_let_go.store(true, SeqCst);
        let let_go = setlk(keeper.as_fd(), LockOwner::Description, range(libc::F_UNLCK, KEPT));
        note(&mut report, Ok(let_go.context("let a lock go")), 0);
        note(&mut report, waiter.join(), 1);
    });
    for path in paths.iter().filter(|path| path.exists()) {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
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
fn take_turn(file: &File, parts: &[Part; PARTS], rng: &mut Rng) -> anyhow::Result<()> {
    let at = rng.index(PARTS);
    let (part, place) = (&parts[at], at as i64);
    setlkw(file.as_fd(), range(libc::F_WRLCK, place)).context("wait for a lock")?;
    ensure!(!part.is_held.swap(true, SeqCst), "two have the lock on part {at}");
    let mut bytes = [0; PART_BYTES as usize];
    pread_full(file.as_fd(), &mut bytes, place * PART_BYTES).context("read a counter")?;
    let (found, wanted) = (u64::from_le_bytes(bytes), part.count.load(SeqCst));
    ensure!(
        found == wanted,
        "the counter of part {at} is {found} and not {wanted}, which its last holder wrote"
    );
    pwrite_all(file.as_fd(), &(wanted + 1).to_le_bytes(), place * PART_BYTES).context("write a counter")?;
    part.count.store(wanted + 1, SeqCst);
    part.is_held.store(false, SeqCst);
    setlk(file.as_fd(), LockOwner::Description, range(libc::F_UNLCK, place)).context("let a lock go")?;
    match setlk(file.as_fd(), LockOwner::Description, range(libc::F_WRLCK, KEPT)) {
        Err(Errno(libc::EAGAIN | libc::EACCES)) => {}
        Ok(()) => bail!("the lock that is kept was given to somebody else"),
        Err(error) => return Err(error).context("try a lock that is held"),
    }
    let seen = getlk(file.as_fd(), LockOwner::Description, range(libc::F_WRLCK, KEPT));
    ensure!(seen.context("ask for a lock")?.is_some(), "the lock that is kept is not seen");
    Ok(())
}

/// Waits for the lock that is kept, which is there when it is let go and not before.
fn wait_for_kept(file: &File, is_let_go: &AtomicBool) -> anyhow::Result<()> {
    setlkw(file.as_fd(), range(libc::F_WRLCK, KEPT)).context("wait for the lock that is kept")?;
    ensure!(is_let_go.load(SeqCst), "the lock that is kept was passed on before it was let go");
    Ok(())
}
