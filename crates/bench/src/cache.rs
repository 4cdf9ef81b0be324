//! Caches that a measurement must not be served from: what the kernel has of a file, and dropping it.

use crate::BenchError;
use rustix::fs::Advice;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Bytes looked at at a time.
const WINDOW_BYTES: u64 = 1 << 30;

/// Writes a file back, asks the kernel to forget its pages, and tells which part of them (0 to 1) is still there.
///
/// # Errors
/// What a call answers.
pub fn evict(path: &Path) -> Result<f64, BenchError> {
    // Writable: who may not write a file is not told what is cached of it (mincore(2)).
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(BenchError::io("open", path))?;
    file.sync_all().map_err(BenchError::io("fsync", path))?;
    // It is advice: whether it was taken is looked at below.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
    cached_part(&file, path)
}

/// The part of a file's pages that are in the page cache, from 0 to 1.
///
/// # Errors
/// What a call answers.
pub fn cached_part(file: &File, path: &Path) -> Result<f64, BenchError> {
    let len = file.metadata().map_err(BenchError::io("stat", path))?.len();
    let page = rustix::param::page_size() as u64;
    let (mut at, mut cached) = (0, 0);
    while at < len {
        let window = WINDOW_BYTES.min(len - at);
        match cached_pages(file, at, window, page) {
            Ok(pages) => cached += pages,
            // A file that cannot be mapped is not in the page cache (FUSE's direct I/O).
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(0.0),
            Err(error) => return Err(BenchError::io("find out what is cached of", path)(error)),
        }
        at += window;
    }
    Ok(cached as f64 / len.div_ceil(page).max(1) as f64)
}

fn cached_pages(file: &File, offset: u64, len: u64, page: u64) -> std::io::Result<u64> {
    let mut states = vec![0u8; len.div_ceil(page) as usize];
    let failed = std::io::Error::last_os_error;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours; nothing is read through it.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset as i64,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(failed());
    }
    // SAFETY: the range is exactly the mapping, and there is a byte for each of its pages.
    let answer = unsafe { libc::mincore(address, len as usize, states.as_mut_ptr()) };
    let error = (answer != 0).then(failed);
    // SAFETY: the range is exactly the mapping, and nothing refers to it any more.
    unsafe { libc::munmap(address, len as usize) };
    error.map_or_else(|| Ok(states.iter().filter(|state| **state & 1 != 0).count() as u64), Err)
}

/// Asks the kernel to drop all clean caches of this machine (/proc/sys/vm/drop_caches); false where that is not permitted.
pub fn drop_all() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// Memory of this machine, bytes; nothing where /proc does not tell.
pub fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_written_is_cached_and_can_be_evicted() {
        // Not on tmpfs, whose pages are the file.
        let folder = crate::test_disk::folder();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        assert!(cached_part(&file, &path).unwrap() > 0.9);
        assert!(evict(&path).unwrap() < 0.1);
        assert_eq!(std::fs::read(&path).unwrap().len(), 1 << 20);
        assert!(cached_part(&file, &path).unwrap() > 0.9);
    }

    #[test]
    fn an_empty_file_has_no_pages() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(cached_part(file.as_file(), file.path()).unwrap(), 0.0);
        assert!(memory_bytes().unwrap() > 1 << 24);
    }
}
