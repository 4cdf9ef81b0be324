//! Goal: a file system of an ordinary user works, is the user's own, and says what is missing. Method: the real binary as nobody, with
//! the real set-user-id program fusermount3, in a mount name space where /dev/fuse is open to everybody.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use support::user_world::{DAEMON, NOBODY, UserWorld};
use support::{Server, finish, is_mounted};

#[test]
fn a_user_creates_reads_renames_and_finds_everything_after_the_next_start() {
    UserWorld::enter("the files of an ordinary user", "", |world| {
        let server = world.up("up @mnt --data @d1 --data @d2");
        let script = "echo mine > a; cat a; mkdir dir; mv a dir/b; chmod 4750 dir/b; ln -s b dir/link; \
                      head -c 3000000 /dev/zero > big; stat -c '%a %U %s' dir/b";
        let ended = world.shell(NOBODY, script).expect(0);
        assert_eq!(ended.stdout, "mine\n4750 nobody 5\n");
        server.stop();
        assert!(!is_mounted(&world.site.mnt()));

        let server = world.up("up @mnt --data @d2 --data @d1");
        let ended =
            world.shell(NOBODY, "cat dir/link; stat -c '%a %U' dir/b; stat -c %s big; ls -A").expect(0);
        assert_eq!(ended.stdout, "mine\n4750 nobody\n3000000\nbig\ndir\n");
        server.stop();
        world.run("fsck --data @d1 --data @d2").expect(0);
    });
}

#[test]
fn set_id_programs_and_devices_have_no_effect_and_nobody_else_looks_in() {
    UserWorld::enter("the mount of an ordinary user", "", |world| {
        // In the default place for data, below the home directory.
        let server = world.up("up @mnt");
        assert!(world.site.path("home/.local/share/ashlar/target").is_dir());
        let line = world.mount_line();
        let options: Vec<&str> = line.split(' ').nth(5).unwrap().split(',').collect();
        assert!(options.contains(&"nosuid") && options.contains(&"nodev"), "{line}");
        assert!(line.contains(" fuse.ashlar ") && !line.contains("allow_other"), "{line}");
        world
            .shell(
                NOBODY,
                "echo secret > file; chmod 666 file; mknod null c 1 3 2>/dev/null && exit 9 || true",
            )
            .expect(0);
        assert!(fs::read(world.site.mnt().join("file")).is_err(), "not even root looks into a user's mount");
        let other = world.shell(DAEMON, "cat file");
        assert!(other.code != Some(0) && other.stdout.is_empty(), "{}", other.all());
        server.stop();
    });
}

#[test]
fn root_and_other_sessions_of_the_user_reach_the_server_and_root_leaves_the_directories_to_the_user() {
    UserWorld::enter("root and the file system of an ordinary user", "", |world| {
        const ROOT: (u32, u32) = (0, 0);
        let server = world.up("up @mnt --data @d1");
        let mnt = world.site.mnt().display().to_string();
        world.shell(NOBODY, "echo mine > file").expect(0);
        for user in [ROOT, NOBODY] {
            for line in ["status @mnt", "status", "scrub @mnt"] {
                let told = finish(&mut world.command_of(user, line)).expect(0);
                assert!(line.starts_with("scrub") || told.stdout.contains(&mnt), "{line}: {}", told.all());
            }
        }
        server.stop();
        finish(&mut world.command_of(ROOT, "fsck --data @d1")).expect(0);
        let words = ["belongs to user 65534", "as that user"];
        finish(&mut world.command_of(ROOT, "up @mnt --data @d1")).refused(&words);
        let told = finish(&mut world.command_of(ROOT, "fsck --repair --data @d1")).expect(8);
        assert!(words.iter().all(|word| told.stderr.contains(word)), "{}", told.all());
        let server = world.up("up @mnt --data @d1");
        world.shell(NOBODY, "cat file").expect(0);
        server.stop();
    });
}

