//! Ending the connection between the kernel and a server, whatever the server does.

use std::ffi::CStr;
use std::fs::{File, read_dir};
use std::io::{self, Write};
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
    ConnectionEnd::of(connection)?.end()
}

/// What ends one connection, and none that has its number afterwards: the kernel gives the number of a connection that is over to the next one.
#[derive(Debug)]
pub struct ConnectionEnd(File);

impl ConnectionEnd {
    /// That of a connection that there is.
    ///
    /// # Errors
    /// As of [`abort_connection`].
    pub fn of(connection: Connection) -> io::Result<ConnectionEnd> {
        let open = move || {
            let path = Path::new(CONTROL).join(connection.0.to_string()).join("abort");
            File::options().write(true).open(path).map(ConnectionEnd)
        };
        let is_mounted = read_dir(CONTROL).is_ok_and(|mut entries| entries.next().is_some());
        if is_mounted {
            return open();
        }
        // The control file system is mounted nowhere (in a container, or without systemd): for this thread alone it is, and goes with it and the file.
        let own_view = move || {
            mount_control()?;
            open()
        };
        let thread = std::thread::Builder::new().name("fuse-abort".into()).spawn(own_view)?;
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// Ends it, if it is not over.
    ///
    /// # Errors
    /// Those of the kernel's control file.
    pub fn end(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
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
