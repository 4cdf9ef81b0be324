//! The guard beside a server: there while the server is, and the end of the server's connections should it be killed and not end.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{PATIENCE, Site, binary, can_mount};

/// Processes that `pid` has started and that go by the guard's name.
fn guards_of(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let is_guard = |child: &i32| {
        fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.starts_with(b"ashlar-guard\0"))
    };
    children.split_whitespace().filter_map(|child| child.parse().ok()).filter(is_guard).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The connection of the mount at `path`: the minor number of its device (proc_pid_mountinfo(5)).
fn connection_at(path: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let here = path.canonicalize().unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == here.to_str()).unwrap();
    line.split(' ').nth(2).unwrap().split_once(':').unwrap().1.to_owned()
}

#[test]
fn a_guard_is_there_as_long_as_its_server() {
    if !can_mount("a guard") {
        return;
    }
    let site = Site::new();
    let is_gone = |guard: i32| move || !Path::new(&format!("/proc/{guard}")).exists();
    let server = site.up("up @mnt --data @d1");
    let [guard] = guards_of(server.pid())[..] else { panic!("one guard") };
    server.stop();
    wait_until("it ends with a server that ends", is_gone(guard));
    let server = site.up("up @mnt --data @d1");
    let [guard] = guards_of(server.pid())[..] else { panic!("one guard") };
    server.end_by(libc::SIGKILL);
    wait_until("it ends with a server that is killed", is_gone(guard));
}

/// A server that cannot end cannot be had at will, so what the guard is told is that of one that lives, and what ends is another thread.
#[test]
fn the_guard_ends_the_connections_it_knows_when_the_thread_it_watches_ends() {
    if !can_mount("a guard") {
        return;
    }
    let site = Site::new();
    fs::create_dir(site.path("other")).unwrap();
    let server = site.up("up @mnt @other --data @d1");
    site.write_files();
    let (known, forgotten) = (connection_at(&site.mnt()), connection_at(&site.path("other")));
    let told = format!("+{known}\n+{forgotten}\n-{forgotten}\n");
    let watched = std::thread::spawn(move || guard_of_this_thread(&told));
    let (mut guard, input) = watched.join().unwrap();
    assert!(guard.wait().unwrap().success());
    drop(input);
    let refused = fs::read_dir(site.mnt()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTCONN), "{refused}");
    assert!(fs::read_dir(site.path("other")).is_ok(), "what was taken back is left alone");
    server.stop();
}

/// The kernel gives the number of a connection that is over to the next one: a guard that got to it late ended a mount that had been made since.
#[test]
fn a_guard_that_is_late_leaves_a_mount_alone_that_was_made_since() {
    if !can_mount("a guard that is late") {
        return;
    }
    let site = Site::new();
    // Others on this machine may be given the number in between.
    for _ in 0..5 {
        let server = site.up("up @mnt --data @d1");
        let before = connection_at(&site.mnt());
        let told = format!("+{before}\n");
        let ((is_known, known), (ends, is_to_end)) = (channel::<()>(), channel::<()>());
        let watched = std::thread::spawn(move || {
            let guarded = guard_of_this_thread(&told);
            is_known.send(()).unwrap();
            let _ = is_to_end.recv();
            guarded
        });
        // The guard is told while the mount is there.
        known.recv().unwrap();
        server.end_by(libc::SIGKILL);
        let next = site.up("up @mnt --data @d1");
        let after = connection_at(&site.mnt());
        drop(ends);
        let (mut guard, input) = watched.join().unwrap();
        assert!(guard.wait().unwrap().success());
        drop(input);
        fs::read_dir(site.mnt()).unwrap();
        fs::write(site.mnt().join("file"), "of the next one").unwrap();
        next.stop();
        if before == after {
            return;
        }
    }
    eprintln!("******** SKIPPED: no mount gets the number of the one before ********");
}

/// A guard that watches the calling thread, and has read what it was told.
fn guard_of_this_thread(told: &str) -> (Child, ChildStdin) {
    let mut command = Command::new(binary());
    command.arg0("ashlar-guard").stdin(Stdio::piped());
    // SAFETY: prctl is async-signal-safe and takes no pointer here.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1);
            Ok(())
        });
    }
    let mut guard = command.spawn().unwrap();
    let mut input = guard.stdin.take().unwrap();
    input.write_all(told.as_bytes()).unwrap();
    // It has read all of it when it waits for more, and its pipe is empty.
    let is_waiting =
        || fs::read_to_string(format!("/proc/{}/syscall", guard.id())).unwrap().starts_with("0 ");
    wait_until("the guard waits for more", || is_waiting() && unread(&input) == 0);
    (guard, input)
}

/// Bytes in a pipe that nobody has read yet.
fn unread(pipe: &ChildStdin) -> libc::c_int {
    let (mut count, fd) = (0, std::os::fd::AsRawFd::as_raw_fd(pipe));
    // SAFETY: FIONREAD stores one int at the address it is given.
    let result = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) };
    assert_eq!(result, 0);
    count
}
