//! Mounting, unmounting, and the forced shutdown of a file system that stands in for a power cut.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{SysResult, c_path, check_unit};

/// `FS_IOC_SHUTDOWN`, `_IOR('X', 125, __u32)` of `linux/fs.h`.
const FS_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Stop at once; neither data nor log is written out.
const SHUTDOWN_NO_LOG_FLUSH: u32 = 2;

/// Detaches the mount at `path` even if it is busy or its server is dead (`umount2(2)` with `MNT_DETACH`).
///
/// # Errors
/// The call's errno.
pub fn detach(path: &Path) -> SysResult<()> {
    let path = c_path(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })
}

/// Unmounts `path`.
///
/// # Errors
/// The call's errno.
pub fn unmount(path: &Path) -> SysResult<()> {
    let path = c_path(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::umount2(path.as_ptr(), 0) })
}

/// Shuts the ext4 or XFS file system of `fd` down without writing anything more, as a power cut would.
///
/// # Errors
/// The call's errno.
pub fn shutdown_filesystem(fd: BorrowedFd<'_>) -> SysResult<()> {
    let mode = SHUTDOWN_NO_LOG_FLUSH;
    // SAFETY: the request reads one u32 through the pointer.
    check_unit(unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_SHUTDOWN, &mode) })
}
