//! Page-aligned memory that the kernel writes requests into and reads replies from.

use std::io;

/// An anonymous private mapping. Pages are taken when first touched.
pub(crate) struct Region {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; access goes through `&self` and `&mut self` as for a boxed slice.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives only shared access to bytes.
unsafe impl Sync for Region {}

impl Region {
    /// `len` zero bytes, rounded up to whole pages by the kernel.
    ///
    /// # Errors
    /// ENOMEM and the like from mmap(2).
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` readable bytes, zeroed by the kernel, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are what mmap gave, and nothing borrows from a value being dropped.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// The host's page size in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf reads a constant.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
