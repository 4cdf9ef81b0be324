//! The local socket through which commands reach a running file system: one JSON line in, one JSON line out.
//!
//! The socket is named after the file system's id, in /run/ashlar for root and in the user's runtime directory else. Only root
//! and the user who runs the file system are answered. Root asks the servers of all users, and believes a user what it says of
//! mounts that this user has made.

mod connect;
mod path_text;
mod scrub;
mod serve;

use connect::ask_briefly;
pub use connect::{ask, find_running, find_server};
pub use scrub::ScrubJobs;
pub use serve::{AdminSocket, own_socket_directory};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Longest request or reply line, bytes.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

/// What can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "request")]
pub enum AdminRequest {
    /// What is there and how it is.
    Status,
    /// The next portion of a scrub, or the first of a new one.
    Scrub {
        /// The scrub, as the first portion named it.
        job: Option<u64>,
    },
}

/// Something a scrub found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScrubFinding {
    /// The target.
    pub target: u32,
    /// The file, where that is known.
    pub inode: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// A portion of a scrub.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScrubPortion {
    /// The scrub, to be named for the next portion.
    pub job: u64,
    /// What was found. LIMIT: two per block of 4 KiB in 8 MiB and target.
    pub findings: Vec<ScrubFinding>,
    /// Bytes read from disks.
    pub bytes_read: u64,
    /// Whether this was the last portion.
    pub is_done: bool,
}

/// How a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetCondition {
    /// It serves.
    Online,
    /// Its directory was not listed at the start.
    Missing,
    /// It went out of service after an error, until the next start.
    Stopped,
    /// It has not stopped, but its local file system does not answer.
    Unreachable,
}

/// A target in [`Status`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Its id.
    pub id: u32,
    /// The pool it belongs to.
    pub pool: String,
    /// Whether it serves.
    pub online: bool,
    /// How it is.
    pub state: TargetCondition,
    /// Why, if it does not serve as it should.
    pub reason: Option<String>,
    /// Where it is.
    pub path: String,
    /// Total bytes of the local file system; an equal part where targets share one.
    pub bytes_total: u64,
    /// Free bytes; a part where targets share a local file system.
    pub bytes_free: u64,
}

/// The state of a file system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its id.
    pub cluster: String,
    /// Epoch of its map.
    pub epoch: u64,
    /// Process id of the server.
    pub pid: u32,
    /// Version of the software.
    pub version: String,
    /// Where its metadata is.
    #[serde(with = "path_text::one")]
    pub meta: PathBuf,
    /// Why the metadata takes no more changes; absent while it does.
    pub meta_stopped: Option<String>,
    /// Where it is mounted.
    #[serde(with = "path_text::many")]
    pub mounts: Vec<PathBuf>,
    /// Its targets.
    pub targets: Vec<TargetStatus>,
    /// Total bytes of all targets.
    pub bytes_total: u64,
    /// Free bytes of all targets.
    pub bytes_free: u64,
    /// Inodes in use; absent when the metadata does not tell.
    pub inodes_used: Option<u64>,
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdminReply {
    /// To [`AdminRequest::Status`].
    Status(Box<Status>),
    /// To [`AdminRequest::Scrub`].
    Scrub(Box<ScrubPortion>),
    /// It could not be done.
    Error(String),
}

/// Directories that may hold sockets, the own one first.
fn socket_directories() -> Vec<PathBuf> {
    let system = PathBuf::from("/run/ashlar");
    let uid = own_uid();
    if uid == 0 {
        return vec![system];
    }
    let own = match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("ashlar"),
        None => std::env::temp_dir().join(format!("ashlar-{uid}")),
    };
    vec![own, system]
}

/// Sockets of servers that listen now, as the kernel lists them (proc_net(5)): one may be in a runtime directory of another user, or of another
/// session of this one.
fn listening_sockets() -> Vec<PathBuf> {
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(socket_of_line).collect()
}

/// `ffff: 00000002 00000000 00010000 0001 01 4242 /run/user/1000/ashlar/ID.sock`
fn socket_of_line(line: &[u8]) -> Option<PathBuf> {
    // A name behind an `@` is no path.
    let before = line.windows(2).position(|two| two == b" /")?;
    let path = PathBuf::from(OsStr::from_bytes(&line[before + 1..]));
    let parent = path.parent()?.file_name()?.to_str()?;
    let is_ours = parent == "ashlar" || parent.starts_with("ashlar-");
    (is_ours && path.extension().is_some_and(|end| end == "sock")).then_some(path)
}

/// The user of this process.
fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a user may ask here, and be believed in everything.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == own_uid()
}

/// The user at the other end: who asks a server, or who made the socket that a command asks.
pub fn peer_uid(stream: &UnixStream) -> Result<u32> {
    Ok(peer(stream)?.uid)
}

/// The process at the other end.
fn peer_process(stream: &UnixStream) -> Result<u32> {
    Ok(peer(stream)?.pid.unsigned_abs())
}

fn peer(stream: &UnixStream) -> Result<libc::ucred> {
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
        return Err(std::io::Error::last_os_error()).context("cannot tell who is at the other end");
    }
    Ok(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_servers_are_told_from_other_lines_of_the_table() {
        let line =
            |path: &str| format!("00000000aa: 00000002 00000000 00010000 0001 01 4242 {path}").into_bytes();
        for path in ["/run/ashlar/a-b.sock", "/run/user/7/ashlar/a b.sock", "/tmp/ashlar-7/x.42.sock"] {
            assert_eq!(socket_of_line(&line(path)), Some(PathBuf::from(path)));
        }
        for path in ["", "@/ashlar/x.sock", "/run/other/x.sock", "/run/ashlar/x.pid", "/x.sock"] {
            assert_eq!(socket_of_line(&line(path)), None, "{path}");
        }
        assert_eq!(socket_of_line(b"Num       RefCount Protocol Flags    Type St Inode Path"), None);
    }
}
