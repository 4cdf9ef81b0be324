//! Ending a mount: cleanly if nobody uses it, lazily if somebody does.

use super::abort::{Connection, abort_connection};
use super::users::Users;
use super::{Mount, MountId, fusermount, table};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a mount ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmountOutcome {
    /// Nobody used it; it is gone.
    Clean,
    /// Somebody uses it: it is out of the tree, and ends when the last file there is closed.
    Lazy {
        /// For people: what is in use, and by which programs.
        message: String,
    },
    /// Somebody else had unmounted it.
    AlreadyGone,
}

/// Why a mount could not be ended.
#[derive(Debug, thiserror::Error)]
#[error("cannot unmount {path}: {error}", path = .path.display())]
pub struct UnmountError {
    /// Where.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

/// Unmounts `mount`, and never another mount that has taken its place.
pub(super) fn unmount(mount: &Mount) -> Result<UnmountOutcome, UnmountError> {
    let failed = |error| UnmountError { path: mount.path.clone(), error };
    let is_there = || table::find(&mount.path).map(|entry| entry.is_some_and(|entry| entry.id == mount.id));
    if !is_there().map_err(failed)? {
        return Ok(UnmountOutcome::AlreadyGone);
    }
    let detach = |is_lazy| {
        if mount.is_via_fusermount() {
            fusermount::unmount(&mount.path, is_lazy)
        } else {
            umount(&mount.path, is_lazy)
        }
    };
    match detach_patiently(|| detach(false)) {
        Ok(()) => return Ok(UnmountOutcome::Clean),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
        // EINVAL: it went away between the look and the call.
        Err(_) if !is_there().map_err(failed)? => return Ok(UnmountOutcome::AlreadyGone),
        Err(error) => return Err(failed(error)),
    }
    // ORDER: before it is out of the tree, where what programs have of it has no path any more.
    let users = Users::of(mount);
    detach(true).map_err(failed)?;
    Ok(UnmountOutcome::Lazy { message: format!("{} is in use by {users}", mount.path.display()) })
}

/// Tries again while the mount is busy, but not for long: a process that is just being started still holds its parent's
/// descriptors, a file just closed may not be released yet.
fn detach_patiently(detach: impl Fn() -> io::Result<()>) -> io::Result<()> {
    // LIMIT: how long a clean unmount waits for others to leave.
    const BUSY_TIMEOUT: Duration = Duration::from_millis(250);
    const BUSY_PAUSE: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match detach() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(BUSY_PAUSE);
            }
            result => return result,
        }
    }
}

/// Makes the kernel give a mount up: its connection is aborted, or, where that is not possible, the mount unmounted by force (as root), which
/// aborts the connection even if the mount itself stays because it is in use.
pub(super) fn abort(mount: &Mount) -> io::Result<()> {
    abort_at(&mount.path, mount.id)
}

/// Makes the kernel give up the FUSE mount at exactly `path`, whoever serves it: what waits there for an answer gets `ECONNABORTED`, what
/// comes later `ENOTCONN`. The mount stays in the tree while it is in use.
///
/// # Errors
/// `NotFound` when no FUSE file system is mounted there, and when there is no way: as an ordinary user without /sys/fs/fuse/connections.
pub fn give_up(path: &Path) -> io::Result<()> {
    let entry = table::find(path)?.filter(table::MountEntry::is_fuse);
    abort_at(path, entry.ok_or(io::ErrorKind::NotFound)?.id)
}

/// A way to make the kernel give up the FUSE mount at exactly `path`, as [`give_up`] does, that is good also when the mount is out of the tree.
///
/// # Errors
/// `NotFound` when no FUSE file system is mounted there. What is returned fails where there is no way.
pub fn give_up_later(path: &Path) -> io::Result<impl Fn() -> io::Result<()> + use<>> {
    let entry = table::find(path)?.filter(table::MountEntry::is_fuse);
    let id = entry.ok_or(io::ErrorKind::NotFound)?.id;
    let path = path.to_owned();
    Ok(move || abort_at(&path, id))
}

fn abort_at(path: &Path, id: MountId) -> io::Result<()> {
    let Err(error) = abort_connection(Connection(id.minor)) else { return Ok(()) };
    let is_there = table::find(path)?.is_some_and(|entry| entry.id == id);
    if !is_there {
        return Err(error);
    }
    match umount2(path, libc::MNT_FORCE) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        result => result,
    }
}

fn umount(path: &Path, is_lazy: bool) -> io::Result<()> {
    umount2(path, if is_lazy { libc::MNT_DETACH } else { 0 })
}

fn umount2(path: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` ends with a NUL and outlives the call.
    let result = unsafe { libc::umount2(path.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
