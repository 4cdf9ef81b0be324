//! What a local file system may have lost while it stays mounted: the note of it, and its end.
//!
//! When Linux cannot write a page back it says so to the next `fsync(2)` and counts the page as clean from then on. It stays readable for as long as memory is
//! plenty, and is then gone; another `fsync` is answered with 0. So whoever is told of such an error cannot go on, and whoever uses the directory after it must not trust what it
//! reads from memory (<https://wiki.postgresql.org/wiki/Fsync_Errors>).

use super::OsDisk;
use crate::Disk;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// In the root, while something may be lost and nobody has gone on from what is left; says what happened.
const NOTE_FILE: &str = "write-failed";
/// In the root: has as many bytes as notes have been there and are gone, all of them holes, as a full disk has no room for a number. 0 without it.
const COUNT_FILE: &str = "writes-failed";
/// For how long whoever has something noted waits for that: a disk that has failed may hang as well.
const NOTE_WAIT: Duration = Duration::from_millis(500);
/// Time between two tries to note it.
const NOTE_AGAIN: Duration = Duration::from_secs(1);
/// `cachestat(2)`: the same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;
/// For how long pages of a file are let go of again and again: a reader may have some of them locked.
const FORGET_MAX: Duration = Duration::from_secs(5);
const FORGET_PAUSE: Duration = Duration::from_millis(20);
/// LIMIT: of directories inside each other, should links lead round.
const DEPTH_MAX: u32 = 8;

