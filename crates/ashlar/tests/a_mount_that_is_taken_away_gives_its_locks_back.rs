//! A mount that the kernel had given up kept its session, and with it its locks, for as long as other mounts of the server lived: who waited for such a
//! lock on another mount waited for ever.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Instant;
use support::{PATIENCE, Site, can_mount};

fn lock(file: &File) -> bool {
    // SAFETY: flock takes no pointer.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[test]
fn when_the_kernel_gives_it_up() {
    if !can_mount("giving a mount up") {
        return;
    }
    let site = Site::new();
    fs::create_dir(site.path("other")).unwrap();
    let server = site.up("up @mnt @other --data @d1");
    let control = site.path("control");
    fs::create_dir(&control).unwrap();
    let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(&control).status().unwrap();
    assert!(mounted.success());
    let held = File::create(site.mnt().join("file")).unwrap();
    let other = File::open(site.path("other").join("file")).unwrap();
    assert!(lock(&held) && !lock(&other));
    let connection = fs::metadata(site.mnt()).unwrap().dev() & 0xff;
    fs::write(control.join(connection.to_string()).join("abort"), "1").unwrap();
    let since = Instant::now();
    while !lock(&other) {
        assert!(since.elapsed() < PATIENCE, "the lock is still held");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(Command::new("umount").arg(&control).status().unwrap().success());
    drop((held, other));
    server.stop();
}
