//! Data and metadata directories: any order, additions, and every mix-up told with the directory and the way out.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use ashlar_types::codec::crc32c;
use std::fs;
use std::process::Command;
use support::{Site, can_mount};

#[test]
fn data_directories_come_in_any_order_and_may_be_added() {
    if !can_mount("orders of directories") {
        return;
    }
    let site = Site::with_files();
    fs::create_dir(site.path("d0")).unwrap();
    // A new directory in front changes nothing for the ones that are known.
    let server = site.up("up @mnt --data @d0 --data @d2 --data @d1");
    assert!(site.has_files());
    fs::write(site.mnt().join("more"), support::big()).unwrap();
    server.stop();
    let server = site.up("up @mnt --data @d1 --data @d2 --data @d0");
    assert!(site.has_files());
    assert_eq!(fs::read(site.mnt().join("more")).unwrap(), support::big());
    server.stop();
    site.run("fsck --data @d0 --data @d1 --data @d2").expect(0);
}

#[test]
fn metadata_can_be_moved_and_then_must_be_named() {
    if !can_mount("moved metadata") {
        return;
    }
    let site = Site::with_files();
    fs::rename(site.path("d1/meta"), site.path("flash")).unwrap();
    site.run("up @mnt --data @d1 --data @d2").refused(&["its metadata is not at", "--meta"]);
    let server = site.up("up @mnt --meta @flash --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}

#[test]
fn metadata_of_two_file_systems_is_told_apart() {
    if !can_mount("two file systems") {
        return;
    }
    let site = Site::with_files();
    fs::create_dir(site.path("e1")).unwrap();
    site.up("up @mnt --data @e1").stop();
    site.run("up @mnt --data @d1 --data @e1").refused(&["both hold metadata"]);
    site.run("up @mnt --meta @e1/meta --data @d1").refused(&["contradicts"]);
    site.run("up @mnt --meta @e1/meta --data @d2").refused(&["belongs to file system", "d2/target"]);
    site.run("fsck --meta @e1/meta --data @d2").expect(8);
    let server = site.up("up @mnt --meta @d1/meta --data @d1 --data @d2");
    assert!(site.has_files(), "naming the right one is no contradiction");
    server.stop();
}

#[test]
fn a_directory_listed_twice_is_refused_however_it_is_spelled() {
    if !can_mount("directories listed twice") {
        return;
    }
    let site = Site::with_files();
    site.run("up @mnt --data @d1 --data @d1").refused(&["is listed twice"]);
    site.run("up @mnt --data @d1 --data @d2/../d1").refused(&["is listed twice"]);
    std::os::unix::fs::symlink(site.path("d1"), site.path("link")).unwrap();
    site.run("up @mnt --data @d1 --data @link").refused(&["is listed twice"]);
    site.run("up @mnt @mnt --data @d1 --data @d2").refused(&["mount point", "is listed twice"]);
}

#[test]
fn a_copy_of_a_target_beside_the_target_is_refused_and_both_are_named() {
    if !can_mount("copies of targets") {
        return;
    }
    let site = Site::with_files();
    site.copy("d2", "copy");
    for line in ["--data @d1 --data @d2 --data @copy", "--data @copy --data @d2 --data @d1"] {
        let words = ["d2/target", "copy/target", "are both target-2", "one is a copy of the other"];
        site.run(&format!("up @mnt {line}")).refused(&words);
        let ended = site.run(&format!("fsck --repair {line}")).expect(8);
        assert!(ended.stderr.contains("are both target-2"), "{}", ended.all());
    }
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}

#[test]
fn a_target_that_has_vanished_is_named_and_can_be_left_out() {
    if !can_mount("vanished targets") {
        return;
    }
    let site = Site::with_files();
    fs::rename(site.path("d2"), site.path("unplugged")).unwrap();
    site.run("up @mnt --data @d1 --data @d2").refused(&["target-2 was at", "is its disk mounted?"]);
    fs::create_dir(site.path("d2")).unwrap();
    site.run("up @mnt --data @d1 --data @d2").refused(&["target-2 was at", "leave this --data out"]);
    site.run("up @mnt --data @d1 --data @mistyped").refused(&["there is no directory", "mistyped", "mkdir"]);
    let server = site.up("up @mnt --data @d1");
    assert_eq!(fs::read(site.mnt().join("dir/small")).unwrap(), b"small content");
    let error = fs::read(site.mnt().join("dir/sub/big")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "not zeros: {error}");
    let status = site.run("status @mnt").expect(0);
    assert!(status.stdout.contains("missing"), "{}", status.all());
    let ended = server.end_by(libc::SIGTERM).expect(0);
    assert!(ended.stderr.contains("target-2 is missing (last seen at"), "{}", ended.all());
    let ended = site.run("fsck --data @d1").expect(4);
    assert!(ended.stdout.contains("[file-unreadable] /dir/sub/big"), "{}", ended.all());
    let server = site.up("up @mnt --data @d1 --data @unplugged");
    assert!(site.has_files(), "back, at another place");
    server.stop();
}

#[test]
fn a_new_directory_in_the_place_of_a_target_that_has_moved_is_taken_for_a_new_target() {
    if !can_mount("targets that move") {
        return;
    }
    let site = Site::with_files();
    fs::rename(site.path("d2"), site.path("moved")).unwrap();
    fs::create_dir(site.path("d2")).unwrap();
    site.run("up @mnt --data @d1 --data @d2").refused(&["target-2 was at", "leave this --data out"]);
    let server = site.up("up @mnt --data @d1 --data @d2 --data @moved");
    assert!(site.has_files());
    server.stop();
    site.run("fsck --data @d1 --data @moved --data @d2").expect(0);
}

#[test]
fn a_start_without_a_target_works_after_a_kill_too() {
    if !can_mount("a missing target after a kill") {
        return;
    }
    let site = Site::new();
    let mut server = std::mem::ManuallyDrop::new(site.up("up @mnt --data @d1 --data @d2"));
    site.write_files();
    // SAFETY: kill takes no pointer; the process is our child.
    unsafe { libc::kill(server.pid(), libc::SIGKILL) };
    server.wait();
    site.run("umount @mnt").expect(0);
    fs::rename(site.path("d2"), site.path("unplugged")).unwrap();
    let server = site.up("up @mnt --data @d1");
    assert_eq!(fs::read(site.mnt().join("dir/small")).unwrap(), b"small content");
    server.stop();
    fs::rename(site.path("unplugged"), site.path("d2")).unwrap();
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}

#[test]
fn a_target_of_a_newer_format_is_left_alone() {
    if !can_mount("newer formats") {
        return;
    }
    let site = Site::with_files();
    let path = site.path("d2/target/target");
    let mut header = fs::read(&path).unwrap();
    header.truncate(48);
    header[8] = 9;
    let crc = crc32c(0, &header);
    header.extend_from_slice(&crc.to_le_bytes());
    fs::write(&path, &header).unwrap();
    let words = ["d2/target/target", "has format 9", "leave this data directory out"];
    site.run("up @mnt --data @d1 --data @d2").refused(&words);
    site.run("fsck --repair --data @d1 --data @d2").expect(4);
    assert_eq!(fs::read(&path).unwrap(), header, "repair does not overwrite what a newer release made");
}

#[test]
fn a_read_only_disk_is_named() {
    if !can_mount("read-only disks") {
        return;
    }
    let site = Site::with_files();
    for (name, word) in [("d2", "d2"), ("d1", "d1")] {
        let disk = site.path(name);
        let mount = |args: &[&str]| Command::new("mount").args(args).arg(&disk).status().unwrap().success();
        assert!(mount(&["--bind", disk.to_str().unwrap()]));
        let is_read_only = mount(&["-o", "remount,bind,ro"]);
        let ended = is_read_only.then(|| site.run("up @mnt --data @d1 --data @d2"));
        assert!(Command::new("umount").arg(&disk).status().unwrap().success());
        ended.unwrap().refused(&[word, "Read-only file system"]);
    }
    let server = site.up("up @mnt --data @d1 --data @d2");
    assert!(site.has_files());
    server.stop();
}

#[test]
fn a_newer_format_of_the_state_files_is_told_as_that() {
    if !can_mount("newer formats") {
        return;
    }
    let site = Site::with_files();
    for (file, old) in [("cluster-state", b"ASHLCRD2"), ("secrets", b"ASHLSEC1")] {
        let path = site.path("d1/meta").join(file);
        let mut bytes = fs::read(&path).unwrap();
        assert_eq!(&bytes[..8], old);
        bytes[7] += 1;
        fs::write(&path, &bytes).unwrap();
        site.run("up @mnt --data @d1 --data @d2").refused(&[file, "a newer format", "use a newer ashlar"]);
        let told = site.run("fsck --data @d1 --data @d2").expect(8);
        assert!(told.stderr.contains("use a newer ashlar"), "{}", told.all());
        bytes[7] -= 1;
        fs::write(&path, &bytes).unwrap();
    }
    site.up("up @mnt --data @d1 --data @d2").stop();
}
