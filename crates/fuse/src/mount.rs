//! Making and ending the mount itself: checks, mount(2) or fusermount3, umount(2).

mod abort;
mod check;
mod error;
mod fusermount;
mod kernel;
pub(crate) mod table;
mod unmount;
mod users;

pub use abort::{Connection, ConnectionEnd, abort_connection};
pub use error::MountError;
pub use unmount::{UnmountError, UnmountOutcome, give_up, give_up_later};

use crate::options::{MountOptions, MountVia};
use crate::transport::device::Device;
use std::io;
use std::path::{Path, PathBuf};
use table::MountId;

pub use table::{ListedMount, file_system_type_at, mount_points, mount_user_at, mounts_of_type, table_path};

/// Checks whether `mountpoint` is fit to be mounted on, and changes nothing; returns it absolute and without symbolic links.
///
/// # Errors
/// See [`MountError`]; the text says what to do.
pub fn check_mountpoint(mountpoint: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    check::mountpoint(mountpoint, options)
}

/// The connection behind the mount at `mountpoint`, if one of type `fstype` is there. The directory is not touched: nobody may answer there.
///
/// # Errors
/// When the mount table cannot be read.
pub fn connection_at(mountpoint: &Path, fstype: &str) -> io::Result<Option<Connection>> {
    let entry = table::find(&std::path::absolute(mountpoint)?)?;
    Ok(entry.filter(|entry| entry.fstype == fstype).map(|entry| Connection(entry.id.minor)))
}

/// Programs other than `server`, which has the directory below it open, that use the mount at exactly `mountpoint`: in words, if there are any that can be seen. The
/// directory is not touched.
pub fn users_of(mountpoint: &Path, server: u32) -> Option<String> {
    let mount = Mount::there(mountpoint).ok()?;
    let users = users::Users::of(&mount).but(server);
    users.is_any().then(|| format!("{} is in use by {users}", mountpoint.display()))
}

/// A mount this process made.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) id: MountId,
    via: MountVia,
}

impl Mount {
    /// Checks `mountpoint` and mounts a new FUSE device there.
    pub(crate) fn make(mountpoint: &Path, options: &MountOptions) -> Result<(Self, Device), MountError> {
        let path = check::mountpoint(mountpoint, options)?;
        let via = match options.via {
            MountVia::Auto if is_root() => MountVia::Kernel,
            MountVia::Auto => MountVia::Fusermount,
            chosen => chosen,
        };
        let device = match via {
            MountVia::Fusermount => fusermount::mount(&path, options)?,
            MountVia::Kernel | MountVia::Auto => kernel::mount(&path, options)?,
        };
        let Some(entry) = table::find(&path).map_err(MountError::MountTable)? else {
            return Err(MountError::Vanished(path));
        };
        Ok((Self { path, id: entry.id, via }, device))
    }

    /// The mount that is at `mountpoint`, by whomever it was made. The directory is not touched: nobody may answer there.
    pub(crate) fn there(mountpoint: &Path) -> Result<Self, MountError> {
        let found = table::find(mountpoint).map_err(MountError::MountTable)?;
        let entry = found.filter(table::MountEntry::is_fuse);
        let Some(entry) = entry else { return Err(MountError::Vanished(mountpoint.to_path_buf())) };
        let via = if is_root() { MountVia::Kernel } else { MountVia::Fusermount };
        Ok(Self { path: mountpoint.to_path_buf(), id: entry.id, via })
    }

    /// See `Session::unmount`.
    pub(crate) fn unmount(&self) -> Result<UnmountOutcome, UnmountError> {
        unmount::unmount(self)
    }

    /// See `Session::abort`.
    pub(crate) fn abort(&self) -> io::Result<()> {
        unmount::abort(self)
    }

    pub(crate) fn is_via_fusermount(&self) -> bool {
        self.via == MountVia::Fusermount
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
