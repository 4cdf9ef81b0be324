//! Advisory locks: `flock(2)`, record locks of the process and of the open file description.

use std::os::fd::{AsRawFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use super::{Errno, SysResult, check, check_unit};

/// Whose a record lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockOwner {
    /// The process (`F_SETLK`).
    Process,
    /// The open file description (`F_OFD_SETLK`).
    Description,
}

/// A record lock request: kind (`F_RDLCK`, `F_WRLCK`, `F_UNLCK`), first byte and length (0 = to the end of all files).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// First byte.
    pub start: i64,
    /// Length in bytes; 0 means without end.
    pub len: i64,
}

impl Range {
    fn raw(self) -> libc::flock {
        libc::flock {
            l_type: self.kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: self.start,
            l_len: self.len,
            l_pid: 0,
        }
    }
}

/// `flock(2)`.
///
/// # Errors
/// The call's errno.
pub fn flock(fd: BorrowedFd<'_>, operation: i32) -> SysResult<()> {
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::flock(fd.as_raw_fd(), operation) })
}

/// `fcntl(2)` with `F_SETLK` or `F_OFD_SETLK`: never waits.
///
/// # Errors
/// The call's errno.
pub fn setlk(fd: BorrowedFd<'_>, owner: LockOwner, range: Range) -> SysResult<()> {
    let command = if owner == LockOwner::Process { libc::F_SETLK } else { libc::F_OFD_SETLK };
    let raw = range.raw();
    // SAFETY: `raw` is a live struct flock.
    check_unit(unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw) })
}

/// `fcntl(2)` with `F_OFD_SETLKW`: waits for the lock.
///
/// # Errors
/// The call's errno.
pub fn setlkw(fd: BorrowedFd<'_>, range: Range) -> SysResult<()> {
    let raw = range.raw();
    // SAFETY: `raw` is a live struct flock.
    check_unit(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLKW, &raw) })
}

/// `fcntl(2)` with `F_GETLK` or `F_OFD_GETLK`: the lock in the way, if any, without its owner.
///
/// # Errors
/// The call's errno.
pub fn getlk(fd: BorrowedFd<'_>, owner: LockOwner, range: Range) -> SysResult<Option<Range>> {
    let command = if owner == LockOwner::Process { libc::F_GETLK } else { libc::F_OFD_GETLK };
    let mut raw = range.raw();
    // SAFETY: `raw` is a live struct flock the call may write to.
    check_unit(unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut raw) })?;
    let kind = i32::from(raw.l_type);
    Ok((kind != libc::F_UNLCK).then_some(Range { kind, start: raw.l_start, len: raw.l_len }))
}

/// `F_SETLK` from a child process that ends at once: tells whether another process would get the lock.
///
/// # Errors
/// The errno the child saw, or that of `fork(2)`.
pub fn setlk_as_child(fd: BorrowedFd<'_>, range: Range) -> SysResult<()> {
    let raw = range.raw();
    // SAFETY: the child calls only fcntl and _exit, which are async-signal-safe, so fork is allowed with threads.
    let child = check(unsafe { libc::fork() })?;
    if child == 0 {
        // SAFETY: as above; `raw` was copied into the child's memory by fork.
        unsafe {
            let code = if libc::fcntl(fd.as_raw_fd(), libc::F_SETLK, &raw) < 0 {
                *libc::__errno_location()
            } else {
                0
            };
            libc::_exit(code & 0xff);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is a live local; the child is ours.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        let errno = Errno::last();
        if errno != Errno(libc::EINTR) {
            return Err(errno);
        }
    }
    if !libc::WIFEXITED(status) {
        return Err(Errno(libc::EINTR));
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        code => Err(Errno(code)),
    }
}
