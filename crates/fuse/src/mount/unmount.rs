//! Ending a mount: cleanly if nobody uses it, lazily if somebody does.

use super::{Mount, fusermount, table};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How a mount ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmountOutcome {
    /// Nobody used it; it is gone.
    Clean,
    /// Somebody uses it: it is out of the tree, and ends when the last file there is closed.
    Lazy {
        /// A sentence for the user.
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
    match detach(false) {
        Ok(()) => return Ok(UnmountOutcome::Clean),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
        // EINVAL: it went away between the look and the call.
        Err(_) if !is_there().map_err(failed)? => return Ok(UnmountOutcome::AlreadyGone),
        Err(error) => return Err(failed(error)),
    }
    detach(true).map_err(failed)?;
    let path = mount.path.display();
    let message = format!(
        "{path} is in use; it was detached and ends when the last process leaves it (see them with: fuser -vm {path})"
    );
    tracing::warn!("{message}");
    Ok(UnmountOutcome::Lazy { message })
}

fn umount(path: &Path, is_lazy: bool) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if is_lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: `path` ends with a NUL and outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
