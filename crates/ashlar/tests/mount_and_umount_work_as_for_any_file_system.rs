//! Goal: /etc/fstab, `mount -a`, `mount -o remount` and `umount` do what an administrator expects. Method: the real mount(8) and
//! umount(8), in a mount name space with an /sbin and an /etc/fstab of the test's own.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use support::user_world::{UserWorld, bind};
use support::{Ended, PATIENCE, finish, is_mounted};

/// Runs `test` where the helpers are installed and /etc/fstab has one line, with these options.
fn with_helpers(name: &str, options: &'static str, test: impl FnOnce(&UserWorld) + Send + 'static) {
    UserWorld::enter(name, "", move |world| {
        let sbin = world.site.path("sbin");
        fs::create_dir(&sbin).unwrap();
        for helper in ["mount.ashlar", "mount.fuse.ashlar"] {
            symlink(world.site.path("ashlar"), sbin.join(helper)).unwrap();
        }
        bind(&sbin, &fs::canonicalize("/sbin").unwrap());
        world.site.up("up @mnt --data @d1").stop();
        let options = options.replace('@', &world.site.path("").display().to_string());
        let (data, mnt) = (world.site.path("d1"), world.site.mnt());
        let line = format!("{} {} ashlar {options} 0 0\n", data.display(), mnt.display());
        let table = world.site.path("fstab");
        fs::write(&table, line).unwrap();
        bind(&table, std::path::Path::new("/etc/fstab"));
        let _unmount = Unmount(world.site.mnt());
        test(world);
    });
}

/// Ends the server with the test, whatever has happened: nobody else waits for it.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            Command::new("umount").args(["-i", "-l"]).arg(&self.0).status().unwrap();
        }
    }
}

/// Runs a command with the default search path; `@name` as for `Site::args`.
#[track_caller]
fn run(world: &UserWorld, line: &str) -> Ended {
    let words = world.site.args(line);
    let mut command = Command::new(&words[0]);
    finish(command.args(&words[1..]).current_dir("/").env_remove("JOURNAL_STREAM"))
}

/// Copies to the mount by a process of its own: what this one has open is open, until it executes something else, in whatever another
/// test forks at that moment, and keeps the mount busy for as long.
#[track_caller]
fn copy(world: &UserWorld, from: &str, to: &str) {
    run(world, &format!("cp -a {from} {to}")).expect(0);
}

/// As `Site::write_files`.
#[track_caller]
fn copy_files(world: &UserWorld) {
    let made = world.site.path("made");
    fs::create_dir_all(made.join("dir/sub")).unwrap();
    fs::write(made.join("dir/small"), b"small content").unwrap();
    fs::write(made.join("dir/sub/big"), support::big()).unwrap();
    copy(world, "@made/dir", "@mnt");
}

#[test]
fn a_line_in_fstab_mounts_with_its_options_and_once() {
    let options =
        "defaults,nofail,nosuid,noexec,noatime,data=@d2,log_file=@log,x-systemd.requires-mounts-for=/disk";
    with_helpers("fstab", options, |world| {
        run(world, "mount @mnt").expect(0);
        let line = world.mount_line();
        for option in ["nosuid", "noexec", "noatime"] {
            assert!(line.split(' ').nth(5).unwrap().split(',').any(|shown| shown == option), "{line}");
        }
        assert!(world.site.path("d1/target").is_dir() && world.site.path("d2/target").is_dir());
        copy_files(world);
        run(world, "mount -a").expect(0);
        assert_eq!(world.mount_line(), line, "not mounted a second time");
        run(world, "umount @mnt").expect(0);
        assert!(!is_mounted(&world.site.mnt()), "nor under the first");
        run(world, "mount @mnt").expect(0);
        run(world, "umount @mnt").expect(0);
        run(world, "mount -a").expect(0);
        assert!(world.site.has_files());
    });
}

