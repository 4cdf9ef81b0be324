//! Mounting as a user, through the set-user-id program fusermount3 of the package fuse3. It opens /dev/fuse, mounts, and
//! passes the descriptor back over a socket whose number it finds in `_FUSE_COMMFD`.

use super::error::MountError;
use crate::options::MountOptions;
use crate::transport::device::Device;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = "fusermount3";

/// LIMIT: how long fusermount3 may take to pass the descriptor.
const PASS_TIMEOUT: Duration = Duration::from_secs(30);

/// Mounts a new device at `path`.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Start)?;
    ours.set_read_timeout(Some(PASS_TIMEOUT)).map_err(MountError::Start)?;
    let theirs_fd = theirs.as_raw_fd();
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(option_list(options)).arg("--").arg(path);
    command
        .env("_FUSE_COMMFD", theirs_fd.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: fcntl is async-signal-safe and changes only the child's copy of the descriptor table.
    unsafe { command.pre_exec(move || keep_across_exec(theirs_fd)) };
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::FusermountMissing,
        _ => MountError::Start(error),
    })?;
    // ORDER: close our copy of their end before receiving, so that a helper that dies ends the wait.
    drop(theirs);
    let received = receive_descriptor(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(MountError::Start)?;
    let failed = |message: String| MountError::Fusermount { path: path.to_path_buf(), message };
    if !output.status.success() {
        return Err(failed(explain(&String::from_utf8_lossy(&output.stderr))));
    }
    received.map(Device::from_fd).map_err(|error| failed(format!("it passed no descriptor: {error}")))
}

/// Unmounts `path`; `is_lazy` as for umount(8) -l.
pub(super) fn unmount(path: &Path, is_lazy: bool) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if is_lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(path).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    let is_busy = message.contains("busy");
    Err(if is_busy { io::Error::from_raw_os_error(libc::EBUSY) } else { io::Error::other(message) })
}

fn option_list(options: &MountOptions) -> String {
    let mut list =
        vec![if options.read_only { "ro" } else { "rw" }.to_string(), "nosuid".into(), "nodev".into()];
    // A comma or backslash in a value must not start another option.
    let quoted = |value: &str| value.replace('\\', "\\\\").replace(',', "\\,");
    list.push(format!("fsname={}", quoted(&options.source)));
    list.push(format!("subtype={}", quoted(&options.subtype)));
    if options.allow_other {
        list.push("allow_other".into());
    }
    if options.default_permissions {
        list.push("default_permissions".into());
    }
    if let Some(max_read) = options.max_read {
        list.push(format!("max_read={max_read}"));
    }
    list.join(",")
}

fn explain(message: &str) -> String {
    let message = message.trim();
    if message.contains("user_allow_other") {
        return format!(
            "{message} (ask the administrator to add the line user_allow_other to /etc/fuse.conf)"
        );
    }
    if message.contains("failed to open /dev/fuse") {
        return format!(
            "{message} (ask the administrator to open it to users, as udev does: chmod 666 /dev/fuse)"
        );
    }
    if message.is_empty() { "it gave no reason".into() } else { message.into() }
}

fn keep_across_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with F_SETFD takes no pointer.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one descriptor (`SCM_RIGHTS`, unix(7)).
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    // Room for one descriptor, aligned as cmsghdr needs it.
    let mut control = [0u64; 8];
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: an all-zero msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` points to buffers of the lengths it names, which outlive the call.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: recvmsg filled `message`; the header it finds, if any, lies within `control`.
    let header = unsafe { libc::CMSG_FIRSTHDR(&message).as_ref() };
    let is_descriptor = |header: &&libc::cmsghdr| {
        header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS
    };
    let Some(header) = header.filter(is_descriptor) else {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    };
    // SAFETY: an SCM_RIGHTS message carries at least one descriptor, which is ours now.
    let fd = unsafe { libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned() };
    // SAFETY: the kernel made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_smuggle_in_an_option() {
        let options =
            MountOptions { source: "a,allow_other\\".into(), max_read: Some(4096), ..Default::default() };
        let expected = "rw,nosuid,nodev,fsname=a\\,allow_other\\\\,subtype=ashlar,max_read=4096";
        assert_eq!(option_list(&options), expected);
    }

    #[test]
    fn a_helper_that_passes_nothing_is_an_error_not_a_hang() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(receive_descriptor(&ours).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
