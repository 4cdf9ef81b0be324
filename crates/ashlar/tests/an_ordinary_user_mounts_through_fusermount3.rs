//! A start as user nobody, with a data directory of its own, through the set-user-id program fusermount3.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::{Server, Site, can_mount, finish, is_mounted};

const NOBODY: u32 = 65534;

#[test]
fn a_user_mounts_uses_and_unmounts_a_file_system_of_its_own() {
    if !can_mount("a start as an ordinary user") {
        return;
    }
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().find(|path| Path::new(path).exists());
    let is_set_id = helper.is_some_and(|path| fs::metadata(path).unwrap().permissions().mode() & 0o4000 != 0);
    if !is_set_id {
        eprintln!("******** SKIPPED: a start as an ordinary user needs fusermount3 (package fuse3) ********");
        return;
    }
    let site = Site::new();
    // The build directory may be out of reach for others.
    let binary = site.path("ashlar");
    fs::copy(support::binary(), &binary).unwrap();
    for name in ["", "ashlar"] {
        fs::set_permissions(site.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["mnt", "d1", "d2"] {
        std::os::unix::fs::chown(site.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let as_nobody = |line: &str| {
        let mut command = Command::new(&binary);
        command.args(site.args(line)).uid(NOBODY).gid(NOBODY).current_dir("/");
        command.env("XDG_RUNTIME_DIR", site.path("d2")).env("HOME", "/nonexistent");
        command
    };
    // fusermount3 opens the device with the rights of the user; udev gives everybody access, a bare container does not.
    let device = Command::new("test").args(["-w", "/dev/fuse"]).uid(NOBODY).gid(NOBODY).status();
    if !device.unwrap().success() {
        eprintln!(
            "******** SKIPPED: /dev/fuse is not open to ordinary users here (its mode is usually 0666) ********"
        );
        return;
    }
    let server = match Server::start(as_nobody("up @mnt --data @d1"), site.mnt()) {
        Ok(server) => server,
        Err(ended) => panic!("{}", ended.all()),
    };
    let write = Command::new("sh")
        .args(["-c", "echo mine > \"$0/file\" && cat \"$0/file\"", site.mnt().to_str().unwrap()])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&write.stdout), "mine\n", "{write:?}");
    assert!(fs::read(site.mnt().join("file")).is_err(), "not even root looks into a user's mount");
    finish(&mut as_nobody("status @mnt")).expect(0);
    finish(&mut as_nobody("up @mnt --data @d1")).refused(&["is in use by"]);
    finish(&mut as_nobody("umount @mnt")).expect(0);
    server.end_by(0).expect(0);
    assert!(!is_mounted(&site.mnt()));
    finish(&mut as_nobody("fsck --data @d1")).expect(0);
}
