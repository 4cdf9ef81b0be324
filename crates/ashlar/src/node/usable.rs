//! Whether a path that somebody named can be a directory of a file system. The errors of the calls that would use it say only that it cannot.

use anyhow::{Context, Result, bail};
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Checks that `path` is a directory that can be looked into, or that nothing is there.
///
/// # Errors
/// With the path, and what to do.
pub fn require(path: &Path) -> Result<()> {
    let shown = path.display();
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) => match error.kind() {
            ErrorKind::NotFound => return require_no_dangling_link(path),
            ErrorKind::NotADirectory => {
                let file = path.ancestors().find(|path| path.is_file()).unwrap_or(path);
                bail!("{shown} is below {}, which is not a directory; name another one", file.display())
            }
            _ if error.raw_os_error() == Some(libc::ELOOP) => {
                bail!("{shown} leads through symbolic links that lead to each other; correct them (`ls -l`)")
            }
            ErrorKind::PermissionDenied => {
                return Err(error).with_context(|| format!("{shown} cannot be reached; {NO_PERMISSION}"));
            }
            _ => return Err(error).with_context(|| format!("cannot look at {shown}")),
        },
    };
    if metadata.file_type().is_block_device() {
        bail!(
            "{shown} is a block device; a data directory is one on a local file system: make one on the device (`mkfs`), mount it, and \
             name a directory there"
        );
    }
    if !metadata.is_dir() {
        bail!("{shown} is not a directory: name a directory, or remove what is there");
    }
    require_access(path)
}

/// What to do about a directory that this user may not use.
pub const NO_PERMISSION: &str = "this user may not use it: start as its owner, or have it given to this user (`chown -R`, and `chmod u+rwx`), or name another one";

/// Refuses root a metadata directory of another user, to change it: what root makes there that user cannot use any more.
///
/// # Errors
/// With the path, and what to do.
pub fn require_owner(path: &Path) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let owner = path.metadata().with_context(|| format!("cannot look at {}", path.display()))?.uid();
    if is_root && owner != 0 {
        bail!(
            "{} belongs to user {owner}, who could not use any more what root makes there: do this as that user (`runuser`, `sudo -u`), or \
             take the file system over first (`chown -R root` all its directories)",
            path.display()
        );
    }
    Ok(())
}

fn require_no_dangling_link(path: &Path) -> Result<()> {
    for path in path.ancestors() {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_symlink() && !path.exists() {
            let target = std::fs::read_link(path).unwrap_or_default();
            bail!(
                "{} is a symbolic link to {}, where nothing is: is its disk mounted? If not, mount it; to begin anew there, make the \
                 directory first (`mkdir`)",
                path.display(),
                target.display()
            );
        }
        break;
    }
    Ok(())
}

/// Whether this user can look into `path`. Whether it can be written to is a matter of who wants to.
fn require_access(path: &Path) -> Result<()> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL and outlives the call.
    let result =
        unsafe { libc::faccessat(libc::AT_FDCWD, text.as_ptr(), libc::R_OK | libc::X_OK, libc::AT_EACCESS) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    let way_out =
        if error.kind() == ErrorKind::PermissionDenied { NO_PERMISSION } else { "look at it with `ls -ld`" };
    Err(error).with_context(|| format!("cannot look into {}; {way_out}", path.display()))
}