/// Roots in which a note is being made.
// LIMIT: as directories of this process.
static BEING_NOTED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Has the note made, by a thread that tries until it is there. That it is there needs no sync: it is asked for by those alone who find the same mount.
pub(super) fn note(root: &Path, what: &str) -> io::Result<()> {
    if !BEING_NOTED.lock().insert(root.to_owned()) {
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "it is being noted"));
    }
    let (told, tells) = channel();
    let (place, text) = (root.to_owned(), what.to_owned());
    let work = move || {
        loop {
            let made = make_note(&place, &text);
            let is_made = made.is_ok();
            if is_made {
                BEING_NOTED.lock().remove(&place);
            }
            // Nobody may wait for it any more.
            let _ = told.send(made);
            if is_made {
                return;
            }
            std::thread::sleep(NOTE_AGAIN);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("ashlar-loss".to_owned()).spawn(work) {
        BEING_NOTED.lock().remove(root);
        return make_note(root, what).map_err(|_| error);
    }
    match tells.recv_timeout(NOTE_WAIT) {
        Ok(made) => made,
        Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that notes it has ended")),
    }
}

fn make_note(root: &Path, what: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(root.join(NOTE_FILE))?;
    // For people; that the file is there is what counts, and there may be no room for more.
    let _ = writeln!(file, "{what}");
    Ok(())
}

/// Whether there is the note.
pub(super) fn is_noted(root: &Path) -> io::Result<bool> {
    root.join(NOTE_FILE).try_exists()
}

/// How many notes have been there and are gone.
pub(super) fn count(root: &Path) -> io::Result<u64> {
    match std::fs::metadata(root.join(COUNT_FILE)) {
        Ok(found) => Ok(found.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Ends what the note says, if it is there: see [`Disk::end_loss`]. Needs no room.
pub(super) fn end(disk: &OsDisk, root: &Path) -> io::Result<bool> {
    if !is_noted(root)? {
        return Ok(false);
    }
    forget_pages_below(root, 0)?;
    let count = count(root)?;
    let name = if count == 0 { NOTE_FILE } else { COUNT_FILE };
    let counted = OpenOptions::new().write(true).open(root.join(name))?;
    counted.set_len(count + 1)?;
    counted.sync_all()?;
    // ORDER: counted first, or the span of time is as it was before the loss.
    match count {
        0 => disk.rename(NOTE_FILE, COUNT_FILE)?,
        _ => disk.remove(NOTE_FILE)?,
    }
    disk.sync_dir("")?;
    Ok(true)
}

/// Has the kernel let go of what it has in memory of the files below `directory`.
pub(super) fn forget_pages_below(directory: &Path, depth: u32) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // What a link leads to: parts of a directory may be on another disk.
        let kind = match std::fs::metadata(&path) {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if kind.is_dir() {
            forget_pages_below(&path, depth + 1)?;
        } else if kind.is_file() {
            forget_pages(&path)?;
        }
    }
    Ok(())
}

/// Has the kernel let go of what it has in memory of a file. What is not written yet is written first.
fn forget_pages(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    if is_in_memory_only(&file)? {
        return Ok(());
    }
    let give_up = Instant::now() + FORGET_MAX;
    let mut is_synced = false;
    loop {
        // SAFETY: the descriptor is open; no memory is passed.
        let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        match pages_in_memory(&file) {
            Some(0) => return Ok(()),
            None if is_synced => return Ok(()),
            Some(_) if Instant::now() > give_up => break,
            Some(_) if is_synced => std::thread::sleep(FORGET_PAUSE),
            _ => {}
        }
        // An error is one that nobody was told of yet: that something is lost is known, and what could not be written counts as written from now on.
        let _ = file.sync_data();
        is_synced = true;
    }
    let what = format!(
        "after a write that failed, {} must be read from its device again, and the kernel keeps it in memory: end whoever uses it, or unmount its file system and mount it again",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::ResourceBusy, what))
}

/// Whether the file is in a file system that has no device.
fn is_in_memory_only(file: &File) -> io::Result<bool> {
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and `answer` is writable memory of the right type.
    if unsafe { libc::fstatfs(file.as_raw_fd(), answer.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstatfs returned 0, so it filled the structure.
    Ok(unsafe { answer.assume_init() }.f_type == libc::TMPFS_MAGIC)
}

/// `struct cachestat_range` of `linux/mman.h`: all of a file when both are 0.
#[repr(C)]
#[derive(Default)]
struct CacheRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of a file that are in memory; `None` where that is not told: before Linux 6.5, and where system calls are filtered by somebody who does not know this one.
fn pages_in_memory(file: &File) -> Option<u64> {
    let (mut range, mut found) = (CacheRange::default(), CacheStat::default());
    // SAFETY: the descriptor is open, and both structures are those that `cachestat` of Linux 6.5 reads and fills.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw mut range, &raw mut found, 0) };
    (result == 0).then_some(found.cached)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::OpenMode;

    #[test]
    fn a_loss_ends_the_span_of_time_once_and_what_is_in_memory_is_let_go_of() {
        let place = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(place.path());
        let Some(before) = disk.continuity() else { return };
        assert!(!disk.end_loss().unwrap());
        assert_eq!(disk.continuity(), Some(before));
        disk.create_dir("below").unwrap();
        let file = disk.open("below/file", OpenMode::CreateNew).unwrap();
        file.write_at(0, &[7; 40_000]).unwrap();
        let pages = || {
            let file = File::open(place.path().join("below/file")).unwrap();
            pages_in_memory(&file).filter(|_| !is_in_memory_only(&file).unwrap())
        };
        assert!(pages().is_none_or(|pages| pages == 10));
        disk.note_loss("sync of something").unwrap();
        disk.note_loss("write of something").unwrap();
        assert_eq!(disk.continuity(), None);
        let note = std::fs::read_to_string(place.path().join(NOTE_FILE)).unwrap();
        assert_eq!(note, "sync of something\nwrite of something\n");
        assert!(disk.end_loss().unwrap());
        assert!(pages().is_none_or(|pages| pages == 0));
        let after = disk.continuity().unwrap();
        assert_ne!(after, before);
        assert!(!disk.end_loss().unwrap());
        assert_eq!(disk.continuity(), Some(after));
        disk.note_loss("once more").unwrap();
        assert!(disk.end_loss().unwrap());
        assert!(![Some(before), Some(after), None].contains(&disk.continuity()));
        assert_eq!(count(place.path()).unwrap(), 2);
    }
}
