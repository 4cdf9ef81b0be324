//! One open file.

use crate::DiskFile;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Parts handed to one `pwritev`; `IOV_MAX` on Linux.
const PARTS_PER_CALL: usize = 1024;
/// Bytes of zeros written at a time where holes cannot be punched.
const ZEROS_PER_CALL: usize = 64 * 1024;

/// A file of the operating system.
#[derive(Debug)]
pub struct OsFile {
    file: File,
}

impl OsFile {
    /// Wraps an open file.
    pub fn new(file: File) -> OsFile {
        OsFile { file }
    }

    /// `fallocate(2)`; `Ok(false)` when the local file system does not have the mode.
    fn fallocate(&self, mode: libc::c_int, offset: u64, len: u64) -> io::Result<bool> {
        let (offset, len) = (to_off_t(offset)?, to_off_t(len)?);
        loop {
            // SAFETY: the descriptor is open for as long as `self.file` lives; no memory is passed.
            if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) } == 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(false),
                _ => return Err(error),
            }
        }
    }

    /// `lseek(2)` with `SEEK_DATA` or `SEEK_HOLE`; `None` where there is none, `Ok(Err(()))` when the local file system cannot tell. The place of the
    /// descriptor that it moves is used by nobody.
    fn seek(&self, offset: u64, what: libc::c_int) -> io::Result<Result<Option<u64>, ()>> {
        // SAFETY: the descriptor is open for as long as `self.file` lives; no memory is passed.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), to_off_t(offset)?, what) };
        if found >= 0 {
            return Ok(Ok(Some(found.unsigned_abs())));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENXIO) => Ok(Ok(None)),
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(Err(())),
            _ => Err(error),
        }
    }

    fn write_zeros(&self, mut offset: u64, end: u64) -> io::Result<()> {
        let zeros = vec![0; ZEROS_PER_CALL];
        while offset < end {
            let step = (end - offset).min(ZEROS_PER_CALL as u64);
            self.write_at(offset, &zeros[..step as usize])?;
            offset += step;
        }
        Ok(())
    }
}

fn to_off_t(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

impl DiskFile for OsFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            match self.file.read_at(&mut out[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0); // drops empty leading parts
        let mut offset = offset;
        while !rest.is_empty() {
            let count = rest.len().min(PARTS_PER_CALL);
            let at = to_off_t(offset)?;
            // SAFETY: IoSlice is ABI-compatible with iovec, and the `count` first ones point to memory borrowed by `parts`.
            let wrote = unsafe {
                libc::pwritev(self.file.as_raw_fd(), rest.as_ptr().cast(), count as libc::c_int, at)
            };
            if wrote < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            if wrote == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            offset += wrote as u64;
            IoSlice::advance_slices(&mut rest, wrote as usize);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len()?;
        let all = (offset < len).then_some(offset..len);
        let Ok(start) = self.seek(offset, libc::SEEK_DATA)? else { return Ok(all) };
        let Some(start) = start else { return Ok(None) };
        let end = self.seek(start, libc::SEEK_HOLE)?.ok().flatten();
        Ok(Some(start..end.unwrap_or(len)))
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if self.fallocate(mode, offset, len)? {
            return Ok(());
        }
        let end = offset.saturating_add(len).min(self.len()?);
        self.write_zeros(offset, end)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 || self.fallocate(0, offset, len)? {
            return Ok(());
        }
        let end = offset.saturating_add(len);
        if end > self.len()? { self.set_len(end) } else { Ok(()) }
    }

    fn try_lock(&self) -> io::Result<()> {
        loop {
            // SAFETY: the descriptor is open for as long as `self.file` lives; no memory is passed.
            if unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
