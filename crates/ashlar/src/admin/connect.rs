//! The asking side of the socket.

use super::{AdminReply, AdminRequest, LINE_BYTES_MAX, Status, socket_directories};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Asks the file system behind `socket`.
///
/// # Errors
/// When nobody answers, or the answer is an error.
pub fn ask(socket: &Path, request: &AdminRequest) -> Result<AdminReply> {
    let stream = UnixStream::connect(socket).with_context(|| format!("cannot reach {}", socket.display()))?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let mut answer = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut answer)?;
    match serde_json::from_str(&answer).context("the answer is of another version")? {
        AdminReply::Error(text) => bail!("{text}"),
        reply => Ok(reply),
    }
}

/// The running file systems that can be asked, with their sockets; only the one mounted at `mountpoint` if that is given.
///
/// # Errors
/// When there is none.
pub fn find_running(mountpoint: Option<&Path>) -> Result<Vec<(PathBuf, Status)>> {
    let wanted = mountpoint.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    let mut running = Vec::new();
    for directory in socket_directories() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in
            entries.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "sock"))
        {
            // A socket nobody answers on was left by a process that was killed.
            if let Ok(AdminReply::Status(status)) = ask(&entry.path(), &AdminRequest::Status)
                && wanted.as_ref().is_none_or(|wanted| status.mounts.contains(wanted))
            {
                running.push((entry.path(), *status));
            }
        }
    }
    match (&wanted, running.is_empty()) {
        (_, false) => Ok(running),
        (Some(path), true) => bail!("no file system that you may ask is mounted at {}", path.display()),
        (None, true) => {
            bail!("no file system is running here that you may ask; start one with `ashlar up MOUNTPOINT`")
        }
    }
}
