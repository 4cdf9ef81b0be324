//! The identity of the calling thread.
//!
//! Linux keeps credentials per thread; the C library's `setresuid` changes all threads on purpose, so these wrappers make
//! the bare system calls. The saved user id stays 0, which lets the thread come back.

use super::{SysResult, check_unit};

/// A user the tests act as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl User {
    /// The superuser without supplementary groups.
    #[must_use]
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new() }
    }
}

/// Whether the process may switch identities (it runs as root).
#[must_use]
pub fn can_switch() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Runs `work` with real and effective ids of `user` on this thread and returns to root afterwards.
///
/// # Errors
/// The errno of the call that could not switch. Coming back cannot fail while the saved id is 0; if it does, the process is
/// no longer what the test thinks it is and aborts.
pub fn as_user<T>(user: &User, work: impl FnOnce() -> T) -> SysResult<T> {
    if user.uid == 0 {
        return Ok(work());
    }
    let back = Back;
    set_groups(&user.groups)?;
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::syscall(libc::SYS_setresgid, user.gid, user.gid, 0) })?;
    // SAFETY: no memory is passed.
    check_unit(unsafe { libc::syscall(libc::SYS_setresuid, user.uid, user.uid, 0) })?;
    let result = work();
    drop(back);
    Ok(result)
}

fn set_groups(groups: &[u32]) -> SysResult<()> {
    // SAFETY: the array is readable for its length.
    check_unit(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

struct Back;

impl Drop for Back {
    fn drop(&mut self) {
        // SAFETY: no memory is passed by the first two; the empty array of the third is never read.
        let restored = unsafe {
            libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) == 0
        };
        if !restored {
            eprintln!("cannot return to root after acting as another user");
            std::process::abort();
        }
    }
}

/// Gives the calling thread its own working directory, root and umask (`unshare(CLONE_FS)`), then makes
/// `root` the root directory of the thread.
///
/// # Errors
/// The errno of the call that failed.
pub fn enter(root: &std::path::Path) -> SysResult<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = super::c_path(root.as_os_str().as_bytes())?;
    // SAFETY: unshare, chdir and chroot take a live string or nothing.
    unsafe {
        check_unit(libc::unshare(libc::CLONE_FS))?;
        check_unit(libc::chdir(path.as_ptr()))?;
        check_unit(libc::chroot(c".".as_ptr()))?;
        libc::umask(0o022);
    }
    Ok(())
}

/// Makes the open directory `root` the working directory and the root directory of the calling thread, which has been in [`enter`] before.
///
/// # Errors
/// The errno of the call that failed.
pub fn enter_open(root: std::os::fd::BorrowedFd<'_>) -> SysResult<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: fchdir takes no memory, chroot a live string.
    unsafe {
        check_unit(libc::fchdir(root.as_raw_fd()))?;
        check_unit(libc::chroot(c".".as_ptr()))
    }
}

/// `umask(2)` of the calling thread (after [`enter`]); returns the old mask.
pub fn umask(mask: u32) -> u32 {
    // SAFETY: umask has no preconditions.
    unsafe { libc::umask(mask) }
}
