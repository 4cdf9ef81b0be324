//! Which programs keep a mount in use. /proc is asked for names only: whoever looks at the mount itself would wait for its server.

use super::Mount;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{read_dir, read_link};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// LIMIT: how long is looked. A program that hangs in a fault of the mount keeps whoever asks for its mappings waiting.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// LIMIT: how many programs are named.
const NAMED_MAX: usize = 8;

/// A program that uses a mount, in words: `process 4711 (bash: working directory)`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    pid: u32,
    name: String,
    what: &'static str,
}

/// Programs that use a mount, as far as they can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Users(Vec<User>);

impl Users {
    /// Looks for the programs that use `mount`, which is still in the tree.
    pub(super) fn of(mount: &Mount) -> Users {
        let (sender, found) = channel();
        let path = mount.path.clone();
        let look = move || {
            look(&path, &sender);
        };
        // A machine without a thread to spare has other troubles than names that are not told.
        if std::thread::Builder::new().name("ashlar-users".into()).spawn(look).is_err() {
            return Users::default();
        }
        let (deadline, mut users) = (Instant::now() + LOOK_TIMEOUT, Vec::new());
        while let Ok(user) = found.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            users.push(user);
        }
        Users(users)
    }
}

impl Users {
    /// All but one.
    pub(super) fn but(mut self, pid: u32) -> Users {
        self.0.retain(|user| user.pid != pid);
        self
    }

    /// Whether any was seen.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl fmt::Display for Users {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            let what = "something that cannot be seen from here (a program of another user, a mount below it, or another mount \
                        name space)";
            return out.write_str(what);
        }
        for (at, user) in self.0.iter().take(NAMED_MAX).enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(out, "{separator}process {} ({}: {})", user.pid, user.name, user.what)?;
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(out, " and {more} more"),
        }
    }
}

/// Sends every program that uses `mountpoint`, until nobody listens any more.
fn look(mountpoint: &Path, found: &Sender<User>) -> Option<()> {
    let pids = || {
        let entries = read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let mut rest = Vec::new();
    for pid in pids() {
        match use_of_links(mountpoint, pid) {
            Some(what) => found.send(user(pid, what)).ok()?,
            None => rest.push(pid),
        }
    }
    // Mappings last: asking for them may wait.
    for pid in rest {
        if has_mapping(mountpoint, pid) {
            found.send(user(pid, "mapped file")).ok()?;
        }
    }
    Some(())
}

fn user(pid: u32, what: &'static str) -> User {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    // Whatever a program calls itself is shown on somebody's terminal.
    let name = String::from_utf8_lossy(&name).trim_end().replace(char::is_control, "?");
    User { pid, name, what }
}

/// What of the mount the process has by a path that /proc shows. Processes that end meanwhile, or are somebody else's, have nothing.
fn use_of_links(mountpoint: &Path, pid: u32) -> Option<&'static str> {
    let is_below = |link: &str| {
        read_link(format!("/proc/{pid}/{link}")).is_ok_and(|target| target.starts_with(mountpoint))
    };
    for (link, what) in
        [("cwd", "working directory"), ("root", "root directory"), ("exe", "program running from it")]
    {
        if is_below(link) {
            return Some(what);
        }
    }
    let mut descriptors = read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors
        .any(|entry| read_link(entry.path()).is_ok_and(|target| target.starts_with(mountpoint)))
        .then_some("open file")
}

fn has_mapping(mountpoint: &Path, pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.split(|&byte| byte == b'\n').any(|line| {
        // The path is the only field with a slash, and the last.
        let path = line.iter().position(|&byte| byte == b'/').and_then(|at| line.get(at..));
        path.is_some_and(|path| Path::new(OsStr::from_bytes(path)).starts_with(mountpoint))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_named_in_part() {
        let user = |pid| User { pid, name: "sh".into(), what: "open file" };
        assert_eq!(
            Users((1..3).map(user).collect()).to_string(),
            "process 1 (sh: open file), process 2 (sh: open file)"
        );
        let many = Users((0..20).map(user).collect()).to_string();
        assert!(many.ends_with("process 7 (sh: open file) and 12 more"), "{many}");
        assert!(Users::default().to_string().contains("cannot be seen"));
    }

    #[test]
    fn an_open_file_and_a_working_directory_are_found_and_a_name_that_only_begins_alike_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("mnt");
        std::fs::create_dir(&path).unwrap();
        let me = std::process::id();
        let other = std::fs::File::create(path.with_file_name("mnt2")).unwrap();
        assert_eq!(use_of_links(&path, me), None);
        drop(other);
        let _open = std::fs::File::create(path.join("a b")).unwrap();
        assert_eq!(use_of_links(&path, me), Some("open file"));
        let mut child = std::process::Command::new("sleep").arg("100").current_dir(&path).spawn().unwrap();
        assert_eq!(use_of_links(&path, child.id()), Some("working directory"));
        assert_eq!(user(child.id(), "x").name, "sleep");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
