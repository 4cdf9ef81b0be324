//! Goal: a file system of many servers is mounted by a line in /etc/fstab and goes with umount(8), several of them on one client, and what is
//! wrong is said where `mount` was typed. Method: the real mount(8) and umount(8) and real servers, in a mount name space with an /sbin and an
//! /etc/fstab of the test's own.

#![allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::cluster::Lab;
use support::user_world::{UserWorld, bind};
use support::{Ended, finish, is_mounted};

/// Runs `test` where the helpers are installed, with an empty /etc/fstab.
fn with_helpers(name: &str, test: impl FnOnce(&UserWorld) + Send + 'static) {
    UserWorld::enter(name, "", move |world| {
        let sbin = world.site.path("sbin");
        fs::create_dir(&sbin).unwrap();
        for helper in ["mount.ashlar", "mount.fuse.ashlar"] {
            symlink(world.site.path("ashlar"), sbin.join(helper)).unwrap();
        }
        bind(&sbin, &fs::canonicalize("/sbin").unwrap());
        fs::write(world.site.path("fstab"), "").unwrap();
        bind(&world.site.path("fstab"), Path::new("/etc/fstab"));
        fs::create_dir(world.site.path("mnt2")).unwrap();
        let _unmount = [Unmount(world.site.mnt()), Unmount(world.site.path("mnt2"))];
        test(world);
    });
}

/// Ends the mount with the test, whatever has happened.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            Command::new("umount").args(["-i", "-l"]).arg(&self.0).status().unwrap();
        }
    }
}

/// Makes this machine a client of `lab`; tells the identity directory.
fn join(lab: &Lab, world: &UserWorld, name: &str) -> PathBuf {
    let token = lab.ashlar("token --role client --squash none --identity @first").expect(0).stdout;
    let identity = world.site.path(name);
    lab.ashlar(&format!("join {} --name {name} --identity {}", token.trim(), identity.display())).expect(0);
    identity
}

/// Runs a command with the default search path; `@name` as for `Site::args`.
#[track_caller]
fn run(world: &UserWorld, line: &str) -> Ended {
    let words = world.site.args(line);
    let mut command = Command::new(&words[0]);
    finish(command.args(&words[1..]).current_dir("/").env_remove("JOURNAL_STREAM"))
}

fn fstab(world: &UserWorld, lines: &str) {
    let lines = lines.replace('@', &format!("{}/", world.site.path("").display()));
    fs::write("/etc/fstab", lines).unwrap();
}

/// Processes that mount by this identity directory.
fn mount_processes(identity: &Path) -> usize {
    let identity = identity.display().to_string();
    let of_process = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let lines = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(of_process);
    lines
        .filter(|line| {
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&b"mount".as_slice()) && words.contains(&identity.as_bytes())
        })
        .count()
}

