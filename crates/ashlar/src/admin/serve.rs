//! The serving side of the socket.

use super::{
    AdminReply, AdminRequest, LINE_BYTES_MAX, ask_briefly, is_trusted, own_uid, peer_uid, socket_directories,
};
use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for a line from a command.
const READ_MAX: Duration = Duration::from_secs(5);

/// LIMIT: longest wait for other servers that open their sockets; one that asks a full server which it is may take some seconds.
const LOCK_MAX: Duration = Duration::from_secs(30);

/// LIMIT: longest wait for the answer that is being made up when the socket is closed.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(20);

type Answer = Arc<dyn Fn(AdminRequest) -> AdminReply + Send + Sync>;

/// The open socket; removed when dropped. Whoever answers is not called any more from then on, and holds nothing.
pub struct AdminSocket {
    path: PathBuf,
    /// Locked for as long as an answer takes.
    answer: Arc<Mutex<Option<Answer>>>,
}

impl AdminSocket {
    /// Opens the socket of file system `cluster` and answers on a thread, one command after the other.
    ///
    /// # Errors
    /// When the directory or socket cannot be made.
    pub fn open(cluster: &str, answer: Answer) -> Result<AdminSocket> {
        AdminSocket::open_in(&socket_directories().swap_remove(0), cluster, answer)
    }

    fn open_in(directory: &Path, cluster: &str, answer: Answer) -> Result<AdminSocket> {
        make_own(directory)?;
        let alone = lock(directory)?;
        remove_dead(directory, cluster)?;
        let mut path = directory.join(format!("{cluster}.sock"));
        if path.exists() {
            // The metadata directory is locked: whoever answers there serves another one.
            eprintln!(
                "ashlar: a server of a file system with the same id runs already{}: one of the two is a copy of the other",
                whose(&path)
            );
            path = directory.join(format!("{cluster}.{}.sock", std::process::id()));
        }
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        drop(alone);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("cannot protect {}", path.display()))?;
        let answer = Arc::new(Mutex::new(Some(answer)));
        let answering = answer.clone();
        std::thread::Builder::new()
            .name("ashlar-admin".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    let outcome = stream.context("accept").and_then(|stream| serve_one(stream, &answering));
                    if let Err(error) = outcome {
                        tracing::warn!("a command on the local socket failed: {error:#}");
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(AdminSocket { path, answer })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Whoever stops the services next must find nobody using them.
        match self.answer.try_lock_for(LAST_ANSWER_MAX) {
            Some(mut answer) => *answer = None,
            None => tracing::warn!("a command on the local socket is still being answered"),
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the local socket");
        }
    }
}

/// The directory in which this user alone can make sockets, made if it is not there.
///
/// # Errors
/// When it cannot be made, or others can make something there.
pub fn own_socket_directory() -> Result<PathBuf> {
    let directory = socket_directories().swap_remove(0);
    make_own(&directory)?;
    Ok(directory)
}

fn make_own(directory: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(|| format!("cannot make directory {}", directory.display()))?;
    refuse_directory_of_others(directory)
}

/// Waits until no other server is at the sockets of `directory`: two of the same file system would take one name, and a socket that is
/// not listened to yet looks like that of a dead one. Let go of when dropped.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let end = Instant::now() + LOCK_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "another server that starts has held {} for {LOCK_MAX:?}: see what it waits for",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Removes the sockets of file system `cluster` whose servers have died.
fn remove_dead(directory: &Path, cluster: &str) -> Result<()> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot look into {}", directory.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_ours =
            name.strip_prefix(cluster).is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".sock"));
        if is_ours && UnixStream::connect(&path).is_err() {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// What the server behind `socket` says of itself, for a message.
fn whose(socket: &Path) -> String {
    match ask_briefly(socket, &AdminRequest::Status) {
        Ok(AdminReply::Status(status)) => {
            format!(", process {} with its metadata at {}", status.pid, status.meta.display())
        }
        _ => String::new(),
    }
}

fn serve_one(stream: UnixStream, answer: &Mutex<Option<Answer>>) -> Result<()> {
    stream.set_read_timeout(Some(READ_MAX))?;
    stream.set_write_timeout(Some(READ_MAX))?;
    let reply = if is_trusted(peer_uid(&stream)?) {
        let mut line = String::new();
        BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
        match serde_json::from_str(&line) {
            Ok(request) => match answer.lock().as_ref() {
                Some(answer) => answer(request),
                None => AdminReply::Error("the file system is stopping".into()),
            },
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

/// Without a runtime directory of the user's own the socket is in one for temporary files, where anybody could have made a directory
/// of that name first and put a socket of his in the place of ours.
fn refuse_directory_of_others(directory: &Path) -> Result<()> {
    let metadata =
        directory.symlink_metadata().with_context(|| format!("cannot look at {}", directory.display()))?;
    if !metadata.is_dir() || metadata.uid() != own_uid() || metadata.mode() & 0o022 != 0 {
        bail!(
            "{} is to hold sockets such as that for `ashlar status`, but another user owns it or may write to it: remove it, or set \
             XDG_RUNTIME_DIR to a directory that is yours alone",
            directory.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails stops there")]
    use super::*;

    #[test]
    fn copies_of_a_file_system_that_start_at_the_same_moment_get_a_socket_each() {
        let directory = tempfile::tempdir().unwrap();
        let cluster = "5d3f";
        for round in 0..20 {
            let answer: Answer = Arc::new(|_| AdminReply::Error("a test".into()));
            // One process can have two names only: its own and the plain one.
            let sockets: Vec<_> = std::thread::scope(|scope| {
                let open = || {
                    let answer = answer.clone();
                    let at = directory.path();
                    scope.spawn(move || AdminSocket::open_in(at, cluster, answer).unwrap())
                };
                [open(), open()].into_iter().map(|opening| opening.join().unwrap()).collect()
            });
            assert_ne!(sockets[0].path, sockets[1].path, "round {round}");
            assert!(sockets.iter().all(|socket| UnixStream::connect(&socket.path).is_ok()), "round {round}");
        }
    }
}
