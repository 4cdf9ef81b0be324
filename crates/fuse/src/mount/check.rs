//! Is this directory fit to be mounted on? Every refusal says what to do.

use super::error::MountError;
use super::table::{self, MountEntry};
use crate::options::MountOptions;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// LIMIT: how long a FUSE mount that is already there may take to answer a stat.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks `mountpoint`; returns it absolute and without symbolic links.
pub(super) fn mountpoint(mountpoint: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let inaccessible = |error| MountError::Inaccessible { path: mountpoint.to_path_buf(), error };
    let absolute = lexically_absolute(mountpoint).map_err(inaccessible)?;
    // ORDER: the table before the directory, because touching a mount whose server hangs would hang here.
    refuse_fuse_mount(&absolute)?;
    let path = absolute.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing(absolute.clone()),
        io::ErrorKind::NotADirectory => MountError::NotADirectory(absolute.clone()),
        _ if error.raw_os_error() == Some(libc::ENOTCONN) => dead(&absolute),
        _ => inaccessible(error),
    })?;
    if path != absolute {
        refuse_fuse_mount(&path)?;
    }
    let metadata = path.metadata().map_err(inaccessible)?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory(path));
    }
    if !options.allow_nonempty && path.read_dir().map_err(inaccessible)?.next().is_some() {
        return Err(MountError::NotEmpty(path));
    }
    Ok(path)
}

/// Absolute, without `.` and doubled or trailing slashes, but with symbolic links and `..`.
fn lexically_absolute(path: &Path) -> io::Result<PathBuf> {
    let joined = std::path::absolute(path)?;
    Ok(joined.components().filter(|component| *component != Component::CurDir).collect())
}

fn refuse_fuse_mount(path: &Path) -> Result<(), MountError> {
    let entry = table::find(path).map_err(MountError::MountTable)?;
    let Some(entry) = entry.filter(MountEntry::is_fuse) else { return Ok(()) };
    match probe(path) {
        Some(Err(error)) if error.raw_os_error() == Some(libc::ENOTCONN) => Err(dead(path)),
        Some(_) => Err(MountError::AlreadyMounted {
            path: path.to_path_buf(),
            remedy: remedy(path, entry.fstype == "fuse.ashlar"),
            fstype: entry.fstype,
            source_name: entry.source,
        }),
        None => Err(MountError::Unresponsive { path: path.to_path_buf() }),
    }
}

fn dead(path: &Path) -> MountError {
    MountError::Dead { path: path.to_path_buf(), remedy: remedy(path, true) }
}

fn remedy(path: &Path, is_ours: bool) -> String {
    let path = path.display();
    if is_ours {
        format!("ashlar umount {path} (or fusermount3 -u {path})")
    } else {
        format!("fusermount3 -u {path}")
    }
}

/// stat(2) with a bound; `None` if it does not answer. The thread is left behind then: it ends when the mount does.
fn probe(path: &Path) -> Option<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_path_buf();
    let probe = move || {
        // The receiver may have given up.
        let _ = sender.send(path.metadata().map(|_| ()));
    };
    match std::thread::Builder::new().name("fuse-probe".into()).spawn(probe) {
        Ok(_) => receiver.recv_timeout(PROBE_TIMEOUT).ok(),
        Err(error) => Some(Err(error)),
    }
}
