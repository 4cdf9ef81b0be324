//! Passthrough: local files that serve the reads and writes of an open file inside the kernel (Linux 6.9 and later).

use crate::errno::Errno;
use crate::notify::{Notifier, NotifyError};
use crate::protocol::{Features, wire};
use crate::reply::BackingId;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `FUSE_DEV_IOC_BACKING_OPEN`, `_IOW(229, 1, struct fuse_backing_map)`.
const IOC_BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`, `_IOW(229, 2, u32)`.
const IOC_BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

impl Notifier {
    /// Makes an open local file a backing file, to be named in `Opened::backing`. The kernel holds its own reference.
    ///
    /// # Errors
    /// `Unsupported` without `PASSTHROUGH`; `Refused(EPERM)` without `CAP_SYS_ADMIN`.
    pub fn backing_open(&self, file: BorrowedFd<'_>) -> Result<BackingId, NotifyError> {
        self.require(Features::PASSTHROUGH)?;
        let map = wire::BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        let device = self.device()?;
        // SAFETY: the ioctl reads one `fuse_backing_map`.
        let id = unsafe { libc::ioctl(device.raw(), IOC_BACKING_OPEN as _, &raw const map) };
        if id > 0 { Ok(BackingId(id)) } else { Err(NotifyError::Refused(Errno::last())) }
    }

    /// Ends the name of a backing file; files opened with it keep it until they are closed.
    ///
    /// # Errors
    /// `Refused(ENOENT)` if there is no such backing file.
    pub fn backing_close(&self, id: BackingId) -> Result<(), NotifyError> {
        let device = self.device()?;
        let id = id.0 as u32;
        // SAFETY: the ioctl reads one u32.
        let result = unsafe { libc::ioctl(device.raw(), IOC_BACKING_CLOSE as _, &raw const id) };
        if result == 0 { Ok(()) } else { Err(NotifyError::Refused(Errno::last())) }
    }
}
