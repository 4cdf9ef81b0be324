//! The asking side of the socket.

use super::{
    AdminReply, AdminRequest, LINE_BYTES_MAX, Status, is_trusted, listening_sockets, own_uid, peer_process,
    peer_uid, socket_directories,
};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Longest wait for the state of a file system while looking for one: those that hang must not keep others from being found.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// Sockets looked at.
// LIMIT: each takes a thread for at most [`LOOK_MAX`]; sockets of servers that were killed count until those start again.
const SOCKETS_MAX: usize = 512;

/// Asks the file system behind `socket`.
///
/// # Errors
/// When nobody answers, or the answer is an error.
pub fn ask(socket: &Path, request: &AdminRequest) -> Result<AdminReply> {
    Ok(ask_within(socket, request, ANSWER_MAX)?.0)
}

/// As [`ask`], for a message that can do without the answer.
///
/// # Errors
/// As [`ask`].
pub fn ask_briefly(socket: &Path, request: &AdminRequest) -> Result<AdminReply> {
    Ok(ask_within(socket, request, LOOK_MAX)?.0)
}

/// The answer, and the user whose server has given it. Root gets an answer from anybody.
fn ask_within(socket: &Path, request: &AdminRequest, bound: Duration) -> Result<(AdminReply, u32)> {
    let stream = UnixStream::connect(socket).with_context(|| format!("cannot reach {}", socket.display()))?;
    let user = peer_uid(&stream)?;
    if !is_trusted(user) && own_uid() != 0 {
        bail!("{} belongs to a server of another user", socket.display());
    }
    stream.set_read_timeout(Some(bound))?;
    stream.set_write_timeout(Some(bound))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let mut answer = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX))
        .read_line(&mut answer)
        .with_context(|| format!("the server behind {} does not answer", socket.display()))?;
    match serde_json::from_str(&answer).context("the answer is of another version")? {
        AdminReply::Error(text) => bail!("{text}"),
        reply => Ok((reply, user)),
    }
}

/// The state of the file system behind `socket`, if it tells, and if it may be believed.
fn look_at(socket: &Path) -> Option<Status> {
    let (AdminReply::Status(mut status), user) = ask_within(socket, &AdminRequest::Status, LOOK_MAX).ok()?
    else {
        return None;
    };
    if is_trusted(user) {
        return Some(*status);
    }
    // Anybody could say that a mount of somebody else is theirs.
    status.mounts.retain(|mount| ashlar_fuse::mount_user_at(mount).is_ok_and(|owner| owner == Some(user)));
    (!status.mounts.is_empty()).then_some(*status)
}

/// The state of the server that has its metadata at `meta`, if one tells that may be believed in everything: it is of root or of this user, and is the process that it says it is. Anybody
/// can listen at a socket and name a process of somebody else.
pub fn find_server(meta: &Path) -> Option<Status> {
    let is_own = |socket: &Path| -> Option<Status> {
        let stream = UnixStream::connect(socket).ok()?;
        let (user, process) = (peer_uid(&stream).ok()?, peer_process(&stream).ok()?);
        drop(stream);
        let (AdminReply::Status(status), answered) =
            ask_within(socket, &AdminRequest::Status, LOOK_MAX).ok()?
        else {
            return None;
        };
        (user == answered && is_trusted(user) && process == status.pid && status.meta == meta)
            .then_some(*status)
    };
    let entries = socket_directories().into_iter().filter_map(|directory| std::fs::read_dir(directory).ok());
    let listed = entries.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    let sockets = listed.filter(|path| path.extension().is_some_and(|end| end == "sock"));
    sockets.chain(listening_sockets()).take(SOCKETS_MAX).find_map(|socket| is_own(&socket))
}

/// The running file systems that can be asked, with their sockets; only the one mounted at `mountpoint` if that is given.
///
/// # Errors
/// When there is none.
pub fn find_running(mountpoint: Option<&Path>) -> Result<Vec<(PathBuf, Status)>> {
    let mut sockets: Vec<PathBuf> = socket_directories()
        .iter()
        .filter_map(|directory| std::fs::read_dir(directory).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "sock"))
        .collect();
    sockets.sort();
    // Those behind: nobody else's sockets may keep the own ones from being looked at.
    let more: Vec<PathBuf> = listening_sockets().into_iter().filter(|path| !sockets.contains(path)).collect();
    sockets.extend(more);
    sockets.truncate(SOCKETS_MAX);
    let (sender, receiver) = std::sync::mpsc::channel();
    for socket in sockets {
        let sender = sender.clone();
        std::thread::Builder::new()
            .name("ashlar-look".into())
            .spawn(move || {
                // A socket nobody answers on was left by a process that was killed, or is one of a process that hangs.
                if let Some(status) = look_at(&socket) {
                    // The receiver may have found what it looked for.
                    let _ = sender.send((socket, status));
                }
            })
            .context("cannot start a thread")?;
    }
    drop(sender);
    let Some(wanted) = mountpoint else {
        let mut running: Vec<(PathBuf, Status)> = receiver.into_iter().collect();
        running.sort_by(|a, b| a.0.cmp(&b.0));
        if running.is_empty() {
            bail!("no file system is running here that you may ask; start one with `ashlar up MOUNTPOINT`");
        }
        return Ok(running);
    };
    // Not looked at, as long as it is called what it was mounted as: a mount whose server hangs would hang here.
    let absolute = std::path::absolute(wanted).unwrap_or_else(|_| wanted.to_owned());
    let mut others = Vec::new();
    for (socket, status) in receiver {
        if status.mounts.contains(&absolute) {
            return Ok(vec![(socket, status)]);
        }
        others.push((socket, status));
    }
    let resolved = absolute.canonicalize().unwrap_or(absolute);
    others.retain(|(_, status)| status.mounts.contains(&resolved));
    if others.is_empty() {
        bail!(
            "no file system that you may ask is mounted at {}, or its server does not answer",
            wanted.display()
        );
    }
    Ok(others)
}
