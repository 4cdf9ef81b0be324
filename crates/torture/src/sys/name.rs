//! Calls that change names: mkdir, unlink, rename, link, symlink, mknod.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{SysResult, c_path, check, check_unit};

/// `mkdirat(2)`.
///
/// # Errors
/// The call's errno.
pub fn mkdirat(dir: BorrowedFd<'_>, path: &[u8], mode: u32) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::mkdirat(dir.as_raw_fd(), path.as_ptr(), mode) })
}

/// `unlinkat(2)`; `flags` may be `AT_REMOVEDIR`.
///
/// # Errors
/// The call's errno.
pub fn unlinkat(dir: BorrowedFd<'_>, path: &[u8], flags: i32) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::unlinkat(dir.as_raw_fd(), path.as_ptr(), flags) })
}

/// `renameat2(2)` with both paths relative to `dir`.
///
/// # Errors
/// The call's errno.
pub fn renameat2(dir: BorrowedFd<'_>, from: &[u8], to: &[u8], flags: u32) -> SysResult<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    // SAFETY: both paths are live NUL-terminated strings.
    check_unit(unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            dir.as_raw_fd(),
            from.as_ptr(),
            dir.as_raw_fd(),
            to.as_ptr(),
            flags,
        )
    })
}

/// `linkat(2)` with both paths relative to `dir`; `flags` may be `AT_SYMLINK_FOLLOW`.
///
/// # Errors
/// The call's errno.
pub fn linkat(dir: BorrowedFd<'_>, from: &[u8], to: &[u8], flags: i32) -> SysResult<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    // SAFETY: both paths are live NUL-terminated strings.
    check_unit(unsafe { libc::linkat(dir.as_raw_fd(), from.as_ptr(), dir.as_raw_fd(), to.as_ptr(), flags) })
}

/// Gives the open file `fd` (for example one made with `O_TMPFILE`) the name `to`: `linkat(2)` with `AT_EMPTY_PATH`.
///
/// # Errors
/// The call's errno.
pub fn link_fd(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, to: &[u8]) -> SysResult<()> {
    let to = c_path(to)?;
    // SAFETY: both strings are live and NUL-terminated.
    check_unit(unsafe {
        libc::linkat(fd.as_raw_fd(), c"".as_ptr(), dir.as_raw_fd(), to.as_ptr(), libc::AT_EMPTY_PATH)
    })
}

/// `symlinkat(2)`.
///
/// # Errors
/// The call's errno.
pub fn symlinkat(target: &[u8], dir: BorrowedFd<'_>, path: &[u8]) -> SysResult<()> {
    let (target, path) = (c_path(target)?, c_path(path)?);
    // SAFETY: both strings are live and NUL-terminated.
    check_unit(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), path.as_ptr()) })
}

/// `readlinkat(2)`.
///
/// # Errors
/// The call's errno.
pub fn readlinkat(dir: BorrowedFd<'_>, path: &[u8]) -> SysResult<Vec<u8>> {
    let path = c_path(path)?;
    let mut buffer = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is writable for the length passed and `path` is a live string.
    let got = check(unsafe {
        libc::readlinkat(dir.as_raw_fd(), path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
    })?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

/// `mknodat(2)`.
///
/// # Errors
/// The call's errno.
pub fn mknodat(dir: BorrowedFd<'_>, path: &[u8], mode: u32, device: u64) -> SysResult<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a live NUL-terminated string.
    check_unit(unsafe { libc::mknodat(dir.as_raw_fd(), path.as_ptr(), mode, device) })
}
