//! A first start that was refused left `meta/` behind, and sometimes a target: the next one with another choice of directories met them.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use support::user_world::UserWorld;
use support::{Site, can_mount, finish};

/// Checks that there is nothing in it.
#[track_caller]
fn is_empty(path: &Path) {
    let found: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(found.is_empty(), "{found:?} in {}", path.display());
}

#[test]
fn directories_inside_each_other_are_refused_before_anything_is_made() {
    if !can_mount("directories inside each other") {
        return;
    }
    let site = Site::new();
    for line in [
        "--data @d1 --data @d1/target",
        "--data @d1/target --data @d1",
        "--data @d1 --meta @d1/target",
        "--data @d1 --meta @d1/target/meta",
        "--data @d1 --meta @d2/x --data @d2/x/engine",
    ] {
        site.run(&format!("up @mnt {line}"))
            .refused(&["would be inside", "name directories that are not inside each other"]);
        is_empty(&site.path("d1"));
        is_empty(&site.path("d2"));
    }
    symlink(site.path("d1"), site.path("link")).unwrap();
    site.run("up @mnt --data @d1 --data @link/target").refused(&["would be inside"]);
    // Side by side in one directory they are in nobody's way.
    site.up("up @mnt --data @d1 --meta @d1 --data @d1/more").stop();
    site.up("up @mnt --data @d1 --meta @d1 --data @d1/more").stop();
    site.run("fsck --meta @d1 --data @d1 --data @d1/more").expect(0);
}

#[test]
fn a_mount_that_fusermount3_refuses_leaves_no_file_system() {
    UserWorld::enter("a first start with a refused mount", "", |world| {
        // A mount point of somebody else.
        let mnt = world.site.path("foreign");
        fs::create_dir(&mnt).unwrap();
        fs::set_permissions(&mnt, fs::Permissions::from_mode(0o755)).unwrap();
        for line in [
            "up @foreign --data @d1 --data @d2",
            "up @foreign --data @d1/new --meta @d2/flash",
            "up @foreign",
        ] {
            let ended = world.run(line).refused(&["fusermount3", "is removed again"]);
            assert!(ended.stderr.contains("made a new file system"), "{}", ended.all());
            is_empty(&world.site.path("d1"));
            is_empty(&world.site.path("d2"));
            is_empty(&world.site.path("home"));
        }
        world.up("up @mnt --data @d1").stop();
        // Of a file system that is there nothing goes.
        world.run("up @foreign --data @d1").refused(&["fusermount3"]);
        world.up("up --existing @mnt --data @d1").stop();
    });
}

#[test]
fn a_disk_that_is_too_small_is_left_empty() {
    UserWorld::enter("a first start on a small disk", "", |world| {
        let mount = |size: &str, name: &str| {
            let options = format!("size={size}");
            let mut command = Command::new("mount");
            command.args(["-t", "tmpfs", "-o", &options, "none"]).arg(world.site.path(name));
            finish(&mut command).expect(0);
        };
        for size in ["32k", "256k", "1m"] {
            mount(size, "d1");
            world.site.run("up @mnt --data @d1").refused(&["disk is full"]);
            is_empty(&world.site.path("d1"));
            world.site.run("up @mnt --data @d2 --data @d1").refused(&["disk is full"]);
            is_empty(&world.site.path("d1"));
            is_empty(&world.site.path("d2"));
            finish(Command::new("umount").arg(world.site.path("d1"))).expect(0);
        }
    });
}

#[test]
fn a_first_start_that_was_cut_short_is_not_taken_for_what_a_refused_one_has_made() {
    if !can_mount("a refused start after one that was cut short") {
        return;
    }
    let site = Site::new();
    fs::create_dir_all(site.path("d1/target")).unwrap();
    fs::write(site.path("d1/target/mine"), b"mine").unwrap();
    fs::create_dir(site.path("d1/meta")).unwrap();
    fs::write(site.path("d1/meta/secrets"), b"of an old file system").unwrap();
    site.run("up @mnt --data @d1 --data @d2").refused(&["there is secrets"]);
    assert_eq!(fs::read(site.path("d1/target/mine")).unwrap(), b"mine");
    assert_eq!(fs::read(site.path("d1/meta/secrets")).unwrap(), b"of an old file system");
    is_empty(&site.path("d2"));
}

#[test]
fn a_path_that_can_be_no_directory_is_told_with_the_way_out() {
    UserWorld::enter("paths that are no directories", "", |world| {
        let site = &world.site;
        fs::write(site.path("file"), b"").unwrap();
        symlink(site.path("nowhere"), site.path("dangling")).unwrap();
        symlink(site.path("loop"), site.path("loop")).unwrap();
        let file = site.path("file").display().to_string();
        let nowhere = site.path("nowhere").display().to_string();
        for (name, words) in [
            ("@file", [file.as_str(), "is not a directory: name a directory"]),
            ("@file/below", [file.as_str(), "which is not a directory; name another one"]),
            ("@dangling", [nowhere.as_str(), "is its disk mounted?"]),
            ("@dangling/below", [nowhere.as_str(), "is its disk mounted?"]),
            ("@loop", ["loop", "lead to each other"]),
        ] {
            site.run(&format!("up @mnt --data {name}")).refused(&words);
            site.run(&format!("up @mnt --data @d1 --meta {name}")).refused(&words);
            is_empty(&site.path("d1"));
        }
        fs::write(site.path("d1/target"), b"").unwrap();
        site.run("up @mnt --data @d1")
            .refused(&["d1/target is not a directory: name a directory, or remove"]);
        fs::remove_file(site.path("d1/target")).unwrap();
        let closed = site.path("closed");
        fs::create_dir_all(closed.join("below")).unwrap();
        for mode in [0o700, 0o755] {
            fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
            for line in ["--data @closed", "--data @closed/below/data", "--data @d1 --meta @closed/meta"] {
                world.run(&format!("up @mnt {line}")).refused(&[
                    "closed",
                    "Permission denied",
                    "this user may not use it",
                ]);
                is_empty(&site.path("d1"));
            }
        }
        is_empty(&closed.join("below"));
    });
}
