//! Goal: `ashlar status` tells a target that has stopped after an error, with the reason, and one whose disk was taken away; new files go
//! to the others. Method: the second target is on a disk of its own, which is shut down or unmounted under it.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::disk::cut_power;
use support::user_world::UserWorld;
use support::{can_start, has_package};

/// Figures of time after which metadata asks the targets anew.
const ASKED_ANEW: Duration = Duration::from_millis(2500);

fn status(world: &UserWorld) -> serde_json::Value {
    let status = world.site.run("status @mnt --json").expect(0);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    status[0].clone()
}

fn states(status: &serde_json::Value) -> Vec<&str> {
    status["targets"].as_array().unwrap().iter().map(|target| target["state"].as_str().unwrap()).collect()
}

fn write_and_sync(world: &UserWorld, name: &str) -> std::io::Result<()> {
    let mut file = fs::File::create(world.site.mnt().join(name))?;
    file.write_all(&support::big())?;
    file.sync_all()
}

/// A small disk of its own at `disk` with a directory `b`; `None`, said where people look, if there cannot be one here.
fn disk_that_can_fail(world: &UserWorld) -> Option<PathBuf> {
    let (image, disk) = (world.site.path("image"), world.site.path("disk"));
    fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    fs::create_dir(&disk).unwrap();
    let is_done = |command: &mut Command| command.status().is_ok_and(|done| done.success());
    let has_program = can_start("mkfs.ext4", "-V");
    if !has_package("a disk that fails", "e2fsprogs", has_program) {
        return None;
    }
    assert!(is_done(Command::new("mkfs.ext4").arg("-q").arg(&image)));
    if !is_done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk)) {
        eprintln!("******** SKIPPED: a disk that fails needs loop devices ********");
        return None;
    }
    fs::create_dir(disk.join("b")).unwrap();
    Some(disk)
}

#[test]
fn a_target_that_stopped_after_an_error_gets_no_new_files() {
    UserWorld::enter("a disk that fails", "", |world| {
        let Some(disk) = disk_that_can_fail(world) else { return };
        let server = world.site.up("up @mnt --data @d1 --data @disk/b");
        let layout = "layout set @mnt --inline-size 0 --stripe-count 1";
        world.site.run(layout).expect(0);
        for number in 0..4 {
            write_and_sync(world, &format!("before{number}")).unwrap();
        }
        assert_eq!(states(&status(world)), ["online", "online"]);

        cut_power(&disk);
        let failed =
            (0..4).filter(|number| write_and_sync(world, &format!("during{number}")).is_err()).count();
        assert!(failed > 0, "the disk has failed");
        std::thread::sleep(ASKED_ANEW);
        let now = status(world);
        assert_eq!(states(&now), ["online", "stopped"]);
        assert_eq!(now["targets"][1]["online"], serde_json::Value::Bool(false));
        assert!(now["targets"][1]["reason"].as_str().is_some_and(|why| !why.is_empty()));
        let text = world.site.run("status @mnt").expect(0).stdout;
        assert!(text.contains("target 2 is stopped: "), "{text}");
        for number in 0..20 {
            write_and_sync(world, &format!("after{number}")).unwrap();
            assert_eq!(fs::read(world.site.mnt().join(format!("after{number}"))).unwrap(), support::big());
        }
        // It does not end in good order: a target cannot be closed.
        server.end_by(libc::SIGTERM).expect(1);
        assert!(Command::new("umount").arg(&disk).status().unwrap().success());
    });
}

#[test]
fn status_is_told_when_the_disk_of_a_target_was_taken_away() {
    UserWorld::enter("a disk that is taken away", "", |world| {
        let disk = world.site.path("disk");
        fs::create_dir(&disk).unwrap();
        let mut mount = Command::new("mount");
        assert!(mount.args(["-t", "tmpfs", "none"]).arg(&disk).status().unwrap().success());
        fs::create_dir(disk.join("b")).unwrap();
        let server = world.site.up("up @mnt --data @d1 --data @disk/b");
        assert!(Command::new("umount").arg("-l").arg(&disk).status().unwrap().success());
        std::thread::sleep(ASKED_ANEW);
        let now = status(world);
        assert!(["unreachable", "stopped"].contains(&states(&now)[1]), "{now}");
        assert_eq!(states(&now)[0], "online");
        assert!(now["inodes_used"].as_u64().is_some());
        world.site.run("layout set @mnt --inline-size 0 --stripe-count 1").expect(0);
        for number in 0..6 {
            write_and_sync(world, &format!("after{number}")).unwrap();
        }
        drop(server);
    });
}

#[test]
fn metadata_that_stopped_after_an_error_is_told() {
    UserWorld::enter("a metadata disk that fails", "", |world| {
        let Some(disk) = disk_that_can_fail(world) else { return };
        let server = world.site.up("up @mnt --meta @disk/b/meta --data @d1");
        assert_eq!(status(world)["meta_stopped"], serde_json::Value::Null);
        cut_power(&disk);
        assert!(write_and_sync(world, "during").is_err());
        assert!(status(world)["meta_stopped"].as_str().is_some_and(|why| !why.is_empty()));
        let text = world.site.run("status @mnt").expect(0).stdout;
        assert!(text.contains("metadata has stopped, "), "{text}");
        server.end_by(libc::SIGTERM).expect(1);
        assert!(Command::new("umount").arg(&disk).status().unwrap().success());
    });
}