#[test]
fn the_user_asks_and_unmounts_and_another_user_does_neither() {
    UserWorld::enter("status of an ordinary user", "", |world| {
        let server = world.up("up @mnt --data @d1");
        let mnt = world.site.mnt().display().to_string();
        let status = world.run("status @mnt").expect(0);
        assert!(status.stdout.contains(&mnt), "{}", status.all());

        let refused = ["you may ask"];
        finish(&mut world.command_of(DAEMON, "status @mnt")).refused(&refused);
        // Nor with the user's directory of sockets, were it open to everybody.
        for name in ["run", "run/ashlar"] {
            fs::set_permissions(world.site.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = world.command_of(DAEMON, "status @mnt");
        finish(command.env("XDG_RUNTIME_DIR", world.site.path("run"))).refused(&refused);
        finish(&mut world.command_of(DAEMON, "umount @mnt")).refused(&[
            &mnt,
            "user 65534",
            "only they and root",
        ]);
        assert!(is_mounted(&world.site.mnt()));

        let who = format!("is in use by ashlar up, process {}", server.pid());
        world.run("up @home --data @d1").refused(&[&who]);
        world.run("umount @mnt").expect(0);
        server.end_by(0).expect(0);
        assert!(!is_mounted(&world.site.mnt()));
    });
}

#[test]
fn a_killed_server_of_a_user_leaves_a_mount_that_the_user_removes() {
    UserWorld::enter("a killed server of an ordinary user", "", |world| {
        let mut server = world.up("up @mnt --data @d1");
        world.shell(NOBODY, "echo kept > file").expect(0);
        // SAFETY: kill takes no pointer; the process is a child that was not waited for.
        unsafe { libc::kill(server.pid(), libc::SIGKILL) };
        server.wait();
        world.run("up @mnt --data @d1").refused(&["server is gone", "ashlar umount"]);
        world.run("umount @mnt").expect(0);
        let server = world.up("up @mnt --data @d1");
        assert_eq!(world.shell(NOBODY, "cat file").expect(0).stdout, "kept\n");
        server.stop();
    });
}

#[test]
fn other_users_are_let_in_only_when_both_the_user_and_the_administrator_say_so() {
    UserWorld::enter("a refused --allow-other", "", |world| {
        world.run("up @mnt --data @d1 --allow-other").refused(&["user_allow_other", "/etc/fuse.conf"]);
        assert!(!is_mounted(&world.site.mnt()));
        // What was refused holds nothing.
        world.up("up @mnt --data @d1").stop();
    });
    UserWorld::enter("--allow-other", "user_allow_other\n", |world| {
        let server = world.up("up @mnt --data @d1 --allow-other");
        world.shell(NOBODY, "echo public > open; echo private > closed; chmod 600 closed").expect(0);
        assert_eq!(world.shell(DAEMON, "cat open").expect(0).stdout, "public\n");
        for script in ["cat closed", "echo x > new", "echo x > open", "rm -f open", "chmod 777 open"] {
            let ended = world.shell(DAEMON, script);
            assert!(ended.code != Some(0), "{script}: {}", ended.all());
        }
        server.stop();
    });
}

#[test]
fn what_is_missing_for_a_mount_is_named() {
    UserWorld::enter("refused mounts of an ordinary user", "", |world| {
        let mut command = world.command("up @mnt --data @d1");
        finish(command.env("PATH", world.site.path("home"))).refused(&["fusermount3", "package fuse3"]);
        // The world's own device.
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o600)).unwrap();
        world.run("up @mnt --data @d1").refused(&["/dev/fuse", "Permission denied", "chmod 666"]);
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
        // A mount point of somebody else.
        let mnt = world.site.path("foreign");
        fs::create_dir(&mnt).unwrap();
        fs::set_permissions(&mnt, fs::Permissions::from_mode(0o755)).unwrap();
        world.run("up @foreign --data @d1").refused(&["fusermount3", mnt.to_str().unwrap()]);
        // A data directory of somebody else.
        let data = world.site.path("other");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        world.run("up @mnt --data @other").refused(&[data.to_str().unwrap(), "Permission denied"]);
        world.up("up @mnt --data @d1").stop();
    });
}

#[test]
fn a_directory_of_sockets_that_somebody_else_made_first_is_not_used() {
    UserWorld::enter("a planted directory of sockets", "", |world| {
        let planted = world.site.path(&format!("tmp/ashlar-{}", NOBODY.0));
        let up = || world.command_of(NOBODY, "up @mnt --data @d1");
        fs::create_dir(&planted).unwrap();
        std::os::unix::fs::chown(&planted, Some(DAEMON.0), Some(DAEMON.1)).unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).unwrap();
        let remedy = [planted.to_str().unwrap(), "another user", "XDG_RUNTIME_DIR"];
        finish(&mut up()).refused(&remedy);
        assert!(!is_mounted(&world.site.mnt()));
        fs::remove_dir(&planted).unwrap();
        std::os::unix::fs::symlink(world.site.path("home"), &planted).unwrap();
        finish(&mut up()).refused(&remedy);
        fs::remove_file(&planted).unwrap();

        let server = Server::start(up(), world.site.mnt()).unwrap_or_else(|ended| panic!("{}", ended.all()));
        finish(&mut world.command_of(NOBODY, "status @mnt")).expect(0);
        server.stop();
    });
}
