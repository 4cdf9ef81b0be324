//! The serving side of the socket.

use super::{AdminReply, AdminRequest, LINE_BYTES_MAX, socket_directories};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a line from a command.
const READ_MAX: Duration = Duration::from_secs(5);

/// The open socket; removed when dropped.
pub struct AdminSocket {
    path: PathBuf,
}

impl AdminSocket {
    /// Opens the socket of file system `cluster` and answers on a thread, one command after the other.
    ///
    /// # Errors
    /// When the directory or socket cannot be made.
    pub fn open(
        cluster: &str,
        answer: Arc<dyn Fn(AdminRequest) -> AdminReply + Send + Sync>,
    ) -> Result<AdminSocket> {
        let directory = socket_directories().swap_remove(0);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&directory)
            .with_context(|| format!("cannot make directory {}", directory.display()))?;
        let path = directory.join(format!("{cluster}.sock"));
        // The metadata directory is locked, so a socket left here belongs to a process that has died.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))?;
        std::thread::Builder::new()
            .name("ashlar-admin".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    let outcome =
                        stream.context("accept").and_then(|stream| serve_one(stream, answer.as_ref()));
                    if let Err(error) = outcome {
                        tracing::warn!("a command on the local socket failed: {error:#}");
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(AdminSocket { path })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the local socket");
        }
    }
}

fn serve_one(stream: UnixStream, answer: &(dyn Fn(AdminRequest) -> AdminReply + Send + Sync)) -> Result<()> {
    stream.set_read_timeout(Some(READ_MAX))?;
    stream.set_write_timeout(Some(READ_MAX))?;
    let peer = peer_uid(&stream)?;
    // SAFETY: geteuid has no preconditions and cannot fail.
    let own = unsafe { libc::geteuid() };
    let reply = if peer == 0 || peer == own {
        let mut line = String::new();
        BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
        match serde_json::from_str(&line) {
            Ok(request) => answer(request),
            Err(error) => AdminReply::Error(format!("this server does not know that request: {error}")),
        }
    } else {
        AdminReply::Error("only root and the user who runs the file system may ask".into())
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    Ok(())
}

fn peer_uid(stream: &UnixStream) -> Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a ucred and its length, and the descriptor is open.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot tell who asks");
    }
    Ok(peer.uid)
}
