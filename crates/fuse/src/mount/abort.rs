//! Ending the connection between the kernel and a server, whatever the server does.

use std::ffi::CStr;
use std::fs::{read_dir, write};
use std::io;
use std::path::Path;

/// Where the kernel lets connections be ended (Documentation/filesystems/fuse.rst of Linux).
const CONTROL: &str = "/sys/fs/fuse/connections";
const CONTROL_PATH: &CStr = c"/sys/fs/fuse/connections";

/// The number of a connection: the minor number of the mount's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection(pub u32);

/// Ends a connection, as its owner or root: what waits for an answer gets `ECONNABORTED`, what comes later `ENOTCONN`, also where the mount is
/// out of the tree and lives on because it is in use.
///
/// # Errors
/// `NotFound` when there is no such connection; `PermissionDenied` where there is no way to end one: as an ordinary user without
/// /sys/fs/fuse/connections.
pub fn abort_connection(connection: Connection) -> io::Result<()> {
    let is_mounted = read_dir(CONTROL).is_ok_and(|mut entries| entries.next().is_some());
    if is_mounted {
        return end(connection);
    }
    // The control file system is mounted nowhere (in a container, or without systemd): for this thread alone it is, and goes with it.
    let own_view = move || {
        mount_control()?;
        end(connection)
    };
    let thread = std::thread::Builder::new().name("fuse-abort".into()).spawn(own_view)?;
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

fn end(connection: Connection) -> io::Result<()> {
    write(Path::new(CONTROL).join(connection.0.to_string()).join("abort"), "1")
}

/// Mounts the control file system where only the calling thread sees it.
fn mount_control() -> io::Result<()> {
    let told = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: it changes what the calling thread sees of mounts, and its working directory, which is its own from now on.
    told(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: the path ends with a NUL; the pointers that are null are not looked at for a change of propagation (mount(2)).
    told(unsafe { libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()) })?;
    let name = c"fusectl".as_ptr();
    // SAFETY: the names end with a NUL; this file system takes no data.
    told(unsafe { libc::mount(name, CONTROL_PATH.as_ptr(), name, 0, std::ptr::null()) })
}
