//! Shared memory mappings of files.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Errno, SysResult, check, check_unit};

/// A shared mapping of part of a file; unmapped when dropped.
///
/// Access to bytes beyond the end of the file raises SIGBUS: callers map only ranges inside the file and do not share
/// it with anyone who truncates, or leave the access to the kernel ([`Mapping::read_from`], [`Mapping::write_to`]).
#[derive(Debug)]
pub struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

// SAFETY: the mapping is memory of the process, not of a thread, and is reachable only through this value.
unsafe impl Send for Mapping {}

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

    /// `read(2)` from `from` into `len` bytes of the mapping at `at`. Unlike [`Mapping::store`] it may be used on a file that somebody
    /// truncates: the kernel tells of bytes behind the end by an errno.
    ///
    /// # Errors
    /// The call's errno; `EFAULT` for bytes behind the end of the file or outside of the mapping.
    pub fn read_from(&mut self, from: BorrowedFd<'_>, at: usize, len: usize) -> SysResult<usize> {
        at.checked_add(len).filter(|end| *end <= self.len).ok_or(Errno(libc::EFAULT))?;
        // SAFETY: the target range was just checked to lie inside the mapping.
        let got = unsafe { libc::read(from.as_raw_fd(), self.address.cast::<u8>().add(at).cast(), len) };
        check(got).map(|got| got as usize)
    }

    /// `write(2)` of `len` bytes of the mapping at `at` to `to`; as [`Mapping::read_from`] the other way round.
    ///
    /// # Errors
    /// The call's errno; `EFAULT` for bytes behind the end of the file or outside of the mapping.
    pub fn write_to(&self, to: BorrowedFd<'_>, at: usize, len: usize) -> SysResult<usize> {
        at.checked_add(len).filter(|end| *end <= self.len).ok_or(Errno(libc::EFAULT))?;
        // SAFETY: the source range was just checked to lie inside the mapping.
        let put = unsafe { libc::write(to.as_raw_fd(), self.address.cast::<u8>().add(at).cast(), len) };
        check(put).map(|put| put as usize)
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