#[test]
fn a_disk_that_is_not_mounted_does_not_become_a_new_file_system() {
    with_helpers("disks that are not mounted", "log_file=@log", |world| {
        let site = &world.site;
        // What is there when the disk is not: an empty directory.
        fs::rename(site.path("d1"), site.path("unplugged")).unwrap();
        fs::create_dir(site.path("d1")).unwrap();
        let nothing = |ended: Ended, code: i32, word: &str| {
            assert!(ended.code == Some(code) && ended.stderr.contains(word), "{}", ended.all());
            assert_eq!(fs::read_dir(site.path("d1")).unwrap().count(), 0, "nothing was made");
        };
        nothing(run(world, "mount @mnt"), 32, "there is no file system at");
        nothing(site.run("up --existing @mnt --data @d1"), 1, "is its disk mounted?");
        let line = format!("/dev/disk1 {} ext4 defaults,nofail 0 2\n", site.path("d1").display());
        fs::write("/etc/fstab", line).unwrap();
        for data in ["@d1", "@d1/fs", "@d2 --meta @d1/meta"] {
            nothing(site.run(&format!("up @mnt --data {data}")), 1, "which /etc/fstab names, is not mounted");
        }
        assert_eq!(fs::read_dir(site.path("d2")).unwrap().count(), 0);
        bind(&site.path("unplugged"), &site.path("d1"));
        site.up("up @mnt --data @d1").stop();
    });
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    with_helpers("remount", "log_file=@log,nodev", |world| {
        run(world, "mount @mnt").expect(0);
        copy_files(world);
        let file = world.site.mnt().join("dir/small");
        let writer = fs::OpenOptions::new().append(true).open(&file).unwrap();
        let busy = run(world, "mount -o remount,ro @mnt");
        assert!(busy.code == Some(32) && busy.stderr.contains("open for writing"), "{}", busy.all());
        drop(writer);

        // It may still be open for a moment in what another test has just forked.
        let deadline = Instant::now() + PATIENCE;
        while run(world, "mount -o remount,ro @mnt").code != Some(0) {
            assert!(Instant::now() < deadline, "nobody has it open");
        }
        let refused = fs::write(&file, b"x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        assert!(world.site.has_files());
        assert!(world.mount_line().contains("nodev"), "{}", world.mount_line());

        run(world, "mount -o remount,rw @mnt").expect(0);
        fs::write(world.site.path("other"), b"other").unwrap();
        copy(world, "@other", "@mnt/dir/small");
        // A mount that `ashlar up` made is not in fstab as such; only the mount table tells what it is.
        fs::write("/etc/fstab", "").unwrap();
        run(world, "mount -o remount,ro @mnt").expect(0);
        assert!(fs::write(&file, b"x").is_err());
    });
}

#[test]
fn after_umount_nothing_is_in_use() {
    with_helpers("umount", "log_file=@log", |world| {
        fs::write(world.site.path("big"), support::big()).unwrap();
        for round in 0..3 {
            run(world, "mount @mnt").expect(0);
            copy(world, "@big", &format!("@mnt/file{round}"));
            run(world, "umount @mnt").expect(0);
            world.site.run("fsck --data @d1").expect(0);
        }
        run(world, "mount @mnt").expect(0);
        assert!(fs::read(world.site.mnt().join("file0")).unwrap() == support::big());
        let open = fs::File::open(world.site.mnt().join("file1")).unwrap();
        let busy = run(world, "umount @mnt");
        assert!(busy.code == Some(32) && busy.stderr.contains("busy"), "{}", busy.all());
        assert!(is_mounted(&world.site.mnt()));
        drop(open);
    });
}

#[test]
fn the_server_keeps_nothing_open_of_whoever_typed_mount() {
    with_helpers("descriptors", "log_file=@log", |world| {
        let locked = format!("flock -n {} ", world.site.path("script.lock").display());
        run(world, &format!("{locked} mount @mnt")).expect(0);
        run(world, &format!("{locked} true")).expect(0);
    });
}

#[test]
fn what_is_wrong_is_said_where_mount_was_typed() {
    with_helpers("wrong lines in fstab", "log_file=@log", |world| {
        let wrong = run(world, "mount -t ashlar -o datta=/x @d2 @mnt");
        assert!(
            wrong.code == Some(1) && wrong.stderr.contains("unknown option `datta=/x`"),
            "{}",
            wrong.all()
        );
        run(world, "mount @mnt").expect(0);
        let twice = run(
            world,
            "mount -t ashlar -o log_file=@log @d1 @home"
                .replace("@log", &world.site.path("log").display().to_string())
                .as_str(),
        );
        assert!(twice.code == Some(32) && twice.stderr.contains("is in use by ashlar up"), "{}", twice.all());
        assert!(!is_mounted(&world.site.path("home")));
        run(world, "umount @mnt").expect(0);
        fs::write(world.site.mnt().join("content"), b"").unwrap();
        let full = run(world, "mount @mnt");
        assert!(full.code == Some(32) && full.stderr.contains("is not empty"), "{}", full.all());
    });
}
