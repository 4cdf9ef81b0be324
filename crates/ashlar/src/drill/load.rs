//! Programs that write, write over, sync, read through the other mount, cut, rename and remove files, for as long as they are wanted.

use super::call::{Calls, difference};
use super::ledger::{Ledger, Step, bytes, content};
use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lengths of files: one that lives with its inode, and others of one chunk and of several.
const LENGTHS: &[usize] = &[3_000, 200_000, 1_500_000];
/// Bytes that a call writes.
const PIECE: usize = 256 << 10;
/// What file systems want of memory and offsets when they read past the cache.
const ALIGNMENT: usize = 4096;
/// LIMIT: files of a worker.
const FILES_MAX: usize = 12;
/// How long a program rests when a call has failed.
const REST: Duration = Duration::from_millis(200);
/// Time between two looks whether all have ended.
const TURN: Duration = Duration::from_millis(20);

/// The directory of a drill, through two mounts or twice through one.
#[derive(Clone, Debug)]
pub struct Dirs(pub [PathBuf; 2]);

impl Dirs {
    /// A file of it through the mount of a worker, or through the other one.
    pub fn path(&self, worker: usize, name: &str) -> PathBuf {
        let [first, second] = &self.0;
        if worker.is_multiple_of(2) { first.join(name) } else { second.join(name) }
    }
}

/// A worker and what it knows of its files.
pub struct Worker {
    of: usize,
    turn: u64,
    pub ledger: Ledger,
    dirs: Dirs,
    calls: Arc<Calls>,
}

/// Workers at work.
pub struct Load {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Worker>>,
}

impl Load {
    /// Has them work until they are told to stop.
    pub fn start(workers: Vec<Worker>) -> Result<Load> {
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |mut worker: Worker| {
            let is_over = is_over.clone();
            start_apart("ashlar-drill", move || {
                while !is_over.load(Relaxed) {
                    if worker.turn().is_none() {
                        std::thread::sleep(REST);
                    }
                    worker.turn += 1;
                }
                worker
            })
        };
        let threads: Result<Vec<_>> = workers.into_iter().map(start).collect();
        // Those that have begun end, if not all could.
        is_over.store(threads.is_err(), Relaxed);
        Ok(Load { is_over: is_over.clone(), threads: threads? })
    }

    /// Tells them to stop and waits until they have; those whose calls do not end are not among what is returned.
    pub fn stop(mut self, patience: Duration) -> Vec<Worker> {
        self.is_over.store(true, Relaxed);
        ended_of(std::mem::take(&mut self.threads), patience)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

/// Starts a thread with file descriptors of its own, which no program inherits that the drill runs meanwhile, and waits until it has them: what has a file of a mount open when it is begun waits until
/// that has answered to the close (FUSE_FLUSH, as exec(2) closes it), which may be for the server that it is to start. Nothing may be run by other threads just then: the thread would keep the ends of its pipes.
pub fn start_apart<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let (to, from) = channel();
    let apart = move || {
        // SAFETY: it takes no pointer. Others keep their descriptors, and this thread has all of them as well.
        let outcome = match unsafe { libc::unshare(libc::CLONE_FILES) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        let _ = to.send(outcome);
        work()
    };
    let thread =
        std::thread::Builder::new().name(name.into()).spawn(apart).context("cannot start a thread")?;
    let outcome = from.recv().context("a thread has ended")?;
    outcome.context("a thread cannot have file descriptors of its own")?;
    Ok(thread)
}

/// What threads return that end in time. The others are left behind: nobody can end a call of theirs.
pub fn ended_of<T>(threads: Vec<JoinHandle<T>>, patience: Duration) -> Vec<T> {
    let deadline = Instant::now() + patience;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(TURN);
    }
    threads.into_iter().filter(JoinHandle::is_finished).filter_map(|thread| thread.join().ok()).collect()
}

impl Worker {
    pub fn new(of: usize, dirs: Dirs, calls: Arc<Calls>) -> Worker {
        Worker { of, turn: 0, ledger: Ledger::default(), dirs, calls }
    }

    pub fn number(&self) -> usize {
        self.of
    }

    fn own(&self, name: &str) -> PathBuf {
        self.dirs.path(self.of, name)
    }

    fn other(&self, name: &str) -> PathBuf {
        self.dirs.path(self.of + 1, name)
    }

    fn call<T>(&self, call: &'static str, path: &Path, does: impl FnOnce() -> io::Result<T>) -> Option<T> {
        self.calls.call((self.of, call), path, does)
    }

    /// One turn; nothing if a call has failed.
    fn turn(&mut self) -> Option<()> {
        let name = format!("w{}/f{}", self.of, self.turn);
        if self.write(&name).is_none() {
            self.ledger.doubt(&name);
            return None;
        }
        self.compare(&name, &self.other(&name))?;
        self.change(&name)?;
        if let Some(known) = self.ledger.any(self.turn.wrapping_mul(7919)).map(str::to_owned) {
            self.compare(&known, &self.own(&known))?;
        }
        while let Some(oldest) = self.ledger.oldest_of_more_than(FILES_MAX).map(str::to_owned) {
            self.compare(&oldest, &self.other(&oldest))?;
            self.remove(&oldest)?;
        }
        Some(())
    }

