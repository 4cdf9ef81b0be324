//! Commands as people type them: into a pipe that is closed early, about names that are no text, with words that are wrong, on mounts of others.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use support::{Site, ashlar, binary, can_mount, finish};

/// Runs the command with nobody reading what it prints.
fn unread(site: &Site, line: &str) -> std::process::Output {
    let mut command = Command::new(binary());
    command.args(site.args(line)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

#[test]
fn a_check_whose_reader_has_left_goes_on_to_its_end() {
    if !can_mount("a_check_whose_reader_has_left_goes_on_to_its_end") {
        return;
    }
    let site = Site::new();
    site.up("up @mnt --data @d1").stop();
    for line in ["fsck --data @d1", "fsck --repair --data @d1", "man @man", "backup --data @d1 @saved"] {
        let ended = unread(&site, line);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && !stderr.contains("panicked"), "{line}: {} {stderr}", ended.status);
    }
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    if !can_mount("what_cannot_be_printed_is_an_error") {
        return;
    }
    let site = Site::new();
    site.up("up @mnt --data @d1").stop();
    let mut command = Command::new(binary());
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ended =
        command.args(site.args("fsck --data @d1")).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_mount_point_that_is_no_text_does_not_hide_the_others() {
    if !can_mount("a_mount_point_that_is_no_text_does_not_hide_the_others") {
        return;
    }
    let site = Site::new();
    let odd = site.path("x").parent().unwrap().join(OsStr::from_bytes(b"odd\xff\x1b[2J"));
    fs::create_dir(&odd).unwrap();
    let mut command = Command::new(binary());
    command.arg("up").arg(site.mnt()).arg(&odd).args(site.args("--data @d1"));
    let server =
        support::Server::start(command, site.mnt()).unwrap_or_else(|ended| panic!("{}", ended.all()));
    let told = site.run("status @mnt").expect(0);
    assert!(told.stdout.contains("odd\\xff\\x1b[2J") && !told.stdout.contains('\x1b'), "{}", told.all());
    finish(Command::new(binary()).arg("status").arg(&odd)).expect(0);
    site.run("status --json @mnt").expect(0);
    server.stop();
}

#[test]
fn what_has_no_layout_is_told_as_what_it_is() {
    if !can_mount("what_has_no_layout_is_told_as_what_it_is") {
        return;
    }
    let site = Site::new();
    let server = site.up("up @mnt --data @d1");
    let pipe = CString::new(site.path("mnt/pipe").as_os_str().as_bytes()).unwrap();
    // SAFETY: the string ends with a NUL and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    site.run("layout show @mnt/pipe").refused(&["only directories and regular files"]);
    site.run("layout show @d1").refused(&["not on an Ashlar mount"]);
    server.stop();
}

#[test]
fn umount_leaves_mounts_of_others_alone() {
    if !can_mount("umount_leaves_mounts_of_others_alone") {
        return;
    }
    let site = Site::new();
    site.run("umount @mnt").refused(&["nothing is mounted"]);
    let path = CString::new(site.mnt().as_os_str().as_bytes()).unwrap();
    // SAFETY: the strings end with a NUL and outlive the call.
    let done =
        unsafe { libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
    assert_eq!(done, 0);
    let refused = site.run("umount @mnt");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0, "it is still there");
    refused.refused(&["a mount of tmpfs", "use umount"]);
}

#[test]
fn wrong_words_are_told_with_what_would_be_right() {
    let site = Site::new();
    site.run("--log infoo status").refused(&["`infoo` is no level", "warn"]);
    for (words, hint) in [
        (["--chunk-size", "100k"], "power of two from 64k to 16m"),
        (["--inline-size", "1m"], "256k at the most"),
        (["--stripe-count", "300"], "256"),
    ] {
        let ended = ashlar(&["layout", "set", "/", words[0], words[1]]);
        assert!(ended.code == Some(2) && ended.stderr.contains(hint), "{}", ended.all());
    }
}
