//! What a local file system may have lost while it stays mounted: the note of it, and its end.
//!
//! When Linux cannot write a page back it says so to the next `fsync(2)` and counts the page as clean from then on. It stays readable for as long as memory is
//! plenty, and is then gone; another `fsync` is answered with 0. So whoever is told of such an error cannot go on, and whoever uses the directory after it must not trust what it
//! reads from memory (<https://wiki.postgresql.org/wiki/Fsync_Errors>).

use super::OsDisk;
use crate::{Disk, replace_file};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// In the root, while something may be lost and nobody has gone on from what is left; says what happened.
const NOTE_FILE: &str = "write-failed";
/// In the root: how often that was, as decimal digits; 0 without it.
const COUNT_FILE: &str = "writes-failed";
/// `cachestat(2)`: the same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;
/// How often pages of a file are let go of before somebody else must be keeping them.
const ATTEMPTS: u32 = 3;

/// Makes the note. That it is there needs no sync: it is asked for by those alone who find the same mount.
pub(super) fn note(root: &Path, what: &str) -> io::Result<()> {
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
    match std::fs::read_to_string(root.join(COUNT_FILE)) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let what = format!("{} is not a number", root.join(COUNT_FILE).display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Ends what the note says, if it is there: see [`Disk::end_loss`].
pub(super) fn end(disk: &OsDisk, root: &Path) -> io::Result<bool> {
    if !is_noted(root)? {
        return Ok(false);
    }
    forget_pages_below(root)?;
    match count(root) {
        Ok(count) => replace_file(disk, COUNT_FILE, (count + 1).to_string().as_bytes())?,
        // There is no telling then in which span of time it is; each open counts as one after a loss.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
        Err(error) => return Err(error),
    }
    // ORDER: counted first, or the span of time is as it was before the loss.
    disk.remove(NOTE_FILE)?;
    disk.sync_dir("")?;
    Ok(true)
}

/// Has the kernel let go of what it has in memory of the files below `directory`.
fn forget_pages_below(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            forget_pages_below(&entry.path())?;
        } else if kind.is_file() {
            forget_pages(&entry.path())?;
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
    for _ in 0..ATTEMPTS {
        // SAFETY: the descriptor is open; no memory is passed.
        let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result));
        }
        if pages_in_memory(&file)?.is_none_or(|pages| pages == 0) {
            return Ok(());
        }
        file.sync_data()?;
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

/// Pages of a file that are in memory; `None` before Linux 6.5, which does not tell.
fn pages_in_memory(file: &File) -> io::Result<Option<u64>> {
    let (mut range, mut found) = (CacheRange::default(), CacheStat::default());
    // SAFETY: the descriptor is open, and both structures are those that `cachestat` of Linux 6.5 reads and fills.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw mut range, &raw mut found, 0) };
    if result == 0 {
        return Ok(Some(found.cached));
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => Ok(None),
        error => Err(error),
    }
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
            pages_in_memory(&file).unwrap().filter(|_| !is_in_memory_only(&file).unwrap())
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
        std::fs::write(place.path().join(COUNT_FILE), "many").unwrap();
        assert_eq!(disk.continuity(), None);
    }
}
