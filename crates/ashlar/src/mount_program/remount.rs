//! Changing the flags of a mount that is there.

use super::{Call, c_path};
use anyhow::{Context, Result};
use std::io;
use std::path::Path;

/// `mount -o remount,...`: read-only for the whole file system, the other flags for this mount. mount(8) passes all flags that hold
/// afterwards.
pub(super) fn run(call: &Call) -> Result<()> {
    let mountpoint = call.mountpoint.display();
    change(&call.mountpoint, libc::MS_REMOUNT | call.options.flags).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EBUSY) => {
                anyhow::anyhow!(
                    "{mountpoint} has files open for writing (see them with: fuser -vm {mountpoint})"
                )
            }
            _ => anyhow::Error::new(error).context(format!("cannot remount {mountpoint}")),
        }
    })
}

/// Flags that the server has no option for, on a mount it has just made.
pub(super) fn apply_rest(mountpoint: &Path, flags: libc::c_ulong) -> Result<()> {
    let by_server = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
    if flags & !by_server == 0 {
        return Ok(());
    }
    change(mountpoint, libc::MS_REMOUNT | libc::MS_BIND | flags)
        .with_context(|| format!("cannot set the flags of {}", mountpoint.display()))
}

fn change(mountpoint: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let path = c_path(mountpoint).map_err(io::Error::other)?;
    let none = std::ptr::null();
    // SAFETY: the path ends with a NUL and outlives the call; a remount reads no source, type or data.
    let result = unsafe { libc::mount(none, path.as_ptr(), none, flags, none.cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