#[test]
fn two_lines_mount_two_file_systems_and_umount_takes_each_away() {
    with_helpers("a cluster in fstab", |world| {
        let (mut one, mut two) = (Lab::start(1, 0), Lab::start(1, 0));
        let (first, second) = (join(&one, world, "client-of-one"), join(&two, world, "client-of-two"));
        fstab(
            world,
            "@client-of-one @mnt ashlar _netdev,nofail,nosuid,noexec,error-after=60,log_file=@log 0 0\n\
             @client-of-two @mnt2 ashlar _netdev,error-after=60,log_file=@log 0 0\n",
        );
        run(world, "mount -a").expect(0);
        let line = world.mount_line();
        assert!(
            line.contains("nosuid") && line.contains("noexec") && line.contains(first.to_str().unwrap()),
            "{line}"
        );
        let (mnt, mnt2) = (world.site.mnt(), world.site.path("mnt2"));
        fs::write(world.site.path("big"), support::big()).unwrap();
        run(world, "cp @big @mnt/file").expect(0);
        run(world, "cp /etc/hostname @mnt2/other").expect(0);
        assert!(!mnt2.join("file").exists(), "they are two");
        run(world, "mount -a").expect(0);
        assert_eq!(world.mount_line(), line, "not mounted a second time");
        assert_eq!((mount_processes(&first), mount_processes(&second)), (1, 1));

        run(world, "umount @mnt").expect(0);
        assert!(!is_mounted(&mnt) && is_mounted(&mnt2));
        assert!(mnt2.join("other").exists());
        run(world, "mount @mnt").expect(0);
        assert!(fs::read(mnt.join("file")).unwrap() == support::big());
        // By the mount table alone: there is no line any more.
        fstab(world, "");
        run(world, "mount -o remount,ro @mnt").expect(0);
        let refused = run(world, "cp /etc/hostname @mnt/no");
        assert!(refused.code != Some(0) && refused.stderr.contains("Read-only"), "{}", refused.all());
        run(world, "umount @mnt").expect(0);
        run(world, "umount @mnt2").expect(0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while mount_processes(&first) + mount_processes(&second) > 0 {
            assert!(Instant::now() < deadline, "their processes end");
            std::thread::sleep(Duration::from_millis(20));
        }
        one.stop();
        two.stop();
    });
}

#[test]
fn a_mount_right_after_umount_stays() {
    with_helpers("a cluster that is mounted again at once", |world| {
        let mut lab = Lab::start(1, 0);
        join(&lab, world, "client");
        fstab(world, "@client @mnt ashlar _netdev,noexec,error-after=60,log_file=@log 0 0\n");
        run(world, "mount @mnt").expect(0);
        for round in 0..12 {
            run(world, "umount @mnt").expect(0);
            run(world, "mount @mnt").expect(0);
            // The process of the mount before ends meanwhile.
            std::thread::sleep(Duration::from_millis(150));
            assert!(is_mounted(&world.site.mnt()), "round {round}");
        }
        run(world, "cp /etc/hostname @mnt/file").expect(0);
        run(world, "umount @mnt").expect(0);
        lab.stop();
    });
}

#[test]
fn what_is_wrong_is_said_where_mount_was_typed() {
    with_helpers("wrong lines of a cluster in fstab", |world| {
        let mut lab = Lab::start(1, 0);
        let identity = join(&lab, world, "client");
        let wrong = |options: &str, spec: &str, code: i32, words: &[&str]| {
            let begun = Instant::now();
            fstab(world, &format!("{spec} @mnt ashlar log_file=@log,{options} 0 0\n"));
            let ended = run(world, "mount @mnt");
            assert_eq!(ended.code, Some(code), "{}", ended.all());
            words
                .iter()
                .for_each(|word| assert!(ended.stderr.contains(word), "no `{word}`: {}", ended.all()));
            assert!(!is_mounted(&world.site.mnt()));
            assert_eq!(mount_processes(&identity), 0, "nothing is left");
            begun.elapsed()
        };
        wrong("error_after=5", "@client", 1, &["unknown option `error_after=5`", "error-after=SECONDS"]);
        wrong("error-after=soon", "@client", 32, &["soon", "--error-after"]);
        wrong("data=@d1", "@client", 32, &["`data=`", "leave it out"]);
        wrong("_netdev", "@nobody", 32, &["node.json is not there", "ashlar join"]);
        wrong("error-after=60", "@nobody", 32, &["node.json is not there", "ashlar join"]);
        // A machine that is no client.
        wrong("_netdev", &lab.path("oss0").display().to_string(), 32, &["oss0", "not for client"]);
        // The metadata server is away: bounded by what the line says.
        lab.meta.kill();
        let took = wrong("error-after=3", "@client", 32, &["cannot"]);
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(40), "{took:?}");
        lab.start_meta();
        fstab(world, "@client @mnt ashlar log_file=@log,error-after=60 0 0\n");
        run(world, "mount @mnt").expect(0);
        run(world, "umount @mnt").expect(0);
        lab.stop();
    });
}
