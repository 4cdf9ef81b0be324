//! Shared memory mappings of files.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Errno, SysResult, check_unit};

/// A shared mapping of part of a file; unmapped when dropped.
///
/// Access to bytes beyond the end of the file raises SIGBUS: callers map only ranges inside the file and do not share
/// it with anyone who truncates.
#[derive(Debug)]
pub struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

/// LIMIT: bytes in one mapping.
const MAPPING_BYTES_MAX: usize = 1 << 30;

impl Mapping {
    /// Maps `len` bytes at `offset` (a multiple of the page size), writable if asked.
    ///
    /// # Errors
    /// The errno of `mmap(2)`; `EINVAL` for a length of 0 or beyond the limit of 1 GiB.
    pub fn new(fd: BorrowedFd<'_>, offset: i64, len: usize, writable: bool) -> SysResult<Self> {
        if len == 0 || len > MAPPING_BYTES_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset)
        };
        if address == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(Self { address, len }) }
    }

    /// Copies `bytes` into the mapping at `at`.
    ///
    /// # Errors
    /// `EFAULT` when the range lies outside of the mapping.
    pub fn store(&mut self, at: usize, bytes: &[u8]) -> SysResult<()> {
        let end = at.checked_add(bytes.len()).filter(|end| *end <= self.len).ok_or(Errno(libc::EFAULT))?;
        debug_assert!(end <= self.len);
        // SAFETY: the target range was just checked to lie inside the mapping, and `bytes` cannot overlap it: the mapping is
        // reachable only through this value.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.cast::<u8>().add(at), bytes.len());
        }
        Ok(())
    }

    /// Copies `len` bytes out of the mapping from `at`.
    ///
    /// # Errors
    /// `EFAULT` when the range lies outside of the mapping.
    pub fn load(&self, at: usize, len: usize) -> SysResult<Vec<u8>> {
        at.checked_add(len).filter(|end| *end <= self.len).ok_or(Errno(libc::EFAULT))?;
        let mut bytes = vec![0u8; len];
        // SAFETY: the source range was just checked to lie inside the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address.cast::<u8>().add(at), bytes.as_mut_ptr(), len);
        }
        Ok(bytes)
    }

    /// `msync(2)` with `MS_SYNC` over the whole mapping.
    ///
    /// # Errors
    /// The call's errno.
    pub fn sync(&self) -> SysResult<()> {
        // SAFETY: the range is exactly our mapping.
        check_unit(unsafe { libc::msync(self.address, self.len, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly our mapping and nothing refers to it any more. A failure would leak address space only.
        unsafe { libc::munmap(self.address, self.len) };
    }
}