    /// A new file, some of it written twice; some are synced.
    fn write(&mut self, name: &str) -> Option<()> {
        let path = self.own(name);
        let seed = (self.of as u64) << 40 | self.turn << 1;
        let len = LENGTHS.get(self.turn as usize % LENGTHS.len()).copied().unwrap_or(PIECE);
        let whole = bytes(seed, len);
        let file = self.call("create", &path, || File::create(&path))?;
        for (at, piece) in whole.chunks(PIECE).enumerate() {
            self.call("write", &path, || file.write_all_at(piece, (at * PIECE) as u64))?;
        }
        let over = bytes(seed | 1, len / 3);
        let at = (self.turn as usize * 7919) % (len - over.len());
        self.call("write", &path, || file.write_all_at(&over, at as u64))?;
        if self.turn.is_multiple_of(4) {
            self.call("fsync", &path, || file.sync_all())?;
        }
        // What was written later than its call tells here that it was not.
        self.call("close", &path, || close(file))?;
        let whole = Step::Write { at: 0, len, seed };
        self.ledger.made(name, vec![whole, Step::Write { at, len: over.len(), seed: seed | 1 }]);
        Some(())
    }

    /// What is done to a file once it is there: by its number another name, another length, or nothing.
    fn change(&mut self, name: &str) -> Option<()> {
        let (own, other) = (self.own(name), self.other(name));
        match self.turn % 4 {
            0 => {
                let new = format!("w{}/g{}", self.of, self.turn);
                let to = self.other(&new);
                if self.call("rename", &other, || fs::rename(&other, &to)).is_none() {
                    self.ledger.doubt(name);
                    return None;
                }
                self.ledger.renamed(name, &new);
            }
            1 => {
                let len = content(self.ledger.steps(name)).len() / 2 + 77;
                let cut = || OpenOptions::new().write(true).open(&own)?.set_len(len as u64);
                if self.call("truncate", &own, cut).is_none() {
                    self.ledger.doubt(name);
                    return None;
                }
                self.ledger.done(name, Step::Cut { len });
            }
            _ => {}
        }
        Some(())
    }

    fn remove(&mut self, name: &str) -> Option<()> {
        let path = self.own(name);
        if self.call("remove", &path, || fs::remove_file(&path)).is_none() {
            self.ledger.doubt(name);
            return None;
        }
        self.ledger.removed(name);
        Some(())
    }

    /// Reads a file and compares it with what it must contain. Nothing if it could not be read: a call has failed, or it is damaged, and is not used again.
    fn compare(&mut self, name: &str, path: &Path) -> Option<()> {
        let expected = content(self.ledger.steps(name));
        let found = self.call("read", path, || read(path))?;
        if let Some(what) = difference(&expected, &found) {
            self.calls.damaged(format!("{} {what}", crate::terminal::shown(path)));
            // Told once.
            self.ledger.forget(name);
        }
        Some(())
    }
}

/// Reads past the cache of the kernel: what is there tells nothing of servers.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut memory = vec![0; PIECE + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let room = memory.get_mut(start..start + PIECE).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut found = Vec::new();
    loop {
        let count = file.read_at(room, found.len() as u64)?;
        found.extend(room.iter().take(count));
        // A read that ends elsewhere has met the end of the file.
        if !count.is_multiple_of(ALIGNMENT) || count == 0 {
            return Ok(found);
        }
    }
}

fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is this file's alone, which does not close it again.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::drill::ledger::Diary;

    /// A worker whose files are in a directory of this machine.
    fn worker(dir: &Path) -> Worker {
        fs::create_dir(dir.join("w0")).unwrap();
        let diary = Arc::new(Diary::make(&dir.join("ledger")).unwrap());
        Worker::new(0, Dirs([dir.to_owned(), dir.to_owned()]), Arc::new(Calls::new(diary, 1)))
    }

    #[test]
    fn what_the_load_has_open_is_inherited_by_no_program_that_the_drill_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        let opened = |path: &Path| {
            let open = fs::read_dir("/proc/thread-self/fd").unwrap();
            open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).any(|link| link == path)
        };
        let ((to, from), (end, ended)) = (channel(), channel::<()>());
        let own = path.clone();
        let thread = start_apart("test", move || {
            let _file = File::create(&own).unwrap();
            to.send(opened(&own)).unwrap();
            let _ = ended.recv();
        });
        assert!(from.recv().unwrap());
        assert!(!opened(&path), "a program that was run now would have it");
        drop(end);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn turns_leave_what_the_ledger_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = worker(dir.path());
        for _ in 0..30 {
            worker.turn().unwrap();
            worker.turn += 1;
        }
        assert_eq!(worker.ledger.files().count(), FILES_MAX);
        for (name, steps) in worker.ledger.files() {
            assert!(fs::read(dir.path().join(name)).unwrap() == content(steps), "{name}");
        }
        assert_eq!(worker.ledger.gone().filter(|name| dir.path().join(name).exists()).count(), 0);
        let seen = worker.calls.take();
        assert_eq!((seen.failed.count, seen.damaged.count), (0, 0), "{seen:?}");
        assert!(seen.histogram.total() > 200);
    }

    #[test]
    fn a_file_that_somebody_changes_is_found_and_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = worker(dir.path());
        worker.turn().unwrap();
        let name = worker.ledger.any(0).unwrap().to_owned();
        let path = dir.path().join(&name);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"not this", 100).unwrap();
        worker.compare(&name, &path).unwrap();
        let seen = worker.calls.take();
        assert_eq!((seen.damaged.count, worker.ledger.files().count()), (1, 0));
        assert!(seen.damaged.first[0].contains("from byte 100 on"), "{seen:?}");
    }
}
